from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mxnet.ndarray import NDArray

class DataDesc(NamedTuple):
    name: str
    shape: tuple[int, ...]
    @staticmethod
    def get_batch_axis(layout: str | None) -> int: ...

class DataBatch:
    data: list[NDArray]
    label: list[NDArray] | None
    pad: int | None
    index: Any
    bucket_key: Any
    provide_data: list[DataDesc] | None
    provide_label: list[DataDesc] | None
    def __init__(
        self,
        data: list[NDArray],
        label: list[NDArray] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: list[DataDesc] | None = None,
        provide_label: list[DataDesc] | None = None,
    ) -> None: ...

class DataIter:
    batch_size: int
    def __init__(self, batch_size: int = 0) -> None: ...
    def __iter__(self) -> Iterator[DataBatch]: ...
    def __next__(self) -> DataBatch: ...
    def reset(self) -> None: ...
    def next(self) -> DataBatch: ...
    def iter_next(self) -> bool: ...
    def getdata(self) -> list[NDArray]: ...
    def getlabel(self) -> list[NDArray]: ...
    def getindex(self) -> Any: ...
    def getpad(self) -> int | None: ...

_Arrays = NDArray | np.ndarray[Any, Any]

class NDArrayIter(DataIter):
    data: list[tuple[str, NDArray]]
    label: list[tuple[str, NDArray]]
    cursor: int
    num_data: int
    shuffle: bool
    last_batch_handle: str
    def __init__(
        self,
        data: _Arrays | Sequence[_Arrays] | Mapping[str, _Arrays],
        label: _Arrays | Sequence[_Arrays] | Mapping[str, _Arrays] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None: ...
    @property
    def provide_data(self) -> list[DataDesc]: ...
    @property
    def provide_label(self) -> list[DataDesc]: ...
    def hard_reset(self) -> None: ...

class MXDataIter(DataIter):
    first_batch: DataBatch | None
    provide_data: list[DataDesc]
    provide_label: list[DataDesc]

def __getattr__(name: str) -> Any: ...
