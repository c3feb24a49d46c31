"""SVRG of row_sparse gradients against NumPy, after every step."""

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import pytest
import sparse_problems as sp

CONTEXTS = {"one": [mx.cpu(0)], "two": [mx.cpu(0), mx.cpu(1)]}


def fit(problem, params, epochs=3, optimizer="sgd", handlers=(), data=None, **arguments):
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
@pytest.mark.parametrize(("momentum", "alpha"), [(0.0, 1.0), (0.9, 1.0), (0.9, 0.5)])
@pytest.mark.parametrize("way", ["exact", "sparse"])
@pytest.mark.parametrize("kind", ["wide", "embedding"])
def test_every_step_agrees_with_numpy(kind, way, momentum, alpha, contexts, table):
    problem = sp.make(kind, CONTEXTS[contexts])
    expected = sp.svrg(kind, problem, sp.SGD(0.1, momentum), epochs=3, way=way, alpha=alpha)
    weights = fit(
        problem,
        {"learning_rate": 0.1, "momentum": momentum},
        coefficient=alpha,
        gradient_table=table,
        sparse_correction=way,
    )
    assert_same(weights, expected)
