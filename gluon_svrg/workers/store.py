"""StoreWorkers: sums of arrays over ps-lite's servers, messages over sockets."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg.launch.environment import SERVER_ENVIRONMENT
from gluon_svrg.workers.buckets import LARGEST, Bucket, Packing, Slots, plan
from gluon_svrg.workers.exact import slots_of
from gluon_svrg.workers.sums import Description, SumWorkers
from mxnet.kvstore import KVStore, KVStoreBase
from mxnet.ndarray import NDArray

# A trainer's own keys are the small ones; ps-lite multiplies a key by 9973 in 32 bits.
_FIRST_KEY = 100_000
_PROBE = 1 + 2.0**-40  # is 1 in float32


_MOST_GROUPS = 8
"""Of buckets that are packed by one call: the last layers' gradients can be on their way before the
first layers' are there, and a call takes a tenth of a millisecond."""


class _Place(NamedTuple):
    """Where a bucket is added up: a key of the kvstore, and what is pushed from and pulled into."""

    key: int
    array: NDArray


class _Kind(NamedTuple):
    """What a place is good for, and which of them it is; other layouts use it, too."""

    dtype: str
    size: int
    context: mx.Context
    which: object


class _Group(NamedTuple):
    """Buckets that are packed by one call, and unpacked by one."""

    packing: Packing
    places: Sequence[_Place]

    @classmethod
    def of(cls, buckets: Sequence[Bucket], places: Sequence[_Place], slots: Slots) -> _Group:
        return cls(Packing(buckets, [place.array for place in places], slots), places)

    def bind(self, arrays: Sequence[NDArray]) -> _Bound:
        return _Bound(self.packing, self.places, self.packing.views(arrays))


class _Bound(NamedTuple):
    """A group of certain arrays, with the views of their pieces."""

    packing: Packing
    places: Sequence[_Place]
    views: Sequence[NDArray]


class StoreWorkers(SumWorkers[_Bound]):
    """Workers whose sums go through a kvstore: the servers of ``dist_sync``, or one of yours.

    The arrays are copied into a few flat buckets, each a key of the kvstore, which no array of a
    network ever is: what oneDNN has laid out in its own way never comes to a server, and no pull is
    under way when the first sum begins. All of it is left to MXNet's engine, so a sum takes its
    place behind the backward pass that computes the arrays, the last ones first, and nothing waits
    here.

    A server takes what comes for a key as the next summand, whoever it is of: see `SumWorkers` for
    how workers hear that they have parted.

    Parameters
    ----------
    rank, size, address, key, timeout, listener
        As for `SocketWorkers`.
    store : KVStoreBase or str
        The kvstore of these workers, by hand, or the type of the one to make where the launcher has
        started the servers, and ends them: one that sums. A process must not have a second one.
    exact : bool
        Whether the bits of a sum shall not depend on which worker comes first (`exact.py`).

    Raises
    ------
    WorkerError
        If the kvstore is of other workers, or if it does not add float64 as float64.
    """

    _store: KVStoreBase | None = None

    def __init__(
        self,
        rank: int,
        size: int,
        address: tuple[str, int],
        key: bytes,
        timeout: float = 60.0,
        *,
        listener: socket.socket | None = None,
        store: KVStoreBase | str = "dist_sync",
        exact: bool = True,
    ) -> None:
        super().__init__(rank, size, address, key, timeout, listener=listener)
        self._slots = slots_of(rank, size, exact=exact)
        self._servers = _mxnet.servers_of_cluster()
        self._places: dict[_Kind, _Place] = {}
        self._is_by_hand = not isinstance(store, str)
        self._store = mx.kv.create(store) if isinstance(store, str) else store
        if self._store.num_workers != size:
            self._fail(
                f"the kvstore has {self._store.num_workers} workers, and there are {size}: let one "
                "launcher set the environment of all of them"
            )
        self._probe()

    @property
    def store(self) -> KVStoreBase:
        """The kvstore; its keys from 100000 on are taken."""
        assert self._store is not None  # but while the constructor runs
        return self._store

    def leave(self) -> None:
        """See SocketWorkers. The kvstore is freed: it must not outlive MXNet's own threads.

        All workers are done by then. ps-lite's own barriers at the end would only tell the servers,
        which the launcher ends itself; and a scheduler that ends drops what it has not sent yet, so
        that a worker waits for ever. By hand there is nobody else to end the servers.
        """
        super().leave()
        if not isinstance(self.store, KVStore):
            return
        if not self._is_by_hand:
            _mxnet.end_without_barrier(self.store)
        _mxnet.free(self.store)

    def _tell(self, reason: str) -> None:
        if isinstance(self._store, KVStore):
            # At its end a process would wait for all others, of which one has failed.
            _mxnet.end_without_barrier(self._store)
        super()._tell(reason)

    def _planned(self, key: Sequence[Description]) -> list[_Group]:
        buckets = plan(
            [own.size for own in key],
            [own.dtype for own in key],
            self._servers,
            LARGEST // self._slots.number,
        )
        counts: Counter[tuple[object, ...]] = Counter()
        kinds = []
        for bucket in buckets:
            kind = (bucket.dtype, bucket.size, key[0].context)
            kinds.append(_Kind(*kind, counts[kind]))
            counts[kind] += 1
        places = self._places_for(kinds)
        step = -(-len(buckets) // _MOST_GROUPS)
        return [
            _Group.of(buckets[i : i + step], places[i : i + step], self._slots)
            for i in range(0, len(buckets), step)
        ]

    def _add_up(self, groups: Sequence[_Bound]) -> None:
        for packing, places, views in reversed(groups):
            packing.pack(views)
            self._begin(places)
        for packing, _, views in reversed(groups):
            packing.unpack(views)

    def _begin(self, places: Sequence[_Place]) -> None:
        # The first arrays are those that the next forward pass begins with.
        for key, array in places:
            self.store.pushpull(key, array, out=array, priority=_FIRST_KEY - key)

    def _places_for(self, kinds: Sequence[_Kind]) -> list[_Place]:
        """Return the place of each kind; those that there are not yet are made, all at once.

        That takes the time of a barrier. Zeros are pushed, and nothing is pulled, so nothing is
        under way when this returns.
        """
        new = []
        for kind in kinds:
            if kind not in self._places:
                array = mx.nd.zeros(kind.size * self._slots.number, kind.context, kind.dtype)
                self._places[kind] = _Place(_FIRST_KEY + len(self._places), array)
                new.append(self._places[kind])
        if new:
            begin_keys(self.store, *zip(*new, strict=True))
        return [self._places[kind] for kind in kinds]

    def _probe(self) -> None:
        """Check that every server adds float64 as float64."""
        # Keys that follow each other go round the servers.
        kinds = [_Kind("float64", 1, mx.cpu(), (server,)) for server in range(self._servers)]
        places = self._places_for(kinds)
        for place in places:
            place.array[:] = _PROBE if self.is_first else 0.0
            self._begin([place])
        wrong = [i for i, place in enumerate(places) if place.array[0].asscalar() != _PROBE]
        if not wrong:
            return
        if not isinstance(self.store, KVStore):
            self._fail(
                f"the kvstore {type(self.store).__name__} adds {_PROBE!r} and 0 up to "
                f"{float(places[0].array[0].asscalar())!r} in float64: its pushpull has to leave "
                "the sum over all workers in out"
            )
        needed = " ".join(f"{name}={value}" for name, value in SERVER_ENVIRONMENT.items())
        self._fail(
            f"server {wrong[0]} of the kvstore rounds float64 to float32: start the servers by "
            f"python -m gluon_svrg.launch, or with {needed} in their environment"
        )


def begin_keys(store: KVStoreBase, keys: Sequence[int], arrays: Sequence[NDArray]) -> None:
    """Make new keys of a kvstore: those of MXNet need it, of others only `pushpull` is used."""
    if isinstance(store, KVStore):
        store.init(list(keys), list(arrays))
