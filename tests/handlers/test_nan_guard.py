"""NaNGuardHandler: the first bad batch and parameter by name, and what is done about it."""

import re

import gluon_svrg as gs
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchEnd, GradientReady, NotFiniteError
from problems import ONE, TWO


class Spoil(GradientReady):
    """Writes a value into a gradient at some batches, counted over the run, each once."""

    priority = -2900  # after SVRG, before the guard

    def __init__(self, *batches, value=np.nan, parameter=2, device=0):
        self.batches = set(batches)
        self.value = value
        self.parameter = parameter
        self.device = device

    def gradient_ready(self, estimator, *args, **kwargs):
        if estimator.position.batch in self.batches:
            self.batches.remove(estimator.position.batch)
            params = list(estimator.net.collect_params().values())
            params[self.parameter].list_grad()[self.device][0] = self.value


def run(*handlers, contexts=ONE, data=None, epochs=4, dtype="float64"):
    problem = problems.make("mlp", contexts, dtype=dtype)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer, context=list(contexts))
    batches = problem.ndarrays(dtype) if data is None else data(problem.ndarrays(dtype))
    try:
        result = estimator.fit(batches, epochs=epochs, event_handlers=list(handlers))
    finally:
        run.problem, run.estimator = problem, estimator
    return result


def name_of(index):
    return list(run.problem.net.collect_params())[index]


@pytest.mark.parametrize("every_n_batches", [1, 3, 50])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("contexts", "device"), [(ONE, 0), (TWO, 0), (TWO, 1)])
def test_the_batch_and_the_parameter_are_named(contexts, device, value, every_n_batches):
    guard = gs.NaNGuardHandler(every_n_batches=every_n_batches)
    with pytest.raises(FloatingPointError) as caught:
        run(guard, Spoil(8, value=value, device=device), contexts=contexts)
    assert str(caught.value) == (
        f"the gradient of parameter {name_of(2)!r} is NaN or infinite in batch 3 of epoch 1 "
        "(both count from 0): look at the data of the batch, or lower the learning rate"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loss_that_is_nan(dtype):
    def spoil(batches):
        data, label = batches[1]
        return [batches[0], (data * np.nan, label), *batches[2:]]

    with pytest.raises(FloatingPointError, match="the loss is NaN or infinite in batch 1 of epoch"):
        run(gs.NaNGuardHandler(), data=spoil, dtype=dtype)


@pytest.mark.slow
def test_a_sound_run_is_not_touched():
    runs = []
    for handlers in ([], [gs.NaNGuardHandler(every_n_batches=2)]):
        run(gs.SVRGHandler(), *handlers)
        runs.append(run.problem.params)
    assert problems.same(*runs)


def test_large_gradients_are_no_fault():
    run(gs.NaNGuardHandler(), Spoil(3, value=1e15))


def test_stop():
    result = run(gs.NaNGuardHandler("stop", every_n_batches=2), Spoil(7))
    assert result.stop_reason is gs.StopReason.NOT_FINITE
    assert result.epochs_run == 2
    assert run.estimator.position.batch == 8  # the batch after the bad one was not begun


@pytest.mark.slow
def test_roll_back(tmp_path):
    """The run after it is the one that had the smaller learning rate from the checkpoint on."""

    class Lower(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 5:  # the seventh step is the first with the new rate
                estimator.trainer.set_learning_rate(0.1 * 0.25)

    checkpoints = gs.CheckpointHandler(tmp_path, every_n_batches=2)
    guard = gs.NaNGuardHandler("roll_back", every_n_batches=1, factor=0.25)
    result = run(gs.SVRGHandler(), guard, Spoil(7), checkpoints)
    rolled_back, history = run.problem.params, result.history
    expected = run(gs.SVRGHandler(), Lower())
    assert problems.relative_difference(rolled_back, run.problem.params) < 1e-7  # 0.025 in float32
    assert result.epochs_run == expected.epochs_run == 4
    assert [row.get("learning_rate_factor") for row in history] == [None, 0.25, 0.25, 0.25]
    assert {param.lr_mult for param in run.problem.net.collect_params().values()} == {1.0}


def test_roll_backs_end(tmp_path):
    checkpoints = gs.CheckpointHandler(tmp_path, every_n_batches=1)
    guard = gs.NaNGuardHandler("roll_back", every_n_batches=1, max_roll_backs=2)

    def spoil(batches):
        data, label = batches[1]
        return [batches[0], (data * np.nan, label), *batches[2:]]

    with pytest.raises(FloatingPointError, match="after the learning rate was lowered 2 times"):
        run(checkpoints, guard, data=spoil)
    assert {param.lr_mult for param in run.problem.net.collect_params().values()} == {1.0}


def test_no_checkpoint_to_go_back_to(tmp_path):
    guard = gs.NaNGuardHandler("roll_back", every_n_batches=1)
    with pytest.raises(RuntimeError, match="; to go back needs a CheckpointHandler"):
        run(guard, Spoil(0))
    with pytest.raises(RuntimeError, match="needs a checkpoint that is written already"):
        run(guard, Spoil(0), gs.CheckpointHandler(tmp_path))


def test_the_number_of_roll_backs_goes_on_after_a_resume(tmp_path):
    def handlers():
        guard = gs.NaNGuardHandler("roll_back", every_n_batches=1, factor=0.5)
        return [gs.SVRGHandler(), guard, gs.CheckpointHandler(tmp_path)]

    run(*handlers(), Spoil(6), epochs=2)
    problem = problems.make("mlp", seed=1)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    resumed = problems.make("mlp").ndarrays()
    result = estimator.fit(resumed, epochs=3, event_handlers=handlers(), resume="auto")
    assert [row.get("learning_rate_factor") for row in result.history] == [None, 0.5, 0.5]


def test_no_checkpoint_of_nan_weights_is_written(tmp_path, caplog):
    run(Spoil(6), gs.CheckpointHandler(tmp_path), epochs=3)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-1-batch-5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "warn"}, "action must be one of raise, stop, roll_back, got 'warn'"),
        ({"every_n_batches": 0}, "every_n_batches must be a positive integer, got 0"),
        ({"factor": 1}, "factor must be less than 1, got 1: the rate is to fall"),
        ({"factor": 0}, "factor must be a number above 0, got 0"),
        ({"max_roll_backs": 0}, "max_roll_backs must be a positive integer, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        gs.NaNGuardHandler(**arguments)


def test_another_handlers_nan_is_reported_with_one_advice():
    guard = gs.NaNGuardHandler()
    advice = "look at the data of the batch, or lower the learning rate"
    with pytest.raises(NotFiniteError) as caught:
        guard.on_non_finite(None, "the full pass found one")
    assert str(caught.value) == f"the full pass found one: {advice}"
    # That of the full pass gives its own, which was there twice.
    own = "the full gradient is NaN: look at its data, or lower the learning rate"
    with pytest.raises(NotFiniteError) as caught:
        guard.on_non_finite(None, own)
    assert str(caught.value) == own
