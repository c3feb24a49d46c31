from typing import Any, TypeAlias

from mxnet.ndarray import NDArray
from mxnet.optimizer import Optimizer, Updater

_Key: TypeAlias = int | str
_Values: TypeAlias = NDArray | list[NDArray] | list[list[NDArray]]

class KVStoreBase:
    @property
    def type(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...
    def broadcast(
        self, key: _Key, value: NDArray, out: NDArray | list[NDArray], priority: int = 0
    ) -> None: ...
    def pushpull(
        self,
        key: _Key | list[_Key],
        value: _Values,
        out: _Values | None = None,
        priority: int = 0,
    ) -> None: ...

class KVStore(KVStoreBase):
    handle: Any
    _updater: Updater
    def init(self, key: _Key | list[_Key], value: _Values) -> None: ...
    def push(self, key: _Key | list[_Key], value: _Values, priority: int = 0) -> None: ...
    def pull(
        self,
        key: _Key | list[_Key],
        out: _Values | None = None,
        priority: int = 0,
        ignore_sparse: bool = True,
    ) -> None: ...
    def set_optimizer(self, optimizer: Optimizer) -> None: ...

def create(name: str = "local") -> KVStore: ...
