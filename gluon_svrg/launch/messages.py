"""Channel: messages between the launcher and an agent, over pipes or over a socket."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import threading
import time
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""What is said: plain JSON, nothing of which is ever run or unpickled."""

MARK = b"\n\0gluon_svrg.launch 1\n"
"""What an agent says first, as a shell may have printed something before."""
_LENGTH = struct.Struct(">I")
_LARGEST = 1 << 24
_MOST_BEFORE = 1 << 16
_NONCE = _TAG = 32
_REFUSAL = bytes(_TAG)
"""What takes the place of a proof for who has given a wrong one."""
_PATIENCE = 5.0
"""Seconds for a handshake: what does not answer is none of ours."""


class RefusedError(Exception):
    """What has come is not from who knows the key, or is no message."""


class AnotherKeyError(RefusedError):
    """The other side has another key: that is certain, and will not change."""


class Seal:
    """Puts a code on each message by which the other side knows who made it, and as which.

    The code is an HMAC of the message and its number, by a key of this connection and direction:
    what was changed, injected, repeated, left out or sent back fails. Nothing is encrypted.

    Parameters
    ----------
    key : bytes
        Of this connection.
    is_master : bool
        Which side this one is.
    """

    def __init__(self, key: bytes, *, is_master: bool) -> None:
        to_agent, to_master = _digest(key, b"to the agent"), _digest(key, b"to the master")
        self._out, self._into = (to_agent, to_master) if is_master else (to_master, to_agent)
        self._sent = self._received = 0

    def close(self, body: bytes) -> bytes:
        """Return the next message with its code."""
        self._sent += 1
        return body + _digest(self._out, self._sent.to_bytes(8, "big") + body)

    def open(self, data: bytes) -> bytes:
        """Return the message; RefusedError if it is not the next one of the other side."""
        body, tag = data[:-_TAG], data[-_TAG:]
        self._received += 1
        wanted = _digest(self._into, self._received.to_bytes(8, "big") + body)
        if not hmac.compare_digest(tag, wanted):
            raise RefusedError("a message that the other side has not sent")
        return body


class Channel:
    """Whole messages in both directions, without waiting for the other side.

    Parameters
    ----------
    read, write : int
        Descriptors, which are the channel's from now on; may be the same.
    seal : Seal, optional
        Of a connection that anybody may have made; None where ssh or a pipe knows who it is.
    has_mark : bool
        Whether `MARK` is to come, before which everything is dropped.

    Attributes
    ----------
    closed : str or None
        Why nothing more comes.
    heard : float
        When something came last, by `time.monotonic`.
    """

    def __init__(
        self, read: int, write: int, seal: Seal | None = None, *, has_mark: bool = False
    ) -> None:
        self.closed: str | None = None
        self.heard = time.monotonic()
        self._read, self._write = read, write
        self._seal = seal
        self._awaits_mark = has_mark
        self._in, self._out = bytearray(), bytearray()
        self._lock = threading.Lock()  # signs of life come from a thread of their own
        for descriptor in (read, write):
            os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has come."""
        return self._read

    @property
    def writer(self) -> int:
        """The descriptor to wait for while `pending`."""
        return self._write

    @property
    def pending(self) -> int:
        """How many bytes the other side has not taken yet."""
        return len(self._out)

    def send(self, message: Message) -> None:
        """Say something; what cannot go at once goes by the next `send` or `flush`."""
        # In ASCII, so that what a command line has that is no UTF-8 (lone surrogates) comes whole.
        body = json.dumps(message).encode()
        with self._lock:
            if self._write < 0:
                return
            data = self._seal.close(body) if self._seal else body
            self._out += _LENGTH.pack(len(data)) + data
            self._flush()

    def begin(self) -> None:
        """Say that what follows is messages: see `MARK`."""
        with self._lock:
            self._out += MARK

    def flush(self) -> None:
        """Let go what the other side takes."""
        with self._lock:
            self._flush()

    def receive(self) -> list[Message]:
        """Return what has come since; sets `closed` at the end of it all."""
        if self.closed is not None:
            return []
        try:
            # Up to what one read gives: who says much is not to keep the others waiting.
            data = os.read(self._read, 1 << 18)
        except BlockingIOError:
            return []
        except ConnectionResetError:  # an end of it that had not read all that was sent to it
            data = b""
        except OSError as error:
            self.closed = f"the connection is broken: {error.strerror}"
            return []
        if not data:
            self.closed = "its agent has closed the connection"
            return []
        self._in += data
        try:
            return self._messages()
        except (RefusedError, ValueError, KeyError, RecursionError) as error:
            self.closed = f"the connection had {error}"
            return []

    def close(self) -> None:
        """Close this side of it."""
        with self._lock:
            if self._read >= 0:
                for descriptor in {self._read, self._write}:
                    os.close(descriptor)
                self._read = self._write = -1
            self._out.clear()
            self.closed = self.closed or "the connection is closed"

    def _flush(self) -> None:
        while self._out and self._write >= 0:
            try:
                del self._out[: os.write(self._write, self._out[: 1 << 16])]
            except BlockingIOError:
                return
            except OSError:  # `receive` finds out why
                self._out.clear()

    def _messages(self) -> list[Message]:
        if self._awaits_mark:
            place = self._in.find(MARK)
            if place < 0:
                if len(self._in) > _MOST_BEFORE:
                    raise RefusedError("no agent at its other end")
                return []
            del self._in[: place + len(MARK)]
            self._awaits_mark = False
        found = []
        while len(self._in) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in)
            if length > _LARGEST:
                raise RefusedError("something that is no message")
            end = _LENGTH.size + length
            if len(self._in) < end:
                break
            data = bytes(self._in[_LENGTH.size : end])
            del self._in[:end]
            found.append(_decoded(self._seal.open(data) if self._seal else data))
        # Bytes alone are no sign of life: anybody may send some.
        if found:
            self.heard = time.monotonic()
        return found


def _decoded(body: bytes) -> Message:
    message = json.loads(body)
    if not isinstance(message, dict):
        raise RefusedError("something that is no message")
    return message


def text_of(data: bytes) -> str:
    """Return bytes as text that JSON takes."""
    return data.decode("latin-1")


def bytes_of(text: str) -> bytes:
    """Return the bytes again."""
    return text.encode("latin-1")


# --- A connection that anybody may have made ---------------------------------------------------


def greet(own: socket.socket, key: bytes) -> tuple[Seal, Message]:
    """Let who has connected prove that it knows the key, and prove it; return what it says first.

    Raises
    ------
    AnotherKeyError
        If its proof is wrong; it is told so.
    RefusedError, OSError
        If it says something else, or nothing in time.
    """
    end = time.monotonic() + _PATIENCE
    challenge = secrets.token_bytes(_NONCE)
    own.settimeout(_PATIENCE)
    own.sendall(MARK + challenge)
    answer = _exactly(own, _NONCE + _TAG, end)
    both = challenge + answer[:_NONCE]
    if not hmac.compare_digest(answer[_NONCE:], _digest(key, b"agent" + both)):
        own.sendall(_REFUSAL)
        raise AnotherKeyError("another key")
    own.sendall(_digest(key, b"master" + both))
    seal = Seal(_digest(key, b"connection" + both), is_master=True)
    (length,) = _LENGTH.unpack(_exactly(own, _LENGTH.size, end))
    if length > _MOST_BEFORE:
        raise RefusedError("something that is no message")
    try:
        return seal, _decoded(seal.open(_exactly(own, length, end)))
    except (ValueError, RecursionError):
        raise RefusedError("something that is no message") from None


def introduce(own: socket.socket, key: bytes) -> Seal:
    """Prove to who listens that this side knows the key, and let it prove it, too.

    Raises
    ------
    AnotherKeyError
        If the other side has another key.
    RefusedError, EOFError, OSError
        If it is no launcher, says nothing in time, or closes the connection, as one does that is
        killed just then: the next try may succeed.
    """
    end = time.monotonic() + _PATIENCE
    own.settimeout(_PATIENCE)
    if _exactly(own, len(MARK), end) != MARK:
        raise RefusedError("another program, or another version of this one")
    both = _exactly(own, _NONCE, end)
    nonce = secrets.token_bytes(_NONCE)
    both += nonce
    own.sendall(nonce + _digest(key, b"agent" + both))
    if not hmac.compare_digest(_exactly(own, _TAG, end), _digest(key, b"master" + both)):
        raise AnotherKeyError("another key")
    return Seal(_digest(key, b"connection" + both), is_master=False)


def derived(key: bytes, purpose: str) -> str:
    """Return another key, in hex, which only who knows `key` can know."""
    return _digest(key, b"for " + purpose.encode()).hex()


def _exactly(own: socket.socket, length: int, end: float) -> bytes:
    data = b""
    while len(data) < length:
        own.settimeout(max(0.01, end - time.monotonic()))
        some = own.recv(length - len(data))
        if not some:
            raise EOFError("the other side has closed the connection")
        data += some
    return data


def _digest(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")
