"""What a job consists of: its options, and the processes of one start with their environments."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gluon_svrg.launch import environment
from gluon_svrg.launch.hosts import Across

HOST = "127.0.0.1"
SERVER = "gluon_svrg.workers.server"
"""The module that a scheduler or a server runs."""

_PARAMETER_SERVER = (
    "DMLC_ROLE",
    "DMLC_PS_ROOT_URI",
    "DMLC_PS_ROOT_PORT",
    "DMLC_NUM_SERVER",
    "DMLC_NUM_WORKER",
    "DMLC_NODE_HOST",
)
OWN_NAMES = (
    environment.RANK,
    environment.SIZE,
    environment.ADDRESS,
    environment.KEY,
    environment.ENGINE,
    environment.EXACT,
    environment.ATTEMPT,
    environment.PROGRESS,
    environment.JOB_KEY,
    *_PARAMETER_SERVER,
)
"""What the launcher sets: an outer launcher's values go, and ``--env`` may not give them."""


@dataclass(frozen=True)
class Options:
    """What is asked of a job.

    Attributes
    ----------
    command : sequence of str
        The arguments of Python: a script, or ``-m`` and a module, and its own arguments.
    workers, servers : int
        How many processes of each kind; over several machines, on each of them.
    engine : str
        'dist_sync', which has servers and a scheduler, or 'mpi' or 'sockets', which have neither.
    max_restarts : int
        How often everything may be started again.
    progress_timeout : float
        After how many seconds without a step a job counts as hung.
    threads : int, optional
        Of each process; None: the cores divided by the workers, unless OMP_NUM_THREADS is set.
    exact : bool
        Whether sums do not depend on who comes first.
    variables : mapping of str to str
        Of the environment, for all processes.
    log_dir : Path, optional
        Where each process of each start has a file for its output.
    across : Across, optional
        Over which machines it goes; None: this one, without agents.
    """

    command: Sequence[str]
    workers: int
    servers: int = 1
    engine: str = "dist_sync"
    max_restarts: int = 3
    progress_timeout: float = 600.0
    threads: int | None = None
    exact: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    across: Across | None = None


@dataclass(frozen=True)
class Order:
    """One process that is to be started.

    Attributes
    ----------
    name : str
        As in ``worker 0``.
    command : sequence of str
        What to run; the first is Python.
    defaults, variables : mapping of str to str
        Of its environment: what is set where nothing else is, and what is set in any case.
    is_worker : bool
        Whether it is one: else a server or the scheduler.
    node : int
        The number of its machine.
    """

    name: str
    command: Sequence[str]
    defaults: Mapping[str, str]
    variables: Mapping[str, str]
    is_worker: bool = True
    node: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Its whole environment, if this process starts it."""
        base = {name: value for name, value in os.environ.items() if name not in OWN_NAMES}
        return {**self.defaults, **base, **self.variables}


@dataclass(frozen=True)
class Layout:
    """On which machines the processes of a start are.

    Attributes
    ----------
    addresses : sequence of str
        Where the other machines reach each one.
    workers, servers, cores : sequence of int
        How many each has.
    ports : sequence of int
        Two that are free on the first.
    key : str
        What the workers recognise each other by, in hex.
    """

    addresses: Sequence[str]
    workers: Sequence[int]
    servers: Sequence[int]
    cores: Sequence[int]
    ports: Sequence[int]
    key: str


def this_machine(options: Options) -> Layout:
    """Return the layout of a job that is on one machine."""
    cores = len(os.sched_getaffinity(0))
    key = secrets.token_hex(32)
    ports = free_ports(2) if options.workers > 1 else [0, 0]
    return Layout([HOST], [options.workers], [options.servers], [cores], ports, key)


def orders_of(options: Options, attempt: int, layout: Layout | None = None) -> list[Order]:
    """Return the processes of the start number `attempt`, with new ports and a new key.

    The workers are counted machine by machine. Without a layout all are on this machine.
    """
    layout = layout or this_machine(options)
    size = sum(layout.workers)
    base = {environment.ATTEMPT: str(attempt)}
    if options.threads is not None:
        base["OMP_NUM_THREADS"] = str(options.threads)
    worker = [sys.executable, *options.command]
    if size == 1:
        alone = {environment.RANK: "0", environment.SIZE: "1", **options.variables}
        return [Order("worker 0", worker, {}, base | alone)]
    has_servers = options.engine == "dist_sync"
    port, root = layout.ports
    if has_servers:
        base |= {
            "DMLC_PS_ROOT_URI": layout.addresses[0],
            "DMLC_PS_ROOT_PORT": str(root),
            "DMLC_NUM_SERVER": str(sum(layout.servers)),
            "DMLC_NUM_WORKER": str(size),
        }
    orders = _servers(options, base, layout) if has_servers else []
    own = {
        environment.SIZE: str(size),
        environment.ADDRESS: f"{layout.addresses[0]}:{port}",
        environment.KEY: layout.key,
        environment.ENGINE: options.engine,
        environment.EXACT: str(int(options.exact)),
    }
    if has_servers:
        own["DMLC_ROLE"] = "worker"
    nodes = [node for node, number in enumerate(layout.workers) for _ in range(number)]
    for rank, node in enumerate(nodes):
        shared, defaults = _on(node, options, base, layout)
        variables = shared | own | {environment.RANK: str(rank)}
        orders.append(Order(f"worker {rank}", worker, defaults, variables, node=node))
    return orders


def _on(
    node: int, options: Options, base: Mapping[str, str], layout: Layout
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what all processes of a machine have in common, and their defaults."""
    threads = threads_of(options, layout.workers[node], layout.cores[node])
    # Lines are to be seen when they are printed, though they go through a pipe.
    defaults = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    here = {"DMLC_NODE_HOST": layout.addresses[node]} if options.engine == "dist_sync" else {}
    return {**base, **here, **options.variables}, defaults


def _servers(options: Options, base: Mapping[str, str], layout: Layout) -> list[Order]:
    command = [sys.executable, "-m", SERVER]
    shared, defaults = _on(0, options, base, layout)
    variables = {**shared, "DMLC_ROLE": "scheduler"}
    orders = [Order("scheduler", command, defaults, variables, is_worker=False)]
    nodes = [node for node, number in enumerate(layout.servers) for _ in range(number)]
    for number, node in enumerate(nodes):
        shared, defaults = _on(node, options, base, layout)
        variables = {**shared, **environment.SERVER_ENVIRONMENT, "DMLC_ROLE": "server"}
        name = f"server {number}"
        orders.append(Order(name, command, defaults, variables, is_worker=False, node=node))
    return orders


def threads_of(options: Options, workers: int | None = None, cores: int | None = None) -> int:
    """Return how many threads a process gets: an even share of the cores that may be used."""
    if options.threads is not None:
        return options.threads
    cores = cores or len(os.sched_getaffinity(0))
    return max(1, cores // (workers or options.workers))


def free_ports(number: int, host: str = HOST) -> list[int]:
    """Return ports that nobody listens at; somebody may come before they are used."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
