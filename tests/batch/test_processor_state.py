"""A batch processor that carries a state from one batch to the next, under SVRG."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.batch.backward import backward_of
from gluon_svrg.data import ArrayLoader
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

RNG = np.random.default_rng(0)
BATCHES = [
    tuple(mx.nd.array(RNG.normal(size=(3, 2, size)), dtype="float64") for size in (3, 4))
    for _ in range(4)
]
LOSS = gluon.loss.L2Loss(batch_axis=1)


class Forgetful(gs.BatchProcessor):
    """Truncated backpropagation through time, without a word to SVRG."""

    state = None

    def fit_batch(self, estimator, batch, batch_axis=0):
        x, y = batch
        begin = self.state or estimator.net.begin_state(2, dtype="float64")
        with autograd.record():
            output, state = estimator.net(x, [part.detach() for part in begin])
            loss = estimator.loss(output, y)
        loss.backward()
        self.state = [part.detach() for part in state]
        return [x], [y], [output], [loss]


class Carrying(Forgetful):
    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Resetting(Carrying):
    def begin_epoch(self, estimator):
        self.state = None


def network():
    mx.random.seed(2)
    net = rnn.RNN(4, input_size=3)
    net.cast("float64")
    net.initialize(mx.init.Uniform(0.7))
    return net


def estimator_of(processor, learning_rate):
    net = network()
    return runs.estimator_of(
        net, LOSS, mx.metric.Loss("loss"), lr=learning_rate, batch_processor=processor
    )


class Losses(gs.events.BatchEnd):
    def __init__(self):
        self.values = []

    def batch_end(self, estimator, *args, **kwargs):
        self.values.append(kwargs["loss"][0].asnumpy())


def losses_of(processor, handlers, data=BATCHES):
    losses = Losses()
    estimator = estimator_of(processor(), 0.0)
    estimator.fit(data, epochs=3, event_handlers=[losses, *handlers])
    return losses.values


@pytest.mark.parametrize("processor", [Carrying, Resetting])
@pytest.mark.parametrize("table", [False, True])
def test_without_a_step_the_losses_are_those_without_svrg(processor, table):
    """Fails on 0.1: the passes at the snapshot move the state on."""
    plain = losses_of(processor, [])
    handlers = [gs.SVRGHandler(2, gradient_table=table), gs.VarianceHandler(batches=2)]
    assert problems.same(losses_of(processor, handlers), plain)
    # The state matters: the second epoch begins with it, or from zero.
    assert problems.same(plain[:1], plain[4:5]) == (processor is Resetting)


def test_in_another_order_each_batch_has_its_state_of_the_full_pass():
    arrays = [np.concatenate([batch[i].asnumpy() for batch in BATCHES]) for i in (0, 1)]
    loader = ArrayLoader(*arrays, batch_size=3, shuffle=True, seed=5)
    plain = losses_of(Carrying, [], loader)
    for table in (False, True):
        handlers = [gs.SVRGHandler(gradient_table=table)]
        assert problems.same(losses_of(Carrying, handlers, loader), plain)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_the_corrections_average_to_nothing(table, order):
    """So the mean of the batches' gradients at the snapshot is the full gradient."""
    estimator = estimator_of(Carrying(), 0.0)
    estimator.batch_processor.state = [mx.nd.ones((1, 2, 4), dtype="float64")]
    interval = gs.svrg.Interval(estimator.net, backward_of(estimator), gradient_table=table)
    full = interval.begin(BATCHES)
    sums = dict.fromkeys(full.means, 0.0)
    for index in order:
        for name, arrays in interval.gradient_at(BATCHES[index], index).sums.items():
            sums[name] = sums[name] + arrays[0].asnumpy()
    for name, total in sums.items():
        assert np.allclose(total / full.samples, full.means[name].asnumpy(), rtol=1e-12, atol=0)


def naive(processor, epochs, update_freq, learning_rate):
    """SVRG by a loop of its own: a state for the training, and one for each snapshot."""
    net = network()
    params = list(net.collect_params().values())

    def gradient(weights, state, batch):
        for param, weight in zip(params, weights, strict=True):
            param.set_data(weight)
        with autograd.record():
            output, state = net(batch[0], state)
            loss = LOSS(output, batch[1])
        loss.backward()
        return [param.grad().copy() for param in params], [part.detach() for part in state]

    def passed(weights, state):
        gradients = []
        for batch in BATCHES:
            found, state = gradient(weights, state, batch)
            gradients.append(found)
        return gradients

    weights, steps = [param.data().copy() for param in params], []
    state = net.begin_state(2, dtype="float64")
    for epoch in range(epochs):
        if processor is Resetting:
            state = net.begin_state(2, dtype="float64")
        if epoch % update_freq == 0:
            at_snapshot = passed([weight.copy() for weight in weights], state)
            samples = 2 * len(BATCHES)
            means = [sum(grads) / samples for grads in zip(*at_snapshot, strict=True)]
        for batch, kept in zip(BATCHES, at_snapshot, strict=True):
            own, state = gradient(weights, state, batch)
            for weight, g, s, m in zip(weights, own, kept, means, strict=True):
                weight -= learning_rate * (g - s + 2 * m) / 2
            steps.append([weight.asnumpy() for weight in weights])
    return steps


@pytest.mark.parametrize("processor", [Carrying, Resetting])
@pytest.mark.parametrize("table", [False, True])
def test_svrg_with_a_state_is_the_naive_one(processor, table):
    recorder = problems.Recorder()
    estimator = estimator_of(processor(), 0.5)
    handlers = [recorder, gs.SVRGHandler(2, gradient_table=table)]
    estimator.fit([(x, y) for x, y in BATCHES], epochs=4, event_handlers=handlers)
    # MXNet's kernel takes the learning rate as float32: 0.5 is one.
    for ours, theirs in zip(recorder.weights, naive(processor, 4, 2, 0.5), strict=True):
        assert problems.relative_difference(ours, theirs) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("table", [False, True])
def test_a_run_continues_with_both_states(table, tmp_path):
    def run(batches, folder, resume=None):
        estimator = estimator_of(Carrying(), 0.5)
        handlers = [
            gs.SVRGHandler(2, gradient_table=table),
            gs.CheckpointHandler(folder, every_n_epochs=None, every_n_batches=3),
        ]
        estimator.fit(BATCHES, batches=batches, event_handlers=handlers, resume=resume)
        return problems.weights_of(estimator.net)

    whole = run(14, tmp_path / "whole")
    run(6, tmp_path / "parts")  # in the middle of the snapshot's second epoch
    assert problems.same(run(14, tmp_path / "parts", "auto"), whole)


def test_a_batch_processor_of_mxnet_hears_of_epochs_too():
    class Own(mx.gluon.contrib.estimator.BatchProcessor):
        epochs = 0

        def begin_epoch(self, estimator):
            self.epochs += 1

    processor = Own()
    net = gluon.nn.Dense(1, in_units=2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=trainer, batch_processor=processor)
    estimator.fit([(mx.nd.ones((2, 2)), mx.nd.ones((2, 1)))], epochs=3)
    assert processor.epochs == 3


def test_arrays_that_are_carried_unsaid_are_named(caplog):
    estimator = estimator_of(Forgetful(), 0.0)
    estimator.fit(BATCHES, epochs=2, event_handlers=[gs.SVRGHandler(gradient_table=False)])
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("Forgetful keeps arrays from batch to batch (state)")
    with pytest.raises(ValueError, match=r"a state that is carried .*state_dict\(\)"):
        estimator_of(Forgetful(), 0.0).fit(
            BATCHES, epochs=2, event_handlers=[gs.SVRGHandler(gradient_table=True)]
        )


def test_a_batch_processor_that_carries_nothing_hears_no_warning(caplog):
    class Constant(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            self.factor = getattr(self, "factor", mx.nd.ones(1))  # the same one each time
            return super().fit_batch(estimator, batch, batch_axis)

    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, lr=0.01, batch_processor=Constant())
    estimator.fit(problem.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler()])
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


# --- Layers that infer their shapes ------------------------------------------------------------


class Weighted(gs.BatchProcessor):
    """A `fit_batch` alone, which calls the parts of the network by themselves."""

    calls = 0

    def fit_batch(self, estimator, batch, batch_axis=0):
        x, y, weight = batch["inputs"], batch["targets"], batch["importance"]
        self.calls += 1
        with autograd.record():
            output = estimator.net[2](estimator.net[1](estimator.net[0](x)))
            loss = estimator.loss(output, y) * weight
        loss.backward()
        return [x], [y], [output], [loss]


@pytest.mark.parametrize("table", [False, True])
def test_fit_batch_alone_is_enough_for_layers_that_infer_their_shapes(table):
    """Fails on 0.1: SVRG asked for an `evaluate_batch` of the same batch."""
    shapes = {"inputs": (4, 3), "targets": (4,), "importance": (4,)}
    batch = {name: mx.nd.array(RNG.normal(size=shape)) for name, shape in shapes.items()}
    results = []
    for is_known in (False, True):
        net = nn.HybridSequential()
        net.add(nn.Dense(4), nn.BatchNorm(), nn.Dense(1))
        mx.random.seed(4)
        net.initialize(mx.init.Normal(0.5))
        if is_known:
            net(batch["inputs"])
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        processor = Weighted()
        estimator = gs.Estimator(
            net,
            gluon.loss.L2Loss(),
            mx.metric.Loss("loss"),
            trainer=trainer,
            batch_processor=processor,
        )
        estimator.fit([batch] * 3, epochs=2, event_handlers=[gs.SVRGHandler(gradient_table=table)])
        results.append([*problems.weights_of(net), np.array(processor.calls)])
    assert problems.same(*results)


def test_an_error_of_fit_batch_is_not_hidden():
    net = nn.Dense(1)
    net.initialize()
    estimator = runs.estimator_of(
        net, LOSS, mx.metric.Loss("loss"), lr=0.01, batch_processor=Weighted()
    )
    batch = {name: mx.nd.ones((2, 3)) for name in ("inputs", "targets")}
    with pytest.raises(KeyError, match="importance"):
        estimator.fit([batch], epochs=1, event_handlers=[gs.SVRGHandler()])
