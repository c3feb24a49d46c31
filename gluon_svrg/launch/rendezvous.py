"""Where the machines of a job meet that were started by the same line: machine 0 listens."""

from __future__ import annotations

import errno
import ipaddress
import os
import queue
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from gluon_svrg.launch.agent import Agent
from gluon_svrg.launch.environment import JOB_KEY
from gluon_svrg.launch.hello import Hello, digest_of, this_host
from gluon_svrg.launch.hosts import UNAVAILABLE, Across, resolve
from gluon_svrg.launch.messages import (
    AnotherKeyError,
    Channel,
    Message,
    RefusedError,
    Seal,
    greet,
    introduce,
)
from gluon_svrg.launch.plan import Options
from gluon_svrg.launch.signals import Signals

_MOST_AT_ONCE = 128
"""Handshakes that may be under way: whoever sends rubbish or nothing is not to fill the machine."""
_PAUSE = 0.25
"""Seconds from one attempt to reach machine 0 to the next."""
_PATIENCE = 30.0
"""Seconds for the first word of machine 0, which may be ending processes just then."""


@dataclass(frozen=True)
class Arrival:
    """An agent that has come and knows the key; what it has said, and where it has come to."""

    channel: Channel
    said: Hello
    came_from: str
    came_to: str

    def refuse(self, why: str, *, later: bool = False) -> None:
        """Turn it away; `later` another try may succeed."""
        _refuse(self.channel, why, later=later)


def _refuse(channel: Channel, why: str, *, later: bool) -> None:
    channel.send({"do": "refuse", "text": why, "later": later})
    channel.close()


class Meeting:
    """Listens, and has each that comes prove that it knows the key, without waiting for any.

    Parameters
    ----------
    address : tuple of str and int
        Where to listen. A name may be another one here than for the others, so all of this
        machine's addresses are taken for it.
    key : bytes
        That of the job.
    """

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self._key = key
        self._listener = _listener(address)
        self._under_way: dict[socket.socket, str] = {}  # from where, the oldest first
        self._lock = threading.Lock()
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        threading.Thread(target=self._accept, daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor that is readable when somebody has come."""
        return self._read

    def take(self) -> list[Arrival]:
        """Return who has come since."""
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        found = []
        while not self._arrivals.empty():
            found.append(self._arrivals.get())
        return found

    def close(self) -> None:
        """Listen no longer."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                own, peer = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return
                time.sleep(0.05)
                continue
            with self._lock:
                if len(self._under_way) >= _MOST_AT_ONCE:
                    self._drop_one()
                self._under_way[own] = peer[0]
            threading.Thread(target=self._greet, args=(own, peer[0]), daemon=True).start()

    def _drop_one(self) -> None:
        """Let the oldest go of those that have proved nothing, from where most are."""
        busiest = Counter(self._under_way.values()).most_common(1)[0][0]
        oldest = next(own for own, peer in self._under_way.items() if peer == busiest)
        del self._under_way[oldest]
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end

    def _greet(self, own: socket.socket, peer: str) -> None:
        seal: Seal | None = None
        try:
            _settle(own)
            seal, message = greet(own, self._key)
            came_to = own.getsockname()[0]
        except (OSError, EOFError, RefusedError):
            pass
        with self._lock:
            was_there = self._under_way.pop(own, None) is not None
        if seal is None or not was_there:
            own.close()
            return
        descriptor = own.detach()
        channel = Channel(descriptor, descriptor, seal)
        try:
            said = Hello.of(message)
        except ValueError as error:
            why = f"machine 0 does not understand this one, as {error}: start the same version of "
            _refuse(channel, f"{why}gluon_svrg on both", later=False)
            return
        self._arrivals.put(Arrival(channel, said, peer, came_to))
        with suppress(OSError):
            os.write(self._write, b"+")


def _listener(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        own = str(ipaddress.IPv4Address(host))
    except ValueError:
        own = ""
    try:
        return socket.create_server((own, port), backlog=128)
    except OSError as error:
        if own and error.errno == errno.EADDRNOTAVAIL:  # it is translated on the way here
            return socket.create_server(("", port), backlog=128)
        raise


def _settle(own: socket.socket) -> None:
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def join(options: Options, across: Across) -> int:
    """Be the agent of this machine for the launcher of machine 0; return the exit code."""
    end = time.monotonic() + across.wait
    where = f"{across.master[0]}:{across.master[1]}"
    reason = f"nobody has answered at {where}: is the line of --node-rank 0 started there?"
    signals = Signals()
    while time.monotonic() < end or signals.received:
        if signals.received:
            return 128 + signals.received[0]
        try:
            channel, first = _arrive(options, across, signals)
        except AnotherKeyError:
            _say(
                f"who listens at {where} has another key: {JOB_KEY} must be the same in the "
                "environment of every machine"
            )
            return 2
        except (OSError, EOFError, RefusedError):
            time.sleep(_PAUSE)
            continue
        if first[0].get("do") == "welcome":
            return Agent(channel, across.key, signals).run(first)
        channel.close()
        reason = str(first[0].get("text"))
        if not first[0].get("later"):
            _say(reason)
            return 2
        time.sleep(_PAUSE)
    _say(f"{reason} It was waited for {across.wait:g} s (--wait)")
    return UNAVAILABLE


def _arrive(options: Options, across: Across, signals: Signals) -> tuple[Channel, list[Message]]:
    """Return a channel to the launcher, and the first that it has said.

    Raises
    ------
    AnotherKeyError
        If it has another key.
    RefusedError, EOFError, OSError
        If it does not answer, or a signal has come first.
    """
    address = resolve(across.master[0])
    if address is None:  # the name comes later than the machine, in some clusters
        raise ConnectionError
    own = socket.create_connection((address, across.master[1]), 5.0)
    try:
        _settle(own)
        seal = introduce(own, across.key)
        said = replace(
            this_host(),
            rank=across.rank,
            nodes=across.nodes,
            workers=options.workers,
            servers=options.servers,
            arguments=digest_of(options.command),
            address=across.address or own.getsockname()[0],
        )
        descriptor = own.detach()
    except BaseException:
        own.close()
        raise
    channel = Channel(descriptor, descriptor, seal)
    channel.send(said.message)
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and channel.closed is None and not signals.received:
        if first := channel.receive():
            return channel, first
        time.sleep(0.02)
    channel.close()
    raise EOFError


def _say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)
