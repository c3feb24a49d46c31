"""SVRG of row_sparse gradients against NumPy, after every step."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import sparse_problems as sp

CONTEXTS = {"one": [mx.cpu(0)], "two": [mx.cpu(0), mx.cpu(1)]}


def fit(problem, params, epochs=2, optimizer="sgd", handlers=(), data=None, **arguments):
    trainer = gs.SVRGTrainer(problem.net.collect_params(), optimizer, params)
    estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
    recorder = sp.Recorder()
    handler = gs.SVRGHandler(**arguments)
    estimator.fit(
        data or problem.data, epochs=epochs, event_handlers=[handler, recorder, *handlers]
    )
    return recorder.weights


def assert_same(ours, theirs, tolerance=1e-10):
    assert len(ours) == len(theirs)
    for step, (weights, reference) in enumerate(zip(ours, theirs, strict=True)):
        for a, b in zip(weights, reference, strict=True):
            assert np.abs(a - b).max() <= tolerance * max(1, np.abs(b).max()), step


@pytest.mark.parametrize("table", [False, True], ids=["recomputed", "table"])
@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize(("momentum", "alpha"), [(0.0, 1.0), (0.9, 0.5)])
@pytest.mark.parametrize("way", ["exact", "sparse"])
@pytest.mark.parametrize("kind", ["wide", "embedding", "pulled"])
def test_every_step_agrees_with_numpy(kind, way, momentum, alpha, contexts, table):
    problem = sp.make(kind, CONTEXTS[contexts])
    expected = sp.svrg(kind, problem, sp.SGD(0.1, momentum), epochs=2, way=way, alpha=alpha)
    weights = fit(
        problem,
        {"learning_rate": 0.1, "momentum": momentum},
        coefficient=alpha,
        gradient_table=table,
        sparse_correction=way,
    )
    assert_same(weights, expected)


@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("params", [{}, {"wd": 1e-2, "lazy_update": False}], ids=str)
@pytest.mark.parametrize("kind", ["wide", "embedding"])
def test_the_exact_way_gives_the_weights_of_dense_storage(kind, params, contexts):
    sparse, dense = (
        fit(
            sp.make(kind, CONTEXTS[contexts], is_sparse=is_sparse),
            {"learning_rate": 0.1, "momentum": 0.9, **params},
        )
        for is_sparse in (True, False)
    )
    assert_same(sparse, dense, 1e-15 if contexts == "one" else 1e-12)


def corrected_gradients(kind, way, contexts="one", alpha=1.0):
    """The corrected gradients of all batches away from the snapshot, and the plain ones."""
    problem = sp.make(kind, CONTEXTS[contexts])
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.0})
    sums, rows = [], []
    for coefficient in (alpha, 0.0):

        class Collect(gs.events.GradientReady):
            priority = 1000

            def gradient_ready(self, estimator, *args, **kwargs):
                params = estimator.net.collect_params().values()
                sums.append([sum(g.asnumpy() for g in p.list_grad()) for p in params])
                first = next(iter(params)).list_grad()
                rows.append(set(np.concatenate([g.indices.asnumpy() for g in first])))

        class Move(gs.events.EpochBegin):
            priority = 2000

            def epoch_begin(self, estimator, *args, **kwargs):
                rng = np.random.default_rng(3)
                for param in estimator.net.collect_params().values():
                    noise = mx.nd.array(rng.normal(size=param.shape), dtype="float64")
                    for data in param.list_data():
                        data[:] = data + noise.as_in_context(data.context)

        before = [p.data(p.list_ctx()[0]).copy() for p in problem.net.collect_params().values()]
        estimator = gs.Estimator(problem.net, problem.loss, trainer=trainer)
        handler = gs.SVRGHandler(
            coefficient=coefficient, sparse_correction=way, gradient_table=False
        )
        estimator.fit(problem.data, epochs=1, event_handlers=[handler, Collect(), Move()])
        for param, data in zip(problem.net.collect_params().values(), before, strict=True):
            for own in param.list_data():
                data.copyto(own)
    number = len(problem.batches)
    return problem, sums[:number], sums[number:], rows[:number]


@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("way", ["exact", "sparse"])
@pytest.mark.parametrize("kind", ["wide", "embedding"])
def test_the_mean_of_the_corrected_gradients_is_the_full_gradient(kind, way, contexts):
    problem, corrected, plain, rows = corrected_gradients(kind, way, contexts)
    for ours, full in zip(zip(*corrected, strict=True), zip(*plain, strict=True), strict=True):
        scale = np.abs(sum(full)).max()
        assert np.abs(sum(ours) - sum(full)).max() <= 1e-12 * scale
        assert any(np.abs(a - b).max() > 0.1 for a, b in zip(ours, full, strict=True))
    for (x, _), own in zip(problem.batches, rows, strict=True):
        of_batch = set(np.flatnonzero(sp.rows_in(kind, x)))
        assert own == of_batch if way == "sparse" else own > of_batch
