"""The best weights are those that were measured, whenever evaluations and checkpoints come."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
from gluon_svrg.evaluation.handler import ValidationHandler
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6)).astype("float32")
Y = (RNG.normal(size=(120, 3)) + X[:, :3]).argmax(axis=1).astype("float32")
TRAIN = gs.data.ArrayLoader(X[:60], Y[:60], batch_size=6, shuffle=True, seed=1)
TEST = gs.data.ArrayLoader(X[60:], Y[60:], batch_size=30)
LOSS = "validation loss"


def make_net(contexts=ONE):
    mx.random.seed(2)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=6), nn.BatchNorm(in_channels=8), nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    return net


def make_estimator(contexts=ONE):
    net = make_net(contexts)
    # Large steps: the figure goes up and down.
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 1.5})
    loss = gluon.loss.SoftmaxCELoss()
    metrics = {"train_metrics": mx.metric.Accuracy(), "val_metrics": mx.metric.Loss("loss")}
    return gs.Estimator(net, loss, trainer=trainer, **metrics)


def evaluated(file, contexts=ONE):
    """Return the figure of a file of weights that Gluon reads."""
    estimator = make_estimator(contexts)
    estimator.net.load_parameters(str(file), ctx=contexts)
    return estimator.evaluate(TEST)[LOSS]


EVALUATIONS = {
    "every epoch": {"every_n_epochs": 1},
    "every 3 batches": {"every_n_epochs": None, "every_n_batches": 3},
    "every 4 batches": {"every_n_epochs": None, "every_n_batches": 4},
    "every 5 batches and every epoch": {"every_n_epochs": 1, "every_n_batches": 5},
}
AVERAGES = {"": [], "averaged": [lambda: gs.EMAHandler(0.8)]}


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("evaluations", EVALUATIONS)
def test_the_restored_weights_have_the_best_figure(evaluations, contexts, average):
    """In 0.7 they were those of the epoch's end, whenever the evaluation was."""
    estimator = make_estimator(contexts)
    stopping = gs.EarlyStoppingHandler(LOSS, patience=None, restore_best=True)
    handlers = [ValidationHandler(TEST, **EVALUATIONS[evaluations]), stopping]
    handlers += [make() for make in AVERAGES[average]]
    history = estimator.fit(TRAIN, epochs=6, event_handlers=handlers).history
    best = min(value for value in history.column(LOSS) if value is not None)
    assert stopping.best == best
    assert estimator.evaluate(TEST)[LOSS] == pytest.approx(best, rel=1e-6)


CHECKPOINTS = {
    "every epoch": {"every_n_epochs": 1},
    "every 2 batches": {"every_n_epochs": None, "every_n_batches": 2},
    "every 5 batches and every epoch": {"every_n_epochs": 1, "every_n_batches": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("checkpoints", CHECKPOINTS)
@pytest.mark.parametrize("evaluations", EVALUATIONS)
def test_the_best_checkpoint_has_the_figure_that_it_reports(
    evaluations, checkpoints, contexts, average, tmp_path
):
    """In 0.7 it had that of an evaluation some batches before, or of weights that it lacked."""
    estimator = make_estimator(contexts)
    checkpoint = gs.CheckpointHandler(
        tmp_path, monitor=LOSS, keep_last=None, **CHECKPOINTS[checkpoints]
    )
    handlers = [ValidationHandler(TEST, **EVALUATIONS[evaluations]), checkpoint]
    handlers += [make() for make in AVERAGES[average]]
    if checkpoints == "every 2 batches" and evaluations == "every epoch":
        with pytest.raises(ValueError, match=r"known at the end of an epoch, and all checkpoints"):
            estimator.fit(TRAIN, epochs=6, event_handlers=handlers)
        return
    estimator.fit(TRAIN, epochs=6, event_handlers=handlers)
    values = {key: value for key, value in checkpoint._values.items() if value is not None}
    assert values
    for key, value in values.items():
        assert evaluated(tmp_path / key.name / "net.params", contexts) == pytest.approx(
            value, rel=1e-6
        )
        # On one context, too: the running statistics are those that were evaluated.
        assert evaluated(tmp_path / key.name / "net.params") == pytest.approx(value, rel=1e-6)
    assert checkpoint.best.name == min(values, key=values.get).name


@pytest.mark.slow
def test_the_weights_of_an_evaluation_within_the_epoch_survive_a_resume(tmp_path):
    class Stop(gs.events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 18:
                estimator.stop()

    def run(folder, *more, resume=None):
        estimator = make_estimator()
        stopping = gs.EarlyStoppingHandler(LOSS, patience=None, restore_best=True)
        # The last evaluation is after batch 14 of 20, and the best one.
        validation = ValidationHandler(TEST, every_n_epochs=None, every_n_batches=7)
        handlers = [validation, stopping, gs.CheckpointHandler(folder), *more]
        estimator.fit(TRAIN, epochs=2, event_handlers=handlers, resume=resume)
        return estimator, stopping.best_epoch

    whole, best_epoch = run(tmp_path / "a")
    assert best_epoch == 1
    run(tmp_path / "b", Stop())
    resumed, _ = run(tmp_path / "b", resume="auto")
    assert resumed.evaluate(TEST) == whole.evaluate(TEST)


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["device", "local"])
def test_a_kvstore_object_that_updates_keeps_the_best_weights(kind, contexts):
    """In 0.7 the run ended in an MXNetError, after all training: "duplicate init of key 0"."""
    net = make_net(contexts)
    store = mx.kv.create(kind)
    trainer = gs.SVRGTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=store, update_on_kvstore=True
    )
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    name = "validation loss"
    stopping = gs.EarlyStoppingHandler(name, patience=None, restore_best=True)
    ema = gs.EMAHandler(0.5, keep=True)
    estimator.fit(TRAIN, TEST, epochs=2, event_handlers=[stopping, ema])
    estimator.fit(TRAIN, TEST, epochs=1)


def test_a_kvstore_that_is_not_there_cannot_update():
    with pytest.raises(ValueError, match="update_on_kvstore=True needs a kvstore, and on one con"):
        gs.SVRGTrainer(make_net().collect_params(), "sgd", update_on_kvstore=True)


@pytest.mark.slow
def test_two_contexts_repeat_with_static_shapes():
    """In 0.7 the first step lost an update of the running statistics: 3 results in 12 runs."""

    def figures():
        gs.seed_everything(0)
        net = nn.HybridSequential()
        net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
        net.initialize(mx.init.Xavier(), ctx=TWO)
        net.hybridize(static_alloc=True, static_shape=True)
        estimator = runs.estimator_of(net)
        x = np.random.default_rng(0).normal(size=(64, 3, 12, 12)).astype("float32")
        data = gs.data.ArrayLoader(x, np.arange(64.0) % 3, batch_size=16)
        estimator.fit(data, epochs=1, event_handlers=[])
        return estimator.evaluate(data)["validation loss"]

    assert len({figures() for _ in range(12)}) == 1


def test_the_first_step_waits_for_what_writes_running_statistics(monkeypatch):
    """The test above finds a read that comes too early only if the machine is in the mood."""
    net, events, read = make_net(TWO), [], gluon.Trainer._init_params
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    for context in TWO:
        with mx.autograd.record():
            loss = net(mx.nd.array(X[:6], ctx=context)).sum()
        loss.backward()
    monkeypatch.setattr(mx.nd, "waitall", lambda: events.append("waited"))
    monkeypatch.setattr(
        gluon.Trainer, "_init_params", lambda self: events.append("read") or read(self)
    )
    trainer.step(12)
    assert events.index("waited") < events.index("read")


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_an_automatic_coefficient_on_several_contexts_is_that_of_one(number):
    def weights(contexts):
        mx.random.seed(1)
        net = nn.HybridSequential()
        net.add(nn.Dense(16, in_units=6, activation="tanh"), nn.Dense(3, in_units=16))
        net.cast("float64")
        net.initialize(mx.init.Normal(0.5), ctx=contexts)
        estimator = runs.estimator_of(net, lr=3.0)
        data = gs.data.ArrayLoader(X.astype("float64"), Y.astype("float64"), batch_size=12)
        estimator.fit(data, epochs=3, event_handlers=[gs.SVRGHandler(coefficient="auto")])
        values = [param.list_data()[0].asnumpy() for param in net.collect_params().values()]
        return np.concatenate([value.ravel() for value in values]), estimator.history

    one, history = weights(ONE)
    several, other = weights([mx.cpu(i) for i in range(number)])
    np.testing.assert_allclose(several, one, rtol=1e-10, atol=1e-12)
    assert history[-1]["coefficient"] == pytest.approx(other[-1]["coefficient"], rel=1e-9)
    assert history[-1]["coefficient"] != 1


def test_a_checkpoint_without_the_figure_is_told_once(tmp_path, caplog):
    estimator = make_estimator()
    handlers = [
        ValidationHandler(TEST, every_n_epochs=None, every_n_batches=7),
        gs.CheckpointHandler(tmp_path, monitor=LOSS),
    ]
    estimator.fit(TRAIN, epochs=3, event_handlers=handlers)
    told = [r.getMessage() for r in caplog.records if "do not count for keep_best" in r.message]
    assert len(told) == 1
    assert "has no 'validation loss', because batches came after the last evaluation" in told[0]
