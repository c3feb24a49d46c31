"""MXNet's NumPy mode: the same numbers as with NDArrays, and one sentence where modes are mixed."""

import shutil

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from mxnet import gluon, npx
from mxnet.gluon import nn
from problems import ONE, TWO

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(37, 1, 6, 6)).astype("float32"), RNG.integers(0, 3, 37)


@pytest.fixture(autouse=True)
def _legacy_afterwards():
    yield
    npx.reset_np()


def network(contexts=ONE, dropout=0.3):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, in_channels=1),
        nn.BatchNorm(in_channels=4),
        nn.Dropout(dropout),
        nn.GlobalAvgPool2D(),
        nn.Dense(3, in_units=4),
    )
    net.initialize(mx.init.Xavier(), ctx=contexts)
    rng = np.random.default_rng(1)
    for param in net.collect_params().values():
        if param.name.endswith("weight"):
            param.set_data(problems.array(rng.normal(size=param.shape)))
    return net


def estimator_of(net, optimizer="sgd", **optimizer_params):
    return runs.estimator_of(
        net, optimizer=optimizer, params={"learning_rate": 0.05, **optimizer_params}
    )


@pytest.mark.slow
@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("table", [False, True], ids=["recomputed", "table"])
def test_with_the_same_seed_and_weights_the_modes_agree(table, contexts, hybridize):
    """With dropout, too: both modes draw the same masks."""

    def train(numpy):
        if numpy:
            npx.set_np()
        net = network(contexts)
        if hybridize:
            net.hybridize()
        gs.seed_everything(4)
        estimator, recorder = estimator_of(net, momentum=0.9), problems.Recorder()
        loader = ArrayLoader(X, Y, batch_size=8, shuffle=True, seed=1)
        result = estimator.fit(
            loader,
            loader,
            epochs=2,
            event_handlers=[gs.SVRGHandler(gradient_table=table), recorder],
        )
        outputs = estimator.predict(X)
        assert type(outputs) is (mx.np.ndarray if numpy else mx.nd.NDArray)
        npx.reset_np()
        losses = [row["validation loss"] for row in result.history]
        return recorder.weights, [outputs.asnumpy()], losses

    legacy, numpy = train(False), train(True)
    assert len(legacy[0]) == 10
    for ours, theirs in zip(numpy[0], legacy[0], strict=True):
        assert problems.relative_difference(ours, theirs) < 1e-6  # float32
    assert problems.relative_difference(numpy[1], legacy[1]) < 1e-6
    np.testing.assert_allclose(numpy[2], legacy[2], rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "lars", "signum", "adamw", "mars"])
def test_with_each_optimizer_the_modes_agree(optimizer):
    def train(numpy):
        if numpy:
            npx.set_np()
        net = network()
        gs.seed_everything(4)
        estimator = estimator_of(net, optimizer)
        estimator.fit([(X, Y), (X[:9], Y[:9])], epochs=2, event_handlers=gs.SVRGHandler())
        npx.reset_np()
        return problems.weights_of(net)

    assert problems.relative_difference(train(True), train(False)) < 1e-6


def test_only_the_shapes_of_numpy():
    """`npx.set_np(array=False)`: NDArrays, and 0 is a length."""
    npx.set_np(shape=True, array=False)
    net = nn.Dense(3)  # whose unknown length is -1 there
    net.initialize()
    estimator = estimator_of(net)
    estimator.fit([(X, Y)], epochs=2, event_handlers=gs.SVRGHandler())
    assert type(estimator.predict(X)) is mx.nd.NDArray
    assert type(net.weight.data()) is mx.nd.NDArray


def test_a_network_of_before_set_np():
    net = network()
    estimator = estimator_of(net)
    npx.set_np()
    message = (
        r"layer '.*conv\d+' was made outside of MXNet's NumPy mode, which is on now: call "
        r"mxnet.npx.reset_np\(\), or make and initialise the network again in this mode"
    )
    batches = [(X, Y)]
    calls = [
        lambda: estimator.fit(batches, epochs=1),
        lambda: estimator.evaluate(batches),
        lambda: estimator.predict(X),
        lambda: gs.Snapshot(net).take(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_network_of_before_reset_np():
    npx.set_np()
    net = nn.Dense(3, in_units=36)
    net.initialize()
    npx.reset_np()
    message = (
        r"parameter '.*weight' was initialised in MXNet's NumPy mode, which is off now: call "
        r"mxnet.npx.set_np\(\)"
    )
    with pytest.raises(ValueError, match=message):
        estimator_of(net).fit([(X, Y)], epochs=1)


def test_a_network_that_was_not_initialised_before_set_np():
    net = nn.Dense(3)
    npx.set_np()
    net.initialize()
    estimator_of(net).fit([(X, Y)], epochs=1, event_handlers=gs.SVRGHandler())


@pytest.mark.parametrize("numpy", [False, True])
def test_two_kinds_of_arrays_in_a_batch(numpy):
    if numpy:
        npx.set_np()
    estimator = estimator_of(network())
    batch = mx.nd.array(X), mx.nd.array(Y).as_np_ndarray()
    message = (
        r"the arrays of a batch are of two kinds \(data NDArray, label mx.np.ndarray\): make all "
        r"of them with mx.np or all of them with mx.nd"
    )
    with pytest.raises(ValueError, match=message):
        estimator.fit([batch], epochs=1)
    batch = (mx.nd.array(X), mx.nd.array(X).as_np_ndarray()), mx.nd.array(Y)
    with pytest.raises(ValueError, match=r"data NDArray and mx.np.ndarray, label NDArray"):
        estimator.fit([batch], epochs=1)


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("kind", ["as_np_ndarray", "as_nd_ndarray"])
def test_batches_of_the_other_kind_are_taken(kind, numpy):
    if numpy:
        npx.set_np()
    batches = [tuple(getattr(mx.nd.array(part), kind)() for part in (X, Y))]
    estimator = estimator_of(network(dropout=0.0))
    estimator.fit(batches, batches, epochs=1, event_handlers=gs.SVRGHandler())


@pytest.mark.slow
@pytest.mark.parametrize("numpy", [False, True])
def test_a_checkpoint_of_one_mode_is_continued_in_the_other(numpy, tmp_path):
    """As it would be in its own: optimizer, snapshot, averages, and a step that waits."""

    def train(folder, mode, epochs, batches=None):
        if mode:
            npx.set_np()
        net = network(dropout=0.3)
        gs.seed_everything(4)
        handlers = [
            gs.SVRGHandler(update_freq=2, coefficient="auto"),
            gs.GradientUpdateHandler(accumulate=2, clip_norm=1.0),
            gs.EMAHandler(0.9),
            gs.CheckpointHandler(folder, every_n_batches=3),
        ]
        estimator = estimator_of(net, "adam")
        loader = ArrayLoader(X, Y, batch_size=8, shuffle=True, seed=1)
        duration = {"epochs": epochs} if batches is None else {"batches": batches}
        estimator.fit(loader, event_handlers=handlers, resume="auto", **duration)
        npx.reset_np()
        return problems.weights_of(net)

    expected = train(tmp_path / "whole", not numpy, 4)
    train(tmp_path / "parts", numpy, None, batches=8)
    ours = train(tmp_path / "parts", not numpy, 4)
    assert problems.relative_difference(ours, expected) < 1e-6  # float32


def test_a_checkpoint_into_a_network_that_has_not_inferred_its_shapes(mode, tmp_path):
    def net_of():
        net = nn.HybridSequential()
        net.add(nn.Dense(4), nn.Dense(3))
        net.initialize()
        return net

    first, second = net_of(), net_of()
    checkpoints = gs.CheckpointHandler(tmp_path)
    estimator_of(first).fit([(X, Y)], epochs=1, event_handlers=checkpoints)
    checkpoints = gs.CheckpointHandler(tmp_path)
    estimator_of(second).fit([(X, Y)], epochs=1, event_handlers=checkpoints, resume="auto")
    assert problems.same(problems.weights_of(first), problems.weights_of(second))


class MeanLoss(gluon.loss.Loss):
    """One number for the whole batch: in NumPy mode an array without axes."""

    def __init__(self):
        super().__init__(None, 0)

    def hybrid_forward(self, F, pred, label):
        return ((pred - label) ** 2).mean()


class Half(mx.init.Initializer):
    """MXNet's own initializers fail on an array without axes."""

    def _init_weight(self, _, arr):
        arr[()] = 0.5


class Scaled(nn.HybridBlock):
    """A network with a parameter without axes."""

    def __init__(self):
        super().__init__()
        self.scale = self.params.get("scale", shape=(), init=Half())
        self.shift = self.params.get("shift", shape=(1,), init="zeros")

    def hybrid_forward(self, F, x, scale, shift):
        return x * scale + shift


@pytest.mark.full
@pytest.mark.parametrize("coefficient", [None, 1.0, "auto"])
@pytest.mark.parametrize("contexts", [ONE, TWO], ids=["one", "two"])
def test_losses_and_parameters_without_axes(contexts, coefficient, tmp_path):
    npx.set_np()
    x = RNG.normal(size=(6, 1)).astype("float32")

    def train(epochs):
        net = Scaled()
        net.initialize(ctx=contexts)
        estimator = runs.estimator_of(net, MeanLoss(), [mx.metric.Loss("loss")])
        handlers = [
            gs.GradientUpdateHandler(accumulate=2, clip_norm=10.0),
            gs.NaNGuardHandler(),
            gs.EMAHandler(),
            gs.CheckpointHandler(tmp_path),
        ]
        if coefficient is not None:
            handlers.append(gs.SVRGHandler(coefficient=coefficient))
        batches = [(x, 3 * x)] * 2
        result = estimator.fit(batches, epochs=epochs, event_handlers=handlers, resume="auto")
        return result.history, problems.weights_of(net)

    train(10)
    history, resumed = train(20)
    assert history[-1]["training loss"] < 0.1 * history[0]["training loss"]
    assert resumed[0].shape == ()
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    assert problems.same(resumed, train(20)[1])


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam", "lars", "signum", "adamw", "mars"])
def test_each_optimizer_takes_a_parameter_without_axes(optimizer):
    npx.set_np()
    net = Scaled()
    net.initialize()
    estimator = gs.Estimator(
        net,
        gluon.loss.L2Loss(),
        trainer=gs.SVRGTrainer(net.collect_params(), optimizer, {"learning_rate": 0.01}),
    )
    x = RNG.normal(size=(6, 1)).astype("float32")
    estimator.fit([(x, 3 * x)] * 2, epochs=2, event_handlers=gs.SVRGHandler())
    assert net.scale.shape == ()
    assert 0.5 < net.scale.data().item() < 1.5


def test_arrays_without_an_element():
    """A second input of no columns, as a set of features that is switched off."""
    npx.set_np()

    class Two(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(3, in_units=36)

        def hybrid_forward(self, F, x, more):
            return self.dense(F.np.concatenate([x, more], axis=1))

    net = Two()
    net.initialize()
    rows, nothing = X.reshape(37, -1), np.zeros((37, 0), "float32")
    estimator = estimator_of(net)
    batches = [((mx.np.array(rows), mx.np.array(nothing)), mx.np.array(Y))]
    estimator.fit(batches, epochs=2, event_handlers=gs.SVRGHandler())
    loader = ArrayLoader((rows, nothing), Y, batch_size=8, shuffle=True, seed=0)
    estimator.fit(loader, batches, epochs=2, event_handlers=gs.SVRGHandler(gradient_table=True))


def test_a_sparse_array_is_refused():
    npx.set_np()
    net = nn.Dense(3, in_units=4)
    net.initialize()
    data = mx.nd.array(np.eye(4)).tostype("csr")
    message = "an array of storage type 'csr' cannot be used in MXNet's NumPy mode"
    with pytest.raises(ValueError, match=message):
        estimator_of(net).fit([(data, np.zeros(4))], epochs=1)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("transform", [None, "callable", "own"])
def test_an_array_loader_has_arrays_of_the_mode(transform, prefetch, mode):
    kind = mx.np.ndarray if mode == "numpy" else mx.nd.NDArray
    seen = []

    def doubled(x, y):
        seen.append((type(x), mx.util.is_np_array(), mx.util.is_np_shape()))
        return x * 2, y

    given = {"callable": doubled, "own": gs.data.transforms.Normalize(0.5, 2.0)}.get(transform)
    loader = ArrayLoader(X, Y, batch_size=8, transform=given, prefetch=prefetch)
    batches = [*loader, *loader.in_order(), loader[0]]
    assert {type(array) for batch in batches for array in batch} == {kind}
    assert set(seen) <= {(kind, mode == "numpy", mode == "numpy")}
    assert bool(seen) == (transform == "callable")


class InTheMiddle(nn.HybridBlock):
    """Functions of F.np, and an array without axes in the middle of the graph."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        scale = F.np.mean(F.np.ones((3,))) * 0.5
        h = F.np.concatenate([F.np.tanh(x[:, :2]) * scale, x[:, 2:]], axis=1)
        return self.dense(h) - F.np.max(x, axis=1, keepdims=True)


def test_a_model_of_numpy_mode_is_served_in_either(tmp_path):
    npx.set_np()
    net = InTheMiddle()
    net.initialize()
    x = RNG.normal(size=(5, 4)).astype("float32")
    expected = net(mx.np.array(x)).asnumpy()
    model = gs.deploy.export(net, tmp_path / "model", x)
    for numpy in (True, False):
        if not numpy:
            npx.reset_np()
        for backend in ("auto", None):
            predictor = gs.deploy.Predictor.load(model, backend=backend)
            np.testing.assert_allclose(predictor(x), expected, atol=1e-6)
        assert mx.util.is_np_array() == mx.util.is_np_shape() == numpy


def test_what_onnx_has_no_word_for_is_told(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    npx.set_np()
    net = InTheMiddle()
    net.initialize()
    model = gs.deploy.export(net, tmp_path / "model", np.ones((2, 4), "float32"))
    message = r"cannot translate the model into ONNX \(.*_np.*\): use the model directory instead"
    with pytest.raises(ValueError, match=message):
        gs.deploy.export_onnx(model, tmp_path / "model.onnx")


METRICS = {
    "acc": {},
    "top_k_acc": {"top_k": 2},
    "f1": {},
    "mcc": {},
    "mae": {},
    "mse": {},
    "rmse": {},
    "ce": {},
    "nll_loss": {},
    "pearsonr": {},
    "pcc": {},
    "perplexity": {"ignore_label": None},
    "loss": {},
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_mxnet_has_the_value_that_it_has_without_numpy_mode(name):
    rng = np.random.default_rng(2)
    binary = name in ("f1", "mcc", "pcc")
    regression = name in ("mae", "mse", "rmse", "pearsonr")
    classes = 1 if regression else 2 if binary else 3
    y = rng.normal(size=(24, 1)) if regression else rng.integers(0, classes, 24)
    x = rng.normal(size=(24, 5))

    def evaluate(numpy):
        if numpy:
            npx.set_np()
        net = nn.HybridSequential()
        net.add(nn.Dense(classes, in_units=5))
        if not regression:
            net.add(nn.HybridLambda(lambda F, scores: (F.npx if numpy else F).softmax(scores)))
        net.initialize()
        weight = np.random.default_rng(3).normal(size=(classes, 5))
        net[0].weight.set_data(problems.array(weight))
        loss = gluon.loss.L2Loss() if regression else gluon.loss.SoftmaxCELoss(from_logits=True)
        metric = mx.metric.create(name, **METRICS[name])
        estimator = runs.estimator_of(net, loss, [metric], lr=0.05)
        values = estimator.evaluate([(x[:16], y[:16]), (x[16:], y[16:])])
        # Metrics want probabilities, and this loss logarithms of them.
        trained = estimator.fit([(x, y)], epochs=1, sanity_check=False).history[0]
        npx.reset_np()
        return [*values.values(), *(trained[k] for k in trained if k.startswith("training"))]

    legacy = evaluate(False)
    assert np.isfinite(legacy).all()
    np.testing.assert_allclose(evaluate(True), legacy, rtol=1e-6)


def test_a_metric_of_the_users_gets_arrays_of_the_mode(mode):
    kinds = set()

    class Mine(mx.metric.EvalMetric):
        def update(self, labels, preds):
            kinds.update(type(array) for array in (*labels, *preds))
            self.num_inst, self.sum_metric = 1, 0.0

    net = network()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd")
    loss = gluon.loss.SoftmaxCELoss()
    estimator = gs.Estimator(net, loss, [Mine("mine"), "acc"], trainer=trainer)
    estimator.fit([(X, Y)], [(X, Y)], epochs=1)
    assert kinds == {mx.np.ndarray if mode == "numpy" else mx.nd.NDArray}


def test_the_handlers_of_users_get_arrays_of_the_mode(mode):
    kinds = set()

    class Mine(gs.events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            for name in ("pred", "label", "loss"):
                kinds.update(type(array) for array in kwargs[name])

    estimator = estimator_of(network())
    estimator.fit(ArrayLoader(X, Y, batch_size=8), epochs=1, event_handlers=[Mine()])
    assert kinds == {mx.np.ndarray if mode == "numpy" else mx.nd.NDArray}
