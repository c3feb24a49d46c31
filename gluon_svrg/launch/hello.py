"""Hello: what an agent says of its machine when it comes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from gluon_svrg.launch.messages import Message

_LARGEST = 1 << 16
"""Workers, servers, cores or machines: more are a mistake."""


@dataclass(frozen=True)
class Hello:
    """A machine, in its own words.

    Attributes
    ----------
    host : str
        Its name.
    cores : int
        How many of them may be used.
    reached_at : str
        The address at which ssh has reached it, if it has.
    rank, nodes, workers, servers : int
        What its line says; 0 over ssh, where it has none.
    arguments : str
        By what lines are compared: see `digest_of`.
    address : str
        Where the other machines reach it.
    """

    host: str = ""
    cores: int = 0
    reached_at: str = ""
    rank: int = 0
    nodes: int = 0
    workers: int = 0
    servers: int = 0
    arguments: str = ""
    address: str = ""

    @classmethod
    def of(cls, message: Message) -> Hello:
        """Return what a message says; a ValueError says what is wrong with it."""
        given: Message = {}
        for own in fields(cls):
            value = message.get(own.name, own.default)
            if type(value) is not type(own.default):
                raise ValueError(f"the {own.name} that it names is {value!r:.60}")
            if isinstance(value, str) and not value.isprintable():
                raise ValueError(f"the {own.name} that it names is {value!r:.60}, and no name")
            if isinstance(value, int) and not 0 <= value <= _LARGEST:
                raise ValueError(f"the {own.name} that it names are {value!r:.60}, and no number")
            given[own.name] = value
        found = cls(**given)
        if not found.cores:
            raise ValueError("it does not say how many cores it has")
        return found

    @property
    def message(self) -> Message:
        """What `of` is given."""
        return {"is": "hello", **asdict(self)}


def this_host() -> Hello:
    """Return what there is to say of this machine without any options."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return Hello(
        host=platform.node().encode("ascii", "backslashreplace").decode(),
        cores=len(os.sched_getaffinity(0)),
        reached_at=connection[2] if len(connection) == 4 else "",
    )


def digest_of(command: Sequence[str]) -> str:
    """Return what differs if two command lines do, however long they are."""
    return hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()
