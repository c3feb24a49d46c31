"""Several machines: by a stand-in for ssh, and by an sshd on each of two loopback addresses."""

import re
import signal
import time

import pytest
from gluon_svrg.launch import hosts as hosts_module
from gluon_svrg.launch.hosts import wait_for_hosts, worker_count
from launching import PROLOGUE, Launched, launch
from ports import free_port
from sshds import ADDRESSES, PROGRAMS, Hosts

pytestmark = pytest.mark.full

pytest.importorskip("mpi4py")

# --- Which hosts answer -------------------------------------------------------------------------

FAKE = """\
#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
echo "$1" >>asked
[ "$1" = down ] && {{ echo "ssh: connect to host down port 22: No route to host" >&2; exit 255; }}
[ "$1" = late ] && [ "$(grep -c late asked)" -lt 3 ] && exit 255
[ "$1" = other ] && {{ echo "sh: 1: cd: can't cd to /x" >&2; exit 2; }}
[ "$1" = silent ] && exec sleep 60
exec sh -c "$2"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    path = tmp_path / "fake_ssh"
    path.write_text(FAKE.format())
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts_module, "_PAUSE", 0.05)
    return str(path)


def test_hosts_that_answer(ssh):
    assert wait_for_hosts(["a", "b"], ssh, 1) == {}


def test_a_host_that_cannot_be_reached_is_tried_again(ssh, tmp_path):
    said = {"down": "ssh: connect to host down port 22: No route to host"}
    assert wait_for_hosts(["a", "down"], ssh, 2) == said
    assert (tmp_path / "asked").read_text().count("down") > 1


def test_a_host_that_is_on_its_way(ssh):
    assert wait_for_hosts(["late"], ssh, 20) == {}


def test_a_host_on_which_nothing_can_start_is_not_tried_again(ssh, tmp_path):
    begin = time.monotonic()
    assert wait_for_hosts(["other"], ssh, 60) == {"other": "sh: 1: cd: can't cd to /x"}
    assert time.monotonic() - begin < 30
    assert (tmp_path / "asked").read_text() == "other\n"


def test_a_host_that_says_nothing(ssh, monkeypatch):
    monkeypatch.setattr(hosts_module, "_CONNECT_TIMEOUT", 0.5)
    assert wait_for_hosts(["silent"], ssh, 1) == {"silent": "it does not answer"}


def test_this_machine_needs_no_ssh(ssh, tmp_path):
    assert wait_for_hosts(["localhost"], ssh, 1) == {}
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("some", "workers", "wanted"),
    [({"a": 2}, 4, 2), ({"a": 2, "b": 2}, 4, 4), ({"a": 1}, 7, 2), ({"a": 3}, 5, 3)],
)
def test_workers_in_proportion(some, workers, wanted):
    assert worker_count(some, {"a": some["a"], "b": 2}, workers) == wanted


# --- Over a real sshd ---------------------------------------------------------------------------


@pytest.fixture
def hosts(tmp_path):
    """Start two sshds."""
    if None in PROGRAMS.values():
        pytest.skip("there is no sshd, ssh and ssh-keygen")
    found = Hosts(tmp_path, free_port(ADDRESSES[0]))
    try:
        if reason := found.let_in():
            pytest.skip(f"an own sshd does not let in: {reason}")
        yield found
    finally:
        found.end()


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(PROLOGUE + text)
        return path

    return write


READY = """
from mpi4py import MPI
size = MPI.COMM_WORLD.size
print("ready", os.getpid(), "of", size, os.getcwd(), flush=True)
"""
WAIT = READY + "if attempt: sys.exit()\nwhile True: meet(); time.sleep(0.1)"


def ready(launched, workers=2):
    """Wait until the workers are there; return their processes by rank."""
    found = {}
    for line in launched.process.stdout:
        if match := re.match(r"\[worker (\d+)\] ready (\d+)", line):
            found[int(match[1])] = int(match[2])
        if len(found) == workers:
            return found
    raise AssertionError(launched.process.stderr.read())


def test_over_ssh(script, hosts, tmp_path):
    hosts.file.write_text("127.0.0.2:1\n127.0.0.3:2\n")
    path = script(READY + "print(rank, os.environ['OF_MINE'], os.environ.get('UCX_TLS'))\nmeet()")
    env = {"OF_MINE": "handed on"}
    done = launch(tmp_path, *hosts.options, "-n", "auto", path, env=env)
    assert done.code == 0, done.err
    for rank in range(3):
        assert f"[worker {rank}] {rank} handed on None" in done.out
    assert done.out.count(f"of 3 {tmp_path}") == 3


def test_a_failure_names_the_host(script, hosts, tmp_path):
    path = script("meet()\nif rank: raise ValueError('me')\ntime.sleep(60)")
    done = launch(tmp_path, *hosts.options, "--max-restarts", 0, "-n", 2, path)
    assert done.code == 1
    said = r"launch: worker 1 \(process \d+ on 127\.0\.0\.3\) failed: ValueError: me"
    assert re.fullmatch(said, done.err.splitlines()[-1]), done.err


def test_a_worker_on_another_host_is_killed(script, hosts, tmp_path):
    path = script("meet()\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(60)")
    done = launch(tmp_path, *hosts.options, "--max-restarts", 0, "-n", 2, path)
    assert done.code == 137, done.err + done.out
    said = r"launch: worker 1 \(process \d+ on 127\.0\.0\.3\) was killed by SIGKILL"
    assert re.match(said, done.err.splitlines()[-1]), done.err


def test_a_worker_on_another_host_cannot_start(script, hosts, tmp_path):
    """Its Python has no such package: it ends before MPI, by a signal of its shell.

    If that is early enough, mpiexec does not end the worker of the other host.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.environ.get('PMI_RANK') == '1' and '-c' in sys.orig_argv: os._exit(1)\n"
    )
    path = script("print('here')\n")
    env = {"PYTHONPATH": str(tmp_path)}
    done = launch(tmp_path, *hosts.options, "--max-restarts", 0, "-n", 2, path, env=env)
    assert done.code != 0
    said = r"(a worker on 127\.0\.0\.3, before MPI started, was killed|exited before the workers)"
    assert re.search(said, done.err.splitlines()[-1]), done.err
    assert "here" not in done.out


def test_a_whole_host_dies_and_comes_back(script, hosts, tmp_path):
    path = script(WAIT)
    with Launched(tmp_path, *hosts.options, "-n", 2, path) as launched:
        ready(launched)
        hosts.hosts[1].die()
        hosts.hosts[1].start()
        assert launched.finish() == 0, launched.err
    assert "restarting all workers: restart 1 of at most 3" in launched.err
    assert launched.out.count("of 2") == 2


def test_a_host_that_does_not_come_back_is_left_out(script, hosts, tmp_path):
    path = script(WAIT)
    options = (*hosts.options, "--wait", 3, "--min-workers", 1)
    with Launched(tmp_path, *options, "-n", 2, path) as launched:
        ready(launched)
        hosts.hosts[1].die()
        assert launched.finish() == 0, launched.err
    assert re.search(
        r"launch: 127\.0\.0\.3 cannot start workers: .*Connection refused", launched.err
    )
    assert "launch: continuing with 1 workers on 127.0.0.2" in launched.err
    assert launched.out.count("of 1") == 1


@pytest.mark.parametrize("options", [(), ("--min-workers", 2)])
def test_a_host_that_does_not_come_back_ends_the_job(script, hosts, tmp_path, options):
    path = script(WAIT)
    with Launched(tmp_path, *hosts.options, "--wait", 3, *options, "-n", 2, path) as launched:
        ready(launched)
        hosts.hosts[1].die()
        assert launched.finish() == 69, launched.err
    assert "1 of 2 hosts can start workers after 3 s (--wait)" in launched.err.splitlines()[-1]


def test_a_host_that_never_came(script, hosts, tmp_path):
    hosts.file.write_text("127.0.0.2\n127.0.0.4\n")
    options = (*hosts.options, "--wait", 3, "--min-workers", 1)
    done = launch(tmp_path, *options, "-n", 2, script("print('here')"))
    assert done.code == 69
    assert "127.0.0.4 cannot start workers: ssh: connect to host 127.0.0.4 port" in done.err
    assert "here" not in done.out


def test_a_host_falls_silent(script, hosts, tmp_path):
    """Its workers end the job by their limit on the other host; mpiexec would wait for it."""
    watched = """
from gluon_svrg.workers.progress import start_timer
def step():
    start_timer()
    meet()
"""
    path = script(watched + WAIT.replace("meet()", "step()"))
    fast = {"attempt.SHUTDOWN_TIMEOUT": 2.0}
    line = (*hosts.options, "--progress-timeout", 4, "--wait", 30, "-n", 2, path)
    with Launched(tmp_path, *line, constants=fast) as launched:
        ready(launched)
        hosts.hosts[1].send(signal.SIGSTOP)
        for text in launched.process.stderr:
            if "no step was completed within --progress-timeout" in text:
                break
        # It is a host without power by then, which is started anew.
        hosts.hosts[1].die()
        hosts.hosts[1].start()
        assert launched.finish() == 0, launched.err
    assert re.search(r"no stack was printed by worker 1 \(process \d+ on 127\.0\.0\.3\)", text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_other_hosts_once(script, hosts, tmp_path, number):
    path = script(
        """
told = []
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda n, _: told.append(n))
print("ready", os.getpid(), flush=True)
while not told: time.sleep(0.05)
time.sleep(0.5)
print("told", told)
"""
    )
    with Launched(tmp_path, *hosts.options, "-n", 2, path) as launched:
        ready(launched)
        launched.process.send_signal(number)
        assert launched.finish() == 128 + number
    assert launched.out.count(f"told [{number.value}]") == 2


def test_the_supervisor_is_killed_and_no_host_goes_on(script, hosts, tmp_path):
    path = script(READY + "time.sleep(300)")
    with Launched(tmp_path, *hosts.options, "-n", 2, path) as launched:
        ready(launched)
        launched.process.kill()
        assert launched.left(5) == []
