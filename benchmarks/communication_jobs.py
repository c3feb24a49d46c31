"""How the jobs of communication.py are started: by MPI, by PyTorch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Engine(NamedTuple):
    """What adds up.

    Attributes
    ----------
    name : str
        'mpi', or PyTorch's 'gloo'.
    python : str
        The interpreter.
    """

    name: str
    python: str = sys.executable


def engines(torch_python: str | None) -> dict[str, Engine]:
    """Return the engines that there are, by what the tables call them."""
    found = {"**MPI**": Engine("mpi")}
    if torch_python is not None:
        found["PyTorch, Gloo"] = Engine("gloo", python=torch_python)
    return found


def start(
    engine: Engine, workers: int, script: str, arguments: Sequence[str]
) -> list[subprocess.Popen[bytes]]:
    """Start a job of that many workers, a thread each; return its processes.

    Parameters
    ----------
    script : str
        A file in this folder.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [engine.python, str(HERE / script), *arguments]
    if engine.name == "gloo":
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environment |= {"WORLD_SIZE": str(workers)}
        return [_open(command, environment | {"RANK": str(rank)}) for rank in range(workers)]
    launch = [engine.python, "-m", "gluon_svrg.launch", "-n", str(workers), "--max-restarts", "0"]
    return [_open([*launch, *command[1:]], environment)]


def _open(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
