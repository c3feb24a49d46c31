"""ProfilerHandler: phases that add up, the table, the trace, and that it changes nothing."""

import json
import logging
import time

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.events import BatchEnd, EpochBegin
from gluon_svrg.reporting.timings import PHASES, table_of
from mxnet import gluon
from mxnet.gluon.contrib.estimator import Estimator as MXNetEstimator

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((40, 6)).astype("float32")
Y = RANDOM.integers(0, 3, 40).astype("float32")


def estimator_of(kind=gs.Estimator):
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu", in_units=6), gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    return kind(net, gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy(), trainer=trainer)


def fit(handlers, epochs=2, data=None, estimator=None, **arguments):
    estimator = estimator or estimator_of()
    data = data or gs.data.ArrayLoader(X, Y, batch_size=8, shuffle=True, seed=0)
    estimator.fit(data, epochs=epochs, event_handlers=handlers, **arguments)
    return estimator


def weights(estimator):
    return [p.data().asnumpy() for p in estimator.net.collect_params().values()]


class Sleeps(BatchEnd, EpochBegin):
    """A handler that takes its time."""

    def __init__(self, at_begin=0.0, at_batch=0.0):
        self.at_begin, self.at_batch = at_begin, at_batch

    def epoch_begin(self, estimator, *args, **kwargs):
        time.sleep(self.at_begin)

    def batch_end(self, estimator, *args, **kwargs):
        time.sleep(self.at_batch)


class SlowData(list):
    def __iter__(self):
        for batch in super().__iter__():
            time.sleep(0.02)
            yield batch


@pytest.mark.slow
def test_the_phases_add_up_to_the_time_of_the_epoch(tmp_path):
    profiler = gs.ProfilerHandler()
    handlers = [profiler, gs.SVRGHandler(), gs.CheckpointHandler(tmp_path / "run")]
    handlers += [gs.NaNGuardHandler(), Sleeps(at_batch=0.005)]
    begin = time.perf_counter()
    estimator = fit(handlers, epochs=4, val_data=gs.data.ArrayLoader(X, Y, batch_size=8))
    whole = time.perf_counter() - begin
    for row in profiler.profile:
        assert sum(row[phase] for phase in PHASES) == pytest.approx(row["seconds"], rel=0.02)
        assert all(row[phase] > 0 for phase in PHASES), row
        assert row["batches"] == 5
    assert profiler.profile.column("epoch") == [0, 1, 2, 3]
    # By another clock: that of the history, from its handler's epoch end to the next; a checkpoint
    # is written after it, so that of the last epoch, which the history has not, is taken off.
    rows, own = estimator.history, profiler.profile
    last = own[-1]["checkpoint"]
    assert sum(own.column("seconds")) - last == pytest.approx(
        sum(rows.column("seconds")), rel=0.02, abs=0.05
    )
    assert sum(own.column("seconds")) < whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handlers", "data", "phase", "least"),
    [
        ([Sleeps(at_batch=0.02)], None, "other", 0.1),
        ([], SlowData([(mx.nd.array(X), mx.nd.array(Y))] * 5), "data", 0.1),
    ],
)
def test_time_goes_to_who_takes_it(handlers, data, phase, least):
    profiler = gs.ProfilerHandler(epochs=1)
    fit([profiler, *handlers], data=data)
    (row,) = profiler.profile
    assert row["epoch"] == 1
    assert least <= row[phase]
    assert row[phase] == max(row[name] for name in PHASES)


@pytest.mark.slow
def test_the_forward_pass_and_the_step_have_what_mxnet_computes_for_them():
    """The forward pass returns at once; its work is done later, and counts as its own."""

    class Heavy(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            big = F.ones((400, 400))
            for _ in range(12):
                big = F.dot(big, big) * 1e-3
            return F.broadcast_add(x, 0 * F.mean(big))

    shares = {}
    for synchronize in (True, False):
        estimator = estimator_of()
        estimator.net.add(Heavy())
        profiler = gs.ProfilerHandler(epochs=[1], synchronize=synchronize)
        fit([profiler], estimator=estimator)
        (row,) = profiler.profile
        shares[synchronize] = row["forward and backward"] / row["seconds"]
    assert shares[True] > 0.6
    assert shares[True] > shares[False] + 0.2


def test_calls_name_handler_and_event():
    profiler = gs.ProfilerHandler()
    fit([profiler, Sleeps(at_begin=0.03), gs.SVRGHandler()])
    calls = {(row["handler"], row["event"]): row for row in profiler.calls}
    slow = calls["Sleeps", "epoch_begin"]
    assert (slow["phase"], slow["calls"]) == ("other", 2)
    assert slow["seconds"] >= 0.06
    assert calls["SVRGHandler", "epoch_begin"]["phase"] == "full pass"
    assert calls["SVRGHandler", "gradient_ready"]["phase"] == "correction"
    assert calls["GradientUpdateHandler", "batch_end"]["calls"] == 10
    seconds = [row["seconds"] for row in profiler.calls]
    assert seconds == sorted(seconds, reverse=True)


def test_nothing_that_is_trained_changes():
    plain, profiled = fit([gs.SVRGHandler()]), fit([gs.SVRGHandler(), gs.ProfilerHandler()])
    for a, b in zip(weights(plain), weights(profiled), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_the_epochs_asked_for():
    profiler = gs.ProfilerHandler(epochs=[1, 3, 9])
    fit([profiler], epochs=5)
    assert profiler.profile.column("epoch") == [1, 3]
    # Also where the last epoch is not one of them.
    calls = {(c["handler"], c["event"]): c["calls"] for c in profiler.calls}
    assert calls["MetricHandler", "epoch_end"] == 2


def test_the_table_goes_to_the_log(caplog):
    profiler = gs.ProfilerHandler()
    estimator = estimator_of()
    with caplog.at_level(logging.INFO):
        fit([profiler], estimator=estimator)
    assert profiler.table() in caplog.text
    assert profiler.table().startswith("profile of epochs 0, 1\nphase ")


def test_no_epoch_is_told(caplog):
    profiler = gs.ProfilerHandler(epochs=7)
    estimator = estimator_of()
    fit([profiler], estimator=estimator)
    assert "nothing was profiled: epochs=[7] are not among the epochs" in caplog.text


def test_the_table_of_made_up_rows():
    row = dict.fromkeys(PHASES, 0.0) | {"data": 1.0, "step": 3.0, "seconds": 4.0, "batches": 10}
    lines = table_of([row, row]).splitlines()
    assert lines[1].split() == ["data", "2.000", "25.0", "%", "100.000"]
    assert lines[-1].split() == ["all", "8.000", "100.0", "%", "400.000"]


def test_a_run_that_is_cut_or_fails_leaves_nothing_behind():
    class Fails(BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            if estimator.position.batch == 7:
                raise KeyError("on purpose")

    profiler = gs.ProfilerHandler()
    estimator = estimator_of()
    with pytest.raises(KeyError):
        fit([profiler, Fails()], estimator=estimator)
    assert estimator.handlers.interceptor is None
    fit([profiler], estimator=estimator, epochs=1)
    assert [row["epoch"] for row in profiler.profile] == [0]
    assert estimator.handlers.interceptor is None


def test_an_epoch_that_is_resumed_in_the_middle(tmp_path):
    def handlers():
        return [gs.CheckpointHandler(tmp_path, every_n_batches=3), gs.ProfilerHandler()]

    estimator_of().fit(
        gs.data.ArrayLoader(X, Y, batch_size=8, seed=0), batches=8, event_handlers=handlers()
    )
    _, profiler = resumed = handlers()
    fit(resumed, data=gs.data.ArrayLoader(X, Y, batch_size=8, seed=0), epochs=3, resume="auto")
    assert [(row["epoch"], row["batches"]) for row in profiler.profile] == [(1, 2), (2, 5)]


@pytest.mark.parametrize("_", range(2))  # MXNet's second file in a process begins otherwise
def test_the_trace_is_json_with_operators_and_phases(tmp_path, _):
    path = tmp_path / "deep" / "trace.json"
    profiler = gs.ProfilerHandler(epochs=1, trace=path, trace_batches=(1, 3))
    fit([profiler, gs.SVRGHandler(gradient_table=False)])
    events = json.loads(path.read_text())["traceEvents"]
    phases = [e for e in events if e.get("cat") == "phase"]
    names = [e["name"] for e in phases]
    assert names.count("forward and backward") == 2
    assert names.count("SVRGHandler.gradient_ready") == 2
    operators = [e for e in events if e["ph"] == "B"]
    assert len(operators) == sum(e["ph"] == "E" for e in events) > 10
    # On one time line: every operator within the time of the phases.
    begin = min(e["ts"] for e in phases)
    end = max(e["ts"] + e["dur"] for e in phases)
    assert all(begin - 5000 <= e["ts"] <= end + 5000 for e in operators)
    (row,) = profiler.profile
    assert sum(row[phase] for phase in PHASES) == pytest.approx(row["seconds"], rel=0.02)


def test_a_trace_that_exists_is_kept(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fit([gs.ProfilerHandler(trace=path)])
    assert path.read_text() == "mine"
    fit([gs.ProfilerHandler(trace=path, trace_batches=(0, 1), overwrite=True)], epochs=1)
    assert json.loads(path.read_text())["traceEvents"]


def test_a_trace_that_begins_too_late_is_told(tmp_path, caplog):
    estimator = estimator_of()
    fit([gs.ProfilerHandler(trace=tmp_path / "t.json")], estimator=estimator)
    assert "trace_batches[0]=5" in caplog.text
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": -1}, ValueError, "epochs"),
        ({"epochs": []}, ValueError, "leave it out"),
        ({"epochs": 1.5}, TypeError, "epochs"),
        ({"synchronize": 1}, TypeError, "synchronize"),
        ({"trace": "trace.txt"}, ValueError, "must end in .json"),
        ({"trace_batches": (3, 3)}, ValueError, "trace_batches"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        gs.ProfilerHandler(**arguments)


@pytest.mark.slow
def test_mxnets_estimator_is_refused():
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 8)
    estimator = estimator_of(MXNetEstimator)
    with pytest.raises(ValueError, match=r"gluon_svrg\.Estimator"):
        estimator.fit(data, epochs=1, event_handlers=[gs.ProfilerHandler()])
