"""EarlyStoppingHandler and TimeLimitHandler: when a run ends, and with which weights."""

import logging
from datetime import timedelta

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd
from gluon_svrg.handlers.early_stopping import EarlyStoppingHandler
from gluon_svrg.handlers.time_limit import TimeLimitHandler
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO

NAN, INF = float("nan"), float("inf")
TRAIN_ON = {"check_finite": False}
NO_IMPROVEMENT, EPOCHS_DONE = gs.StopReason.NO_IMPROVEMENT, gs.StopReason.EPOCHS_DONE


class Turn(EpochBegin, EpochEnd):
    """Tells the metric which epoch it is, and keeps what the network was at each epoch's end."""

    priority = 3000

    def __init__(self):
        self.weights = []

    def epoch_begin(self, estimator, *args, **kwargs):
        for metric in estimator.train_metrics:
            metric.epoch = estimator.position.epoch

    def epoch_end(self, estimator, *args, **kwargs):
        self.weights.append(everything(estimator))


def everything(estimator):
    """All parameters and auxiliary states on all contexts."""
    params = estimator.net.collect_params().values()
    return [array.asnumpy() for param in params for array in param.list_data()]


def estimator_of(values, contexts=ONE, seed=0, **trainer_arguments):
    """An estimator of a network with BatchNorm, and its data: 2 batches."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(8, 6)), rng.integers(0, 3, 8)) for _ in range(2)]
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=6), nn.BatchNorm(in_channels=5), nn.Dense(3, in_units=5))
    mx.random.seed(seed)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    optimizer_params = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", optimizer_params, **trainer_arguments)
    loss = gluon.loss.SoftmaxCELoss()
    return gs.Estimator(net, loss, problems.Scripted(values), trainer=trainer), data


def run(values, epochs=None, **arguments):
    """Train with those figures; return handler and result."""
    estimator, data = estimator_of(values)
    handler = EarlyStoppingHandler("training figure", **{"mode": "min", **arguments})
    result = estimator.fit(data, epochs=epochs or len(values), event_handlers=[handler, Turn()])
    return handler, result


# The figures; the arguments; after how many epochs it ends (None: after all); best and its epoch.
CASES = {
    "patience 0": ([3, 2, 2, 1], {}, 3, 2, 1),
    "patience 1 is the same": ([3, 2, 2, 1], {"patience": 1}, 3, 2, 1),
    "patience 2": ([3, 2, 2, 1, 4, 4, 0], {"patience": 2}, 6, 1, 3),
    "patience 3": ([3, 2, 2, 1, 4, 4, 0], {"patience": 3}, None, 0, 6),
    "at the last epoch": ([2, 2, 2], {"patience": 2}, 3, 2, 0),
    "one epoch too few": ([2, 2, 2], {"patience": 3}, None, 2, 0),
    "the first epoch": ([2], {}, None, 2, 0),
    "max": ([1, 2, 2, 3], {"mode": "max"}, 3, 2, 1),
    "max of negative figures": ([-3, -2, -4, -1], {"mode": "max"}, 3, -2, 1),
    "max, not min": ([3, 2, 1], {"mode": "max", "patience": 2}, 3, 3, 0),
    "nan is no improvement": ([3, NAN, 3, 2], {"patience": 2, **TRAIN_ON}, 3, 3, 0),
    "nan at first": ([NAN, 2, 3, 1], {"patience": 2, **TRAIN_ON}, None, 1, 3),
    "only nan": ([NAN, NAN, NAN], {"patience": 2, **TRAIN_ON}, 2, None, None),
    "nan, max": ([1, NAN, 2, NAN, NAN], {"mode": "max", "patience": 2, **TRAIN_ON}, 5, 2, 2),
    "nan and a baseline": ([NAN, 4, 3], {"baseline": 1, "patience": 2, **TRAIN_ON}, 2, 4, 1),
    "the worst infinity": ([INF, INF, 1], {"patience": 2, **TRAIN_ON}, 2, None, None),
    "the best infinity": ([1, INF, 2], {"mode": "max", "patience": 2, **TRAIN_ON}, None, INF, 1),
    "min_delta": ([3, 2.5, 2.25, 1], {"min_delta": 1, "patience": 2}, 3, 2.25, 2),
    "exactly min_delta": ([3, 2, 1.5], {"min_delta": 1}, 2, 2, 1),
    "more than min_delta": ([3, 1.5, 0.25], {"min_delta": 1}, None, 0.25, 2),
    "small steps add up": ([3, 2.5, 1.75, 1.5], {"min_delta": 1, "patience": 2}, None, 1.5, 3),
    "baseline not reached": ([5, 4, 3], {"baseline": 1, "patience": 2}, 2, 4, 1),
    "baseline not reached, patience 0": ([5, 1], {"baseline": 1}, 1, 5, 0),
    "baseline reached": ([5, 0.5, 0.75, 0.75], {"baseline": 1, "patience": 2}, 4, 0.5, 1),
    "baseline is met, not beaten": ([1, 1], {"baseline": 1, "patience": 2}, 2, 1, 0),
    "baseline, max": ([1, 4, 3], {"baseline": 2, "mode": "max", "patience": 2}, None, 4, 1),
    "patience None": ([1, 2, 3, 4], {"patience": None, "restore_best": True}, None, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_when_the_run_ends(name):
    values, arguments, ends_after, best, best_epoch = CASES[name]
    handler, result = run(values, **arguments)
    assert result.stop_reason is (NO_IMPROVEMENT if ends_after else EPOCHS_DONE)
    assert result.epochs_run == len(result.history) == (ends_after or len(values))
    assert (handler.best, handler.best_epoch) == (best, best_epoch)


@pytest.mark.parametrize("restore_best", [False, True])
@pytest.mark.parametrize("patience", [0, 3, None])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_figure_that_is_not_finite_ends_the_run_at_once(value, patience, restore_best, caplog):
    if patience is None and not restore_best:
        return  # no such handler
    values = [3, 2, 2.5, value, 1] if patience != 0 else [3, 2, value, 1]
    estimator, data = estimator_of(values)
    handler = EarlyStoppingHandler(
        "training figure", "min", patience=patience, restore_best=restore_best
    )
    turn = Turn()
    result = estimator.fit(data, epochs=9, event_handlers=[handler, turn], verbose=0)
    assert result.stop_reason is gs.StopReason.NOT_FINITE
    assert result.epochs_run == len(result.history) == values.index(value) + 1
    assert (handler.best, handler.best_epoch) == (2, 1)
    assert problems.same(everything(estimator), turn.weights[1 if restore_best else -1])
    lines = [message for message in caplog.messages if "the run ends" in message]
    assert len(lines) == 1
    assert f"training figure is {value} in epoch {values.index(value)}: the run ends" in lines[0]
    assert ("with the weights of epoch 1" in lines[0]) == restore_best
    assert "smaller learning rate" in lines[0]
    assert "NaNGuardHandler()" in lines[0]


def test_a_figure_of_an_evaluation_between_two_batches_ends_the_run_too(caplog):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, val_metrics=problems.Scripted([INF] * 9))
    evaluate = gs.ValidationHandler(problem.ndarrays(), every_n_batches=2)
    handlers = [evaluate, EarlyStoppingHandler("validation figure", "min", patience=9)]
    result = estimator.fit(problem.ndarrays(), epochs=9, event_handlers=handlers, verbose=0)
    assert (result.stop_reason, estimator.position.batch) == (gs.StopReason.NOT_FINITE, 2)
    assert len([m for m in caplog.messages if "validation figure is inf in epoch 0" in m]) == 1


@pytest.mark.parametrize("train_on", [False, True])
def test_a_run_that_a_nan_had_ended_ends_at_once_again(tmp_path, train_on):
    """The weights are finite, so there is a checkpoint at its end."""

    def fit(**arguments):
        estimator, data = estimator_of([3, 2, NAN, 1])
        handlers = [
            EarlyStoppingHandler("training figure", "min", patience=3, **arguments),
            Turn(),
            gs.CheckpointHandler(tmp_path),
        ]
        return estimator.fit(data, epochs=4, event_handlers=handlers, resume="auto")

    for _ in range(2):
        result = fit()
        assert (result.stop_reason, result.epochs_run) == (gs.StopReason.NOT_FINITE, 3)
    if train_on:
        result = fit(check_finite=False)
        assert (result.stop_reason, result.epochs_run) == (EPOCHS_DONE, 4)


def test_an_epoch_without_an_evaluation_does_not_count():
    """Every second epoch is evaluated: NaN is there, and counts; no figure does not."""
    problem = problems.make("softmax")
    metric = problems.Scripted([NAN] * 9)
    estimator = runs.estimator_of(problem, val_metrics=metric)
    handlers = [
        gs.ValidationHandler(problem.ndarrays(), every_n_epochs=2),
        EarlyStoppingHandler("validation figure", "min", patience=2, check_finite=False),
        gs.PlateauHandler("validation figure", "min", factor=0.5, patience=2),
    ]
    result = estimator.fit(problem.ndarrays(), epochs=9, event_handlers=handlers)
    assert (result.stop_reason, result.epochs_run) == (NO_IMPROVEMENT, 4)
    assert estimator.trainer.learning_rate == 0.05


def test_the_line_if_no_figure_was_finite(caplog):
    estimator, data = estimator_of([NAN, NAN])
    handler = EarlyStoppingHandler("training figure", "min", patience=2, check_finite=False)
    with caplog.at_level(logging.INFO, logger="gluon_svrg"):
        estimator.fit(data, epochs=9, event_handlers=[handler, Turn()])
    line = "the run ends after 2 epochs without improvement: training figure was finite in none"
    assert len([message for message in caplog.messages if line in message]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_patience_is_keras(patience):
    """Keras' EarlyStopping, written down."""

    def keras(values):
        best, wait = float("inf"), 0
        for epoch, value in enumerate(values):
            wait += 1
            if value < best:
                best, wait = value, 0
            elif wait >= patience and epoch > 0:
                return epoch + 1, NO_IMPROVEMENT
        return len(values), EPOCHS_DONE

    rng = np.random.default_rng(0)
    ends = set()
    for _ in range(8):
        values = list(rng.integers(0, 9, 8).astype(float))
        _, result = run(values, patience=patience)
        assert (result.epochs_run, result.stop_reason) == keras(values)
        ends.add(result.epochs_run)
    assert len(ends) > 1


def test_auto_of_a_loss_is_min():
    """MXNet's EarlyStoppingHandler takes a metric whose name has 'loss' for one to be great."""
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem)
    handler = EarlyStoppingHandler("training loss", patience=1)
    result = estimator.fit(problem.ndarrays(), epochs=5, event_handlers=[handler])
    losses = [row["training loss"] for row in result.history]
    assert result.stop_reason is EPOCHS_DONE
    assert losses == sorted(losses, reverse=True)
    assert (handler.best, handler.best_epoch) == (losses[-1], 4)


def test_a_second_fit_counts_from_zero():
    estimator, data = estimator_of([1, 2, 3])
    handler = EarlyStoppingHandler("training figure", "min", patience=2, restore_best=True)
    for epochs, reason in ((2, EPOCHS_DONE), (1, EPOCHS_DONE), (3, NO_IMPROVEMENT)):
        turn = Turn()
        result = estimator.fit(data, epochs=epochs, event_handlers=[handler, turn])
        assert result.stop_reason is reason
        assert handler.best_epoch == 0
        assert problems.same(everything(estimator), turn.weights[0])


def test_the_line_in_the_log(caplog):
    estimator, data = estimator_of([0.5, 0.91234, 0.9, 0.9])
    estimator.logger = logging.getLogger("test_stopping")
    handler = EarlyStoppingHandler("training figure", "max", patience=2, restore_best=True)
    with caplog.at_level(logging.INFO, logger="test_stopping"):
        estimator.fit(data, epochs=9, event_handlers=[handler, Turn()])
    lines = [record.getMessage() for record in caplog.records if "ends" in record.getMessage()]
    assert lines == [
        "the run ends after 2 epochs without improvement: the best training figure 0.9123 was in "
        "epoch 1, whose weights are restored"
    ]


def test_another_reason_that_came_first_counts(caplog):
    class Stop(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.epoch == 1:
                estimator.stop()

    estimator, data = estimator_of([1, 2])
    estimator.logger = logging.getLogger("test_stopping")
    handler = EarlyStoppingHandler("training figure", "min")
    with caplog.at_level(logging.INFO, logger="test_stopping"):
        result = estimator.fit(data, epochs=9, event_handlers=[handler, Turn(), Stop()])
    assert result.stop_reason is gs.StopReason.REQUESTED
    assert not [record for record in caplog.records if "without improvement" in record.message]


@pytest.mark.parametrize(
    ("contexts", "update_on_kvstore"), [(ONE, None), (TWO, False), (TWO, True)]
)
@pytest.mark.parametrize("values", [[3, 1, 2, 2], [1, 2, 3], [3, 2, 1]], ids=str)
def test_the_best_weights_come_back_on_every_context(contexts, update_on_kvstore, values):
    estimator, data = estimator_of(values, contexts, update_on_kvstore=update_on_kvstore)
    arrays = [p.list_data() for p in estimator.net.collect_params().values()]
    handler = EarlyStoppingHandler("training figure", "min", patience=2, restore_best=True)
    turn = Turn()
    result = estimator.fit(data, epochs=len(values), event_handlers=[handler, turn])
    assert result.epochs_run == len(turn.weights) == len(values)
    best = values.index(1)
    assert problems.same(everything(estimator), turn.weights[best])
    if best != len(values) - 1:
        assert not problems.same(everything(estimator), turn.weights[-1])
    # In place: all references to the arrays see the change.
    for param, before in zip(estimator.net.collect_params().values(), arrays, strict=True):
        assert all(a is b for a, b in zip(param.list_data(), before, strict=True))
    if len(contexts) > 1:  # the running statistics are the mean of the devices'
        mean = estimator.net[1].running_mean.list_data()
        assert np.array_equal(mean[0].asnumpy(), mean[1].asnumpy())


def test_without_restore_best_the_last_weights_stay():
    estimator, data = estimator_of([1, 2])
    turn = Turn()
    handler = EarlyStoppingHandler("training figure", "min")
    estimator.fit(data, epochs=5, event_handlers=[handler, turn])
    assert problems.same(everything(estimator), turn.weights[-1])
    assert handler._weights is None


def test_parameters_outside_of_the_network_come_back_too():
    class Scale(gluon.loss.SoftmaxCELoss):
        def __init__(self):
            super().__init__(prefix="scale_")
            with self.name_scope():
                self.scale = self.params.get("scale", shape=(1,), init="ones")

        def hybrid_forward(self, F, pred, label, sample_weight=None, scale=None):
            return super().hybrid_forward(F, F.broadcast_mul(pred, scale), label)

    estimator, data = estimator_of([1, 2, 2])
    loss = Scale()
    loss.initialize()
    params = {**estimator.net.collect_params(), **loss.collect_params()}
    trainer = gs.SVRGTrainer(list(params.values()), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(estimator.net, loss, problems.Scripted([1, 2, 2]), trainer=trainer)
    seen = []

    class Look(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            seen.append(loss.scale.data().asscalar())

    handler = EarlyStoppingHandler("training figure", "min", patience=2, restore_best=True)
    estimator.fit(data, epochs=3, event_handlers=[handler, Turn(), Look()])
    assert loss.scale.data().asscalar() == seen[0] != seen[-1]


def test_training_goes_on_with_the_restored_weights_and_the_momentum():
    """The kvstore's own copies of both are the right ones."""
    after = []
    for update_on_kvstore in (False, True):
        estimator, data = estimator_of([1, 2, 3], TWO, update_on_kvstore=update_on_kvstore)
        handler = EarlyStoppingHandler("training figure", "min", patience=2, restore_best=True)
        estimator.fit(data, epochs=3, event_handlers=[handler, Turn()])
        assert estimator.trainer._optimizer.num_update == 6
        estimator.fit(data, epochs=2, event_handlers=[Turn()])
        after.append(everything(estimator))
    assert problems.relative_difference(*after) < 1e-5  # float32


def test_what_is_restored_is_what_was_evaluated():
    """A handler may evaluate other weights than those that are trained: averages, for one."""

    class Zeros:
        def __init__(self, net):
            self.bias = net[2].bias

        def __enter__(self):
            self.before = self.bias.data().asnumpy()
            self.bias.data()[:] = 0

        def __exit__(self, *exception):
            self.bias.data()[:] = mx.nd.array(self.before)

    estimator, data = estimator_of([1, 2])
    estimator.evaluation_weights = lambda: Zeros(estimator.net)
    turn = Turn()
    handler = EarlyStoppingHandler("training figure", "min", restore_best=True)
    estimator.fit(data, epochs=2, event_handlers=[handler, turn])
    assert np.all(estimator.net[2].bias.data().asnumpy() == 0)
    assert problems.same(everything(estimator)[:-1], turn.weights[0][:-1])


class StopAfter(BatchEnd, EpochEnd):
    """Stops in an epoch, after its first batch or at its end."""

    def __init__(self, epoch, event):
        self.epoch = epoch
        self.event = event

    def batch_end(self, estimator, *args, **kwargs):
        if self.event == "batch_end" and estimator.position.epoch == self.epoch:
            estimator.stop()

    def epoch_end(self, estimator, *args, **kwargs):
        if self.event == "epoch_end" and estimator.position.epoch == self.epoch:
            estimator.stop()


FIGURES = [3, 1, 2, NAN, 2, 2, 0]
CONTEXTS = [(ONE, None), (TWO, False), (TWO, True)]


def part(directory, contexts, update_on_kvstore, stop=None, seed=0, patience=3, restore_best=True):
    """Train a part of a run, in an estimator of its own."""
    estimator, data = estimator_of(
        FIGURES, contexts, seed=seed, update_on_kvstore=update_on_kvstore
    )
    handler = EarlyStoppingHandler(
        "training figure", "min", patience=patience, restore_best=restore_best, check_finite=False
    )
    handlers = [handler, Turn(), *([stop] if stop else [])]
    if directory:
        handlers.append(gs.CheckpointHandler(directory))
    resume = "auto" if directory else None
    result = estimator.fit(data, epochs=7, event_handlers=handlers, resume=resume)
    return estimator, handler, result


@pytest.mark.slow
@pytest.mark.parametrize(("contexts", "update_on_kvstore"), CONTEXTS)
@pytest.mark.parametrize("event", ["batch_end", "epoch_end"])
@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    tmp_path, contexts, update_on_kvstore, event, epoch
):
    whole, handler, expected = part(None, contexts, update_on_kvstore)
    assert (expected.stop_reason, expected.epochs_run) == (NO_IMPROVEMENT, 5)
    _, _, first = part(tmp_path, contexts, update_on_kvstore, StopAfter(epoch, event))
    assert (first.stop_reason, first.epochs_run) == (gs.StopReason.REQUESTED, epoch + 1)
    estimator, resumed, result = part(tmp_path, contexts, update_on_kvstore, seed=1)
    assert (result.stop_reason, result.epochs_run) == (NO_IMPROVEMENT, 5)
    assert (resumed.best, resumed.best_epoch) == (handler.best, handler.best_epoch) == (1, 1)
    assert problems.same(everything(estimator), everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize(("contexts", "update_on_kvstore"), CONTEXTS)
def test_a_run_that_had_ended_ends_at_once_again(tmp_path, contexts, update_on_kvstore):
    first, _, expected = part(tmp_path, contexts, update_on_kvstore)
    for _ in range(2):
        estimator, handler, result = part(tmp_path, contexts, update_on_kvstore, seed=1)
        assert result.stop_reason is expected.stop_reason is NO_IMPROVEMENT
        assert result.epochs_run == expected.epochs_run == 5
        assert len(result.history) == 5
        assert (handler.best, handler.best_epoch) == (1, 1)
        assert problems.same(everything(estimator), everything(first))


def test_more_patience_lets_a_run_that_had_ended_go_on(tmp_path):
    part(tmp_path, ONE, None)
    _, handler, result = part(tmp_path, ONE, None, patience=5)
    assert (result.stop_reason, result.epochs_run) == (EPOCHS_DONE, 7)
    assert (handler.best, handler.best_epoch) == (0, 6)


def test_a_checkpoint_without_the_best_weights(root_logger, tmp_path, capsys):
    part(tmp_path, ONE, None, StopAfter(2, "epoch_end"), restore_best=False)
    assert "lacks" not in capsys.readouterr().out
    estimator, _, _ = part(tmp_path, ONE, None)
    assert "lacks the weights of the best epoch, 1" in capsys.readouterr().out
    assert not problems.same(everything(estimator), everything(part(None, ONE, None)[0]))


ERRORS = [
    (lambda: EarlyStoppingHandler(1), TypeError, r"monitor must be the name of a metric"),
    (lambda: EarlyStoppingHandler("loss", patience=-1), ValueError, r"patience .* got -1: the run"),
    (lambda: EarlyStoppingHandler("loss", patience=1.5), TypeError, r"patience .* got 1\.5"),
    (lambda: EarlyStoppingHandler("loss", patience=None), ValueError, r"patience=None never ends"),
    (lambda: EarlyStoppingHandler("loss", min_delta=-1), ValueError, r"min_delta .* got -1"),
    (lambda: EarlyStoppingHandler("loss", baseline="1"), TypeError, r"baseline .* got '1'"),
    (lambda: EarlyStoppingHandler("loss", baseline=NAN), ValueError, r"baseline .* got nan"),
    (lambda: TimeLimitHandler(0), ValueError, r"seconds must be a number above 0, got 0"),
    (lambda: TimeLimitHandler(timedelta(0)), ValueError, r"seconds must be .* got 0\.0: the run"),
    (lambda: TimeLimitHandler("1h"), TypeError, r"seconds must be a number above 0, got '1h'"),
]


@pytest.mark.parametrize(("make", "error", "message"), ERRORS)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_figure_that_is_not_there():
    estimator, data = estimator_of([1])
    with pytest.raises(ValueError, match=r"monitor='validation loss' is no metric of this run"):
        estimator.fit(data, epochs=1, event_handlers=[EarlyStoppingHandler("validation loss")])


class Clock:
    """A clock that each batch moves on by some seconds."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.now = 1e6

    def monotonic(self):
        return self.now


class Tick(BatchEnd):
    priority = -10

    def __init__(self, clock):
        self.clock = clock

    def batch_end(self, estimator, *args, **kwargs):
        self.clock.now += self.clock.seconds


def timed(monkeypatch, limit, directory=None, seed=0):
    """Train 5 epochs of 2 batches, 10 seconds each; return estimator, result and batches."""
    clock = Clock(10)
    monkeypatch.setattr("gluon_svrg.stops.time", clock)
    estimator, data = estimator_of([1] * 5, seed=seed)
    handlers = [Tick(clock), TimeLimitHandler(limit), Turn()]
    if directory:
        handlers.append(gs.CheckpointHandler(directory))
    resume = "auto" if directory else None
    result = estimator.fit(data, epochs=5, event_handlers=handlers, resume=resume)
    return estimator, result, estimator.position.batch


@pytest.mark.parametrize(
    ("limit", "batches"),
    [(5, 1), (10, 1), (10.5, 2), (30, 3), (timedelta(seconds=41), 5), (timedelta(minutes=1), 6)],
    ids=str,
)
def test_the_time_limit(monkeypatch, limit, batches):
    _, result, done = timed(monkeypatch, limit)
    assert result.stop_reason is gs.StopReason.TIME_LIMIT
    assert done == batches
    assert len(result.history) == result.epochs_run == (batches + 1) // 2


@pytest.mark.parametrize("limit", [100.5, float("inf"), timedelta(days=1)])
def test_time_enough(monkeypatch, limit):
    _, result, done = timed(monkeypatch, limit)
    assert (result.stop_reason, done) == (EPOCHS_DONE, 10)


def test_each_fit_has_the_whole_time(monkeypatch, tmp_path):
    whole, _, _ = timed(monkeypatch, 1000)
    for seed, batches, reason in [
        (0, 4, gs.StopReason.TIME_LIMIT),
        (1, 8, gs.StopReason.TIME_LIMIT),
        (2, 10, EPOCHS_DONE),
    ]:
        estimator, result, done = timed(monkeypatch, 40, tmp_path, seed)
        assert (done, result.stop_reason) == (batches, reason)
    assert problems.same(everything(estimator), everything(whole))
