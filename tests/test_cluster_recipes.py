"""recipes/cluster: the manifest by the operator's schema, and the batch script as it is written."""

import copy
import os
import re
import signal
import subprocess
import sys

import pytest
from gluon_svrg.launch.__main__ import parse
from launching import ROOT

pytestmark = pytest.mark.full

CLUSTER = ROOT / "recipes" / "cluster"
MANIFEST = CLUSTER / "mpijob.yaml"
BATCH = CLUSTER / "train.sbatch"

# --- Slurm ----------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
from mpi4py import MPI
attempt = int(os.environ["GLUON_SVRG_ATTEMPT"])
print("trains", MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, sys.argv[1:], flush=True)
MPI.COMM_WORLD.Barrier()
if os.path.exists("kill") and attempt == 0 and MPI.COMM_WORLD.rank: os.kill(os.getpid(), 9)
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
print("continues", flush=True)
while os.path.exists("wait") and not told: time.sleep(0.05)
MPI.COMM_WORLD.Barrier()
"""
PROGRAMS = {
    "python": f'exec {sys.executable} "$@"',
    "scontrol": 'echo "$@" >>requeued',
}


@pytest.fixture
def folder(tmp_path):
    """A folder as the batch script finds it, with programs that take the place of Slurm's."""
    for name in ("bin", "recipes"):
        (tmp_path / name).mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "recipes" / "cifar_resnet.py").write_text(SCRIPT)
    return tmp_path


def line_of(path):
    """The line by which a recipe's head says to start it."""
    return re.search(r"^#     (sbatch .*)$", path.read_text(), re.MULTILINE)[1].split()


def batch(folder):
    """Start the batch script, as Slurm does on the first machine."""
    pytest.importorskip("mpi4py")
    _, path, *arguments = line_of(BATCH)
    assert ROOT / path == BATCH
    own = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "4711"}
    own["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")} | own
    return subprocess.Popen(
        ["bash", ROOT / path, *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_slurm(folder):
    out, _ = (job := batch(folder)).communicate(timeout=60)
    assert job.returncode == 0, out
    given = "['--resume', '--out', 'runs/cluster']"
    found = sorted(line for line in out.splitlines() if "trains" in line)
    assert found == [f"[worker {rank}] trains {rank} 2 {given}" for rank in range(2)]
    assert not (folder / "requeued").exists()


def test_a_worker_of_slurm_is_killed_and_the_job_keeps_its_place(folder):
    (folder / "kill").touch()
    out, _ = (job := batch(folder)).communicate(timeout=60)
    assert job.returncode == 0, out
    assert "restart 1 of at most 3" in out
    assert not (folder / "requeued").exists()


def test_the_time_of_slurm_is_up(folder):
    (folder / "wait").touch()
    job = batch(folder)
    found = 0
    while found < 2:
        line = job.stdout.readline()
        assert line, "the job has ended"
        found += "continues" in line
    job.send_signal(signal.SIGUSR1)
    out, _ = job.communicate(timeout=60)
    assert "launch: SIGUSR1: the workers stop after this batch" in out
    assert "back into the queue" in out
    assert job.returncode == 138
    assert (folder / "requeued").read_text() == "requeue 4711\n"


# --- Kubernetes -----------------------------------------------------------------------------------

WHOLE_NUMBER, TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}
REPLICA = {
    "type": "object",
    "properties": {
        "replicas": WHOLE_NUMBER,
        "restartPolicy": {"enum": ["Never", "OnFailure"]},
        "template": {"type": "object"},
    },
    "required": ["template"],
    "additionalProperties": False,
}
MPI_JOB = {
    "type": "object",
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "properties": {
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "mpiReplicaSpecs": {
                    "type": "object",
                    "properties": {"Launcher": REPLICA, "Worker": REPLICA},
                    "required": ["Launcher"],
                    "additionalProperties": False,
                },
                "runLauncherAsWorker": {"type": "boolean"},
                "runPolicy": {
                    "type": "object",
                    "properties": {
                        "activeDeadlineSeconds": WHOLE_NUMBER,
                        "backoffLimit": WHOLE_NUMBER,
                        "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                        "managedBy": TEXT,
                        "schedulingPolicy": {"type": "object"},
                        "suspend": {"type": "boolean"},
                        "ttlSecondsAfterFinished": WHOLE_NUMBER,
                    },
                    "additionalProperties": False,
                },
                "slotsPerWorker": {"type": "integer", "minimum": 1},
                "sshAuthMountPath": TEXT,
            },
            "required": ["mpiReplicaSpecs"],
            "additionalProperties": False,
        },
    },
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
}
"""The fields of an MPIJob, after the operator's custom resource definition of v2beta1 and what its
controller checks (kubeflow/mpi-operator, manifests/base/kubeflow.org_mpijobs.yaml and
pkg/apis/kubeflow/validation/validation.go)."""


@pytest.fixture(scope="module")
def manifest():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(MANIFEST.read_text())


def test_the_manifest_is_valid(manifest):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    jsonschema.validate(manifest, MPI_JOB)
    broken = copy.deepcopy(manifest)
    broken["spec"]["slotPerWorker"] = 2
    with pytest.raises(jsonschema.ValidationError, match="slotPerWorker"):
        jsonschema.validate(broken, MPI_JOB)


@pytest.mark.parametrize("name", ["Launcher", "Worker"])
def test_its_pods_are_valid(manifest, name):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    spec = manifest["spec"]["mpiReplicaSpecs"][name]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
    validate.validate(pod, "1.33", strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate(pod | {"spec": spec | {"restartPolice": "Never"}}, "1.33", strict=True)


def test_the_launcher_takes_the_hosts_of_the_operator(manifest, tmp_path):
    replicas = manifest["spec"]["mpiReplicaSpecs"]
    (container,) = replicas["Launcher"]["template"]["spec"]["containers"]
    python, m, module, *rest = [*container["command"], *container["args"]]
    assert (python, m, module) == ("python", "-m", "gluon_svrg.launch")
    # As the operator writes it for MPICH.
    workers, slots = replicas["Worker"]["replicas"], manifest["spec"]["slotsPerWorker"]
    names = [f"train-worker-{number}.train.default.svc" for number in range(workers)]
    hosts = tmp_path / "hostfile"
    hosts.write_text("".join(f"{name}:{slots}\n" for name in names))
    line = [str(hosts) if part == "/etc/mpi/hostfile" else part for part in rest]
    options = parse([str(ROOT / part) if part.endswith(".py") else part for part in line])
    assert options.hosts == dict.fromkeys(names, slots)
    assert options.workers == workers * slots
    for replica in replicas.values():
        volumes = replica["template"]["spec"].get("volumes", [])
        mounts = replica["template"]["spec"]["containers"][0].get("volumeMounts", [])
        assert {volume["name"] for volume in volumes} == {mount["name"] for mount in mounts}


def test_the_page_names_both():
    text = (ROOT / "docs" / "howto" / "several_workers.md").read_text()
    for path in CLUSTER.iterdir():
        assert f"recipes/cluster/{path.name}" in text
    assert BATCH.read_text().startswith("#!/bin/bash")
