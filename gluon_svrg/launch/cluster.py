"""Cluster: the machines of a job that goes over several, each with an agent."""

from __future__ import annotations

import itertools
import os
import secrets
import selectors
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gluon_svrg.launch.environment import KEY
from gluon_svrg.launch.hello import digest_of
from gluon_svrg.launch.hosts import BEAT, HOST_OF_ONE, Across, Host, resolve, unreachable
from gluon_svrg.launch.keeper import Keeper
from gluon_svrg.launch.messages import derived
from gluon_svrg.launch.nodes import Lost, Reader, Running
from gluon_svrg.launch.output import Output, Terminal
from gluon_svrg.launch.plan import Layout, Options, Order
from gluon_svrg.launch.processes import end_orphans, reap
from gluon_svrg.launch.remote import Node, RemoteProcess
from gluon_svrg.launch.rendezvous import Arrival, Meeting
from gluon_svrg.launch.signals import Signals

AGENT = "gluon_svrg.launch.agent"
"""The module that an agent runs."""
_PAUSE = 1.0
"""Seconds from one attempt to start an agent to the next."""
_OF_SSH = 255
"""The exit code of ssh if it does not reach a host, or not run anything there."""
_MOST_TRIES = 5
"""How often the first machine may go while it is asked for its ports."""
_END_WAIT = 10.0
"""Seconds in which killed processes have to be gone: one may hang in a file system."""
_CLOSE_WAIT = 2.0
"""Seconds in which agents have to end by themselves once the job is over."""


class Cluster:
    """The machines of a job; see `Nodes`.

    Over ssh an agent is started on each host. Else the machines come to this one, which has an
    agent of its own, too: so whatever machine a process is on, it is started in one way.

    Parameters
    ----------
    options, across : Options and Across
        What is asked of the job.
    keeper, terminal, signals : Keeper, Terminal and Signals
        Those of the job.
    """

    def __init__(
        self,
        options: Options,
        across: Across,
        keeper: Keeper,
        terminal: Terminal,
        signals: Signals,
    ) -> None:
        self._options = options
        self._keeper = keeper
        self._across = across
        self._terminal = terminal
        self._signals = signals
        hosts = across.hosts or [Host(f"node {number}") for number in range(across.nodes)]
        job = secrets.token_hex(16)
        self._nodes = [
            Node(number, host, terminal, keeper, across.silence, f"{job}.{number}", signals.hear)
            for number, host in enumerate(hosts)
        ]
        self._meeting: Meeting | None = None
        self._came_to = HOST_OF_ONE
        self._has_met = False
        self._numbers = itertools.count()
        self._salt = ""
        self._is_over = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def connect(self) -> Lost | None:
        """See Nodes."""
        for _ in range(_MOST_TRIES):
            lost = self._gather()
            if lost or self._signals.received:
                return lost
            if lost := self._describe() or self._find_ports():
                return lost
            if self._nodes[0].ports:  # else it has gone meanwhile
                # What an agent that is gone had started here is a child of this process.
                reap({self._keeper.pid, *(node.pid for node in self._nodes if node.pid)})
                return None
        return self._nodes[0].lost()

    def layout(self, options: Options) -> Layout:
        """See Nodes."""
        ports = self._nodes[0].ports
        assert isinstance(ports, list)  # `connect` has asked for them
        self._salt = secrets.token_hex(32)
        key = derived(self._across.key, self._salt) if self._across.key else self._salt
        return Layout(
            addresses=[node.address for node in self._nodes],
            workers=[node.workers for node in self._nodes],
            servers=[node.servers for node in self._nodes],
            cores=[node.cores for node in self._nodes],
            ports=ports,
            key=key,
        )

    def readers(self) -> Mapping[int, Reader]:
        """See Nodes."""
        found: dict[int, Reader] = {}
        for node in self._nodes:
            found |= node.readers()
        if self._meeting is not None:
            found[self._meeting.fileno()] = self
        return found

    def read(self, descriptor: int) -> bool:
        """Take the machines that have come."""
        if self._meeting is not None:
            for arrival in self._meeting.take():
                self._meet(arrival)
        return True

    def start(self, order: Order, output: Output) -> Running:
        """See Nodes."""
        node, number = self._nodes[order.node], next(self._numbers)
        name = f"{order.name} on {node.name}" if len(self._nodes) > 1 else order.name
        process = RemoteProcess(order, name, number, node, output)
        salt = ""
        if self._meeting is not None and node.number and KEY in order.variables:
            # Anybody may read what goes over a socket: both sides make the key by themselves.
            salt = self._salt
            order = replace(order, variables={**order.variables, KEY: ""})
        node.start(number, process, order, salt)
        return process

    def lost(self) -> Lost | None:
        """See Nodes."""
        for node in self._nodes:
            node.check_silence()
        return next((lost for node in self._nodes if (lost := node.lost())), None)

    def end(self, processes: Iterable[Running]) -> None:
        """See Nodes."""
        for node in self._nodes:
            node.kill()
        self._pump(lambda: all(node.has_ended for node in self._nodes), _END_WAIT)
        for node in self._nodes:
            if not node.has_ended:
                node.lose(f"has not ended its processes within {_END_WAIT:g} s")
            node.forget()

    def close(self, code: int) -> None:
        """See Nodes."""
        for node in self._nodes:
            told: dict[str, object] = {"do": "end", "code": code}
            if self._meeting is not None and node.number and code:
                first = self._nodes[0].name
                told["text"] = f"the job has ended with exit code {code}: see what {first} says"
            node.tell(told)
        self._pump(lambda: not any(node.is_ready for node in self._nodes), _CLOSE_WAIT)
        self._is_over.set()
        for node in self._nodes:
            node.close(_CLOSE_WAIT)
        end_orphans(self._keeper.pid)
        if self._meeting is not None:
            self._meeting.close()

    # --- Who is there --------------------------------------------------------------------------

    def _listen(self) -> Lost | None:
        """Be where the other machines come to."""
        if self._meeting is None and not self._across.hosts and self._across.nodes > 1:
            try:
                self._meeting = Meeting(self._across.master, self._across.key)
            except OSError as error:
                host, port = self._across.master
                what = f"cannot listen at {host}:{port}: {error.strerror}; name another --master"
                return Lost(self._nodes[0].name, what, [])
        return None

    def _gather(self) -> Lost | None:
        """Wait until all machines are there, or one will not come; or until a signal."""
        begin = time.monotonic()
        if lost := self._listen():
            return lost
        for node in self._nodes:
            if node.gone is not None:
                node.clear()
        is_told = False
        while missing := [node for node in self._nodes if not node.is_ready]:
            if self._signals.received:
                return None
            for node in missing:
                if lost := self._invite(node):
                    return lost
            self._pump(lambda: all(node.is_ready or node.gone for node in self._nodes), 0.2)
            waited = time.monotonic() - begin
            if waited > self._across.wait:
                return self._not_come(next(node for node in self._nodes if not node.is_ready))
            if waited > 2.0 and not is_told:
                is_told = True
                names = ", ".join(node.name for node in self._nodes if not node.is_ready)
                self._terminal.say(f"waiting for {names} ({self._across.wait:g} s, --wait)")
        self._has_met = True
        return None

    def _invite(self, node: Node) -> Lost | None:
        """Start the agent of a machine that has none, if that is the launcher's affair."""
        is_own = bool(self._across.hosts) or node.number == 0
        if node.gone is not None:
            if is_own and self._is_a_mistake(node):
                return self._not_come(node, is_mistake=True)
            node.clear()
            node.again_from = max(node.again_from, time.monotonic() + _PAUSE)
        if is_own and not node.is_begun and time.monotonic() >= node.again_from:
            node.begin(_command(self._across, node))
        return None

    def _is_a_mistake(self, node: Node) -> bool:
        """Return whether another try to start an agent would end like the last one."""
        if node.said is not None:
            return False
        if not self._across.hosts:
            return True
        if self._has_met:
            return False
        # A host may be on its way; but if ssh reaches it, and nothing runs there, nothing will.
        code = node.exit_code()
        return code is not None and code >= 0 and code != _OF_SSH

    def _not_come(self, node: Node, *, is_mistake: bool = False) -> Lost:
        node.close()  # what ssh has said is taken then
        if self._across.hosts:
            ssh = shlex.join([*self._across.ssh, "-o", "BatchMode=yes", node.host.target])
            what = f"has no agent after {self._across.wait:g} s (--wait)"
            if is_mistake:
                what = "has not started its agent"
            what += f": {ssh} has to reach it, and {sys.executable} and this folder must be there"
        elif node.number == 0:
            what = "has not started its agent"
        else:
            what = (
                f"has not come within {self._across.wait:g} s (--wait): start the same line there, "
                f"with --node-rank {node.number}"
            )
        return Lost(node.name, what, node.last_words)

    def _meet(self, arrival: Arrival) -> None:
        """Take a machine that has come, or say why not."""
        said, later = arrival.said, False
        rank = said.rank
        if said.nodes != len(self._nodes):
            why = f"--nodes is {said.nodes} there and {len(self._nodes)} on machine 0"
        elif not 0 < rank < len(self._nodes):
            why = f"--node-rank {rank} cannot come to machine 0"
        elif said.arguments != digest_of(self._options.command):
            why = "the script, or what it is given, is another one than on machine 0"
        elif self._nodes[rank].is_begun:
            why = f"--node-rank {rank} is there already, from {self._nodes[rank].address}."
            later = True
        else:
            self._came_to = arrival.came_to
            self._nodes[rank].take(arrival.channel, said)
            return
        if not later:
            why += ": start the same line on each machine, with a --node-rank of its own"
        arrival.refuse(why, later=later)

    def _describe(self) -> Lost | None:
        """Find out what each machine has, is called, and where it is reached."""
        for node in self._nodes:
            assert node.said is not None  # it is there
            node.workers = node.host.slots or node.said.workers or self._options.workers
            node.servers = node.said.servers or self._options.servers
            if (address := _address_of(node, self._across, self._came_to)) is None:
                return Lost(
                    node.name,
                    "has an address that nobody knows: write address=... behind its name, or give "
                    "--address there",
                    [],
                )
            node.address = address
        names = [node.said.host for node in self._nodes if node.said and node.said.host]
        if not self._across.hosts and len(set(names)) == len(self._nodes):
            for node, name in zip(self._nodes, names, strict=True):
                node.name = name
        if found := unreachable([node.address for node in self._nodes]):
            return Lost(self._nodes[found[0]].name, found[1], [])
        return None

    def _find_ports(self) -> Lost | None:
        """Ask the first machine for ports that are free there."""
        first = self._nodes[0]
        first.ports = None
        first.tell({"do": "ports", "address": first.address})
        self._pump(lambda: first.ports is not None or first.gone is not None, self._across.silence)
        if isinstance(first.ports, str):
            return Lost(
                first.name,
                f"cannot listen at {first.address}: {first.ports}; name an address of its own by "
                "address=... in the file of --hosts, or by --address there",
                [],
            )
        if first.ports is None and first.gone is None:
            first.lose("does not answer")
        return None

    def _pump(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Take what all say until something is so, or for so many seconds."""
        end = time.monotonic() + seconds
        while not is_so() and (left := end - time.monotonic()) > 0:
            with selectors.DefaultSelector() as selector:
                selector.register(self._signals, selectors.EVENT_READ)
                for descriptor, reader in self.readers().items():
                    selector.register(descriptor, selectors.EVENT_READ, reader)
                for key, _ in selector.select(min(left, 0.2)):
                    if key.fileobj is self._signals:
                        self._signals.clear()
                    else:
                        key.data.read(key.fd)
            for node in self._nodes:
                node.check_silence()

    def _beat(self) -> None:
        """Let the agents know that the launcher is there, also while it waits for its terminal."""
        while not self._is_over.wait(BEAT):
            for node in self._nodes:
                node.beat()


def _command(across: Across, node: Node) -> Sequence[str]:
    """Return by what the agent of a machine is started."""
    if not across.hosts:
        return [sys.executable, "-m", AGENT]
    agent = shlex.join([sys.executable, "-m", AGENT])
    line = f"cd {shlex.quote(os.getcwd())} && exec {agent}"
    return [*across.ssh, "-o", "BatchMode=yes", node.host.target, line]


def _address_of(node: Node, across: Across, came_to: str) -> str | None:
    """Return where the other machines reach one that is there; None if nobody knows."""
    assert node.said is not None
    if across.hosts:
        given = node.host.address or node.host.name
        return resolve(given) or resolve(node.said.reached_at)
    return resolve(node.said.address if node.number else across.address or came_to)
