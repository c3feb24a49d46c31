from typing import Any

from mxnet.ndarray import NDArray

class ndarray(NDArray): ...

def array(object: Any, dtype: Any = None, ctx: Any = None) -> ndarray: ...
