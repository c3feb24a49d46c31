from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from mxnet.gluon.trainer import Trainer
from mxnet.ndarray import NDArray

def init(
    target_dtype: str = "float16",
    target_precision_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Sequence[Any] | None = None,
    fp32_ops: Sequence[str] | None = None,
) -> None: ...
def init_trainer(optimizer_or_trainer: Trainer) -> None: ...
def unscale(optimizer_or_trainer: Trainer) -> None: ...
def scale_loss(
    loss: NDArray | list[NDArray], optimizer_or_trainer: Trainer
) -> AbstractContextManager[NDArray | list[NDArray]]: ...
