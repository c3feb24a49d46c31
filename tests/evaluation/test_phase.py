"""The evaluation as a phase of the loop: what it publishes, when, and what a stop in it leaves."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg import events
from gluon_svrg.reporting.history import MEASURED
from gluon_svrg.run import Phase
from gluon_svrg.stops import StopReason
from mxnet.gluon.contrib import estimator as mx_estimator

VALIDATION_LOSS = "validation loss"


def data_of(seed, rows=20, batch_size=8):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, 6)), rng.integers(0, 3, rows).astype(float)
    return [
        (mx.nd.array(x[i : i + batch_size], dtype="float64"), mx.nd.array(y[i : i + batch_size]))
        for i in range(0, rows, batch_size)
    ]


def figures_of(history):
    """Return the rows without what differs from run to run."""
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in history]


class EvaluatesAnother(*events.EVENTS.values()):
    """Evaluates a third data set in one event of a run."""

    def __init__(self, event, priority=0):
        self.event, self.priority, self.results = event, priority, []
        self.other = data_of(9)


def _evaluates(name):
    def handle(self, estimator, *args, **kwargs):
        if name == self.event:
            self.results.append(estimator.evaluate(self.other))

    return handle


for name in events.EVENTS:
    setattr(EvaluatesAnother, name, _evaluates(name))


def fit_with(extra, folder):
    """Return what a run with all that follows the validation leaves."""
    problem = problems.make("softmax")  # 5 batches an epoch
    gs.seed_everything(0)
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy(), lr=0.5)
    stopping = gs.EarlyStoppingHandler(VALIDATION_LOSS, patience=2, restore_best=True)
    checkpoints = gs.CheckpointHandler(folder, monitor=VALIDATION_LOSS, keep_best=1)
    handlers = [
        *extra,
        stopping,
        checkpoints,
        gs.PlateauHandler(VALIDATION_LOSS, patience=1),
        gs.ValidationHandler(data_of(1), every_n_batches=3),
        gs.EMAHandler(0.5),
    ]
    result = estimator.fit(problem.ndarrays(), epochs=4, event_handlers=handlers)
    return {
        "history": figures_of(result.history),
        "weights": problems.weights_of(problem.net),
        "best": (stopping.best, stopping.best_epoch, checkpoints.best.name),
        "metrics": [metric.get() for metric in estimator.val_metrics],
    }


@pytest.mark.parametrize("event", [name for name in events.EVENTS if name != "exception_raised"])
def test_an_evaluation_by_a_handler_changes_nothing(event, tmp_path):
    handler = EvaluatesAnother(event)
    found, plain = fit_with([handler], tmp_path / "with"), fit_with([], tmp_path / "without")
    assert problems.same(found.pop("weights"), plain.pop("weights"))
    assert found == plain
    assert handler.results
    losses = {result[VALIDATION_LOSS] for result in handler.results}
    assert losses.isdisjoint(row[VALIDATION_LOSS] for row in found["history"])


def test_outside_of_fit_the_metrics_have_the_figures():
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    result = estimator.evaluate(data_of(1))
    assert dict(metric.get() for metric in estimator.val_metrics) == result


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_figure_is_that_of_the_weights_that_are_left(average, accumulate):
    """The steps that are due come first: with accumulate=3 an epoch of 5 batches has one."""
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    handlers = [gs.GradientUpdateHandler(accumulate=accumulate)]
    handlers += [gs.EMAHandler(0.5)] if average else []
    validation = data_of(1)
    result = estimator.fit(problem.ndarrays(), validation, epochs=2, event_handlers=handlers)
    assert result.history[-1][VALIDATION_LOSS] == estimator.evaluate(validation)[VALIDATION_LOSS]


@pytest.mark.parametrize(
    ("accumulate", "periods", "times"),
    [
        (1, {"every_n_batches": 5}, 2),  # the last batch of each epoch: the same weights
        (1, {"every_n_batches": 2}, 5 + 1),  # after 2, 4, 6, 8, 10 batches, and the first epoch
        (3, {"every_n_batches": 5}, 4),  # a step between the two changes the weights
        (1, {"every_n_epochs": 2}, 1),
    ],
)
def test_the_same_weights_are_evaluated_once(accumulate, periods, times):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    seen = []

    class Sees(events.EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            assert estimator.position.phase is Phase.EVALUATING
            seen.append(problems.weights_of(problem.net)[0].tobytes())

    handlers = [
        gs.ValidationHandler(data_of(1), event_handlers=[Sees()], **periods),
        gs.GradientUpdateHandler(accumulate=accumulate),
    ]
    estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
    assert len(seen) == len(set(seen)) == times


class OneOfTwo(mx.gluon.Block):
    """The first number of a batch says which of two layers computes."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layers = [mx.gluon.nn.Dense(1, in_units=2) for _ in range(2)]
            for layer in self.layers:
                self.register_child(layer)

    def forward(self, x):
        return self.layers[int(x[0, 0].asscalar())](x)


def test_a_due_step_of_parameters_that_were_left_alone_is_followed_by_an_evaluation():
    """With accumulate=2 the step after the third batch is the first of its layer."""
    net = OneOfTwo()
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, mx.gluon.loss.L2Loss(), trainer=trainer)
    batches = [(mx.nd.full((4, 2), layer), mx.nd.ones((4, 1))) for layer in (0, 0, 1)]
    handlers = [
        gs.ValidationHandler(batches, every_n_batches=3),
        gs.GradientUpdateHandler(accumulate=2, ignore_stale_grad=True),
    ]
    result = estimator.fit(batches, epochs=1, event_handlers=handlers, verbose=0)
    assert result.history[-1][VALIDATION_LOSS] == estimator.evaluate(batches)[VALIDATION_LOSS]


def test_a_row_says_after_which_batch_the_figures_were_measured():
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    handler = gs.ValidationHandler(data_of(1), None, every_n_batches=4)
    history = estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[handler]).history
    assert [row.get("evaluated_at_batch") for row in history] == [4, 3, 2]
    assert all("evaluated_at_batch" not in row for row in fit_per_epoch())


def fit_per_epoch():
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    return estimator.fit(problem.ndarrays(), data_of(1), epochs=1).history


def test_two_data_sets_have_their_own_figures():
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    validation, test = data_of(1), data_of(2)
    stopping = gs.EarlyStoppingHandler("test loss", patience=9)
    handlers = [gs.ValidationHandler(validation), gs.ValidationHandler(test, name="test"), stopping]
    result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
    row = result.history[-1]
    for name, data in (("validation", validation), ("test", test)):
        figures = estimator.evaluate(data)
        assert row[f"{name} loss"] == figures[VALIDATION_LOSS]
        assert row[f"{name} accuracy"] == figures["validation accuracy"]
    assert stopping.best == min(result.history.column("test loss"))


@pytest.mark.parametrize("name", ["", "two words", "training", 3])
def test_a_name_is_one_word(name):
    with pytest.raises(
        ValueError, match=f"name must be one word other than 'training', got {name!r}"
    ):
        gs.ValidationHandler(data_of(1), name=name)


def test_two_of_one_name_are_refused():
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    handlers = [gs.ValidationHandler(data_of(1), name="test") for _ in range(2)]
    message = "both compute the test figures: give one of them only, or another name"
    with pytest.raises(ValueError, match=message):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers)


class Counting(mx_estimator.ValidationHandler):
    """MXNet's handler, with an event of its own."""

    def epoch_end(self, estimator, *args, **kwargs):
        self.ends = getattr(self, "ends", 0) + 1
        super().epoch_end(estimator, *args, **kwargs)


@pytest.mark.parametrize("kind", [mx_estimator.ValidationHandler, Counting])
@pytest.mark.parametrize(
    ("period", "rows"), [({}, [True, True]), ({"epoch_period": 2}, [False, True])]
)
def test_mxnets_own_handler_is_a_request_to_the_phase(kind, period, rows):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())
    validation = data_of(1)
    handler = kind(validation, estimator.evaluate, **period)
    result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=[handler])
    assert [VALIDATION_LOSS in row for row in result.history] == rows
    assert result.history[-1][VALIDATION_LOSS] == estimator.evaluate(validation)[VALIDATION_LOSS]
    assert getattr(handler, "ends", 2) == 2


class StopsIn(gs.BatchProcessor):
    """Stops the run in one of the batches that are evaluated."""

    def __init__(self, number=None, reason=StopReason.SIGNAL):
        self._left, self._reason = number, reason

    def evaluate_batch(self, estimator, *args, **kwargs):
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                estimator.stop(self._reason)
        return super().evaluate_batch(estimator, *args, **kwargs)


def fit_two_sets(folder, processor, resume=None):
    """Train 3 epochs of 5 batches, evaluating two data sets, one of them after batches, too."""
    problem = problems.make("softmax")
    gs.seed_everything(0)
    estimator = runs.estimator_of(
        problem, train_metrics=mx.metric.Accuracy(), batch_processor=processor
    )
    handlers = [
        gs.CheckpointHandler(folder, every_n_epochs=None, every_n_batches=1000),
        gs.ValidationHandler(data_of(1), every_n_batches=2),
        gs.ValidationHandler(data_of(2), name="test"),
        gs.GradientUpdateHandler(accumulate=3),
        gs.SVRGHandler(update_freq=2),
    ]
    result = estimator.fit(problem.ndarrays(), epochs=3, event_handlers=handlers, resume=resume)
    return result, estimator, problems.weights_of(problem.net)


# Of 3 batches each: after batches 2 and 4, at the end of the epoch, then of the test data.
@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 5, 7, 9, 10, 11, 13, 16])
@pytest.mark.parametrize("reason", [StopReason.SIGNAL, StopReason.REQUESTED])
def test_stopped_in_an_evaluation_and_resumed(number, reason, tmp_path):
    whole, _, weights = fit_two_sets(tmp_path / "whole", StopsIn())
    stopped, estimator, _ = fit_two_sets(tmp_path / "run", StopsIn(number, reason))
    assert stopped.stop_reason is reason
    # The last batch of an evaluation completes it; a signal prevents those that follow.
    is_last = number % 3 == 0
    assert is_last or estimator.position.phase is Phase.EVALUATING
    result, _, found = fit_two_sets(tmp_path / "run", StopsIn(), resume="auto")
    assert problems.same(found, weights)
    assert figures_of(result.history) == figures_of(whole.history)
    assert result.stop_reason is StopReason.EPOCHS_DONE


# What follows a stop: the batch in which it comes, whether the epoch is evaluated.
@pytest.mark.parametrize(
    ("reason", "is_evaluated"),
    [
        (StopReason.REQUESTED, True),
        (StopReason.SIGNAL, False),
        (StopReason.TIME_LIMIT, False),
        (StopReason.NO_IMPROVEMENT, True),
    ],
)
def test_truth_table_whether_the_epoch_is_evaluated(reason, is_evaluated):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())

    class Stops(events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            estimator.stop(reason)

    result = estimator.fit(problem.ndarrays(), data_of(1), epochs=2, event_handlers=[Stops()])
    assert result.stop_reason is reason
    assert [VALIDATION_LOSS in row for row in result.history] == [is_evaluated]


def test_truth_table_batch_end_true_evaluates_each_epoch():
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy())

    class Ends(events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            return True

    result = estimator.fit(problem.ndarrays(), data_of(1), epochs=2, event_handlers=[Ends()])
    assert [VALIDATION_LOSS in row for row in result.history] == [True, True]


@pytest.mark.parametrize("reason", [StopReason.REQUESTED, StopReason.SIGNAL])
def test_truth_table_a_stop_in_an_evaluation_aborts_it(reason):
    problem = problems.make("softmax")
    estimator = runs.estimator_of(
        problem, train_metrics=mx.metric.Accuracy(), batch_processor=StopsIn(1, reason)
    )
    result = estimator.fit(problem.ndarrays(), data_of(1), epochs=2)
    assert result.stop_reason is reason
    assert [VALIDATION_LOSS in row for row in result.history] == [False]


@pytest.mark.parametrize("comes_first", [False, True])
@pytest.mark.parametrize("periods", [{}, {"every_n_epochs": None, "every_n_batches": 3}])
def test_the_best_weights_are_those_whose_figure_is_the_best(periods, comes_first):
    """The test data are evaluated after the last batch, when the validation figure is older."""
    problem = problems.make("softmax")
    estimator = runs.estimator_of(problem, train_metrics=mx.metric.Accuracy(), lr=0.5)
    stopping = gs.EarlyStoppingHandler(VALIDATION_LOSS, patience=None, restore_best=True)
    validation = data_of(1)
    handlers = [
        stopping,
        gs.ValidationHandler(validation, **periods),
        gs.ValidationHandler(data_of(2), name="test", priority=-1001 if comes_first else -999),
    ]
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers)
    assert estimator.evaluate(validation)[VALIDATION_LOSS] == stopping.best


class EndsEpochs(events.BatchEnd):
    """Ends each epoch after some batches."""

    def __init__(self, batches):
        self._batches = batches

    def batch_end(self, estimator, *args, **kwargs):
        return estimator.position.batch_in_epoch + 1 == self._batches


# The evaluations are after batch 2, and at the end of the epoch if it is evaluated, too.
@pytest.mark.parametrize("every_n_epochs", [None, 1])
@pytest.mark.parametrize("number", [1, 4])
def test_stopped_after_the_last_batch_of_an_epoch_that_a_handler_ends(
    number, every_n_epochs, tmp_path
):
    def fit(folder, processor, resume=None):
        problem = problems.make("softmax")
        gs.seed_everything(0)
        estimator = runs.estimator_of(problem, batch_processor=processor)
        handlers = [
            gs.CheckpointHandler(folder, every_n_epochs=None, every_n_batches=1000),
            gs.ValidationHandler(data_of(1), every_n_epochs, every_n_batches=2),
            gs.GradientUpdateHandler(accumulate=3),
            EndsEpochs(2),
        ]
        result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers, resume=resume)
        return figures_of(result.history), estimator.stop_reason

    whole = fit(tmp_path / "whole", StopsIn())
    assert all(VALIDATION_LOSS in row for row in whole[0])
    assert fit(tmp_path / "run", StopsIn(number))[1] is StopReason.SIGNAL
    assert fit(tmp_path / "run", StopsIn(), "auto") == whole


def test_resumed_without_the_handler_whose_evaluation_was_interrupted(tmp_path):
    def fit(processor, handlers, resume=None):
        problem = problems.make("softmax")
        estimator = runs.estimator_of(problem, batch_processor=processor)
        checkpoints = gs.CheckpointHandler(tmp_path, every_n_epochs=None, every_n_batches=1000)
        handlers = [checkpoints, *handlers]
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers, resume=resume)
        return estimator.position.phase

    phases = []

    class Notes(events.BatchBegin):
        def batch_begin(self, estimator, *args, **kwargs):
            phases.append(estimator.position.phase)

    validation = gs.ValidationHandler(data_of(1), None, every_n_batches=2)
    assert fit(StopsIn(1), [validation]) is Phase.EVALUATING
    fit(StopsIn(), [Notes()], "auto")
    assert phases == [Phase.TRAINING] * 3
