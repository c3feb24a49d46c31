"""Batches with several inputs, outputs and weights, and of all dtypes."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import oracle
import problems
import pytest
import runs
from gluon_svrg.batch.parts import BatchParts, call_network, compute_losses, unpack_batch
from gluon_svrg.data import ArrayLoader
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO

RNG = np.random.default_rng(0)
SAMPLES = 21
X1, X2 = RNG.normal(size=(SAMPLES, 4)), RNG.normal(size=(SAMPLES, 2))
Y1, Y2 = RNG.normal(size=(SAMPLES, 1)), RNG.integers(0, 3, SAMPLES)
W = RNG.uniform(size=SAMPLES)
ROWS = [slice(i, i + 8) for i in range(0, SAMPLES, 8)]  # 8, 8 and 5 samples


class TwoInputs(gluon.HybridBlock):
    """A linear model of two inputs, whose second layer has its own parameters by name."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(1, in_units=4)
            self.weight = self.params.get("weight", shape=(1, 2))

    def hybrid_forward(self, F, one, two, weight):
        return self.first(one) + F.FullyConnected(two, weight, num_hidden=1, no_bias=True)


class TwoOutputs(gluon.HybridBlock):
    """A shared layer, and two heads."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body = nn.Dense(5, activation="tanh", in_units=4)
            self.value, self.scores = nn.Dense(1, in_units=5), nn.Dense(3, in_units=5)

    def hybrid_forward(self, F, x):
        hidden = self.body(x)
        return self.value(hidden), self.scores(hidden)


class Both(gluon.loss.Loss):
    """The sum of two losses."""

    def __init__(self):
        super().__init__(None, 0)
        self.l2, self.ce = gluon.loss.L2Loss(), gluon.loss.SoftmaxCELoss()

    def hybrid_forward(self, F, outputs, labels):
        return self.l2(outputs[0], labels[0]) + 0.5 * self.ce(outputs[1], labels[1])


def gradient(params, x, y):
    """The gradient of the weighted half squared error, with targets and weights side by side."""
    (wide, narrow), error = (x[:, :4], x[:, 4:]), 0.0
    weight, bias, second = params
    error = (wide @ weight.T + bias + narrow @ second.T - y[:, :1]) * y[:, 1:]
    return [error.T @ wide, error.sum(axis=0), error.T @ narrow]


def initialized(net, contexts=ONE, dtype="float64", hybridize=False):
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.5), ctx=contexts)
    net.cast(dtype)
    if hybridize:
        net.hybridize()
    return net


def svrg_estimator(net, loss, **arguments):
    return runs.estimator_of(net, loss, params={"momentum": 0.5}, **arguments)


FORMS = {
    "tuple": lambda r: ((X1[r], X2[r]), Y1[r]),
    "list": lambda r: [[X1[r], X2[r]], Y1[r]],
    "names": lambda r: ({"two": X2[r], "one": X1[r]}, Y1[r]),
    "dict": lambda r: {"label": Y1[r], "data": {"one": X1[r], "two": X2[r]}},
    "weights": lambda r: ((X1[r], X2[r]), Y1[r], W[r]),
    "weights of elements": lambda r: ((X1[r], X2[r]), Y1[r], W[r, None]),
    "dict with weights": lambda r: {"data": (X1[r], X2[r]), "label": Y1[r], "sample_weight": W[r]},
}


@pytest.mark.parametrize(
    ("form", "contexts", "table"),
    [
        *((form, ONE, True) for form in FORMS),
        ("tuple", TWO, False),
        ("weights", TWO, True),
        ("weights of elements", TWO, False),
    ],
)
def test_svrg_on_several_inputs_and_weights_is_the_naive_one(form, contexts, table):
    net = initialized(TwoInputs(), contexts, hybridize=table)
    # As Gluon's: the loss times the weight, and the step divided by the number of samples.
    weights = W if "weights" in form else np.ones(SAMPLES)
    batches = [(np.hstack([X1[r], X2[r]]), np.hstack([Y1[r], weights[r, None]])) for r in ROWS]
    params = [net.first.weight, net.first.bias, net.weight]
    naive = oracle.svrg(
        gradient,
        [param.data(contexts[0]).asnumpy() for param in params],
        batches,
        oracle.SGD(0.1, 0.5),
        epochs=2,
        update_freq=1,
        coefficient=lambda _: 1.0,
    )
    recorder = problems.Recorder()
    data = [FORMS[form](r) for r in ROWS]
    svrg_estimator(net, gluon.loss.L2Loss(), context=contexts).fit(
        data, data, epochs=2, event_handlers=[recorder, gs.SVRGHandler(gradient_table=table)]
    )
    order = [list(net.collect_params().values()).index(param) for param in params]
    for ours, theirs in zip(recorder.weights, naive, strict=True):
        assert problems.relative_difference([ours[i] for i in order], theirs) < 1e-12


def test_several_outputs_train_as_by_a_batch_processor_of_ones_own():
    class Own(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            x, first, second = (mx.nd.array(part, dtype="float64") for part in batch)
            with mx.autograd.record():
                outputs = estimator.net(x)
                loss = estimator.loss(outputs, (first, second))
            loss.backward()
            return [x], [first], [outputs[0]], [loss]

    results = []
    for is_own in (False, True):
        net = initialized(TwoOutputs())
        metrics = mx.metric.Loss("loss")
        arguments = {"batch_processor": Own()} if is_own else {}
        data = [(X1[r], Y1[r], Y2[r]) if is_own else (X1[r], (Y1[r], Y2[r])) for r in ROWS]
        estimator = svrg_estimator(net, Both(), train_metrics=metrics, **arguments)
        estimator.fit(data, epochs=2, event_handlers=[gs.SVRGHandler()])
        results.append(problems.weights_of(net))
    assert problems.same(*results)


def test_devices_share_several_arrays_out_and_idle_ones_count_nothing():
    one = [((X1[:1], X2[:1]), Y1[:1], W[:1]), ((X1[1:6], X2[1:6]), Y1[1:6], W[1:6])]
    results = []
    for contexts in (ONE, TWO):
        net = initialized(TwoInputs(), contexts)
        svrg_estimator(net, gluon.loss.L2Loss(), context=contexts).fit(one, epochs=2)
        results.append(problems.weights_of(net))
    assert problems.relative_difference(*results) < 1e-14


def test_along_another_axis_than_the_first():
    """Weights and labels without that axis are the samples' all the same."""

    class Last(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(1, in_units=4)

        def hybrid_forward(self, F, x, more):
            return self.dense(F.concat(x[-1], more[-1], dim=1))

    x, more = RNG.normal(size=(3, 6, 3)), RNG.normal(size=(2, 6, 1))
    results = []
    for contexts in (ONE, TWO):
        net = initialized(Last(), contexts)
        estimator = svrg_estimator(net, gluon.loss.L2Loss(), context=contexts)
        estimator.fit([((x, more), Y1[:6, 0], W[:6])], epochs=3, batch_axis=1)
        assert estimator.history.column("samples") == [6, 6, 6]
        results.append(problems.weights_of(net))
    assert problems.relative_difference(*results) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5,), (4, 7)], ids=["no such axis", "another length"])
def test_labels_need_no_axis_of_samples_beside_another_than_the_first(shape):
    """Such as those of a sequence, of which each step is a row; on one device nothing is split."""
    batch = mx.nd.zeros((4, 5, 2)), mx.nd.zeros(shape)
    assert unpack_batch(batch, nn.Dense(1), batch_axis=1).label.shape == shape


def test_an_array_loader_of_several_arrays_is_as_a_list_and_continues(tmp_path):
    results = []
    for epochs, resume in ((3, None), (1, "auto"), (3, "auto")):
        net = initialized(TwoInputs())
        loader = ArrayLoader({"one": X1, "two": X2}, Y1, W, batch_size=8, shuffle=True, seed=3)
        handlers = [gs.SVRGHandler()]
        if resume:
            handlers.append(gs.CheckpointHandler(tmp_path / "checkpoints"))
        svrg_estimator(net, gluon.loss.L2Loss()).fit(
            loader, epochs=epochs, event_handlers=handlers, resume=resume
        )
        results.append(problems.weights_of(net))
    assert problems.same(results[0], results[2])


def test_an_array_loader_nests_as_its_arrays_are():
    loader = ArrayLoader((X1, {"a": X2}), Y2, batch_size=8)
    (first, named), label = loader[2]
    assert np.array_equal(first.asnumpy(), X1[16:])
    assert np.array_equal(named["a"].asnumpy(), X2[16:])
    assert np.array_equal(label.asnumpy(), Y2[16:])
    assert loader[2] is loader[2]
    doubled = ArrayLoader(
        (X1, {"a": X2}), Y2, batch_size=8, transform=lambda x, z, y: (x, 2 * z, y)
    )
    assert np.array_equal(doubled[0][0][1]["a"].asnumpy(), 2 * X2[:8])


def test_summary_of_several_inputs():
    net = initialized(TwoInputs(), dtype="float32")
    text = gs.summary(net, [({"two": X2[:3], "one": X1[:3]}, Y1[:3])])
    assert text == gs.summary(net, [((X1[:3], X2[:3]),)])
    assert "(3, 1)" in text


# --- dtypes ------------------------------------------------------------------------------------


KINDS = {
    "list": lambda x, y: [(x, y)],
    "arrays": lambda x, y: [(mx.nd.array(x, dtype=x.dtype), mx.nd.array(y, dtype=y.dtype))],
    "array loader": lambda x, y: ArrayLoader(x, y, batch_size=SAMPLES),
    "data loader": lambda x, y: gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), SAMPLES),
}


@pytest.mark.full
@pytest.mark.parametrize("own", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_data_and_labels_of_any_dtype_train_as_those_of_the_network(kind, own):
    """Fails on 0.1 for all but a list: NumPy's default dtype, float64, first of all."""
    trained = {}
    for dtype in ("float32", "float64", "uint8", "int32", "int64", "bool"):
        x = (3 * np.abs(X1)).astype(dtype)
        y = Y1.astype("float64")
        for key, data in ((dtype, KINDS[kind](x, y)), ("own", [(x.astype(own), y.astype(own))])):
            net = initialized(nn.Dense(1, in_units=4), dtype=own)
            estimator = gs.Estimator(net, gluon.loss.L2Loss(), trainer=sgd(net))
            estimator.fit(data, data, epochs=2)
            trained[key] = problems.weights_of(net)
        assert problems.same(trained[dtype], trained["own"]), dtype


def sgd(net):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})


def test_only_what_the_network_does_not_take_is_cast():
    seen = []

    class Own(gluon.Block):
        def __init__(self, *layers):
            super().__init__()
            self.layers = nn.Sequential()
            self.layers.add(*layers)

        def forward(self, x):
            seen.append(np.dtype(x.dtype).name)
            return self.layers(x)

    tokens = mx.nd.array([[1, 2], [3, 4]], dtype="int32")
    call_network(
        initialized(Own(nn.Embedding(5, 2), nn.Dense(1, in_units=4)), dtype="float32"), tokens
    )
    cast = nn.Lambda(lambda x: x.astype("float32"))
    call_network(initialized(Own(cast, nn.Dense(1, in_units=2)), dtype="float32"), tokens)
    assert seen == ["int32", "int32"]
    plain = initialized(Own(nn.Dense(1, in_units=2)), dtype="float32")
    for _ in range(2):
        call_network(plain, tokens)
    assert seen[2:] == ["int32", "float32", "float32"]  # the second time it is known
    plain.cast("float64")
    call_network(plain, tokens)
    assert seen[-1] == "float64"


def test_masks_do_not_depend_on_whether_it_is_known_what_is_cast():
    class Both(gluon.Block):
        def __init__(self):
            super().__init__()
            self.mask = nn.Dropout(0.5)
            self.one, self.two = nn.Dense(1, in_units=4), nn.Dense(1, in_units=2)

        def forward(self, one, two):
            return self.one(self.mask(one)) + self.two(two)

    one, two = mx.nd.ones((8, 4)), mx.nd.ones((8, 2), dtype="int32")
    net = initialized(Both(), dtype="float32")
    outputs = []
    for _ in range(2):  # as at the first batch of a run, and later
        mx.random.seed(1)
        with mx.autograd.record():
            outputs.append(call_network(net, (one, two)).asnumpy())
    mx.random.seed(1)
    with mx.autograd.record():
        outputs.append(net(one, two.astype("float32")).asnumpy())
    np.testing.assert_array_equal(outputs[1], outputs[2])
    np.testing.assert_array_equal(outputs[0], outputs[1])


def test_a_network_without_an_output_is_told():
    class Nothing(gluon.Block):
        def forward(self, x):
            x.sum()

    with pytest.raises(ValueError, match="the network returned a NoneType"):
        compute_losses(
            gluon.loss.L2Loss(), BatchParts(mx.nd.ones(2), mx.nd.ones(2)), Nothing()(mx.nd.ones(2))
        )


# --- metrics, samples --------------------------------------------------------------------------


def test_metrics_choose_outputs_and_labels_by_their_names():
    net = initialized(TwoOutputs(), TWO)
    metrics = [
        mx.metric.MAE("mae", output_names=["output0"], label_names=["label0"]),
        mx.metric.Accuracy(name="accuracy", output_names=["output1"], label_names=["label1"]),
        mx.metric.Loss("loss"),
    ]
    estimator = svrg_estimator(net, Both(), val_metrics=metrics, context=TWO)
    results = estimator.evaluate([(X1[r], (Y1[r], Y2[r])) for r in ROWS])
    value, scores = (output.asnumpy() for output in estimator.predict(X1))
    accuracy = np.mean(scores.argmax(axis=1) == Y2)
    assert results["validation accuracy"] == pytest.approx(accuracy, abs=1e-12)
    mean = np.abs(value - Y1).mean()
    assert results["validation mae"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (mx.metric.Accuracy(), r"metric 'accuracy' gets 1 labels \(label0\) and output0, output1,"),
        (
            mx.metric.MAE(output_names=["value"]),
            r"output_names=\['value'\], but the batch has the outputs \['output0', 'output1'\]",
        ),
    ],
)
def test_metrics_without_a_pair_are_an_error(metric, message):
    from gluon_svrg.metrics.outputs import Outputs, pairs

    label, pred = mx.nd.ones(3), (mx.nd.ones((3, 1)), mx.nd.ones((3, 3)))
    with pytest.raises(ValueError, match=message):
        list(pairs(metric, Outputs([label], [pred], [], [])))


def test_samples_are_counted_if_the_loss_is_one_number():
    """Fails on 0.1, which counts the batches."""

    class Mean(gluon.loss.L2Loss):
        def hybrid_forward(self, F, pred, label):
            return super().hybrid_forward(F, pred, label).mean()

    for contexts in (ONE, TWO):
        net = initialized(nn.Dense(1, in_units=4), contexts)
        estimator = svrg_estimator(net, Mean(), context=contexts)
        result = estimator.fit([(X1[r], Y1[r]) for r in ROWS], epochs=1)
        assert result.history.column("samples") == [SAMPLES]


# --- sentences ---------------------------------------------------------------------------------


BAD = {
    "four": ((X1, Y1, W, W), r"must be a \(data, label\) pair, got a tuple of 4"),
    "keys": (
        {"x": X1, "y": Y1},
        r"a batch that is a dict must have the keys 'data' and 'label', .* got \['x', 'y'\]",
    ),
    "names": (
        ({"one": X1, "zwei": X2}, Y1),
        r"have the names \['one', 'zwei'\] and TwoInputs takes \['one', 'two'\]: name them alike",
    ),
    "too few": ((X1, Y1), "the network cannot compute the first batch: data .21, 4. float64"),
    "too many": (((X1, X2, X2), Y1), "TwoInputs cannot be called with 3 arrays"),
    "text": ((("a", X2), Y1), "the data of a batch must be arrays .* got a str"),
    "texts": ((X1, Y1.astype(str)), r"the label of a batch must be arrays .* and dtype <U"),
    "numbers": (((X1, X2), [1, 2]), "the label of a batch must be arrays .* got an int"),
    "nothing": (((), Y1), r"the data of a batch has no array, got \(\)"),
    "lengths": (((X1, X2), (Y1, Y2[:3])), r"data and label of a batch must have the same length"),
    "weights": (((X1, X2), Y1, W[:3]), "data and sample_weight of a batch must have the same"),
    "two labels": (
        ((X1, X2), (Y1, Y2)),
        "L2Loss takes one output and one label, and the network returned an array of shape "
        r"\(21, 1\) for a tuple of 2 as label: give the Estimator a loss of your own",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_other_batches_are_an_error_in_one_sentence(case):
    batch, message = BAD[case]
    net = initialized(TwoInputs())
    with pytest.raises(ValueError, match=message):
        svrg_estimator(net, gluon.loss.L2Loss()).fit([batch], epochs=1)


def test_a_dict_as_output_needs_a_loss_that_takes_it():
    """0.1: AttributeError 'dict' object has no attribute 'shape', from inside MXNet's loss."""

    class Named(gluon.Block):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(1, in_units=4)

        def forward(self, x):
            return {"value": self.dense(x)}

    class Own(gluon.loss.Loss):
        def __init__(self):
            super().__init__(None, 0)
            self.l2 = gluon.loss.L2Loss()

        def forward(self, pred, label):
            return self.l2(pred["value"], label["value"])

    net = initialized(Named())
    message = r"the network returned a dict with the keys \['value'\] for an array"
    with pytest.raises(ValueError, match=message):
        svrg_estimator(net, gluon.loss.L2Loss()).fit([(X1, Y1)], epochs=1)
    metric = mx.metric.MAE(output_names=["value"])
    svrg_estimator(net, Own(), train_metrics=metric).fit([(X1, {"value": Y1})], epochs=1)
    plain = initialized(nn.Dense(1, in_units=4))
    svrg_estimator(plain, gluon.loss.L2Loss()).fit([(X1, Y1)], epochs=1)
    assert problems.same(problems.weights_of(net), problems.weights_of(plain))


def test_weights_need_one_loss_per_sample():
    class Mean(gluon.loss.L2Loss):
        def hybrid_forward(self, F, pred, label):
            return super().hybrid_forward(F, pred, label).mean()

    net = initialized(TwoInputs())
    with pytest.raises(ValueError, match=r"weights have shape \(21,\) and the losses \(1,\): the"):
        svrg_estimator(net, Mean()).fit([((X1, X2), Y1, W)], epochs=1)


def test_a_known_cast_asks_the_network_for_all_its_parameters_no_more(monkeypatch):
    """Each batch of a large network would wait for that; a cast of the network is still seen."""
    net = nn.Dense(2, in_units=3)
    net.initialize()
    asked = []
    whole = net.collect_params
    monkeypatch.setitem(vars(net), "collect_params", lambda: asked.append(1) or whole())
    data = mx.nd.ones((4, 3), dtype="float64")
    assert call_network(net, data).dtype == np.float32
    number = len(asked)
    assert call_network(net, data).dtype == np.float32
    assert len(asked) == number
    net.cast("float64")
    assert call_network(net, data).dtype == np.float64


@pytest.mark.parametrize(
    ("inputs", "data", "message"),
    [
        (
            ["data", "softmax_label"],
            X1,
            r"has 2 inputs \(data, softmax_label\), and .* batch are 1:",
        ),
        (["data"], (X1, X1), r"has 1 inputs \(data\), and the data of a batch are 2:"),
    ],
)
def test_a_symbol_block_with_another_number_of_inputs_names_them(inputs, data, message):
    """As a Module saves its symbol: with an output layer, and its label as input."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc1")
    if len(inputs) == 2:
        symbol = mx.sym.SoftmaxOutput(symbol, mx.sym.var("softmax_label"), name="softmax")
    net = initialized(gluon.SymbolBlock(symbol, [mx.sym.var(name) for name in inputs]))
    estimator = svrg_estimator(net, gluon.loss.SoftmaxCELoss())
    batch = (data, np.arange(SAMPLES) % 3)
    way_out = r".*symbol before that layer, for example gluon.SymbolBlock\(symbol.get_internals"
    with pytest.raises(ValueError, match="^the network cannot compute .*" + message + way_out):
        estimator.fit([batch], epochs=1)
    inner = symbol.get_internals()["fc1_output"]  # the way out
    net = initialized(gluon.SymbolBlock(inner, mx.sym.var("data")))
    svrg_estimator(net, gluon.loss.SoftmaxCELoss()).fit([(X1, batch[1])], epochs=1)
