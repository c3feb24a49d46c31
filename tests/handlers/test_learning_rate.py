"""AutoLearningRateHandler: the rate against NumPy's eigenvalues, and what it leaves alone."""

import logging
import math
import re
from types import SimpleNamespace

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
from gluon_svrg.data import ArrayLoader
from gluon_svrg.events import BatchEnd
from gluon_svrg.svrg import Smoothness
from gluon_svrg.workers import SingleProcess
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO

SOFTMAX, SQUARED = gluon.loss.SoftmaxCELoss(), gluon.loss.L2Loss()


def arrays(kind="softmax", samples=320, features=5, classes=3):
    """Rows of uneven scales; classes of uneven frequencies."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, features)) * np.linspace(0.2, 1, features)
    scores = x @ rng.normal(size=(features, classes)) + np.linspace(0, 1, classes)
    noise = rng.gumbel(size=scores.shape)
    if kind == "softmax":
        return x, (scores + noise).argmax(axis=1).astype(float)
    return x, scores[:, :1] + rng.normal(size=(samples, 1))


def make(kind="softmax", optimizer="sgd", net=None, loss=None, contexts=ONE, wd=1e-2, **params):
    gs.seed_everything(0)
    if net is None:
        net = nn.Dense(3 if kind == "softmax" else 1, prefix="linear_")
    problems.initialize(net, mx.init.Zero(), contexts, "float64")
    arguments = {"learning_rate": 0.3, "wd": wd, **params}
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, arguments)
    loss = loss or (SOFTMAX if kind == "softmax" else SQUARED)
    return gs.Estimator(net, loss, mx.metric.Loss(), trainer=trainer, context=contexts)


def loader(x, y, batch_size=20, **arguments):
    return ArrayLoader(x, y, batch_size=batch_size, shuffle=True, seed=0, **arguments)


def fit(estimator, data, *handlers, epochs=1, svrg=True, **arguments):
    given = [gs.SVRGHandler()] if svrg else []
    estimator.fit(data, epochs=epochs, event_handlers=[*given, *handlers], **arguments)
    return estimator.trainer.learning_rate


def objective(kind, x, y, wd):
    """NumPy's: value, gradient, and the Hessian, of (weight, bias) as one vector."""
    n = len(x)
    rows = np.hstack([x, np.ones((n, 1))])
    classes = 3 if kind == "softmax" else 1
    wd = float(np.float32(wd))  # as MXNet's kernels take it

    def parts(flat):
        split = classes * x.shape[1]
        return flat[:split].reshape(classes, -1), flat[split:]

    def gradient(flat):
        weight, bias = parts(flat)
        of = oracle.softmax_gradient if kind == "softmax" else oracle.linear_gradient
        by_weight, by_bias = of((weight, bias), x, y if kind == "softmax" else y[:, 0])
        return np.concatenate([by_weight.ravel(), by_bias]) / n + wd * flat

    def value(flat):
        weight, bias = parts(flat)
        scores = x @ weight.T + bias
        if kind != "softmax":
            return ((scores - y) ** 2).mean() / 2 + wd / 2 * flat @ flat
        scores -= scores.max(axis=1, keepdims=True)
        chosen = scores[np.arange(n), y.astype(int)]
        return (np.log(np.exp(scores).sum(axis=1)) - chosen).mean() + wd / 2 * flat @ flat

    def hessian(probabilities):
        p = np.broadcast_to(probabilities, (n, classes))
        curved = (
            np.einsum("ik,kl->ikl", p, np.eye(classes)) - np.einsum("ik,il->ikl", p, p)
            if kind == "softmax"
            else np.ones((n, 1, 1))
        )
        each = np.einsum("ikl,ip,iq->ikplq", curved, rows, rows)
        size = classes * rows.shape[1]
        each = each.reshape(n, size, size)
        return each.mean(axis=0) + wd * np.eye(size), each

    return value, gradient, hessian


def optimum(kind, x, y, wd):
    value, gradient, _ = objective(kind, x, y, wd)
    size = (x.shape[1] + 1) * (3 if kind == "softmax" else 1)
    flat, step = np.zeros(size), 1e-6
    for _ in range(50):  # Newton's, with a Hessian of differences
        differences = [
            (gradient(flat + step * d) - gradient(flat - step * d)) / (2 * step)
            for d in np.eye(size)
        ]
        flat = flat - np.linalg.solve(np.array(differences), gradient(flat))
    assert np.abs(gradient(flat)).max() < 1e-12
    return value(flat)


def above_optimum(estimator, kind, x, y, wd):
    weight, bias = problems.weights_of(estimator.net)
    value, _, _ = objective(kind, x, y, wd)
    return value(np.concatenate([weight.ravel(), bias])) - optimum(kind, x, y, wd)


# --- The rate -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("kind", ["softmax", "squared"])
@pytest.mark.parametrize(("batch_size", "momentum"), [(320, 0.0), (20, 0.0), (5, 0.0), (20, 0.9)])
def test_the_rate_is_that_of_the_eigenvalues(kind, batch_size, momentum):
    """To 5 % where all samples are measured on; the largest of a single one, among all, always."""
    x, y = arrays(kind)
    wd = 1e-2
    handler = gs.AutoLearningRateHandler()
    estimator = make(kind, momentum=momentum, wd=wd)
    rate = fit(estimator, loader(x, y, batch_size), handler)
    frequencies = np.bincount(y.astype(int)) / len(y) if kind == "softmax" else None
    _, _, hessian = objective(kind, x, y, wd)
    mean, each = hessian(frequencies)
    largest = np.linalg.eigvalsh(mean)[-1]
    of_a_sample = np.linalg.eigvalsh(each)[:, -1].max() + wd
    assert handler.smoothness.samples == 320
    assert handler.smoothness.sample == pytest.approx(of_a_sample, rel=0.02)
    # Of 20 samples the largest eigenvalue is larger, never much smaller.
    is_all = batch_size == 320
    assert 0.95 < handler.smoothness.mean / largest < (1.05 if is_all else 2)
    assert rate == handler.learning_rate == handler.smoothness.learning_rate(batch_size, momentum)
    if is_all:
        assert rate == pytest.approx(1 / largest, rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["softmax", "squared"])
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.5), ("nag", 0.5)])
def test_it_reaches_the_optimum_and_four_times_the_rate_does_not(kind, optimizer, momentum):
    """In one batch, in which nothing is averaged out."""
    x, y = arrays(kind, samples=160)
    wd, epochs = 0.2, 60
    estimator = make(kind, optimizer, momentum=momentum, wd=wd)
    rate = fit(estimator, loader(x, y, 160), gs.AutoLearningRateHandler(), epochs=epochs)
    assert above_optimum(estimator, kind, x, y, wd) < 1e-9
    estimator = make(kind, optimizer, momentum=momentum, wd=wd)
    estimator.trainer.set_learning_rate(4 * rate)
    fit(estimator, loader(x, y, 160), epochs=epochs)
    assert above_optimum(estimator, kind, x, y, wd) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "squared"])
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("nag", 0.9)])
def test_it_reaches_the_optimum_by_small_batches(kind, optimizer, momentum):
    x, y = arrays(kind, samples=160)
    estimator = make(kind, optimizer, momentum=momentum, wd=0.2)
    fit(estimator, loader(x, y, 4), gs.AutoLearningRateHandler(), epochs=8)
    assert above_optimum(estimator, kind, x, y, 0.2) < 1e-4


def test_huge_labels_lose_no_digits_and_residuals_beyond_hubers_width_have_a_curvature():
    x, y = arrays("squared")
    rates = []
    for loss, scale in ((SQUARED, 1.0), (SQUARED, 1e9), (gluon.loss.HuberLoss(), 1e9)):
        net = nn.Dense(1, prefix="linear_")
        estimator = make("squared", net=net, loss=loss, wd=0.0)
        data = loader((x).astype("float32"), (scale * y).astype("float32"))
        net.cast("float32")
        rates.append(fit(estimator, data, gs.AutoLearningRateHandler(), svrg=False))
    assert rates[1] == pytest.approx(rates[0], rel=1e-4)
    assert rates[2] == pytest.approx(rates[0], rel=1e-4)


@pytest.mark.slow
def test_what_the_optimizer_and_the_loss_multiply_by_is_counted_in():
    x, y = arrays("squared")

    def rate(loss=SQUARED, data=None, multiple=1.0, accumulate=1, batch_size=20, wd=0.0, **params):
        estimator = make("squared", loss=loss, wd=wd, **params)
        for param in estimator.net.collect_params().values():
            param.lr_mult = multiple
        data = loader(x, y, batch_size) if data is None else data
        step = gs.GradientUpdateHandler(accumulate=accumulate)
        return fit(estimator, data, gs.AutoLearningRateHandler(320), step, svrg=False)

    plain = rate()
    assert rate(gluon.loss.L2Loss(weight=4.0)) == pytest.approx(plain / 4)
    assert rate(multiple=0.5) == pytest.approx(plain * 2)
    assert rate(rescale_grad=0.25) == pytest.approx(plain * 4)
    weighted = ArrayLoader(x, y, np.full(320, 3.0), batch_size=20, shuffle=True, seed=0)
    assert rate(data=weighted) == pytest.approx(plain / 3)
    assert 1 / rate(wd=0.5) == pytest.approx(1 / plain + 0.5, rel=0.2)
    twice = rate(accumulate=2)
    assert twice > 1.2 * plain
    # The batches that are measured on are others.
    assert twice == pytest.approx(rate(batch_size=40), rel=0.3)


@pytest.mark.usefixtures("mode")
def test_on_two_devices_it_is_the_same():
    x, y = arrays()
    rates = [
        fit(make(contexts=contexts), loader(x, y), gs.AutoLearningRateHandler())
        for contexts in (ONE, TWO)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=1e-9)


def test_of_a_loss_scale_it_is_the_same(monkeypatch):
    x, y = arrays()
    plain = fit(make(), loader(x, y), gs.AutoLearningRateHandler(), svrg=False)
    estimator = make(multi_precision=False)
    scaler = SimpleNamespace(loss_scale=64.0, has_overflow=lambda params: False)
    estimator.trainer._amp_loss_scaler = scaler
    estimator.trainer._amp_original_scale = estimator.trainer._scale
    monkeypatch.setattr(mx.contrib.amp, "scale_loss", scaled_by(64.0))
    handler = gs.AutoLearningRateHandler()
    monkeypatch.setattr(gs.GradientUpdateHandler, "batch_end", lambda *args, **kwargs: None)
    assert fit(estimator, loader(x, y), handler, svrg=False) == pytest.approx(plain, rel=1e-9)


def scaled_by(scale):
    class Scaled:
        def __init__(self, loss, trainer):
            self.loss = [value * scale for value in loss]

        def __enter__(self):
            return self.loss

        def __exit__(self, *args):
            pass

    return Scaled


# --- What it does to a run ----------------------------------------------------------------------


def dataset(x, y):
    return gluon.data.ArrayDataset(x, y)


DATA = {
    "a list": lambda x, y: [
        tuple(mx.nd.array(a[i : i + 20], dtype="float64") for a in (x, y))
        for i in range(0, len(x), 20)
    ],
    "an ArrayLoader": loader,
    "one that divides anew": lambda x, y: loader(x, y, reshuffle=True),
    "a DataLoader": lambda x, y: gluon.data.DataLoader(dataset(x, y), 20, shuffle=True),
    "an NDArrayIter": lambda x, y: mx.io.NDArrayIter(x, y, 20, shuffle=True),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("svrg", [True, False], ids=["SVRG", "plain"])
@pytest.mark.parametrize("make_data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("is_static", [False, True])
def test_the_run_is_that_of_the_same_rate_set_by_hand_bit_for_bit(make_data, svrg, is_static):
    """With shapes that are inferred, weights that are drawn, and data that are shuffled."""
    x, y = arrays("squared", samples=160)
    weights, found = [], None
    for is_auto in (True, False):
        gs.seed_everything(3)
        net = nn.Dense(1, prefix="linear_")
        net.cast("float64")
        net.initialize(mx.init.Normal(0.5))
        if is_static:
            net.hybridize(static_alloc=True, static_shape=True)
        trainer = gs.SVRGTrainer(net.collect_params(), "nag", {"momentum": 0.5, "wd": 1e-3})
        estimator = gs.Estimator(net, SQUARED, mx.metric.Loss(), trainer=trainer)
        handlers = [gs.AutoLearningRateHandler()] if is_auto else []
        if not is_auto:
            trainer.set_learning_rate(found)
        found = fit(estimator, make_data(x, y), *handlers, epochs=2, svrg=svrg)
        assert found != 0.01
        weights.append([*problems.weights_of(net), mx.nd.random.uniform(shape=3).asnumpy()])
    assert problems.same(*weights)


class StopAfter(BatchEnd):
    def __init__(self, batch):
        self.batch = batch

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch + 1 == self.batch:
            estimator.stop()


@pytest.mark.full
@pytest.mark.parametrize("batch", [16, 20, 32, 70])
def test_a_resume_continues_with_the_rate_to_the_bit(batch, tmp_path):
    """After 16 and 32 batches an epoch begins with another measurement."""
    x, y = arrays()

    def run(folder, *handlers, resume=None):
        handler = gs.AutoLearningRateHandler()
        estimator = make(momentum=0.5)
        checkpoints = gs.CheckpointHandler(tmp_path / folder)
        rate = fit(
            estimator, loader(x, y), handler, checkpoints, *handlers, epochs=5, resume=resume
        )
        state = handler.smoothness, handler.learning_rate, handler.gradient_evaluations
        return problems.weights_of(estimator.net), rate, state

    whole = run("whole")
    run("cut", StopAfter(batch))
    second = run("cut", resume="auto")
    assert problems.same(second[0], whole[0])
    assert second[1:] == whole[1:]


@pytest.mark.slow
def test_a_checkpoint_without_it_and_one_that_measured_nothing(tmp_path, caplog):
    x, y = arrays()
    fit(make(), loader(x, y), gs.CheckpointHandler(tmp_path), epochs=1)
    estimator, handler = make(), gs.AutoLearningRateHandler()
    with caplog.at_level(logging.INFO):
        fit(estimator, loader(x, y), gs.CheckpointHandler(tmp_path), handler, epochs=2,
            resume="auto")  # fmt: skip
    assert handler.learning_rate == estimator.trainer.learning_rate != 0.3
    assert handler.state_dict(estimator)["first"] == 1
    assert "the learning rate is set to" in caplog.text
    fit(make(optimizer="adam"), loader(x, y), gs.CheckpointHandler(tmp_path / "adam"),
        gs.AutoLearningRateHandler(), epochs=1)  # fmt: skip
    estimator = make(optimizer="adam")
    rate = fit(estimator, loader(x, y), gs.CheckpointHandler(tmp_path / "adam"),
               gs.AutoLearningRateHandler(), epochs=2, resume="auto")  # fmt: skip
    assert rate == 0.3


def test_a_second_fit_measures_anew():
    x, y = arrays()
    estimator, handler = make(momentum=0.5), gs.AutoLearningRateHandler()
    first = fit(estimator, loader(x, y), handler)
    assert fit(estimator, loader(2 * x, y), handler, epochs=2, initial_epoch=1) < 0.6 * first


@pytest.mark.slow
def test_softmax_is_measured_again_and_the_rate_is_lowered_never_raised(caplog):
    """Without biases, outputs of 0 are far from the frequencies of the two classes that occur."""
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(size=(320, 3)), np.full((320, 1), 0.2)])
    y = (x[:, 0] + rng.normal(size=320) > 0).astype(float)
    rates = []

    class Rates(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            rates.append(estimator.trainer.learning_rate)

    net = nn.Dense(20, use_bias=False)
    estimator, handler = make(net=net, momentum=0.5), gs.AutoLearningRateHandler()
    with caplog.at_level(logging.INFO):
        fit(estimator, loader(x, y), handler, Rates(), epochs=9)
    epochs = np.array(rates).reshape(9, 16)
    assert (epochs == epochs[:, :1]).all()  # only where an epoch begins
    assert (np.diff(epochs[:, 0]) <= 0).all()
    changed = np.flatnonzero(np.diff(epochs[:, 0])) + 1
    assert set(changed) <= {1, 2, 4, 8}
    assert changed[0] == 1
    assert epochs[1, 0] < 0.75 * epochs[0, 0]
    assert f"epoch 1: the learning rate is lowered from {rates[0]:.4g} to {rates[16]:.4g}: the" in (
        caplog.text
    )
    assert handler.learning_rate == rates[-1]


@pytest.mark.slow
def test_beside_svrgs_other_settings():
    x, y = arrays()
    rates = set()
    for svrg in (
        gs.SVRGHandler(update_freq=2),
        gs.SVRGHandler(start_epoch=1),
        gs.SVRGHandler(max_variance_ratio=1e-9),
        gs.SVRGHandler(gradient_table=False, coefficient="auto"),
    ):
        estimator, handler = make(), gs.AutoLearningRateHandler()
        fit(estimator, loader(x, y), svrg, handler, epochs=2, svrg=False)
        rates.add(handler.state_dict(estimator)["learning_rate"])
    assert len(rates) == 1


def test_it_says_what_it_found_and_at_which_cost(caplog):
    x, y = arrays("squared")
    handler = gs.AutoLearningRateHandler()
    with caplog.at_level(logging.INFO):
        rate = fit(make("squared", momentum=0.9), loader(x, y), handler)
    mean, sample, _ = handler.smoothness
    share = handler.gradient_evaluations / 320
    assert (
        f"the learning rate is set to {rate:.4g}: the largest curvature of the mean loss is "
        f"{mean:.3g}, and of one sample's {sample:.3g}, for steps of 20 samples and a momentum of "
        f"0.9 (measured by {share:.2g} passes over the data)"
    ) in caplog.text
    (line,) = handler.extra_passes()
    assert "adds about one to the first epoch" in line


def test_data_of_unknown_length(caplog):
    x, y = arrays()

    class Unsized:
        def __iter__(self):
            return iter(DATA["a list"](x, y))

    handler = gs.AutoLearningRateHandler()
    with caplog.at_level(logging.INFO):
        fit(make(), Unsized(), handler)
    assert handler.smoothness.samples is None
    assert f"(measured by {handler.gradient_evaluations} gradients)" in caplog.text


def test_a_few_samples_that_are_spread_over_sorted_data():
    """Of 64 batches sorted by size, four are measured on, from all parts of the data."""
    x = np.repeat(np.array([0.01, 1.0, 2.0, 4.0]), 160)[:, None]
    y = np.zeros((640, 1))
    data = ArrayLoader(x, y, batch_size=10)
    handler = gs.AutoLearningRateHandler(samples=40)
    fit(make("squared", wd=0.0), data, handler)
    mean, sample, _ = handler.smoothness
    exact = np.linalg.eigvalsh(np.hstack([x, x**0]).T @ np.hstack([x, x**0]) / 640)[-1]
    assert mean == pytest.approx(exact, rel=0.01)
    assert sample == pytest.approx(17, rel=0.01)


# --- What it leaves alone -----------------------------------------------------------------------


class OwnProcessor(gs.BatchProcessor):
    def fit_batch(self, estimator, batch, batch_axis=0):
        return super().fit_batch(estimator, batch, batch_axis)


def deep():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(3))
    return net


LEFT = {
    "another optimizer": ({"optimizer": "adam"}, {}, "the optimizer is Adam, and the rule is one "
                          "for SGD and NAG; give the trainer 'sgd' or 'nag'"),
    "this package's": ({"optimizer": "lars"}, {}, "the optimizer is LARS"),
    "a momentum of 1": ({"momentum": 1.0}, {}, r"the momentum is 1, and must be in \[0, 1\)"),
    "a deep network": ({"net": deep}, {}, "its graph has the operator Activation"),
    "another loss": ({"loss": gluon.loss.SoftmaxCELoss(from_logits=True)}, {"sanity_check": False},
                     "its loss is SoftmaxCrossEntropyLoss, and supported losses are"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "options", "reason"), LEFT.values(), ids=LEFT)
def test_what_it_does_not_know_keeps_its_rate_and_it_says_so(arguments, options, reason, caplog):
    x, y = arrays()
    arguments = {name: value() if value is deep else value for name, value in arguments.items()}
    estimator, handler = make(**arguments), gs.AutoLearningRateHandler()
    with caplog.at_level(logging.WARNING):
        rate = fit(estimator, loader(x, y, 3), handler, epochs=2, svrg=False, **options)
    assert rate == 0.3
    assert handler.smoothness is handler.learning_rate is None
    assert handler.gradient_evaluations == 0
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]  # once, not each epoch
    assert record.message.startswith("AutoLearningRateHandler leaves the learning rate at 0.3: ")
    assert re.search(reason, record.message)


def left(estimator, data, caplog, **arguments):
    handler = gs.AutoLearningRateHandler()
    with caplog.at_level(logging.WARNING), np.errstate(all="ignore"):
        rate = fit(estimator, data, handler, svrg=False, sanity_check=False, **arguments)
    assert rate == 0.3
    assert handler.smoothness is None
    return caplog.text


def test_a_batch_processor_of_ones_own(caplog):
    x, y = arrays()
    estimator = make()
    estimator.batch_processor = OwnProcessor()
    assert "batch processor OwnProcessor may compute anything" in left(
        estimator, loader(x, y), caplog
    )


def test_samples_along_another_axis(caplog):
    class Transposes(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.layer = nn.Dense(1)

        def hybrid_forward(self, F, x):
            return self.layer(F.transpose(x))

    x, y = arrays("squared")
    data = [(mx.nd.array(x.T, dtype="float64"), mx.nd.array(y, dtype="float64"))]
    text = left(make("squared", net=Transposes()), data, caplog, batch_axis=1)
    assert "the operator transpose" in text
    data = [(mx.nd.ones((4, 4), dtype="float64"), mx.nd.ones((4, 1), dtype="float64"))]
    text = left(make("squared", net=nn.Dense(1)), data, caplog, batch_axis=1)
    assert "the samples are along axis 1, not along the first" in text


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200, 0.0])
def test_data_without_a_curvature(value, caplog):
    x, y = arrays("squared")
    x = np.full_like(x, value)
    net = nn.Dense(1, use_bias=False)
    text = left(make("squared", net=net, wd=0.0), loader(x, y), caplog)
    assert "look for" in text


@pytest.mark.slow
def test_workers_that_have_no_whole_batches(caplog, monkeypatch):
    dataset = gluon.data.ArrayDataset(*(array.astype("float32") for array in arrays()))
    monkeypatch.setattr(SingleProcess, "is_distributed", True)
    text = left(make(), gluon.data.DataLoader(dataset, 32), caplog)
    assert "has only its own part of a DataLoader; give an ArrayLoader or a list" in text


def test_two_owners_are_an_error():
    x, y = arrays()
    scheduler = mx.lr_scheduler.FactorScheduler(10, base_lr=0.1)
    message = "has two owners, the optimizer's lr_scheduler and AutoLearningRateHandler: remove one"
    with pytest.raises(ValueError, match=message):
        fit(make(lr_scheduler=scheduler), loader(x, y), gs.AutoLearningRateHandler())
    schedule = gs.ScheduleHandler("learning_rate", gs.schedules.constant(0.1))
    message = "AutoLearningRateHandler and ScheduleHandler both choose the first learning rate"
    with pytest.raises(ValueError, match=message):
        fit(make(), loader(x, y), gs.AutoLearningRateHandler(), schedule)


@pytest.mark.slow
def test_a_schedule_of_another_number_and_a_plateau_are_none():
    x, y = arrays()
    others = [
        gs.ScheduleHandler("wd", gs.schedules.constant(0.01)),
        gs.PlateauHandler("training loss", patience=1, min_delta=100.0),
    ]
    estimator, handler = make(), gs.AutoLearningRateHandler()
    rate = fit(estimator, loader(x, y), handler, *others, epochs=3)
    assert rate == pytest.approx(handler.learning_rate * 0.1**2)  # the first epoch is the best


@pytest.mark.parametrize("samples", [0, -1, 1.5, True])
def test_arguments(samples):
    with pytest.raises((TypeError, ValueError), match="samples must be a positive integer, got"):
        gs.AutoLearningRateHandler(samples)


def test_the_smoothness_of_a_checkpoint_is_one_again():
    handler = gs.AutoLearningRateHandler()
    state = {"smoothness": [1.0, 2.0, None], "learning_rate": 0.5, "gradient_evaluations": 7,
             "first": 0, "next": 4}  # fmt: skip
    handler.load_state_dict(None, state)
    assert handler.smoothness == Smoothness(1.0, 2.0, None)
    assert handler.state_dict(None) == state
