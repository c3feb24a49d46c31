"""What a run does to folders and files of others, and what it leaves behind when it fails."""

import os
import re
import signal
import subprocess
import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchEnd, EpochEnd, ExceptionRaised, Stateful
from mxnet.gluon.contrib import estimator as mx_estimator


def estimator_of(kind="mlp", metric=None):
    problem = problems.make(kind)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(problem.net, problem.loss, metric, trainer=trainer)
    estimator.problem = problem
    return estimator


def fit(*handlers, epochs=2, estimator=None, **arguments):
    estimator = estimator or estimator_of()
    data = estimator.problem.ndarrays()
    return estimator.fit(data, epochs=epochs, event_handlers=list(handlers), **arguments)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_run_resumed_from_elsewhere_leaves_a_folder_of_another_run_alone(tmp_path):
    fit(gs.CheckpointHandler(tmp_path / "a"))
    fit(gs.CheckpointHandler(tmp_path / "b"), epochs=3)
    before = names(tmp_path / "a")
    with pytest.raises(FileExistsError, match="has checkpoints of a run already"):
        fit(gs.CheckpointHandler(tmp_path / "a"), epochs=4, resume=tmp_path / "b")
    assert names(tmp_path / "a") == before
    result = fit(gs.CheckpointHandler(tmp_path / "c"), epochs=4, resume=tmp_path / "b")
    assert [row["epoch"] for row in result.history] == [0, 1, 2, 3]
    assert names(tmp_path / "c") == ["epoch-4-batch-20"]


def test_two_runs_at_a_time_in_one_folder_are_an_error(tmp_path):
    class Other(EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            with pytest.raises(
                FileExistsError, match="is in use by another run, which has not ended"
            ):
                fit(gs.CheckpointHandler(tmp_path), epochs=1)

    fit(gs.CheckpointHandler(tmp_path), Other())
    with pytest.raises(FileExistsError, match="has checkpoints of a run already"):
        fit(gs.CheckpointHandler(tmp_path))  # no longer in use


@pytest.mark.full
def test_a_process_that_is_killed_lets_go_of_its_folder(tmp_path):
    code = (
        "import gluon_svrg as gs, os, signal, sys; sys.path.insert(0, 'tests'); "
        "import test_run_folder as t\n"
        "class Kill(t.BatchEnd):\n"
        "    def batch_end(self, estimator, *args, **kwargs):\n"
        "        if estimator.position.batch == 7: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"t.fit(gs.CheckpointHandler({str(tmp_path)!r}), Kill())"
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == -9
    result = fit(gs.CheckpointHandler(tmp_path), resume="auto")
    assert len(result.history) == 2


@pytest.mark.slow
def test_a_worker_that_outlives_a_run_does_not_hold_its_folder(tmp_path):
    worker = None

    class Fork(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            nonlocal worker
            if worker is None:
                worker = os.fork()
                if worker == 0:
                    signal.pause()

    try:
        fit(gs.CheckpointHandler(tmp_path), Fork(), epochs=1)
        assert len(fit(gs.CheckpointHandler(tmp_path), resume="auto").history) == 2
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


@pytest.mark.slow
def test_auto_takes_the_newest_of_all_handlers(tmp_path):
    def handlers():
        return [
            gs.CheckpointHandler(tmp_path / "a", every_n_epochs=2),
            gs.CheckpointHandler(tmp_path / "b", every_n_epochs=None, every_n_batches=3),
        ]

    class Stop(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 13:
                raise KeyboardInterrupt

    whole = estimator_of()
    fit(epochs=4, estimator=whole)
    with pytest.raises(KeyboardInterrupt):
        fit(*handlers(), Stop(), epochs=4)
    assert names(tmp_path / "a")[-1] == "epoch-2-batch-10"
    resumed = estimator_of()
    fit(*handlers(), epochs=4, estimator=resumed, resume="auto")
    assert problems.same(resumed.problem.params, whole.problem.params)


def test_paths_of_home_and_a_changed_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gs.CheckpointHandler("~/a").directory == tmp_path / "a"
    assert gs.HistoryFileHandler("~/log.csv").path == tmp_path / "log.csv"
    monkeypatch.chdir(tmp_path)

    class Move(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            os.chdir("/")

    fit(gs.CheckpointHandler("here"), gs.HistoryFileHandler("log.csv"), Move())
    assert names(tmp_path / "here") == ["epoch-1-batch-5", "epoch-2-batch-10"]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


def test_a_run_that_is_refused_has_taken_nothing(tmp_path):
    """Neither the log of the run before, nor the estimator's history."""
    log, checkpoints = tmp_path / "log.csv", tmp_path / "checkpoints"
    estimator = estimator_of()
    fit(gs.HistoryFileHandler(log), gs.CheckpointHandler(checkpoints), estimator=estimator)
    before = log.read_text()
    history = list(estimator.history)
    with pytest.raises(FileExistsError, match="has checkpoints of a run already"):
        fit(gs.HistoryFileHandler(log, overwrite=True), gs.CheckpointHandler(checkpoints))
    assert log.read_text() == before
    with pytest.raises(FileNotFoundError):
        fit(estimator=estimator, resume=tmp_path / "none")
    assert estimator.history == history


def test_one_handler_that_fails_to_clean_up_does_not_keep_the_others_from_it():
    class Broken(BatchEnd, ExceptionRaised):
        priority = -9000

        def batch_end(self, estimator, *args, **kwargs):
            raise KeyError("first")

        def exception_raised(self, estimator, *args, **kwargs):
            raise RuntimeError("second")

    estimator = estimator_of()
    with pytest.raises(KeyError, match="first"):
        fit(Broken(), gs.GradientUpdateHandler(accumulate=2), estimator=estimator)
    requests = {param.grad_req for param in estimator.net.collect_params().values()}
    assert requests == {"write"}


class Keeps(Stateful):
    def __init__(self, state):
        self.state = state

    def state_dict(self, estimator):
        return self.state

    def load_state_dict(self, estimator, state):
        self.state = state


@pytest.mark.parametrize(
    "state", [{"a": object()}, {(0, 1): 2}, {"a": np.array([None])}], ids=["object", "key", "array"]
)
def test_a_state_that_cannot_be_saved_names_its_handler(state, tmp_path):
    with pytest.raises(TypeError, match=r"\['\S*Keeps'\]\[0\]\[1\].* cannot be saved"):
        fit(Keeps(state), gs.CheckpointHandler(tmp_path))


def test_a_state_is_found_by_its_key_whatever_the_class_is_called(tmp_path):
    class Old(Keeps):
        state_key = "user.keeps"

    class New(Keeps):
        state_key = "user.keeps"

    fit(Old({"a": 3}), gs.CheckpointHandler(tmp_path))
    new = New({"a": 0})
    fit(new, gs.CheckpointHandler(tmp_path), epochs=3, resume="auto")
    assert new.state == {"a": 3}


def test_a_figure_that_cannot_be_saved_is_named(tmp_path):
    class Figure(EpochEnd):
        priority = 5000  # after the row has been made

        def epoch_end(self, estimator, *args, **kwargs):
            estimator.figures["when"] = object()

    with pytest.raises(TypeError, match=r"\['figures'\]\['when'\]: <object.*cannot be saved"):
        fit(Figure(), gs.CheckpointHandler(tmp_path))


class Counts(mx.metric.EvalMetric):
    """Has a state of other kinds, and a part that no checkpoint can hold."""

    def __init__(self, part):
        self.seen, self.part = {}, part
        super().__init__("counts_accuracy")

    def reset(self):
        super().reset()
        self.seen = {"labels": set(), "batches": 0}

    def update(self, labels, preds):
        self.seen["batches"] += 1
        for label in labels:
            self.seen["labels"] |= set(label.asnumpy().tolist())
        self.num_inst, self.sum_metric = 1, np.float32(len(self.seen["labels"]) / 3)


class Part:
    """No data."""


@pytest.mark.parametrize("part", [None, Part()], ids=["data", "object"])
def test_metrics_with_a_state_of_their_own(part, tmp_path, capsys, root_logger):
    class Stop(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 7:
                estimator.stop()

    whole = fit(estimator=estimator_of(metric=Counts(part))).history
    fit(gs.CheckpointHandler(tmp_path), Stop(), estimator=estimator_of(metric=Counts(part)))
    estimator = estimator_of(metric=Counts(part))
    checkpoints = gs.CheckpointHandler(tmp_path)
    resumed = fit(checkpoints, estimator=estimator, resume="auto").history
    assert [row["training counts_accuracy"] for row in resumed] == [
        row["training counts_accuracy"] for row in whole
    ]
    is_told = "Counts.part, a Part, is not part of a checkpoint" in capsys.readouterr().out
    assert is_told == (part is not None)


def test_a_function_as_metric_leaves_nothing_out(tmp_path, capsys, root_logger):
    def accuracy(label, pred):
        return float((pred.argmax(axis=1) == label).mean())

    estimator = estimator_of(metric=accuracy)
    fit(gs.CheckpointHandler(tmp_path), estimator=estimator)
    assert "is not part of a checkpoint" not in capsys.readouterr().out


@pytest.mark.slow
def test_samples_that_are_carried_over_are_refused(tmp_path):
    estimator = estimator_of()
    x, y = (np.concatenate(p) for p in zip(*estimator.problem.batches, strict=True))
    data = mx.gluon.data.DataLoader(
        mx.gluon.data.ArrayDataset(x, y), batch_size=8, last_batch="rollover"
    )
    with pytest.raises(ValueError, match=re.escape("use last_batch='keep' or 'discard'")):
        estimator.fit(data, epochs=1, event_handlers=[gs.CheckpointHandler(tmp_path)])
    estimator.fit(data, epochs=2)  # without checkpoints it is fine


def test_a_run_that_mxnets_early_stopping_has_ended_stays_ended(tmp_path):
    def run(**arguments):
        estimator = estimator_of()
        loss = estimator.train_metrics[-1]
        stopping = mx_estimator.EarlyStoppingHandler(loss, mode="max", patience=1)
        checkpoints = gs.CheckpointHandler(tmp_path)
        return fit(stopping, checkpoints, epochs=9, estimator=estimator, **arguments)

    first = run()
    assert first.epochs_run == 2
    again = run(resume="auto")
    assert again.epochs_run == 2
    assert again.stop_reason is gs.StopReason.HANDLER


def test_mxnets_checkpoints_beside_ours_go_on_counting(tmp_path):
    def run(epochs, **arguments):
        theirs = mx_estimator.CheckpointHandler(str(tmp_path / "theirs"), max_checkpoints=9)
        fit(theirs, gs.CheckpointHandler(tmp_path / "ours"), epochs=epochs, **arguments)

    run(2)
    run(4, resume="auto")
    prefixes = [path.stem for path in (tmp_path / "theirs").glob("*.params")]
    assert sorted(prefixes) == [
        "model-epoch0batch5",
        "model-epoch1batch10",
        "model-epoch2batch15",
        "model-epoch3batch20",
    ]


def test_the_loader_is_at_its_begin_after_a_resume(tmp_path):
    class Cut(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            return estimator.position.batch_in_epoch == 1

    def run(**arguments):
        estimator = estimator_of()
        x, y = (np.concatenate(p) for p in zip(*estimator.problem.batches, strict=True))
        loader = gs.data.ArrayLoader(x, y, batch_size=8)
        handlers = [Cut(), gs.CheckpointHandler(tmp_path, every_n_batches=2, every_n_epochs=None)]
        estimator.fit(loader, epochs=1, event_handlers=handlers, **arguments)
        return loader

    run()
    assert len(list(run(resume="auto"))) == 5


def test_a_rate_that_is_set_elsewhere_is_left_alone():
    class Halve(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            for param in estimator.trainer._params:
                param.lr_mult = 0.5

    estimator = estimator_of()
    fit(gs.NaNGuardHandler(), Halve(), estimator=estimator)
    assert {param.lr_mult for param in estimator.trainer._params} == {0.5}


@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_accumulation_where_gradients_add_up_already(grad_req):
    runs = []
    for request in ("write", grad_req):
        estimator = estimator_of()
        estimator.net.collect_params().setattr("grad_req", request)
        fit(gs.GradientUpdateHandler(accumulate=2), estimator=estimator)
        runs.append(estimator.problem.params)
        requests = {param.grad_req for param in estimator.net.collect_params().values()}
        assert requests == {request}
    assert problems.same(*runs)


def test_sparse_gradients_cannot_be_accumulated():
    net = mx.gluon.nn.Embedding(5, 3, sparse_grad=True)
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    estimator = gs.Estimator(net, mx.gluon.loss.L2Loss(), trainer=trainer)
    with pytest.raises(ValueError, match="gradient of stype 'row_sparse', which cannot be added"):
        estimator.fit(
            [(mx.nd.zeros(4), mx.nd.zeros((4, 3)))],
            epochs=1,
            event_handlers=gs.GradientUpdateHandler(accumulate=2),
        )
