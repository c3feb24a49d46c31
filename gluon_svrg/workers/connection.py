"""Connection: messages over one socket, between two processes that know a common key."""

from __future__ import annotations

import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress

_LENGTH = struct.Struct("<Q")
_NONCE = 32
_PATIENCE = 5.0  # seconds for a handshake: what does not answer is none of ours


class Connection:
    """Whole messages, in both directions.

    A peer that ends, however it ends, closes its side: reading raises EOFError or OSError then. One
    whose machine is gone does not; the keep-alive of TCP finds out, within half a minute.

    Parameters
    ----------
    own : socket.socket
        A connected one.
    """

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):  # Linux
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._socket.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """Let each read and write raise TimeoutError after `seconds`."""
        self._socket.settimeout(seconds)

    def send(self, message: bytes) -> None:
        """Send `message` whole."""
        if len(message) < 1 << 16:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        else:
            self._socket.sendall(_LENGTH.pack(len(message)))
            self._socket.sendall(message)

    def receive(self, limit: int | None = None) -> bytes:
        """Wait for the next message; one of more than `limit` bytes is a ConnectionError."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if limit is not None and length > limit:
            raise ConnectionError(f"a message of {length} bytes, expected at most {limit}")
        return self._read(length)

    def peek(self) -> bytes | None:
        """Return the first byte of the next message; nothing after the end, None if none is there.

        It is not taken, and nothing waits.
        """
        try:
            data = self._socket.recv(_LENGTH.size + 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        return data[_LENGTH.size :] if len(data) > _LENGTH.size or not data else None

    def close(self) -> None:
        """Close this side of it."""
        self._socket.close()

    def _read(self, length: int) -> bytes:
        data = bytearray(length)
        view, done = memoryview(data), 0
        while done < length:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise EOFError("the other side has closed the connection")
            done += count
        return bytes(data)


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens there; port 0 is any that is free."""
    listener = socket.create_server((host, port), backlog=backlog + 16)
    listener.settimeout(0.05)
    return listener


def accept(
    listener: socket.socket, key: bytes, ranks: set[int], seconds: float
) -> dict[int, Connection]:
    """Wait for one connection of each rank in `ranks`; return those that have come, by rank.

    What does not know the key, or says nothing, is turned away, and keeps nobody waiting: each
    handshake has a thread of its own.
    """
    end = time.monotonic() + seconds
    come: queue.SimpleQueue[tuple[int, Connection]] = queue.SimpleQueue()
    found: dict[int, Connection] = {}
    while set(found) != ranks and time.monotonic() < end:
        with suppress(OSError):  # nobody within its timeout
            connection = Connection(listener.accept()[0])
            threading.Thread(target=_greet, args=(connection, key, come), daemon=True).start()
        while not come.empty():
            rank, connection = come.get()
            if rank in ranks and rank not in found:
                found[rank] = connection
            else:
                connection.close()
    return found


def _greet(
    connection: Connection, key: bytes, come: queue.SimpleQueue[tuple[int, Connection]]
) -> None:
    """Let the other side prove that it knows the key, and prove it, too."""
    try:
        connection.set_timeout(_PATIENCE)
        challenge = secrets.token_bytes(_NONCE)
        connection.send(challenge)
        answer = connection.receive(limit=200)
        proof, own_challenge, rank = answer[:32], answer[32 : 32 + _NONCE], answer[32 + _NONCE :]
        if not hmac.compare_digest(proof, _proof(key, challenge + own_challenge + rank)):
            connection.send(b"")  # an end alone would say that this process has come to its own
            connection.close()
            return
        connection.send(_proof(key, own_challenge))
        connection.set_timeout(None)
        come.put((int(rank), connection))
    except (OSError, EOFError, ValueError):
        connection.close()


def connect(address: tuple[str, int], key: bytes, rank: int, seconds: float) -> Connection | None:
    """Return a connection to who listens at `address`; None if there is none within `seconds`.

    Raises
    ------
    PermissionError
        If who answers there does not know the key.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            connection = Connection(socket.create_connection(address, _PATIENCE))
        except OSError:  # not there yet
            time.sleep(0.05)
            continue
        try:
            _introduce(connection, key, rank)
        except (OSError, EOFError) as error:
            connection.close()
            if isinstance(error, PermissionError):
                raise
            time.sleep(0.2)
            continue
        return connection
    return None


def _introduce(connection: Connection, key: bytes, rank: int) -> None:
    connection.set_timeout(_PATIENCE)
    challenge = connection.receive(limit=_NONCE)
    own_challenge, number = secrets.token_bytes(_NONCE), str(rank).encode()
    connection.send(_proof(key, challenge + own_challenge + number) + own_challenge + number)
    answer = connection.receive(limit=32)
    if not hmac.compare_digest(answer, _proof(key, own_challenge)):
        raise PermissionError("one of the two does not know the key")
    connection.set_timeout(None)


def _proof(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")
