from collections.abc import Callable, Sequence
from typing import Any

from mxnet.ndarray import NDArray

class EvalMetric:
    name: str
    output_names: list[str] | None
    label_names: list[str] | None
    num_inst: float
    sum_metric: float
    global_num_inst: float
    global_sum_metric: float
    def __init__(
        self,
        name: str,
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None: ...
    def get_config(self) -> dict[str, Any]: ...
    def update(self, labels: Sequence[NDArray], preds: Sequence[NDArray]) -> None: ...
    def update_dict(self, label: dict[str, NDArray], pred: dict[str, NDArray]) -> None: ...
    def reset(self) -> None: ...
    def reset_local(self) -> None: ...
    # A composite one returns lists: it is looked into before.
    def get(self) -> tuple[str, float]: ...
    def get_global(self) -> tuple[str, float]: ...
    def get_name_value(self) -> list[tuple[str, float]]: ...
    def get_global_name_value(self) -> list[tuple[str, float]]: ...

class CompositeEvalMetric(EvalMetric):
    metrics: list[EvalMetric]
    def __init__(
        self,
        metrics: Sequence[EvalMetric] | None = None,
        name: str = "composite",
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None: ...
    def add(self, metric: EvalMetric) -> None: ...

class Accuracy(EvalMetric):
    axis: int
    def __init__(
        self,
        axis: int = 1,
        name: str = "accuracy",
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None: ...

class TopKAccuracy(EvalMetric):
    top_k: int
    def __init__(
        self,
        top_k: int = 1,
        name: str = "top_k_accuracy",
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None: ...

class MSE(EvalMetric):
    def __init__(
        self,
        name: str = "mse",
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None: ...

class Loss(EvalMetric):
    def __init__(
        self,
        name: str = "loss",
        output_names: list[str] | None = None,
        label_names: list[str] | None = None,
    ) -> None: ...
    def update(self, _: object, preds: Sequence[NDArray]) -> None: ...

class F1(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class MCC(EvalMetric):
    _metrics: Any
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class PCC(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class MAE(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class RMSE(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class CrossEntropy(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class NegativeLogLikelihood(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class Perplexity(EvalMetric):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class PearsonCorrelation(EvalMetric):
    _conv: float
    _sse_p: float
    _sse_l: float
    _pred_nums: int
    _label_nums: int
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

class CustomMetric(EvalMetric):
    _feval: Callable[[Any, Any], Any]
    def __init__(self, feval: Callable[[Any, Any], Any], *args: Any, **kwargs: Any) -> None: ...

def create(metric: Any, *args: Any, **kwargs: Any) -> EvalMetric: ...
