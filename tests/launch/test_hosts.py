"""Several machines: real processes of a few lines, without MXNet; see test_hosts_training.py."""

import json
import os
import re
import secrets
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
from gluon_svrg.launch.messages import MARK
from launching import until
from machines import (
    READY,
    SOCKETS,
    WAIT,
    Lines,
    agents,
    both,
    kill,
    ready,
    without_waiting,
    write_script,
    zombies,
)

HELLO = """
names = ("GLUON_SVRG_RANK", "GLUON_SVRG_ADDRESS", "GLUON_SVRG_KEY", "OMP_NUM_THREADS")
print(*[os.environ.get(name) for name in names], os.environ.get("GLUON_SVRG_JOB_KEY"))
"""


@pytest.fixture
def script(tmp_path):
    return partial(write_script, tmp_path)


def lines_of(path, *options, workers=1, **settings):
    return Lines(path.parent, "-n", workers, *SOCKETS, *options, path, **settings)


# --- The same line on each machine ---------------------------------------------------------------


def test_ranks_addresses_keys_and_logs(script, tmp_path):
    path = script(HELLO)
    lines = lines_of(path, "--log-dir", tmp_path / "logs", workers=2, env={"OMP_NUM_THREADS": "3"})
    with both(lines) as (first, second):
        assert (first.finish(), second.finish()) == (0, 0), first.err + second.err
    said = sorted(line.split() for line in first.out.splitlines())
    assert [words[:3] for words in said] == [["[worker", f"{r}]", str(r)] for r in range(4)]
    assert {words[3].partition(":")[0] for words in said} == {"127.0.0.2"}
    assert len({tuple(words[3:5]) for words in said}) == 1
    assert len(bytes.fromhex(said[0][4])) == 32
    assert {tuple(words[5:]) for words in said} == {("3", "None")}
    assert second.out == ""
    logs = {file.name for file in (tmp_path / "logs").iterdir()}
    assert logs == {f"worker-{rank}-attempt-0.log" for rank in range(4)}


def test_servers_on_each_machine(script, tmp_path):
    (tmp_path / "fake_server.py").write_text(
        "import os, time\nnames = ('ROLE', 'NODE_HOST', 'PS_ROOT_URI', 'NUM_SERVER', 'NUM_WORKER')"
        "\nprint(*[os.environ['DMLC_' + name] for name in names], flush=True)"
        "\nopen(f'{os.getpid()}.up', 'w').close()\ntime.sleep(60)"
    )
    path = script(
        "print(os.environ['DMLC_NODE_HOST'], flush=True)\n"
        "while sum(name.endswith('.up') for name in os.listdir()) < 5: time.sleep(0.01)"
    )
    lines = Lines(tmp_path, "-n", 1, "-s", 2, path, constants={"plan.SERVER": "fake_server"})
    with both(lines) as (first, second):
        assert (first.finish(), second.finish()) == (0, 0), first.err + second.err
    assert sorted(first.out.splitlines()) == [
        "[scheduler] scheduler 127.0.0.2 127.0.0.2 4 2",
        "[server 0] server 127.0.0.2 127.0.0.2 4 2",
        "[server 1] server 127.0.0.2 127.0.0.2 4 2",
        "[server 2] server 127.0.0.3 127.0.0.2 4 2",
        "[server 3] server 127.0.0.3 127.0.0.2 4 2",
        "[worker 0] 127.0.0.2",
        "[worker 1] 127.0.0.3",
    ]


def test_a_worker_of_another_machine_is_killed(script):
    path = script(f"{READY}\nif rank and not attempt: time.sleep(300)\ntime.sleep(1)")
    with both(lines_of(path)) as (first, second):
        kill(ready(first)["worker 1"])
        assert (first.finish(), second.finish()) == (0, 0), first.err
    match = re.search(
        r"launch: worker 1 on node 1 \(process \d+\) was ended by SIGKILL, by somebody or for want "
        r"of memory; seen within (\d\.\d\d) s, the others ended \d\.\d\d s later",
        first.err,
    )
    assert match, first.err
    assert "restart 1 of at most 3" in first.err


def test_an_exception_on_another_machine(script):
    path = script("step()\nif rank: raise ValueError('no such thing')\ntime.sleep(60)")
    with both(lines_of(path, "--max-restarts", 0)) as (first, second):
        assert (first.finish(), second.finish()) == (1, 1)
    assert "ended with exit code 1: ValueError: no such thing; seen" in first.err
    last = first.err.split("the last that worker 1 on node 1 said:")[1]
    assert "Traceback (most recent call last)" in last
    assert "launch: the job has ended with exit code 1: see what node 0 says" in second.err


def test_a_machine_goes_and_comes_again(script):
    path = script(f"{READY}\ntime.sleep(0.5 if attempt else 300)")
    lines = lines_of(path)
    with lines.start(0) as first:
        with lines.start(1) as second:
            ready(first)
            begin = time.monotonic()
            second.process.kill()
            until(lambda: len(first.processes()) <= 4)  # two launchers, two keepers
            assert time.monotonic() - begin < 3
            assert second.left() == []
        with lines.start(1) as third:
            assert (first.finish(), third.finish()) == (0, 0), first.err + third.err
    assert "launch: node 1 is gone: its agent has closed the connection; seen" in first.err
    assert "restart 1 of at most 3" in first.err


def test_a_machine_that_does_not_come_again(script):
    with both(lines_of(script(WAIT), "--wait", 6)) as (first, second):
        ready(first)
        second.process.kill()
        assert first.finish() == 69
    assert "launch: node 1 has not come within 6 s (--wait): start the same line" in first.err


def test_a_machine_that_is_silent(script):
    with both(lines_of(script(WAIT), "--wait", 6, "--host-timeout", 2)) as (first, second):
        ready(first)
        second.process.send_signal(signal.SIGSTOP)
        assert first.finish() == 69
        assert "node 1 is gone: not a word of it for 2 s (--host-timeout); seen" in first.err
        second.process.send_signal(signal.SIGCONT)
        assert second.finish() == 75
        assert second.left() == []
    assert "launch: the launcher is gone, and all that it has started here is ended" in second.err


def test_the_launcher_is_killed(script):
    path = script(f"subprocess.Popen(['sleep', '300'])\n{WAIT}")
    with both(lines_of(path)) as (first, second):
        ready(first)
        first.process.kill()
        assert first.left() == []
        assert second.finish() == 75
        assert second.left() == []
    assert "launch: the launcher is gone" in second.err


def test_the_launcher_is_silent(script):
    with both(lines_of(script(WAIT), "--host-timeout", 2)) as (first, second):
        ready(first)
        first.process.send_signal(signal.SIGSTOP)
        assert second.finish() == 75
        assert "no word of the launcher for 2 s" in second.err
        first.process.kill()


def test_nobody_reads_the_output_for_a_while(script):
    """The launcher waits for its terminal, and the agents do not take it for dead."""
    path = script("for i in range(20000): print(i, 'x' * 50)\nstep()\nprint('ready', rank)")
    with both(lines_of(path, "--host-timeout", 2)) as (first, second):
        time.sleep(5)
        assert (first.finish(), second.finish()) == (0, 0), first.err + second.err
    assert len(first.out.splitlines()) == 2 * 20001, first.err + second.err
    assert without_waiting(first.err) == ""


def test_what_an_agent_leaves_behind_is_no_zombie_of_the_launcher(script):
    with both(lines_of(script(WAIT))) as (first, _):
        ready(first)
        kill(agents(first)[""])
        ready(first)
        assert zombies(first.process.pid) == []


LONG = """
print(len(sys.argv), len(sys.argv[2]), os.fsencode(sys.argv[1]), os.environb[b"ODD"], flush=True)
"""


def test_arguments_that_are_long_and_no_text(script):
    """They come as the bytes that they are, to each machine."""
    odd = os.fsdecode(b"\xff\xc3\xa9\xed\xa0\x80")
    path = script(LONG)
    lines = Lines(path.parent, "-n", 1, *SOCKETS, "--env", f"ODD={odd}", path, odd, "x" * 100_000)
    with both(lines) as (first, second):
        assert (first.finish(), second.finish()) == (0, 0), first.err + second.err
    said = f"3 100000 {os.fsencode(odd)} {os.fsencode(odd)}"
    assert sorted(first.out.splitlines()) == [f"[worker {rank}] {said}" for rank in range(2)]


POLITE = """
def end(number, _):
    print("told", number, flush=True)
    time.sleep(0.2)
    sys.exit(0)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
"""


@pytest.mark.parametrize("to", [[1], [0, 1]])
def test_a_signal_to_any_machine_is_handed_to_all_workers_once(script, to):
    with both(lines_of(script(POLITE + WAIT))) as job:
        ready(job[0])
        for rank in to:
            job[rank].process.send_signal(signal.SIGTERM)
        assert [launched.finish() for launched in job] == [143, 143], job[0].err
    assert sorted(job[0].out.splitlines()) == ["[worker 0] told 15", "[worker 1] told 15"]


def test_ctrl_c_while_a_machine_is_waited_for(script):
    with lines_of(script(WAIT)).start(0) as first:
        # Its own agent may be on its way, too.
        wanted = r"waiting for (node 0, )?node 1 \(300 s, --wait\)"
        assert re.search(wanted, first.process.stderr.readline())
        first.process.send_signal(signal.SIGINT)
        assert first.finish() == 130


# --- Who is not of the job -----------------------------------------------------------------------


def send(port, data):
    """Send something to the launcher; return what it has answered when it closes."""
    answer = b""
    with socket.create_connection(("127.0.0.2", port), 10) as own, suppress(OSError):
        own.sendall(data)
        own.shutdown(socket.SHUT_WR)
        while some := own.recv(4096):
            answer += some
    return answer


def test_strangers_are_refused_and_the_job_goes_on(script):
    path = script(f"{READY}\nwait_for('end')")
    lines = lines_of(path)
    with Between(lines) as between, lines.start(0) as first, between.start(1) as second:
        ready(first)
        assert send(lines.port, b"").startswith(MARK)
        for data in (b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(5000), between.said):
            send(lines.port, data)
        with lines.start(1, key="another key of the same length") as stranger:
            assert stranger.finish() == 2
        assert "has another key: GLUON_SVRG_JOB_KEY must be the same" in stranger.err
        with lines.start(1, "--wait", 0.5) as twice:
            assert twice.finish() == 69
        assert "--node-rank 1 is there already, from 127.0.0.3" in twice.err
        (path.parent / "end").touch()
        assert (first.finish(), second.finish()) == (0, 0), first.err
    assert without_waiting(first.err) == ""


def test_an_injected_message_is_not_obeyed(script, tmp_path):
    """Whoever is in between can break the connection, and no more."""
    lines = lines_of(script(WAIT), "--wait", 6)
    stranger = script("open('obeyed', 'w')", "stranger.py")
    order = {"do": "start", "id": 9, "name": "x", "arguments": [str(stranger)], "defaults": {}}
    body = json.dumps(order | {"variables": {}, "is_worker": False, "salt": ""}).encode()
    with Between(lines) as between, lines.start(0) as first, between.start(1) as second:
        ready(first)
        between.near.sendall((len(body) + 32).to_bytes(4, "big") + body + bytes(32))
        assert second.finish() == 75
        assert first.finish() == 69
    assert "node 1 is gone" in first.err
    assert not (tmp_path / "obeyed").exists()


class Between:
    """Stands between a machine and the launcher, and keeps what the machine has said."""

    def __init__(self, lines):
        self._lines = lines
        self._target = lines.port
        self.said = b""
        self._listener = socket.create_server(("127.0.0.2", 0))

    def start(self, rank):
        self._lines.port = self._listener.getsockname()[1]
        started = self._lines.start(rank)
        self._lines.port = self._target
        threading.Thread(target=self._carry, daemon=True).start()
        return started

    def _carry(self):
        self.near, _ = self._listener.accept()
        self.far = until(self._reached)
        with suppress(OSError):
            while True:
                for own in select.select([self.near, self.far], [], [])[0]:
                    data = own.recv(65536)
                    if own is self.near:
                        self.said += data
                    if not data:
                        self.__exit__()
                        return
                    (self.far if own is self.near else self.near).sendall(data)

    def _reached(self):
        with suppress(OSError):  # the launcher may not listen yet
            return socket.create_connection(("127.0.0.2", self._target), 10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for own in (self._listener, self.near, self.far):
            own.close()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes": 3}, "--nodes is 3 there and 2 on machine 0"),
        ({"arguments": ["-n", "1", "other.py"]}, "the script, or what it is given, is another one"),
    ],
)
def test_lines_that_differ(script, changed, said):
    path = script(WAIT)
    script("", "other.py")
    lines = lines_of(path, "--wait", 20)
    with lines.start(0) as first, lines.start(1, **changed) as second:
        assert second.finish() == 2
        assert said in second.err
        first.process.send_signal(signal.SIGINT)
        assert first.finish() == 130


def test_a_port_that_is_taken(script):
    lines = lines_of(script(WAIT))
    with socket.create_server(("127.0.0.2", lines.port)), lines.start(0) as first:
        assert first.finish() == 69
    assert f"node 0 cannot listen at 127.0.0.2:{lines.port}: Address already in use" in first.err
