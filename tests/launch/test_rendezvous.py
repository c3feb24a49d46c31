"""Where machines meet: strangers, machines that say what makes no sense, and a master that dies."""

import signal
import socket
import threading

import pytest
from gluon_svrg.launch.hello import Hello, digest_of, this_host
from gluon_svrg.launch.messages import MARK, Channel, greet, introduce
from gluon_svrg.launch.rendezvous import _MOST_AT_ONCE, Meeting
from launching import until
from machines import KEY, SOCKETS, Lines, write_script

SECRET = KEY.encode()


@pytest.fixture
def meeting():
    meeting = Meeting(("127.0.0.1", 0), SECRET)
    yield meeting
    meeting.close()


def connect(meeting, source="127.0.0.1"):
    address = ("127.0.0.1", meeting._listener.getsockname()[1])
    return socket.create_connection(address, 5, (source, 0))


def say(own, message):
    """Prove the key, and say something; return the channel."""
    seal = introduce(own, SECRET)
    descriptor = own.detach()
    channel = Channel(descriptor, descriptor, seal)
    channel.send(message)
    return channel


def arrivals(meeting, number):
    found = []
    until(lambda: found.extend(meeting.take()) or len(found) >= number)
    return found


def test_strangers_who_say_nothing_keep_no_machine_out(meeting):
    slow = connect(meeting, "127.0.0.2")
    strangers = [connect(meeting) for _ in range(2 * _MOST_AT_ONCE)]
    channels = [say(own, this_host().message) for own in (connect(meeting), slow)]
    assert sorted(found.came_from for found in arrivals(meeting, 2)) == ["127.0.0.1", "127.0.0.2"]
    for own in (*channels, *strangers):
        own.close()


MALFORMED = [
    {"cores": "many"},
    {"cores": True},
    {"cores": 0},
    {"cores": -1},
    {"cores": 10**30},
    {"rank": None},
    {"rank": [1]},
    {"nodes": 2.5},
    {"host": 7},
    {"host": "\ud800"},
    {"address": "\x1b[2J"},
    {"arguments": ["-n", "1"]},
    {"workers": 1 << 40},
]


@pytest.mark.parametrize("changed", MALFORMED, ids=str)
def test_a_machine_that_says_what_makes_no_sense_is_refused(meeting, changed):
    channel = say(connect(meeting), this_host().message | changed)
    (answer,) = until(channel.receive)
    assert answer["do"] == "refuse"
    assert not answer["later"]
    assert answer["text"].startswith("machine 0 does not understand this one, as ")
    assert meeting.take() == []
    channel.close()


def test_a_hello_comes_as_it_was():
    own = Hello("node1", 4, "10.0.0.1", 1, 2, 3, 4, digest_of(["a", "b"]), "10.0.0.2")
    assert Hello.of(own.message) == own
    with pytest.raises(ValueError, match="how many cores"):
        Hello.of({})


def test_digests_of_lines_differ():
    lines = [["a b"], ["a", "b"], ["a", "b", ""], ["a\udcff", "b"], [], [""]]
    assert len({digest_of(line) for line in lines}) == len(lines)


# --- The other side ------------------------------------------------------------------------------


def start(folder, port, *options):
    lines = Lines(folder, "-n", 1, *SOCKETS, *options, write_script(folder, ""))
    lines.port = port
    return lines.start(1)


def served(serve):
    """Let `serve` have each connection to a port; return the listener."""
    listener = socket.create_server(("127.0.0.2", 0))

    def run():
        while True:
            try:
                own, _ = listener.accept()
            except OSError:
                return
            serve(own)

    threading.Thread(target=run, daemon=True).start()
    return listener


def close(listener):
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_master_that_dies_in_the_handshake_has_no_other_key(tmp_path):
    def dies(own):
        own.sendall(MARK + b"c" * 32)
        own.recv(1)
        own.close()

    listener = served(dies)
    with start(tmp_path, listener.getsockname()[1], "--wait", 1) as launched:
        assert launched.finish() == 69, launched.err
    assert "nobody has answered at 127.0.0.2:" in launched.err
    close(listener)


def test_a_signal_while_the_master_says_nothing(tmp_path):
    come = []
    listener = served(lambda own: come.append((own, greet(own, SECRET))))
    with start(tmp_path, listener.getsockname()[1]) as launched:
        until(lambda: come)
        launched.process.send_signal(signal.SIGTERM)
        assert launched.finish(timeout=20) == 143
    close(listener)
    come[0][0].close()
