"""The Estimator: MXNet's behaviour, any data, a result, and clear errors."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg.events import BatchEnd
from mxnet import gluon
from mxnet.gluon.contrib import estimator as mx_estimator
from problems import ONE, TWO


def trainer_of(problem, **parameters):
    return gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1} | parameters)


def loader(problem):
    data, label = (np.concatenate(part) for part in zip(*problem.batches, strict=True))
    return gluon.data.DataLoader(gluon.data.ArrayDataset(data, label), batch_size=8)


class Again:
    """The least that training data has to be: iterable, again and again."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        yield from self._batches


def test_it_trains_as_mxnets_estimator_does():
    """Same data, same defaults: the same weights and metrics, bit for bit."""
    results = []
    for module in (gs, mx_estimator):
        problem = problems.make("mlp")
        estimator = module.Estimator(
            problem.net,
            problem.loss,
            trainer=gluon.Trainer(problem.net.collect_params(), "adam"),
            train_metrics=mx.metric.Accuracy(),
        )
        estimator.logger.handlers.clear()
        estimator.fit(loader(problem), loader(problem), epochs=3)
        metrics = estimator.train_metrics + estimator.val_metrics
        results.append((problem.params, [metric.get() for metric in metrics]))
    (ours, our_metrics), (theirs, their_metrics) = results
    assert our_metrics == their_metrics
    assert problems.same(ours, theirs)


def test_handlers_of_mxnet_run_unchanged(tmp_path):
    problem = problems.make("mlp")
    problem.net.hybridize()
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    metric = estimator.val_metrics[0]
    result = estimator.fit(
        problem.ndarrays(),
        problem.ndarrays(),
        epochs=9,
        event_handlers=[
            mx_estimator.CheckpointHandler(str(tmp_path), monitor=metric, max_checkpoints=2),
            mx_estimator.EarlyStoppingHandler(metric, mode="min", patience=2),
            mx_estimator.LoggingHandler(log_interval=2, metrics=estimator.train_metrics),
            gs.SVRGHandler(),
        ],
    )
    assert result.stop_reason is gs.StopReason.HANDLER  # accuracy does not fall
    assert 2 < result.epochs_run < 9
    assert len(list(tmp_path.glob("*.params"))) == 2


@pytest.mark.parametrize("kind", [list, tuple, Again, loader])
def test_any_data_that_can_be_iterated_again(kind):
    problem = problems.make("softmax")
    data = loader(problem) if kind is loader else kind(problem.ndarrays())
    recorder = problems.Recorder()
    gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).fit(
        data, epochs=2, event_handlers=[gs.SVRGHandler(), recorder]
    )
    reference = problems.make("softmax")
    expected = problems.Recorder()
    gs.Estimator(reference.net, reference.loss, trainer=trainer_of(reference)).fit(
        reference.ndarrays(), epochs=2, event_handlers=[gs.SVRGHandler(), expected]
    )
    assert len(recorder.weights) == 10
    assert problems.same(recorder.weights[-1], expected.weights[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_batches_are_taken_at_the_precision_of_the_network(dtype):
    runs = []
    for as_numpy in (True, False):
        problem = problems.make("softmax", dtype=dtype)
        trainer = trainer_of(problem)
        data = problem.batches if as_numpy else problem.ndarrays(dtype)
        gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(data, epochs=2)
        runs.append(problem.params)
    assert problems.same(*runs)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_a_batch_smaller_than_the_number_of_devices(samples):
    """Devices without samples are idle: the weights are those of one device."""
    contexts = [mx.cpu(i) for i in range(3)]
    runs = []
    for devices in (contexts, ONE):
        problem = problems.make("mlp", devices, samples=8 + samples)
        trainer = trainer_of(problem, momentum=0.9)
        gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
            problem.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler()]
        )
        runs.append(problem.params)
    assert problems.relative_difference(*runs) < 1e-12


def test_the_result_holds_reason_epochs_and_history():
    problem = problems.make("softmax")
    estimator = gs.Estimator(
        problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer_of(problem)
    )
    result = estimator.fit(problem.ndarrays(), problem.ndarrays(), epochs=2)
    assert result.stop_reason is gs.StopReason.EPOCHS_DONE
    assert result.stop_reason.value == "all epochs are done"
    assert result.epochs_run == 2
    assert [row["epoch"] for row in result.history] == [0, 1]
    for row in result.history:
        assert row["samples"] == 37
        assert row["seconds"] > 0
        assert row["learning_rate"] == 0.1
        assert 0 <= row["training accuracy"] <= 1
        assert 0 <= row["validation accuracy"] <= 1


def test_evaluate_returns_the_metrics():
    problem = problems.make("softmax")
    estimator = gs.Estimator(
        problem.net, problem.loss, mx.metric.Accuracy(), trainer=trainer_of(problem)
    )
    values = estimator.evaluate(problem.ndarrays())
    data, label = (np.concatenate(part) for part in zip(*problem.batches, strict=True))
    scores = problem.net(mx.nd.array(data, dtype="float64")).asnumpy()
    assert values == {"validation accuracy": np.mean(scores.argmax(axis=1) == label)}


def test_fit_again_goes_on():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    handlers = [gs.SVRGHandler()]
    for _ in range(2):
        result = estimator.fit(problem.ndarrays(), epochs=2, event_handlers=handlers)
        assert result.epochs_run == len(result.history) == 2
    assert len(handlers) == 1  # the caller's list is left alone
    once = problems.make("softmax")
    gs.Estimator(once.net, once.loss, trainer=trainer_of(once)).fit(
        once.ndarrays(), epochs=4, event_handlers=[gs.SVRGHandler()]
    )
    assert problems.same(problem.params, once.params)


def test_a_batch_processor_of_the_users_own():
    """Batches of another shape, and a loss made of two: the snapshot follows."""

    class Weighted(mx_estimator.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            with mx.autograd.record():
                pred = estimator.net(batch["x"])
                loss = estimator.loss(pred, batch["y"]) * batch["weight"]
            loss.backward()
            return [batch["x"]], [batch["y"]], [pred], [loss]

    problem = problems.make("softmax")
    data = [
        {"x": x, "y": y, "weight": mx.nd.ones((len(y),), dtype="float64")}
        for x, y in problem.ndarrays()
    ]
    estimator = gs.Estimator(
        problem.net, problem.loss, trainer=trainer_of(problem), batch_processor=Weighted()
    )
    estimator.fit(data, epochs=3, event_handlers=[gs.SVRGHandler()])
    plain = problems.make("softmax")
    gs.Estimator(plain.net, plain.loss, trainer=trainer_of(plain)).fit(
        plain.ndarrays(), epochs=3, event_handlers=[gs.SVRGHandler()]
    )
    assert problems.relative_difference(problem.params, plain.params) < 1e-14


def test_the_contexts_of_the_network_are_the_default():
    problem = problems.make("softmax", TWO)
    assert gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem)).context == TWO


BAD_DATA = {
    "empty": ([], "train_data is empty: give at least one batch"),
    "generator": ((batch for batch in [1]), "which is gone after one pass: give a DataLoader"),
    "number": (3, "train_data must be an iterable of .* got 3"),
    "DataIter": (
        mx.io.NDArrayIter(np.ones((4, 2)), np.ones(4), batch_size=2),
        "got the DataIter .*: use a gluon.data.DataLoader",
    ),
    "empty iterable": (Again([]), "train_data gave no batch: it is empty"),
    "no pair": ([(mx.nd.ones((2, 6)),)], r"must be a \(data, label\) pair, got a tuple of 1"),
    "an array": ([mx.nd.ones((2, 6))], r"must be a \(data, label\) pair, got a NDArray"),
    "lengths": (
        [(mx.nd.ones((4, 6)), mx.nd.ones((3,)))],
        r"same length along axis 0, got shapes \(4, 6\) and \(3,\)",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
@pytest.mark.parametrize("handlers", [[], [gs.SVRGHandler()]], ids=["plain", "svrg"])
def test_bad_data_is_an_error_and_nothing_is_trained(case, handlers):
    data, message = BAD_DATA[case]
    if handlers and case == "empty iterable":
        message = "needs at least one batch, got none"
    problem = problems.make("softmax", dtype="float32")
    before = problem.params
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match=message):
        estimator.fit(data, epochs=1, event_handlers=handlers)
    assert problems.same(problem.params, before)


def test_data_that_is_gone_after_one_pass_is_an_error():
    class Once:
        def __init__(self, batches):
            self._iterator = iter(batches)

        def __iter__(self):
            return self._iterator

    problem = problems.make("softmax")
    before = problem.params
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match="train_data gave no batch: it is empty, or it can be"):
        estimator.fit(Once(problem.ndarrays()), epochs=1, event_handlers=[gs.SVRGHandler()])
    assert problems.same(problem.params, before)


def test_empty_validation_data_is_an_error():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match="val_data is empty"):
        estimator.fit(problem.ndarrays(), [], epochs=1)
    with pytest.raises(ValueError, match="val_data gave no batch"):
        estimator.evaluate(Again([]))


def test_a_network_elsewhere_is_an_error():
    problem = problems.make("softmax", TWO)
    trainer = trainer_of(problem)
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer, context=mx.cpu(0))
    message = r"is on \[cpu\(0\), cpu\(1\)\] but the Estimator trains on \[cpu\(0\)\]: initialise"
    with pytest.raises(ValueError, match=message):
        estimator.fit(problem.ndarrays(), epochs=1)


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ({}, "exactly one of epochs and batches, got epochs=None and batches=None"),
        ({"epochs": 1, "batches": 1}, "exactly one of epochs and batches"),
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"epochs": 1.5}, "epochs must be a positive integer, got 1.5"),
        ({"batches": -1}, "batches must be a positive integer, got -1"),
        ({"batches": True}, "batches must be a positive integer, got True"),
    ],
)
def test_a_bad_duration_is_an_error(duration, message):
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(ValueError, match=message):
        estimator.fit(problem.ndarrays(), **duration)


def test_resume_is_not_there_yet():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))
    with pytest.raises(NotImplementedError, match="resume='auto' is not there yet"):
        estimator.fit(problem.ndarrays(), epochs=1, resume="auto")


def test_a_handler_that_watches_another_estimators_metric_is_an_error():
    problem = problems.make("softmax")
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer_of(problem))

    class Watch(BatchEnd):
        metric = mx.metric.Accuracy()

    with pytest.raises(ValueError, match="outside of the known training and validation metrics"):
        estimator.fit(problem.ndarrays(), epochs=1, event_handlers=[Watch()])
