"""The table of the snapshot's gradients."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.svrg import BatchGradient, GradientTable
from problems import ONE, backward_of, make


def gradient_of(value, samples=2):
    return BatchGradient({"w": [mx.nd.full((3,), value)]}, [samples])


def test_it_keeps_copies():
    table = GradientTable()
    gradient = gradient_of(1.0)
    table.append(gradient)
    gradient.sums["w"][0][:] = 7
    assert table.gradient(0).sums["w"][0].asnumpy().tolist() == [1, 1, 1]
    assert table.gradient(0).samples == [2]
    assert table.nbytes == 12
    assert len(table) == 1


def test_in_any_order_as_often_as_wanted():
    table = GradientTable()
    for value in range(4):
        table.append(gradient_of(value))
    for index in (2, 0, 3, 3, 1):
        assert table.gradient(index).sums["w"][0].asnumpy()[0] == index


def test_after_clear_it_holds_nothing():
    table = GradientTable()
    table.append(gradient_of(1.0))
    table.clear()
    assert len(table) == table.nbytes == 0


@pytest.mark.parametrize("index", [-1, 2, 100])
def test_a_batch_that_it_does_not_hold_is_an_error(index):
    table = GradientTable()
    table.append(gradient_of(0.0))
    table.append(gradient_of(1.0))
    message = rf"has the 2 batches of the full pass, and this is batch {index} \(the first is 0\)"
    with pytest.raises(ValueError, match=message):
        table.gradient(index)


def test_other_arrays_are_an_error():
    table = GradientTable()
    data, label = mx.nd.zeros((2, 3)), mx.nd.zeros((2,))
    table.append(gradient_of(0.0), (data, label))
    table.gradient(0, (data, label))
    for arrays in ((data.copy(), label), (data,), (), (label, data)):
        with pytest.raises(ValueError, match=r"batch 0 .* has other arrays than it"):
            table.gradient(0, arrays)


@pytest.mark.parametrize("change", [
    lambda x: x[:, ::-1],  # the same values elsewhere
    lambda x: x[::-1],
    lambda x: x + 1e-6,
    lambda x: x * np.nan,
    lambda x: np.where(np.arange(3) == 1, np.inf, x),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_contents_are_an_error_afterwards(change, dtype):
    values = np.random.default_rng(0).normal(size=(5, 3))
    label = mx.nd.arange(5)
    table = GradientTable(by_content=True)
    table.append(gradient_of(0.0), (mx.nd.array(values, dtype=dtype), label))
    for _ in range(2):
        table.gradient(0, (mx.nd.array(values, dtype=dtype), label.copy()))
        table.check()
    table.gradient(0, (mx.nd.array(change(values), dtype=dtype), label))
    with pytest.raises(
        ValueError, match=r"batch 0 \(the first is 0\) has other values than it had"
    ):
        table.check()
    table.check()  # told once


def test_not_a_number_is_equal_to_itself():
    table = GradientTable(by_content=True)
    arrays = (mx.nd.array([1, np.nan]),)
    table.append(gradient_of(0.0), arrays)
    table.gradient(0, arrays)
    table.check()


def test_by_hand():
    """The manual loop with a table: the same steps as without."""

    def train(with_table):
        problem = make("mlp", ONE)
        backward = backward_of(problem.net, problem.loss)
        batches = problem.ndarrays()
        trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
        snapshot, table = gs.Snapshot(problem.net), GradientTable()
        for _ in range(3):
            snapshot.take()
            table.clear()
            full_gradient = snapshot.full_gradient(
                backward, batches, keep=lambda batch, gradient: table.append(gradient, batch)
            )
            trainer.set_control_variate(full_gradient)
            for index, batch in enumerate(batches):
                loss = backward(batch)
                trainer.correct(
                    table.gradient(index, batch)
                    if with_table
                    else snapshot.gradient(backward, batch)
                )
                trainer.step(len(loss))
        return problem.params

    for ours, theirs in zip(train(True), train(False), strict=True):
        assert np.array_equal(ours, theirs)
