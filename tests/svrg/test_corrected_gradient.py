"""SVRGTrainer.corrected_gradient: the mean that a step is about to use."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.svrg import BatchGradient, FullGradient, Snapshot
from gluon_svrg.svrg.collective import mean_batch_gradient
from gluon_svrg.workers import SingleProcess
from mxnet import autograd, gluon
from mxnet.gluon import nn
from problems import ONE, TWO

SHAPES = {"a": (3,), "b": (2, 2)}
MEAN = {name: np.arange(np.prod(shape)).reshape(shape) for name, shape in SHAPES.items()}


def make(contexts=ONE, dtype="float64", grad_req="write", coefficient=0.5, loss_scale=None):
    params = []
    for name, shape in SHAPES.items():
        param = gluon.Parameter(name, shape=shape, dtype=dtype, grad_req=grad_req)
        param.initialize(mx.init.One(), ctx=contexts)
        params.append(param)
    trainer = gs.SVRGTrainer(params, "sgd", {"learning_rate": 1.0})
    kind = "float32" if dtype == "float16" else dtype
    means = {name: mx.nd.array(mean, dtype=kind) for name, mean in MEAN.items()}
    trainer.set_control_variate(FullGradient(means, 100, loss_scale), coefficient)
    return trainer, params


def backward(params, factor=1.0, names=("a", "b")):
    """On each device a gradient of `factor`, times the device's number from 1."""
    with autograd.record():
        losses = [
            (data * factor * (k + 1)).sum()
            for param in params
            for k, data in enumerate(param.list_data())
            if param.name in names
        ]
    autograd.backward(losses)


def snapshot_gradient(params, value, samples):
    sums = {
        p.name: [mx.nd.full(d.shape, value, d.context, d.dtype) for d in p.list_data()]
        for p in params
    }
    return BatchGradient(sums, samples)


@pytest.mark.parametrize("contexts", [ONE, TWO])
@pytest.mark.parametrize("coefficient", [0.0, 0.5, 1.0])
def test_it_is_the_mean_of_the_rule_over_all_devices(contexts, coefficient):
    trainer, params = make(contexts, coefficient=coefficient)
    backward(params, 2.0)
    samples = [3, 4][: len(contexts)]
    trainer.correct(snapshot_gradient(params, 0.25, samples))
    found = trainer.corrected_gradient(sum(samples))
    assert isinstance(found, FullGradient)
    assert (found.samples, found.is_of_all_workers) == (sum(samples), True)
    plain = sum(2.0 * (k + 1) for k in range(len(contexts)))
    for name, mean in MEAN.items():
        control = 0.25 * len(contexts) - sum(samples) * mean
        expected = (plain - coefficient * control) / sum(samples)
        np.testing.assert_allclose(found.means[name].asnumpy(), expected, rtol=1e-14)
    # It is what the step goes along, and a copy.
    trainer.step(sum(samples))
    for param in params:
        moved = 1 - param.data(contexts[0]).asnumpy()
        np.testing.assert_allclose(moved, found.means[param.name].asnumpy(), rtol=1e-6)
    trainer.set_control_variate(found, 1.0)


def test_accumulated_passes_are_one_gradient():
    trainer, params = make(grad_req="add", coefficient=1.0)
    for _ in range(2):
        backward(params, 3.0)
        trainer.correct(snapshot_gradient(params, 1.0, [2]))
    found = trainer.corrected_gradient(4)
    for name, mean in MEAN.items():
        np.testing.assert_allclose(found.means[name].asnumpy(), (2 * 3 - 2 + 4 * mean) / 4)


@pytest.mark.parametrize("coefficient", [0.0, 1.0])
def test_what_an_earlier_batch_left_does_not_count(coefficient):
    """The second batch does not reach b: its gradient is zero, and corrected all the same."""
    trainer, params = make(coefficient=coefficient)
    for factor, names in ((5.0, ("a", "b")), (1.0, ("a",))):
        backward(params, factor, names)
        trainer.correct(snapshot_gradient(params, 0.0, [2]))
        found = trainer.corrected_gradient(2)
        trainer.step(2, ignore_stale_grad=True)
    for name, factor in (("a", 1.0), ("b", 0.0)):
        expected = (factor + coefficient * 2 * MEAN[name]) / 2
        np.testing.assert_allclose(found.means[name].asnumpy(), expected)


def test_a_parameter_that_is_trained_since_the_snapshot_has_its_plain_gradient():
    trainer, params = make(coefficient=1.0)
    trainer.control_variate.full_gradient.pop("b")
    backward(params, 3.0)
    trainer.correct(snapshot_gradient(params, 3.0, [2]))
    found = trainer.corrected_gradient(2)
    np.testing.assert_allclose(found.means["a"].asnumpy(), MEAN["a"])
    np.testing.assert_allclose(found.means["b"].asnumpy(), 1.5)


def test_float16_has_means_of_float32():
    trainer, params = make(dtype="float16", coefficient=1.0)
    backward(params, 1.0)
    trainer.correct(snapshot_gradient(params, 0.5, [3]))
    means = trainer.corrected_gradient(3).means
    assert {np.dtype(mean.dtype).name for mean in means.values()} == {"float32"}


def test_it_holds_the_loss_scale_that_it_was_made_with(monkeypatch):
    trainer, params = make(coefficient=1.0)
    monkeypatch.setattr(gs.SVRGTrainer, "loss_scale", 8.0)
    trainer.set_control_variate(
        FullGradient(
            {name: mx.nd.array(mean, dtype="float64") for name, mean in MEAN.items()}, 9, 1.0
        )
    )
    backward(params, 8 * 3.0)
    trainer.correct(snapshot_gradient(params, 8 * 3.0, [2]))
    found = trainer.corrected_gradient(2)
    assert found.loss_scale == 8.0
    monkeypatch.setattr(gs.SVRGTrainer, "loss_scale", 4.0)
    trainer.set_control_variate(found)
    for name, mean in MEAN.items():
        np.testing.assert_allclose(trainer.full_gradient[name][0].asnumpy(), mean)


class Doubled(SingleProcess):
    """As if another worker had the same."""

    def all_reduce(self, arrays):
        for array in arrays:
            array *= 2


def test_the_workers_gradients_are_added_up():
    _, params = make()
    backward(params, 3.0)
    means = mean_batch_gradient(params, {"a", "b"}, 4, Doubled())
    assert all((mean.asnumpy() == 1.5).all() for mean in means.values())
    assert all((param.grad().asnumpy() == 3).all() for param in params)


def test_before_a_correction_it_is_an_error():
    trainer, params = make()
    backward(params)
    with pytest.raises(
        RuntimeError, match=r"no corrected gradient: call correct\(\) after the back"
    ):
        trainer.corrected_gradient(2)
    trainer.correct(snapshot_gradient(params, 0.5, [2]))
    trainer.step(2)
    with pytest.raises(RuntimeError, match="no corrected gradient"):
        trainer.corrected_gradient(2)


@pytest.mark.parametrize(
    ("samples", "error"), [(0, ValueError), (-1, ValueError), (None, TypeError), ("2", TypeError)]
)
def test_what_is_no_number_of_samples_is_an_error(samples, error):
    trainer, params = make()
    backward(params)
    trainer.correct(snapshot_gradient(params, 0.5, [2]))
    with pytest.raises(error, match=rf"samples must be a number above 0, got {samples!r}: the"):
        trainer.corrected_gradient(samples)


def test_of_a_row_sparse_gradient_it_is_that_of_dense_storage():
    """In a recursion, too: the estimate is dense, and corrects the rows that it has."""
    found, weights = [], []
    for sparse_grad in (False, True):
        net = nn.Embedding(5, 2, sparse_grad=sparse_grad)
        net.initialize(mx.init.One())
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
        snapshot = Snapshot(net)
        snapshot.take()

        def run(words, net=net):
            with autograd.record():
                losses = (net(words) * words.expand_dims(1)).sum(axis=1)
            losses.backward()
            return losses

        batches = [mx.nd.array([1, 3]), mx.nd.array([3, 4])]
        trainer.set_control_variate(snapshot.full_gradient(run, batches), 0.5)
        for batch in [*batches, batches[0]]:
            run(batch)
            trainer.correct(snapshot.gradient(run, batch))
            estimate = trainer.corrected_gradient(2)
            (mean,) = estimate.means.values()
            assert mean.stype == "default"
            snapshot.take()
            trainer.step(2)
            trainer.set_control_variate(estimate, 0.5)
            weights.append(net.weight.data().asnumpy())
        found.append(mean.asnumpy())
        if sparse_grad:
            with pytest.raises(ValueError, match="which this full gradient does not tell: take"):
                trainer.set_control_variate(estimate, 0.5, "sparse")
    np.testing.assert_allclose(*found, rtol=1e-6)
    np.testing.assert_allclose(weights[:3], weights[3:], rtol=1e-6)
    assert found[0].any()
