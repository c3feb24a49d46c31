"""Going back to a checkpoint in the middle of a run, and what it does not undo."""

import gluon_svrg as gs
import mxnet as mx
import problems
import pytest
import runs
from gluon_svrg.events import BatchEnd, EpochBegin, EpochEnd, GradientReady
from gluon_svrg.reporting.history import MEASURED


class Once:
    """Asks for a roll-back at one moment, once."""

    def __init__(self, at, also=None):
        self.at, self.also = at, also

    def ask(self, estimator, now):
        if self.at == now:
            self.at = None
            if self.also is not None:
                estimator.stop(self.also)
            estimator.roll_back("the loss has risen")


class InBatch(Once, BatchEnd):
    def batch_end(self, estimator, *args, **kwargs):
        self.ask(estimator, estimator.position.batch)


class AtEnd(Once, EpochEnd):
    def epoch_end(self, estimator, *args, **kwargs):
        self.ask(estimator, estimator.position.epoch)


class AtBegin(Once, EpochBegin):
    def epoch_begin(self, estimator, *args, **kwargs):
        self.ask(estimator, estimator.position.epoch)


class Epochs(EpochBegin):
    def __init__(self):
        self.begun = []

    def epoch_begin(self, estimator, *args, **kwargs):
        self.begun.append(estimator.position.epoch)


def run(*handlers, duration=None, every=None, directory=None):
    problem = problems.make("mlp")  # 5 batches an epoch
    estimator = runs.estimator_of(problem, params={"momentum": 0.9})
    given = [gs.SVRGHandler(), *handlers]
    if directory is not None:
        given.append(gs.CheckpointHandler(directory, every_n_batches=every))
    result = estimator.fit(problem.ndarrays(), event_handlers=given, **(duration or {"epochs": 3}))
    figures = [{k: v for k, v in row.items() if k not in MEASURED}
               for row in result.history]  # fmt: skip
    return problem.params, figures, result


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 2, 5])
@pytest.mark.parametrize(
    "moment",
    [
        InBatch(6),
        InBatch(14),  # the last batch of the run
        AtEnd(1),
        AtEnd(2),  # the last epoch
        AtBegin(1),
        AtBegin(2),
    ],
    ids=lambda m: f"{type(m).__name__} {m.at}",
)
@pytest.mark.parametrize("duration", [{"epochs": 3}, {"batches": 15}, {"batches": 13}], ids=str)
def test_a_run_that_goes_back_ends_as_the_others(moment, every, duration, tmp_path):
    moment = type(moment)(moment.at)
    weights, history, result = run(duration=duration)
    ours, our_history, our_result = run(moment, duration=duration, every=every, directory=tmp_path)
    assert moment.at is None or duration == {"batches": 13}
    assert problems.same(ours, weights)
    assert our_history == history
    assert our_result.stop_reason is result.stop_reason
    assert our_result.epochs_run == result.epochs_run


def test_the_epochs_after_the_checkpoint_are_run_again(tmp_path):
    epochs = Epochs()
    run(epochs, AtEnd(1), directory=tmp_path)
    assert epochs.begun == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("reason", "epochs"),
    [(gs.StopReason.SIGNAL, 1), (gs.StopReason.TIME_LIMIT, 1), (gs.StopReason.NO_IMPROVEMENT, 3)],
)
def test_what_asks_for_the_end_from_outside_is_not_undone(reason, epochs, tmp_path):
    _, history, result = run(InBatch(7, reason), directory=tmp_path)
    assert len(history) == epochs
    assert result.stop_reason is (reason if epochs == 1 else gs.StopReason.EPOCHS_DONE)


class Explode(GradientReady):
    """Makes the weights infinite in the last batch of an epoch, once."""

    priority = -2100

    def __init__(self):
        self.is_done = False

    def gradient_ready(self, estimator, *args, **kwargs):
        if estimator.position.batch == 9 and not self.is_done:
            self.is_done = True
            for param in estimator.net.collect_params().values():
                param.list_data()[0][:] = float("nan")


@pytest.mark.parametrize("action", ["raise", "roll_back", "stop", None])
def test_what_the_full_pass_finds_goes_to_the_guard(action, tmp_path):
    guards = [] if action is None else [gs.NaNGuardHandler(action)]
    handlers = [*guards, Explode()]
    if action in ("raise", None):
        with pytest.raises(FloatingPointError, match="the full gradient of parameter"):
            run(*handlers, directory=tmp_path)
        return
    weights, _, result = run(*handlers, directory=tmp_path)
    if action == "stop":
        assert result.stop_reason is gs.StopReason.NOT_FINITE
    else:
        assert result.stop_reason is gs.StopReason.EPOCHS_DONE
        assert all(abs(weight).max() < 100 for weight in weights)


@pytest.mark.slow
def test_a_damaged_checkpoint_on_the_way_back_is_written_again(tmp_path):
    class Damage(BatchEnd):
        priority = 5000

        def batch_end(self, estimator, *args, **kwargs):
            newest = tmp_path / "epoch-0-batch-4" / "run.npz"
            if estimator.position.batch == 4 and newest.exists():
                newest.write_bytes(b"")

    damage, moment = Damage(), InBatch(4)
    weights, *_ = run()
    ours, *_ = run(damage, moment, every=2, directory=tmp_path)
    assert problems.same(ours, weights)
    assert "damaged-epoch-0-batch-4" in {path.name for path in tmp_path.iterdir()}
    assert mx.nd.load(str(tmp_path / "epoch-3-batch-15" / "net.params"))
