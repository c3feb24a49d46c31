"""on(): a handler from a function."""

import gluon_svrg as gs
import problems
import pytest
from gluon_svrg.events import EVENTS


def fit(*handlers, epochs=4, **arguments):
    problem = problems.make("mlp")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    data = problem.ndarrays()
    return estimator.fit(data, epochs=epochs, event_handlers=list(handlers), **arguments), len(data)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize(
    "event", ["epoch_begin", "steps_due", "epoch_end", "batch_begin", "gradient_ready", "batch_end"]
)
def test_it_is_called_every_few_epochs_or_batches(event, every, tmp_path):
    """Counted from the beginning of the run, also in a resumed one."""
    of_batches = event in ("batch_begin", "gradient_ready", "batch_end")
    seen = []

    def note(estimator):
        seen.append(estimator.position.batch if of_batches else estimator.position.epoch)

    checkpoints = gs.CheckpointHandler(tmp_path)
    fit(gs.on(event, note, every), checkpoints, epochs=1)
    _, batches = fit(gs.on(event, note, every), checkpoints, resume="auto")
    first = 0 if event.endswith("_begin") else every - 1
    assert seen == list(range(first, 4 * (batches if of_batches else 1), every))


def test_each_event_can_be_named():
    seen = []
    fit(*[gs.on(event, lambda _, event=event: seen.append(event)) for event in EVENTS], epochs=1)
    assert set(seen) == EVENTS.keys() - {"exception_raised"}


def test_the_function_takes_what_it_names():
    seen = []
    fit(
        gs.on("batch_end", lambda estimator, loss: seen.append({"loss"})),
        gs.on("batch_end", lambda estimator, **details: seen.append(set(details))),
        gs.on("batch_end", lambda estimator: seen.append(set())),
        epochs=1,
    )
    assert seen[:3] == [{"loss"}, {"batch", "pred", "label", "loss"}, set()]


@pytest.mark.parametrize(
    ("result", "epochs"), [(True, 2), (False, 4), (None, 4), (1, 4), ("text", 4)]
)
def test_true_ends_the_run(result, epochs):
    done, _ = fit(gs.on("epoch_end", lambda estimator: result, every=2))
    assert len(done.history) == epochs
    assert (done.stop_reason is gs.StopReason.HANDLER) is (result is True)


def test_the_priority_orders_the_calls():
    seen = []
    later = gs.on("epoch_end", lambda estimator: seen.append("later"), priority=1)
    fit(later, gs.on("epoch_end", lambda estimator: seen.append("earlier")), epochs=1)
    assert seen == ["earlier", "later"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("epoch", print), ValueError, "event must be one of 'train_begin', .*got 'epoch'"),
        (("epoch_end", 3), TypeError, "function must be callable, got 3"),
        (("epoch_end", print, 0), ValueError, "every must be a positive integer, got 0"),
        (("epoch_end", print, 1.5), TypeError, "every must be a positive integer, got 1.5"),
        (("train_end", print, 2), ValueError, "every must be 1 at 'train_end', got 2"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        gs.on(*arguments)
