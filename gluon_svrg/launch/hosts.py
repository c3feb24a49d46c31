"""Over which machines a job goes: hosts.txt, addresses, the key of a job."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gluon_svrg.launch.environment import JOB_KEY

SILENCE = 5.0
"""Seconds without a word after which a host counts as gone. A word comes each 0.2 s, so one would
do on idle machines; on a host whose cores are all busy a process may wait for longer. What dies
closes its connection, which is seen at once: only a host without power or network is silent."""
BEAT = 0.2
"""Seconds from one sign of life to the next."""
WAIT = 300.0
"""Seconds in which the machines of a job have to come, as long as a queue or a boot may take."""
HOST_OF_ONE = "127.0.0.1"
"""The address of a machine that is alone."""
UNAVAILABLE = 69
"""The exit code of a job whose machines are gone, or have not come (EX_UNAVAILABLE)."""
_SHORTEST_KEY = 16
_TARGET = re.compile(r"(?:[\w.-]+@)?\w[\w.-]*")


@dataclass(frozen=True)
class Host:
    """A machine that is reached by ssh.

    Attributes
    ----------
    target : str
        What ssh is given: ``name`` or ``user@name``.
    slots : int, optional
        How many workers it has; None: as many as the others.
    address : str, optional
        Where the other machines reach it; None: what its name resolves to.
    """

    target: str
    slots: int | None = None
    address: str | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.target.rpartition("@")[2]


@dataclass(frozen=True)
class Across:
    """How a job goes over several machines: by ssh, or by the same line on each.

    Attributes
    ----------
    hosts : sequence of Host
        Those that are reached by ssh; empty: the same line is started on each.
    ssh : sequence of str
        The command that takes the place of ssh.
    nodes, rank : int
        How many machines there are, and which this one is.
    master : tuple of str and int
        Where machine 0 listens.
    address : str, optional
        Where the other machines reach this one; None: from where it reaches machine 0.
    key : bytes
        What the machines recognise each other by.
    wait : float
        For how many seconds to wait for a machine.
    silence : float
        After how many seconds without a word a machine counts as gone.
    """

    hosts: Sequence[Host] = ()
    ssh: Sequence[str] = ("ssh",)
    nodes: int = 1
    rank: int = 0
    master: tuple[str, int] = ("", 0)
    address: str | None = None
    key: bytes = field(default=b"", repr=False)
    wait: float = WAIT
    silence: float = SILENCE


def read_hosts(path: Path) -> list[Host]:
    """Return the hosts of a file, one a line: ``user@name slots=3 address=10.0.0.3  # comment``.

    Raises
    ------
    ValueError
        If it cannot be read, or says what makes no sense; with the number of the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(
            f"--hosts {str(path)!r} cannot be read: {reason}; name a file with a host a line"
        ) from None
    hosts: list[Host] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _host(words, f"line {number} of {path}")
        if host.name in [other.name for other in hosts]:
            raise ValueError(
                f"line {number} of {path} has {host.name!r} once more: a host has one line; "
                "slots=N says how many workers it has"
            )
        hosts.append(host)
    if not hosts:
        raise ValueError(f"{path} names no host: write one a line, as in node1 or user@node2")
    return hosts


def _host(words: Sequence[str], where: str) -> Host:
    if not _TARGET.fullmatch(words[0]):
        raise ValueError(
            f"{where} must begin with a host, got {words[0]!r}: a name, an IPv4 address, or "
            "user@name"
        )
    slots: int | None = None
    address: str | None = None
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name == "slots" and value.isdecimal() and int(value) > 0:
            slots = int(value)
        elif name == "address" and value:
            address = value
        else:
            raise ValueError(
                f"{where} has {word!r}, which is neither slots=N, from 1 on, nor address=A: "
                "mend it, or make it a # comment"
            )
    return Host(words[0], slots, address)


def endpoint(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; a ValueError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(
            f"--master must be HOST:PORT, got {text!r}: where machine 0 listens, as in node0:29500"
        )
    return host, int(port)


def key_of_job() -> bytes:
    """Return the key that the environment has; a ValueError if it has none that is one."""
    key = os.environ.get(JOB_KEY, "")
    if len(key) < _SHORTEST_KEY:
        got = f"got {len(key)} characters" if key else "it is not set"
        raise ValueError(
            f"{JOB_KEY} must have at least {_SHORTEST_KEY} characters in the environment of every "
            f"machine, {got}: the machines recognise each other by it, and run what they are "
            f"told; make one by export {JOB_KEY}=$(openssl rand -hex 32), the same for all"
        )
    return key.encode()


def resolve(name: str) -> str | None:
    """Return the IPv4 address of a name; None if it has none."""
    if not name:
        return None
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return str(found[0][4][0])


def unreachable(addresses: Sequence[str]) -> tuple[int, str] | None:
    """Return the number of a machine that the others cannot reach at its address, and why."""
    inner = [ipaddress.ip_address(address).is_loopback for address in addresses]
    if all(inner) or not any(inner):
        return None
    number = inner.index(True)
    return number, (
        f"has the address {addresses[number]}, at which no other machine reaches it: name another "
        "by address=... in the file of --hosts, or by --address on that machine"
    )
