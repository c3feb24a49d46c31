"""Several workers on this machine, for tests: one function of a module, run by each of them."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from forked import Forked, Output
from gluon_svrg.launch.environment import SERVER_ENVIRONMENT
from ports import free_port

TESTS = Path(__file__).parent
GRACE = 10.0  # seconds that workers may outlive a server that has failed: they may be done


def common_environment(size):
    """What all processes of `size` workers that sockets connect have in their environment."""
    return os.environ | {
        "GLUON_SVRG_WORKERS": str(size),
        "GLUON_SVRG_ADDRESS": f"127.0.0.1:{free_port()}",
        "GLUON_SVRG_KEY": secrets.token_hex(16),
        "GLUON_SVRG_ENGINE": "sockets",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        ),
    }


def ps_lite(size, servers):
    """What ps-lite wants to know of a cluster on this machine."""
    return {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NUM_WORKER": str(size),
        "DMLC_INTERFACE": "lo",
        "DMLC_ROLE": "worker",
    }


class Process(subprocess.Popen):
    """A Python of its own; `out` and `err`, once it is over, are what it has written."""

    def __init__(self, command, env):
        self._output = Output()
        out, err = self._output.files
        command = [sys.executable, "-X", "faulthandler", "-W", "ignore", *command]
        super().__init__(command, env=env, stdout=out, stderr=err)

    def end(self):
        """Kill it, if that is needed, and read what it has written."""
        self.kill()
        self.wait()
        self.out, self.err = self._output.read()


OWN_SERVER = ["-m", "gluon_svrg.workers.server"]
MXNETS_SERVER = ["-c", "import gluon_svrg, mxnet"]


def start_servers(environment, servers, command=OWN_SERVER, more=SERVER_ENVIRONMENT):
    """Start a scheduler and servers, these with `more` in their environment."""
    scheduler = environment | {"DMLC_ROLE": "scheduler"}
    server = environment | {"DMLC_ROLE": "server"} | more
    return [Process(command, scheduler), *(Process(command, server) for _ in range(servers))]


def finish(processes, others=(), timeout=240):
    """Wait until the processes are over, and end the others, who serve them.

    Nobody waits for those whose servers have failed. A process that does not end writes where it
    is, and has the exit code of SIGABRT.
    """
    end = time.monotonic() + timeout
    try:
        for process in processes:
            while not is_over(process) and time.monotonic() < end:
                if any(other.poll() for other in others):
                    end = min(end, time.monotonic() + GRACE)
        for process in processes:
            if not is_over(process, 0.01):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGABRT)
                is_over(process, GRACE)
    finally:
        for process in [*processes, *others]:
            process.end()


def is_over(process, patience=0.5):
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        return False
    return True


def answers_of(processes, others=()):
    """Return the JSON of each process's last line; the others are shown if one has failed."""
    if any(process.returncode for process in processes):
        said = (f"{p.args}: {p.returncode}\n{p.out}\n{p.err}" for p in [*processes, *others])
        raise AssertionError("\n".join(said))
    return [json.loads(process.out.splitlines()[-1]) for process in processes]


def run_together(
    function,
    size,
    *arguments,
    timeout=240,
    env=None,
    check=True,
    engine="sockets",
    servers=1,
    server=OWN_SERVER,
    server_environment=SERVER_ENVIRONMENT,
):
    """Call `function` (``"module:name"``, in tests/) on `size` workers.

    Sockets connect them, and add up their arrays; with ``engine="dist_sync"`` a scheduler and
    `servers` servers of ps-lite do. It gets `arguments` as strings and returns plain data. Returns
    what each worker returned, by rank; with ``check=False`` the finished processes, each with
    `returncode`, `out` and `err`: the workers, then scheduler and servers.
    """
    common = common_environment(size) | {"GLUON_SVRG_ENGINE": engine}
    others = []
    if engine == "dist_sync":
        common |= ps_lite(size, servers)
        others = start_servers(common | (env or {}), servers, server, server_environment)
    common |= env or {}
    command = [TESTS / "cluster.py", function, *arguments]
    processes = [
        Forked(*command, env=common | {"GLUON_SVRG_RANK": str(rank)}) for rank in range(size)
    ]
    finish(processes, others, timeout)
    return answers_of(processes, others) if check else [*processes, *others]


if __name__ == "__main__":
    import gluon_svrg  # noqa: F401  # before MXNet

    module, _, name = sys.argv[1].partition(":")
    result = getattr(__import__(module, fromlist=[name]), name)(*sys.argv[2:])
    # In one call: `print`, unbuffered, makes two, and mpirun would mix those of several workers.
    sys.stdout.write(json.dumps(result) + "\n")
