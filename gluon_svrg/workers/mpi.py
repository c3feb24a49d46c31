"""Messages and sums between several processes, with MPI."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._typing import NumPyArray
from gluon_svrg.workers.base import Workers
from gluon_svrg.workers.errors import PeerError, WorkerError
from gluon_svrg.workers.progress import progress_timeout
from gluon_svrg.workers.sum_plan import ArraySpec, Bucket, SumPlan, check_summable
from mxnet import autograd
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

_HEADER = struct.Struct("<IIIQ")
"""The header of a message: checksum of the label, number of sums, their checksum, length."""

_BLOCK_SIZE = 256
"""Bytes that every message sends first. The requests that `fit` exchanges after each batch fit into
them."""

_BROADCAST_SIZE = 1 << 25
"""Bytes of arrays in one message of a broadcast."""

_SUM_SIZE = 1 << 18
"""Numbers in one call of MPI_Iallreduce. A larger array is summed by several calls, which MPI
overlaps."""

_SPINS = 1000
"""How often a waiting worker polls MPI, with sched_yield in between, before it begins to sleep.
MPI makes progress only while it is polled. A sum of 1.09 MB took two workers on two cores 2.2 ms
with 100 polls, and 1.3 ms with 1000; a sum of 102 MB took four workers 165 ms and 111 ms. Polling
delays messages on a busy machine: with two other busy processes, a message between four workers
took 0.6 ms with 100 polls, and 1.4 ms with 1000."""

_MIN_SLEEP, _MAX_SLEEP = 5e-5, 5e-4
"""Seconds between two polls after that: a twentieth of the time waited so far, within these limits.
So a waiting worker leaves its core to others, and its wait is longer by a twentieth at most. With
sleeps of up to 2 ms, a sum of 102 MB took four workers on two cores 1.4 times as long."""

_ANNOUNCE_AFTER = 5.0
"""Seconds after which a waiting worker tells the others where it waits, so that they can find out
that they wait for each other."""

_TIMEOUT_MARGIN = 1.0
"""Seconds beyond the progress limit, in which a worker that hangs prints its stacks."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h of the GNU C library

_FAILURE, _POSITION = 1, 2  # tags of notices
_SCRIPT_END = "the end of the script"

_yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))  # not on every system

_interrupted: list[object] = []
"""Requests and buffers of interrupted calls. MPI may still write into them, so they are kept."""


class _Position(NamedTuple):
    """How far a worker is: the label of its message ("" in a sum), and what it has begun."""

    label: str
    messages: int
    sums: int

    def __str__(self) -> str:
        if self.label:
            return f"waits at {self.label!r} after {self.sums} sums"
        return f"waits in sum {self.sums}"


class MPIWorkers(Workers):
    """Workers that an MPI launcher has started, such as ``mpiexec -n 4 python train.py``.

    MPI adds in an order that depends only on the ranks, so a sum has the same bits in each run and
    on all workers. A sum waits for its arrays, the last one first, and adds them up while the
    backward pass still computes the others.

    A waiting worker polls MPI, with sleeps in between. Meanwhile it reads the notices of the other
    workers, which say that one has failed, or where one waits. With a progress limit
    (``--progress-timeout``), no call waits longer than the limit.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        The processes. Messages, sums and notices each use their own copy of this communicator.

    Raises
    ------
    WorkerError
        If another worker does not arrive within the progress limit.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        from mpi4py import MPI

        super().__init__(world.rank, world.size)
        _keep_freed_memory()
        self._mpi: ModuleType = MPI
        self._timeout = progress_timeout()
        self._failure = ""  # why these workers cannot be used any more
        self._position = _Position("the start", 0, 0)
        self._sum_checksum = 0
        self._peer_positions: dict[int, _Position] = {}
        self._sends: list[object] = []  # MPI reads from these until the notices are sent
        self._plans: dict[tuple[ArraySpec, ...], SumPlan] = {}
        self._notices = None
        self._wait(world.Ibarrier())
        self._messages, self._sums, self._notices = (world.Dup() for _ in range(3))
        self._block = np.zeros(_BLOCK_SIZE, np.uint8)
        self._blocks = np.zeros((self.size, _BLOCK_SIZE), np.uint8)
        self._mpi_types = {
            "float32": (MPI.FLOAT, MPI.SUM),
            "float64": (MPI.DOUBLE, MPI.SUM),
            "float16": _mpi_float16(MPI),
            "int8": (MPI.INT8_T, MPI.SUM),
            "uint8": (MPI.UINT8_T, MPI.SUM),
            "int32": (MPI.INT32_T, MPI.SUM),
            "int64": (MPI.INT64_T, MPI.SUM),
        }

    # --- Messages ------------------------------------------------------------------------------

    def all_gather_bytes(self, data: bytes, label: str) -> list[bytes]:
        """Return the `data` of all workers, by rank.

        Raises
        ------
        WorkerError
            If the labels or the sums before this call differ between workers, or if one has failed.
        """
        self._begin(label)
        header = _HEADER.pack(
            zlib.crc32(label.encode()), self._position.sums, self._sum_checksum, len(data)
        )
        inline = data[: _BLOCK_SIZE - len(header)]
        self._block[: len(header) + len(inline)] = np.frombuffer(header + inline, np.uint8)
        self._wait(self._messages.Iallgather(self._block, self._blocks))
        headers = [_HEADER.unpack_from(block) for block in self._blocks]
        if len({header[:3] for header in headers}) > 1:
            self._fail_out_of_sync(label, len({header[0] for header in headers}) > 1)
        lengths = [header[3] for header in headers]
        if max(lengths) > _BLOCK_SIZE - _HEADER.size:
            return self._gather_long(data, lengths)
        begin = _HEADER.size
        return [
            block[begin : begin + length].tobytes()
            for block, length in zip(self._blocks, lengths, strict=True)
        ]

    def _gather_long(self, data: bytes, lengths: Sequence[int]) -> list[bytes]:
        ends = np.cumsum(lengths)
        received = np.empty(ends[-1], np.uint8)
        local = np.frombuffer(data, np.uint8)
        self._wait(self._messages.Iallgatherv(local, [received, list(lengths)]))
        return [
            received[end - length : end].tobytes()
            for end, length in zip(ends, lengths, strict=True)
        ]

    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by that of worker 0, bit for bit."""
        for chunk in _chunks(arrays):
            local = [array.asnumpy() for array in chunk]
            data = b"".join(array.tobytes() for array in local) if self.is_first else b""
            received = self.all_gather_bytes(data, "broadcast")[0]
            begin = 0
            for array, like in zip(chunk, local, strict=True):
                values = np.frombuffer(received, like.dtype, like.size, begin).reshape(like.shape)
                begin += like.nbytes
                if not self.is_first:
                    to_nd(array)[:] = mx.nd.array(values, dtype=values.dtype)

    # --- Sums ----------------------------------------------------------------------------------

    def all_reduce(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by its sum over all workers; large arrays are summed in place.

        Raises
        ------
        ValueError
            If an array is sparse, if MPI cannot add its dtype, or if the arrays are on different
            contexts.
        WorkerError
            If another worker sums arrays of other shapes or dtypes.
        """
        # An array that is given twice is summed once.
        arrays = list({id(array): array for array in arrays}.values())
        if not arrays:
            return
        with autograd.pause():
            plan, buckets = self._plan_for(arrays)
            self._begin("")
            self._sum_checksum = zlib.crc32(plan.label, self._sum_checksum)
            try:
                for bucket in reversed(buckets):
                    bucket.all_reduce(self._sum_in_place)
            except BaseException:
                _interrupted.append(buckets)
                raise

    def _plan_for(self, arrays: Sequence[NDArray]) -> tuple[SumPlan, list[Bucket]]:
        ids = tuple(map(id, arrays))
        for plan in self._plans.values():
            if plan.has_cached(ids):
                return plan, plan.buckets(arrays, ids)
        specs = tuple(ArraySpec.of(array) for array in arrays)
        if specs not in self._plans:
            check_summable(specs, list(self._mpi_types))
            self._check_same_arrays(specs)
            self._plans[specs] = SumPlan(specs, len(self._plans))
        plan = self._plans[specs]
        return plan, plan.buckets(arrays, ids)

    def _check_same_arrays(self, specs: Sequence[ArraySpec]) -> None:
        """Raise WorkerError if the workers sum different arrays, which MPI would not notice."""
        local = [[list(spec.shape), spec.dtype] for spec in specs]
        all_workers = self.all_gather_object(local, "the first sum of these arrays")
        first = all_workers[0]
        for rank, other in enumerate(all_workers):
            if other != first:
                pairs = zip_longest(first, other)
                differing = next(pair for pair in pairs if pair[0] != pair[1])
                in_first, in_other = (
                    "no array" if one is None else f"{one[1]} {one[0]}" for one in differing
                )
                has_same_shape = None not in differing and differing[0][0] == differing[1][0]
                hint = " and the same compression_params" if has_same_shape else ""
                self._fail(
                    f"the workers sum different arrays: {len(first)} on worker 0, {len(other)} on "
                    f"worker {rank}; the first difference is {in_first} on worker 0 and {in_other} "
                    f"on worker {rank}. All workers need the same network{hint}"
                )

    def _sum_in_place(self, numbers: NumPyArray) -> None:
        mpi_type, operation = self._mpi_types[numbers.dtype.name]
        words = numbers.view("uint16") if numbers.dtype == "float16" else numbers
        requests = [
            self._sums.Iallreduce(
                self._mpi.IN_PLACE, [words[begin : begin + _SUM_SIZE], mpi_type], operation
            )
            for begin in range(0, len(words), _SUM_SIZE)
        ]
        for request in requests:
            self._wait(request, requests)

    # --- Failures ------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Tell the other workers, without waiting for them, that this one has failed, and why."""
        self._announce_failure(f"worker {self.rank} has failed: {reason}")

    def leave(self) -> None:
        """Wait until all workers have reached the end of the script."""
        self.barrier(_SCRIPT_END)

    def _begin(self, label: str) -> None:
        """Begin a message, or a sum if the label is empty."""
        if self._failure:
            raise WorkerError(self._failure)
        _, messages, sums = self._position
        is_message = bool(label)
        self._position = _Position(label, messages + is_message, sums + (not is_message))

    def _wait(self, request: MPI.Request, *buffers: object) -> None:
        """Wait for an MPI request; raise an error if another worker fails meanwhile."""
        try:
            self._poll(request)
        except BaseException as error:
            _interrupted.extend([request, *buffers])
            self.abort(f"{type(error).__name__} while waiting for the other workers")
            raise

    def _poll(self, request: MPI.Request) -> None:
        for _ in range(_SPINS):
            if self._is_done(request):
                return
            _yield_core()
        # At the end of the script, worker 0 may take any time to evaluate and to write.
        timeout = None if self._position.label == _SCRIPT_END else self._timeout
        begin = time.monotonic()
        announce_at = begin + min(_ANNOUNCE_AFTER, (timeout or _ANNOUNCE_AFTER) / 2)
        while not self._is_done(request):
            now = time.monotonic()
            if self._notices is not None:
                self._read_notices()
                if now > announce_at:
                    self._send_notice(_POSITION, json.dumps(self._position))
                    announce_at = math.inf
            if timeout is not None and now - begin > timeout + _TIMEOUT_MARGIN:
                self._fail_timeout(timeout)
            time.sleep(min(max((now - begin) / 20, _MIN_SLEEP), _MAX_SLEEP))

    def _is_done(self, request: MPI.Request) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            self._fail(f"MPI failed, probably because another worker has exited: {error}")

    def _read_notices(self) -> None:
        """Raise an error if a worker has failed, or if it and this one wait for each other."""
        assert self._notices is not None
        status = self._mpi.Status()
        while self._notices.Iprobe(status=status):
            data = bytearray(status.Get_count(self._mpi.BYTE))
            rank, tag = status.Get_source(), status.Get_tag()
            self._notices.Recv([data, self._mpi.BYTE], rank, tag)
            if tag == _FAILURE:
                self._failure = data.decode()
                raise PeerError(self._failure)
            self._peer_positions[rank] = _Position(*json.loads(data))
            self._check_no_deadlock(rank)

    def _check_no_deadlock(self, rank: int) -> None:
        """Raise WorkerError if this worker and worker `rank` wait for each other.

        This is so if one waits in a sum, and the other one waits in the next message without having
        begun that sum. Messages with different labels need no check here, because both workers
        receive them and compare the labels.
        """
        own, peer = self._position, self._peer_positions[rank]
        for summing, gathering in ((own, peer), (peer, own)):
            if (
                not summing.label
                and gathering.label
                and gathering.messages == summing.messages + 1
                and gathering.sums < summing.sums
            ):
                positions = {self.rank: own, rank: peer}
                text = ", ".join(
                    f"worker {number} {positions[number]}" for number in sorted(positions)
                )
                self._fail(
                    f"the workers are out of sync: {text}; every worker must run the same code"
                )

    def _fail_out_of_sync(self, label: str, labels_differ: bool) -> NoReturn:
        """Raise WorkerError with what each worker does; all of them call this."""
        if labels_differ:
            state = f"is at {label!r}"
            way_out = "with the same number of batches"
        else:
            state = (
                f"has done {self._position.sums} sums (checksum of their arrays "
                f"{self._sum_checksum:08x})"
            )
            way_out = (
                "and must step every trainer for each batch, even without a sample of it (found at "
                f"{label!r})"
            )
        text = state.encode()
        lengths = np.empty(self.size, np.int64)
        self._wait(self._messages.Iallgather(np.array([len(text)]), lengths))
        states = [data.decode() for data in self._gather_long(text, lengths.tolist())]
        workers = ", ".join(f"worker {rank} {state}" for rank, state in enumerate(states))
        self._fail(
            f"the workers are out of sync: {workers}; every worker must run the same code, "
            f"{way_out}"
        )

    def _fail_timeout(self, timeout: float) -> NoReturn:
        label, *counts = self._position
        late = [
            rank
            for rank in range(self.size)
            if rank != self.rank and [*self._peer_positions.get(rank, ())][1:] != counts
        ]
        where = repr(label) if label else f"sum {self._position.sums}"
        subject = "workers" if len(late) > 1 else "worker"
        verb = "have" if len(late) > 1 else "has"
        self._fail(
            f"{subject} {', '.join(map(str, late))} {verb} not reached {where} within "
            f"{timeout:g} s: stopped, hung, or slower than --progress-timeout allows"
        )

    def _fail(self, reason: str) -> NoReturn:
        """Tell the other workers, and raise WorkerError."""
        self._announce_failure(reason)
        raise WorkerError(reason)

    def _announce_failure(self, reason: str) -> None:
        if not self._failure:
            self._failure = reason
            self._send_notice(_FAILURE, reason)

    def _send_notice(self, tag: int, text: str) -> None:
        """Send a notice to every other worker, without waiting until it is read."""
        if self._notices is None:
            return
        data = text.encode()
        self._sends.append(data)
        for rank in range(self.size):
            if rank != self.rank:
                self._sends.append(self._notices.Isend([data, self._mpi.BYTE], rank, tag))


def _chunks(arrays: Sequence[NDArray]) -> list[list[NDArray]]:
    """Divide arrays into groups of at most `_BROADCAST_SIZE` bytes; a larger array is alone."""
    chunks: list[list[NDArray]] = []
    remaining = 0
    for array in arrays:
        remaining -= array.size * np.dtype(array.dtype).itemsize
        if remaining < 0 or not chunks:
            chunks.append([])
            remaining = _BROADCAST_SIZE
        chunks[-1].append(array)
    return chunks


def _keep_freed_memory() -> None:
    """Let malloc keep up to 64 MB of freed memory; by default it does so only after freeing 32 MB.

    MPI allocates a megabyte for each sum. Without this, malloc returns it to the system after each
    sum, and getting new pages took half of the time of a sum.
    """
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def _mpi_float16(mpi: ModuleType) -> tuple[MPI.Datatype, MPI.Op]:
    """Return the MPI type and operation for float16.

    MPICH from 4.1 on can add float16, in a third of NumPy's time. MPICH 4.0 has the type, but
    aborts when it adds. For MPICH 4.0 and for other MPI libraries, NumPy adds.
    """
    version = re.match(r"MPICH Version:\s*(\d+)\.(\d+)", mpi.Get_library_version())
    if version and (int(version[1]), int(version[2])) >= (4, 1) and hasattr(mpi, "FLOAT16_T"):
        return mpi.FLOAT16_T, mpi.SUM
    return mpi.UINT16_T, mpi.Op.Create(_add_float16, commute=True)


def _add_float16(values: object, sums: object, _: object) -> None:
    """Add `values` to `sums`, as an MPI operation on buffers."""
    total: NumPyArray = np.frombuffer(cast("bytes", sums), "float16")
    with np.errstate(over="ignore"):  # infinite, as MPI's own result
        total += np.frombuffer(cast("bytes", values), "float16")
