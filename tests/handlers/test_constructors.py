"""The constructors of the handlers: what may be given by position, and the places in an event."""

import inspect

import gluon_svrg as gs
import mxnet as mx
import problems
import pytest
from gluon_svrg.events import HandlerList, Order, Stateful
from gluon_svrg.reporting.history import MEASURED

ORDER = {
    gs.EMAHandler: Order.AVERAGE,
    gs.EarlyStoppingHandler: Order.MONITOR,
    gs.GradientUpdateHandler: Order.STEP,
    gs.HistoryHandler: Order.HISTORY,
    gs.HistoryFileHandler: Order.LAST,
    gs.MLflowHandler: Order.LAST,
    gs.MetricHandler: Order.METRIC,
    gs.NaNGuardHandler: Order.GUARD,
    gs.PlateauHandler: Order.MONITOR,
    gs.ProgressHandler: Order.LAST,
    gs.ScheduleHandler: Order.SCHEDULE,
    gs.TensorBoardHandler: Order.LAST,
    gs.ValidationHandler: Order.VALIDATION,
}
NUMBERS = {
    Order.SCHEDULE: -4000,
    Order.GUARD: -2500,
    Order.STEP: -2000,
    Order.AVERAGE: -1500,
    Order.METRIC: -1000,
    Order.VALIDATION: -1000,
    Order.HISTORY: 1000,
    Order.MONITOR: 2000,
    Order.LAST: float("inf"),
}
MAKERS = {
    gs.EMAHandler: gs.EMAHandler,
    gs.EarlyStoppingHandler: lambda **more: gs.EarlyStoppingHandler("a loss", **more),
    gs.GradientUpdateHandler: gs.GradientUpdateHandler,
    gs.HistoryHandler: gs.HistoryHandler,
    gs.HistoryFileHandler: lambda **more: gs.HistoryFileHandler("log.csv", **more),
    gs.MetricHandler: lambda **more: gs.MetricHandler(mx.metric.Accuracy(), **more),
    gs.NaNGuardHandler: gs.NaNGuardHandler,
    gs.PlateauHandler: lambda **more: gs.PlateauHandler("a loss", **more),
    gs.ProgressHandler: gs.ProgressHandler,
    gs.ScheduleHandler: lambda **more: gs.ScheduleHandler("wd", float, **more),
    gs.ValidationHandler: lambda **more: gs.ValidationHandler([(1, 2)], **more),
}
KEYS = {
    gs.EMAHandler: "average",
    gs.EarlyStoppingHandler: "early_stopping",
    gs.GradientUpdateHandler: "accumulation",
    gs.HistoryHandler: "history",
    gs.MetricHandler: "metrics",
    gs.NaNGuardHandler: "nan_guard",
    gs.PlateauHandler: "plateau",
    gs.ProgressHandler: "progress",
}


@pytest.mark.parametrize(("cls", "place"), ORDER.items(), ids=lambda value: str(value))
def test_the_default_place(cls, place):
    assert inspect.signature(cls).parameters["priority"].default is place


@pytest.mark.parametrize(("place", "number"), NUMBERS.items(), ids=lambda value: str(value))
def test_the_numbers_of_the_places(place, number):
    assert place == number


@pytest.mark.parametrize("cls", MAKERS, ids=lambda cls: cls.__name__)
def test_a_place_is_a_number_in_the_handler_and_in_the_description(cls):
    for given, expected in (({}, ORDER[cls]), ({"priority": 7}, 7), ({"priority": 0.5}, 0.5)):
        handler = MAKERS[cls](**given)
        assert type(handler.priority) is float
        assert handler.priority == expected
        text = HandlerList([handler]).describe()
        assert f"- {cls.__name__} (priority {float(expected):g})\n" in text + "\n"
        assert "Order" not in text


def test_a_number_between_two_places():
    class Between(gs.events.BatchEnd):
        priority = Order.STEP + 100

    text = HandlerList([Between(), gs.GradientUpdateHandler(), gs.EMAHandler()]).describe()
    assert (
        "    batch_end\n"
        "      - GradientUpdateHandler (priority -2000)\n"
        "      - Between (priority -1900)\n"
        "      - EMAHandler (priority -1500)\n"
    ) in text


@pytest.mark.parametrize("cls", ORDER, ids=lambda cls: cls.__name__)
def test_from_the_fifth_on_arguments_have_their_names(cls):
    parameters = list(inspect.signature(cls).parameters.values())
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters[:4])
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[4:])


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (gs.EMAHandler, (0.9, 2, False, False)),
        (gs.EarlyStoppingHandler, ("a loss", "min", 3, 0.1)),
        (gs.NaNGuardHandler, ("stop", 3, 0.5, 2)),
        (gs.PlateauHandler, ("a loss", "min", "wd", 0.5)),
        (gs.ValidationHandler, ([(1, 2)], 2, 3, None)),
    ],
)
def test_four_arguments_by_their_place(cls, arguments):
    cls(*arguments)
    with pytest.raises(TypeError, match="positional argument"):
        cls(*arguments, 1)


@pytest.mark.parametrize(("cls", "key"), KEYS.items(), ids=lambda value: str(value))
def test_what_the_states_are_filed_under(cls, key):
    assert issubclass(cls, Stateful)
    assert cls.state_key == key


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (lambda path: [gs.SVRGHandler()], []),
        (lambda path: [gs.SVRGHandler(max_variance_ratio=0.5)], [gs.VarianceHandler]),
        (lambda path: [gs.SVRGHandler(max_variance_ratio=0.5), gs.VarianceHandler()], []),
        (lambda path: [gs.CheckpointHandler(path)], [gs.SignalHandler, gs.RandomStateHandler]),
        (lambda path: [gs.CheckpointHandler(path), gs.SignalHandler()], [gs.RandomStateHandler]),
    ],
)
def test_handlers_that_others_need_are_added_unless_they_are_given(given, added, tmp_path):
    problem = problems.make("softmax")
    estimator = gs.Estimator(
        problem.net, problem.loss, trainer=gs.SVRGTrainer(problem.net.collect_params(), "sgd")
    )
    handlers = given(tmp_path)
    estimator.fit(problem.ndarrays(), epochs=1, event_handlers=handlers)
    kinds = (gs.VarianceHandler, gs.SignalHandler, gs.RandomStateHandler)
    others = [type(h) for h in estimator.handlers if isinstance(h, kinds) and h not in handlers]
    assert sorted(others, key=str) == sorted(added, key=str)


def test_arrays_of_a_batch_processor_of_the_users_own_may_be_no_lists():
    class Bare(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            return tuple(array for (array,) in super().fit_batch(estimator, batch, batch_axis))

    rows = []
    for processor in (gs.BatchProcessor(), Bare()):
        problem = problems.make("softmax")
        trainer = mx.gluon.Trainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
        metrics = [mx.metric.Accuracy(), mx.metric.Loss()]
        estimator = gs.Estimator(
            problem.net, problem.loss, metrics, trainer=trainer, batch_processor=processor
        )
        handlers = [gs.NaNGuardHandler(every_n_batches=2), gs.GradientUpdateHandler(clip_norm=0.1)]
        result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
        figures = [
            {name: value for name, value in row.items() if name not in MEASURED}
            for row in result.history
        ]
        rows.append((figures, problem.params))
    assert rows[0][0] == rows[1][0]
    assert problems.same(rows[0][1], rows[1][1])
