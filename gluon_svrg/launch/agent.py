"""``python -m gluon_svrg.launch.agent``: starts the processes of one machine for the launcher.

The launcher starts it, here or over ssh, and speaks with it over its standard input and output; or
it has come over a socket (`rendezvous.py`). It does what it is told, says what its processes say,
and ends with all of them when it hears nothing more.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gluon_svrg.launch.environment import KEY, PEER_FAILED
from gluon_svrg.launch.hello import this_host
from gluon_svrg.launch.hosts import BEAT
from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.messages import Channel, Message, derived, text_of
from gluon_svrg.launch.output import STDERR, STDOUT
from gluon_svrg.launch.place import Place
from gluon_svrg.launch.plan import Order, free_ports
from gluon_svrg.launch.processes import Process, Progress, adopt, end_orphans
from gluon_svrg.launch.signals import Signals

_INTERVAL = 0.02
"""Seconds from one look at all processes to the next, if no signal tells of an end before."""
_MOST_PENDING = 1 << 20
"""Bytes that the launcher has not taken yet, after which the processes have to wait."""
_PATIENCE = 60.0
"""Seconds until the launcher has said for how long it may be silent."""
_END_WAIT = 1.0
"""Seconds in which an agent ends its processes once it has found out that it is alone."""
_MOST_DRAINED = 16
"""Reads of 64 KiB that are a full pipe, however large it was made."""


class _Relay:
    """Hands what comes through a pipe of a process to the launcher."""

    def __init__(self, channel: Channel, kind: str, number: int, stream: int = 0) -> None:
        self._channel = channel
        self._message = {"is": kind, "id": number, "stream": stream}

    def feed(self, data: bytes) -> None:
        self._channel.send(self._message | {"data": text_of(data)})

    def end(self) -> None:
        """See Sink."""


class _RelayedOutput:
    """Both streams of a process, for the launcher; see Streams."""

    has_log = False

    def __init__(self, channel: Channel, number: int) -> None:
        self.stdout = _Relay(channel, "output", number, STDOUT)
        self.stderr = _Relay(channel, "output", number, STDERR)
        self.last_lines: list[str] = []

    def close(self) -> None:
        """See Streams."""


class _RelayedProgress(Progress):
    """What a worker says of its steps, for the launcher."""

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__()
        self._relay = _Relay(channel, "progress", number)

    def feed(self, data: bytes) -> None:
        self._relay.feed(data)


class Agent:
    """The processes of one machine, on behalf of a launcher.

    Parameters
    ----------
    channel : Channel
        To the launcher.
    key : bytes
        That of the job, if the channel is open to other eyes: the workers' key is made from it.
    signals : Signals, optional
        Those that this process has received already.
    """

    def __init__(self, channel: Channel, key: bytes = b"", signals: Signals | None = None) -> None:
        self._channel = channel
        self._signals = signals or Signals()
        self._key = key
        self._silence = _PATIENCE
        self._place: Place | None = None
        self._welcomed = 0.0
        self._processes: dict[int, Process] = {}
        self._told: set[int] = set()
        self._stopped: set[int] = set()
        self._is_ready = self._is_ending = False
        self._code: int | None = None
        self._beaten = 0.0
        self._passed_on = 0
        self._commands: Mapping[str, Callable[[Message], None]] = {
            "welcome": self._welcome,
            "beat": lambda _: None,
            "ports": self._ports,
            "start": self._start,
            "signal": self._signal,
            "kill": self._kill,
            "end": self._end,
        }

    def run(self, first: Sequence[Message] = ()) -> int:
        """Obey until the launcher says that it is over, or is gone; return the exit code.

        `first` is what it has said already.
        """
        adopt()
        self._keeper = Keeper()
        try:
            for message in first:
                self._obey(message)
            return self._run()
        finally:
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.wait()
            end_orphans(self._keeper.pid)
            self._keeper.close()
            if self._place is not None:
                self._place.close()
            self._channel.flush()
            self._channel.close()

    def _run(self) -> int:
        while True:
            self._listen()
            for message in self._channel.receive():
                self._obey(message)
            if self._code is not None:
                return self._code
            now = time.monotonic()
            if self._channel.closed is not None:
                self._say("the launcher is gone, and all that it has started here is ended")
                return PEER_FAILED
            if now - self._channel.heard > self._silence:
                self._say(f"no word of the launcher for {self._silence:g} s: all is ended here")
                return PEER_FAILED
            if self._signals.received[self._passed_on :] and not self._pass_on():
                return 128 + self._signals.received[0]
            self._look()
            self._beat(now)
            self._settle(now)

    def _listen(self) -> None:
        """Wait until there is something to do; take what the processes say."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        readers: dict[int, Process] = {}
        if self._channel.pending:
            poll.register(self._channel.writer, select.POLLOUT)
            if self._channel.writer == self._channel.fileno():
                poll.modify(self._channel, select.POLLIN | select.POLLOUT)
        if self._channel.pending < _MOST_PENDING:
            for process in self._processes.values():
                readers |= dict.fromkeys(process.readers, process)
        for descriptor in readers:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(_INTERVAL * 1000):
            if descriptor in readers:
                readers[descriptor].read(descriptor)
        self._signals.clear()
        self._channel.flush()

    def _look(self) -> None:
        """Tell who has ended; and when all have that were to."""
        for number, process in self._processes.items():
            if number not in self._told and process.poll() is not None:
                self._told.add(number)
                _drain(process)
                self._channel.send({"is": "end", "id": number, "code": process.code})
        if self._is_ending and len(self._told) == len(self._processes):
            end_orphans(self._keeper.pid)
            for process in self._processes.values():
                process.close()
            self._processes, self._told, self._is_ending = {}, set(), False
            self._channel.send({"is": "ended"})

    def _beat(self, now: float) -> None:
        if now - self._beaten < BEAT:
            return
        self._beaten = now
        stopped = {n for n, one in self._processes.items() if one.code is None and one.is_stopped}
        if stopped != self._stopped:
            self._stopped = stopped
            self._channel.send({"is": "stopped", "ids": sorted(stopped)})
        elif not self._channel.pending:
            self._channel.send({"is": "beat"})

    def _settle(self, now: float) -> None:
        """Say that this machine is ready, as soon as no other agent of this job is on it."""
        if self._is_ready or self._place is None:
            return
        if self._place.take():
            self._is_ready = True
            self._channel.send({"is": "ready"})
        elif now - self._welcomed > self._silence + _END_WAIT:
            self._place.end_other()

    def _pass_on(self) -> bool:
        """Tell the launcher of a signal to this machine; return False at the second one."""
        if self._passed_on:
            return False
        self._passed_on = 1
        self._channel.send({"is": "signal", "number": self._signals.received[0]})
        return True

    def _obey(self, message: Message) -> None:
        self._commands[message["do"]](message)

    # --- What it is told -----------------------------------------------------------------------

    def _welcome(self, message: Message) -> None:
        self._silence = float(message["silence"])
        self._place, self._welcomed = Place(str(message["place"])), time.monotonic()

    def _ports(self, message: Message) -> None:
        try:
            ports = free_ports(2, message["address"])
        except OSError as error:
            self._channel.send({"is": "ports", "error": error.strerror})
        else:
            self._channel.send({"is": "ports", "ports": ports})

    def _start(self, message: Message) -> None:
        number, variables = message["id"], message["variables"]
        if message["salt"] and KEY in variables:
            variables[KEY] = derived(self._key, message["salt"])
        command = [sys.executable, *message["arguments"]]
        is_worker = bool(message["is_worker"])
        order = Order(message["name"], command, message["defaults"], variables, is_worker)
        output = _RelayedOutput(self._channel, number)
        progress = _RelayedProgress(self._channel, number)
        try:
            process = Process(order, self._keeper, output, progress, is_alone=False)
        except OSError as error:
            output.stderr.feed(f"it could not be started: {error}\n".encode())
            self._channel.send({"is": "end", "id": number, "code": 126})
            return
        self._processes[number] = process
        self._channel.send({"is": "started", "id": number, "pid": process.pid})

    def _signal(self, message: Message) -> None:
        if (process := self._processes.get(message["id"])) is not None:
            process.send(int(message["number"]))

    def _kill(self, _: Message) -> None:
        for process in self._processes.values():
            process.kill()
        self._is_ending = True

    def _end(self, message: Message) -> None:
        if "text" in message:
            self._say(message["text"])
        self._code = int(message["code"])

    def _say(self, text: str) -> None:
        with suppress(OSError):
            os.write(STDERR, f"launch: {text}\n".encode("utf-8", "backslashreplace"))


def _drain(process: Process) -> None:
    """Take what an ended process has said before its end is told.

    That is what its pipes hold now: what it has left behind may go on to write for ever.
    """
    for _ in range(_MOST_DRAINED):
        poll = select.poll()
        for descriptor in process.readers:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(0)
        for descriptor, _ in ready:
            process.read(descriptor)
        if not ready:
            return


def main() -> int:
    """Speak with the launcher over standard input and output until it says that it is over."""
    channel = Channel(os.dup(0), os.dup(1))
    # What is printed here, by whomever, is no message; and no process takes messages for input.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    channel.begin()
    channel.send(this_host().message)
    return Agent(channel).run()


if __name__ == "__main__":
    sys.exit(main())
