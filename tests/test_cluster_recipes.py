"""recipes/cluster: the job's manifest by its schema, and both command lines as they are written."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from launching import ROOT

CLUSTER = ROOT / "recipes" / "cluster"
KEY = "0123456789abcdef"
SCRIPT = """
import os, sys, time
rank, size = os.environ["GLUON_SVRG_RANK"], os.environ["GLUON_SVRG_WORKERS"]
os.write(int(os.environ["GLUON_SVRG_PROGRESS"]), b".")
print("trains", rank, size, sys.argv[1:], flush=True)
if os.path.exists("fail"):
    time.sleep(300)
"""
FAKES = {
    "python": f'exec {sys.executable} "$@"',
    # One task on each of two machines, as --ntasks-per-node=1 asks for.
    "srun": """
while case $1 in --*) true;; *) false;; esac; do echo "$1" >>srun-options; shift; done
for id in 0 1; do
    SLURM_NODEID=$id "$@" &
    echo $! >task-$id
done
code=0
for id in 0 1; do wait "$(cat task-$id)" || code=$?; done
exit $code
""",
    "scontrol": """
case $1 in
show) echo 127.0.0.2; echo 127.0.0.3;;
*) echo "$@" >>requeued;;
esac
""",
}
# What Kubernetes' name service says.
NAMES = """
import socket
_before = socket.getaddrinfo
def getaddrinfo(name, *rest, **settings):
    return _before("127.0.0.2" if name == "train-0.train" else name, *rest, **settings)
socket.getaddrinfo = getaddrinfo
"""


@pytest.fixture
def folder(tmp_path):
    """A folder as the recipes find it, with programs that take the place of a cluster's."""
    for name in ("bin", "recipes", "names"):
        (tmp_path / name).mkdir()
    for name, text in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "recipes" / "cifar_resnet.py").write_text(SCRIPT)
    (tmp_path / "names" / "sitecustomize.py").write_text(NAMES)
    yield tmp_path
    for task in tmp_path.glob("task-*"):  # of a test that has failed
        with suppress(ProcessLookupError):
            os.kill(int(task.read_text()), signal.SIGKILL)


def environment(folder, **more):
    paths = [folder / "names", ROOT, os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        **more,
    }


def line_of(path):
    """The line by which a recipe's head says to start it."""
    return re.search(r"^#     (sbatch .*)$", path.read_text(), re.MULTILINE)[1].split()


def cpus_of(path):
    """What Slurm sets if the head of a batch script asks for it, and srun does not read."""
    asked = re.search(r"^#SBATCH --cpus-per-task=(\d+)$", (ROOT / path).read_text(), re.MULTILINE)
    return {"SLURM_CPUS_PER_TASK": asked[1]} if asked else {}


def slurm(folder, job):
    """Start the batch script, as Slurm does on the first machine."""
    _, path, *arguments = line_of(CLUSTER / "train.sbatch")
    assert ROOT / path == CLUSTER / "train.sbatch"
    own = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": str(job)}
    own |= cpus_of(path)
    return subprocess.Popen(
        ["bash", ROOT / path, *arguments],
        cwd=folder,
        env=environment(folder, **own),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trained(job):
    """Wait until all four workers train."""
    found = 0
    while found < 4:
        line = job.stdout.readline()
        assert line, "the job has ended"
        found += "trains" in line  # there may be a line of a launcher that waits


def trains(out):
    return sorted(line for line in out.splitlines() if "trains" in line)


WORKERS = [f"[worker {rank}] trains {rank} 4" for rank in range(4)]


def test_slurm(folder):
    out, _ = (job := slurm(folder, os.getpid())).communicate(timeout=60)
    assert job.returncode == 0, out
    given = "['--resume', '--out', 'runs/cluster']"
    assert trains(out) == [f"{line} {given}" for line in WORKERS]
    assert not (folder / "requeued").exists()
    options = (folder / "srun-options").read_text().split()
    assert {"--mpi=none", "--cpus-per-task=8"} <= set(options)


def test_a_machine_of_slurm_is_gone(folder):
    (folder / "fail").touch()
    job = slurm(folder, os.getpid() + 1)
    trained(job)
    os.kill(int((folder / "task-0").read_text()), signal.SIGKILL)
    out, _ = job.communicate(timeout=60)
    assert job.returncode in (75, 137), out
    assert "back into the queue: a machine is gone" in out
    assert (folder / "requeued").read_text() == f"requeue {os.getpid() + 1}\n"


def test_the_time_of_slurm_is_up(folder):
    (folder / "fail").touch()
    job = slurm(folder, os.getpid() + 2)
    trained(job)
    job.send_signal(signal.SIGUSR1)
    assert "back into the queue: the time is nearly up" in job.stdout.readline()
    for name in ("task-0", "task-1"):  # as Slurm does then
        os.kill(int((folder / name).read_text()), signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    assert (folder / "requeued").read_text() == f"requeue {os.getpid() + 2}\n"
    assert "launch: SIGTERM: the workers are told" in out


# --- Kubernetes ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service, job = yaml.safe_load_all((CLUSTER / "job.yaml").read_text())
    return service, job


def test_the_manifests_are_valid(manifests):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    for manifest in manifests:
        validate.validate(manifest, "1.33", strict=True)
    broken = manifests[1] | {"spec": manifests[1]["spec"] | {"completionMod": "Indexed"}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, "1.33", strict=True)


def test_the_manifests_fit_together(manifests):
    service, job = manifests
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] == "Never"  # backoffLimitPerIndex asks for it
    (container,) = pod["containers"]
    (rule,) = [rule for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    (line,) = container["args"]
    assert f"--nodes {spec['completions']} " in line
    assert f"--master {name}-0.{pod['subdomain']}:" in line
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes == {mount["name"] for mount in container["volumeMounts"]}
    (key,) = container["env"]
    assert key["name"] == "GLUON_SVRG_JOB_KEY"
    assert key["valueFrom"]["secretKeyRef"]["name"] in (CLUSTER / "job.yaml").read_text()[:400]


def test_kubernetes(folder, manifests):
    (container,) = manifests[1]["spec"]["template"]["spec"]["containers"]
    line = [*container["command"], *container["args"]]
    pods = [
        subprocess.Popen(
            line,
            cwd=folder,
            env=environment(folder, JOB_COMPLETION_INDEX=str(index), GLUON_SVRG_JOB_KEY=KEY),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in (1, 0)
    ]
    outs = [pod.communicate(timeout=60)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outs
    given = "['--resume', '--out', '/checkpoints/train']"
    assert trains(outs[1]) == [f"{line} {given}" for line in WORKERS]


def test_the_page_names_both():
    text = (ROOT / "docs" / "howto" / "several_machines.md").read_text()
    for path in CLUSTER.iterdir():
        assert f"recipes/cluster/{path.name}" in text
    assert Path(CLUSTER / "train.sbatch").read_text().startswith("#!/bin/bash")
