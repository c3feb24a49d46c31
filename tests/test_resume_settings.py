"""A resume with other settings: what this run was given counts, and is told; nothing is dropped."""

import logging
import random

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.arrays import encoding
from gluon_svrg.checkpoint import storage
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.lr_scheduler import FactorScheduler, PolyScheduler

GIVEN = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}


class OtherLoss(gluon.loss.SoftmaxCELoss):
    """A loss of another class."""


def fit(folder, epochs, optimizer="sgd", loss=None, handlers=(), resume="auto", **given):
    """Fit, and return the trainer and the weights."""
    net = nn.Dense(3, in_units=6, prefix="dense_")
    mx.random.seed(3)
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, {**GIVEN, **given})
    estimator = gs.Estimator(net, loss or gluon.loss.SoftmaxCELoss(), trainer=trainer)
    estimator.fit(
        problems.make("softmax").ndarrays("float32"),
        epochs=epochs,
        event_handlers=[gs.CheckpointHandler(folder / "checkpoints"), *handlers],
        resume=resume,
    )
    return trainer, [param.data().asnumpy() for param in net.collect_params().values()]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "nag", "lars", "signum"])
@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("learning_rate", "lr", 0.01),
        ("momentum", "momentum", 0.5),
        ("wd", "wd", 0.5),
        ("clip_gradient", "clip_gradient", 0.25),
    ],
)
def test_what_the_optimizer_is_given_at_the_resume_counts(
    name, attribute, value, optimizer, tmp_path, caplog
):
    fit(tmp_path, 1, optimizer)
    old = {**GIVEN, "clip_gradient": None}[name]
    trainer, weights = fit(tmp_path, 2, optimizer, **{name: value})
    assert getattr(trainer.optimizer, attribute) == value
    told = f"keeps its own: optimizer: {attribute} {value} (not {old})"
    assert [r.getMessage() for r in caplog.records if told in r.getMessage()] != []
    assert not problems.same(weights, fit(tmp_path / "x", 2, optimizer)[1])
    # Once it is so, it is no change any more.
    caplog.clear()
    trainer, _ = fit(tmp_path, 3, optimizer, **{name: value})
    assert getattr(trainer.optimizer, attribute) == value
    assert "keeps its own" not in caplog.text


@pytest.mark.slow
def test_what_the_run_itself_has_changed_goes_on(tmp_path, caplog):
    def plateau():
        return [gs.PlateauHandler("training loss", patience=1, mode="max", factor=0.5)]

    trainer, _ = fit(tmp_path, 3, handlers=plateau())
    assert trainer.learning_rate < 0.1
    resumed, _ = fit(tmp_path, 4, handlers=plateau())
    whole, _ = fit(tmp_path / "x", 4, handlers=plateau())
    assert resumed.learning_rate == whole.learning_rate
    assert "keeps its own" not in caplog.text


def test_another_schedule_counts_from_where_the_run_stands(tmp_path, caplog):
    fit(tmp_path, 2, lr_scheduler=FactorScheduler(4, 0.5, base_lr=0.1))
    trainer, _ = fit(tmp_path, 3, lr_scheduler=FactorScheduler(4, 0.9, base_lr=0.1))
    # 15 updates, the last one 15: three steps of the new factor.
    assert trainer.learning_rate == pytest.approx(0.1 * 0.9**3)
    assert "lr_scheduler: factor 0.9 (not 0.5)" in caplog.text
    with pytest.raises(ValueError, match=r"lr_scheduler mxnet.lr_scheduler.FactorScheduler, and"):
        fit(tmp_path, 4, lr_scheduler=PolyScheduler(100, base_lr=0.1))


def test_the_same_settings_are_not_worth_a_word(tmp_path, caplog):
    fit(tmp_path, 1, lr_scheduler=FactorScheduler(4, 0.5, base_lr=0.1))
    _, weights = fit(tmp_path, 3, lr_scheduler=FactorScheduler(4, 0.5, base_lr=0.1))
    whole = fit(tmp_path / "x", 3, lr_scheduler=FactorScheduler(4, 0.5, base_lr=0.1))[1]
    assert problems.same(weights, whole)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            {"handlers": [gs.SVRGHandler(2, coefficient=1.0)]},
            {"handlers": [gs.SVRGHandler(1, coefficient=0.5)]},
            "SVRGHandler: update_freq 1 (not 2), coefficient 0.5 (not 1.0)",
        ),
        (
            {"handlers": [gs.GradientUpdateHandler(accumulate=1, clip_norm=2.0)]},
            {"handlers": [gs.GradientUpdateHandler(accumulate=2, clip_norm=1.0)]},
            "GradientUpdateHandler: accumulate 2 (not 1), clip_norm 1.0 (not 2.0)",
        ),
        (
            {},
            {"loss": gluon.loss.SoftmaxCELoss(weight=0.5)},
            "loss: weight 0.5 (not None)",
        ),
        (
            {"loss": gluon.loss.SoftmaxCELoss()},
            {"loss": OtherLoss()},
            "OtherLoss (not mxnet.gluon.loss.SoftmaxCrossEntropyLoss)",
        ),
    ],
    ids=["SVRG", "accumulation", "weight of the loss", "loss"],
)
def test_other_settings_are_told_too(before, after, told, tmp_path, caplog):
    fit(tmp_path, 1, **before)
    fit(tmp_path, 2, **after)
    assert told in caplog.text


def test_momentum_where_there_was_none_needs_other_states(tmp_path):
    fit(tmp_path, 1)
    with pytest.raises(
        ValueError, match=r"optimizer has momentum 0.9 and this trainer's momentum 0.0, which need"
    ):
        fit(tmp_path, 2, momentum=0.0)


def test_a_broken_off_epoch_is_marked(caplog):
    """In the line, the row and the picture; Ctrl-C breaks it off in the same way."""
    net = nn.Dense(3, in_units=6)
    net.initialize()
    estimator = runs.estimator_of(net)

    class Stop(gs.events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 6:
                estimator.stop(gs.StopReason.SIGNAL)

    data = problems.make("softmax").ndarrays("float32")
    caplog.set_level(logging.INFO)
    history = estimator.fit(data, data, epochs=3, event_handlers=[Stop()]).history
    assert [(row["epoch"], row["complete"], row["batches"]) for row in history] == [
        (0, True, 5),
        (1, False, 2),
    ]
    assert "epoch 1, broken off after 2 of 5 batches: training" in caplog.text
    assert "epoch 0: training" in caplog.text
    figure = history.plot(title="A title")
    assert figure.get_suptitle().splitlines()[-1] == "epoch 1 was broken off after 2 batches"
    assert history.last("validation accuracy") == history[0]["validation accuracy"]
    with pytest.raises(ValueError, match="there is no figure 'nothing'"):
        history.last("nothing")


@pytest.mark.parametrize(("batches", "complete"), [(10, True), (7, False)])
def test_a_run_of_batches_may_end_within_an_epoch(batches, complete):
    net = nn.Dense(3, in_units=6)
    net.initialize()
    estimator = runs.estimator_of(net)
    data = problems.make("softmax").ndarrays("float32")
    history = estimator.fit(data, batches=batches).history
    assert history[-1]["complete"] is complete
    assert np.isfinite(history[-1]["training loss"])


def scheduled():
    return [gs.ScheduleHandler("learning_rate", gs.schedules.linear(0.1, 0.0))]


def test_a_schedule_that_the_resumed_run_lacks_is_told(tmp_path, caplog):
    fit(tmp_path, 1, handlers=scheduled())
    trainer, _ = fit(tmp_path, 2)
    value = trainer.learning_rate
    assert value < 0.1
    told = f"had a ScheduleHandler for learning_rate and this one has none: it stays at {value:.4g}"
    assert told in caplog.text


def test_what_a_schedule_sets_is_not_told_to_be_the_optimizers(tmp_path, caplog):
    fit(tmp_path, 1, handlers=scheduled())
    fit(tmp_path, 2, learning_rate=0.5, wd=0.5, handlers=scheduled())
    (told,) = [r.getMessage() for r in caplog.records if "keeps its own" in r.getMessage()]
    assert told.endswith("its own: optimizer: wd 0.5 (not 0.001)")


def test_an_estimate_does_not_continue_from_a_number(tmp_path):
    fit(tmp_path, 1, handlers=[gs.SVRGHandler(coefficient="auto")])
    with pytest.raises(
        ValueError, match=r"was 'auto' in the run of the checkpoint, and is a number"
    ):
        fit(tmp_path, 2, handlers=[gs.SVRGHandler(coefficient=0.5)])
    fit(tmp_path / "x", 1, handlers=[gs.SVRGHandler(coefficient=0.5)])
    with pytest.raises(
        ValueError, match=r"number or a schedule in the run .*, and is 'auto' in this"
    ):
        fit(tmp_path / "x", 2, handlers=[gs.SVRGHandler(coefficient="auto")])


@pytest.mark.parametrize("reason", [gs.StopReason.SIGNAL, gs.StopReason.HANDLER])
def test_an_epoch_whose_last_batch_is_done_is_complete(reason, caplog):
    net = nn.Dense(3, in_units=6)
    net.initialize()
    estimator = runs.estimator_of(net)

    class Stop(gs.events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 9:
                estimator.stop(reason)

    data = problems.make("softmax").ndarrays("float32")
    caplog.set_level(logging.INFO)
    history = estimator.fit(data, data, epochs=3, event_handlers=[Stop()]).history
    assert [(row["complete"], row["batches"]) for row in history] == [(True, 5), (True, 5)]
    assert "broken off" not in caplog.text


def edit_run_state(path, changed):
    """Rewrite the checkpoint with what `changed` returns for each key and value."""

    def edited(item):
        if isinstance(item, dict):
            return {key: changed(key, edited(value)) for key, value in item.items()}
        return type(item)(map(edited, item)) if isinstance(item, list | tuple) else item

    found = storage.read(path)
    meta, arrays = encoding.from_bytes(found.files["run.npz"])
    states = edited(encoding.decode(meta["state"], arrays, mx.cpu()))
    arrays = {}
    content = encoding.to_bytes({"state": encoding.encode(states, arrays)}, arrays)
    storage.remove(path)
    about = {key: found.manifest[key] for key in found.manifest.keys() - {"sha256", "files"}}
    storage.write(path.parent, found.key, {**found.files, "run.npz": content}, about)


def with_first_number(value):
    """Return what puts `value` into the state of Python's generator: version, numbers, gauss."""
    return lambda key, item: (3, (value, *item[1][1:]), item[2]) if key == "python" else item


EDITS = {
    "text in the generator": with_first_number("x"),
    "a number that is too large": with_first_number(10**30),
    "a seed that is text": lambda key, item: "12" if key == "seed" else item,
    "a seed of masks": lambda key, item: (
        item | {"seed": "12"} if key == "lock" and isinstance(item, dict) else item
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_state_of_a_generator(edit, tmp_path):
    """It raised TypeError or OverflowError, which are no sentence about the checkpoint."""
    handlers = [gs.SVRGHandler()] if edit == "a seed of masks" else []
    fit(tmp_path, 1, handlers=handlers)
    (path,) = (tmp_path / "checkpoints").iterdir()
    edit_run_state(path, EDITS[edit])
    random.seed(7)
    before = random.getstate()
    with pytest.raises(ValueError, match="continued from: its state of 'handlers' is not"):
        fit(tmp_path, 2, handlers=handlers)
    assert random.getstate() == before


CONTINUES = "the run continues from the checkpoint"


def test_a_run_that_continues_says_so_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    fit(tmp_path, 1)
    assert CONTINUES not in caplog.text
    fit(tmp_path, 2)
    assert caplog.text.count(CONTINUES) == 1


def resume(folder, handlers=(), resume="auto", batches=None, net=None, **params):
    """Continue from the checkpoint that `fit` has written, with something else."""
    net = net or nn.Dense(3, in_units=6, prefix="dense_")
    net.initialize(mx.init.Normal(0.5))
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {**GIVEN, **params})
    gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer).fit(
        batches or problems.make("softmax").ndarrays("float32"),
        epochs=3,
        event_handlers=[gs.CheckpointHandler(folder / "checkpoints"), *handlers],
        resume=resume,
    )


def damage(folder):
    for path in (folder / "checkpoints").iterdir():
        edit_run_state(path, with_first_number("x"))


REFUSED = {
    "another network": lambda folder: resume(folder, net=nn.Dense(4, in_units=6)),
    "another optimizer": lambda folder: fit(folder, 3, "nag"),
    "states of another form": lambda folder: resume(folder, momentum=0.0),
    "another schedule": lambda folder: resume(folder, lr_scheduler=FactorScheduler(4, 0.5)),
    "other data": lambda folder: resume(
        folder, batches=problems.make("softmax", samples=50).ndarrays("float32")
    ),
    "a later checkpoint": lambda folder: resume(
        folder, resume=folder / "checkpoints" / "epoch-1-batch-5"
    ),
    "a state that was edited": lambda folder: (damage(folder), resume(folder)),
    "a handler that refuses": lambda folder: resume(
        folder, [gs.EarlyStoppingHandler("no such figure", patience=3)]
    ),
    "another coefficient": lambda folder: resume(folder, [gs.SVRGHandler(coefficient="auto")]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_checkpoint_that_is_refused_is_not_said_to_be_continued_from(kind, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    svrg = [gs.SVRGHandler()] if kind == "another coefficient" else []
    fit(tmp_path, 2, handlers=svrg)
    with pytest.raises((ValueError, OSError)):
        REFUSED[kind](tmp_path)
    assert CONTINUES not in caplog.text
