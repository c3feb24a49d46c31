"""StoreWorkers: sums of arrays over ps-lite's servers, messages over sockets."""

from __future__ import annotations

import math
import socket
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg.launch.environment import SERVER_ENVIRONMENT
from gluon_svrg.workers.buckets import LARGEST, Packing, plan
from gluon_svrg.workers.exact import slots_of
from gluon_svrg.workers.sockets import SocketWorkers
from mxnet import autograd
from mxnet.kvstore import KVStore
from mxnet.ndarray import NDArray

_FLOATS = ("float16", "float32", "float64")  # what a server of MXNet can add
# A trainer's own keys are the small ones; ps-lite multiplies a key by 9973 in 32 bits.
_FIRST_KEY = 100_000
_PROBE = 1 + 2.0**-40  # is 1 in float32


class StoreWorkers(SocketWorkers):
    """Workers whose sums go through the servers of a ``dist_sync`` kvstore.

    The arrays are copied into a few flat buckets, each a key of the kvstore, which no array of a
    network ever is: what oneDNN has laid out in its own way never comes to a server, and no pull is
    under way when the first sum begins. All of it is left to MXNet's engine, so a sum takes its
    place behind the backward pass that computes the arrays, and nothing waits here.

    A server takes what comes for a key as the next summand, whoever it is of. So every message says
    which sums were begun before it: workers that have parted in them hear of it at the next one.

    Integers, and what :meth:`broadcast` sends, go over the sockets.

    Parameters
    ----------
    rank, size, address, key, timeout, listener
        As for `SocketWorkers`.
    store : KVStore or str
        The kvstore of these workers, by hand, or the type of the one to make where the launcher has
        started the servers, and ends them: one that sums. A process must not have a second one.
    exact : bool
        Whether the bits of a sum shall not depend on which worker comes first (`exact.py`).

    Raises
    ------
    WorkerError
        If the kvstore is of other workers, or if a server does not add float64 as float64.
    """

    _store: KVStore | None = None
    _number, _bits = 0, 0  # of the sums so far

    def __init__(
        self,
        rank: int,
        size: int,
        address: tuple[str, int],
        key: bytes,
        timeout: float = 60.0,
        *,
        listener: socket.socket | None = None,
        store: KVStore | str = "dist_sync",
        exact: bool = True,
    ) -> None:
        super().__init__(rank, size, address, key, timeout, listener=listener)
        self._slots = slots_of(rank, size, exact=exact)
        self._places: dict[tuple[object, ...], _Place] = {}
        self._layouts: dict[tuple[_Description, ...], _Layout] = {}
        self._is_by_hand = not isinstance(store, str)
        self._store = mx.kv.create(store) if isinstance(store, str) else store
        if self._store.num_workers != size:
            self._fail(
                f"the kvstore has {self._store.num_workers} workers, and there are {size}: let one "
                "launcher set the environment of all of them"
            )
        self._probe()

    def sum(self, arrays: Sequence[NDArray]) -> None:
        """See Workers.

        Raises
        ------
        ValueError
            If an array is sparse, or if they are not all on one context.
        WorkerError
            If another worker adds arrays of other shapes or dtypes.
        """
        if not arrays:
            return
        with autograd.pause():
            layout, views = self._layout_of(arrays)
            layout.sum(views)
        self._number += 1
        self._bits = zlib.crc32(layout.label, self._bits)
        if layout.others:
            super().sum([arrays[i] for i in layout.others])

    @property
    def store(self) -> KVStore:
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
        if not self._is_by_hand:
            _mxnet.end_without_barrier(self.store)
        _mxnet.free(self.store)

    def _tell(self, reason: str) -> None:
        if self._store is not None:
            # At its end a process would wait for all others, of which one has failed.
            _mxnet.end_without_barrier(self._store)
        super()._tell(reason)

    def _sums_so_far(self) -> str:
        return f"{self._number} times (of arrays {self._bits:08x})"

    def _layout_of(self, arrays: Sequence[NDArray]) -> tuple[_Layout, list[NDArray]]:
        """Return how `arrays` are packed, and the views of their pieces."""
        ids = tuple(map(id, arrays))
        for layout in self._layouts.values():
            if layout.kept is not None and layout.kept.ids == ids:
                return layout, layout.kept.views
        key = tuple(_Description.of(array) for array in arrays)
        if key not in self._layouts:
            self._layouts[key] = self._new_layout(key)
        layout = self._layouts[key]
        views = layout.packing.views(arrays)
        # To make the views costs more than the sum itself. What comes for the second time comes
        # again, as gradients do; what comes once is not kept alive.
        if layout.last_ids == ids:
            layout.kept = _Kept(ids, list(arrays), views)
        layout.last_ids = ids
        return layout, views

    def _new_layout(self, key: Sequence[_Description]) -> _Layout:
        """Make the buckets of such arrays, and their keys on the servers."""
        for i, own in enumerate(key):
            if own.stype != "default":
                raise ValueError(
                    f"array {i} of a sum is {own.stype}: workers add dense arrays only; let the "
                    "layer that has it make dense gradients (sparse_grad=False, "
                    "grad_stype='default')"
                )
            if own.context != key[0].context:
                raise ValueError(
                    f"the arrays of a sum are on {key[0].context} and {own.context}: give those of "
                    "one context, and copy the sums to the others"
                )
        self._agree(key)
        floats = [i for i, own in enumerate(key) if own.dtype in _FLOATS]
        buckets = plan(
            [own.size if i in floats else 0 for i, own in enumerate(key)],
            [own.dtype for own in key],
            _mxnet.servers_of_cluster(),
            LARGEST // self._slots.number,
        )
        counts: Counter[tuple[object, ...]] = Counter()
        places = []
        for bucket in buckets:
            kind = (bucket.dtype, bucket.size, key[0].context)
            places.append((*kind, counts[kind]))
            counts[kind] += 1
        self._make([place for place in places if place not in self._places])
        others = [i for i, own in enumerate(key) if own.size and i not in floats]
        made = [self._places[place] for place in places]
        packing = Packing(buckets, [place.array for place in made], self._slots)
        return _Layout(self.store, packing, made, others, str(len(self._layouts)).encode())

    def _agree(self, key: Sequence[_Description]) -> None:
        """Check that all workers are about to add the same; a server would mix them up."""
        own = [[list(array.shape), array.dtype] for array in key]
        everybody = self.gather_plain(own, "the first sum of these arrays")
        for rank, others in enumerate(everybody):
            if others != everybody[0]:
                differ = [pair for pair in zip_longest(everybody[0], others) if pair[0] != pair[1]]
                first, other = ("no array" if a is None else f"{a[1]} {a[0]}" for a in differ[0])
                self._fail(
                    f"worker {rank} adds {len(others)} arrays, worker 0 {len(everybody[0])}, and "
                    f"the first that differ are {other} and {first}: all workers need the same "
                    "network"
                )

    def _make(self, places: Sequence[tuple[Any, ...]]) -> None:
        """Make keys, all at once: it takes the time of a barrier.

        Zeros are pushed, and nothing is pulled, so nothing is under way when this returns.
        """
        for place in places:
            dtype, size, context, _ = place
            array = mx.nd.zeros(size * self._slots.number, context, dtype)
            self._places[place] = _Place(_FIRST_KEY + len(self._places), array)
        if places:
            new = [self._places[place] for place in places]
            self.store.init([place.key for place in new], [place.array for place in new])

    def _probe(self) -> None:
        """Check that every server adds float64 as float64."""
        # Keys that follow each other go round the servers.
        keys = [_FIRST_KEY + server for server in range(_mxnet.servers_of_cluster())]
        self._make([("float64", 1, mx.cpu(), ("probe", key)) for key in keys])
        places = list(self._places.values())
        for place in places:
            place.array[:] = _PROBE if self.is_first else 0.0
            self.store.pushpull(place.key, place.array, out=place.array)
        wrong = [i for i, place in enumerate(places) if place.array[0].asscalar() != _PROBE]
        if wrong:
            needed = " ".join(f"{name}={value}" for name, value in SERVER_ENVIRONMENT.items())
            self._fail(
                f"server {wrong[0]} of the kvstore rounds float64 to float32: start the servers by "
                f"python -m gluon_svrg.launch, or with {needed} in their environment"
            )


class _Description(NamedTuple):
    """What the buckets of arrays depend on."""

    shape: tuple[int, ...]
    size: int
    dtype: str
    stype: str
    context: mx.Context

    @classmethod
    def of(cls, array: NDArray) -> _Description:
        shape = array.shape
        dtype = np.dtype(array.dtype).name
        return cls(shape, math.prod(shape), dtype, array.stype, array.context)


class _Place(NamedTuple):
    """A key of the kvstore, and the array that is pushed from and pulled into."""

    key: int
    array: NDArray


class _Kept(NamedTuple):
    """The arrays of the last sums, by which they are recognised, with their views."""

    ids: tuple[int, ...]
    arrays: list[NDArray]
    views: list[NDArray]


class _Layout:
    """The sum of arrays of certain shapes and dtypes.

    Attributes
    ----------
    packing : Packing
        Which array is where.
    others : list of int
        The arrays that no server can add: integers.
    label : bytes
        What no other layout of these workers has.
    last_ids : tuple of int
        What was added last, by identity.
    kept : _Kept or None
        What was added twice, one after the other.
    """

    def __init__(
        self,
        store: KVStore,
        packing: Packing,
        places: Sequence[_Place],
        others: list[int],
        label: bytes,
    ) -> None:
        self._store = store
        self._places = places
        self.packing = packing
        self.others = others
        self.label = label
        self.last_ids: tuple[int, ...] = ()
        self.kept: _Kept | None = None

    def sum(self, views: Sequence[NDArray]) -> None:
        """Start the sums of the arrays that `views` show."""
        if not views:
            return
        self.packing.pack(views)
        # The first arrays are those that the next forward pass begins with.
        for i, (key, array) in enumerate(self._places):
            self._store.pushpull(key, array, out=array, priority=-i)
        self.packing.unpack(views)
