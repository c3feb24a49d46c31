"""How the jobs of communication.py are started: by MPI, by version 0.7.0, by PyTorch."""

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
    """What adds up: MPI here, an engine of version 0.7.0 in `older`, or PyTorch.

    Attributes
    ----------
    name : str
        'mpi', 'dist_sync' or 'sockets', or 'gloo'.
    older : Path, optional
        A checkout of version 0.7.0.
    python : str
        The interpreter.
    """

    name: str
    older: Path | None = None
    python: str = sys.executable


def engines(older: Path | None, torch_python: str | None) -> dict[str, Engine]:
    """Return the engines that there are, by what the tables call them."""
    found = {"**MPI**": Engine("mpi")}
    if older is not None:
        found |= {f"0.7.0, {name}": Engine(name, older) for name in ("mpi", "dist_sync", "sockets")}
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
    launch = [engine.python, "-m", "gluon_svrg.launch", "-n", str(workers)]
    if engine.older is not None:
        environment |= {"PYTHONPATH": f"{engine.older}{os.pathsep}{HERE}"}
        more = ["--max-restarts", "0", "--engine", engine.name, "--threads", "1"]
        # Python looks for a module in the folder where it is started first.
        return [_open([*launch, *more, *command[1:]], environment, engine.older)]
    return [_open([*launch, "--max-restarts", "0", *command[1:]], environment)]


def _open(
    command: list[str], environment: dict[str, str], folder: Path | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
