"""The hosts of a job: which are available, and how many workers each gets."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_LINE = re.compile(r"([A-Za-z0-9_][\w.-]*)(?::([1-9]\d*))?")
_PAUSE = 2.0
"""Seconds between two attempts to reach a host."""
_CONNECT_TIMEOUT = 10
"""Seconds that ssh may take to connect."""
_SSH_FAILED = 255
"""The exit code of ssh if it cannot connect. Otherwise it is that of the remote command."""


def read_hosts(path: Path) -> dict[str, int]:
    """Return the number of workers of each host, by its name.

    Parameters
    ----------
    path : path
        A file with a host on each line, ``name`` or ``name:workers``; ``#`` begins a comment.

    Raises
    ------
    ValueError
        If a line does not have this form, if there is no host, or if one is listed twice.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--hosts {str(path)!r} cannot be read: {error}") from None
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{path}, line {number}: a host is 'name' or 'name:workers', got {text!r}; put "
                "user, port and key into ~/.ssh/config"
            )
        if match[1] in hosts:
            raise ValueError(
                f"{path}, line {number}: the host {match[1]!r} is listed twice; write "
                f"'{match[1]}:2' for two workers on it"
            )
        hosts[match[1]] = int(match[2] or 1)
    if not hosts:
        raise ValueError(f"--hosts {str(path)!r} has no host: write one per line")
    return hosts


def worker_count(hosts: Mapping[str, int], all_hosts: Mapping[str, int], workers: int) -> int:
    """Return the number of workers for a part of the hosts, in proportion to their slots."""
    return workers * sum(hosts.values()) // sum(all_hosts.values())


def find_unavailable(hosts: Sequence[str], ssh: str) -> dict[str, str]:
    """Check all hosts in parallel; return why workers cannot start on some of them, by host.

    The reason begins with ``!`` if waiting does not help, because ssh connects, but the host does
    not have the same folder or the same Python.
    """
    python, folder = shlex.quote(sys.executable), shlex.quote(os.getcwd())
    line = f"cd {folder} && exec {python} -c 'import mpi4py'"
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_TIMEOUT}"]
    processes = {
        host: subprocess.Popen(
            [ssh, *options, host, line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for host in hosts
        if not is_local(host)
    }
    reasons = {}
    end = time.monotonic() + 2 * _CONNECT_TIMEOUT
    for host, process in processes.items():
        try:
            _, error = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            reasons[host] = "it does not answer"
            continue
        if process.returncode:
            last = (error.strip().splitlines() or [f"exit code {process.returncode}"])[-1].strip()
            reasons[host] = last if process.returncode == _SSH_FAILED else f"!{last}"
    return reasons


def wait_for_hosts(hosts: Sequence[str], ssh: str, seconds: float) -> dict[str, str]:
    """Wait until all hosts are available; after `seconds`, return why some are not, by host."""
    end = time.monotonic() + seconds
    while True:
        reasons = find_unavailable(hosts, ssh)
        is_waiting_useless = all(reason.startswith("!") for reason in reasons.values())
        if is_waiting_useless or time.monotonic() + _PAUSE > end:
            return {host: reason.removeprefix("!") for host, reason in reasons.items()}
        time.sleep(_PAUSE)


def is_local(host: str) -> bool:
    """Return whether this is the local machine, where mpiexec starts workers without ssh."""
    name = socket.gethostname()
    return host in (name, name.partition(".")[0], "localhost", "127.0.0.1")
