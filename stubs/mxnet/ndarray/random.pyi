from typing import Any

from mxnet.context import Context
from mxnet.ndarray import NDArray

def uniform(
    low: float = 0,
    high: float = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray: ...
def normal(
    loc: float = 0,
    scale: float = 1,
    shape: Any = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray: ...
def randint(
    low: int,
    high: int,
    shape: Any = None,
    dtype: Any = None,
    ctx: Context | None = None,
    out: NDArray | None = None,
    **kwargs: Any,
) -> NDArray: ...
def shuffle(data: NDArray, **kwargs: Any) -> NDArray: ...
