"""Machines over ssh: what the launcher starts there, and what becomes of it.

By a stand-in for ssh, which runs the line here, and by an own sshd where there is one.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import pytest
from launching import ROOT, Launched, launch, until
from machines import (
    FAKE_SSH,
    READY,
    SOCKETS,
    WAIT,
    agents,
    fake_ssh,
    kill,
    parent_of,
    ready,
    without_waiting,
    write_script,
)
from ports import free_port

SLEEPER = "subprocess.Popen(['sleep', '300'])\n"
HELLO = """
names = ("GLUON_SVRG_RANK", "GLUON_SVRG_ADDRESS", "GLUON_SVRG_KEY", "OMP_NUM_THREADS")
print(*[os.environ.get(name) for name in names], os.environ.get("GLUON_SVRG_JOB_KEY"))
"""


@pytest.fixture
def script(tmp_path):
    return partial(write_script, tmp_path)


def test_over_ssh(script, tmp_path):
    path = script(HELLO)
    options = fake_ssh(tmp_path)
    (tmp_path / "hosts.txt").write_text("127.0.0.2\nme@127.0.0.3 slots=2\n")
    done = launch(tmp_path, *options, "-n", 1, *SOCKETS, path)
    assert done.code == 0, done.err
    said = sorted(line.split() for line in done.out.splitlines())
    assert [words[:3] for words in said] == [["[worker", f"{r}]", str(r)] for r in range(3)]
    assert {words[3].partition(":")[0] for words in said} == {"127.0.0.2"}
    assert without_waiting(done.err) == ""


def test_one_worker_over_ssh(script, tmp_path):
    (tmp_path / "hosts.txt").write_text("127.0.0.2")
    options = fake_ssh(tmp_path)
    (tmp_path / "hosts.txt").write_text("127.0.0.2")
    done = launch(tmp_path, *options, "-n", 1, script("print('alone', rank)"))
    assert (done.code, done.out) == (0, "alone 0\n"), done.err


def test_an_agent_is_killed(script, tmp_path):
    path = script(f"{SLEEPER}{READY}\ntime.sleep(0.5 if attempt else 300)")
    with Launched(tmp_path, *fake_ssh(tmp_path), "-n", 1, *SOCKETS, path) as launched:
        ready(launched)
        kill(agents(launched)["127.0.0.3"])
        assert launched.finish() == 0, launched.err
    match = re.search(
        r"launch: 127.0.0.3 is gone: its agent has closed the connection; seen within (\d\.\d\d) s",
        launched.err,
    )
    assert match, launched.err
    assert float(match[1]) < 1
    assert "restart 1 of at most 3" in launched.err


def test_the_launcher_over_ssh_is_killed(script, tmp_path):
    path = script(f"{SLEEPER}{WAIT}")
    with Launched(tmp_path, *fake_ssh(tmp_path), "-n", 1, *SOCKETS, path) as launched:
        ready(launched)
        launched.process.kill()
        assert launched.left() == []


# The host hears nothing of the end of this connection, as after a reset on the way.
CUT_SSH = """\
#!/bin/sh
if [ "$3" = 127.0.0.3 ] && mkfifo in out 2>/dev/null; then
    setsid env FAKE_HOST="$3" sh -c "$4" <>in >out &
    cat out &
    exec cat >in
fi
"""
AFTER = """
place = f"worker-{rank}-{attempt}"
with open(place, "w") as file:
    file.write(str(os.getpid()))
if attempt:
    before = open(f"worker-{rank}-0").read()
    print("overlaps" if os.path.exists(f"/proc/{before}") else "alone", flush=True)
    sys.exit()
"""


def test_a_new_agent_waits_for_the_end_of_the_old_one(script, tmp_path):
    options = fake_ssh(tmp_path, CUT_SSH + FAKE_SSH)
    path = script(AFTER + WAIT)
    line = (*options, "--host-timeout", 2, "-n", 1, *SOCKETS, path)
    with Launched(tmp_path, *line) as launched:
        ready(launched)
        (ssh,) = (pid for pid, line in launched.processes().items() if line == "cat out ")
        os.killpg(os.getpgid(ssh), signal.SIGKILL)
        assert launched.finish() == 0, launched.err
    assert "127.0.0.3 is gone: its agent has closed the connection" in launched.err
    said = sorted(line for line in launched.out.splitlines() if "ready" not in line)
    assert said == ["[worker 0] alone", "[worker 1] alone"]


UNREACHED = """\
#!/bin/sh
echo >>"tries-$3"
if [ "$(wc -l <"tries-$3")" -le {} ]; then
    echo ssh: connect to host: Connection refused >&2
    exit {}
fi
"""


def test_a_host_that_is_on_its_way(script, tmp_path):
    options = fake_ssh(tmp_path, UNREACHED.format(3, 255) + FAKE_SSH)
    fast = {"constants": {"cluster._PAUSE": 0.1}}
    done = launch(tmp_path, *options, "-n", 1, *SOCKETS, script(""), **fast)
    assert done.code == 0, done.err
    refused = "ssh: connect to host: Connection refused"
    said = sorted(line for line in done.err.splitlines() if refused in line)
    assert said == [f"[127.0.0.2] {refused}", f"[127.0.0.3] {refused}"]


def test_a_host_that_cannot_be_reached(script, tmp_path):
    options = fake_ssh(tmp_path, UNREACHED.format(1000, 255))
    done = launch(tmp_path, *options, "--wait", 2, "-n", 1, *SOCKETS, script(""))
    assert done.code == 69
    assert re.search(
        r"launch: 127.0.0.2 has no agent after 2 s \(--wait\): \S+fake_ssh -o BatchMode=yes "
        r"127.0.0.2 has to reach it, and \S+ and this folder must be there, and said last: ssh: "
        r"connect to host: Connection refused",
        done.err,
    )


@pytest.mark.parametrize("code", [1, 2, 126, 127])
def test_a_host_on_which_nothing_runs(script, tmp_path, code):
    options = fake_ssh(tmp_path, UNREACHED.format(1, code) + FAKE_SSH)
    done = launch(tmp_path, *options, "-n", 1, *SOCKETS, script(""))
    assert done.code == 69
    assert "launch: 127.0.0.2 has not started its agent: " in done.err
    assert "and said last: ssh: connect to host: Connection refused" in done.err


def test_a_host_that_does_not_come_again(script, tmp_path):
    text = "#!/bin/sh\n[ -e gone ] && exit 255\n" + fake_ssh(tmp_path)[3].read_text()
    options = fake_ssh(tmp_path, text)
    path = script(WAIT)
    with Launched(tmp_path, *options, "--wait", 6, "-n", 1, *SOCKETS, path) as launched:
        ready(launched)
        (tmp_path / "gone").touch()
        kill(agents(launched)["127.0.0.3"])
        assert launched.finish() == 69
    assert "launch: 127.0.0.3 has no agent after 6 s (--wait): " in launched.err


def test_an_address_that_is_not_of_the_host(script, tmp_path):
    options = fake_ssh(tmp_path)
    (tmp_path / "hosts.txt").write_text(
        "127.0.0.2 address=192.0.2.7\n127.0.0.3 address=192.0.2.8\n"
    )
    done = launch(tmp_path, *options, "-n", 1, *SOCKETS, script(""))
    assert done.code == 69
    assert "127.0.0.2 cannot listen at 192.0.2.7: Cannot assign requested address" in done.err
    (tmp_path / "hosts.txt").write_text("127.0.0.2\n127.0.0.3 address=192.0.2.8\n")
    done = launch(tmp_path, *options, "-n", 1, *SOCKETS, script(""))
    assert done.code == 69
    assert "127.0.0.2 has the address 127.0.0.2, at which no other machine reaches it" in done.err


# --- Over a real sshd ----------------------------------------------------------------------------

CONFIG = """\
Port {port}
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
SetEnv PYTHONPATH={root} FAKE_HOST=sshd LAUNCHING_TEST={mark}
"""


@pytest.fixture
def sshd(tmp_path):
    """Start an own sshd; return the options by which the launcher reaches it."""
    programs = [
        shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("sshd", "ssh", "ssh-keygen")
    ]
    if None in programs:
        pytest.skip("there is no sshd, ssh and ssh-keygen")
    for name in ("host_key", "user_key"):
        line = [programs[2], "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(line, check=True)
    port = free_port("127.0.0.2")
    text = CONFIG.format(port=port, folder=tmp_path, root=ROOT, mark="sshd")
    (tmp_path / "config").write_text(text)
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([programs[0], "-D", "-e", "-f", tmp_path / "config"])
    ssh = f"{programs[1]} -p {port} -i {tmp_path}/user_key -o StrictHostKeyChecking=no "
    ssh += "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o IdentitiesOnly=yes"
    (tmp_path / "hosts.txt").write_text("127.0.0.2\n127.0.0.3\n")
    try:
        until(lambda: _answers(port) or server.poll() is not None)
        line = [*ssh.split(), "-o", "BatchMode=yes", "127.0.0.2", "true"]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"an own sshd does not let in: {done.stderr}")
        yield "--hosts", tmp_path / "hosts.txt", "--ssh", ssh
    finally:
        server.terminate()
        server.wait()


def _answers(port):
    try:
        socket.create_connection(("127.0.0.2", port), 1).close()
    except OSError:
        return False
    return True


def agents_of_sshd():
    """The agents that an sshd has started, and what they have."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = os.fsdecode((folder / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
        if b"LAUNCHING_TEST=sshd" in environment and command:
            found[int(folder.name)] = command
    return found


def test_over_a_real_sshd(script, sshd, tmp_path):
    path = script(f"{SLEEPER}{READY}\ntime.sleep(0.5 if attempt else 300)")
    with Launched(tmp_path, *sshd, "-n", 1, *SOCKETS, path) as launched:
        ready(launched)
        pids = {pid for pid, line in agents_of_sshd().items() if "launch.agent" in line}
        own = [pid for pid in pids if parent_of(pid) not in pids]
        assert (len(pids), len(own)) == (4, 2)  # each has a keeper
        kill(own[0])
        assert launched.finish() == 0, launched.err
    assert re.search(r"launch: 127.0.0.[23] is gone: its agent has closed the", launched.err)
    until(lambda: not agents_of_sshd())


def test_the_launcher_over_a_real_sshd_is_killed(script, sshd, tmp_path):
    path = script(f"{SLEEPER}{WAIT}")
    with Launched(tmp_path, *sshd, "-n", 1, *SOCKETS, path) as launched:
        ready(launched)
        assert len(agents_of_sshd()) >= 8
        launched.process.kill()
        until(lambda: not agents_of_sshd(), 5)


def test_what_a_real_ssh_says_of_a_host_that_it_does_not_reach(script, sshd, tmp_path):
    (tmp_path / "hosts.txt").write_text("127.0.0.4\n")
    done = launch(tmp_path, *sshd, "--wait", 2, "-n", 1, *SOCKETS, script(""))
    assert done.code == 69
    assert "and said last: ssh: connect to host 127.0.0.4 port" in done.err
    assert "Connection refused" in done.err
