"""EMAHandler: against NumPy after every step; evaluated, exported and resumed."""

import logging
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.checkpoint import storage
from gluon_svrg.events import BatchEnd, EpochEnd
from mxnet.gluon import nn
from problems import ONE, TWO


class Averages(BatchEnd):
    """Keeps the weights and the averages after each step."""

    priority = -1000

    def __init__(self, ema):
        self.ema = ema
        self.weights, self.averages = [], []

    def batch_end(self, estimator, *args, **kwargs):
        self.weights.append(problems.weights_of(estimator.net))
        with estimator.evaluation_weights():
            self.averages.append(problems.weights_of(estimator.net))


def estimator_of(problem, contexts=ONE, on_kvstore=None):
    trainer = gs.SVRGTrainer(
        problem.net.collect_params(),
        "sgd",
        {"learning_rate": 0.3, "momentum": 0.9},
        update_on_kvstore=on_kvstore,
    )
    return gs.Estimator(
        problem.net, problem.loss, mx.metric.Loss("loss"), trainer=trainer, context=list(contexts)
    )


@pytest.mark.parametrize(("contexts", "on_kvstore"), [(ONE, None), (TWO, False), (TWO, True)])
@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize("every_n_steps", [1, 3])
def test_against_numpy(contexts, on_kvstore, warm_up, every_n_steps):
    problem = problems.make("mlp", contexts)
    ema = gs.EMAHandler(0.8, every_n_steps=every_n_steps, warm_up=warm_up)
    seen = Averages(ema)
    estimator = estimator_of(problem, contexts, on_kvstore)
    estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler(), ema, seen])
    expected, count = None, 0
    for step, weights in enumerate(seen.weights, start=1):
        if step % every_n_steps == 0:
            if expected is None:
                expected = weights
            else:
                count += 1
                decay = min(0.8, (1 + count) / (10 + count)) if warm_up else 0.8
                expected = [decay * e + (1 - decay) * w
                            for e, w in zip(expected, weights, strict=True)]  # fmt: skip
        averages = seen.averages[step - 1]
        assert problems.relative_difference(averages, expected or weights) < 1e-14


class Steps(BatchEnd, EpochEnd):
    """Keeps the weights and the averages after each batch and at each epoch's end."""

    priority = Averages.priority

    def __init__(self):
        self.weights, self.averages = [], []

    def batch_end(self, estimator, *args, **kwargs):
        self.weights.append(problems.weights_of(estimator.net))
        with estimator.evaluation_weights():
            self.averages.append(problems.weights_of(estimator.net))

    def epoch_end(self, estimator, *args, **kwargs):
        self.batch_end(estimator)


@pytest.mark.parametrize("every_n_steps", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 100])
def test_it_moves_once_per_step(accumulate, every_n_steps):
    """Also after the step at the end of an epoch, which has the rest of the batches."""
    problem = problems.make("mlp")
    seen = Steps()
    handlers = [
        gs.EMAHandler(0.8, every_n_steps=every_n_steps, warm_up=False),
        gs.GradientUpdateHandler(accumulate=accumulate),
        seen,
    ]
    start = problem.params
    estimator_of(problem).fit(problem.ndarrays(), epochs=3, event_handlers=handlers)
    before, expected, steps = start, None, 0
    for weights, averages in zip(seen.weights, seen.averages, strict=True):
        if not problems.same(before, weights):  # a step
            steps += 1
            if steps % every_n_steps == 0 and expected is None:
                expected = weights
            elif steps % every_n_steps == 0:
                expected = [e + 0.2 * (w - e) for e, w in zip(expected, weights, strict=True)]
        before = weights
        for average, want in zip(averages, expected or weights, strict=True):
            np.testing.assert_allclose(average, want, rtol=1e-13, atol=1e-14)
    batches = len(problem.ndarrays())
    assert steps == 3 * -(-batches // accumulate)
    assert problems.same(problem.params, averages)


@pytest.mark.parametrize(
    ("given", "evaluate", "keep"),
    [
        ({}, True, True),
        ({"evaluate": True}, True, True),
        ({"evaluate": False}, False, False),
        ({"keep": True}, True, True),
        ({"keep": False}, False, False),
        ({"evaluate": True, "keep": False}, True, False),
        ({"evaluate": False, "keep": True}, False, True),
    ],
)
def test_what_is_evaluated_is_kept(given, evaluate, keep, caplog):
    """The last figure is that of the network after fit, unless the log says that it is not."""
    problem = problems.make("mlp")
    data = problem.ndarrays()
    estimator = estimator_of(problem)
    ema = gs.EMAHandler(0.99, warm_up=False, **given)
    assert (ema.evaluate, ema.keep) == (evaluate, keep)
    with caplog.at_level(logging.INFO, "gluon_svrg.estimator"):
        result = estimator.fit(data, data, epochs=2, event_handlers=[ema])
    left = estimator.evaluate(data)["validation loss"]
    assert (result.history[-1]["validation loss"] == left) is (evaluate is keep)
    is_told = any("of the averaged weights" in message for message in caplog.messages)
    assert is_told is (evaluate and not keep)


def test_there_is_no_average_before_the_first_step():
    ema = gs.EMAHandler()
    with pytest.raises(RuntimeError, match=r"no average yet: give it to fit, .* at its first step"):
        ema.applied()


def test_a_checkpoint_has_the_average_to_load_and_the_weights_to_continue_from(tmp_path):
    problem = problems.make("mlp")
    handlers = [gs.EMAHandler(0.9), gs.CheckpointHandler(tmp_path)]
    seen = problems.Recorder()
    estimator_of(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[*handlers, seen])
    (path,) = storage.list_checkpoints(tmp_path).values()
    for name, weights in (("net", problem.params), ("training", seen.weights[-1])):
        saved = mx.nd.load(str(path / f"{name}.params"))
        assert problems.same(sorted_by_size(saved.values()), sorted_by_size(weights))


def sorted_by_size(arrays):
    arrays = (a.asnumpy() if isinstance(a, mx.nd.NDArray) else a for a in arrays)
    return sorted(arrays, key=lambda a: (a.size, float(a.sum())))


def test_the_run_is_not_touched():
    runs = []
    for handlers in ([], [gs.EMAHandler(0.9, evaluate=True, keep=False)]):
        problem = problems.make("mlp", TWO)
        data = problem.ndarrays()
        estimator_of(problem, TWO).fit(data, data, epochs=3, event_handlers=handlers)
        runs.append(problem.params)
    assert problems.same(*runs)


def test_it_is_evaluated_during_the_run_and_kept_on_request():
    for keep in (False, True):
        problem = problems.make("mlp")
        data = problem.ndarrays()
        estimator = estimator_of(problem)
        ema = gs.EMAHandler(0.99, warm_up=False, evaluate=True, keep=keep)
        result = estimator.fit(data, data, epochs=4, event_handlers=[ema])
        own = problem.params
        with ema.applied():
            averaged = problem.params
            figures = estimator.evaluate(data)
        assert problems.same(problem.params, own)
        assert problems.same(own, averaged) is keep
        assert result.history[-1]["validation loss"] == figures["validation loss"]
        if not keep:
            assert estimator.evaluate(data) != figures


@pytest.mark.parametrize(("contexts", "on_kvstore"), [(ONE, None), (TWO, False), (TWO, True)])
def test_a_second_fit_goes_on_from_what_was_kept(contexts, on_kvstore):
    """Also where a kvstore holds the weights; the momentum stays."""
    problem = problems.make("mlp", contexts)
    estimator = estimator_of(problem, contexts, on_kvstore)
    data = problem.ndarrays()
    first = problems.Recorder()
    estimator.fit(data, epochs=2, event_handlers=[gs.EMAHandler(0.9, keep=True), first])
    kept = problem.params
    second = problems.Recorder()
    estimator.trainer.set_learning_rate(0.0)
    estimator.fit(data, batches=1, event_handlers=[second])
    # Momentum alone moves them now, by 0.9 times the last step, from where they were kept.
    expected = [
        w + float(np.float32(0.9)) * (last - before)
        for w, before, last in zip(kept, *first.weights[-2:], strict=True)
    ]
    assert problems.relative_difference(second.weights[0], expected) < 1e-12


def test_auxiliary_states_are_averaged_and_come_back():
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.BatchNorm(), nn.Dense(2))
    net.initialize()
    net.hybridize()
    rng = np.random.default_rng(0)
    data = [(mx.nd.array(rng.normal(size=(8, 3))), mx.nd.zeros(8)) for _ in range(4)]
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, mx.gluon.loss.SoftmaxCELoss(), trainer=trainer)
    ema = gs.EMAHandler(0.5, warm_up=False, keep=False)
    estimator.fit(data, data, epochs=1, event_handlers=[ema])
    (mean,) = (p for n, p in net.collect_params().items() if n.endswith("running_mean"))
    own = mean.data().asnumpy()
    with ema.applied():
        assert not np.array_equal(mean.data().asnumpy(), own)
    assert np.array_equal(mean.data().asnumpy(), own)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 1}, "decay must be less than 1, got 1: the average would not move"),
        ({"decay": 0}, "decay must be a number above 0, got 0"),
        ({"decay": "0.9"}, "decay must be a number above 0, got '0.9'"),
        ({"every_n_steps": 0}, "every_n_steps must be a positive integer, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        gs.EMAHandler(**arguments)


class SpoilAverage(BatchEnd):
    """Makes the average NaN after the second step, and leaves the network's weights as they are."""

    priority = gs.events.Order.LAST

    def __init__(self, ema):
        self.ema = ema

    def batch_end(self, estimator, *args, **kwargs):
        if estimator.position.batch == 1:
            next(iter(self.ema._averages.values()))[0][:] = float("nan")


def test_a_nan_in_the_average_keeps_no_checkpoint_from_being_written(tmp_path, caplog):
    problem = problems.make("mlp")
    ema = gs.EMAHandler(0.8)
    estimator = estimator_of(problem)
    checkpoints = gs.CheckpointHandler(tmp_path, None, 1, keep_last=None)
    with caplog.at_level(logging.WARNING, "gluon_svrg.estimator"):
        estimator.fit(
            problem.ndarrays(), batches=3, event_handlers=[ema, SpoilAverage(ema), checkpoints]
        )
    written = [storage.read(path).files for path in storage.list_checkpoints(tmp_path).values()]
    # The run can continue from each of them; the average is there if it is finite.
    assert ["training.params" in files for files in written] == [True, False, False]
    told = [m for m in caplog.messages if m.startswith("averaged weights: parameter ")]
    assert len(told) >= 2
    assert "is NaN or infinite; net.params of this checkpoint has the last weights inst" in told[0]
