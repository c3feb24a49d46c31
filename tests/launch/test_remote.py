"""For how long a machine may be silent: only what the launcher could hear counts."""

import socket
import struct
from types import SimpleNamespace

import pytest
from gluon_svrg.launch.hello import Hello
from gluon_svrg.launch.hosts import Host
from gluon_svrg.launch.messages import Channel
from gluon_svrg.launch.remote import Node

LIMIT = 2.0
TURN = 0.05  # between two looks of a launcher that has nothing else to do


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    for module in ("remote", "messages"):
        monkeypatch.setattr(f"gluon_svrg.launch.{module}.time", clock)
    return clock


@pytest.fixture
def machine(clock):
    """A machine that has come, and the agent's end of the connection."""
    ours, theirs = socket.socketpair()
    own = ours.detach()
    node = Node(1, Host("gpu2"), None, None, LIMIT, "place", None)
    node.take(Channel(own, own), Hello(cores=1))
    node.check_silence()
    with theirs:
        yield node, theirs
    node.close()


def listen(node, clock, seconds):
    """Do what the launcher does in its turns: read, and look who is silent."""
    for _ in range(round(seconds / TURN)):
        clock.now += TURN
        for descriptor in node.readers():
            node.read(descriptor)
        node.check_silence()


def message(text):
    return struct.pack(">I", len(text)) + text


def test_who_says_nothing_is_gone_after_the_limit(machine, clock):
    node, _ = machine
    listen(node, clock, LIMIT - TURN)
    assert node.gone is None
    listen(node, clock, 3 * TURN)
    assert node.gone == "is gone: not a word of it for 2 s (--host-timeout)"
    assert node.noticed == LIMIT


def test_who_says_something_stays(machine, clock):
    node, agent = machine
    for _ in range(10):
        agent.sendall(message(b'{"is": "beat"}'))
        listen(node, clock, LIMIT - TURN)
    assert node.gone is None


def test_time_in_which_the_launcher_did_not_listen_is_no_silence(machine, clock):
    """It waits for its terminal; what the agent says has filled the pipe, and no message is whole.

    The agent lets the rest go when there is room again.
    """
    node, agent = machine
    whole = message(b'{"is": "output", "id": 0, "data": "' + 90_000 * b"x" + b'"}')
    listen(node, clock, TURN)
    agent.sendall(whole[:40_000])
    clock.now += 10 * LIMIT
    listen(node, clock, LIMIT / 2)
    assert node.gone is None
    agent.sendall(whole[40_000:])
    listen(node, clock, LIMIT - TURN)
    assert node.gone is None


def test_but_who_is_silent_after_it_is_gone(machine, clock):
    node, _ = machine
    clock.now += 10 * LIMIT
    listen(node, clock, LIMIT)
    assert node.gone is None
    listen(node, clock, 2 * TURN)
    assert "not a word of it" in node.gone


def test_a_closed_connection_is_seen_at_once(machine, clock):
    node, agent = machine
    clock.now += 10 * LIMIT
    agent.shutdown(socket.SHUT_RDWR)
    listen(node, clock, TURN)
    assert node.gone == "is gone: its agent has closed the connection"
