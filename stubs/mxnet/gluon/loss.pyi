from typing import Any

from mxnet.gluon.block import HybridBlock

class Loss(HybridBlock):
    _batch_axis: int | None
    def __init__(self, weight: float | None, batch_axis: int | None, **kwargs: Any) -> None: ...

class L2Loss(Loss):
    def __init__(self, weight: float = 1.0, batch_axis: int = 0, **kwargs: Any) -> None: ...

class L1Loss(Loss):
    def __init__(self, weight: float | None = None, batch_axis: int = 0, **kwargs: Any) -> None: ...

class HingeLoss(Loss):
    def __init__(
        self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None: ...

class SquaredHingeLoss(Loss):
    def __init__(
        self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None: ...

class HuberLoss(Loss):
    _rho: float
    def __init__(
        self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **kwargs: Any
    ) -> None: ...

class KLDivLoss(Loss):
    _axis: int
    _from_logits: bool
    def __init__(
        self,
        from_logits: bool = True,
        axis: int = -1,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None: ...

class CTCLoss(Loss):
    def __init__(
        self,
        layout: str = "NTC",
        label_layout: str = "NT",
        weight: float | None = None,
        **kwargs: Any,
    ) -> None: ...

class LogisticLoss(Loss):
    _label_format: str
    def __init__(
        self,
        weight: float | None = None,
        batch_axis: int = 0,
        label_format: str = "signed",
        **kwargs: Any,
    ) -> None: ...

class SigmoidBinaryCrossEntropyLoss(Loss):
    _from_sigmoid: bool
    def __init__(
        self,
        from_sigmoid: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None: ...

SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss

class SoftmaxCrossEntropyLoss(Loss):
    _axis: int
    _from_logits: bool
    _sparse_label: bool
    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **kwargs: Any,
    ) -> None: ...

SoftmaxCELoss = SoftmaxCrossEntropyLoss
