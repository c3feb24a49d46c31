"""A batch of which other workers have all samples: nothing is computed, gradients are zero."""

import logging

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg._mxnet.block import is_fresh, mark_fresh
from gluon_svrg.batch.backward import backward_of, shape_inference_of
from gluon_svrg.batch.parts import count_samples
from gluon_svrg.batch.processor import evaluate_batch, fit_batch
from gluon_svrg.data import Batch
from gluon_svrg.loop import outputs_of_batch
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.table import GradientTable
from mxnet import gluon

X, Y = mx.nd.ones((4, 3)), mx.nd.ones((4, 2))
FULL, EMPTY = Batch((X, Y), 0), Batch((), 1)


class Counting(gs.BatchProcessor):
    calls = 0

    def fit_batch(self, estimator, batch, batch_axis=0):
        self.calls += 1
        return super().fit_batch(estimator, batch, batch_axis)

    def evaluate_batch(self, estimator, batch, batch_axis=0):
        self.calls += 1
        return super().evaluate_batch(estimator, batch, batch_axis)


class Carrying(Counting):
    state = 0

    def fit_batch(self, estimator, batch, batch_axis=0):
        self.state = self.state + 1
        return super().fit_batch(estimator, batch, batch_axis)

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state):
        self.state = state["state"]


def run_of(processor=None, in_units=3, contexts=1):
    net = gluon.nn.Dense(2, in_units=in_units)
    context = [mx.cpu(i) for i in range(contexts)]
    net.initialize(mx.init.One(), ctx=context)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    processor = processor or Counting()
    return gs.Estimator(
        net, gluon.loss.L2Loss(), trainer=trainer, context=context, batch_processor=processor
    )


def gradients(run):
    params = run.net.collect_params().values()
    return [grad.asnumpy() for param in params for grad in param.list_grad()]


@pytest.mark.parametrize("contexts", [1, 2])
def test_gradients_are_zero(contexts):
    run = run_of(contexts=contexts)
    fit_batch(run, FULL)
    assert all(np.abs(grad).sum() > 0 for grad in gradients(run))
    for param in run.net.collect_params().values():
        for data in param.list_data():
            mark_fresh(data, False)
    assert fit_batch(run, EMPTY) == ([], [], [], [])
    assert run.batch_processor.calls == 1
    assert all(np.abs(grad).sum() == 0 for grad in gradients(run))
    for param in run.net.collect_params().values():  # another worker says what is to be used
        assert not any(map(is_fresh, param.list_data()))


def test_what_has_accumulated_stays():
    run = run_of()
    run.net.collect_params().setattr("grad_req", "add")
    fit_batch(run, FULL)
    before = gradients(run)
    fit_batch(run, EMPTY)
    for ours, expected in zip(gradients(run), before, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_evaluation():
    run = run_of()
    assert evaluate_batch(run, EMPTY, 0) == ([], [], [], [])
    assert run.batch_processor.calls == 0
    assert len(evaluate_batch(run, FULL, 0)[2]) == 1


def test_what_the_events_bring_along():
    outputs = outputs_of_batch(*fit_batch(run_of(), EMPTY)[1:])
    assert outputs == {"label": [], "pred": [], "loss": []}
    assert count_samples(outputs["loss"], outputs["label"], 0) == 0


def test_the_snapshot_has_zero_for_it():
    run = run_of()
    fit_batch(run, FULL)
    own = gradients(run)
    snapshot = Snapshot(run.net)
    snapshot.take()
    backward, table = backward_of(run), GradientTable()
    for index, (batch, samples) in enumerate([(FULL, 4), (EMPTY, 0)]):
        gradient = snapshot.gradient(backward.at(index), batch)
        assert gradient.samples == [samples]
        table.append(gradient, list(batch))
        total = sum(np.abs(s.asnumpy()).sum() for sums in gradient.sums.values() for s in sums)
        assert (total == 0) == (batch is EMPTY)
    assert table.gradient(1, []).samples == [0]
    for ours, expected in zip(gradients(run), own, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_carried_state_goes_past_it():
    run = run_of(Carrying())
    backward = backward_of(run)
    backward.begin_pass()
    for index, batch in enumerate([FULL, EMPTY, FULL, FULL]):
        backward.at(index)(batch)
    assert [state["state"] for state in backward._states] == [0, 1, 1, 2, 3]
    assert run.batch_processor.state == 0


@pytest.mark.parametrize(
    ("batches", "is_told"),
    [([FULL, EMPTY, FULL], True), ([EMPTY, EMPTY, FULL, FULL], True), ([EMPTY, FULL], False)],
)
def test_who_keeps_arrays_is_told_at_the_second_batch_with_samples(caplog, batches, is_told):
    class Keeping(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            self.seen = batch[0].copy()
            return super().fit_batch(estimator, batch, batch_axis)

    run = run_of(Keeping())
    backward = backward_of(run)
    with caplog.at_level(logging.WARNING):
        for index, batch in enumerate(batches):
            backward.at(index)(batch)
    assert ("Keeping keeps arrays" in caplog.text) == is_told


def test_shapes_are_not_inferred_from_it():
    run = run_of(in_units=0)
    shape_inference_of(run)(EMPTY)
    assert fit_batch(run, EMPTY) == ([], [], [], [])
    assert run.net.weight.shape == (2, 0)
    shape_inference_of(run)(FULL)
    assert run.net.weight.shape == (2, 3)
