"""Several workers on this machine, for tests: one function of a module, run by each of them."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from forked import addresses

TESTS = Path(__file__).parent
MPIEXEC = Path(sysconfig.get_path("scripts"), "mpiexec")


class Job:
    """Workers that `mpiexec` has started.

    Attributes
    ----------
    code : int
        The exit code of mpiexec.
    out, err : list of str
        What each worker has printed, by rank.
    said : str
        What mpiexec itself has printed.
    """

    def __init__(self, function, size, *arguments, timeout=600, env=None, is_real=True):
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
            ),
            "PYTHONWARNINGS": "ignore",
            "PYTHONFAULTHANDLER": "1",
            **(env or {}),
        }
        command = [MPIEXEC]
        for rank in range(size):
            command += [":"] if rank else []
            command += ["-n", "1", sys.executable]
            if not is_real:
                address = addresses()[rank % 2]
                command += ["-S", "-E", TESTS / "forked_rank.py", address.hex()]
            command += [TESTS / "cluster.py", function, *arguments]
        with tempfile.TemporaryDirectory() as folder:
            environment["CLUSTER_OUTPUT"] = folder
            self.process = subprocess.Popen(
                [*map(str, command)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                self.said, _ = self.process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.said, _ = self.process.communicate()
                self.said += f"\nnot over after {timeout} s"
            self.code = self.process.returncode
            self.out, self.err, self._answers = (
                [read(Path(folder, f"{name}-{rank}")) for rank in range(size)]
                for name in ("out", "err", "answer")
            )

    def answers(self, code=0):
        """Return what the function has returned on each worker, or given to `answer`."""
        if self.code != code or not all(self._answers):
            said = "\n".join([self.said, *self.out, *self.err])
            raise AssertionError(f"exit code {self.code}:\n{said}")
        return [json.loads(answer) for answer in self._answers]


def read(path):
    return path.read_text() if path.exists() else ""


def run_together(function, size, *arguments, check=True, **settings):
    """Call `function` (``"module:name"``, in tests/) on `size` workers.

    It gets `arguments` as strings and returns plain data. Returns what each worker returned, by
    rank; with ``check=False`` the finished `Job`, whose workers are processes of their own, and
    not forked from one that has MXNet imported.
    """
    job = Job(function, size, *arguments, is_real=not check, **settings)
    return job.answers() if check else job


def answer(result):
    """Let the test have plain data from this worker."""
    path = Path(os.environ["CLUSTER_OUTPUT"], f"answer-{os.environ['CLUSTER_RANK']}")
    path.write_text(json.dumps(result))


def main(function, *arguments):
    # Not through mpiexec, which mixes what the workers print.
    rank = os.environ["CLUSTER_RANK"] = os.environ["PMI_RANK"]
    folder = os.environ["CLUSTER_OUTPUT"]
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{folder}/{name}-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    import gluon_svrg  # noqa: F401  # before MXNet

    module, _, name = function.partition(":")
    result = getattr(__import__(module, fromlist=[name]), name)(*arguments)
    answer(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
