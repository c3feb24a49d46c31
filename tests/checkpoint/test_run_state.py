"""A run that continues from a checkpoint is, bit for bit, the run that was never interrupted."""

import collections
import functools
import json
import logging
import os
import random
import re
import tempfile
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.arrays import encoding
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd, Stateful
from gluon_svrg.metrics import state as metric_state
from gluon_svrg.optimizer.states import trainer_states
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.rng import seed_mxnet
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib.estimator import LoggingHandler
from problems import ONE, TWO

THREE = [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
SAMPLES, BATCH_SIZE = 14, 4  # 4 batches, the last of 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SAMPLES, 6)).astype("float32")
Y = RNG.integers(0, 3, SAMPLES).astype("float32")


def net_of(dropout=0.3, batch_norm=True, units=4, layers=2, in_units=6):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(layers - 1):
            net.add(nn.Dense(units, in_units=in_units, activation="tanh"))
            in_units = units
        if batch_norm:
            net.add(nn.BatchNorm(in_channels=units))
        if dropout:
            net.add(nn.Dropout(dropout))
        net.add(nn.Dense(3, in_units=in_units))
    return net


def estimator_of(
    seed=0,
    contexts=ONE,
    optimizer="sgd",
    lr_scheduler=None,
    net=None,
    metrics=None,
    dtype="float32",
    **net_arguments,
):
    net = net_of(**net_arguments) if net is None else net
    mx.random.seed(seed)
    problems.initialize(net, mx.init.Normal(0.5), contexts, dtype)
    arguments = {"learning_rate": 0.1, "lr_scheduler": lr_scheduler}
    if optimizer == "sgd":
        arguments["momentum"] = 0.9
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, arguments)
    loss = gluon.loss.SoftmaxCELoss()
    estimator = gs.Estimator(net, loss, metrics, trainer=trainer, context=list(contexts))
    estimator.logger = logging.getLogger("test_resume")
    return estimator


def everything(estimator):
    """All parameters and auxiliary states on all contexts."""
    params = estimator.net.collect_params().values()
    return [array.asnumpy() for param in params for array in param.list_data()]


def figures(history):
    """The rows, without what is measured."""
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in history]


def loader(seed=5, batch_size=BATCH_SIZE, samples=SAMPLES, shuffle=True):
    return ArrayLoader(X[:samples], Y[:samples], batch_size=batch_size, shuffle=shuffle, seed=seed)


def batches(count=4, scale=1.0):
    parts = [slice(i, i + BATCH_SIZE) for i in range(0, SAMPLES, BATCH_SIZE)]
    return [(scale * X[part], Y[part]) for part in parts[:count]]


class Noisy(gluon.data.Dataset):
    """Draws from NumPy's and Python's generators for each sample."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = random.random() + np.random.normal(size=6)
        return (X[index] + 0.1 * noise).astype("float32"), Y[index]


class Lazy:
    """Has no length; draws when its first batch is asked for."""

    def __iter__(self):
        for index in np.random.permutation(4):
            yield batches()[index]


class Eager:
    """Has no length; draws when it is asked for an iterator, as loaders with workers do."""

    def __iter__(self):
        order = np.random.permutation(4)
        return (batches()[index] for index in order)


DATA = {
    "list": batches,
    "ArrayLoader": loader,
    "DataLoader": lambda: gluon.data.DataLoader(Noisy(), BATCH_SIZE, shuffle=True),
    "lazy": Lazy,
    "eager": Eager,
}


class StopAt(BatchEnd, EpochBegin, EpochEnd):
    """Ends the run after some batches, or at the begin or the end of an epoch."""

    def __init__(self, batch=None, begin=None, end=None):
        self.batch = batch
        self.begin = begin
        self.end = end

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batch:
            estimator.stop()

    def epoch_begin(self, estimator, *args, **kwargs):
        if estimator.position.epoch == self.begin:
            estimator.stop()

    def epoch_end(self, estimator, *args, **kwargs):
        if estimator.position.epoch == self.end:
            estimator.stop()


def svrg_handlers(**arguments):
    return [gs.SVRGHandler(**arguments)]


def run_of(folder, handlers, data, duration, seed, extra=(), resume=None, contexts=ONE, **net):
    """Train; return the estimator, the result, and what random numbers would come next."""
    gs.seed_everything(seed)
    estimator = estimator_of(seed, contexts, **net)
    given = [*handlers(), gs.CheckpointHandler(folder), *extra]
    result = estimator.fit(data(), event_handlers=given, resume=resume, **duration)
    following = [np.random.random(), random.random(), mx.nd.random.uniform().asscalar()]
    return estimator, result, following


@functools.cache
def whole_run(handlers, data, duration, net, is_numpy):
    """What a run that is not interrupted comes to."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome(*run_of(folder, handlers, data, dict([duration]), 0, **dict(net)))


def outcome(estimator, result, following):
    return {
        "weights": everything(estimator),
        "trainer": trainer_states(estimator.trainer).to_bytes(),
        "history": figures(result.history),
        "stop_reason": result.stop_reason,
        "epochs_run": result.epochs_run,
        "position": estimator.position,
        "following": following,
    }


def check_that_it_is_exact(folder, handlers, data, stop, part=None, whole=None, **net):
    """Compare one run with two, of which the second continues as another process would."""
    whole = whole or {"epochs": 3}
    ((duration),) = whole.items()
    expected = whole_run(handlers, data, duration, tuple(net.items()), mx.util.is_np_array())
    extra = [] if stop is None else [stop]
    run_of(folder, handlers, data, part or whole, 0, extra, **net)
    # Another seed, other weights, other states of all generators: nothing of it may matter.
    ours = outcome(*run_of(folder, handlers, data, whole, 123, resume="auto", **net))
    assert problems.same(ours.pop("weights"), expected["weights"])
    assert ours == {name: value for name, value in expected.items() if name != "weights"}


STOPS = {
    "first batch": StopAt(batch=1),
    "in an epoch": StopAt(batch=6),
    "last batch of an epoch": StopAt(batch=8),
    "begin of an epoch": StopAt(begin=2),
    "begin of the run": StopAt(begin=0),
    "end of an epoch": StopAt(end=1),
}


@pytest.mark.full
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("data", DATA)
def test_every_kind_of_data(data, stop, tmp_path):
    handlers = svrg_handlers if data in ("list", "ArrayLoader") else list
    check_that_it_is_exact(tmp_path, handlers, DATA[data], STOPS[stop])


def all_handlers():
    return [
        gs.SVRGHandler(update_freq=2, coefficient=gs.linear_decay(0.9)),
        gs.GradientUpdateHandler(accumulate=3, clip_norm=0.5),
        gs.EMAHandler(0.9),
        gs.NaNGuardHandler(every_n_batches=3),
    ]


class Figure(BatchEnd):
    """Puts something into the row of the epoch, early in it."""

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch_in_epoch == 0:
            estimator.figures["first"] = float(kwargs["loss"][0].asnumpy()[0])


HANDLERS = {
    "none": list,
    "every snapshot held for two epochs": lambda: svrg_handlers(update_freq=2),
    "no table": lambda: svrg_handlers(gradient_table=False),
    "late SVRG": lambda: svrg_handlers(start_epoch=1, stop_epoch=2),
    "decaying coefficient": lambda: svrg_handlers(coefficient=gs.linear_decay(0.75)),
    "accumulation": lambda: [gs.GradientUpdateHandler(accumulate=3)],
    "averages": lambda: [gs.EMAHandler(0.9, every_n_steps=2)],
    "averages to keep": lambda: [gs.EMAHandler(0.9, keep=True)],
    "guard": lambda: [gs.NaNGuardHandler()],
    "evaluations in epochs": lambda: [gs.ValidationHandler(batches(2), None, every_n_batches=3)],
    "evaluations of epochs": lambda: [gs.ValidationHandler(batches(2), 2)],
    "figures of a handler": lambda: [Figure()],
    "all": all_handlers,
}


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("stop", ["in an epoch", "end of an epoch"])
@pytest.mark.parametrize("handlers", HANDLERS)
def test_every_handler(handlers, stop, tmp_path):
    check_that_it_is_exact(tmp_path, HANDLERS[handlers], loader, STOPS[stop])


@pytest.mark.usefixtures("mode")
def test_a_step_that_no_backward_pass_comes_before(tmp_path):
    """It takes what was left of the epoch, right after the resume."""
    check_that_it_is_exact(
        tmp_path, HANDLERS["accumulation"], loader, STOPS["last batch of an epoch"]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("stop", STOPS)
def test_all_handlers(stop, tmp_path):
    check_that_it_is_exact(tmp_path, all_handlers, batches, STOPS[stop], dropout=0)


class CutEachEpoch(BatchEnd):
    """Ends each epoch after two batches, and the run continues."""

    def batch_end(self, estimator, *args, **kwargs):
        return estimator.position.batch_in_epoch == 1


def cut_epochs():
    return [gs.SVRGHandler(), CutEachEpoch()]


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("batch", [3, 4])
def test_epochs_that_a_handler_cuts_short(batch, tmp_path):
    """At the cut itself (4) the rest of the epoch must not be trained after the resume."""
    check_that_it_is_exact(tmp_path, cut_epochs, loader, StopAt(batch=batch))


DURATIONS = {
    "epochs": ({"epochs": 2}, {"epochs": 4}),
    "batches": ({"batches": 7}, {"batches": 13}),
    "whole epochs of batches": ({"batches": 8}, {"batches": 12}),
    "epochs, then batches": ({"epochs": 1}, {"batches": 7}),
    "batches, then epochs": ({"batches": 7}, {"epochs": 3}),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("duration", "data"),
    [*((name, "list") for name in DURATIONS), ("epochs", "DataLoader"), ("batches", "DataLoader")],
)
def test_a_longer_run(duration, data, tmp_path):
    part, whole = DURATIONS[duration]
    check_that_it_is_exact(tmp_path, svrg_handlers, DATA[data], None, part, whole)


@pytest.mark.slow
@pytest.mark.parametrize("every_n_batches", [1, 2])
def test_checkpoints_in_mid_epoch_change_nothing(every_n_batches, tmp_path):
    runs = []
    for name, period in (("a", None), ("b", every_n_batches)):
        gs.seed_everything(0)
        estimator = estimator_of()
        handlers = [*all_handlers(), gs.CheckpointHandler(tmp_path / name, every_n_batches=period)]
        estimator.fit(loader(), epochs=2, event_handlers=handlers)
        runs.append([*everything(estimator), np.random.random(), mx.nd.random.uniform().asnumpy()])
    assert problems.same(*runs)


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", ["epoch-0-batch-4", "epoch-1-batch-4", "epoch-1-batch-6"])
def test_from_every_checkpoint_in_mid_epoch(name, tmp_path):
    def run(folder, seed, **arguments):
        gs.seed_everything(seed)
        estimator = estimator_of(seed)
        handlers = [*all_handlers(), gs.CheckpointHandler(folder, 1, 2, keep_last=None)]
        estimator.fit(loader(), epochs=3, event_handlers=handlers, **arguments)
        return everything(estimator)

    expected = run(tmp_path / "a", 0)
    assert problems.same(run(tmp_path / "b", 123, resume=tmp_path / "a" / name), expected)


class Sample(EpochEnd, Stateful):
    """Draws from MXNet at the end of each epoch."""

    def __init__(self):
        self.drawn = []

    def epoch_end(self, estimator, *args, **kwargs):
        self.drawn.append(float(mx.nd.random.uniform().asscalar()))

    def state_dict(self, estimator):
        return {"drawn": self.drawn}

    def load_state_dict(self, estimator, state):
        self.drawn = state["drawn"]


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("dropout", [0, 0.3])
@pytest.mark.parametrize("batch", [5, 6])
def test_what_a_handler_draws_at_the_end_of_an_epoch(dropout, batch, tmp_path):
    """With dropout MXNet is seeded at each batch, without only once an epoch."""

    def run(seed, extra=(), **arguments):
        gs.seed_everything(seed)
        sample = Sample()
        checkpoints = gs.CheckpointHandler(tmp_path / arguments.pop("folder"), 1, batch)
        estimator_of(seed, dropout=dropout).fit(
            batches(), epochs=3, event_handlers=[sample, checkpoints, *extra], **arguments
        )
        return sample.drawn

    expected = run(0, folder="whole")
    assert len(set(expected)) == 3
    run(0, [StopAt(batch=batch)], folder="cut")
    assert run(123, folder="cut", resume="auto") == expected


@pytest.mark.parametrize("dropout", [0, 0.3])
def test_what_seeds_are_paid_for(dropout, monkeypatch, tmp_path):
    """A seed takes a millisecond: at each batch only where the first one drew random numbers."""
    batches_seeded = []

    def seed(run, kind, epoch, batch):
        batches_seeded.append((epoch, batch))
        seed_mxnet(run, kind, epoch, batch)

    monkeypatch.setattr("gluon_svrg.checkpoint.random_state.seed_mxnet", seed)
    checkpoints = gs.CheckpointHandler(tmp_path)
    estimator_of(dropout=dropout).fit(batches(), epochs=1, event_handlers=checkpoints)
    assert ({(0, 2), (0, 3), (0, 4)} <= set(batches_seeded)) == bool(dropout)


@pytest.mark.slow
def test_an_lr_scheduler_goes_on(tmp_path):
    def scheduled(duration, seed, folder, resume=None):
        scheduler = mx.lr_scheduler.FactorScheduler(2, 0.7, base_lr=0.1)
        run = run_of(
            tmp_path / folder, list, batches, duration, seed, resume=resume, lr_scheduler=scheduler
        )
        return figures(run[1].history)

    expected = scheduled({"batches": 13}, 0, "whole")
    scheduled({"batches": 6}, 0, "cut")
    assert scheduled({"batches": 13}, 1, "cut", "auto") == expected
    assert len({row["learning_rate"] for row in expected}) == 4


def two_classes(rng):
    return mx.nd.array(rng.integers(0, 2, 8)), mx.nd.array(rng.dirichlet([1, 1], 8))


def three_classes(rng):
    return mx.nd.array(rng.integers(0, 3, 8)), mx.nd.array(rng.dirichlet([1, 1, 1], 8))


def numbers(rng):
    return mx.nd.array(rng.normal(size=8)), mx.nd.array(rng.normal(size=8))


def losses(rng):
    return None, mx.nd.array(rng.normal(size=8))


class Histogram(mx.metric.EvalMetric):
    """Keeps a defaultdict; its value is the size of the largest bin."""

    def __init__(self):
        self.bins = collections.defaultdict(int)
        super().__init__("histogram")

    def update(self, labels, preds):
        for number in preds[0].asnumpy():
            self.bins[int(4 * number)] += 1

    def get(self):
        return self.name, (max(self.bins.values()), len(self.bins))


METRICS = {
    "accuracy": (mx.metric.Accuracy, three_classes),
    "top 2": (lambda: mx.metric.TopKAccuracy(2), three_classes),
    "macro F1": (mx.metric.F1, two_classes),
    "micro F1": (lambda: mx.metric.F1(average="micro"), two_classes),
    "MCC": (mx.metric.MCC, two_classes),
    "PCC": (mx.metric.PCC, three_classes),
    "perplexity": (lambda: mx.metric.Perplexity(None), three_classes),
    "cross entropy": (mx.metric.CrossEntropy, three_classes),
    "likelihood": (mx.metric.NegativeLogLikelihood, three_classes),
    "MAE": (mx.metric.MAE, numbers),
    "MSE": (mx.metric.MSE, numbers),
    "RMSE": (mx.metric.RMSE, numbers),
    "correlation": (mx.metric.PearsonCorrelation, numbers),
    "micro correlation": (lambda: mx.metric.PearsonCorrelation(average="micro"), numbers),
    "loss": (mx.metric.Loss, losses),
    "a function": (lambda: mx.metric.np(lambda label, pred: (label * pred).sum()), numbers),
    "a dict": (Histogram, numbers),
    "several": (
        lambda: mx.metric.CompositeEvalMetric([mx.metric.MAE(), mx.metric.RMSE()]),
        numbers,
    ),
}


@pytest.mark.parametrize("kind", METRICS)
def test_a_metric_goes_on_in_mid_epoch(kind):
    make, draw = METRICS[kind]
    whole, first, second = make(), make(), make()
    rng = np.random.default_rng(0)
    data = [draw(rng) for _ in range(4)]
    for label, pred in data:
        whole.update([label], [pred])
    for label, pred in data[:2]:
        first.update([label], [pred])
    second.update([data[3][0]], [data[3][1]])  # what it was before must not matter
    arrays = {}
    text = json.dumps(encoding.encode(metric_state.metric_state(first), arrays))
    metric_state.set_metric_state(second, encoding.decode(json.loads(text), arrays, mx.cpu()))
    assert second.get() == first.get() != whole.get()
    for label, pred in data[2:]:
        second.update([label], [pred])
    assert second.get() == whole.get()
    assert second.get_global() == whole.get_global()


class ScaledLoss(gluon.loss.Loss):
    """Has a parameter of its own, which the trainer trains too."""

    def __init__(self):
        super().__init__(None, 0, prefix="loss_")
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(1,), init=mx.init.One())

    def hybrid_forward(self, F, pred, label, scale):
        loss = -F.pick(F.log_softmax(pred), label, axis=-1)
        return F.broadcast_mul(loss, scale) + 0.1 * F.square(scale).sum()


@pytest.mark.slow
def test_parameters_outside_of_the_network(tmp_path):
    def train(folder, seed, duration, **arguments):
        gs.seed_everything(seed)
        net, loss = net_of(), ScaledLoss()
        params = {**net.collect_params(), **loss.collect_params()}
        for param in params.values():
            param.initialize(mx.init.Normal(0.5))
        loss.scale.set_data(mx.nd.array([1 + seed]))
        trainer = gs.SVRGTrainer(params, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        estimator = gs.Estimator(net, loss, trainer=trainer)
        checkpoints = gs.CheckpointHandler(tmp_path / folder)
        estimator.fit(batches(), event_handlers=checkpoints, **duration, **arguments)
        return [*everything(estimator), loss.scale.data().asnumpy()]

    expected = train("whole", 0, {"batches": 9})
    assert expected[-1] != 1
    train("cut", 0, {"batches": 6})
    assert problems.same(train("cut", 1, {"batches": 9}, resume="auto"), expected)


DEFERRED = {"units": 4, "in_units": 0, "layers": 3}


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("stop", ["first batch", "in an epoch"])
def test_a_network_that_infers_its_shapes(stop, tmp_path):
    check_that_it_is_exact(tmp_path, list, batches, STOPS[stop], **DEFERRED)


@pytest.mark.usefixtures("mode")
def test_a_network_that_has_not_inferred_its_shapes_yet(tmp_path):
    """There is nothing to write, and that is no reason to fail."""
    extra = [STOPS["begin of the run"]]
    _, result, _ = run_of(tmp_path, list, batches, {"epochs": 2}, 0, extra, **DEFERRED)
    assert result.stop_reason is gs.StopReason.REQUESTED
    _, result, _ = run_of(tmp_path, list, batches, {"epochs": 2}, 0, resume="auto", **DEFERRED)
    assert [row["epoch"] for row in result.history] == [0, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("stop", ["end of an epoch", "in an epoch"])
@pytest.mark.parametrize("handlers", [LoggingHandler, lambda: LoggingHandler(2)])
def test_mxnets_logging_handler(handlers, stop, tmp_path):
    check_that_it_is_exact(tmp_path, lambda: [handlers()], batches, STOPS[stop], dropout=0)


# Another number of devices.


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("before", "after"), [(ONE, TWO), (TWO, ONE), (TWO, THREE)])
def test_another_number_of_devices(before, after, accumulate, table, tmp_path, caplog):
    def handlers():
        svrg = gs.SVRGHandler(update_freq=2, gradient_table=table)
        update = gs.GradientUpdateHandler(accumulate=accumulate)
        return [svrg, update, gs.EMAHandler(0.9, keep=True)]

    net = {"dropout": 0, "batch_norm": False, "dtype": "float64"}
    whole = {"batches": 11}
    expected, result, _ = run_of(
        tmp_path / "a", handlers, batches, whole, 0, contexts=before, **net
    )
    run_of(tmp_path / "b", handlers, batches, {"batches": 6}, 0, contexts=before, **net)
    with caplog.at_level(logging.WARNING, "test_resume"):
        ours, resumed, _ = run_of(
            tmp_path / "b", handlers, batches, whole, 1, contexts=after, resume="auto", **net
        )
    (warning,) = [record.getMessage() for record in caplog.records]
    expected_text = f"a checkpoint of {len(before)} devices continues on {len(after)}: the results"
    assert expected_text in warning
    weights = problems.weights_of(expected.net)
    assert problems.relative_difference(problems.weights_of(ours.net), weights) < 1e-12
    copies = [
        [param.list_data()[i].asnumpy() for param in ours.net.collect_params().values()]
        for i in range(len(after))
    ]
    assert all(problems.same(copy, copies[0]) for copy in copies)
    for row, other in zip(figures(resumed.history), figures(result.history), strict=True):
        assert row == pytest.approx(other)


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
def test_several_devices_with_running_statistics_of_their_own(tmp_path):
    check_that_it_is_exact(
        tmp_path, all_handlers, loader, STOPS["in an epoch"], contexts=tuple(TWO)
    )


# Errors.


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints after one and after two epochs of a list, and of an ArrayLoader."""
    folder = tmp_path_factory.mktemp("checkpoints")
    run_of(folder / "list", svrg_handlers, batches, {"epochs": 2}, 0)
    run_of(folder / "in_epoch", svrg_handlers, batches, {"batches": 6}, 0)
    run_of(folder / "loader", list, loader, {"epochs": 2}, 0)
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fails(checkpoints, error, message, estimator=None, data=None, **arguments):
    """Check the error, and that estimator and checkpoints are what they were."""
    estimator = estimator or estimator_of(1)
    weights, states = everything(estimator), trainer_states(estimator.trainer).to_bytes()
    reqs = [param.grad_req for param in estimator.trainer._params]
    files = contents(checkpoints)
    duration = {} if "batches" in arguments else {"epochs": 3}
    with pytest.raises(error, match=re.compile(message, re.DOTALL)) as caught:
        estimator.fit(batches() if data is None else data, **duration, **arguments)
    assert contents(checkpoints) == files
    assert [param.grad_req for param in estimator.trainer._params] == reqs
    assert problems.same(everything(estimator), weights)
    assert trainer_states(estimator.trainer).to_bytes() == states
    return str(caught.value)


class Named(nn.HybridBlock):
    """The network of these tests, with its layers under names of its own."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.first = nn.Dense(4, in_units=6, activation="tanh")
            self.norm = nn.BatchNorm(in_channels=4)
            self.last = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return self.last(self.norm(self.first(x)))


NETS = {
    "more parameters": (
        lambda: net_of(layers=3),
        "it has 8 parameters and the network has 10: resume with the network",
    ),
    "other names": (Named, "it has no parameter 'first.weight', which the network has: resume"),
    "another shape": (
        lambda: net_of(units=5),
        r"its parameter '0\.weight' has shape \(4, 6\) and the network's \(5, 6\): resume",
    ),
    "another dtype": (
        net_of,
        r"its parameter '0\.weight' has dtype float32 and the network's float64: cast",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_another_network(kind, checkpoints):
    make, message = NETS[kind]
    path = checkpoints / "list" / "epoch-1-batch-4"
    message = rf"the checkpoint '.*' does not fit this run: {message}"
    dtype = "float64" if kind == "another dtype" else "float32"
    fails(checkpoints, ValueError, message, estimator_of(net=make(), dtype=dtype), resume=path)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"optimizer": "adam"}, r"optimizer .*SGD, and this trainer has .*Adam"),
        (
            {"lr_scheduler": mx.lr_scheduler.FactorScheduler(2, base_lr=0.1)},
            r"lr_scheduler None, and this trainer has .*FactorScheduler: make .* without one",
        ),
    ],
)
def test_another_trainer(trainer, message, checkpoints):
    path = checkpoints / "list" / "epoch-1-batch-4"
    message = rf"the checkpoint '.*' does not fit this run: the states are of the {message}"
    fails(checkpoints, ValueError, message, estimator_of(**trainer), resume=path)


def test_another_set_of_trained_parameters(checkpoints):
    estimator = estimator_of()
    params = list(estimator.net.collect_params().values())
    trainer = gs.SVRGTrainer(params[:-1], "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    estimator = gs.Estimator(estimator.net, estimator.loss, trainer=trainer)
    message = "the states are of 8 parameters, and this trainer has 7"
    path = checkpoints / "loader" / "epoch-1-batch-4"
    fails(checkpoints, ValueError, message, estimator, loader(), resume=path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("list", lambda: batches(3), "its train_data had batches=4 and now it has batches=3"),
        ("list", Lazy, "its train_data had batches=4 and now it has batches=None"),
        ("list", loader, "its train_data was no ArrayLoader and now it is an ArrayLoader"),
        ("loader", batches, "its train_data was an ArrayLoader and now it is no ArrayLoader"),
        ("loader", lambda: loader(batch_size=3), "had batch_size=4 and now it has batch_size=3"),
        ("loader", lambda: loader(seed=6), "its train_data had seed=5 and now it has seed=6"),
        ("loader", lambda: loader(samples=13), "had samples=14 and now it has samples=13"),
        ("loader", lambda: loader(shuffle=False), "had shuffle=True and now it has shuffle=False"),
    ],
)
def test_other_data(name, data, message, checkpoints):
    path = checkpoints / name / "epoch-1-batch-4"
    message = f"the checkpoint '.*' does not fit this run: .*{message}: resume with the data that"
    fails(
        checkpoints,
        ValueError,
        message,
        data=data(),
        resume=path,
    )


OTHER_SAMPLES = (
    r"the full gradient of parameter 'net_.*' at the snapshot is not the one that the checkpoint "
    "holds: train_data has other samples than it had; resume with the data"
)


def test_other_data_of_the_same_length(checkpoints):
    path = checkpoints / "in_epoch" / "epoch-1-batch-6"
    data, handlers = batches(scale=1.1), svrg_handlers()
    fails(checkpoints, ValueError, OTHER_SAMPLES, data=data, event_handlers=handlers, resume=path)


class Short:
    """Has fewer batches than it had, and no length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(batches(self.count))


TOO_SHORT = (
    "train_data has 1 batches in this epoch and the checkpoint was written after 2 of them: resume"
)


def test_an_epoch_that_is_shorter_than_it_was(tmp_path):
    run_of(tmp_path, list, lambda: Short(4), {"batches": 6}, 0)
    path = tmp_path / "epoch-1-batch-6"
    fails(tmp_path, ValueError, TOO_SHORT, data=Short(1), resume=path, batches=9)


def test_a_step_over_fewer_batches(tmp_path):
    handlers = [gs.GradientUpdateHandler(accumulate=2)]
    run_of(tmp_path, lambda: [gs.GradientUpdateHandler(accumulate=4)], batches, {"batches": 6}, 0)
    message = r"in the middle of a step over more than accumulate=2 batches \(2 are waiting\)"
    path = tmp_path / "epoch-1-batch-6"
    fails(tmp_path, ValueError, message, event_handlers=handlers, resume=path, batches=9)


@pytest.mark.parametrize("resume", [True, 3, b"auto", ["auto"]])
def test_resume_of_another_type(resume, checkpoints):
    message = (
        rf"resume must be None, 'auto' or the path of a checkpoint, got {re.escape(repr(resume))}"
    )
    fails(checkpoints, TypeError, message, resume=resume)


def test_auto_needs_a_folder(checkpoints):
    message = "resume='auto' needs a CheckpointHandler in event_handlers, whose directory has the"
    fails(checkpoints, ValueError, message, resume="auto")


def test_there_is_no_checkpoint(checkpoints, tmp_path):
    for path in (tmp_path / "none", str(tmp_path / "epoch-1-batch-4")):
        message = f"there is no checkpoint at resume='{path}': give the path of one, or of the"
        fails(checkpoints, FileNotFoundError, message, resume=path)
    message = f"there is no checkpoint in '{tmp_path}'"
    fails(checkpoints, FileNotFoundError, message, resume=tmp_path)


def test_auto_begins_where_there_is_none(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "test_resume"):
        ours, result, _ = run_of(
            tmp_path / "a" / "b", list, batches, {"epochs": 2}, 0, resume="auto"
        )
    assert f"no checkpoint in {tmp_path}/a/b yet: the run begins" in caplog.messages
    expected, _, _ = run_of(tmp_path / "c", list, batches, {"epochs": 2}, 0)
    assert problems.same(everything(ours), everything(expected))
    assert len(result.history) == 2


def test_a_folder_that_has_checkpoints(checkpoints):
    handler = gs.CheckpointHandler(checkpoints / "list")
    message = (
        r"directory '.*' has checkpoints of a run already \('epoch-1-batch-4'\): continue it by "
        r"fit\(\.\.\., resume='auto'\), or give a new directory"
    )
    fails(checkpoints, FileExistsError, message, event_handlers=handler)


def test_an_older_checkpoint_into_its_own_folder(checkpoints):
    handler = gs.CheckpointHandler(checkpoints / "list")
    message = (
        r"directory '.*' has a later checkpoint \('epoch-2-batch-8'\) than the one to resume from "
        r"\('epoch-1-batch-4'\): give a new directory, or resume from the newest by resume='auto'"
    )
    path = checkpoints / "list" / "epoch-1-batch-4"
    fails(checkpoints, FileExistsError, message, event_handlers=handler, resume=path)


@pytest.mark.slow
@pytest.mark.parametrize("as_string", [True, False])
def test_into_another_folder(as_string, checkpoints, tmp_path):
    """A path of a checkpoint, or of a folder of them; the old folder stays as it is."""
    files = contents(checkpoints)
    weights = []
    for number, path in enumerate((checkpoints / "list", checkpoints / "list" / "epoch-1-batch-4")):
        ours, result, _ = run_of(
            tmp_path / str(number),
            svrg_handlers,
            batches,
            {"epochs": 3},
            number,
            resume=str(path) if as_string else path,
        )
        weights.append(everything(ours))
        assert len(result.history) == 3
    assert problems.same(*weights)
    assert contents(checkpoints) == files
    names = ["epoch-1-batch-4", "epoch-2-batch-8", "epoch-3-batch-12"]
    assert sorted(p.name for p in (tmp_path / "1").iterdir()) == names[1:]
    assert sorted(p.name for p in (tmp_path / "0").iterdir()) == names[2:]


@pytest.mark.parametrize(
    ("name", "duration", "rows"),
    [
        ("list", {"epochs": 2}, 2),
        ("list", {"epochs": 1}, 2),
        ("list", {"batches": 8}, 2),
        ("list", {"batches": 3}, 2),
        ("in_epoch", {"batches": 6}, 2),
    ],
)
def test_a_target_that_is_reached_already(name, duration, rows, checkpoints, caplog):
    estimator = estimator_of(1)
    path = checkpoints / name
    steps = []

    class Count(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            steps.append(1)

    with caplog.at_level(logging.INFO, "test_resume"):
        result = estimator.fit(
            batches(), **duration, event_handlers=[*svrg_handlers(), Count()], resume=path
        )
    ((kind, number),) = duration.items()
    assert (
        f"nothing to train: the checkpoint has reached {kind}={number} already; give a larger "
        "number to continue"
    ) in caplog.messages
    reason = gs.StopReason.EPOCHS_DONE if kind == "epochs" else gs.StopReason.BATCHES_DONE
    assert result.stop_reason is reason
    assert steps == []
    newest = max(path.iterdir(), key=lambda p: p.stat().st_mtime)
    saved = mx.nd.load(str(newest / "net.params"))
    params = estimator.net._collect_params_with_prefix()
    assert all(np.array_equal(params[n].data().asnumpy(), a.asnumpy()) for n, a in saved.items())
    assert [row["epoch"] for row in result.history] == list(range(rows))


class Odd(BatchEnd):
    """Puts an object that is no data into the row of the epoch."""

    def batch_end(self, estimator, *args, **kwargs):
        estimator.figures["odd"] = Path("a")


@pytest.mark.parametrize(
    "period",
    [
        {"every_n_batches": 1},
        {"every_n_epochs": 1},
    ],
)
def test_a_figure_that_cannot_be_saved_is_named(period, tmp_path):
    with pytest.raises(TypeError) as caught:
        estimator_of().fit(
            batches(), epochs=1, event_handlers=[Odd(), gs.CheckpointHandler(tmp_path, **period)]
        )
    assert len(str(caught.value)) < 500
    assert "'odd'" in str(caught.value)
    assert "cannot be saved" in str(caught.value)


def test_handlers_that_come_and_go(tmp_path, caplog):
    def without():
        return [gs.EMAHandler(0.9)]

    run_of(tmp_path, svrg_handlers, batches, {"epochs": 1}, 0)
    with caplog.at_level(logging.INFO, "test_resume"):
        _, result, _ = run_of(tmp_path, without, batches, {"epochs": 2}, 1, resume="auto")
    text = "resume: the checkpoint has no state of EMAHandler, which starts fresh"
    assert text in caplog.messages
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warning == (
        "resume: the checkpoint has the state of a SVRGHandler, which this run does not have: it "
        "is ignored"
    )
    assert ["coefficient" in row for row in result.history] == [True, False]


@pytest.mark.slow
def test_two_handlers_of_a_class_keep_their_own(tmp_path):
    def handlers():
        run.pair = [
            gs.EMAHandler(decay, warm_up=False, evaluate=decay == 0.5) for decay in (0.5, 0.9)
        ]
        return run.pair

    class run:
        pair = None

    averages = []
    for folder, duration, where in (
        ("a", {"batches": 9}, None),
        ("b", {"batches": 6}, None),
        ("b", {"batches": 9}, "auto"),
    ):
        ours, _, _ = run_of(tmp_path / folder, handlers, batches, duration, 0, resume=where)
        averages.append([a for h in run.pair for a in h.state_dict(ours)["averages"]])
    whole, _, resumed = ([a for copies in all_ for a in copies] for all_ in averages)
    assert problems.same(whole, resumed)
    half = len(whole) // 2
    assert not problems.same(whole[:half], whole[half:])


def test_a_folder_by_a_relative_path(checkpoints, monkeypatch):
    monkeypatch.chdir(checkpoints / "list")
    for path in (".", Path("epoch-2-batch-8"), os.path.join(".", "epoch-2-batch-8")):
        estimator = estimator_of(1)
        result = estimator.fit(batches(), epochs=2, event_handlers=svrg_handlers(), resume=path)
        assert result.epochs_run == 2
