"""Where the processes of a job run: this machine, or (`cluster.py`) an agent on each of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.output import Output
from gluon_svrg.launch.plan import Layout, Options, Order, this_machine
from gluon_svrg.launch.processes import Process, Progress, end_orphans


class Reader(Protocol):
    """Who takes what comes through a descriptor."""

    def read(self, descriptor: int) -> bool:
        """Take what has come; return whether more may come."""


class Running(Reader, Protocol):
    """A process of a job, wherever it runs; see `Process`."""

    code: int | None
    progress: Progress

    @property
    def name(self) -> str:
        """As in ``worker 0``, or ``worker 3 on node1``."""

    @property
    def is_worker(self) -> bool:
        """Whether it is one: else a server or the scheduler."""

    @property
    def pid(self) -> int:
        """Its number, on its machine."""

    @property
    def readers(self) -> Mapping[int, object]:
        """Its descriptors that are readable when it has said something."""

    @property
    def last_lines(self) -> list[str]:
        """What it said last."""

    @property
    def is_stopped(self) -> bool:
        """Whether it runs no longer, and has not ended."""

    def poll(self) -> int | None:
        """Return its code if it has ended."""

    def send(self, number: int) -> None:
        """Send a signal to it alone."""

    def close(self) -> None:
        """Take what it has said still, and close its output."""


@dataclass(frozen=True)
class Lost:
    """A machine that is gone, or has not come.

    Attributes
    ----------
    name : str
        Of the machine.
    what : str
        What happened, as the end of a sentence that begins with its name.
    last_lines : list of str
        What its ssh or agent said last.
    noticed : float
        For how many seconds this was not seen, at most; 0: it was seen when it happened.
    """

    name: str
    what: str
    last_lines: list[str]
    noticed: float = 0.0


class Nodes(Protocol):
    """The machines of a job."""

    def connect(self) -> Lost | None:
        """Wait until all are there; return who is not, or None, as after a signal."""

    def layout(self, options: Options) -> Layout:
        """Return how many processes each has, and ports for the next start."""

    def readers(self) -> Mapping[int, Reader]:
        """Return who takes what comes from the machines, by descriptor."""

    def start(self, order: Order, output: Output) -> Running:
        """Start a process."""

    def lost(self) -> Lost | None:
        """Return a machine that is gone."""

    def end(self, processes: Iterable[Running]) -> None:
        """Kill all processes and what they have started, and wait for their ends."""

    def close(self, code: int) -> None:
        """End the agents: the job is over, with this exit code."""


class ThisMachine:
    """The machine of the launcher, whose children the processes are.

    Parameters
    ----------
    keeper : Keeper
        Who ends them if the launcher is killed.
    is_alone : bool
        Whether there is one process only.
    """

    def __init__(self, keeper: Keeper, *, is_alone: bool) -> None:
        self._keeper = keeper
        self._is_alone = is_alone
        self._processes: list[Process] = []

    def connect(self) -> Lost | None:
        """See Nodes."""
        return None

    def layout(self, options: Options) -> Layout:
        """See Nodes."""
        return this_machine(options)

    def readers(self) -> Mapping[int, Reader]:
        """See Nodes."""
        return {}

    def start(self, order: Order, output: Output) -> Running:
        """See Nodes."""
        process = Process(order, self._keeper, output, Progress(), is_alone=self._is_alone)
        self._processes.append(process)
        return process

    def lost(self) -> Lost | None:
        """See Nodes."""
        return None

    def end(self, processes: Iterable[Running]) -> None:
        """See Nodes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes = []
        end_orphans(self._keeper.pid)

    def close(self, code: int) -> None:
        """See Nodes."""
