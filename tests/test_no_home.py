"""A container's user: no home, no entry in /etc/passwd, a package that is read-only."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.long]

ROOT = Path(__file__).parent.parent
# Root may write everywhere. This user may read everything, as root, and write nothing of it.
CAPABILITIES = "-all,+dac_read_search"
NOBODY = [
    *("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"),
    *(f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}"),
]

TRAINING = """
import gluon_svrg as gs, mxnet as mx, numpy as np, os, sys
from mxnet.gluon import nn


x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
net = nn.Dense(2, in_units=8)
net.initialize()
trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
estimator = gs.Estimator(net, mx.gluon.loss.SoftmaxCELoss(), trainer=trainer)
data = gs.data.ArrayLoader(x, y, batch_size=16)
if not gs.workers.current().is_distributed:
    gs.find_learning_rate(estimator, data, trial_batches=8)
handlers = [gs.SVRGHandler(), gs.CheckpointHandler("run"), gs.HistoryFileHandler("log.csv")]
handlers += [gs.ProfilerHandler(trace="trace.json", trace_batches=(1, 3))]
result = estimator.fit(data, data, epochs=2, event_handlers=handlers)
if gs.workers.current().is_first:
    result.report("report.html")
    result.history.plot("curves.png")
    gs.deploy.export(net, "model", x[:4], overwrite=True)
    gs.deploy.Predictor("model")(x[:2])
    np.save("x.npy", x[:2])
print("end")
"""
COMMANDS = {
    "training": (["train.py"], "end"),
    "workers": (["-m", "gluon_svrg.launch", "-n", "2", "train.py"], "[worker 1] end"),
    "deploy": (["-m", "gluon_svrg.deploy", "benchmark", "model", "--seconds", "0.1"], ""),
    "recipe": (
        [str(ROOT / "recipes/softmax_regression.py"), "--epochs", "1", "--out", "out"],
        "See",
    ),
    "images": (
        [
            *(str(ROOT / "recipes/cifar_resnet.py"), "--data", "synthetic", "--samples", "64"),
            *("--epochs", "1", "--out", "out"),
        ],
        "See out",
    ),
    "service": ([str(ROOT / "recipes/serve.py"), "model", "--port", "0"], "http://"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All that the user may write to, /tmp apart."""
    path = tmp_path_factory.mktemp("work")
    for above in (path, *path.parents[:2]):
        above.chmod(0o777 if above == path else 0o755)
    (path / "train.py").write_text(TRAINING)
    start(path, COMMANDS["training"][0], home=None).communicate(timeout=300)
    assert (path / "model").is_dir()
    return path


def start(path, arguments, home):
    is_root = os.getuid() == 0
    if is_root and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and setpriv is not installed")
    for name in ("run", "log.csv", "trace.json", "out"):
        shutil.rmtree(path / name, ignore_errors=True)
        (path / name).unlink(missing_ok=True)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        **({} if home is None else {"HOME": home}),
    }
    command = [*(NOBODY if is_root else []), sys.executable, "-W", "ignore", *arguments]
    return subprocess.Popen(
        command,
        cwd=path,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("home", [None, "/nonexistent"])
@pytest.mark.parametrize("name", COMMANDS)
def test_it_needs_no_home_and_no_place_to_write(name, home, folder):
    arguments, said = COMMANDS[name]
    process = start(folder, arguments, home)
    if name == "service":
        out = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    else:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert said in out, err
    assert "Traceback" not in err


@pytest.mark.parametrize("home", [None, "/nonexistent"])
def test_data_in_the_home_directory_is_missing_in_a_sentence(home, folder):
    recipe = [str(ROOT / "recipes/cifar_resnet.py"), "--data", "cifar10"]
    process = start(folder, [*recipe, "--out", "out"], home)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "/.mxnet/datasets/cifar10' (data_batch_1.bin is missing): name the folder" in err
