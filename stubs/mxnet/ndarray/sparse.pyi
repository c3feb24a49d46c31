from typing import Any

from mxnet.context import Context
from mxnet.ndarray import NDArray

class BaseSparseNDArray(NDArray):
    @property
    def data(self) -> NDArray: ...

class CSRNDArray(BaseSparseNDArray):
    @property
    def indices(self) -> NDArray: ...
    @property
    def indptr(self) -> NDArray: ...

class RowSparseNDArray(BaseSparseNDArray):
    @property
    def indices(self) -> NDArray: ...

def csr_matrix(
    arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None
) -> CSRNDArray: ...
def row_sparse_array(
    arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None
) -> RowSparseNDArray: ...
def retain(data: NDArray, indices: NDArray) -> RowSparseNDArray: ...
def zeros(
    stype: str, shape: Any, ctx: Context | None = None, dtype: Any = None, **kwargs: Any
) -> NDArray: ...
