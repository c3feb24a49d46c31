"""MLflowHandler, read back by MLflow's own client from a SQLite store."""

import json
import math
import shutil
import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
from mxnet import gluon


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(
        ImportError,
        match=r"needs mlflow, which .*: install it with pip install 'gluon-svrg\[mlflow\]'",
    ):
        gs.MLflowHandler()


RNG = np.random.default_rng(0)
BATCHES = [
    (mx.nd.array(RNG.normal(size=(8, 4))), mx.nd.array(RNG.integers(0, 3, 8))) for _ in range(4)
]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """The file of a SQLite store, which MLflow takes seconds to make."""
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="the extra mlflow is not installed")
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # where MLflow makes a folder for artifacts
        mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def client_of(path, empty):
    """A client of a store in the folder of the test."""
    import mlflow

    shutil.copy(empty, path / "mlflow.db")
    client = mlflow.MlflowClient(f"sqlite:///{path}/mlflow.db")
    client.create_experiment("test", artifact_location=(path / "artifacts").as_uri())
    client.uri = f"sqlite:///{path}/mlflow.db"
    return client


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path, empty):
    return client_of(tmp_path, empty)


def estimator_of(rate=0.1):
    gs.seed_everything(0)
    net = gluon.nn.Dense(3, in_units=4, prefix="net_")
    net.initialize()
    return runs.estimator_of(net, lr=rate)


def handler_of(store, **arguments):
    return gs.MLflowHandler("test", tracking_uri=store.uri, **arguments)


def runs_in(store):
    experiment = store.get_experiment_by_name("test")
    return store.search_runs([experiment.experiment_id])


def series(store, run_id, name):
    return [(m.step, m.value) for m in store.get_metric_history(run_id, name)]


@pytest.mark.full
def test_parameters_and_figures(store):
    handler = handler_of(store, run_name="a name", tags={"who": "the test"})
    estimator = estimator_of()
    history = estimator.fit(
        BATCHES, BATCHES, epochs=3, event_handlers=[handler, gs.SVRGHandler(update_freq=2)]
    ).history
    (run,) = runs_in(store)
    assert run.info.run_id == handler.run_id
    assert (run.info.run_name, run.info.status) == ("a name", "FINISHED")
    assert run.data.tags["who"] == "the test"
    assert run.data.tags["stop_reason"] == "all epochs are done"
    params = run.data.params
    assert params["optimizer.lr"] == "0.1"
    assert params["SVRGHandler.update_freq"] == "2"
    assert params["loss of the evaluation.class"] == "mxnet.gluon.loss.SoftmaxCrossEntropyLoss"
    for name in ("training loss", "validation accuracy", "learning_rate", "coefficient"):
        assert series(store, handler.run_id, name) == list(enumerate(history.column(name)))
    assert "epoch" not in run.data.metrics


@pytest.mark.full
def test_the_manifests_and_the_model(store, tmp_path):
    handler = handler_of(store, export_sample=BATCHES[0][0])
    checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints")
    estimator = estimator_of()
    estimator.fit(BATCHES, epochs=2, event_handlers=[handler, checkpoints])
    folder = store.download_artifacts(handler.run_id, "checkpoints/epoch-2-batch-8")
    with open(f"{folder}/manifest.json") as file:
        manifest = json.load(file)
    assert manifest["key"] == "epoch-2-batch-8"
    assert {a.path for a in store.list_artifacts(handler.run_id, "checkpoints")} == {
        "checkpoints/epoch-1-batch-4",
        "checkpoints/epoch-2-batch-8",
    }
    model = gs.deploy.Predictor(store.download_artifacts(handler.run_id, "model"))
    np.testing.assert_allclose(
        model.predict(BATCHES[1][0].asnumpy()),
        estimator.net(BATCHES[1][0]).asnumpy(),
        rtol=1e-6,
    )


class Stop(gs.events.EpochEnd):
    def __init__(self, epoch, how):
        self._epoch, self._how = epoch, how

    def epoch_end(self, estimator, *args, **kwargs):
        if estimator.position.epoch == self._epoch:
            self._how()


def interrupt():
    raise RuntimeError("lost power")


@pytest.mark.full
def test_a_resumed_run_goes_on_in_the_same_run(store, tmp_path):
    """It fails in epoch 3, after a checkpoint before epoch 2, which is trained twice."""

    def fit(rate=0.1, *more):
        handler = handler_of(store)
        checkpoints = gs.CheckpointHandler(tmp_path / "checkpoints", every_n_epochs=2)
        estimator = estimator_of(rate)
        handlers = [handler, checkpoints, *more]
        estimator.fit(BATCHES, epochs=5, event_handlers=handlers, resume="auto", verbose=0)
        return handler, estimator

    with pytest.raises(RuntimeError, match="lost power"):
        fit(0.1, Stop(3, interrupt))
    (run,) = runs_in(store)
    assert run.info.status == "FAILED"
    assert run.data.tags["stop_reason"] == "RuntimeError: lost power"
    assert [step for step, _ in series(store, run.info.run_id, "training loss")] == [0, 1, 2]
    handler, estimator = fit()
    (run,) = runs_in(store)
    assert handler.run_id == run.info.run_id
    assert run.info.status == "FINISHED"
    for name in ("training loss", "seconds"):
        found = series(store, run.info.run_id, name)
        assert [step for step, _ in found] == [0, 1, 2, 3, 4]
    whole = estimator.history.column("training loss")
    assert series(store, run.info.run_id, "training loss") == list(enumerate(whole))


@pytest.mark.full
def test_a_parameter_that_has_changed_is_there_twice(store, tmp_path):
    for rate, epochs in ((0.1, 1), (0.2, 2)):
        handlers = [handler_of(store), gs.CheckpointHandler(tmp_path / "checkpoints")]
        estimator_of(rate).fit(
            BATCHES, epochs=epochs, event_handlers=handlers, resume="auto", verbose=0
        )
    (run,) = runs_in(store)
    assert run.data.params["optimizer.lr"] == "0.1"
    assert run.data.params["optimizer.lr from epoch 1"] == "0.2"


@pytest.mark.full
def test_a_run_that_is_there_no_longer(tmp_path, empty, caplog):
    """The checkpoint names a run of another store."""

    def fit(store, epochs):
        handlers = [handler_of(store), gs.CheckpointHandler(tmp_path / "checkpoints")]
        estimator_of().fit(
            BATCHES, epochs=epochs, event_handlers=handlers, resume="auto", verbose=0
        )
        return handlers[0].run_id

    (tmp_path / "other").mkdir()
    first = fit(client_of(tmp_path, empty), 1)
    store = client_of(tmp_path / "other", empty)
    second = fit(store, 2)
    assert first != second
    assert f"run {first}, which the checkpoint names, cannot be continued" in caplog.text
    assert [step for step, _ in series(store, second, "training loss")] == [0, 1]


@pytest.mark.full
def test_a_store_that_fails_in_the_middle(store, caplog, monkeypatch):
    """The run continues, and the next epoch writes what is missing."""
    handler, calls = handler_of(store), []
    estimator = estimator_of()
    kind = type(store)
    log_batch = kind.log_batch

    def failing(self, run_id, metrics=(), **arguments):
        calls.append(metrics)
        if metrics and metrics[0].step == 1 and len(calls) < 5:
            raise OSError("no route to host")
        return log_batch(self, run_id, metrics=metrics, **arguments)

    monkeypatch.setattr(kind, "log_batch", failing)
    history = estimator.fit(BATCHES, epochs=4, event_handlers=[handler]).history
    assert "the figures cannot be written into MLflow (OSError: no route to host)" in caplog.text
    values = list(enumerate(history.column("training loss")))
    assert series(store, handler.run_id, "training loss") == values


@pytest.mark.full
def test_a_figure_that_is_no_number(store):
    class Odd(gs.events.EpochEnd):
        def epoch_end(self, estimator, *args, **kwargs):
            estimator.figures["an odd, name"] = math.nan
            estimator.figures["text"] = "so"

    handler = handler_of(store)
    estimator_of().fit(BATCHES, epochs=1, event_handlers=[handler, Odd()])
    (run,) = runs_in(store)
    assert math.isnan(run.data.metrics["an odd_ name"])
    assert "text" not in run.data.metrics
