"""What the documents promise, where a user meets it: convolutions, evaluations between epochs.

After an inference pass oneDNN keeps the weights of convolutions in a layout of its own; networks as
small as in most other tests do not show what comes of that.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg._mxnet.block import parameters_by_structure
from gluon_svrg.arrays.encoding import from_bytes
from gluon_svrg.checkpoint.network_state import save_network
from gluon_svrg.events import BatchEnd, Order
from gluon_svrg.handlers.early_stopping import _copied
from gluon_svrg.optimizer.states import trainer_states
from gluon_svrg.reporting.history import MEASURED
from mxnet import autograd, gluon
from mxnet.gluon import nn
from problems import ONE, TWO

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3, 8, 8)).astype("float32"), np.arange(40) % 4
LOSS = gluon.loss.SoftmaxCELoss()
FLAGS = {"plain": None, "static": {"static_alloc": True, "static_shape": True}}


def net_of(contexts=ONE, dtype="float32", dropout=0.3, hybridize=FLAGS["static"]):
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for channels in (3, 64):
            net.add(nn.Conv2D(64, 3, padding=1, use_bias=False, in_channels=channels))
            net.add(nn.BatchNorm(in_channels=64), nn.Activation("relu"))
        net.add(nn.GlobalAvgPool2D(), nn.Dropout(dropout), nn.Dense(4, in_units=64))
    net.cast(dtype)
    net.initialize(mx.init.Xavier(magnitude=2), ctx=contexts)
    if hybridize is not None:
        net.hybridize(**hybridize)
    return net


def estimator_of(net, optimizer="nag", learning_rate=0.1):
    arguments = {"learning_rate": learning_rate, "momentum": 0.9, "wd": 1e-2}
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, arguments)
    return gs.Estimator(net, LOSS, mx.metric.Accuracy(), trainer=trainer)


def loader(dtype="float32"):
    """Batches of 16, 16 and 8."""
    return gs.data.ArrayLoader(X.astype(dtype), Y, batch_size=16, shuffle=True, seed=1)


def fit(estimator, *handlers, epochs=3, dtype="float32", **arguments):
    """Train with an evaluation after each epoch; return the rows without what is measured."""
    test = gs.data.ArrayLoader(X.astype(dtype), Y, batch_size=20)
    result = estimator.fit(
        loader(dtype), test, epochs=epochs, event_handlers=list(handlers), verbose=0, **arguments
    )
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]


def arrays_of(net):
    """All parameters and running statistics, on each context."""
    return [data.asnumpy() for p in net.collect_params().values() for data in p.list_data()]


def gradients(net, parts):
    with autograd.record():
        losses = [LOSS(net(x), y) for x, y in zip(*parts, strict=True)]
    autograd.backward(losses)
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    return [[grad.copy() for grad in param.list_grad()] for param in trained]


def by_hand(contexts, epochs):
    """SVRG by two networks of Gluon's and its own Trainer; the weights after each step."""
    net, twin = (net_of(contexts, "float64", dropout=0, hybridize=None) for _ in range(2))
    optimizer = gs.NAG(learning_rate=0.1, momentum=0.9, wd=1e-2)
    trainer = gluon.Trainer(net.collect_params(), optimizer, update_on_kvstore=False)
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    batches = [
        [
            gluon.utils.split_and_load(mx.nd.array(part, dtype="float64"), contexts)
            for part in (batch[0].asnumpy(), batch[1].asnumpy())
        ]
        for batch in loader("float64").in_order()
    ]
    order = loader()
    steps = []
    for epoch in range(epochs):
        for param, copy in zip(
            net.collect_params().values(), twin.collect_params().values(), strict=True
        ):
            copy.set_data(param.data(contexts[0]))
        sums = [[grad.asnumpy() for grad in grads] for grads in gradients(twin, batches[0])]
        for batch in batches[1:]:
            for total, grads in zip(sums, gradients(twin, batch), strict=True):
                total[:] = [a + b.asnumpy() for a, b in zip(total, grads, strict=True)]
        means = [sum(total) / len(X) for total in sums]
        for index in order.order(epoch):
            batch = batches[index]
            there = gradients(twin, batch)
            gradients(net, batch)
            for param, old, mean in zip(trained, there, means, strict=True):
                for grad, snapshot, part in zip(param.list_grad(), old, batch[1], strict=True):
                    grad[:] = grad.asnumpy() - (1 - epoch / epochs) * (
                        snapshot.asnumpy() - mean * len(part)
                    )
            trainer.step(sum(map(len, batch[1])))
            steps.append([param.data(contexts[0]).asnumpy() for param in trained])
    return steps


@pytest.mark.parametrize("table", [True, False], ids=["table", "recomputed"])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_every_step_is_the_rule_by_two_networks(contexts, table):
    estimator = estimator_of(net_of(contexts, "float64", dropout=0))
    trained = [p for p in estimator.net.collect_params().values() if p.grad_req != "null"]
    steps = []

    class Watch(BatchEnd):
        priority = -1500

        def batch_end(self, estimator, *args, **kwargs):
            steps.append([param.data(contexts[0]).asnumpy() for param in trained])

    svrg = gs.SVRGHandler(coefficient=gs.linear_decay(1.0), gradient_table=table)
    fit(estimator, svrg, Watch(), epochs=2, dtype="float64")
    expected = by_hand(contexts, 2)
    assert len(steps) == len(expected) == 6
    for number, (ours, theirs) in enumerate(zip(steps, expected, strict=True)):
        assert problems.relative_difference(ours, theirs) < 1e-10, number


class Power(Exception):
    """The machine goes down."""


class CutAt(BatchEnd):
    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batch:
            raise Power


@pytest.mark.parametrize(("optimizer", "svrg"), [("sgd", False), ("nag", True), ("lars", True)])
def test_a_run_that_is_cut_ends_as_the_one_that_is_not(optimizer, svrg, tmp_path):
    """Twice, in the middle of an epoch: weights, averages, states, history."""

    def run(folder, cut=None, **arguments):
        gs.seed_everything(0)
        estimator = estimator_of(net_of(), optimizer)
        handlers = [gs.CheckpointHandler(folder, every_n_batches=2), gs.EMAHandler(0.9, keep=True)]
        handlers += [gs.SVRGHandler()] if svrg else []
        handlers += [CutAt(cut)] if cut else []
        rows = fit(estimator, *handlers, epochs=4, **arguments)
        return arrays_of(estimator.net), trainer_states(estimator.trainer).to_bytes(), rows

    expected = run(tmp_path / "whole")
    for batch in (5, 8):
        with pytest.raises(Power):
            run(tmp_path / "cut", batch, resume="auto")
    weights, states, rows = run(tmp_path / "cut", resume="auto")
    assert problems.same(weights, expected[0])
    assert states == expected[1]
    assert rows == expected[2]


@pytest.mark.parametrize("hybridize", FLAGS)
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_svrg_leaves_the_running_statistics_as_they_are(contexts, hybridize):
    def run(*handlers):
        gs.seed_everything(0)
        estimator = estimator_of(net_of(contexts, hybridize=FLAGS[hybridize]), learning_rate=0)
        rows = fit(estimator, *handlers)
        return arrays_of(estimator.net), [row["validation loss"] for row in rows]

    plain, svrg = run(), run(gs.SVRGHandler(), gs.VarianceHandler(at=(50,), batches=2))
    assert problems.same(plain[0], svrg[0])
    assert plain[1] == svrg[1]
    assert plain[1][0] != plain[1][2]  # the statistics move, though the weights do not


class Disturbance(BatchEnd):
    """Evaluates, predicts and draws random numbers in the middle of an epoch."""

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch % 3 == 0:
            estimator.evaluate([(X[:20], Y[:20])])
            estimator.predict(X[:4])
            mx.nd.random.uniform().wait_to_read()


@pytest.mark.parametrize("table", [True, False], ids=["table", "recomputed"])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_masks_are_those_of_the_snapshot(contexts, table):
    """Where the weights are the snapshot's, each corrected gradient is the full gradient."""
    estimator = estimator_of(net_of(contexts, "float64"), learning_rate=0)
    recorder = problems.Recorder()
    svrg = gs.SVRGHandler(update_freq=3, gradient_table=table)
    fit(estimator, svrg, recorder, Disturbance(), dtype="float64")
    sizes = [len(loader()[index][1]) for epoch in range(3) for index in loader().order(epoch)]
    means = [[g / n for g in grads] for grads, n in zip(recorder.gradients, sizes, strict=True)]
    for other in means[1:]:
        assert problems.relative_difference(other, means[0]) < 1e-12


def test_an_average_of_running_statistics_repeats():
    """MXNet does not order a read after the backward pass that writes them, with static shapes."""

    def run():
        gs.seed_everything(0)
        estimator = estimator_of(net_of(), "sgd")
        fit(estimator, gs.EMAHandler(0.9, keep=True), epochs=2)
        return arrays_of(estimator.net)

    first = run()
    assert all(problems.same(run(), first) for _ in range(4))


@pytest.mark.parametrize("read", [_copied, save_network])
def test_what_is_kept_of_running_statistics_is_what_they_are(read):
    """For `restore_best` and for a checkpoint, with weights that wait for no step."""
    equal = []

    class Look(BatchEnd):
        priority = Order.LAST

        def batch_end(self, estimator, *args, **kwargs):
            kept = read(estimator)
            mx.nd.waitall()
            kept = list(kept.get("weights", kept).values())
            now = [
                param.data().asnumpy() for param in parameters_by_structure(estimator.net).values()
            ]
            equal.append(
                all(np.array_equal(np.asarray(getattr(k, "asnumpy", lambda k=k: k[0])()), n)
                    for k, n in zip(kept, now, strict=True))
            )  # fmt: skip

    net = net_of()
    trainer = gs.SVRGTrainer(net[-1].collect_params(), "sgd", {"learning_rate": 0.1})
    fit(gs.Estimator(net, LOSS, trainer=trainer), Look(), epochs=5)
    assert equal == [True] * 15


@pytest.mark.parametrize("read", [_copied, save_network])
def test_running_statistics_are_read_after_what_writes_them(read, monkeypatch):
    """The test above finds a read that comes too early only if the machine is in the mood."""
    estimator = estimator_of(net_of(), "sgd")
    events, as_numpy = [], mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd, "waitall", lambda: events.append("waited"))
    monkeypatch.setattr(
        mx.nd.NDArray, "asnumpy", lambda array: events.append("read") or as_numpy(array)
    )
    read(estimator)
    assert events.index("waited") < events.index("read")


def test_what_watches_changes_nothing(tmp_path):
    """Logs, meters, guards, profiles, checkpoints, an average: the weights of the plain run."""

    def run(*handlers):
        gs.seed_everything(0)
        net = net_of(dropout=0)  # with dropout, checkpoints seed the masks
        rows = fit(estimator_of(net), *handlers)
        return arrays_of(net), rows[-1]["validation loss"]

    watching = [
        gs.CheckpointHandler(tmp_path / "checkpoints", every_n_batches=1),
        gs.EMAHandler(0.9, evaluate=False),
        gs.EarlyStoppingHandler("validation loss", patience=9),
        gs.HistoryFileHandler(tmp_path / "log.csv"),
        gs.NaNGuardHandler(),
        gs.ProfilerHandler(),
        gs.TimeLimitHandler(3600),
        gs.VarianceHandler(at=(50, 100), batches=2),
        gs.ValidationHandler([(X[:20], Y[:20])], every_n_batches=1, every_n_epochs=None),
    ]
    plain, watched = run(), run(*watching)
    assert problems.same(plain[0], watched[0])


def test_training_goes_on_after_an_export_bit_for_bit(tmp_path):
    def run(exports):
        gs.seed_everything(0)
        estimator = estimator_of(net_of())
        fit(estimator)
        if exports:
            gs.deploy.export(estimator.net, tmp_path / "model", X[:4])
            gs.summary(estimator.net, loader())
        fit(estimator)
        return arrays_of(estimator.net)

    assert problems.same(run(False), run(True))


def test_the_how_to_of_checkpoints_keeps_its_word(tmp_path, monkeypatch):
    """Its own program, ended after two epochs and started again, beside one that is not."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "howto" / "resume.md").read_text()
    program = re.search(r"```python\n(.*?)\n\ntrain\(", page, re.DOTALL)[1]

    def run(folder, *epochs):
        names = {}
        exec(program.replace('"checkpoints"', f'"{folder}"'), names)
        for number in epochs:
            estimator, result = names["train"](epochs=number, resume="auto")
        rows = [{k: v for k, v in row.items() if k not in MEASURED} for row in result.history]
        _, states = from_bytes(trainer_states(estimator.trainer).to_bytes())
        return [*arrays_of(estimator.net), *states.values()], rows

    whole, parts = run("whole", 4), run("parts", 2, 4)
    assert len(whole[0]) == 4 + 4  # with the momentum
    assert problems.same(whole[0], parts[0])
    assert whole[1] == parts[1]
    assert len(whole[1]) == 4


HASH = """
import hashlib, test_promises as promises
estimator = promises.estimator_of(promises.net_of())
promises.fit(estimator, epochs=2)
parts = [array.tobytes() for array in promises.arrays_of(estimator.net)]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


@pytest.mark.long
def test_how_threads_wait_changes_no_bit():
    def run(**variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP", "GOMP"))}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", HASH],
            env=environment | {"OMP_NUM_THREADS": "2"} | variables,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.split()[-1]

    first = run()
    assert run(GOMP_SPINCOUNT="0") == first
    assert run(OMP_WAIT_POLICY="passive") == first
