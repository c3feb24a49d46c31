"""Runs with row_sparse gradients: optimizers, kvstores, data, tables, loops by hand."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import runs
import sparse_problems as sp
from gluon_svrg.data import ArrayLoader
from mxnet import autograd, gluon

TWO = [mx.cpu(0), mx.cpu(1)]


def train(problem, *handlers, optimizer="sgd", data=None, duration=None, resume=None, **arguments):
    """Train for two epochs; return the weights after each step."""
    params = {"learning_rate": 0.1, **arguments.pop("params", {})}
    trainer = gs.SVRGTrainer(
        problem.net.collect_params(), optimizer, params, **arguments.pop("trainer", {})
    )
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    recorder = sp.Recorder()
    given = [gs.SVRGHandler(**arguments), recorder, *handlers]
    estimator.fit(
        data or problem.data, event_handlers=given, resume=resume, **(duration or {"epochs": 2})
    )
    return recorder.weights


def difference(ours, theirs):
    assert len(ours) == len(theirs)
    pairs = [zip(a, b, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return max(np.abs(a - b).max() for pair in pairs for a, b in pair)


OPTIMIZERS = {
    "sgd": {"momentum": 0.9},
    "sgd, clipped": {"momentum": 0.9, "clip_gradient": 0.05},
    "adam": {},
    "adam, standard": {"lazy_update": False, "wd": 0.01},
    "lars": {"lazy_update": True, "momentum": 0.9},
    "nag": {"momentum": 0.9},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_exact_way_is_dense_storage_by_any_optimizer(name):
    params = OPTIMIZERS[name]
    sparse = train(sp.make("embedding"), optimizer=name.split(",")[0], params=params)
    params = {key: value for key, value in params.items() if name != "lars" or key == "momentum"}
    dense = sp.make("embedding", is_sparse=False)
    expected = train(dense, optimizer=name.split(",")[0], params=params)
    # The kernel that updates the rows of LARS takes the momentum as float32.
    assert difference(sparse, expected) < (1e-8 if name == "lars" else 1e-12)


@pytest.mark.parametrize("clip", [{"clip_norm": 0.1}, {"clip_value": 0.01}], ids=str)
def test_clipping_is_that_of_dense_storage(clip):
    weights = [
        train(
            sp.make("wide", is_sparse=is_sparse),
            gs.GradientUpdateHandler(**clip),
            params={"momentum": 0.9},
        )
        for is_sparse in (True, False)
    ]
    assert difference(*weights) < 1e-12


@pytest.mark.parametrize("way", ["exact", "sparse"])
@pytest.mark.parametrize("on_kvstore", [True, False])
@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_local_kvstores_give_the_weights_of_one_context(kvstore, on_kvstore, way):
    expected = train(sp.make("wide"), params={"momentum": 0.9}, sparse_correction=way)
    trainer = {"kvstore": kvstore, "update_on_kvstore": on_kvstore}
    own = train(
        sp.make("wide", TWO), params={"momentum": 0.9}, trainer=trainer, sparse_correction=way
    )
    assert difference(own, expected) < 1e-12


@pytest.mark.slow
def test_a_table_that_takes_too_much_memory_is_given_up(caplog):
    expected = train(sp.make("embedding"), gradient_table=False)
    # The dense gradients of five batches fit into it; with the rows on top they do not.
    dense = 5 * 8 * (sp.CLASSES * sp.WIDTH + sp.CLASSES)
    for memory, said in (
        (dense + 100, "it takes more than table_memory"),
        (2**20, "SVRG: gradient table on"),
    ):
        caplog.clear()
        assert difference(train(sp.make("embedding"), table_memory=memory), expected) == 0
        assert said in caplog.text
    assert "take more" not in caplog.text


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("kind", ["scipy", "mxnet"])
def test_a_loader_of_sparse_rows_gives_the_weights_of_dense_ones(kind, shuffle):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    problem = sp.make("wide")
    x, y = (np.concatenate(parts) for parts in zip(*problem.batches, strict=True))
    csr = scipy_sparse.csr_array(x) if kind == "scipy" else sp.csr_of(x)
    weights = [
        train(
            sp.make("wide", is_sparse=is_sparse),
            data=ArrayLoader(rows, y, batch_size=8, shuffle=shuffle, seed=3),
        )
        for rows, is_sparse in ((csr, True), (x, False))
    ]
    assert difference(*weights) < 1e-12


KEPT = []  # MXNet crashes if a LibSVMIter is freed while its thread still reads ahead


@pytest.mark.parametrize("way", ["exact", "sparse"])
def test_libsvm_files(way, tmp_path):
    problem = sp.make("wide", dtype="float32", samples=40)
    lines = [
        f"{int(y)} " + " ".join(f"{i}:{float(np.float32(row[i]))!r}" for i in np.flatnonzero(row))
        for xs, ys in problem.batches
        for row, y in zip(xs, ys, strict=True)
    ]
    path = tmp_path / "data.svm"
    path.write_text("\n".join(lines) + "\n")
    expected = train(problem, sparse_correction=way, gradient_table=False)
    iterator = mx.io.LibSVMIter(data_libsvm=str(path), data_shape=(sp.FEATURES,), batch_size=8)
    KEPT.append(iterator)
    own = train(sp.make("wide", dtype="float32", samples=40), data=iterator, sparse_correction=way)
    assert difference(own, expected) < 1e-5


@pytest.mark.parametrize("way", ["exact", "sparse"])
def test_a_loop_by_hand(way):
    problem = sp.make("wide")
    expected = train(sp.make("wide"), sparse_correction=way)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})

    def backward(batch):
        data, label = batch
        with autograd.record():
            loss = problem.loss(problem.net(data), label)
        loss.backward()
        return loss

    interval, weights = gs.svrg.Interval(problem.net, backward), []
    for _ in range(2):
        full_gradient = interval.begin(problem.data)
        assert full_gradient.means[problem.net.weight.name].stype == "row_sparse"
        trainer.set_control_variate(full_gradient, sparse_correction=way)
        for index, batch in enumerate(problem.data):
            interval.before(batch, index)
            loss = backward(batch)
            trainer.correct(interval.gradient(batch, index))
            trainer.step(len(loss))
            weights.append(sp.weights_of(problem.net))
    assert difference(weights, expected) == 0


def test_the_shares_are_those_of_the_samples():
    problem = sp.make("embedding")
    snapshot = gs.Snapshot(problem.net)
    snapshot.take()

    def backward(batch):
        with autograd.record():
            loss = problem.loss(problem.net(batch[0]), batch[1])
        loss.backward()
        return loss

    full_gradient = snapshot.full_gradient(backward, problem.data)
    name = problem.net[0].weight.name
    shares = sp.shares("embedding", problem.batches)
    assert list(full_gradient.row_shares) == [name]
    np.testing.assert_array_equal(
        full_gradient.means[name].indices.asnumpy(), np.flatnonzero(shares)
    )
    np.testing.assert_allclose(full_gradient.row_shares[name].asnumpy(), shares[shares > 0])


@pytest.mark.parametrize("way", ["exact", "sparse"])
def test_a_word_table_that_some_batches_do_not_use(way):
    """Its gradient is stale there, and must count as zero."""

    class Sometimes(gluon.Block):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.table = gluon.nn.Embedding(6, 1, sparse_grad=True)
                self.scale = gluon.nn.Dense(1, in_units=1)

        def forward(self, x):
            out = self.scale(x[:, :1])
            return out + self.table(x[:, 1]) if x[0, 1].asscalar() >= 0 else out

    rows = [[[1.0, 2], [2.0, 3]], [[1.0, -1], [0.5, -1]], [[0.3, 2], [0.1, 5]]]
    weights = []
    for is_table in (True, False):
        mx.random.seed(1)
        net = Sometimes()
        net.initialize(mx.init.Normal(1))
        estimator = runs.estimator_of(net, gluon.loss.L2Loss())
        recorder = sp.Recorder()
        handler = gs.SVRGHandler(gradient_table=is_table, sparse_correction=way)
        data = [(mx.nd.array(r), mx.nd.array([0.0, 1.0])) for r in rows]
        estimator.fit(data, epochs=2, event_handlers=[handler, recorder], sanity_check=False)
        weights.append(recorder.weights)
    assert difference(*weights) == 0
    (before, *_), (after, *_) = weights[0][0], weights[0][1]
    moved = np.flatnonzero((before != after).any(axis=1)).tolist()
    assert moved == ([2, 3, 5] if way == "exact" else [])


@pytest.mark.full
def test_a_table_that_does_not_fit_after_a_resume_is_left_out(tmp_path, caplog):
    def run(problem, memory, resume=None, folder=tmp_path / "one", **duration):
        estimator = runs.estimator_of(problem)
        svrg = gs.SVRGHandler(update_freq=3, table_memory=memory)
        handlers = [svrg, gs.CheckpointHandler(folder, every_n_batches=1)]
        estimator.fit(problem.data, event_handlers=handlers, resume=resume, **duration)
        return sp.weights_of(problem.net)

    small = 700  # of bytes, of which the rows take more
    expected = train(
        sp.make("embedding"), update_freq=3, gradient_table=False, duration={"epochs": 3}
    )
    run(sp.make("embedding"), 2**20, batches=7)
    again = sp.make("embedding", seed=1)._replace(data=sp.make("embedding").data)
    weights = run(again, small, resume="auto", epochs=3)
    for own, other in zip(weights, expected[-1], strict=True):
        np.testing.assert_allclose(own, other, atol=1e-12)
    caplog.clear()
    with caplog.at_level("INFO"):
        run(sp.make("embedding"), small, folder=tmp_path / "two", epochs=6)
    assert caplog.text.count("with its rows it takes more than table_memory") == 1
