"""A Slurm of one node, started here: srun, mpiexec in an allocation, and the queue.

Needs root and Debian's packages slurm-wlm and munge; skips without them. All of it listens on the
loopback network, with a key and folders of its own.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from launching import PROLOGUE, ROOT
from ports import free_port

pytestmark = pytest.mark.full

pytest.importorskip("mpi4py")

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "squeue")
SBIN = f"{os.environ['PATH']}:/usr/sbin"
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
AuthType=auth/munge
# A job that was put back into the queue starts again after this time.
AuthInfo=socket={folder}/socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The daemons, and what its commands need in their environment."""

    def __init__(self, folder):
        host = socket.gethostname()
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        folder.chmod(0o755)
        config = folder / "slurm.conf"
        ports = {"control": free_port(), "node": free_port()}
        config.write_text(CONFIG.format(host=host, folder=folder, **ports))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        path = os.pathsep.join([os.path.dirname(sys.executable), SBIN])
        self.env = os.environ | {"SLURM_CONF": str(config), "PATH": path}
        self.env["PYTHONPATH"] = str(ROOT)
        own = {"socket": "socket", "key-file": "key", "pid-file": "munged.pid"}
        own |= {"log-file": "munged.log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in own.items()]
        self._daemons = [
            self._start("munged", "--force", "--foreground", *options),
            self._start("slurmctld", "-D", "-c", "-f", config),
            self._start("slurmd", "-D", "-f", config),
        ]

    def _start(self, name, *arguments):
        command = [shutil.which(name, path=SBIN), *arguments]
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            command, env=self.env, stdout=null, stderr=null, start_new_session=True
        )
        time.sleep(0.5)
        return process

    def run(self, *command, timeout=60, **settings):
        return subprocess.run(
            list(map(str, command)),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            **settings,
        )

    def is_up(self):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with suppress(subprocess.TimeoutExpired):
                if self.run("srun", "-t", "1", "true", timeout=15).returncode == 0:
                    return True
            time.sleep(1)
        return False

    def end(self):
        with suppress(subprocess.TimeoutExpired):
            self.run("scancel", "--user=root", timeout=10)
            time.sleep(1)
        for daemon in reversed(self._daemons):
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    missing = [name for name in PROGRAMS if shutil.which(name, path=SBIN) is None]
    if missing or os.geteuid():
        pytest.skip(f"there is no Slurm to start: {', '.join(missing) or 'not root'}")
    found = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        if not found.is_up():
            pytest.skip("an own Slurm does not start on this machine")
        yield found
    finally:
        found.end()


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        attempt = 'os.environ.setdefault("GLUON_SVRG_ATTEMPT", "0")\n'
        path.write_text("import os\n" + attempt + PROLOGUE + text)
        return path

    return write


WORKER = (sys.executable, "-m", "gluon_svrg.launch.worker")
ALL = """
from mpi4py import MPI
print("worker", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size, flush=True)
"""


def test_srun_starts_workers(slurm, script, tmp_path):
    done = slurm.run("srun", "--mpi=pmi2", "-n", 2, *WORKER, script(ALL + "meet()"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["worker 0 of 2", "worker 1 of 2"]


def test_a_worker_of_srun_fails(slurm, script):
    path = script("meet()\nif rank: raise ValueError('me')\ntime.sleep(60)")
    begin = time.monotonic()
    done = slurm.run("srun", "--mpi=pmi2", "--kill-on-bad-exit=1", "-n", 2, *WORKER, path)
    assert time.monotonic() - begin < 40
    assert done.returncode != 0
    assert "ValueError: me" in done.stderr


def test_srun_without_mpi_is_one_sentence(slurm):
    code = "import gluon_svrg.workers as w; w.current()"
    done = slurm.run("srun", "-n", 2, sys.executable, "-W", "ignore", "-c", code)
    assert done.returncode != 0
    assert "srun has started 2 processes without MPI" in done.stderr


BATCH = """#!/bin/bash
#SBATCH --ntasks=3
python -m gluon_svrg.launch -n auto {script}
"""


def test_mpiexec_in_an_allocation_and_a_worker_that_is_killed(slurm, script, tmp_path):
    path = script(ALL + "meet()\nif attempt == 0 and rank == 2: os.kill(os.getpid(), 9)\nmeet()")
    (tmp_path / "job.sh").write_text(BATCH.format(script=path))
    out = tmp_path / "out"
    done = slurm.run("sbatch", "--wait", f"--output={out}", tmp_path / "job.sh", cwd=tmp_path)
    assert done.returncode == 0, out.read_text()
    text = out.read_text()
    assert re.search(r"launch: worker 2 \(process \d+\) was killed by SIGKILL", text), text
    assert text.count("of 3") == 6


def test_the_recipe_goes_back_into_the_queue(slurm, script, tmp_path):
    path = script(
        """
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
meet()
is_again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
print("start", rank, "again" if is_again else "first", flush=True)
while not is_again and not told: time.sleep(0.05)
print("end", rank, flush=True)
meet()
"""
    )
    out = tmp_path / "out"
    batch = ROOT / "recipes" / "cluster" / "train.sbatch"
    options = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", f"--output={out}"]
    done = slurm.run("sbatch", "--parsable", *options, batch, path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    wait_for(out, r"start 1 first")
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    wait_for(out, "back into the queue")
    wait_for(out, "start 1 again", 90)
    end = time.monotonic() + 30
    state = ("scontrol", "show", "job", job)
    while "JobState=COMPLETED" not in (said := slurm.run(*state).stdout):
        assert time.monotonic() < end, said
        time.sleep(0.5)
    found = re.findall(r"start \d (first|again)$", out.read_text(), re.MULTILINE)
    assert found == ["first"] * 2 + ["again"] * 2


def wait_for(path, pattern, seconds=40):
    end = time.monotonic() + seconds
    while not (path.exists() and re.search(pattern, path.read_text())):
        assert time.monotonic() < end, path.read_text() if path.exists() else "no output"
        time.sleep(0.1)
