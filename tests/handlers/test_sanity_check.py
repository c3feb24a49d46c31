"""SanityCheckHandler: what is wrong with the first batch is told before anything is trained."""

import logging
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
import runs
from gluon_svrg.data import ArrayLoader
from mxnet import gluon
from mxnet.gluon import nn
from problems import ONE, TWO

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 4)), RNG.integers(0, 3, 20)
CE = gluon.loss.SoftmaxCELoss


def network(outputs=3, contexts=ONE, is_known=True, hybridize=False, dropout=0.5):
    net = nn.HybridSequential()
    net.add(
        nn.Dense(5, activation="relu", in_units=4 if is_known else 0),
        nn.BatchNorm(in_channels=5 if is_known else 0),
        nn.Dropout(dropout),
        nn.Dense(outputs, in_units=5 if is_known else 0),
    )
    mx.random.seed(1)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if hybridize:
        net.hybridize(static_alloc=hybridize == "static")
    return net


def estimator_of(net, loss=None, contexts=ONE, **arguments):
    return runs.estimator_of(net, loss or CE(), context=contexts, **arguments)


def with_a(value, array):
    array = array.astype("float64")
    array.flat[3] = value
    return array


SIX_D = RNG.normal(size=(20, 6))
BAD = {
    "classes": (3, CE(), (X, Y + 1), "must be integers from 0 to 2, .* got 3 .they are from 1 to"),
    "negative": (3, CE(), (X, with_a(-1, Y)), "must be integers from 0 to 2, .* got -1 "),
    "no integers": (3, CE(), (X, with_a(0.5, Y)), "must be integers from 0 to 2, .* got 0.5 "),
    "weights": (3, CE(), (X, Y + 1, np.ones(20)), "must be integers from 0 to 2"),
    "data": (
        3,
        CE(),
        (SIX_D, Y),
        r"the network cannot compute the first batch: data \(20, 6\) float\d\d \(.*Shape incons",
    ),
    "output": (
        3,
        gluon.loss.L2Loss(),
        (X, Y),
        r"L2Loss cannot compute the first batch: output \(20, 3\) float32, label \(20,\) \w+ ",
    ),
    "one-hot": (
        3,
        CE(),
        (X, np.eye(3)[Y.astype(int)]),
        r"label \(20, 3\) .*: give labels that are one-hot, .* to SoftmaxCELoss.sparse_label=False",
    ),
    "nan": (
        3,
        CE(),
        (with_a(np.nan, X), Y),
        r"the data of the first batch, \(20, 4\) float\d\d, ha",
    ),
    "inf": (3, CE(), (with_a(np.inf, X), Y), "has NaN or infinity: clean the data, or give a NaN"),
    "nan label": (1, gluon.loss.L2Loss(), (X, with_a(np.nan, Y)), "the label of the first batch"),
}
KINDS = {
    "list": lambda batch: [batch],
    "array loader": lambda batch: ArrayLoader(*batch, batch_size=20),
    "iterable": lambda batch: Again(batch),
}


class Again:
    def __init__(self, batch):
        self.batch, self.passes = batch, 0

    def __iter__(self):
        self.passes += 1
        yield self.batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", BAD)
def test_it_is_told_before_anything_is_trained(case, kind):
    """Fails on 0.1: most of them train on; the others are MXNet's errors, without the shapes."""
    outputs, loss, batch, message = BAD[case]
    net = network(outputs)
    before = problems.weights_of(net)
    with pytest.raises(ValueError, match=message):
        estimator_of(net, loss).fit(KINDS[kind](batch), epochs=1)
    assert problems.same(problems.weights_of(net), before)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_metric_is_named_before_the_epoch(is_known):
    net = network(is_known=is_known)
    estimator = estimator_of(net, val_metrics=[mx.metric.Accuracy(), mx.metric.F1()])
    losses = problems.Recorder()
    message = r"metric 'validation f1' cannot take the first batch of the validation: label \(20,\)"
    with pytest.raises(ValueError, match=message):
        estimator.fit([(X, Y)], [(X, Y)], epochs=1, event_handlers=[losses])
    assert not losses.weights


GOOD = {
    "soft labels": (3, CE(sparse_label=False), (X, np.eye(3)[Y])),
    "left out": (3, CE(), (X, with_a(-1, Y), np.arange(20) != 3)),
    "left out, of elements": (3, CE(), (X, with_a(-1, Y), (np.arange(20) != 3)[:, None])),
    "other losses": (3, gluon.loss.HingeLoss(), (X, np.eye(3)[Y] * 2 - 1)),
    "a column": (3, CE(), (X, Y[:, None])),
}


@pytest.mark.parametrize("case", GOOD)
def test_it_says_nothing(case):
    outputs, loss, batch = GOOD[case]
    metrics = [mx.metric.Loss("loss")]
    estimator_of(network(outputs), loss, train_metrics=metrics).fit([batch], epochs=1)


@pytest.mark.parametrize("data", ["list", "data loader"])
def test_a_mistake_in_both_kinds_of_data_is_told_of_the_training(data):
    """Of a DataLoader, the first training batch comes later than the look before the run."""
    samples = gluon.data.ArrayDataset(X.astype("float32"), X.astype("float32"), Y)
    make = {"list": lambda: [(X, X, Y)], "data loader": lambda: gluon.data.DataLoader(samples, 10)}
    message = "cannot compute the first batch: .*several inputs are"
    with pytest.raises(ValueError, match=message):
        estimator_of(network()).fit(make[data](), make[data](), epochs=1)


def test_it_can_be_switched_off():
    net = network()
    estimator_of(net).fit([(X, Y + 1)], epochs=1, sanity_check=False)
    own = gs.SanityCheckHandler()
    with pytest.raises(ValueError, match="must be integers"):
        estimator_of(net).fit([(X, Y + 1)], epochs=1, event_handlers=[own], sanity_check=False)


def test_nan_is_left_to_a_guard():
    with pytest.raises(FloatingPointError, match="in batch 0 of epoch 0"):
        estimator_of(network()).fit(
            [(with_a(np.nan, X), Y)], epochs=1, event_handlers=[gs.NaNGuardHandler()]
        )


def test_a_batch_processor_of_ones_own_is_not_asked():
    class Own(gs.BatchProcessor):
        def fit_batch(self, estimator, batch, batch_axis=0):
            return super().fit_batch(estimator, (batch[0], batch[1] - 1), batch_axis)

    estimator_of(network(), batch_processor=Own()).fit([(X, Y + 1)], epochs=1)


RUNS = {
    "plain": {},
    "static": {"hybridize": "static"},
    "hybridized": {"hybridize": True},
    "shapes": {"is_known": False},
    "shapes, hybridized": {"is_known": False, "hybridize": True},
    "two devices": {"contexts": TWO, "is_known": False},
}
DATA = {
    "list": lambda: [(X[:12], Y[:12]), (X[12:], Y[12:])],
    "data loader": lambda: gluon.data.DataLoader(
        gluon.data.ArrayDataset(X.astype("float32"), Y), 12, shuffle=True
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("data", DATA)
def test_it_leaves_no_trace(run, data):
    """Weights, statistics, gradients, masks, the order of the data: the same bits without it."""
    results = []
    for sanity_check in (False, True):
        net = network(**RUNS[run])
        hooked = []
        net.register_forward_hook(lambda block, inputs, output, hooked=hooked: hooked.append(1))
        np.random.seed(3)
        handlers = [gs.SVRGHandler(), gs.RandomStateHandler()]
        estimator = estimator_of(net, contexts=RUNS[run].get("contexts", ONE))
        estimator.fit(
            DATA[data](),
            DATA[data](),
            epochs=2,
            event_handlers=handlers,
            sanity_check=sanity_check,
        )
        results.append([*problems.weights_of(net), np.array(len(hooked)), np.random.random()])
    assert problems.same(*results)


def test_data_that_cannot_be_looked_at_are_not_drawn_ahead():
    train, validation = Again((X, Y)), Again((X, Y))
    estimator_of(network()).fit(train, validation, epochs=2)
    assert (train.passes, validation.passes) == (2, 2)


def test_a_run_that_continues_is_not_looked_at(tmp_path):
    handlers = [gs.CheckpointHandler(tmp_path)]
    estimator_of(network()).fit([(X, Y)], epochs=1, event_handlers=handlers)
    estimator_of(network()).fit(
        [(X, Y + 1)], epochs=2, event_handlers=[gs.CheckpointHandler(tmp_path)], resume="auto"
    )


def test_a_second_run_is_looked_at_again():
    estimator = estimator_of(network())
    handler = gs.SanityCheckHandler()
    estimator.fit([(X, Y)], epochs=1, event_handlers=[handler])
    with pytest.raises(ValueError, match="must be integers"):
        estimator.fit([(X, Y + 1)], epochs=1, event_handlers=[handler])


THIRD = "the third item of a batch is taken as the weights of its samples"


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_third_item_is_said_to_be_weights(kind, caplog):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4)), rng.integers(0, 3, 8)
    net = nn.Dense(3, in_units=4)
    net.initialize()
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), trainer=gs.SVRGTrainer(net.collect_params(), "sgd")
    )
    with caplog.at_level(logging.INFO, "gluon_svrg"):
        estimator.fit([kind((x, y, np.ones(8)))] * 2, epochs=2)
        assert [m for m in caplog.messages if THIRD in m] == [
            f"{THIRD}, as in (data, label, sample_weight): several inputs are ((a, b), label), "
            "several labels (data, (a, b))"
        ]
        caplog.clear()
        estimator.fit([(x, y)], epochs=1)
        estimator.fit([{"data": x, "label": y, "sample_weight": np.ones(8)}], epochs=1)
        assert not [m for m in caplog.messages if THIRD in m]


class Rating(gluon.HybridBlock):
    """Matrix factorization: of users and items."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(5, 2), nn.Embedding(7, 2)

    def hybrid_forward(self, F, user, item):
        return (self.users(user) * self.items(item)).sum(axis=1)


def test_inputs_and_labels_that_are_three_items_are_told_how_to_be_nested():
    rng = np.random.default_rng(0)
    user, item, score = rng.integers(0, 5, 8), rng.integers(0, 7, 8), rng.normal(size=8)
    hint = r"the third item of the batch was taken as the weights of its samples, as in \(data, la"
    net = Rating()
    net.initialize()
    estimator = gs.Estimator(
        net, gluon.loss.L2Loss(), trainer=gs.SVRGTrainer(net.collect_params(), "sgd")
    )
    with pytest.raises(ValueError, match=f"the network cannot compute the first batch.*{hint}"):
        estimator.fit([(user, item, score)], epochs=1)
    estimator.fit([((user, item), score)], epochs=1)

    net = nn.Dense(3, in_units=4)
    net.initialize()
    estimator = gs.Estimator(
        net, gluon.loss.SoftmaxCELoss(), trainer=gs.SVRGTrainer(net.collect_params(), "sgd")
    )
    wrong = rng.normal(size=(8, 2, 2))
    with pytest.raises(ValueError, match=f"cannot compute the first batch: output.*{hint}"):
        estimator.fit([(rng.normal(size=(8, 4)), rng.integers(0, 3, 8), wrong)], epochs=1)


class ByHand(gluon.Block):
    """Softmax in a plain Block, by hand."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, in_units=4)

    def forward(self, x):
        powers = mx.nd.exp(self.dense(x))
        return powers / powers.sum(axis=1, keepdims=True)


class Sigmoid(gluon.Block):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(1, in_units=4)

    def forward(self, x):
        return mx.nd.sigmoid(self.dense(x)).reshape((-1,))


def ending(outputs, *ends, bias=0.0, activation=None):
    """Return a network that ends in these layers: a name is an activation or an operator."""
    net = nn.HybridSequential()
    net.add(nn.Dense(5, activation="tanh", in_units=4))
    init = mx.init.Constant(bias) if bias else "zeros"
    net.add(nn.Dense(outputs, in_units=5, activation=activation, bias_initializer=init))
    for end in ends:
        net.add(nn.HybridLambda(end) if isinstance(end, str) else end)
    return net


def flattened(F, x):
    return F.reshape(F.sigmoid(x), (-1,))


LOSS = gluon.loss
SOFT = np.eye(3)[Y] * 0.7 + 0.1
SIGNS, BITS = (Y > 0) * 2.0 - 1, (Y > 0) * 1.0
TWICE = {
    "softmax": (ending(3, "softmax"), CE(), Y, "SoftmaxCrossEntropyLoss applies softmax itself"),
    "softmax by hand": (ByHand(), CE(), Y, "probabilities, in .0, 1. with the sum 1, and"),
    "soft labels": (ending(3, "softmax"), CE(sparse_label=False), SOFT, "leave softmax out"),
    "softmax, hybridized": (ending(3, "softmax"), CE(), Y, "leave softmax out of the network"),
    "softmax, KLDivLoss": (
        ending(3, "softmax"),
        LOSS.KLDivLoss(from_logits=False),
        SOFT,
        "KLDivLoss applies softmax itself",
    ),
    "no logarithm": (
        ending(3, "softmax"),
        CE(from_logits=True),
        Y,
        "takes their logarithms: end the network in log_softmax",
    ),
    "no logarithm, KLDivLoss": (
        ending(3, "softmax"),
        LOSS.KLDivLoss(),
        SOFT,
        "takes their logarithms: end the network in log_softmax",
    ),
    "sigmoid": (
        ending(1, "sigmoid"),
        LOSS.SigmoidBCELoss(),
        BITS,
        "ends in sigmoid, and SigmoidBin.* leave sigmoid out of the network, or give from_sig",
    ),
    "sigmoid as activation": (
        ending(1, activation="sigmoid"),
        LOSS.SigmoidBCELoss(),
        BITS,
        "leave sigmoid out",
    ),
    "sigmoid, reshaped": (
        ending(1, nn.HybridLambda(flattened)),
        LOSS.SigmoidBCELoss(),
        BITS,
        "leave sigmoid out",
    ),
    "sigmoid of a Block": (Sigmoid(), LOSS.SigmoidBCELoss(), BITS, "leave sigmoid out"),
    "softmax, SigmoidBCELoss": (
        ending(3, "softmax"),
        LOSS.SigmoidBCELoss(),
        np.eye(3)[Y],
        "the network ends in softmax, and Sig.* leave softmax out",
    ),
    "sigmoid, LogisticLoss": (ending(1, "sigmoid"), LOSS.LogisticLoss(), SIGNS, "leave sigmoid"),
    "no sigmoid": (
        ending(1, bias=3.0),
        LOSS.SigmoidBCELoss(from_sigmoid=True),
        BITS,
        "takes probabilities: end the network in sigmoid, or leave from_sigmoid out",
    ),
}


@pytest.mark.parametrize("case", TWICE)
def test_softmax_sigmoid_and_logarithm_are_applied_once(case):
    """Fails on 0.8: all of them are trained."""
    net, loss, label, message = TWICE[case]
    mx.random.seed(1)
    net.initialize(mx.init.Xavier(), force_reinit=True)
    if "hybridized" in case:
        net.hybridize()
    before = problems.weights_of(net)
    arguments = {"train_metrics": mx.metric.Loss("loss")}
    with pytest.raises(ValueError, match=message + ".*sanity_check=False"):
        estimator_of(net, loss, **arguments).fit([(X, label)], epochs=1)
    assert problems.same(problems.weights_of(net), before)
    estimator_of(net, loss, **arguments).fit([(X, label)], epochs=1, sanity_check=False)


@pytest.mark.parametrize(
    ("loss", "label"), [(CE(from_logits=True), Y), (LOSS.KLDivLoss(), SOFT)], ids=["CE", "KLDiv"]
)
def test_scores_in_the_place_of_logarithms_of_probabilities_are_told(loss, label, caplog):
    """Keras calls scores logits. They may be meant so: of a model that is not normalised."""
    net = ending(3, bias=1.0)
    net.initialize(mx.init.Xavier())
    metric = mx.metric.Loss("loss")
    estimator_of(net, loss, train_metrics=metric).fit([(X, label)], epochs=1, verbose=0)
    assert len([m for m in caplog.messages if "at most 0: give from_logits=False" in m]) == 1


def test_softmax_twice_in_the_validation_network():
    net = network()
    twice = nn.HybridSequential()
    twice.add(net, nn.HybridLambda("softmax"))
    with pytest.raises(ValueError, match="leave softmax out of the network"):
        estimator_of(net, val_net=twice).fit([(X, Y)], [(X, Y)], epochs=1)


ONCE = {
    "scores": (ending(3), CE(), Y),
    "log_softmax, which is itself again": (ending(3, "log_softmax"), CE(), Y),
    "log_softmax": (ending(3, "log_softmax"), CE(from_logits=True), Y),
    "log_softmax, soft": (
        ending(3, "log_softmax"),
        CE(from_logits=True, sparse_label=False),
        SOFT,
    ),
    "log_softmax, KLDivLoss": (ending(3, "log_softmax"), LOSS.KLDivLoss(), SOFT),
    "scores, KLDivLoss": (ending(3), LOSS.KLDivLoss(from_logits=False), SOFT),
    "sigmoid of each class": (ending(3, "sigmoid"), CE(), Y),
    "relu": (ending(3, "relu"), CE(), Y),
    "a class alone": (ending(1, bias=1.0), CE(), Y * 0),
    "equal scores": (ending(3, bias=1 / 3), CE(), Y),
    "score": (ending(1), LOSS.SigmoidBCELoss(), BITS),
    "scores in [0, 1]": (ending(1, bias=0.5, activation="relu"), LOSS.SigmoidBCELoss(), BITS),
    "sigmoid": (ending(1, "sigmoid"), LOSS.SigmoidBCELoss(from_sigmoid=True), BITS),
    "soft bits": (ending(1), LOSS.SigmoidBCELoss(), BITS * 0.8 + 0.1),
    "several bits": (ending(3), LOSS.SigmoidBCELoss(), SOFT),
    "LogisticLoss": (ending(1), LOSS.LogisticLoss(), SIGNS),
    "LogisticLoss, binary": (ending(1), LOSS.LogisticLoss(label_format="binary"), BITS),
    "sigmoid, L2Loss": (ending(1, "sigmoid"), LOSS.L2Loss(), BITS),
    "softmax, L2Loss": (ending(3, "softmax"), LOSS.L2Loss(), SOFT),
    "softmax, L1Loss": (ending(3, "softmax"), LOSS.L1Loss(), SOFT),
    "HuberLoss": (ending(1, "sigmoid"), LOSS.HuberLoss(), BITS),
    "HingeLoss": (ending(1), LOSS.HingeLoss(), SIGNS),
    "SquaredHingeLoss": (ending(1), LOSS.SquaredHingeLoss(), SIGNS),
    "PoissonNLLLoss": (ending(1), LOSS.PoissonNLLLoss(), Y),
    "large regression": (ending(1), LOSS.L2Loss(), Y * 1e6),
}


@pytest.mark.parametrize("case", ONCE)
def test_no_false_alarm(case, caplog):
    net, loss, label = ONCE[case]
    mx.random.seed(1)
    zeros = case == "equal scores"
    net.initialize(mx.init.Zero() if zeros else mx.init.Xavier(), force_reinit=True)
    arguments = {"train_metrics": mx.metric.Loss("loss"), "lr": 1e-3}
    estimator_of(net, loss, **arguments).fit([(X, label)], [(X, label)], epochs=2, verbose=0)
    assert not caplog.messages


def seen(data):
    """The samples as a Dataset, whose batches a DataLoader makes."""
    return gluon.data.ArrayDataset(*(array.astype("float32") for array in data))


class Iter(mx.io.DataIter):
    """A DataIter of one's own, with a position."""

    def __init__(self, data):
        super().__init__(batch_size=20)
        self.data, self.at = data, 0
        shapes = [mx.io.DataDesc(f"array{i}", array.shape) for i, array in enumerate(data)]
        self.provide_data, self.provide_label = shapes[:1], shapes[1:]

    def reset(self):
        self.at = 0

    def next(self):
        self.at += 1
        if self.at > 1:
            raise StopIteration
        data, label = (mx.nd.array(array) for array in self.data)
        return mx.io.DataBatch([data], [label], pad=0)


VALIDATION = {
    "list": lambda *data: [data],
    "ArrayLoader": lambda *data: ArrayLoader(*data, batch_size=20),
    "ArrayLoader, transform": lambda *data: ArrayLoader(
        *data, batch_size=20, transform=lambda *batch: batch
    ),
    "DataLoader": lambda *data: gluon.data.DataLoader(seen(data), 20),
    "DataLoader, threads": lambda *data: gluon.data.DataLoader(
        seen(data), 20, num_workers=1, thread_pool=True
    ),
    "NDArrayIter": lambda *data: mx.io.NDArrayIter(*data, 20),
    "DataIter": lambda *data: Iter(data),
    "iterable": lambda *data: Again(data),
}
WRONG = {
    "shape": ((SIX_D, Y), r"network cannot compute the first batch of the validation: .*Shape inc"),
    "classes": ((X, Y + 1), "validation must be integers from 0 to 2, .* got 3 .*label - 1"),
    "nan": ((with_a(np.nan, X), Y), "the data of the first batch of the validation, .* has NaN"),
}
WAYS = {
    "val_data": lambda estimator, data: estimator.fit([(X, Y)], data, epochs=1),
    "ValidationHandler": lambda estimator, data: estimator.fit(
        [(X, Y)], epochs=1, event_handlers=[gs.ValidationHandler(data)]
    ),
    "both": lambda estimator, data: estimator.fit(
        [(X, Y)], [(SIX_D, Y)], epochs=1, event_handlers=[gs.ValidationHandler(data)]
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", VALIDATION)
def test_validation_data_are_looked_at_before_the_first_epoch(kind, wrong, way):
    data, message = WRONG[wrong]
    net = network()
    before = problems.weights_of(net)
    with pytest.raises(ValueError, match=message):
        WAYS[way](estimator_of(net), VALIDATION[kind](*data))
    assert problems.same(problems.weights_of(net), before)


@pytest.mark.parametrize("kind", VALIDATION)
def test_the_look_at_validation_data_leaves_them_as_they_were(kind):
    data = VALIDATION[kind](X, Y)
    figures = []
    for sanity_check in (True, False):
        result = estimator_of(network()).fit(data, data, epochs=2, sanity_check=sanity_check)
        figures.append(result.history.column("validation loss"))
    assert figures[0] == figures[1]


FEW = np.zeros((100, 4), "float32")
CLASSES = np.arange(100) % 3


def spoilt(value, row, dtype="float64"):
    label = CLASSES.astype(dtype)
    label[row] = value
    return label


def weights(row):
    return np.arange(100) != row


LATER = {
    "too large": (CE(), (spoilt(12, 77, "int64"),), "got 12 .they are from 0 to 12. in sample 77"),
    "negative": (CE(), (spoilt(-1, 99, "int32"),), "got -1 .*the sample weight 0"),
    "no integer": (CE(), (spoilt(0.5, 64),), "got 0.5 .*sparse_label=False"),
    "nan": (CE(), (spoilt(np.nan, 50),), "the label of sample 50 of .* is nan: correct it"),
    "inf": (LOSS.L2Loss(), (spoilt(np.inf, 50),), "the label of sample 50 of .* is inf"),
    "a column": (CE(), (spoilt(5, 33)[:, None],), "got 5 .*: give the last layer 6 outputs"),
    "weighted": (CE(), (spoilt(5, 33), weights(34)), r"got 5 .*in sample \d+"),
    "bits": (LOSS.SigmoidBCELoss(), (spoilt(2, 98, "uint8") % 4,), "must be from 0 to 1"),
    "a weight": (
        CE(),
        (CLASSES, weights(34) + spoilt(np.nan, 50) * 0),
        "weight of sample 50 of",
    ),
}


def loader_of(dataset, **arguments):
    return gluon.data.DataLoader(dataset, 10, **arguments)


def as_lists(x, label, *weight):
    return gluon.data.ArrayDataset(x, label.tolist(), *weight)


LOADERS = {
    "DataLoader": lambda *arrays: loader_of(gluon.data.ArrayDataset(*arrays)),
    "shuffled DataLoader": lambda *arrays: loader_of(
        gluon.data.ArrayDataset(*arrays).transform_first(lambda x: x + 1), shuffle=True
    ),
    "DataLoader of a list": lambda *arrays: loader_of(as_lists(*arrays)),
}


@pytest.mark.parametrize("of", ["train_data", "val_data"])
@pytest.mark.parametrize(
    "kind",
    ["numpy", "ndarray", "shuffled", "images", "memmap of the data", "list", *LOADERS],
)
@pytest.mark.parametrize("case", LATER)
def test_all_labels_in_memory_are_looked_at(case, kind, of, tmp_path):
    """Fails on 0.8: only those of the first batch of 10 were."""
    if (case, kind) == ("a column", "DataLoader of a list"):
        return  # a list of lists is not looked at as a whole
    loss, labels, message = LATER[case]
    arguments, x = {"batch_size": 10, "shuffle": kind == "shuffled", "seed": 1}, FEW
    good = (CLASSES % 2, *map(np.nan_to_num, labels[1:]))
    if good[0].ndim != labels[0].ndim:
        good = (good[0][:, None],)
    if kind == "images":
        x = FEW.reshape(100, 1, 2, 2)
        arguments["transform"] = gs.data.transforms.Compose(
            gs.data.transforms.RandomFlipLeftRight(), gs.data.transforms.Normalize([0], [1])
        )
    if kind == "memmap of the data":
        x = np.memmap(tmp_path / "x", "float32", "w+", shape=FEW.shape)
    sets = []
    for given in (labels, good):
        arrays = [mx.nd.array(a, dtype="float32") if kind == "ndarray" else a for a in given]
        if kind == "list":
            if len(given) > 1:
                return  # weights are not looked at as a whole
            sets.append([(x[i : i + 10], arrays[0][i : i + 10]) for i in range(0, 100, 10)])
        elif kind in LOADERS:
            sets.append(LOADERS[kind](x, *arrays))
        else:
            sets.append(ArrayLoader(x, *arrays, **arguments))
    wrong, right = sets
    net = nn.Dense(1 if isinstance(loss, (LOSS.L2Loss, LOSS.SigmoidBCELoss)) else 3, in_units=4)
    net.initialize()
    estimator = estimator_of(net, loss, train_metrics=mx.metric.Loss("loss"))
    data = (wrong, right) if of == "train_data" else (right, wrong)
    with pytest.raises(ValueError, match=message):
        estimator.fit(*data, epochs=1)
    estimator.fit(right, right, epochs=1)
    if case not in ("nan", "inf"):
        return
    guard = gs.NaNGuardHandler()
    # A guard sees losses and gradients, and MXNet's loss takes NaN for a class.
    with pytest.raises(FloatingPointError if case == "inf" else ValueError):
        estimator_of(net, loss, train_metrics=mx.metric.Loss("loss")).fit(
            wrong, epochs=1, event_handlers=[guard]
        )


def one_hot(x, label):
    return x, mx.nd.one_hot(label.clip(0, 2), 3)


def without_negatives(x, label):
    return x, mx.nd.maximum(label, 0)


UNKNOWN = {
    "a transform": ((spoilt(-1, 70),), {"transform": without_negatives}, CE()),
    "one-hot": ((spoilt(5, 70),), {"transform": one_hot}, CE(sparse_label=False)),
    "left out": ((spoilt(-1, 70), weights(70)), {}, CE()),
    "soft": ((np.eye(3)[CLASSES],), {}, CE(sparse_label=False)),
    "several labels": (((spoilt(9, 70), CLASSES),), {}, None),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_labels_that_may_be_right_are_left_alone(case):
    class First(LOSS.Loss):
        def __init__(self):
            super().__init__(None, 0)

        def forward(self, pred, label):
            return CE()(pred, label[1])

    labels, arguments, loss = UNKNOWN[case]
    net = nn.Dense(3, in_units=4)
    net.initialize()
    data = ArrayLoader(FEW, *labels, batch_size=10, **arguments)
    estimator_of(net, loss or First(), train_metrics=mx.metric.Loss("loss")).fit(data, epochs=1)


SELECTED = {
    "a sampler": {"sampler": gluon.data.SequentialSampler(60)},
    "a batch sampler": {"batch_sampler": [range(10), range(20)], "batch_size": None},
    "a batchify_fn": {
        "batchify_fn": lambda samples: tuple(
            mx.nd.array(np.clip(part, -2, 2)) for part in zip(*samples, strict=True)
        )
    },
    "a transform": {},
}


@pytest.mark.parametrize("case", SELECTED)
def test_a_data_loader_that_chooses_its_samples_is_left_alone(case):
    dataset = gluon.data.ArrayDataset(FEW, spoilt(7, 70))
    if case == "a transform":
        dataset = dataset.transform(lambda x, label: (x, label % 3))
    net = nn.Dense(3, in_units=4)
    net.initialize()
    data = gluon.data.DataLoader(dataset, **{"batch_size": 10, **SELECTED[case]})
    estimator_of(net).fit(data, epochs=1)


SIGNED = [LOSS.HingeLoss(), LOSS.SquaredHingeLoss(), LOSS.LogisticLoss()]


@pytest.mark.parametrize("loss", SIGNED)
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_labels_0_and_1_of_a_loss_of_signs(loss, dtype):
    """Fails on 0.8: the samples of 0 added a constant to the loss, or pulled the score to 0."""
    bits = (CLASSES % 2).astype(dtype)
    net = nn.Dense(1, in_units=4)
    net.initialize()
    name = type(loss).__name__
    estimator = estimator_of(net, loss, train_metrics=mx.metric.Loss("loss"))
    message = rf"must be -1 and 1 for {name}, got 0 in sample \d+: make them 2 \* label - 1"
    with pytest.raises(ValueError, match=message):
        estimator.fit(ArrayLoader(FEW, bits, batch_size=10), epochs=1)
    signs = 2 * bits.astype("float32") - 1
    estimator.fit(ArrayLoader(FEW, signs, batch_size=10), epochs=1)
    left_out = ArrayLoader(FEW, bits, bits.astype("float32"), batch_size=10)
    estimator.fit(left_out, epochs=1)


def test_labels_are_looked_at_once_and_data_never(monkeypatch):
    reads = []
    original = ArrayLoader.whole_labels
    monkeypatch.setattr(
        ArrayLoader, "whole_labels", lambda loader: reads.append(1) or original(loader)
    )
    net = nn.Dense(3, in_units=4)
    net.initialize()
    estimator_of(net).fit(ArrayLoader(FEW, CLASSES, batch_size=10), epochs=3)
    assert len(reads) == 1


@pytest.mark.parametrize("outputs", [3, 10])
@pytest.mark.parametrize("loss", [LOSS.L2Loss(), LOSS.HuberLoss(), LOSS.SigmoidBCELoss()])
def test_a_loss_of_regression_for_classes_is_told(loss, outputs):
    message = f"if the labels are the numbers of {outputs} classes, take SoftmaxCELoss()"
    with pytest.raises(ValueError, match=re.escape(message)):
        estimator_of(network(outputs), loss, train_metrics=mx.metric.Loss("loss")).fit(
            [(X, Y)], epochs=1
        )


SCALES = {"scaled": (1, False), "raw 8-bit images": (255, False), "too large": (16000 * 30, True)}


@pytest.mark.parametrize("case", SCALES)
def test_data_that_are_not_scaled_are_told(case, caplog):
    scale, is_told = SCALES[case]
    net = nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier())
    data = np.abs(X) * scale
    estimator_of(net, lr=1e-9).fit([(data, Y)], epochs=1, verbose=0)
    told = [message for message in caplog.messages if "not scaled" in message]
    assert len(told) == is_told
    if told:
        assert f"to {data.max():.3g}, are probably not scaled; divide by the largest" in told[0]


@pytest.mark.parametrize(("rate", "is_told"), [(0.1, False), (1e6, True)])
def test_a_run_that_has_diverged_without_a_nan_is_told(rate, is_told, caplog):
    net = nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier())
    estimator_of(net, lr=rate).fit([(X, Y)] * 3, epochs=2, verbose=0)
    told = [message for message in caplog.messages if "has diverged" in message]
    assert len(told) == is_told
    if told:
        assert "try a smaller learning rate" in told[0]


def test_a_loss_that_was_almost_0_may_grow(caplog):
    """Fine-tuning at the optimum: 1,000 times a loss of rounding is nothing."""
    net = nn.Dense(1, in_units=4)
    net.initialize(mx.init.Zero())
    estimator_of(net, LOSS.L2Loss(), lr=0.1).fit(
        [(X, np.zeros(20)), (X, np.full(20, 0.1))], epochs=1, verbose=0
    )
    assert not caplog.messages
