"""Runs with row_sparse gradients that are cut, and continue to the bit."""

import gluon_svrg as gs
import numpy as np
import pytest
import runs
import sparse_problems as sp


def run(problem, folder, duration, way, table, resume=None):
    """Train, with a checkpoint after each batch; return the weights after each step."""
    estimator = runs.estimator_of(problem, params={"momentum": 0.9})
    recorder = sp.Recorder()
    handlers = [
        gs.SVRGHandler(update_freq=2, gradient_table=table, sparse_correction=way),
        gs.CheckpointHandler(folder, every_n_batches=1),
        recorder,
    ]
    estimator.fit(problem.data, event_handlers=handlers, resume=resume, **duration)
    return recorder.weights


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "way", "table", "batch"),
    [
        ("embedding", "exact", True, 7),
        ("embedding", "exact", False, 1),
        ("embedding", "sparse", True, 10),
        ("embedding", "sparse", False, 7),
        ("pulled", "exact", False, 7),
        ("pulled", "sparse", True, 7),
    ],
)
def test_a_run_that_is_cut_continues_to_the_bit(kind, way, table, batch, tmp_path):
    expected = run(sp.make(kind), tmp_path / "whole", {"epochs": 3}, way, table)
    run(sp.make(kind), tmp_path / "cut", {"batches": batch}, way, table)
    problem = sp.make(kind, seed=1)._replace(data=sp.make(kind).data)
    resumed = run(problem, tmp_path / "cut", {"epochs": 3}, way, table, resume="auto")
    assert len(resumed) == 15 - batch
    for weights, reference in zip(resumed, expected[batch:], strict=True):
        for a, b in zip(weights, reference, strict=True):
            np.testing.assert_array_equal(a, b)
