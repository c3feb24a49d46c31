"""MPIWorkers: messages and sums of several processes, by MPI."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn, cast

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import as_legacy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.launch.environment import progress_timeout
from gluon_svrg.workers.base import PeerError, WorkerError, Workers
from gluon_svrg.workers.sum_plan import Description, Group, Plan, check_can_be_summed
from mxnet import autograd
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

_HEADER = struct.Struct("<IIIQ")  # of a message: place, number and digest of the sums, length
_BLOCK = 256
"""Bytes of the collective that every message begins with. A vote of `fit` is whole in it."""
_CHUNK = 1 << 25  # bytes of arrays in one message of a broadcast
_LARGEST = 1 << 18
"""Numbers in one of MPI's sums, of which several overlap."""

_SPINS = 1000
"""How often a worker asks at once, and lets others have its core each time, before it begins to
pause. MPI adds up only while it is asked: with 100, 1.09 MB took two workers on two cores 2.2 ms,
with 1000 1.3 ms, and 102 MB took four 165 and 111 ms. More than 1000 makes a message of four
workers beside two other busy processes late, which takes 1.4 ms then, and 0.6 ms with 100."""
_SHORTEST, _LONGEST = 5e-5, 5e-4
"""Seconds of a pause, which is a twentieth of the time waited so far: a worker that waits leaves
its core to others, and comes late by no more than a twentieth. With pauses of up to 2 ms, 102 MB
took four workers on two cores 1.4 times as long."""
_LONG = 5.0
"""Seconds after which a worker tells the others where it waits, so that those hear it that wait
somewhere else."""
_PATIENCE = 1.0  # seconds beyond the progress limit for a process that hangs to print its stacks

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of the GNU C library's malloc.h

_FAILED, _WAITING = 1, 2  # tags of notes
_END = "the end of the script"

_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))  # not everywhere

_abandoned: list[object] = []
"""What MPI may still write into after a wait that was broken off: it must not be freed."""


class MPIWorkers(Workers):
    """The processes that an MPI launcher has started, such as ``mpiexec -n 4 python train.py``.

    MPI adds in an order that depends on the ranks alone, so the bits of a sum repeat, and are the
    same on all workers. A sum waits for its arrays, the last ones first, and adds them up while the
    backward pass goes on with the others.

    Who waits asks MPI again and again, with pauses, and hears meanwhile of another worker that has
    failed, or that waits at another place. With a progress limit
    (``--progress-timeout``) no wait is longer than that.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        The processes. It is copied: messages, sums and notes each have a communicator of their own.

    Raises
    ------
    WorkerError
        If another worker has not come within the progress limit.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        from mpi4py import MPI

        super().__init__(world.rank, world.size)
        _keep_freed_memory()
        self._mpi: ModuleType = MPI
        self._reason = ""  # why these workers can do nothing more
        self._place, self._messages_begun = "the start", 0
        self._sums_begun, self._digest = 0, 0  # of the sums so far
        self._waiting_at: dict[int, tuple[str, int, int]] = {}  # the last note of others
        self._sent: list[object] = []  # MPI reads from these until the notes have gone
        self._plans: dict[tuple[Description, ...], Plan] = {}
        self._notes = None
        self._wait(world.Ibarrier())
        self._messages, self._sums, self._notes = (world.Dup() for _ in range(3))
        self._block = np.zeros(_BLOCK, np.uint8)
        self._blocks = np.zeros((self.size, _BLOCK), np.uint8)
        self._kinds = {
            "float32": (MPI.FLOAT, MPI.SUM),
            "float64": (MPI.DOUBLE, MPI.SUM),
            "float16": _kind_of_half(MPI),
            "int8": (MPI.INT8_T, MPI.SUM),
            "uint8": (MPI.UINT8_T, MPI.SUM),
            "int32": (MPI.INT32_T, MPI.SUM),
            "int64": (MPI.INT64_T, MPI.SUM),
        }

    # --- Messages ------------------------------------------------------------------------------

    def all_gather_bytes(self, data: bytes, label: str) -> list[bytes]:
        """Return each worker's bytes, by rank; raise WorkerError if the workers have parted."""
        self._begin(label)
        self._messages_begun += 1
        place = zlib.crc32(label.encode())
        header = _HEADER.pack(place, self._sums_begun, self._digest, len(data))
        inline = data[: _BLOCK - len(header)]
        self._block[: len(header) + len(inline)] = np.frombuffer(header + inline, np.uint8)
        self._wait(self._messages.Iallgather(self._block, self._blocks))
        headers = [_HEADER.unpack_from(block) for block in self._blocks]
        if len({header[:3] for header in headers}) > 1:
            self._fail_parted(label, len({header[0] for header in headers}) > 1)
        lengths = [header[3] for header in headers]
        if max(lengths) > _BLOCK - _HEADER.size:
            return self._gather_long(data, lengths)
        begin = _HEADER.size
        return [
            block[begin : begin + length].tobytes()
            for block, length in zip(self._blocks, lengths, strict=True)
        ]

    def _gather_long(self, data: bytes, lengths: Sequence[int]) -> list[bytes]:
        ends = np.cumsum(lengths)
        received = np.empty(ends[-1], np.uint8)
        own = np.frombuffer(data, np.uint8)
        self._wait(self._messages.Iallgatherv(own, [received, list(lengths)]))
        return [
            received[end - length : end].tobytes()
            for end, length in zip(ends, lengths, strict=True)
        ]

    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """Send the bytes themselves, so that what arrives is what was there."""
        for some in _chunks(arrays):
            own = [array.asnumpy() for array in some]
            data = b"".join(array.tobytes() for array in own) if self.is_first else b""
            received = self.all_gather_bytes(data, "broadcast")[0]
            begin = 0
            for array, like in zip(some, own, strict=True):
                values = np.frombuffer(received, like.dtype, like.size, begin).reshape(like.shape)
                begin += like.nbytes
                if not self.is_first:
                    as_legacy(array)[:] = mx.nd.array(values, dtype=values.dtype)

    # --- Sums ----------------------------------------------------------------------------------

    def all_reduce(self, arrays: Sequence[NDArray]) -> None:
        """Replace each array by its sum over all workers, large ones in their own memory.

        Raises
        ------
        ValueError
            If an array is sparse or of a dtype that MPI does not add, or if they are not all on one
            context.
        WorkerError
            If another worker adds arrays of other shapes or dtypes.
        """
        arrays = list({id(array): array for array in arrays}.values())  # one that comes twice: once
        if not arrays:
            return
        with autograd.pause():
            plan, groups = self._plan_of(arrays)
            self._begin("")
            self._sums_begun += 1
            self._digest = zlib.crc32(plan.label, self._digest)
            try:
                for group in reversed(groups):
                    group.add_up(self._add)
            except BaseException:
                _abandoned.append(groups)
                raise

    def _plan_of(self, arrays: Sequence[NDArray]) -> tuple[Plan, list[Group]]:
        ids = tuple(map(id, arrays))
        for plan in self._plans.values():
            if plan.knows(ids):
                return plan, plan.groups_of(arrays, ids)
        key = tuple(Description.of(array) for array in arrays)
        if key not in self._plans:
            check_can_be_summed(key, list(self._kinds))
            self._agree(key)
            self._plans[key] = Plan(key, len(self._plans))
        plan = self._plans[key]
        return plan, plan.groups_of(arrays, ids)

    def _agree(self, key: Sequence[Description]) -> None:
        """Check that all workers are about to add the same; MPI would mix it up."""
        own = [[list(array.shape), array.dtype] for array in key]
        everybody = self.all_gather_object(own, "the first sum of these arrays")
        for rank, others in enumerate(everybody):
            if others != everybody[0]:
                differ = [pair for pair in zip_longest(everybody[0], others) if pair[0] != pair[1]]
                first, other = ("no array" if a is None else f"{a[1]} {a[0]}" for a in differ[0])
                is_of_dtype = None not in differ[0] and differ[0][0][0] == differ[0][1][0]
                more = " and the same compression_params" if is_of_dtype else ""
                self._fail(
                    f"worker {rank} adds {len(others)} arrays, worker 0 {len(everybody[0])}, and "
                    f"the first that differ are {other} and {first}: all workers need the same "
                    f"network{more}"
                )

    def _add(self, numbers: NumPyArray) -> None:
        kind, operation = self._kinds[numbers.dtype.name]
        words = numbers.view("uint16") if numbers.dtype == "float16" else numbers
        sums = [
            self._sums.Iallreduce(
                self._mpi.IN_PLACE, [words[begin : begin + _LARGEST], kind], operation
            )
            for begin in range(0, len(words), _LARGEST)
        ]
        for request in sums:
            self._wait(request, sums)

    # --- Failures ------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Tell the others, without waiting, that this worker has failed and why."""
        self._tell(f"worker {self.rank} has failed: {reason}")

    def leave(self) -> None:
        """Wait until all workers have come to the end of the script."""
        self.barrier(_END)

    def _begin(self, place: str) -> None:
        if self._reason:
            raise WorkerError(self._reason)
        self._place = place

    def _wait(self, request: MPI.Request, *more: object) -> None:
        """Wait until MPI has done it; hear of another worker that has failed meanwhile."""
        try:
            self._poll(request)
        except BaseException as error:
            _abandoned.extend([request, *more])
            self.abort(f"{type(error).__name__} while it waited for the others")
            raise

    def _poll(self, request: MPI.Request) -> None:
        for _ in range(_SPINS):
            if self._is_done(request):
                return
            _let_others_run()
        # The first worker may write what the script makes of the training, for as long as it takes.
        begin, limit = time.monotonic(), None if self._place == _END else progress_timeout()
        told = begin + min(_LONG, (limit or _LONG) / 2)
        while not self._is_done(request):
            now = time.monotonic()
            if self._notes is not None:
                self._hear()
                if now > told:
                    self._note(_WAITING, json.dumps(self._whereabouts()))
                    told = float("inf")
            if limit is not None and now - begin > limit + _PATIENCE:
                self._fail_late(limit)
            time.sleep(min(max((now - begin) / 20, _SHORTEST), _LONGEST))

    def _is_done(self, request: MPI.Request) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            self._fail(f"MPI has failed, as it does if another worker is gone: {error}")

    def _whereabouts(self) -> tuple[str, int, int]:
        return self._place, self._messages_begun, self._sums_begun

    def _hear(self) -> None:
        """Read the notes of other workers; raise if one has failed, or waits somewhere else."""
        assert self._notes is not None
        status = self._mpi.Status()
        while self._notes.Iprobe(status=status):
            data = bytearray(status.Get_count(self._mpi.BYTE))
            rank, tag = status.Get_source(), status.Get_tag()
            self._notes.Recv([data, self._mpi.BYTE], rank, tag)
            if tag == _FAILED:
                self._reason = data.decode()
                raise PeerError(self._reason)
            place, messages, sums = json.loads(data)
            self._waiting_at[rank] = place, messages, sums
            self._check_parted(rank, place, messages, sums)

    def _check_parted(self, rank: int, place: str, messages: int, sums: int) -> None:
        """Raise WorkerError if worker `rank` and this one wait for each other: one in a sum.

        Messages that are gathered at different places are seen at once, because they meet.
        """
        ours = self._whereabouts()
        theirs = place, messages, sums
        for summing, gathering in ((ours, theirs), (theirs, ours)):
            # One waits for a message, and the other one has a sum to end before it.
            is_at_sum, is_at_message = not summing[0], bool(gathering[0])
            is_next = gathering[1] == summing[1] + 1
            if is_at_sum and is_at_message and is_next and gathering[2] < summing[2]:
                at = {self.rank: ours, rank: theirs}
                told = [f"worker {number} {_told(*at[number])}" for number in sorted(at)]
                self._fail(
                    f"the workers have parted: {', '.join(told)}; every worker has to run the same "
                    "lines"
                )

    def _fail_parted(self, label: str, in_place: bool) -> NoReturn:
        """Say what each worker does, where all should do the same; all of them are here."""
        own = f"is at {label!r}"
        if not in_place:
            own = f"has added up {self._sums_begun} times (of arrays {self._digest:08x})"
        text = own.encode()
        lengths = np.empty(self.size, np.int64)
        self._wait(self._messages.Iallgather(np.array([len(text)]), lengths))
        everybody = [one.decode() for one in self._gather_long(text, lengths.tolist())]
        workers = ", ".join(f"worker {rank} {one}" for rank, one in enumerate(everybody))
        way_out = "with the same number of batches"
        if not in_place:
            way_out = (
                "and to step each trainer for a batch of which it has no sample, too (seen at "
                f"{label!r})"
            )
        self._fail(
            f"the workers have parted: {workers}; every worker has to run the same lines, {way_out}"
        )

    def _fail_late(self, limit: float) -> NoReturn:
        own = self._whereabouts()[1:]
        late = [
            rank
            for rank in range(self.size)
            if rank != self.rank and self._waiting_at.get(rank, ("", -1, -1))[1:] != own
        ]
        place = repr(self._place) if self._place else f"sum {self._sums_begun}"
        who = "workers" if len(late) > 1 else "worker"
        has = "have" if len(late) > 1 else "has"
        self._fail(
            f"{who} {', '.join(map(str, late))} {has} not come to {place} within {limit:g} s: "
            "stopped, hung, or slower than --progress-timeout allows"
        )

    def _fail(self, reason: str) -> NoReturn:
        """Let the others know, and raise."""
        self._tell(reason)
        raise WorkerError(reason)

    def _tell(self, reason: str) -> None:
        if self._reason:
            return
        self._reason = reason
        self._note(_FAILED, reason)

    def _note(self, tag: int, text: str) -> None:
        """Send a note to every other worker; nothing waits until it is read."""
        if self._notes is None:
            return
        data = text.encode()
        self._sent.append(data)
        for rank in range(self.size):
            if rank != self.rank:
                self._sent.append(self._notes.Isend([data, self._mpi.BYTE], rank, tag))


def _told(place: str, _: int, sums: int) -> str:
    return f"waits at {place!r} after {sums} sums" if place else f"waits in sum {sums}"


def _chunks(arrays: Sequence[NDArray]) -> list[list[NDArray]]:
    """Return the arrays in groups that make one message each: of a few MB, or of one array."""
    chunks: list[list[NDArray]] = []
    room = 0
    for array in arrays:
        room -= array.size * np.dtype(array.dtype).itemsize
        if room < 0 or not chunks:
            chunks.append([])
            room = _CHUNK
        chunks[-1].append(array)
    return chunks


def _keep_freed_memory() -> None:
    """Let malloc keep what is freed, up to 64 MB, as it does by itself once 32 MB were freed.

    MPI adds up in memory that it allocates each time, a megabyte for each sum. Without this, the
    system takes it back each time and hands out new pages, which was half the time of a sum.
    """
    with suppress(OSError, AttributeError):  # of another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def _kind_of_half(mpi: ModuleType) -> tuple[MPI.Datatype, MPI.Op]:
    """Return MPI's own numbers of half precision, if it adds them: a third of NumPy's time.

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
