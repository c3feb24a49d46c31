"""The Estimator: MXNet's behaviour, any data, a result, and clear errors."""

import inspect
import re
import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pandas as pd
import problems
import pytest
from gluon_svrg.events import BatchEnd, GradientReady
from mxnet import autograd, gluon
from mxnet.gluon.contrib import estimator as mx_estimator
from problems import ONE, TWO


def trainer_of(problem, **parameters):
    return gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1} | parameters)


def loader(problem):
    data, label = (np.concatenate(part) for part in zip(*problem.batches, strict=True))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(data, label), batch_size=8)


class Again:
    """The least that training data has to be: iterable, again and again."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        yield from self._batches


@pytest.mark.full
def test_it_trains_as_mxnets_estimator_does():
    """Same data, same defaults: the same weights and metrics, bit for bit."""
    results = []
    for module in (gs, mx_estimator):
        problem = problems.make("mlp")
        estimator = module.Estimator(
            problem.net,
            problem.loss,
            trainer=gluon.Trainer(problem.net.collect_params(), "adam"),
            train_metrics=mx.metric.Accuracy(),
        )
        estimator.logger.handlers.clear()
        estimator.fit(loader(problem), loader(problem), epochs=3)
        # This package's has the loss besides.
        metrics = [estimator.train_metrics[0], estimator.val_metrics[0]]
        results.append((problem.params, [metric.get() for metric in metrics]))
    (ours, our_metrics), (theirs, their_metrics) = results
    assert our_metrics == their_metrics
    assert problems.same(ours, theirs)


def test_handlers_of_mxnet_run_unchanged(tmp_path):
    problem = problems.make("mlp")
    problem.net.hybridize()
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    metric = estimator.val_metrics[0]
    result = estimator.fit(
        problem.ndarrays(),
        problem.ndarrays(),
        epochs=9,
        event_handlers=[
            mx_estimator.CheckpointHandler(str(tmp_path), monitor=metric, max_checkpoints=2),
            mx_estimator.EarlyStoppingHandler(metric, mode="min", patience=2),
            mx_estimator.LoggingHandler(log_interval=2, metrics=estimator.train_metrics),
            gs.SVRGHandler(),
        ],
    )
    assert result.stop_reason is gs.StopReason.HANDLER  # accuracy does not fall
    assert 2 < result.epochs_run < 9
    assert len(list(tmp_path.glob("*.params"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [list, tuple, Again, loader])
def test_any_data_that_can_be_iterated_again(kind):
    problem = problems.make("softmax")
    data = loader(problem) if kind is loader else kind(problem.ndarrays())
    recorder = problems.Recorder()
    gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).fit(
        data, epochs=2, event_handlers=[gs.SVRGHandler(), recorder]
    )
    reference = problems.make("softmax")
    expected = problems.Recorder()
    gs.Estimator(reference.net, reference.loss, trainer=trainer_of(reference)).fit(
        reference.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler(), expected]
    )
    assert len(recorder.weights) == 10
    assert problems.same(recorder.weights[-1], expected.weights[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_batches_are_taken_at_the_precision_of_the_network(dtype):
    runs = []
    for as_numpy in (True, False):
        problem = problems.make("softmax", dtype=dtype)
        trainer = trainer_of(problem)
        data = problem.batches if as_numpy else problem.ndarrays(dtype)
        gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(data, epochs=2)
        runs.append(problem.params)
    assert problems.same(*runs)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_a_batch_smaller_than_the_number_of_devices(samples):
    """Devices without samples are idle: the weights are those of one device."""
    contexts = [mx.cpu(i) for i in range(3)]
    runs = []
    for devices in (contexts, ONE):
        problem = problems.make("mlp", devices, samples=8 + samples)
        trainer = trainer_of(problem, momentum=0.9)
        gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
            problem.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler()]
        )
        runs.append(problem.params)
    assert problems.relative_difference(*runs) < 1e-12


def test_the_result_holds_reason_epochs_and_history():
    problem = problems.make("softmax")
    estimator = gs.Estimator(
        problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer_of(problem)
    )
    result = estimator.fit(problem.ndarrays(), problem.ndarrays(), epochs=2)
    assert result.stop_reason is gs.StopReason.EPOCHS_DONE
    assert result.stop_reason.value == "all epochs are done"
    assert result.epochs_run == 2
    assert [row["epoch"] for row in result.history] == [0, 1]
    for row in result.history:
        assert row["samples"] == 37
        assert row["seconds"] > 0
        assert row["learning_rate"] == 0.1
        assert 0 <= row["training accuracy"] <= 1
        assert 0 <= row["validation accuracy"] <= 1


LAST_WORDS = [
    ((1e6, {}), "training loss is (nan|inf) and validation loss is (nan|inf)"),
    ((1e6, {"batches": 9}), "training loss is (nan|inf)"),
    ((0.1, {}), ""),
]


@pytest.mark.parametrize("verbose", [0, 2])
@pytest.mark.parametrize(("run", "words"), LAST_WORDS)
def test_a_run_that_ends_with_a_loss_that_is_not_finite_says_so(run, words, verbose, caplog):
    """Before, "all epochs are done" was the last word."""
    (rate, arguments), problem = run, problems.make("linear", dtype="float32")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    estimator.trainer.set_learning_rate(rate)
    batches = problem.ndarrays("float32")
    fit = arguments or {"val_data": batches, "epochs": 12}
    result = estimator.fit(batches, verbose=verbose, **fit)
    assert result.stop_reason.name == ("BATCHES_DONE" if arguments else "EPOCHS_DONE")
    said = [message for message in caplog.messages if "at the end of the run" in message]
    if not words:
        assert (said, result.not_finite, result.ended) == ([], {}, "all epochs are done")
        return
    assert len(said) == 1
    assert re.match(f"{words} at the end of the run: try a smaller learning rate", said[0])
    assert "NaNGuardHandler()" in said[0]
    assert re.match(
        f"FitResult: all (epochs|batches) are done, but {words}", " ".join(repr(result).split())
    )
    assert list(result.not_finite) == re.findall("(?:training|validation) loss", words)


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf])
def test_a_weight_that_is_not_finite_behind_a_finite_loss_is_told(value, caplog):
    """MXNet's relu makes 0 of NaN, so that the loss is finite."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, activation="relu", in_units=3), gluon.nn.Dense(2, in_units=4))
    net.initialize()
    weight = np.full((4, 3), 0.1, "float32")
    weight[0, 0] = value
    net[0].weight.set_data(mx.nd.array(weight))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    x, y = mx.nd.array([[-1, 1, 0.5], [-2, 0, 1]]), mx.nd.array([0, 1])
    result = estimator.fit([(x, y)], epochs=2)
    assert np.isfinite(result.history[-1]["training loss"])
    said = [message for message in caplog.messages if "at the end of the run" in message]
    assert len(said) == (not np.isfinite(value))
    assert all("weight' is NaN or infinite" in m and "other weights" in m for m in said)


def test_a_handler_that_has_ended_the_run_on_a_nan_has_the_last_word(caplog):
    problem = problems.make("linear", dtype="float32")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    estimator.trainer.set_learning_rate(1e6)
    guard = gs.NaNGuardHandler("stop")
    result = estimator.fit(problem.ndarrays("float32"), epochs=12, event_handlers=[guard])
    assert result.stop_reason is gs.StopReason.NOT_FINITE
    assert not [message for message in caplog.messages if "at the end of the run" in message]


def test_evaluate_returns_the_metrics():
    problem = problems.make("softmax")
    estimator = gs.Estimator(
        problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer_of(problem)
    )
    values = estimator.evaluate(problem.ndarrays())
    data, label = (np.concatenate(part) for part in zip(*problem.batches, strict=True))
    scores = problem.net(mx.nd.array(data, dtype="float64")).asnumpy()
    loss = problem.loss(mx.nd.array(scores), mx.nd.array(label)).asnumpy().mean()
    assert list(values) == ["validation accuracy", "validation loss"]
    assert values["validation accuracy"] == np.mean(scores.argmax(axis=1) == label)
    assert values["validation loss"] == pytest.approx(loss, rel=1e-6)


def test_fit_again_goes_on():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    handlers = [gs.SVRGHandler()]
    for _ in range(2):
        result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
        assert result.epochs_run == len(result.history) == 2
    assert len(handlers) == 1  # the caller's list is left alone
    once = problems.make("softmax")
    gs.Estimator(once.net, once.loss, trainer=trainer_of(once)).fit(
        once.ndarrays(), epochs=4, event_handlers=[gs.SVRGHandler()]
    )
    assert problems.same(problem.params, once.params)


def test_an_idle_device_and_a_trainer_of_the_head_only():
    problem = problems.make("mlp", TWO, samples=9)
    before = problem.params
    trainer = gs.SVRGTrainer(problem.net[1].collect_params(), "sgd", {"learning_rate": 0.1})
    gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
        problem.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler()]
    )
    assert problems.same(problem.params[:2], before[:2])
    assert not problems.same(problem.params[2:], before[2:])


class StopAfterOneBatch(BatchEnd):
    def batch_end(self, estimator, *args, **kwargs):
        estimator.stop()


def test_a_stopped_run_is_evaluated_whole():
    problem = problems.make("softmax")
    estimator = gs.Estimator(
        problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer_of(problem)
    )
    result = estimator.fit(
        problem.ndarrays(), problem.ndarrays(), epochs=3, event_handlers=[StopAfterOneBatch()]
    )
    assert result.stop_reason is gs.StopReason.REQUESTED
    assert result.history[0]["samples"] == 8
    data, label = (np.concatenate(part) for part in zip(*problem.batches, strict=True))
    scores = problem.net(mx.nd.array(data, dtype="float64")).asnumpy()
    accuracy = np.mean(scores.argmax(axis=1) == label)
    assert result.history[0]["validation accuracy"] == accuracy
    assert estimator.evaluate(problem.ndarrays())["validation accuracy"] == accuracy


def test_a_handler_that_asks_to_stop_does_not_cut_an_evaluation():
    class Stop(BatchEnd):
        calls = 0

        def batch_end(self, estimator, *args, **kwargs):
            self.calls += 1
            return True

    problem = problems.make("softmax")
    stop = Stop()
    gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).evaluate(
        problem.ndarrays(), event_handlers=[stop]
    )
    assert stop.calls == 5


def test_metrics_of_several_values():
    problem = problems.make("softmax")
    metric = mx.metric.CustomMetric(lambda label, pred: 0.5)
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer_of(problem))
    for one in (metric, estimator.val_metrics[0]):
        one.get = lambda one=one: ([f"{one.name} {part}" for part in "ab"], [1.0, 2.0])
    history = estimator.fit(problem.ndarrays(), problem.ndarrays(), epochs=1).history
    found = {name: value for name, value in history[0].items() if name.endswith(" b")}
    name = "custom(<lambda>) b"
    assert found == {f"training {name}": 2.0, f"validation {name}": 2.0}


def test_a_label_without_the_batch_axis():
    """Data of (time, samples, features), labels of (samples,)."""
    weights = []
    for contexts in (ONE, TWO):
        mx.random.seed(2)
        net = gluon.nn.HybridLambda(lambda F, x: F.mean(x, axis=0))
        head = gluon.nn.Dense(3, in_units=6)
        both = gluon.nn.HybridSequential()
        both.add(net, head)
        both.initialize(mx.init.Normal(0.5), ctx=contexts)
        trainer = gs.SVRGTrainer(both.collect_params(), "sgd", {"learning_rate": 0.1})
        rng = np.random.default_rng(0)
        data = [(rng.normal(size=(5, n, 6)), rng.integers(0, 3, n)) for n in (8, 7)]
        gs.Estimator(both, gluon.loss.SoftmaxCELoss(), trainer=trainer).fit(
            data, epochs=2, batch_axis=1, event_handlers=[gs.SVRGHandler()]
        )
        weights.append(problems.weights_of(both))
    # float32: sums over two devices are rounded in another order.
    assert problems.relative_difference(*weights) < 1e-5


@pytest.mark.slow
def test_a_loader_whose_length_is_not_known():
    class Sampler:
        def __iter__(self):
            return iter([[0, 1, 2], [3, 4]])

        def __len__(self):
            raise NotImplementedError

    problem = problems.make("softmax", samples=8)
    dataset = gluon.data.ArrayDataset(*problem.batches[0])
    loader = gluon.data.DataLoader(dataset, batch_sampler=Sampler())
    result = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).fit(
        loader, epochs=2, event_handlers=[gs.SVRGHandler()]
    )
    assert [row["samples"] for row in result.history] == [5, 5]


def test_integers_of_numpy_are_taken_too():
    problem = problems.make("softmax")
    images = np.random.default_rng(0).integers(0, 256, (8, 6)).astype("uint8")
    data = [(images, np.arange(8) % 3)]
    gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).fit(data, epochs=1)


def test_gradient_accumulation_in_the_estimator():
    """Two batches of 8 and one step equal one batch of 16, with SVRG."""

    class EverySecondBatch(mx_estimator.GradientUpdateHandler):
        batches = 0

        def batch_end(self, estimator, *args, **kwargs):
            self.batches += 1
            if self.batches % 2 == 0:
                estimator.trainer.step(16)
                estimator.net.collect_params().zero_grad()

    weights = []
    for batch_size in (8, 16):
        problem = problems.make("mlp", samples=32, batch_size=batch_size)
        trainer = trainer_of(problem, momentum=0.9)
        handlers = [gs.SVRGHandler(update_freq=2)]
        if batch_size == 8:
            problem.net.collect_params().setattr("grad_req", "add")
            handlers.append(EverySecondBatch())
        gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
            problem.ndarrays(), epochs=4, event_handlers=handlers
        )
        weights.append(problem.params)
    # float64: two sums of 8 are rounded otherwise than one of 16.
    assert problems.relative_difference(*weights) < 1e-12


def test_two_svrg_handlers_are_an_error():
    problem = problems.make("softmax")
    before = problem.params
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match="both correct the gradients: give one of them only"):
        estimator.fit(
            problem.ndarrays(), epochs=1, event_handlers=[gs.SVRGHandler(), gs.SVRGHandler()]
        )
    assert problems.same(problem.params, before)


def test_a_batch_processor_of_the_users_own():
    """Batches of another shape, and a loss made of two: the snapshot follows."""

    class Weighted(mx_estimator.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            with mx.autograd.record():
                pred = estimator.net(batch["x"])
                loss = estimator.loss(pred, batch["y"]) * batch["weight"]
            loss.backward()
            return [batch["x"]], [batch["y"]], [pred], [loss]

    problem = problems.make("softmax")
    data = [
        {"x": x, "y": y, "weight": mx.nd.ones((len(y),), dtype="float64")}
        for x, y in problem.ndarrays()
    ]
    estimator = gs.Estimator(
        problem.net, problem.loss, trainer=trainer_of(problem), batch_processor=Weighted()
    )
    estimator.fit(data, epochs=3, event_handlers=[gs.SVRGHandler()])
    plain = problems.make("softmax")
    gs.Estimator(plain.net, plain.loss, trainer=trainer_of(plain)).fit(
        plain.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler()]
    )
    assert problems.relative_difference(problem.params, plain.params) < 1e-14


def test_handlers_get_lists_of_a_batch_processor_that_returns_single_arrays():
    class Single(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            outputs = super().fit_batch(estimator, batch, batch_axis)
            return tuple(of_one for (of_one,) in outputs)

    seen = []

    class Look(GradientReady, BatchEnd):
        def gradient_ready(self, estimator, *args, **kwargs):
            seen.extend(kwargs[name] for name in ("label", "pred", "loss"))

        batch_end = gradient_ready

    problem = problems.make("softmax")
    gs.Estimator(
        problem.net, problem.loss, trainer=trainer_of(problem), batch_processor=Single()
    ).fit(problem.ndarrays()[:1], epochs=1, event_handlers=[Look()])
    assert len(seen) == 6
    assert all(isinstance(value, list) and len(value) == 1 for value in seen)


def test_the_contexts_of_the_network_are_the_default():
    problem = problems.make("softmax", TWO)
    assert gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).context == TWO


BAD_DATA = {
    "empty": ([], "train_data is empty: give at least one batch"),
    "generator": ((batch for batch in [1]), "which is gone after one pass: give a DataLoader"),
    "number": (3, "train_data must be an iterable of .* got 3"),
    "empty iterable": (Again([]), "train_data gave no batch: it is empty"),
    "no pair": ([(mx.nd.ones((2, 6)),)], r"must be a \(data, label\) pair, got a tuple of 1"),
    "an array": (
        [mx.nd.ones((2, 6))],
        r"got an array of shape \(2, 6\): give whole arrays as gluon_svrg.data.ArrayLoader",
    ),
    "whole NDArray": (
        mx.nd.ones((40, 6)),
        r"must be an iterable of .*, got an array of shape \(40, 6\): give .*ArrayLoader",
    ),
    "whole array": (
        np.ones((40, 6)),
        r"got an array of shape \(6,\): give whole arrays as gluon_svrg.data.ArrayLoader",
    ),
    "several inputs": (
        [([mx.nd.ones((2, 6)), mx.nd.ones((2, 6))], mx.nd.ones((2,)))],
        "HybridSequential cannot be called with 2 arrays",
    ),
    "lengths": (
        [(mx.nd.ones((4, 6)), mx.nd.ones((3,)))],
        r"same length along axis 0, got shapes \(4, 6\) and \(3,\)",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
@pytest.mark.parametrize("handlers", [[], [gs.SVRGHandler()]], ids=["plain", "svrg"])
def test_bad_data_is_an_error_and_nothing_is_trained(case, handlers):
    data, message = BAD_DATA[case]
    if handlers and case == "empty iterable":
        message = "needs at least one batch, got none"
    problem = problems.make("softmax", dtype="float32")
    before = problem.params
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match=message):
        estimator.fit(data, epochs=1, event_handlers=handlers)
    assert problems.same(problem.params, before)


@pytest.mark.parametrize("handlers", [list, lambda: [gs.SVRGHandler()]], ids=["plain", "svrg"])
def test_a_data_iter_is_trained_and_evaluated_as_a_list_is(handlers):
    results = []
    for is_iterator in (False, True):
        problem = problems.make("softmax")
        x, y = (np.concatenate(part) for part in zip(*problem.batches, strict=True))
        size = len(problem.batches[0][1])
        data = [
            tuple(mx.nd.array(a[i : i + size], dtype=a.dtype) for a in (x, y))
            for i in range(0, len(x), size)
        ]
        if is_iterator:
            whole = [mx.nd.array(a, dtype=a.dtype) for a in (x, y)]
            data = mx.io.NDArrayIter(*whole, batch_size=size)
        estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
        estimator.fit(data, epochs=2, event_handlers=handlers())
        results.append((problem.params, estimator.evaluate(data)))
    assert problems.same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_data_that_is_gone_after_one_pass_is_an_error():
    class Once:
        def __init__(self, batches):
            self._iterator = iter(batches)

        def __iter__(self):
            return self._iterator

    problem = problems.make("softmax")
    before = problem.params
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match="train_data gave no batch: it is empty, or it can be"):
        estimator.fit(Once(problem.ndarrays()), epochs=1, event_handlers=[gs.SVRGHandler()])
    assert problems.same(problem.params, before)


def test_empty_validation_data_is_an_error():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match="val_data is empty"):
        estimator.fit(problem.ndarrays(), [], epochs=1)
    with pytest.raises(ValueError, match="val_data gave no batch"):
        estimator.evaluate(Again([]))


def uninitialised(part):
    """An Estimator of which this part has a parameter without a value."""
    problem = problems.make("softmax", dtype="float32")
    new = gluon.nn.Dense(3, in_units=6, prefix="new_")
    if part == "trainer":
        return gs.SVRGTrainer(new.collect_params(), "sgd")
    loss = gluon.loss.SoftmaxCELoss()
    if part == "loss":
        loss.register_child(new)
    arguments = {"trainer": trainer_of(problem)} | ({"val_net": new} if part == "val_net" else {})
    estimator = gs.Estimator(problem.net, loss, **arguments)
    if part == "net":
        estimator.net = new
    return estimator


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("part", ["trainer", "net", "loss", "val_net"])
def test_a_parameter_without_a_value_is_told_with_the_way_out(part, call):
    batches = problems.make("softmax", dtype="float32").ndarrays("float32")
    if part in ("net", "loss") and call != "fit":
        return  # they evaluate with val_net
    message = r"Parameter 'new_(weight|bias)' has not been initialized: call .*initialize\(\)"
    arguments = {"epochs": 1} if call == "fit" else {}
    with pytest.raises(RuntimeError, match=message):
        getattr(uninitialised(part), call)(batches, **arguments)


def test_a_gpu_that_is_not_there_is_told_with_the_way_out():
    problem = problems.make("softmax")
    with pytest.raises(ValueError, match=r"context=gpu\(99\) is not there: .*use mx.cpu\(\), or"):
        gs.Estimator(problem.net, problem.loss, context=mx.gpu(99))


def test_a_network_elsewhere_is_an_error():
    problem = problems.make("softmax", TWO)
    trainer = trainer_of(problem)
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer, context=mx.cpu(0))
    message = r"is on \[cpu\(0\), cpu\(1\)\] but the Estimator trains on \[cpu\(0\)\]: initialise"
    with pytest.raises(ValueError, match=message):
        estimator.fit(problem.ndarrays(), epochs=1)


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ({}, "exactly one of epochs and batches, got epochs=None and batches=None"),
        ({"epochs": 1, "batches": 1}, "exactly one of epochs and batches"),
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"epochs": 1.5}, "epochs must be a positive integer, got 1.5"),
        ({"batches": -1}, "batches must be a positive integer, got -1"),
        ({"batches": True}, "batches must be a positive integer, got True"),
    ],
)
def test_a_bad_duration_is_an_error(duration, message):
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match=message):
        estimator.fit(problem.ndarrays(), **duration)


def test_a_handler_that_watches_another_estimators_metric_is_an_error():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))

    class Watch(BatchEnd):
        metric = mx.metric.Accuracy()

    with pytest.raises(ValueError, match="outside of the known training and validation metrics"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[Watch()])


def test_a_call_of_fit_that_is_refused_leaves_nothing_behind():
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    batch = mx.nd.ones((2, 2)), mx.nd.ones((2, 1))
    with pytest.raises(FileNotFoundError):
        estimator.fit([batch], [batch], epochs=1, verbose=0, resume="/no/such/folder")
    assert estimator.verbose == "auto"
    assert estimator.val_data is None


@pytest.mark.slow
def test_a_bar_of_an_evaluation_needs_no_length():
    class Sampler(gluon.data.Sampler):
        def __iter__(self):
            yield [0, 1]

        def __len__(self):
            raise TypeError("an unexpected error")

    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    dataset = gluon.data.ArrayDataset(mx.nd.ones((2, 2)), mx.nd.ones((2, 1)))
    data = gluon.data.DataLoader(dataset, batch_sampler=Sampler())
    assert estimator.evaluate(data, verbose=1) == estimator.evaluate(data, verbose=0)


def test_figures_of_an_evaluation_are_numbers_of_python():
    problem = problems.make("linear")
    estimator = gs.Estimator(
        problem.net, problem.loss, mx.metric.MSE(), trainer=trainer_of(problem)
    )
    values = estimator.evaluate(problem.ndarrays())
    assert {name: type(value) for name, value in values.items()} == {
        "validation mse": float,
        "validation loss": float,
    }


@pytest.mark.parametrize("fails", [False, True])
def test_the_mean_of_the_contexts_running_statistics_is_evaluated(fails):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.BatchNorm(in_channels=3), gluon.nn.Dense(1, in_units=3))
    net.initialize(mx.init.Normal(1), ctx=TWO)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer)
    means = net[0].running_mean.list_data()
    batches = [(mx.nd.arange(24).reshape((8, 3)), mx.nd.ones(8))]
    results = []
    for values in ((1, 3), (2, 2)):
        for mean, value in zip(means, values, strict=True):
            mean[:] = value
        if fails:
            with pytest.raises(ValueError, match="a batch must be a"):
                estimator.evaluate([*batches, None])
        else:
            results.append(estimator.evaluate(batches))
        assert [mean.asnumpy()[0] for mean in means] == list(values)
    assert fails or results[0] == results[1]


def test_an_interrupt_at_any_line_of_fit_leaves_no_reference_to_the_data():
    """But for those of the clean-up itself."""
    fit = inspect.unwrap(gs.Estimator.fit)
    source, first = inspect.getsourcelines(fit)
    clean_up = first + next(n for n, line in enumerate(source) if line.strip() == "finally:")
    problem = problems.make("softmax")
    batches = problem.ndarrays()
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    lines = set()

    def interrupt_at(number):
        def trace_line(frame, event, _):
            if event == "line" and frame.f_lineno < clean_up:
                lines.add(frame.f_lineno)
                if frame.f_lineno == number:
                    raise KeyboardInterrupt
            return trace_line

        return lambda frame, *_: trace_line if frame.f_code is fit.__code__ else None

    def run(number=None):
        before = sys.gettrace()
        sys.settrace(interrupt_at(number))
        try:
            estimator.fit(batches, batches, epochs=1, verbose=0)
        finally:
            sys.settrace(before)

    run()
    assert len(lines) > 25
    for number in sorted(lines):
        with pytest.raises(KeyboardInterrupt):
            run(number)
        left = {name: vars(estimator).get(name) for name in ("train_data", "val_data", "data")}
        assert left == dict.fromkeys(left), number
        assert estimator._loop is None
    run()


# What is easily given in the place of something else, and the way out.
MISTAKES = {
    "a class as network": (
        lambda e, x, y: gs.Estimator(mx.gluon.nn.Dense, e.loss),
        "net must be a gluon.Block, got <class .*: give the network itself",
    ),
    "no network": (lambda e, x, y: gs.Estimator(None, e.loss), "gluon.Block, got None: give the"),
    "a name as trainer": (
        lambda e, x, y: gs.Estimator(e.net, e.loss, trainer="sgd"),
        r"trainer must be a gluon.Trainer, got 'sgd': give gluon_svrg.SVRGTrainer\(net.collect_p",
    ),
    "an optimizer as trainer": (
        lambda e, x, y: gs.Estimator(e.net, e.loss, trainer=gs.LARS()),
        "trainer must be a gluon.Trainer, got .*: give gluon_svrg.SVRGTrainer",
    ),
    "a network as params": (
        lambda e, x, y: gs.SVRGTrainer(e.net, "sgd"),
        r"must be Parameters, got the network '.*': give its collect_params\(\)",
    ),
    "no params": (
        lambda e, x, y: gs.SVRGTrainer(mx.gluon.nn.Activation("relu").collect_params(), "sgd"),
        r"params is empty: give the collect_params\(\) of a network that has layers with weights",
    ),
    "an empty list as params": (lambda e, x, y: gs.SVRGTrainer([], "sgd"), "params is empty: give"),
    "a class as handler": (
        lambda e, x, y: e.fit([(x, y)], epochs=1, event_handlers=gs.SVRGHandler),
        r"got the class SVRGHandler: make one, SVRGHandler\(...\)",
    ),
    "a name as handler": (
        lambda e, x, y: e.fit([(x, y)], epochs=1, event_handlers="svrg"),
        "must hold EventHandlers, got 'svrg': inherit .* or give a handler such as gluon_svrg.SV",
    ),
    "a dict of handlers": (
        lambda e, x, y: e.fit([(x, y)], epochs=1, event_handlers={"svrg": gs.SVRGHandler()}),
        "got {'svrg': .*, or give a handler such as gluon_svrg.SVRGHandler",
    ),
    "a class as handler of an evaluation": (
        lambda e, x, y: e.evaluate([(x, y)], event_handlers=gs.MetricHandler),
        "got the class MetricHandler: make one",
    ),
    "a frame as training data": (
        lambda e, x, y: e.fit(pd.DataFrame(x), epochs=1),
        r"train_data must be .*, got a DataFrame: give gluon_svrg.data.ArrayLoader\(data.to_numpy",
    ),
    "a frame as validation data": (
        lambda e, x, y: e.fit([(x, y)], pd.DataFrame(x), epochs=1),
        r"val_data must be .*, got a DataFrame: give gluon_svrg.data.ArrayLoader\(data.to_numpy",
    ),
    "a frame to evaluate": (
        lambda e, x, y: e.evaluate(pd.DataFrame(x)),
        r"got a DataFrame: give gluon_svrg.data.ArrayLoader\(data.to_numpy",
    ),
    "batches of no size": (
        lambda e, x, y: e.predict(x, batch_size=0),
        "batch_size must be a positive integer, got 0: each pass takes that many samples",
    ),
    "no folder for checkpoints": (
        lambda e, x, y: gs.CheckpointHandler(None),
        "directory must be a str or a path, got None: the folder of the run's checkpoints",
    ),
    "no folder for TensorBoard": (
        lambda e, x, y: gs.TensorBoardHandler(None),
        "log_dir must be a str or a path, got None: the folder that TensorBoard reads",
    ),
    "no file for the history": (
        lambda e, x, y: gs.HistoryFileHandler(None),
        "path must be a str or a path, got None: the file for the history",
    ),
    "no file for the trace": (
        lambda e, x, y: gs.ProfilerHandler(trace=3),
        "trace must be a str or a path, got 3: the file of the trace",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_common_mistake_is_answered_with_value_and_way_out(name):
    mistake, message = MISTAKES[name]
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    before = problem.params
    with pytest.raises((TypeError, ValueError), match=message):
        mistake(estimator, *problem.batches[0])
    assert problems.same(problem.params, before)


@pytest.mark.parametrize("svrg", [False, True])
@pytest.mark.parametrize("kind", [gs.SVRGTrainer, mx.gluon.Trainer])
def test_the_trainer_of_another_network_is_refused(kind, svrg):
    """It would train nothing, and say that all epochs are done."""
    problem, other = problems.make("softmax"), problems.make("softmax")
    trainer = kind(other.net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    way_out = r"has no parameter of the network, .*; make it with net.collect_params\(\)"
    handlers = [gs.SVRGHandler()] if svrg and kind is gs.SVRGTrainer else []
    with pytest.raises(ValueError, match=way_out):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers)


def test_a_batch_processor_may_train_another_network():
    problem, other = problems.make("softmax"), problems.make("softmax")

    class Other(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            data, label = batch
            with autograd.record():
                loss = estimator.loss(other.net(data), label)
            loss.backward()
            return [data], [label], [loss], [loss]

    before = other.params
    estimator = gs.Estimator(
        problem.net,
        problem.loss,
        mx.metric.Loss("loss"),
        trainer=gs.SVRGTrainer(other.net.collect_params(), "sgd", {"learning_rate": 0.1}),
        batch_processor=Other(),
    )
    estimator.fit(problem.ndarrays(), epochs=1)
    assert not problems.same(other.params, before)
