"""What SVRG does not do with row_sparse gradients, and what it says then."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
import sparse_problems as sp

REFUSED = {
    "signum": ({"optimizer": "signum"}, r"weight' is row_sparse, and Signum takes dense .*'sgd'"),
    "dense LARS": ({"optimizer": "lars"}, "and LARS takes dense gradients only: give lazy_update="),
    "decay, exact": ({"params": {"wd": 0.1}}, r"a weight decay of 0.1 decays only .* ever occur"),
    "decay, sparse": (
        {"params": {"wd": 0.1}, "sparse_correction": "sparse"},
        "of a batch, so often used ones more, which is another objective: give lazy_update=False",
    ),
    "decay, Adam": (
        {"optimizer": "adam", "params": {"wd": 0.1}},
        r"Adam\(lazy_update=True\) with a weight decay",
    ),
    "decay, AdaGrad": (
        {"optimizer": "adagrad", "params": {"wd": 0.1}},
        r"AdaGrad with a weight decay of 0.1 cannot take the row_sparse gradient",
    ),
    "auto": ({"coefficient": "auto"}, "coefficient='auto' is estimated from dense gradients"),
    "giving up": (
        {"max_variance_ratio": 0.5, "sparse_correction": "sparse"},
        "max_variance_ratio=0.5 is compared with the variance ratio of sparse_correction='exact'",
    ),
    "compression": (
        {"trainer": {"compression_params": {"type": "2bit"}}},
        "the kvstore 'device' compresses dense gradients only",
    ),
}


def fit(problem, data=None, optimizer="sgd", params=None, trainer=None, **arguments):
    given = {"learning_rate": 0.1, **(params or {})}
    own = gs.SVRGTrainer(problem.net.collect_params(), optimizer, given, **(trainer or {}))
    estimator = gs.Estimator(problem.net, problem.loss, trainer=own)
    estimator.fit(data or problem.data, epochs=1, event_handlers=gs.SVRGHandler(**arguments))
    return own


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(arguments, message, caplog):
    problem = sp.make("embedding")
    with pytest.raises(ValueError, match=message):
        fit(problem, **arguments)
    assert "failed" not in caplog.text
    for before, after in zip(problem.params, sp.weights_of(problem.net), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("params", [{"wd": 0.1, "lazy_update": False}, {"wd": 0.0}], ids=str)
@pytest.mark.parametrize("way", ["exact", "sparse"])
def test_what_is_taken_instead(params, way):
    fit(sp.make("embedding"), params=params, sparse_correction=way)


def test_the_plain_optimizer_is_not_asked():
    fit(sp.make("embedding"), params={"wd": 0.1}, coefficient=0.0)


def test_gradients_that_add_up_are_refused():
    problem = sp.make("embedding")
    problem.net.collect_params().setattr("grad_req", "add")
    with pytest.raises(ValueError, match="MXNet adds up dense gradients only: set its grad_req"):
        fit(problem)


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "groupadagrad", "nag"])
def test_row_sparse_weights_take_two_optimizers(optimizer):
    with pytest.raises(ValueError, match=r"row_sparse, and \w+ cannot update them: give 'sgd'"):
        fit(sp.make("pulled"), optimizer=optimizer)


def loaders():
    x, y = np.random.default_rng(0).integers(0, 30, (40, 4)), np.arange(40.0) % 3
    pairs = mx.gluon.data.ArrayDataset(x.astype("float64"), y)
    return {
        "fixed": gs.data.ArrayLoader(x.astype("float64"), y, batch_size=8, shuffle=True, seed=0),
        "reshuffled": gs.data.ArrayLoader(
            x.astype("float64"), y, batch_size=8, shuffle=True, reshuffle=True, seed=0
        ),
        "DataLoader": mx.gluon.data.DataLoader(pairs, batch_size=8, shuffle=True),
    }


class Mean(gs.events.GradientReady, gs.events.EpochEnd):
    """Compares the mean of an epoch's corrected gradients with the full gradient."""

    priority = 1000

    def __init__(self):
        self.errors, self._sum = [], 0.0

    def gradient_ready(self, estimator, *args, **kwargs):
        (param,) = estimator.net.collect_params().values()
        self._sum = self._sum + param.grad().asnumpy()
        self._full = estimator.trainer.full_gradient[param.name][0].asnumpy()

    def epoch_end(self, estimator, *args, **kwargs):
        self.errors.append(np.linalg.norm(self._sum / 40 - self._full) / np.linalg.norm(self._full))
        self._sum = 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "update_freq", "is_biased"),
    [
        ("fixed", 3, False),
        ("reshuffled", 1, False),
        ("reshuffled", 3, True),
        ("DataLoader", 3, True),
    ],
)
def test_batches_that_are_others_than_those_counted_are_told(name, update_freq, is_biased, caplog):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(30, 3, sparse_grad=True))
    net.add(mx.gluon.nn.HybridLambda(lambda F, x: F.sum(x, axis=1)))
    net.cast("float64")
    net.initialize(mx.init.Normal(0.1))
    estimator = runs.estimator_of(net, lr=0.0)
    svrg, mean = gs.SVRGHandler(update_freq, sparse_correction="sparse"), Mean()
    estimator.fit(loaders()[name], epochs=3, event_handlers=[svrg, mean])
    assert (max(mean.errors) > 0.02) == is_biased
    assert max(mean.errors) > 0.02 or max(mean.errors) < 1e-12
    assert ("With other batches the corrected gradient is biased" in caplog.text) == is_biased


def test_a_decay_that_leaves_the_parameter_out_is_taken():
    problem = sp.make("embedding")
    problem.net[0].weight.wd_mult = 0
    fit(problem, params={"wd": 0.1})


@pytest.mark.parametrize(
    ("optimizer", "is_lazy", "name"), [("lars", True, "LARS"), ("sgd", False, "SGD")]
)
def test_row_sparse_weights_have_optimizers_of_their_own(optimizer, is_lazy, name):
    message = rf"weights of '.*' are row_sparse, and {name} cannot update them: give 'sgd' or"
    with pytest.raises(ValueError, match=message):
        fit(sp.make("pulled"), optimizer=optimizer, params={"lazy_update": is_lazy})


class Other(mx.kvstore.KVStoreBase):
    """A kvstore that is none of MXNet's."""

    type = "other"

    def is_capable(self, capability):
        return False


def test_another_kvstore_is_refused_before_anything_is_paid():
    problem = sp.make("embedding")
    with pytest.raises(ValueError, match="the kvstore Other adds up dense gradients only: give"):
        fit(problem, trainer={"kvstore": Other()})


def test_a_trainer_by_hand_refuses_too():
    problem = sp.make("wide")
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"wd": 0.1})
    interval = gs.svrg.Interval(problem.net, backward_of(problem))
    full_gradient = interval.begin(problem.data)
    with pytest.raises(ValueError, match="decays only the rows of"):
        trainer.set_control_variate(full_gradient)
    with pytest.raises(ValueError, match="must be 'exact' or 'sparse', got 'dense': 'exact' cor"):
        trainer.set_control_variate(full_gradient, sparse_correction="dense")


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="must be 'exact' or 'sparse', got None"):
        gs.SVRGHandler(sparse_correction=None)


def test_dense_gradients_may_have_either_way():
    problem = sp.make("embedding", is_sparse=False)
    fit(problem, params={"wd": 0.1}, coefficient="auto", sparse_correction="sparse")


def label(number):
    return mx.nd.array(np.zeros(number), dtype="float64")


@pytest.mark.parametrize("word", [sp.FEATURES, -1])
def test_an_index_that_the_embedding_does_not_have(word):
    problem = sp.make("embedding")
    good, bad = (mx.nd.array([[3, w, 1]], dtype="float64") for w in (4, word))
    with pytest.raises(ValueError, match=r"batch 2 .* an index that its Embedding does not have"):
        fit(problem, [(good, label(1)), (good, label(1)), (bad, label(1))])


@pytest.mark.parametrize("number", [0, 1])
def test_a_column_beyond_the_width(number):
    problem = sp.make("wide")
    good, bad = (
        mx.nd.sparse.csr_matrix((np.ones(2), [3, c], [0, 1, 2]), (2, sp.FEATURES), dtype="float64")
        for c in (4, sp.FEATURES)
    )
    data = [(good, label(2)), (bad, label(2))][1 - number :]
    with pytest.raises(ValueError, match=rf"batch {number} .* in column 40, and 40 columns"):
        fit(problem, data)


def test_csr_data_of_another_width():
    problem = sp.make("wide")
    narrow = sp.csr_of(np.eye(4, sp.FEATURES - 1))
    with pytest.raises(ValueError, match=r"Wide cannot take CSR data with 39 columns .*dot shape"):
        fit(problem, [problem.data[0], (narrow, label(4))])


def backward_of(problem):
    def backward(batch):
        data, labels = batch
        with mx.autograd.record():
            loss = problem.loss(problem.net(data), labels)
        loss.backward()
        return loss

    return backward


def test_a_gradient_that_is_not_finite_is_told_with_its_batch():
    problem = sp.make("wide")
    x, y = problem.batches[2]
    problem.data[2] = sp.csr_of(np.where(x, np.nan, 0)), mx.nd.array(y, dtype="float64")
    problem.net.bias.grad_req = "null"
    with pytest.raises(FloatingPointError, match=r"weight' is NaN or infinite; batch 2"):
        fit(problem)
