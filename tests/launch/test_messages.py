"""What goes between launcher and agents: whole, in order, and from nobody else."""

import os
import socket
import struct
import threading

import pytest
from gluon_svrg.launch.messages import (
    MARK,
    AnotherKeyError,
    Channel,
    RefusedError,
    Seal,
    bytes_of,
    derived,
    greet,
    introduce,
    text_of,
)

KEY = b"a key of the job"


def pair(sealed=False, has_mark=False):
    """Two channels that are connected."""
    one, other = socket.socketpair()
    seals = [Seal(KEY, is_master=True), Seal(KEY, is_master=False)] if sealed else [None, None]
    ends = [own.detach() for own in (one, other)]
    return Channel(ends[0], ends[0], seals[0]), Channel(
        ends[1], ends[1], seals[1], has_mark=has_mark
    )


@pytest.mark.parametrize("sealed", [False, True])
def test_messages_come_whole_and_in_order(sealed):
    one, other = pair(sealed)
    sent = [{"do": "it", "n": n, "data": "x" * 7000 * (n % 5)} for n in range(40)]
    came = []
    for message in sent:
        one.send(message)
    while len(came) < len(sent):
        one.flush()
        came += other.receive()
    assert came == sent
    other.send({"is": "back"})
    assert one.receive() == [{"is": "back"}]
    one.close()
    assert other.receive() == []
    assert other.closed == "its agent has closed the connection"
    other.close()


def test_who_goes_with_something_unread_has_closed_the_connection():
    one, other = pair()
    other.send({"what": "is not read"})
    one.close()
    with pytest.raises(ConnectionResetError):
        os.read(other.fileno(), 1)
    other.close()
    one, other = pair()
    other.send({"what": "is not read"})
    one.close()
    assert other.receive() == []
    assert other.closed == "its agent has closed the connection"
    other.close()


def test_all_bytes_are_carried():
    data = bytes(range(256)) * 3
    one, other = pair()
    one.send({"data": text_of(data)})
    assert bytes_of(other.receive()[0]["data"]) == data


def test_texts_that_are_no_unicode_are_carried():
    words = [os.fsdecode(data) for data in (b"\xff", b"\xc3\xa9", b"a\xed\xa0\x80", b"")]
    for sealed in (False, True):
        one, other = pair(sealed)
        one.send({"arguments": words})
        assert other.receive() == [{"arguments": words}]
        one.close()
        other.close()


def test_who_does_not_read_keeps_nobody_waiting():
    one, other = pair()
    for _ in range(50):
        one.send({"data": "x" * 100_000})
    assert one.pending > 1_000_000
    one.close()
    one.send({"data": "late"})
    assert one.pending == 0
    other.close()


def test_what_a_shell_prints_before_is_dropped():
    one, other = pair(has_mark=True)
    os.write(one.fileno(), b"Welcome!\n\0\n\0gluon")
    assert other.receive() == []
    one.begin()
    one.send({"is": "hello"})
    assert other.receive() == [{"is": "hello"}]
    one.close()
    other.close()


def raw(body):
    return len(body).to_bytes(4, "big") + body


GARBAGE = {
    "no message": b"GET / HTTP/1.1\r\n\r\n" * 3,
    "too long": b"\xff" * 8,
    "no JSON": raw(b"{"),
    "no dict": raw(b"[1, 2]"),
    "deep": raw(b"[" * 100_000),
    "no text": raw(b"\xff\xfe"),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("sealed", [False, True])
def test_garbage_closes_the_channel(data, sealed):
    one, other = pair(sealed)
    os.write(one.fileno(), data)
    while other.closed is None:
        assert other.receive() == []
    assert "the connection had" in other.closed
    assert other.receive() == []
    one.close()
    other.close()


def test_a_long_message_of_no_agent():
    one, other = pair(has_mark=True)
    os.write(one.fileno(), b"x" * 70_000)
    other.receive()
    assert other.closed == "the connection had no agent at its other end"
    one.close()
    other.close()


class TestSeal:
    """A code fits one message, at one place, in one direction, on one connection."""

    def ends(self):
        return Seal(KEY, is_master=True), Seal(KEY, is_master=False)

    def test_what_is_sent_is_taken(self):
        master, agent = self.ends()
        for text in (b"one", b"", b"one"):
            assert agent.open(master.close(text)) == text
            assert master.open(agent.close(text)) == text

    def refused(self, seal, data):
        with pytest.raises(RefusedError, match="that the other side has not sent"):
            seal.open(data)

    def test_changed(self):
        master, agent = self.ends()
        data = master.close(b"start this")
        self.refused(agent, b"start that" + data[10:])

    def test_repeated(self):
        master, agent = self.ends()
        data = master.close(b"one")
        agent.open(data)
        self.refused(agent, data)

    def test_left_out(self):
        master, agent = self.ends()
        master.close(b"one")
        self.refused(agent, master.close(b"two"))

    def test_sent_back(self):
        master, _ = self.ends()
        self.refused(master, master.close(b"one"))

    def test_of_another_connection(self):
        master, _ = self.ends()
        self.refused(Seal(b"another", is_master=False), master.close(b"one"))

    @pytest.mark.parametrize("data", [b"", b"x" * 31, b"x" * 32, b"x" * 100])
    def test_injected(self, data):
        self.refused(self.ends()[1], data)


def handshake(master_key, agent_key):
    """What `greet` and `introduce` return or raise, over a socket."""
    one, other = socket.socketpair()
    found = {}

    def master():
        try:
            found["master"] = greet(one, master_key)
        except Exception as error:
            found["master"] = error
            one.close()

    thread = threading.Thread(target=master)
    thread.start()
    try:
        seal = introduce(other, agent_key)
        other.sendall(raw(seal.close(b'{"is": "hello"}')))
        found["agent"] = seal
    except Exception as error:
        found["agent"] = error
    thread.join()
    one.close()
    other.close()
    return found


def test_both_know_the_key():
    found = handshake(KEY, KEY)
    seal, said = found["master"]
    assert said == {"is": "hello"}
    assert found["agent"].open(seal.close(b"x")) == b"x"


def test_another_key():
    found = handshake(KEY, b"another key")
    assert isinstance(found["agent"], AnotherKeyError)
    assert isinstance(found["master"], AnotherKeyError)


@pytest.mark.parametrize("length", [0, len(MARK), len(MARK) + 32, len(MARK) + 63])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_listener_that_dies_in_the_handshake_may_have_the_key(length, is_reset):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        one = listener.accept()[0]
    one.sendall((MARK + b"c" * 32 + b"p" * 32)[:length])
    if is_reset:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    else:
        one.shutdown(socket.SHUT_WR)
    with other, one, pytest.raises((EOFError, ConnectionError)):
        introduce(other, KEY)


def test_a_listener_that_does_not_know_the_key():
    one, other = socket.socketpair()
    one.sendall(MARK + b"c" * 32 + b"p" * 32)
    with pytest.raises(AnotherKeyError):
        introduce(other, KEY)
    one.close()
    other.close()


def test_a_listener_that_is_none():
    one, other = socket.socketpair()
    one.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
    with pytest.raises(RefusedError, match="another program"):
        introduce(other, KEY)
    one.close()
    other.close()


def test_derived_keys_differ():
    assert derived(KEY, "1") != derived(KEY, "2") != derived(b"another", "2")
    assert len(bytes.fromhex(derived(KEY, "1"))) == 32
