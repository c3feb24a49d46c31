from typing import Any

from mxnet.context import Context
from mxnet.ndarray import NDArray

class BatchProcessor:
    # The estimator is MXNet's own, or any class with these attributes.
    def fit_batch(
        self, estimator: Any, train_batch: Any, batch_axis: int = 0
    ) -> tuple[Any, Any, Any, Any]: ...
    def evaluate_batch(
        self, estimator: Any, val_batch: Any, batch_axis: int = 0
    ) -> tuple[Any, Any, Any, Any]: ...
    def _get_data_and_label(
        self, batch: Any, ctx: list[Context], batch_axis: int = 0
    ) -> tuple[list[NDArray], list[NDArray]]: ...
