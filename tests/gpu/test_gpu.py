"""What may differ on a GPU, by the oracles of the other tests: ``make gpu-test``.

They run on the first GPU (and the second, if there is one). ``GLUON_SVRG_TEST_CONTEXT=cpu`` runs
them on CPU contexts: that proves the tests, not the GPU.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import optimizer_oracle
import oracle
import problems
import pytest
from gluon_svrg import deploy
from gluon_svrg.data import ArrayLoader
from mxnet import autograd, gluon
from mxnet.gluon import nn

pytestmark = pytest.mark.gpu

NO_GPU = "MXNet sees no GPU: make gpu-test, or GLUON_SVRG_TEST_CONTEXT=cpu to try the tests"


def devices(number):
    """Return that many contexts to test on."""
    if os.environ.get("GLUON_SVRG_TEST_CONTEXT") == "cpu":
        return [mx.cpu(i) for i in range(number)]
    there = mx.context.num_gpus()
    if not there:
        pytest.skip(NO_GPU)
    if there < number:
        pytest.skip(f"MXNet sees {there} GPU, this needs {number}")
    return [mx.gpu(i) for i in range(number)]


@pytest.fixture(params=[1, 2], ids=["one", "two"])
def contexts(request):
    """One context or two."""
    return devices(request.param)


@pytest.fixture
def context():
    """One context."""
    return devices(1)[0]


def estimator_of(problem, contexts, **optimizer):
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", optimizer)
    return gs.Estimator(problem.net, problem.loss, trainer=trainer, context=contexts)


@pytest.mark.parametrize("table", [False, True], ids=["recomputed", "table"])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_every_step_agrees_with_numpy(contexts, kind, table):
    problem = problems.make(kind, contexts)
    expected = oracle.svrg(
        problem.gradient,
        problem.params,
        problem.batches,
        oracle.SGD(0.1, 0.9, 1e-2),
        epochs=3,
        update_freq=2,
        coefficient=lambda progress: 0.5,
    )
    recorder = problems.Recorder()
    handler = gs.SVRGHandler(update_freq=2, coefficient=0.5, gradient_table=table)
    estimator = estimator_of(problem, contexts, learning_rate=0.1, momentum=0.9, wd=1e-2)
    estimator.fit(problem.ndarrays(), epochs=3, event_handlers=[handler, recorder])
    assert len(recorder.weights) == len(expected) == 3 * 5
    for step, (weights, reference) in enumerate(zip(recorder.weights, expected, strict=True)):
        assert problems.relative_difference(weights, reference) < 1e-10, step


def image_data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(24, 1, 8, 8)).astype("float32")
    return ArrayLoader(x, rng.integers(0, 3, 24).astype("float32"), batch_size=6)


def image_net(contexts, dropout=0.0):
    net = nn.HybridSequential(prefix="gpu_test_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=1), nn.BatchNorm(in_channels=4))
        net.add(nn.Activation("relu"), nn.Dropout(dropout), nn.GlobalAvgPool2D())
        net.add(nn.Dense(3, in_units=4))
    gs.seed_everything(2)
    net.initialize(mx.init.Normal(0.2), ctx=contexts)
    # MXNet's generators differ between devices: the same weights everywhere, by NumPy's.
    rng = np.random.default_rng(4)
    for param in net.collect_params().values():
        if param.name.endswith("weight"):
            param.set_data(mx.nd.array(rng.normal(0, 0.2, param.shape)))
    net.hybridize()
    return net


def test_a_network_trains_as_it_does_on_cpu(contexts):
    """Convolution, BatchNorm, a pooling layer that is tuned on CPU; evaluation and history."""
    histories, weights = [], []
    for ctx in (contexts, [mx.cpu(i) for i in range(len(contexts))]):
        net = image_net(ctx)
        trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
        metrics = [mx.metric.Accuracy(), mx.metric.Loss("loss")]
        estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), metrics, trainer=trainer)
        assert estimator.context == ctx  # that of the network
        handlers = [gs.SVRGHandler(), gs.VarianceHandler(batches=2)]
        result = estimator.fit(image_data(), image_data(), epochs=2, event_handlers=handlers)
        histories.append(result.history)
        weights.append(problems.weights_of(net))
    # cuDNN's convolutions may compute in TF32, with 10 bits: 1e-3; on one kind of device float32.
    bound = 2e-3 if contexts[0].device_type == "gpu" else 1e-5
    assert problems.relative_difference(*weights) < bound
    for name in ("training loss", "validation loss", "variance_ratio"):
        ours, theirs = (history.column(name) for history in histories)
        assert ours == pytest.approx(theirs, rel=20 * bound), name


def test_the_default_context():
    """A network that is not initialised goes to the first GPU, if there is one."""
    devices(1)
    net = nn.Dense(2, in_units=3)
    with pytest.warns(UserWarning, match="No trainer specified"):
        estimator = gs.Estimator(net, gluon.loss.L2Loss())
    expected = [mx.gpu(0)] if mx.context.num_gpus() else [mx.cpu(0)]
    assert estimator.context == net.weight.list_ctx() == expected


@pytest.mark.parametrize("way", ["onto the CPU", "from the CPU"])
def test_a_checkpoint_goes_from_one_kind_of_device_to_the_other(contexts, way, tmp_path):
    cpus = [mx.cpu(i) for i in range(len(contexts))]
    first, second = (contexts, cpus) if way == "onto the CPU" else (cpus, contexts)

    def train(contexts, epochs, folder, resume=None):
        problem = problems.make("mlp", contexts)
        for param, value in zip(problem.net.collect_params().values(), START, strict=True):
            param.set_data(mx.nd.array(value, dtype="float64"))
        estimator = estimator_of(problem, contexts, learning_rate=0.1, momentum=0.9)
        handlers = [gs.SVRGHandler(update_freq=2), gs.CheckpointHandler(tmp_path / folder)]
        estimator.fit(problem.ndarrays(), epochs=epochs, event_handlers=handlers, resume=resume)
        assert problem.net[0].weight.list_ctx() == contexts
        return problems.weights_of(problem.net)

    START = problems.make("mlp").params
    whole = train(cpus, 3, "whole")
    train(first, 1, "moved")
    moved = train(second, 3, "moved", resume="auto")  # in the middle of an interval
    assert problems.relative_difference(moved, whole) < 1e-10


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("kind", ["LARS", "Signum"])
def test_optimizers_agree_with_numpy(context, kind, fused, momentum):
    rng = np.random.default_rng(5)
    shapes = {"a_weight": (4, 3, 2), "b_weight": (5, 4), "norm_gamma": (5,), "c_bias": (3,)}
    params = []
    for name, shape in shapes.items():
        params.append(gluon.Parameter(name, shape=shape, dtype="float32"))
        params[-1].initialize(ctx=[context])
        params[-1].set_data(mx.nd.array(rng.normal(size=shape)))
    optimizer = getattr(gs, kind)(
        learning_rate=0.1, momentum=momentum, wd=0.01, use_fused_step=fused
    )
    trainer = gluon.Trainer(params, optimizer)
    reference = getattr(optimizer_oracle, kind)(lr=0.1, momentum=momentum, wd=0.01, rescale=0.5)
    weights = [param.data().asnumpy().astype("float64") for param in params]
    momenta = [np.zeros(shape) for shape in shapes.values()]
    for _ in range(3):
        grads = [rng.normal(size=shape) for shape in shapes.values()]
        with autograd.record():
            losses = [
                (param.data() * mx.nd.array(grad, ctx=context)).sum()
                for param, grad in zip(params, grads, strict=True)
            ]
        autograd.backward(losses)
        trainer.step(2)
        for i, (name, grad) in enumerate(zip(shapes, grads, strict=True)):
            is_exempt = not name.endswith("weight")
            weights[i], momenta[i] = reference.step(weights[i], grad, momenta[i], exempt=is_exempt)
    # As on CPU: float32 rounds the rates, too.
    found = [param.data().asnumpy() for param in params]
    assert problems.relative_difference(found, weights) < 1e-6


class FullGradient(gs.events.GradientReady):
    """Keeps the full gradient of the snapshot that is in use."""

    def gradient_ready(self, estimator, *args, **kwargs):
        means = estimator.trainer.full_gradient
        self.means = [means[name][0].asnumpy() for name in estimator.net.collect_params()]


@pytest.mark.parametrize("table", [False, True], ids=["recomputed", "table"])
@pytest.mark.parametrize("hybridize", [False, True])
def test_dropout_masks_are_the_same_at_the_snapshot(context, hybridize, table):
    """At the first batch the weights are the snapshot's: the correction leaves the full gradient.

    That holds only if both gradients of the batch had the same masks.
    """
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(16, 6)).astype("float32"), rng.integers(0, 3, 16).astype("float32")
    net = nn.HybridSequential()
    net.add(nn.Dense(32, in_units=6), nn.Dropout(0.5), nn.Dense(3, in_units=32))
    net.initialize(mx.init.Normal(0.5), ctx=[context])
    if hybridize:
        net.hybridize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    recorder, handler = problems.Recorder(), gs.SVRGHandler(gradient_table=table)
    full = FullGradient()
    data = ArrayLoader(x, y, batch_size=4)
    estimator.fit(data, batches=2, event_handlers=[handler, full, recorder])
    expected = [4 * mean for mean in full.means]
    # Sums of 4 gradients in float32; other masks make a difference of the order of 1.
    assert problems.relative_difference(recorder.gradients[0], expected) < 1e-4
    assert problems.relative_difference(recorder.gradients[1], expected) > 1e-3


def test_an_exported_model_runs_on_either_kind_of_device(context, tmp_path):
    net = image_net([context])
    x = np.random.default_rng(7).normal(size=(5, 1, 8, 8)).astype("float32")
    for _ in range(2):  # running statistics that are not those of the beginning
        with autograd.record():
            net(mx.nd.array(x, ctx=context))
    expected = net(mx.nd.array(x, ctx=context)).asnumpy()
    deploy.export(net, tmp_path / "model", x[:1])
    for ctx in (context, mx.cpu()):
        outputs = deploy.Predictor.load(tmp_path / "model", ctx=ctx).predict(x)
        np.testing.assert_allclose(outputs, expected, rtol=2e-3, atol=2e-3)


def test_mixed_precision(context):
    """In a process of its own, because MXNet's AMP cannot be switched off again."""
    worker = Path(__file__).parent / "amp_worker.py"
    done = subprocess.run(
        [sys.executable, str(worker), context.device_type],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"^([a-z0-9 ]+): (True|False)$", done.stdout, re.MULTILINE)
    assert len(found) == 4
    assert [name for name, value in found if value == "False"] == []
