"""SocketWorkers: messages between workers over plain sockets, through the first of them."""

from __future__ import annotations

import os
import select
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import mxnet as mx
import numpy as np
from gluon_svrg._compat import NumPyArray
from gluon_svrg.workers.base import WorkerError, Workers
from gluon_svrg.workers.connection import Connection, accept, connect, listen
from mxnet.ndarray import NDArray

_MESSAGE, _FAILURE, _WAITING = b"M", b"F", b"W"
_CHUNK = 1 << 25  # bytes of arrays in one message of a broadcast


class SocketWorkers(Workers):
    """Workers that are connected to the first one, which hands on what each of them sends.

    The connections are authenticated by a common key, and nothing is unpickled. A worker that dies
    closes its connection, so the others hear of it the next time that they gather. Sums are added
    in the order of the ranks, in NumPy, and wait for the arrays: see :class:`StoreWorkers` for
    those of a training.

    Parameters
    ----------
    rank, size : int
        This worker's number, and how many there are.
    address : tuple of str and int
        Host and port at which the first worker listens.
    key : bytes
        What they recognise each other by.
    timeout : float
        For how many seconds to wait for the others at the start.
    listener : socket.socket, optional
        What the first worker listens with, if that is open already.

    Raises
    ------
    WorkerError
        If not all are there after `timeout`.
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
        super().__init__(rank, size)
        self._reason = "this worker's connections are closed"
        self._peers: dict[int, Connection]
        self._early: dict[int, bytes] = {}  # messages that were read before their time
        self._poll: select.poll | None = None
        if self.is_first:
            self._peers = self._accepted(listener or self._listening(address), key, timeout)
        else:
            self._peers = {0: self._connected(address, key, timeout)}
        _open.add(self)

    def gather(self, data: bytes, at: str) -> list[bytes]:
        """See Workers."""
        message = b"\0".join((at.encode(), self._sums_so_far().encode(), data))
        if not self.is_first:
            self._send(0, _MESSAGE + message)
            return _unpacked(self._receive_all()[0])
        received = self._receive_all()
        messages = [message, *(received[rank] for rank in range(1, self.size))]
        places, sums, parts = zip(*(message.split(b"\0", 2) for message in messages), strict=True)
        if len(set(places)) > 1:
            told = [f"is at {place.decode()!r}" for place in places]
            self._fail_parted(told, "with the same number of batches")
        if len(set(sums)) > 1:
            told = [f"has added up {own.decode()}" for own in sums]
            way_out = "and to step each trainer for a batch of which it has no sample, too"
            self._fail_parted(told, f"{way_out} (seen at {at!r})")
        answer = _MESSAGE + _packed(parts)
        for rank in range(1, self.size):
            self._send(rank, answer)
        return list(parts)

    def sum(self, arrays: Sequence[NDArray]) -> None:
        """See Workers."""
        own = [array.asnumpy() for array in arrays]
        everybody = [
            _arrays_in(data, own) for data in self.gather(b"".join(a.tobytes() for a in own), "sum")
        ]
        for array, *values in zip(arrays, *everybody, strict=True):
            total = values[0].copy()
            for value in values[1:]:
                total += value
            _write(array, total)

    def broadcast(self, arrays: Sequence[NDArray]) -> None:
        """See Workers. The bytes themselves are sent, so what arrives is what was there."""
        for some in _chunks(arrays):
            own = [array.asnumpy() for array in some]
            data = b"".join(a.tobytes() for a in own) if self.is_first else b""
            values = _arrays_in(self.gather(data, "broadcast")[0], own)
            if self.is_first:
                continue
            for array, value in zip(some, values, strict=True):
                _write(array, value)

    def abort(self, reason: str) -> None:
        """See Workers."""
        self._tell(f"worker {self.rank} has failed: {reason}")

    def leave(self) -> None:
        """See Workers."""
        self.barrier("the end of the script")
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._peers.values():
            connection.close()
        self._peers = {}

    def _listening(self, address: tuple[str, int]) -> socket.socket:
        try:
            return listen(*address, self.size)
        except OSError as error:
            raise WorkerError(
                f"the first worker cannot listen at {address[0]}:{address[1]}: {error}; give "
                "another port, or end what has it"
            ) from None

    def _accepted(
        self, listener: socket.socket, key: bytes, timeout: float
    ) -> dict[int, Connection]:
        others = set(range(1, self.size))
        with listener:
            found = accept(listener, key, others, timeout)
        if missing := sorted(others - set(found)):
            reason = (
                f"worker {missing[0]} has not come within {timeout:g} s: look at its output, or at "
                "the launcher's"
            )
            self._peers = found
            self._fail(reason)
        return found

    def _connected(self, address: tuple[str, int], key: bytes, timeout: float) -> Connection:
        where = f"{address[0]}:{address[1]}"
        try:
            connection = connect(address, key, self.rank, timeout)
        except PermissionError:
            raise WorkerError(
                f"who listens at {where} has another key than worker {self.rank}: start all "
                "workers of a run by one launcher"
            ) from None
        if connection is None:
            raise WorkerError(
                f"the first worker does not answer at {where} within {timeout:g} s: look at its "
                "output, or at the launcher's"
            )
        return connection

    def _send(self, rank: int, message: bytes) -> None:
        if not self._peers:
            raise WorkerError(self._reason)
        try:
            self._peers[rank].send(message)
        except OSError:
            # What it said before it went is still to be read.
            self._receive(rank)
            self._fail(_gone(rank))

    def _receive_all(self) -> dict[int, bytes]:
        """Return the next message of each peer; the first failure that is heard raises."""
        if not self._peers:
            raise WorkerError(self._reason)
        if len(self._peers) == 1:
            return {rank: self._receive(rank) for rank in self._peers}
        # Not one after the other: one may wait for ever for another that has failed.
        poll, ranks = select.poll(), {}
        messages, self._early = self._early, {}
        for rank, connection in self._peers.items():
            if rank not in messages:
                poll.register(connection, select.POLLIN)
                ranks[connection.fileno()] = rank
        while ranks:
            for descriptor, _ in poll.poll():
                message = self._receive_one(ranks[descriptor])
                if message is not None:  # else it has said that it waits, and nothing may follow
                    messages[ranks.pop(descriptor)] = message
                    poll.unregister(descriptor)
        return messages

    def _receive(self, rank: int) -> bytes:
        if rank in self._early:
            return self._early.pop(rank)
        while (message := self._receive_one(rank)) is None:
            pass
        return message

    def _receive_one(self, rank: int) -> bytes | None:
        """Return the next message of a peer; None if it is one that says that it waits."""
        try:
            message = self._peers[rank].receive()
        except (EOFError, OSError):
            self._fail(_gone(rank))
        if message[:1] == _FAILURE:
            self._fail(message[1:].decode())
        if message[:1] == _MESSAGE:
            return message[1:]
        self._check_waiting(rank, int(message[1:]))
        return None

    def _check_peers(self) -> None:
        """Raise WorkerError if another worker has failed or is gone; what else it says stays."""
        if not self._peers:
            raise WorkerError(self._reason)
        for rank, connection in list(self._peers.items()):
            if connection.peek() in (b"", _FAILURE):
                self._receive(rank)

    def _have_news(self) -> bool:
        """Return at once whether another worker has said something, or is gone."""
        if self._poll is None:
            self._poll = select.poll()
            for connection in self._peers.values():
                self._poll.register(connection, select.POLLIN)
        return bool(self._poll.poll(0))

    def _say_waiting(self, number: int) -> None:
        """Tell the first worker that this one has waited long for the end of a sum.

        If the first one is at a message by then, and not at that sum, the workers have parted.
        """
        if not self.is_first:
            self._send(0, _WAITING + str(number).encode())

    def _read_early(self) -> None:
        """Read what the other workers have sent, without waiting, but no second message of one."""
        for rank, connection in list(self._peers.items()):
            while rank not in self._early and (kind := connection.peek()) is not None:
                if kind == _WAITING:
                    connection.receive()
                else:
                    self._early[rank] = self._receive(rank)

    def _check_waiting(self, rank: int, number: int) -> None:
        """See whether worker `rank` waits in a sum that this one has not begun."""

    def _sums_so_far(self) -> str:
        """Return in words which sums were begun that no message has compared."""
        return ""

    def _fail_parted(self, told: Sequence[str], way_out: str) -> NoReturn:
        """Say what each worker does, where all should do the same."""
        workers = ", ".join(f"worker {rank} {own}" for rank, own in enumerate(told))
        self._fail(
            f"the workers have parted: {workers}; every worker has to run the same lines, {way_out}"
        )

    def _fail(self, reason: str) -> NoReturn:
        """Let the others know, and raise."""
        self._tell(reason)
        raise WorkerError(reason)

    def _tell(self, reason: str) -> None:
        """Let the others know that it is over, and close the connections."""
        for connection in self._peers.values():
            with suppress(OSError):  # it is gone, too
                connection.set_timeout(1.0)  # it may be in no state to read
                connection.send(_FAILURE + reason.encode())
        if self._peers:
            self._reason = reason
        self.close()


def _gone(rank: int) -> str:
    return f"worker {rank} is gone: its own output, or the launcher's, says why"


_open: weakref.WeakSet[SocketWorkers] = weakref.WeakSet()


def _close_in_child() -> None:
    """Let a process that was forked off (a DataLoader's) keep no connection open."""
    for workers in _open:
        workers.close()


os.register_at_fork(after_in_child=_close_in_child)


def _packed(parts: Sequence[bytes]) -> bytes:
    lengths = np.array([len(parts), *map(len, parts)], dtype="<u8")
    return lengths.tobytes() + b"".join(parts)


def _unpacked(data: bytes) -> list[bytes]:
    number = int(np.frombuffer(data, "<u8", 1)[0])
    ends = np.cumsum(np.frombuffer(data, "<u8", number, 8)) + np.uint64(8 * (number + 1))
    begins = [8 * (number + 1), *ends[:-1].tolist()]
    return [data[begin:end] for begin, end in zip(begins, ends.tolist(), strict=True)]


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


def _arrays_in(data: bytes, like: Sequence[NumPyArray]) -> list[NumPyArray]:
    arrays, begin = [], 0
    for array in like:
        values = np.frombuffer(data, array.dtype, array.size, begin)
        arrays.append(values.reshape(array.shape))
        begin += array.nbytes
    return arrays


def _write(array: NDArray, values: NumPyArray) -> None:
    array[:] = mx.nd.array(values, dtype=values.dtype)
