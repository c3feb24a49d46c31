from collections.abc import Sequence
from typing import Any

from mxnet.context import Context
from mxnet.ndarray import NDArray

def split_data(
    data: NDArray, num_slice: int, batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]: ...
def split_and_load(
    data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]: ...
def clip_global_norm(
    arrays: list[NDArray], max_norm: float, check_isfinite: bool = True
) -> float | NDArray: ...
