"""MPIWorkers: sums of arrays by MPI, messages over sockets."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._compat import NumPyArray
from gluon_svrg.workers.pmi import communicator_of
from gluon_svrg.workers.sums import Description, SumWorkers
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

_WHOLE = 1 << 16
"""Numbers from which on an array is added up where it is; smaller ones are copied together."""
_TOGETHER, _LARGEST = 1 << 19, 1 << 18
"""Numbers that are copied together at most; and in one of MPI's sums, of which several overlap."""
_SPINS = 2000
"""How often a sum is asked after at once; from then on at intervals, since another worker may be
busy with something else, and this one is not to keep a core from it."""
_INTERVAL = 5e-5  # seconds
_LONG = 5.0
"""Seconds after which a sum asks whether the other workers will come to it at all."""


class _Group:
    """Neighbours of one dtype that are added up together: a big array, or several small ones.

    Parameters
    ----------
    arrays : sequence of int
        Which.
    sizes : sequence of int
        How many numbers each of them has.
    dtype : str
        Of all.
    """

    def __init__(self, arrays: Sequence[int], sizes: Sequence[int], dtype: str) -> None:
        self._arrays = arrays
        self._ends = [*accumulate(sizes)]
        self._own = np.empty(self._ends[-1], dtype) if len(arrays) > 1 else None

    def bind(self, arrays: Sequence[NDArray]) -> _Bound:
        """Return what adds up the group's ones of these arrays."""
        own = [arrays[i] for i in self._arrays]
        kind = _Memory if own[0].context.device_type == "cpu" else _Copy
        return _Bound([kind(array) for array in own], self._ends, self._own)


class _Memory(_mxnet.Memory):
    """An array whose own memory is added up."""

    def put_back(self) -> None:
        """Do nothing: the numbers are where they belong."""


class _Copy:
    """A copy of an array that has its memory somewhere else."""

    def __init__(self, array: NDArray) -> None:
        self._array = array
        self._numbers: NumPyArray = np.empty(0)

    def numbers(self) -> NumPyArray:
        """Wait for the array and return what it has."""
        self._numbers = self._array.asnumpy().ravel()
        return self._numbers

    def put_back(self) -> None:
        """Let the array have what `numbers` has returned, as it is now."""
        values = self._numbers.reshape(self._array.shape)
        self._array[:] = mx.nd.array(values, dtype=values.dtype)


class _Bound(NamedTuple):
    """A group of certain arrays."""

    memories: Sequence[_Memory | _Copy]
    ends: Sequence[int]
    own: NumPyArray | None

    def add_up(self, add: Callable[[NumPyArray], None]) -> None:
        """Wait for the arrays, let `add` replace their numbers, flat, by the sums."""
        numbers = [memory.numbers() for memory in self.memories]
        if self.own is None:
            add(numbers[0])
        else:
            add(np.concatenate(numbers, out=self.own))
            begin = 0
            for array, end in zip(numbers, self.ends, strict=True):
                array[:] = self.own[begin:end]
                begin = end
        for memory in self.memories:
            memory.put_back()


class MPIWorkers(SumWorkers[_Bound]):
    """Workers whose sums go through MPI's ``Iallreduce``, from memory to memory.

    A sum waits for its arrays, the last ones first, and adds them up while the backward pass goes
    on with the others. MPI adds in an order that depends on the ranks alone, so the bits of a sum
    repeat, and are the same on all workers.

    Needs mpi4py and MPICH, whose processes find each other through these workers: no ``mpirun``.

    Parameters
    ----------
    rank, size, address, key, timeout, listener
        As for `SocketWorkers`.

    Raises
    ------
    ImportError
        If mpi4py or MPICH are missing.
    WorkerError
        If MPI is running already, with other processes.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: tuple[str, int],
        key: bytes,
        timeout: float = 60.0,
        *,
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(rank, size, address, key, timeout, listener=listener)
        self._communicator = communicator_of(self)
        from mpi4py import MPI

        self._kinds = {
            "float16": _kind_of_half(MPI),
            "float32": (MPI.FLOAT, MPI.SUM),
            "float64": (MPI.DOUBLE, MPI.SUM),
        }
        self._in_place = MPI.IN_PLACE

    def _planned(self, key: Sequence[Description]) -> list[_Group]:
        groups: list[list[int]] = []
        room = 0
        for i, own in enumerate(key):
            room -= own.size
            if room < 0 or own.size >= _WHOLE or own.dtype != key[groups[-1][0]].dtype:
                groups.append([])
                room = 0 if own.size >= _WHOLE else _TOGETHER - own.size
            groups[-1].append(i)
        return [_Group(some, [key[i].size for i in some], key[some[0]].dtype) for some in groups]

    def _add_up(self, groups: Sequence[_Bound]) -> None:
        """Add up; return when that is done."""
        for group in reversed(groups):
            group.add_up(self._add)

    def _add(self, numbers: NumPyArray) -> None:
        kind, operation = self._kinds[numbers.dtype.name]
        words = numbers.view("uint16") if numbers.dtype == "float16" else numbers
        sums = [
            self._communicator.Iallreduce(
                self._in_place, [words[begin : begin + _LARGEST], kind], operation
            )
            for begin in range(0, len(words), _LARGEST)
        ]
        for request in sums:
            self._wait(request)

    def _wait(self, request: MPI.Request) -> None:
        """Wait for the end of a sum, and hear of it if another worker has failed meanwhile."""
        tests, late = 0, time.monotonic() + _LONG
        while not self._is_done(request):
            tests += 1
            if tests < _SPINS:
                continue
            time.sleep(_INTERVAL)
            if time.monotonic() > late:
                self._check_parted()
                late = time.monotonic() + _LONG

    def _is_done(self, request: MPI.Request) -> bool:
        # Before MPI looks: it may crash on the connection of a worker that is gone, whose other
        # connection, to this package, is lost at the same time.
        if self._have_news():
            self._check_peers()
        return bool(request.Test())


def _kind_of_half(mpi: ModuleType) -> tuple[MPI.Datatype, MPI.Op]:
    """Return MPI's own numbers of half precision, where it adds them: a third of NumPy's time.

    Of MPICH alone, and from 4.1 on: 4.0 knows the type, and aborts when it is to add it.
    """
    version = re.match(r"MPICH Version:\s*(\d+)\.(\d+)", mpi.Get_library_version())
    if version and (int(version[1]), int(version[2])) >= (4, 1) and hasattr(mpi, "FLOAT16_T"):
        return mpi.FLOAT16_T, mpi.SUM
    return mpi.UINT16_T, mpi.Op.Create(_add_half, commute=True)


def _add_half(given: object, total: object, _: object) -> None:
    """Add numbers of half precision, which not every MPI knows."""
    sums: NumPyArray = np.frombuffer(cast("bytes", total), "float16")
    with np.errstate(over="ignore"):  # infinite, as by MPI itself
        sums += np.frombuffer(cast("bytes", given), "float16")
