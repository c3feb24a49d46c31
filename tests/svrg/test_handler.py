"""SVRGHandler: when the snapshot is taken, what it shares with the network, and its errors."""

import io
import itertools

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.batch.backward import backward_of
from gluon_svrg.events import BatchEnd, EpochBegin, GradientReady
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO


def estimator_for(problem, module=gs, lr=0.1, **arguments):
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": lr})
    return module.Estimator(problem.net, problem.loss, trainer=trainer, **arguments)


class WatchCoefficient(EpochBegin):
    """Writes down, at each epoch's begin, the coefficient and the weights of the snapshot."""

    def __init__(self):
        self.coefficients = []

    def epoch_begin(self, estimator, *args, **kwargs):
        self.coefficients.append(estimator.trainer.coefficient)


@pytest.mark.parametrize(
    ("arguments", "snapshots", "coefficients"),
    [
        ({}, 6, [1, 1, 1, 1, 1, 1]),
        ({"update_freq": 2}, 3, [1, 1, 1, 1, 1, 1]),
        ({"update_freq": 4}, 2, [1, 1, 1, 1, 1, 1]),
        ({"start_epoch": 2}, 4, [0, 0, 1, 1, 1, 1]),
        ({"start_epoch": 1, "update_freq": 2}, 3, [0, 1, 1, 1, 1, 1]),
        ({"stop_epoch": 4}, 4, [1, 1, 1, 1, 0, 0]),
        ({"start_epoch": 1, "stop_epoch": 3, "update_freq": 5}, 1, [0, 1, 1, 0, 0, 0]),
        ({"coefficient": 0.5, "update_freq": 3}, 2, [0.5] * 6),
        # Constant inside an interval, as in alpha-SVRG.
        ({"coefficient": lambda p: 1 - p, "update_freq": 3}, 2, [1, 1, 1, 0.5, 0.5, 0.5]),
        ({"coefficient": lambda p: float(p < 0.5), "update_freq": 1}, 3, [1, 1, 1, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("table", [False, True])
def test_when_the_snapshot_is_taken(arguments, snapshots, coefficients, table):
    problem = problems.make("softmax")
    watch = WatchCoefficient()
    handler = gs.SVRGHandler(**arguments, gradient_table=table)
    estimator_for(problem).fit(problem.ndarrays(), epochs=6, event_handlers=[handler, watch])
    assert watch.coefficients == coefficients
    corrected_epochs = 0 if table else sum(coefficient > 0 for coefficient in coefficients)
    assert handler.gradient_evaluations == 37 * (snapshots + corrected_epochs)


def test_progress_by_batches():
    seen = []
    problem = problems.make("softmax")  # 5 batches an epoch
    handler = gs.SVRGHandler(coefficient=lambda progress: seen.append(progress) or 1.0)
    estimator_for(problem).fit(problem.ndarrays(), batches=20, event_handlers=[handler])
    assert seen == [0, 0.25, 0.5, 0.75]


def test_after_the_run_the_trainer_is_a_plain_one():
    problem = problems.make("softmax")
    estimator = estimator_for(problem)
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[gs.SVRGHandler()])
    assert estimator.trainer.full_gradient is None


def test_after_an_exception_the_trainer_is_a_plain_one():
    class Fail(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            raise KeyError("broken")

    problem = problems.make("softmax")
    estimator = estimator_for(problem)
    with pytest.raises(KeyError, match="broken"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[gs.SVRGHandler(), Fail()])
    assert estimator.trainer.full_gradient is None


def test_after_a_train_begin_that_fails_it_holds_no_run(monkeypatch):
    def fail(*args, **kwargs):
        raise KeyError("broken")

    problem, handler = problems.make("softmax"), gs.SVRGHandler()
    monkeypatch.setattr("gluon_svrg.svrg.handler.Payoff", fail)
    before = set(vars(handler))
    with pytest.raises(KeyError, match="broken"):
        estimator_for(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[handler])
    assert set(vars(handler)) == before
    monkeypatch.undo()
    estimator_for(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[handler])
    assert handler.gradient_evaluations


def test_layers_that_infer_their_shapes():
    """The snapshot comes before the first forward pass: one batch makes the shapes known."""
    runs = []
    for in_units in (0, 6):
        net = nn.Dense(3, in_units=in_units)
        net.initialize(mx.init.Zero())
        problem = problems.make("softmax", dtype="float32")._replace(net=net)
        estimator_for(problem).fit(
            problem.ndarrays("float32"), epochs=2, event_handlers=[gs.SVRGHandler()]
        )
        runs.append(problem.params)
    assert problems.same(*runs)


def random_net(*layers, contexts=ONE, hybridize=True):
    net = nn.HybridSequential()
    net.add(*layers)
    net.cast("float64")
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    if hybridize:
        net.hybridize(static_alloc=True)
    return problems.make("mlp", contexts)._replace(net=net)


def dropout_net(contexts=ONE, hybridize=True):
    layers = nn.Dense(20, in_units=6), nn.Dropout(0.5), nn.Dense(3, in_units=20), nn.Dropout(0.2)
    return random_net(*layers, contexts=contexts, hybridize=hybridize)


class CompareWithTwin(GradientReady):
    """Before the correction: is the network's gradient the twin's? (So it is where w = w~.)"""

    priority = -4000

    def __init__(self, handler):
        self._handler = handler
        self.equal = []

    def gradient_ready(self, estimator, *args, **kwargs):
        own = {k: [g.asnumpy() for g in p.list_grad()]
               for k, p in estimator.net.collect_params().items()}  # fmt: skip
        self._handler.interval.masks.lock(self._handler._run.position.batch_in_epoch)
        twin = self._handler.interval.snapshot.gradient(backward_of(estimator), kwargs["batch"])
        self.equal.append(
            all(problems.same(own[k], [g.asnumpy() for g in twin.sums[k]]) for k in own)
        )


@pytest.mark.slow
@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_the_twin_sees_the_same_dropout_masks(contexts, hybridize):
    problem = dropout_net(contexts, hybridize)
    handler = gs.SVRGHandler(update_freq=2)
    compare = CompareWithTwin(handler)
    estimator_for(problem, lr=0.0).fit(
        problem.ndarrays(), epochs=4, event_handlers=[handler, compare]
    )
    assert compare.equal == [True] * 20
    assert handler.interval.masks.is_needed


def test_without_the_lock_the_masks_differ(monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(gs.svrg.MaskLock, "lock", lambda self, batch: None)
    problem = dropout_net()
    handler = gs.SVRGHandler(gradient_table=False)
    compare = CompareWithTwin(handler)
    estimator_for(problem, lr=0.0).fit(
        problem.ndarrays(), epochs=1, event_handlers=[handler, compare]
    )
    assert not any(compare.equal)


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_with_dropout_corrected_gradients_average_to_the_full_gradient(contexts):
    """At the snapshot's weights, every corrected gradient is the full gradient: same masks."""
    problem = dropout_net(contexts)
    recorder = problems.Recorder()
    seen = []

    class Watch(EpochBegin):
        def epoch_begin(self, estimator, *args, **kwargs):
            means = estimator.trainer.full_gradient
            seen.append([means[name][0].asnumpy() for name in problem.net.collect_params()])

    estimator_for(problem, lr=0.0).fit(
        problem.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler(), recorder, Watch()]
    )
    for epoch in range(3):
        sums = [sum(parts) for parts in zip(*recorder.gradients[5 * epoch : 5 * epoch + 5],
                                            strict=True)]  # fmt: skip
        means = [total / 37 for total in sums]
        assert problems.relative_difference(means, seen[epoch]) < 1e-12
    # After the next snapshot the masks are others.
    assert not problems.same(seen[0], seen[1])


def test_masks_repeat_until_the_next_snapshot_and_change_after():
    problem = dropout_net()
    own = problems.Recorder()
    own.priority = -5000  # before the correction
    estimator_for(problem, lr=0.0).fit(
        problem.ndarrays(), epochs=4, event_handlers=[gs.SVRGHandler(update_freq=2), own]
    )
    epochs = [own.gradients[5 * i : 5 * i + 5] for i in range(4)]
    same = [all(map(problems.same, a, b)) for a, b in itertools.pairwise(epochs)]
    assert same == [True, False, True]


@pytest.mark.slow
def test_the_users_seed_decides_the_masks():
    def run(seed):
        problem = dropout_net()
        gs.seed_everything(seed)
        estimator_for(problem).fit(problem.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler()])
        return problem.params

    assert problems.same(run(7), run(7))
    assert not problems.same(run(7), run(8))


@pytest.mark.parametrize("coefficient", [0, lambda progress: 0.0])
def test_coefficient_zero_with_dropout_is_the_base_optimizer_bit_for_bit(coefficient):
    def run(handlers):
        problem = dropout_net()
        gs.seed_everything(3)
        estimator_for(problem).fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
        return problem.params

    assert problems.same(run([]), run([gs.SVRGHandler(coefficient=coefficient)]))


def test_seeds_are_set_only_for_networks_that_draw(monkeypatch):
    seeds = []
    seed = mx.random.seed
    monkeypatch.setattr(mx.random, "seed", lambda s: (seeds.append(s), seed(s)))
    problem = problems.make("mlp")
    seeds.clear()
    handler = gs.SVRGHandler()
    estimator_for(problem).fit(problem.ndarrays(), epochs=2, event_handlers=[handler])
    assert len(seeds) == 2 * 4  # for each full pass: twice to find out, twice to leave no trace
    assert not handler.interval.masks.is_needed


def test_between_batches_random_numbers_do_not_repeat():
    """Masks do, from epoch to epoch of an interval; the optimizer's noise must not."""
    drawn = []

    class Draw(BatchEnd):
        priority = -1900  # after the step

        def batch_end(self, estimator, *args, **kwargs):
            drawn.append(mx.nd.random.uniform().asscalar())

    problem = dropout_net()
    estimator_for(problem).fit(
        problem.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler(update_freq=3), Draw()]
    )
    assert len(set(drawn)) == len(drawn) == 15


@pytest.mark.slow
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_batchnorm_statistics_are_the_same_bit_for_bit_as_without_svrg(contexts):
    def run(handlers):
        layers = nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dense(3, in_units=8)
        problem = random_net(*layers, contexts=contexts)
        estimator_for(problem, lr=0.0).fit(
            problem.ndarrays(), problem.ndarrays(), epochs=3, event_handlers=handlers
        )
        norm = problem.net[1]
        return [
            array.asnumpy()
            for param in (norm.running_mean, norm.running_var)
            for array in param.list_data()
        ]

    plain, svrg = run([]), run([gs.SVRGHandler()])
    assert problems.same(plain, svrg)
    assert plain[0].any()


def test_batchnorm_uses_batch_statistics_at_both_points():
    """So at w = w~ the gradients agree, bit for bit."""
    layers = nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dense(3, in_units=8)
    problem = random_net(*layers)
    handler = gs.SVRGHandler()
    seen = []

    class Compare(GradientReady):
        priority = -4000

        def gradient_ready(self, estimator, *args, **kwargs):
            twin = handler.interval.snapshot.gradient(backward_of(estimator), kwargs["batch"])
            params = estimator.net.collect_params()
            seen.append(
                all(
                    np.array_equal(params[name].grad().asnumpy(), grads[0].asnumpy())
                    for name, grads in twin.sums.items()
                )
            )

    estimator_for(problem, lr=0.0).fit(
        problem.ndarrays(), epochs=2, event_handlers=[handler, Compare()]
    )
    assert seen == [True] * 10


def test_a_parameter_of_the_network_that_is_not_the_trainers():
    problem = problems.make("mlp")
    before = problem.params
    trainer = gs.SVRGTrainer(problem.net[1].collect_params(), "sgd", {"learning_rate": 0.1})
    gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
        problem.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler()]
    )
    assert problems.same(problem.params[:2], before[:2])
    assert not problems.same(problem.params[2:], before[2:])


def test_the_bar_of_the_full_pass_shows_on_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        problem = problems.make("softmax")
        estimator_for(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[gs.SVRGHandler()])
        assert ("full gradient" in stream.getvalue()) == shown


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"update_freq": 0}, ValueError,
         "update_freq must be a positive integer, got 0: the full gradient is computed every "
         "update_freq epochs"),
        ({"update_freq": -2}, ValueError, "update_freq must be a positive integer, got -2"),
        ({"update_freq": 1.0}, TypeError, "update_freq must be a positive integer, got 1.0"),
        ({"update_freq": "2"}, TypeError, "update_freq must be a positive integer, got '2'"),
        ({"update_freq": True}, TypeError, "update_freq must be a positive integer, got True"),
        ({"start_epoch": -1}, ValueError, "start_epoch must be a non-negative integer, got -1"),
        ({"stop_epoch": 0.5}, TypeError, "stop_epoch must be a non-negative integer, got 0.5"),
        ({"start_epoch": 3, "stop_epoch": 3}, ValueError,
         "stop_epoch must be greater than start_epoch, got 3 and 3"),
        ({"coefficient": 2}, ValueError, r"coefficient must be in \[0, 1\], got 2"),
        ({"coefficient": "1"}, TypeError, r"coefficient must be a number in \[0, 1\], got '1'"),
        ({"gradient_table": "yes"}, ValueError, "gradient_table must be 'auto' or a bool"),
        ({"table_memory": "1G"}, TypeError, "table_memory must be a number of bytes, got '1G'"),
        ({"table_memory": -1}, ValueError, "table_memory must be a number of bytes, got -1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        gs.SVRGHandler(**arguments)


@pytest.mark.parametrize(("value", "error"), [(2.0, ValueError), ("a", TypeError)])
def test_a_schedule_that_returns_something_else_is_an_error(value, error):
    problem = problems.make("softmax")
    before = problem.params
    with pytest.raises(error, match="the coefficient schedule's value at progress 0 must be"):
        estimator_for(problem).fit(
            problem.ndarrays(),
            epochs=1,
            event_handlers=[gs.SVRGHandler(coefficient=lambda progress: value)],
        )
    assert problems.same(problem.params, before)


@pytest.mark.slow
def test_a_plain_trainer_is_an_error():
    problem = problems.make("softmax")
    trainer = gluon.Trainer(problem.net.collect_params(), "sgd")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(*problem.batches[0]), 4)
    with pytest.raises(ValueError, match="needs an SVRGTrainer, got Trainer: make it with"):
        estimator.fit(data, epochs=1, event_handlers=[gs.SVRGHandler()])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_full_gradient_that_is_not_finite_is_an_error_and_nothing_is_trained(value):
    problem = problems.make("softmax")
    problem.batches[2][0][1, 1] = value
    before = problem.params
    with pytest.raises(
        FloatingPointError, match=r"parameter '.*weight' is NaN or infinite; batch 2 .*is the first"
    ):
        estimator_for(problem).fit(problem.ndarrays(), epochs=1, event_handlers=[gs.SVRGHandler()])
    assert problems.same(problem.params, before)


def test_a_trained_parameter_outside_of_the_network_is_an_error():
    problem = problems.make("softmax")
    center = gluon.Parameter("center", shape=(3,))
    center.initialize()
    trainer = gs.SVRGTrainer([*problem.net.collect_params().values(), center], "sgd")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    with pytest.raises(ValueError, match="parameter 'center' is not in the network"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[gs.SVRGHandler()])


def test_a_network_without_shapes_and_soft_labels_in_training_only():
    """The batch that finishes the initialisation is one of training, with the loss of training."""
    net = gluon.nn.Dense(3)
    net.initialize()
    soft, hard = gluon.loss.SoftmaxCELoss(sparse_label=False), gluon.loss.SoftmaxCELoss()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    metric = mx.metric.Loss("loss")
    estimator = gs.Estimator(
        net, soft, metric, metric.__class__("own"), None, trainer, val_loss=hard
    )
    data = [(mx.nd.ones((4, 2)), mx.nd.ones((4, 3)) / 3)]
    estimator.fit(data, epochs=1, event_handlers=gs.SVRGHandler())
    assert estimator.val_loss is hard
    assert net.weight.shape == (3, 2)
