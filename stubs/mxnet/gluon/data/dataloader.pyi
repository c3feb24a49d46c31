from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mxnet.gluon.data.dataset import Dataset
from mxnet.gluon.data.sampler import Sampler

def default_batchify_fn(data: Sequence[Any]) -> Any: ...
def default_mp_batchify_fn(data: Sequence[Any]) -> Any: ...

class DataLoader:
    _dataset: Dataset
    _batch_sampler: Sampler[list[int]]
    _num_workers: int
    _iter: Iterator[Any] | None
    _batchify_fn: Callable[[list[Any]], Any]
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Sampler[int] | None = None,
        last_batch: str | None = None,
        batch_sampler: Sampler[list[int]] | None = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: int = 120,
        auto_reload: bool = False,
    ) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
