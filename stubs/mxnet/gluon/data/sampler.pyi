from collections.abc import Iterator
from typing import Generic, TypeVar

_T_co = TypeVar("_T_co", covariant=True)

class Sampler(Generic[_T_co]):
    def __iter__(self) -> Iterator[_T_co]: ...
    def __len__(self) -> int: ...

class SequentialSampler(Sampler[int]):
    def __init__(self, length: int, start: int = 0) -> None: ...

class RandomSampler(Sampler[int]):
    def __init__(self, length: int) -> None: ...

class BatchSampler(Sampler[list[int]]):
    _last_batch: str
    _sampler: Sampler[int]
    def __init__(
        self, sampler: Sampler[int], batch_size: int, last_batch: str = "keep"
    ) -> None: ...
