"""Several machines for tests of the launcher: addresses of the loopback network."""

import os
import re
import signal
import stat
from contextlib import contextmanager, suppress
from pathlib import Path

from launching import PROLOGUE, Launched
from ports import free_port

KEY = "0123456789abcdef0123456789abcdef"
ADDRESSES = ["127.0.0.2", "127.0.0.3"]
SOCKETS = ("--engine", "sockets")
READY = "print('ready', os.getpid(), flush=True)\nstep()\n"
WAIT = READY + "time.sleep(300)"

# Runs the line here, as the machine that it was to reach; its own output before is as a shell's.
FAKE_SSH = """\
#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
echo "Welcome to $1"
FAKE_HOST=$1 SSH_CONNECTION="127.0.0.1 1 $1 22"
export FAKE_HOST SSH_CONNECTION
exec sh -c "$2"
"""


def fake_ssh(folder, text=FAKE_SSH):
    """Write a command that takes the place of ssh; return the options that name it."""
    path = folder / "fake_ssh"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    hosts = folder / "hosts.txt"
    hosts.write_text("".join(f"{address}\n" for address in ADDRESSES))
    return "--hosts", hosts, "--ssh", path


class Lines:
    """The same line on several machines, each started by itself."""

    def __init__(self, folder, *arguments, nodes=2, env=None, **settings):
        self.port = free_port(ADDRESSES[0])
        self._folder, self._arguments, self._nodes = folder, arguments, nodes
        self._env, self._settings = env or {}, settings

    def start(self, rank, *options, key=KEY, nodes=None, arguments=None, **settings):
        """Start the line on machine `rank`."""
        own = ["--nodes", nodes or self._nodes, "--node-rank", rank]
        own += ["--master", f"127.0.0.2:{self.port}", "--address", f"127.0.0.{rank + 2}"]
        env = {"GLUON_SVRG_JOB_KEY": key, **self._env}
        rest = self._arguments if arguments is None else arguments
        settings = {**self._settings, **settings}
        return Launched(self._folder, *own, *options, *rest, env=env, **settings)


@contextmanager
def both(lines, **settings):
    """The line on two machines; they end with the block."""
    with lines.start(0, **settings) as first, lines.start(1, **settings) as second:
        yield first, second


def environ(pid):
    """The environment that a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return dict(os.fsdecode(v).partition("=")[::2] for v in file.read().split(b"\0") if v)
    except OSError:
        return {}


def agents(launched):
    """The agents that a launcher has started (not their keepers), by host."""
    found = {}
    for pid, command in launched.processes().items():
        if "gluon_svrg.launch.agent" in command and "ssh" not in command.split()[0]:
            parent = parent_of(pid)
            if "gluon_svrg.launch.agent" not in launched.processes().get(parent, "ssh"):
                found[environ(pid).get("FAKE_HOST", "")] = pid
    return found


def parent_of(pid):
    return int(_status(pid)[1])


def zombies(pid):
    """The children of a process that have ended, and whose ends it has not taken."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _status(folder.name)[:2] == ["Z", str(pid)]:
                found.append(int(folder.name))
    return found


def _status(pid):
    data = Path(f"/proc/{pid}/stat").read_bytes()
    return data.rpartition(b")")[2].decode().split()


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def write_script(folder, text, name="script.py"):
    """Write a script for the workers and return its path."""
    path = folder / name
    path.write_text(PROLOGUE + text)
    return path


def ready(launched, workers=2):
    """Wait until workers are there; return their numbers by name."""
    found = {}
    while len(found) < workers:
        line = launched.process.stdout.readline()
        assert line, launched.process.stderr.read()
        if match := re.match(r"\[(worker \d+)\] ready (\d+)", line):
            found[match[1]] = int(match[2])
    return found


def without_waiting(err):
    """What a launcher has said, but that it waits, as it does on a loaded machine."""
    return "".join(
        line for line in err.splitlines(True) if not line.startswith("launch: waiting for")
    )
