"""The curvature that is measured, against eigenvalues of Hessians that NumPy writes out."""

import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
import runs
from gluon_svrg.svrg.curvature import CurvatureMeter, StepScaling
from mxnet import gluon
from problems import ONE, TWO


def hessian(kind, x, outputs, weight=None, rho=1.0):
    """Of the mean loss of rows `x`, at these outputs, by (output, feature), the bias last."""
    n, classes = outputs.shape
    rows = np.hstack([x, np.ones((n, 1))])
    weight = np.ones(n) if weight is None else weight
    if kind == "softmax":
        p = oracle.softmax(outputs)
        curved = np.einsum("ik,kl->ikl", p, np.eye(classes)) - np.einsum("ik,il->ikl", p, p)
    else:
        sigmoid = 1 / (1 + np.exp(-outputs))
        of_each = {"logistic": sigmoid * (1 - sigmoid), "squared": np.ones_like(outputs),
                   "huber": np.full_like(outputs, 1 / rho)}[kind]  # fmt: skip
        curved = np.einsum("ik,kl->ikl", of_each / classes, np.eye(classes))
    blocks = np.einsum("i,ikl,ip,iq->kplq", weight / n, curved, rows, rows)
    size = classes * rows.shape[1]
    return blocks.reshape(size, size)


LOSSES = {
    "softmax": gluon.loss.SoftmaxCELoss(),
    "logistic": gluon.loss.SigmoidBCELoss(),
    "squared": gluon.loss.L2Loss(),
    "huber": gluon.loss.HuberLoss(rho=0.5),
}


def make(kind, dtype, contexts, classes=3, samples=60, features=7):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(samples, features)) * rng.exponential(size=features)
    y = rng.normal(size=(samples, classes)) if kind in ("squared", "huber") else None
    if kind == "softmax":
        y = rng.integers(0, classes, samples).astype(float)
    if kind == "logistic":
        y = rng.integers(0, 2, (samples, classes)).astype(float)
    net = gluon.nn.Dense(classes, in_units=features, weight_initializer=mx.init.Normal(0.5))
    net.cast(dtype)
    net.initialize(ctx=contexts)
    batches = [
        tuple(mx.nd.array(part[i : i + 25], dtype=dtype) for part in (x, y))
        for i in range(0, samples, 25)
    ]
    estimator = runs.estimator_of(net, LOSSES[kind], context=contexts)
    return x, net, batches, estimator


@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", LOSSES)
def test_it_is_the_largest_eigenvalue_of_the_hessian(kind, dtype, contexts):
    """At the weights, but for Huber's loss, which is square where the residual is small."""
    x, net, batches, estimator = make(kind, dtype, contexts)
    weight, bias = net.weight, net.bias
    meter = CurvatureMeter(
        net,
        lambda batch: estimator.batch_processor.fit_batch(estimator, batch, 0)[3],
        {weight.name: StepScaling(), bias.name: StepScaling()},
    )
    point = meter.weights()
    if kind == "huber":
        point = {name: np.zeros_like(array) for name, array in point.items()}
        batches = [(data, mx.nd.zeros_like(label)) for data, label in batches]
    radius = 0.05 / np.sqrt((x**2).sum(axis=1).max() + 1)
    before = problems.weights_of(net)
    value, products = meter.largest(batches, point, radius)
    outputs = x @ point[weight.name].T + point[bias.name]
    exact = np.linalg.eigvalsh(hessian(kind, x, outputs, rho=0.5))[-1]
    assert value == pytest.approx(exact, rel=0.02)
    assert meter.gradient_evaluations == 2 * products * len(x)
    assert problems.same(problems.weights_of(net), before)
    meter.release()


def test_in_the_optimizers_metric_with_its_weight_decay_and_its_scale():
    x, net, batches, estimator = make("softmax", "float64", ONE)
    steps = {net.weight.name: StepScaling(0.25, 2.0), net.bias.name: StepScaling(3.0, 0.5)}
    meter = CurvatureMeter(
        net, lambda batch: estimator.batch_processor.fit_batch(estimator, batch, 0)[3], steps, 1.5
    )
    value, _ = meter.largest(batches, meter.weights(), 1e-3)
    outputs = x @ net.weight.data().asnumpy().T + net.bias.data().asnumpy()
    of_bias = np.tile([False] * 7 + [True], 3)
    multiples, decays = np.where(of_bias, 3.0, 0.25), np.where(of_bias, 0.5, 2.0)
    roots = np.sqrt(multiples)
    full = 1.5 * hessian("softmax", x, outputs) + np.diag(decays)
    exact = np.linalg.eigvalsh(roots[:, None] * full * roots)[-1]
    assert value == pytest.approx(exact, rel=0.02)
    for others in (np.ones(24), multiples):  # that of another metric, or without the decay
        wrong = np.sqrt(others)[:, None] * hessian("softmax", x, outputs) * np.sqrt(others)
        assert value != pytest.approx(np.linalg.eigvalsh(wrong)[-1], rel=0.1)


def test_parameters_that_are_not_trained_or_do_not_move():
    x, net, batches, estimator = make("squared", "float64", ONE)
    net.bias.grad_req = "null"

    def backward(batch):
        return estimator.batch_processor.fit_batch(estimator, batch, 0)[3]

    meter = CurvatureMeter(net, backward, {net.weight.name: StepScaling()})
    value, _ = meter.largest(batches, meter.weights(), 1e-3)
    exact = np.linalg.eigvalsh(x.T @ x / len(x))[-1] / 3  # the loss is a mean over outputs
    assert value == pytest.approx(exact, rel=0.02)
    still = CurvatureMeter(net, backward, {net.weight.name: StepScaling(0.0)})
    assert still.largest(batches, still.weights(), 1e-3) == (0.0, 1)
    assert still.gradient_evaluations == 0


def test_a_gradient_that_is_not_finite_gives_nan():
    _, net, batches, estimator = make("squared", "float64", ONE)
    batches[1][0][0, 0] = np.inf
    meter = CurvatureMeter(
        net,
        lambda batch: estimator.batch_processor.fit_batch(estimator, batch, 0)[3],
        {net.weight.name: StepScaling(), net.bias.name: StepScaling()},
    )
    assert np.isnan(meter.largest(batches, meter.weights(), 1e-3)[0])
