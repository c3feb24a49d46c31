"""Ports for tests that listen some time after they have chosen where."""

import itertools
import os
import socket

FIRST, BLOCKS, SIZE = 16384, 16, 1024


def ports_of_this_process():
    """The ports of one of pytest's workers, in turn; each has a block of its own.

    Linux gives those from 32768 on to programs that ask for any, as all parts of ps-lite do.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST + worker % BLOCKS * SIZE
    for number in itertools.count(os.getpid()):
        yield first + number % SIZE


PORTS = ports_of_this_process()


def free_port(host="127.0.0.1"):
    """Return a free port, which no other test gets meanwhile."""
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("a count has no end")
