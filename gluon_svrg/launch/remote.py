"""Node: a machine of a job, as the launcher sees it: what its agent says, and is told."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence

from gluon_svrg.launch.hello import Hello
from gluon_svrg.launch.hosts import HOST_OF_ONE, Host
from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.messages import Channel, Message, bytes_of
from gluon_svrg.launch.nodes import Lost, Reader
from gluon_svrg.launch.output import STDERR, Log, Output, Stream, Terminal, worth_telling
from gluon_svrg.launch.plan import Order
from gluon_svrg.launch.processes import Progress
from gluon_svrg.launch.program import Program


class RemoteProcess:
    """A process that an agent has started; see `Process`."""

    def __init__(self, order: Order, name: str, number: int, node: Node, output: Output) -> None:
        self.name = name
        self.is_worker = order.is_worker
        self.code: int | None = None
        self.progress = Progress()
        self.pid = 0
        self.is_stopped = False
        self.readers: Mapping[int, object] = {}
        self.output = output
        self._number = number
        self._node = node

    @property
    def last_lines(self) -> list[str]:
        """What it said last."""
        return self.output.last_lines

    def read(self, descriptor: int) -> bool:
        """Take nothing: what it says comes through its agent's channel."""
        return False

    def poll(self) -> int | None:
        """Return its code if it has ended."""
        return self.code

    def send(self, number: int) -> None:
        """Send a signal to it alone."""
        if self.code is None:
            self._node.tell({"do": "signal", "id": self._number, "number": int(number)})

    def close(self) -> None:
        """Show what has no end of line, and close its log."""
        self.output.stdout.end()
        self.output.stderr.end()
        self.output.close()


class Node:
    """A machine with an agent, which is started, comes, goes and may come again.

    Parameters
    ----------
    number : int
        Its place among the machines.
    host : Host
        What is known of it.
    terminal, keeper : Terminal and Keeper
        Those of the job.
    silence : float
        For how many seconds either side may say nothing.
    place : str
        By which its agents recognise each other, if there are two for a while.
    hear_signal : callable
        Is told of a signal to that machine.

    Attributes
    ----------
    name : str
        What it is called in sentences.
    workers, servers, cores : int
        How many it has.
    address : str
        Where the others reach it.
    said : Hello or None
        What its agent has said when it came.
    is_ready : bool
        Whether its agent is there, and no other one.
    gone, noticed : str or None, and float
        Why it is there no longer, and for how long that was not seen, at most.
    again_from : float
        When it may be started again, by `time.monotonic`.
    has_ended : bool
        Whether all processes of it have.
    ports : sequence of int, str or None
        Those that are free there, or why there are none, once it was asked.
    """

    def __init__(
        self,
        number: int,
        host: Host,
        terminal: Terminal,
        keeper: Keeper,
        silence: float,
        place: str,
        hear_signal: Callable[[int], None],
    ) -> None:
        self.number = number
        self.host = host
        self.name = host.name
        self.workers, self.servers, self.cores = 1, 1, 1
        self.address = HOST_OF_ONE
        self.is_ready, self.has_ended = False, True
        self.gone: str | None = None
        self.noticed = self.again_from = 0.0
        self._checked = self._listening_since = 0.0
        self.ports: Sequence[int] | str | None = None
        self.said: Hello | None = None
        self._terminal = terminal
        self._keeper = keeper
        self._silence = silence
        self._place = place
        self._hear_signal = hear_signal
        self._channel: Channel | None = None
        self._program: Program | None = None
        self._known: set[bytes] = set()
        self._errors = self._new_errors()
        self._last_words: list[str] = []
        self._processes: dict[int, RemoteProcess] = {}
        self._heard: Mapping[str, Callable[[Message], None]] = {
            "hello": self._hear_hello,
            "ready": self._hear_ready,
            "beat": lambda _: None,
            "ports": self._hear_ports,
            "started": self._hear_started,
            "output": self._hear_output,
            "progress": self._hear_progress,
            "stopped": self._hear_stopped,
            "end": self._hear_end,
            "ended": self._hear_ended,
            "signal": lambda message: self._hear_signal(int(message["number"])),
        }

    # --- Its agent -----------------------------------------------------------------------------

    def begin(self, command: Sequence[str]) -> None:
        """Start an agent, which speaks over its standard input and output."""
        self._program = Program(command, self._keeper, self._errors)
        self._channel = Channel(self._program.reads, self._program.writes, has_mark=True)

    def take(self, channel: Channel, said: Hello) -> None:
        """Take an agent that has come by itself."""
        self._channel = channel
        self._welcome(said)

    @property
    def is_begun(self) -> bool:
        """Whether there is an agent, or one is starting."""
        return self._channel is not None

    def tell(self, message: Message) -> None:
        """Say something to the agent; to one that is gone nothing."""
        if self._channel is not None:
            self._channel.send(message)

    def beat(self) -> None:
        """Let the agent know that the launcher is there."""
        channel = self._channel
        if self.said is not None and channel is not None:
            if channel.pending:
                channel.flush()
            else:
                channel.send({"do": "beat"})

    def readers(self) -> dict[int, Reader]:
        """Return its descriptors that are readable when it has said something."""
        found: dict[int, Reader] = {}
        if self._channel is not None and self._channel.closed is None:
            found[self._channel.fileno()] = self
        if self._program is not None and self._program.error_pipe >= 0:
            found[self._program.error_pipe] = self
        return found

    def read(self, descriptor: int) -> bool:
        """Take what has come; return whether more may come."""
        if self._program is not None and descriptor == self._program.error_pipe:
            return self._program.read_errors()
        if self._channel is None:
            return False
        try:
            for message in self._channel.receive():
                self._heard[message["is"]](message)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            self.lose(f"is gone: its agent has said what makes no sense ({error!r})")
            return False
        if self._channel.closed is not None:
            self.lose(f"is gone: {self._channel.closed}")
            return False
        return True

    def check_silence(self) -> None:
        """Give it up if it has not said anything for too long, while this launcher listened.

        It may have waited for its terminal meanwhile, or for a processor. Then what has come is
        perhaps less than one message, and the agent needs a moment to let the rest go.
        """
        limit, now = self._silence, time.monotonic()
        if now - self._checked > limit / 4:
            self._listening_since = now
        self._checked = now
        if self.said is None or self._channel is None or self._channel.closed is not None:
            return
        if now - max(self._channel.heard, self._listening_since) > limit and self.gone is None:
            self.noticed = limit
            # Whoever is there still hears nothing of the launcher, and ends by itself until then.
            self.again_from = now + limit
            self.lose(f"is gone: not a word of it for {limit:g} s (--host-timeout)")

    def lose(self, why: str) -> None:
        """Count it as gone, and all of its processes with it."""
        if self._channel is not None:
            self._channel.close()
        self.gone, self.is_ready, self.has_ended = why, False, True
        for process in self._processes.values():
            if process.code is None:
                process.code = -signal.SIGKILL
        self._processes = {}

    def lost(self) -> Lost | None:
        """Return why it is gone, if it is."""
        if self.gone is None:
            return None
        return Lost(self.name, self.gone, self.last_words, self.noticed)

    @property
    def last_words(self) -> list[str]:
        """What was said last where an agent is, or should be."""
        return worth_telling(self._errors.last_lines) or self._last_words

    @property
    def pid(self) -> int | None:
        """The number of the program that was started here, or None."""
        return None if self._program is None else self._program.pid

    def exit_code(self) -> int | None:
        """Return that of the program that was started here, whose output has ended."""
        return None if self._program is None else self._program.exit_code()

    def clear(self) -> None:
        """Forget the agent that is gone: another one may come."""
        self.close()
        self._channel, self.gone, self.noticed, self.said = None, None, 0.0, None
        self._last_words = self.last_words
        self._errors = self._new_errors()

    def close(self, patience: float = 0.0) -> None:
        """End the agent's own process, after some seconds, and close all pipes."""
        if self._program is not None:
            self._program.end(patience)
            self._program = None
        if self._channel is not None:
            self._channel.close()
        self.is_ready = False

    # --- Its processes -------------------------------------------------------------------------

    def start(self, number: int, process: RemoteProcess, order: Order, salt: str) -> None:
        """Let the agent start a process."""
        self._processes[number] = process
        self.tell(
            {
                "do": "start",
                "id": number,
                "name": order.name,
                "arguments": list(order.command[1:]),
                "defaults": dict(order.defaults),
                "variables": dict(order.variables),
                "is_worker": order.is_worker,
                "salt": salt,
            }
        )

    def kill(self) -> None:
        """Let the agent kill all processes; `has_ended` when that is done."""
        if self.is_ready:
            self.has_ended = False
            self.tell({"do": "kill"})

    def forget(self) -> None:
        """Its processes have ended."""
        self._processes = {}

    # --- What it says --------------------------------------------------------------------------

    def _new_errors(self) -> Stream:
        errors = Stream(self._terminal, STDERR, f"[{self.name}] ", Log(None))
        errors.known = self._known
        return errors

    def _hear_hello(self, message: Message) -> None:
        self._welcome(Hello.of(message))

    def _welcome(self, said: Hello) -> None:
        self._known.clear()
        self._errors.known, self._last_words = None, []
        # Signs of life begin with `said`, and this is the first that it hears.
        self.tell({"do": "welcome", "silence": self._silence, "place": self._place})
        self.said, self.cores = said, said.cores

    def _hear_ready(self, _: Message) -> None:
        if self.said is None:
            raise ValueError("ready before hello")
        self.is_ready = True

    def _hear_ports(self, message: Message) -> None:
        self.ports = message.get("error") or [int(port) for port in message["ports"]]

    def _hear_started(self, message: Message) -> None:
        if process := self._processes.get(message["id"]):
            process.pid = int(message["pid"])

    def _hear_output(self, message: Message) -> None:
        if process := self._processes.get(message["id"]):
            output = process.output
            stream = output.stderr if message["stream"] == STDERR else output.stdout
            stream.feed(bytes_of(message["data"]))

    def _hear_progress(self, message: Message) -> None:
        if process := self._processes.get(message["id"]):
            process.progress.feed(bytes_of(message["data"]))

    def _hear_stopped(self, message: Message) -> None:
        for number, process in self._processes.items():
            process.is_stopped = number in message["ids"]

    def _hear_end(self, message: Message) -> None:
        if process := self._processes.get(message["id"]):
            process.code = int(message["code"])

    def _hear_ended(self, _: Message) -> None:
        self.has_ended = True
        for process in self._processes.values():
            if process.code is None:
                process.code = -signal.SIGKILL
