"""A full disk, by a limit on the size of files: nothing hangs, and no file is half-written."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.full, pytest.mark.long]

RUN = """
import resource, signal, sys
import gluon_svrg as gs
import mxnet as mx
import numpy as np
from mxnet import gluon

folder, limit = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
net = gluon.nn.Dense(2, in_units=3)
net.initialize()
trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
data = gs.data.ArrayLoader(np.ones((300, 3), "f"), np.zeros(300), batch_size=1)
handlers = [
    gs.TensorBoardHandler(folder + "/board", every_n_batches=1),
    gs.HistoryFileHandler(folder + "/log.jsonl"),
    gs.HistoryFileHandler(folder + "/log.csv"),
    gs.CheckpointHandler(folder + "/checkpoints"),
]
class Full(gs.events.EpochEnd):
    priority = -1
    def epoch_end(self, estimator, *args, **kwargs):
        if estimator.position.epoch == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if estimator.position.epoch == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
result = estimator.fit(data, epochs=6, event_handlers=[*handlers, Full()])
print(result.epochs_run)
"""


@pytest.mark.parametrize("limit", [0, 300, 1000, 3000, 20_000])
def test_a_run_goes_on_and_its_files_are_whole(limit, tmp_path):
    """In version 0.7 the thread of tensorboardX ended, and the run waited for it for ever."""
    pytest.importorskip("tensorboardX")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(tmp_path), str(limit)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "6"
    assert done.stderr.count("figures cannot be written for TensorBoard into") <= 2
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert all(line.startswith("{") and line.endswith("}") for line in lines)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 7
    names = {path.name for path in tmp_path.rglob("*")}
    assert not [name for name in names if name.endswith(".tmp")]


BOARD = """
import resource, signal, sys
import gluon_svrg as gs
from mxnet import gluon
import mxnet as mx

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
net = gluon.nn.Dense(2, in_units=3)
net.initialize()
trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
board = gs.TensorBoardHandler(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (60, resource.RLIM_INFINITY))
estimator.fit([(mx.nd.ones((2, 3)), mx.nd.zeros(2))], epochs=2, event_handlers=[board])
"""


def test_figures_that_are_lost_at_the_end_are_told(tmp_path):
    """They are written when the file is closed: a short run ended without a word."""
    pytest.importorskip("tensorboardX")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BOARD, str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("figures cannot be written for TensorBoard into") == 1


EXPORT = """
import os, resource, signal, sys
import gluon_svrg as gs
import mxnet as mx
import numpy as np

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, limit = sys.argv[1], int(sys.argv[2])
x = np.ones((2, 3), "float32")
def net(value):
    net = mx.gluon.nn.Dense(100, in_units=3)
    net.initialize(mx.init.Constant(value))
    return net
gs.deploy.export(net(1.0), folder + "/m", x)
before = gs.deploy.Predictor(folder + "/m")(x)
size = os.path.getsize(folder + "/m/model-0000.params")
resource.setrlimit(resource.RLIMIT_FSIZE, (size - limit, resource.RLIM_INFINITY))
try:
    gs.deploy.export(net(2.0), folder + "/m", x, overwrite=True)
except OSError as error:
    print("OSError")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
after = gs.deploy.Predictor(folder + "/m")(x)
print((before == after).all(), (after == 2 * before).all(), os.listdir(folder))
"""


@pytest.mark.parametrize("missing", [10, 500, 1500])
def test_an_export_is_whole_or_not_at_all(missing, tmp_path):
    """In version 0.7 it said that all was well, and sealed parameters whose end was missing."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXPORT, str(tmp_path), str(missing)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["OSError", "True False ['m']"], done.stderr[-2000:]


KILLED = """
import os, sys
import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.deploy import model_dir

net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize()
if "die" in sys.argv:
    model_dir._move = lambda *_: os._exit(9)
gs.deploy.export(net, sys.argv[1] + "/m", np.ones((2, 3), "float32"), overwrite=True)
"""


def test_a_killed_export_leaves_nothing_for_long(tmp_path):
    codes, left = [], []
    for more in ([], ["die"], []):
        command = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path), *more]
        codes.append(subprocess.run(command, check=False, timeout=100).returncode)
        left.append(len(list(tmp_path.iterdir())))
    assert (codes, left) == ([0, 9, 0], [1, 2, 1])
