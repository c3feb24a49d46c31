"""The launcher in a process of its own, for tests; sees to it that nothing of it is left."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARK = "LAUNCHING_TEST"

# Lines for scripts that are run as workers.
PROLOGUE = """
import os, signal, subprocess, sys, time
rank = int(os.environ.get("PMI_RANK", 0))
attempt = int(os.environ["GLUON_SVRG_ATTEMPT"])
def meet():
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
def tell(name):
    open(name, "w").close()
def wait_for(*names):
    while not all(map(os.path.exists, names)): time.sleep(0.01)
"""

# Sets constants of the launcher's modules, "module.NAME=value", before it begins.
_SHIM = """
import importlib, json, os, sys
for name, value in json.loads(os.environ.pop("LAUNCHING_CONSTANTS")).items():
    module, _, name = name.rpartition(".")
    setattr(importlib.import_module("gluon_svrg.launch." + module), name, value)
from gluon_svrg.launch.__main__ import main
sys.exit(main())
"""


class Launched:
    """A launcher that was started; as a context it ends with all that is its own."""

    def __init__(self, folder, *arguments, env=None, constants=None, ignored=(), **settings):
        self.mark = secrets.token_hex(8)
        start = ["-c", _SHIM] if constants else ["-m", "gluon_svrg.launch"]
        path = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {MARK: self.mark, "PYTHONPATH": path, **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, *start, *map(str, arguments)],
            env=environment | {"LAUNCHING_CONSTANTS": json.dumps(constants or {})},
            cwd=folder,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
            preexec_fn=lambda: _signals(ignored),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        left = self.left()
        for pid in self.processes():  # or they would hold the pipes open that are read below
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        assert left == []

    def finish(self, timeout=300):
        """Wait for its end; set `out`, `err` and return the exit code."""
        self.out, self.err = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def left(self, patience=2.0):
        """Return the command lines of processes that are still there after some time."""
        end = time.monotonic() + patience
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.01)
        return list(found.values())

    def processes(self):
        """Return the command line of each process that was started by it, by number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_own = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if is_own and command:  # a zombie has none
                found[int(folder.name)] = os.fsdecode(command.replace(b"\0", b" "))
        return found

    def find(self, name):
        """Return the processes whose command line has this in it, in the order of their start."""
        return sorted(pid for pid, command in self.processes().items() if name in command)


def _signals(ignored):
    # A test may run in the background of a shell, which has them ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def launch(folder, *arguments, timeout=300, **settings):
    """Run the launcher to its end; return it, with `code`, `out` and `err`."""
    with Launched(folder, *arguments, **settings) as launched:
        launched.code = launched.finish(timeout)
    return launched


def wait_for(launched, pattern):
    """Read what is printed until a line matches; return all of it."""
    read = []
    for line in launched.process.stdout:
        read.append(line)
        if re.search(pattern, line):
            return "".join(read)
    raise AssertionError(f"no {pattern!r} in:\n{''.join(read)}")


def until(condition, seconds=20.0):
    """Wait until something is true; return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.01)
    return found
