"""SVRG in Gluon against NumPy, after every step."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
from gluon_svrg.data import ArrayLoader
from mxnet import gluon
from problems import ONE, TWO

pytestmark = pytest.mark.usefixtures("mode")

COEFFICIENTS = {
    "1": (1.0, lambda progress: 1.0),
    "0.5": (0.5, lambda progress: 0.5),
    "decaying": (gs.linear_decay(0.75, 0.0), lambda progress: 0.75 * (1 - progress)),
}


def fit(problem, optimizer_params, epochs, data=None, **handler_arguments):
    """Train in the Estimator; return the recorder."""
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", optimizer_params)
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    recorder = problems.Recorder()
    estimator.fit(
        data or problem.ndarrays(),
        val_data=problem.ndarrays(),
        epochs=epochs,
        event_handlers=[gs.SVRGHandler(**handler_arguments), recorder],
    )
    return recorder


def arrays_of(problem):
    """All samples as two NumPy arrays."""
    return [np.concatenate(parts) for parts in zip(*problem.batches, strict=True)]


@pytest.mark.parametrize("table", [False, True], ids=["recomputed", "table"])
@pytest.mark.parametrize("update_freq", [1, 3])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize(("momentum", "wd"), [(0.0, 0.0), (0.9, 1e-2)])
@pytest.mark.parametrize("coefficient", COEFFICIENTS)
@pytest.mark.parametrize("kind", ["linear", "softmax", "mlp"])
def test_every_step_agrees_with_numpy(
    kind, coefficient, momentum, wd, contexts, update_freq, table
):
    problem = problems.make(kind, contexts)
    ours, theirs = COEFFICIENTS[coefficient]
    expected = oracle.svrg(
        problem.gradient,
        problem.params,
        problem.batches,
        oracle.SGD(0.1, momentum, wd),
        epochs=4,
        update_freq=update_freq,
        coefficient=theirs,
    )
    recorder = fit(
        problem,
        {"learning_rate": 0.1, "momentum": momentum, "wd": wd},
        epochs=4,
        coefficient=ours,
        update_freq=update_freq,
        gradient_table=table,
    )
    assert len(recorder.weights) == len(expected) == 4 * 5
    for step, (weights, reference) in enumerate(zip(recorder.weights, expected, strict=True)):
        assert problems.relative_difference(weights, reference) < 1e-10, step


@pytest.mark.parametrize("table", [False, True], ids=["recomputed", "table"])
@pytest.mark.parametrize("update_freq", [1, 3])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["linear", "softmax", "mlp"])
def test_every_step_over_a_shuffled_loader_agrees_with_numpy(kind, contexts, update_freq, table):
    problem = problems.make(kind, contexts)
    loader = ArrayLoader(*arrays_of(problem), batch_size=8, shuffle=True, seed=5)
    batches = [
        (loader[i][0].asnumpy(), loader[i][1].asnumpy()) for i in range(len(problem.batches))
    ]
    assert not np.array_equal(batches[0][0], problem.batches[0][0])
    assert loader.order(0) != loader.order(1)
    expected = oracle.svrg(
        problem.gradient,
        problem.params,
        batches,
        oracle.SGD(0.1, 0.9, 1e-2),
        epochs=4,
        update_freq=update_freq,
        coefficient=lambda progress: 1.0,
        order=loader.order,
    )
    recorder = fit(
        problem,
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-2},
        epochs=4,
        data=loader,
        update_freq=update_freq,
        gradient_table=table,
    )
    assert len(recorder.weights) == len(expected) == 4 * 5
    for step, (weights, reference) in enumerate(zip(recorder.weights, expected, strict=True)):
        assert problems.relative_difference(weights, reference) < 1e-10, step


class ConvNet(gluon.nn.HybridSequential):
    """What may go wrong with a table: BatchNorm, dropout, and a pooling layer that is tuned."""

    def __init__(self):
        super().__init__()
        self.add(
            gluon.nn.Conv2D(4, 3, in_channels=1),
            gluon.nn.BatchNorm(in_channels=4),
            gluon.nn.Dropout(0.3),
            gluon.nn.GlobalAvgPool2D(),
            gluon.nn.Dense(3, in_units=4),
        )


@pytest.mark.full
@pytest.mark.parametrize("hybridize", [None, {}, {"static_alloc": True, "static_shape": True}])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("update_freq", [1, 3])
def test_the_table_gives_the_weights_of_recomputing(update_freq, contexts, hybridize):
    """Ten epochs in shuffled order, with all that is random, to 1e-12."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(37, 1, 6, 6)), rng.integers(0, 3, 37).astype("float64")

    def train(table, cpu_tuning):
        gs.seed_everything(3)
        net = ConvNet()
        problems.initialize(net, mx.init.Xavier(), contexts, "float64")
        if hybridize is not None:
            net.hybridize(**hybridize)
        estimator = gs.Estimator(
            net,
            gluon.loss.SoftmaxCELoss(),
            trainer=gs.SVRGTrainer(
                net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9}
            ),
            cpu_tuning=cpu_tuning,
        )
        handler = gs.SVRGHandler(update_freq, gradient_table=table)
        recorder = problems.Recorder()
        loader = ArrayLoader(x, y, batch_size=8, shuffle=True, seed=1)
        test = ArrayLoader(x, y, batch_size=20)
        estimator.fit(loader, test, epochs=10, event_handlers=[handler, recorder])
        assert (handler.table is not None) == table
        return recorder.weights

    recomputed = train(False, False)
    assert len(recomputed) == 50
    for table, cpu_tuning in ((True, False), (True, True), (False, True)):
        for ours, theirs in zip(train(table, cpu_tuning), recomputed, strict=True):
            assert problems.relative_difference(ours, theirs) < 1e-12


@pytest.mark.parametrize("hybridize", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_manual_loop_agrees_with_numpy(hybridize):
    problem = problems.make("mlp")
    if hybridize is not None:
        problem.net.hybridize(**hybridize)
    expected = oracle.svrg(
        problem.gradient,
        problem.params,
        problem.batches,
        oracle.SGD(0.1, 0.9),
        epochs=3,
        update_freq=1,
        coefficient=lambda progress: 1.0,
    )
    trainer = gs.SVRGTrainer(
        problem.net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}
    )
    backward = problems.backward_of(problem.net, problem.loss)
    snapshot = gs.Snapshot(problem.net)
    batches = problem.ndarrays()
    trajectory = iter(expected)
    for _ in range(3):
        snapshot.take()
        trainer.set_control_variate(snapshot.full_gradient(backward, batches))
        for batch in batches:
            loss = backward(batch)
            trainer.correct(snapshot.gradient(backward, batch))
            trainer.step(len(loss))
            assert problems.relative_difference(problem.params, next(trajectory)) < 1e-10


@pytest.mark.parametrize("kind", ["linear", "softmax", "mlp"])
def test_corrected_gradients_average_to_the_full_gradient(kind):
    problem = problems.make(kind)
    backward = problems.backward_of(problem.net, problem.loss)
    snapshot = gs.Snapshot(problem.net)
    snapshot.take()
    batches = problem.ndarrays()
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd")
    trainer.set_control_variate(snapshot.full_gradient(backward, batches))
    rng = np.random.default_rng(0)
    for param in problem.net.collect_params().values():
        param.set_data(param.data() + problems.array(rng.normal(size=param.shape), "float64"))
    total = [np.zeros(param.shape) for param in problem.net.collect_params().values()]
    for batch in batches:
        backward(batch)
        trainer.correct(snapshot.gradient(backward, batch))
        for sums, param in zip(total, problem.net.collect_params().values(), strict=True):
            sums += param.grad().asnumpy()
    expected = oracle.full_gradient(problem.gradient, problem.params, problem.batches)
    means = [sums / 37 for sums in total]
    assert problems.relative_difference(means, expected) < 1e-12


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam"])
def test_coefficient_zero_is_the_base_optimizer_bit_for_bit(optimizer):
    def train(trainer_class, handlers):
        problem = problems.make("mlp")
        rule = gs.optimizer.create(optimizer, learning_rate=0.1)
        trainer = trainer_class(problem.net.collect_params(), rule)
        gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
            problem.ndarrays(), epochs=3, event_handlers=handlers
        )
        return problem.params

    plain = train(mx.gluon.Trainer, [])
    for coefficient in (0, lambda progress: 0.0):
        svrg = train(gs.SVRGTrainer, [gs.SVRGHandler(coefficient=coefficient)])
        assert problems.same(plain, svrg)


def test_coefficient_zero_in_the_rule_is_the_base_optimizer_bit_for_bit():
    problem = problems.make("mlp")
    backward = problems.backward_of(problem.net, problem.loss)
    snapshot = gs.Snapshot(problem.net)
    snapshot.take()
    batches = problem.ndarrays()
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd")
    trainer.set_control_variate(snapshot.full_gradient(backward, batches), coefficient=0)
    backward(batches[0])
    before = [param.grad().asnumpy() for param in problem.net.collect_params().values()]
    trainer.correct(snapshot.gradient(backward, batches[0]))
    after = [param.grad().asnumpy() for param in problem.net.collect_params().values()]
    assert problems.same(before, after)


def test_two_snapshots_at_unchanged_weights_give_the_same_full_gradient():
    problem = problems.make("mlp", TWO)
    estimator = gs.Estimator(
        problem.net,
        problem.loss,
        trainer=gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.0}),
    )
    seen = []

    class Watch(gs.events.EpochBegin):
        def epoch_begin(self, estimator, *args, **kwargs):
            means = estimator.trainer.full_gradient
            params = estimator.net.collect_params()
            seen.append([means[name][1].asnumpy() for name in params])

    estimator.fit(problem.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler(), Watch()])
    assert problems.same(*seen)
    expected = oracle.full_gradient(problem.gradient, problem.params, problem.batches)
    assert problems.relative_difference(seen[0], expected) < 1e-14
