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
        How many processes of each kind.
    engine : str
        'dist_sync', which has servers and a scheduler, or 'sockets', which has neither.
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


@dataclass(frozen=True)
class Order:
    """One process that is to be started."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_worker: bool = True


def orders_of(options: Options, attempt: int) -> list[Order]:
    """Return the processes of the start number `attempt`, with new ports and a new key."""
    base = {name: value for name, value in os.environ.items() if name not in OWN_NAMES}
    base |= {environment.ATTEMPT: str(attempt)}
    if options.threads is not None:
        base["OMP_NUM_THREADS"] = str(options.threads)
    worker = [sys.executable, *options.command]
    if options.workers == 1:
        alone = base | {environment.RANK: "0", environment.SIZE: "1", **options.variables}
        return [Order("worker 0", worker, alone)]
    # Lines are to be seen when they are printed, though they go through a pipe.
    base = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads_of(options)), **base}
    has_servers = options.engine == "dist_sync"
    port, root = free_ports(2)
    if has_servers:
        base |= {
            "DMLC_PS_ROOT_URI": HOST,
            "DMLC_PS_ROOT_PORT": str(root),
            "DMLC_NUM_SERVER": str(options.servers),
            "DMLC_NUM_WORKER": str(options.workers),
            "DMLC_NODE_HOST": HOST,
        }
    base |= options.variables
    orders = _servers(options, base) if has_servers else []
    common = base | {
        environment.SIZE: str(options.workers),
        environment.ADDRESS: f"{HOST}:{port}",
        environment.KEY: secrets.token_hex(32),
        environment.ENGINE: options.engine,
        environment.EXACT: str(int(options.exact)),
    }
    if has_servers:
        common["DMLC_ROLE"] = "worker"
    orders += [
        Order(f"worker {rank}", worker, common | {environment.RANK: str(rank)})
        for rank in range(options.workers)
    ]
    return orders


def _servers(options: Options, base: Mapping[str, str]) -> list[Order]:
    command = [sys.executable, "-m", SERVER]
    orders = [Order("scheduler", command, {**base, "DMLC_ROLE": "scheduler"}, is_worker=False)]
    for number in range(options.servers):
        variables = {**base, **environment.SERVER_ENVIRONMENT, "DMLC_ROLE": "server"}
        orders.append(Order(f"server {number}", command, variables, is_worker=False))
    return orders


def threads_of(options: Options) -> int:
    """Return how many threads a process gets: an even share of the cores that may be used."""
    if options.threads is not None:
        return options.threads
    return max(1, len(os.sched_getaffinity(0)) // options.workers)


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens at; somebody may come before they are used."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
