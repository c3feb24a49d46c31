"""The handler of docs/howto/own_method.md: a resume gives the bits of an undisturbed run."""

import re
from contextlib import nullcontext
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchEnd, GradientReady
from mxnet import gluon

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own_method.md"
BATCHES = 6


class KilledError(Exception):
    pass


class Killed(GradientReady):
    """Ends the run in the middle of a batch, as a killed process: there is no last checkpoint."""

    def __init__(self, batch):
        self.batch = batch

    def gradient_ready(self, estimator, *args, **kwargs):
        if estimator.position.batch == self.batch:
            raise KilledError


class Stopped(BatchEnd):
    """Stops after a batch, also if a snapshot is due there: its full pass is interrupted."""

    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch == self.batch:
            estimator.stop()


@pytest.fixture(scope="module")
def loopless():
    """The class, from the first block of the page."""
    first = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    names = {"__name__": "own_method"}
    exec(first, names)
    return names["LooplessSVRG"]


def run(loopless, *more, table, seed=0, resume=None):
    gs.seed_everything(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dropout(0.3), gluon.nn.Dense(3))
    net.initialize(mx.init.Xavier())
    params = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", params)
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    rng = np.random.default_rng(0)
    data = gs.data.ArrayLoader(
        rng.normal(size=(40, 6)).astype("float32"),
        rng.integers(0, 3, 40).astype("float32"),
        batch_size=7,
        shuffle=True,
        seed=3,
    )
    schedule = gs.linear_decay(0.9)
    handler = loopless(0.2, coefficient=schedule, seed=4, gradient_table=table)
    result = estimator.fit(
        data, epochs=4, event_handlers=[handler, *more], resume=resume, verbose=0
    )
    return problems.weights_of(net), handler.snapshots, result.history.column("coefficient")


@pytest.fixture(scope="module", params=[True, False], ids=["table", "recompute"])
def undisturbed(request, loopless, tmp_path_factory):
    checkpoints = gs.CheckpointHandler(tmp_path_factory.mktemp("whole"))
    return request.param, run(loopless, checkpoints, table=request.param)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [10, 17])  # after the batch 10 a snapshot is due
@pytest.mark.parametrize("end", [Killed, Stopped])
def test_a_resume_gives_the_same_bits(end, batch, undisturbed, loopless, tmp_path):
    table, whole = undisturbed
    assert 3 <= whole[1] < 4 * BATCHES
    checkpoints = gs.CheckpointHandler(tmp_path, every_n_batches=3)
    with pytest.raises(KilledError) if end is Killed else nullcontext():
        run(loopless, checkpoints, end(batch), table=table)
    resumed = run(loopless, checkpoints, table=table, seed=1, resume="auto")
    assert problems.same(whole[0], resumed[0])
    assert whole[1:] == resumed[1:]
