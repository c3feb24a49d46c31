"""Step, batch and momentum: the formulas' limits."""

import math

import numpy as np
import pytest
from provenglm.constants import constants, expected_smoothness


@pytest.mark.parametrize("n", [2, 10, 60_000])
def test_smoothness_at_its_ends(n):
    assert expected_smoothness(n, 1, 3.0, 50.0) == pytest.approx(50.0)
    assert expected_smoothness(n, n, 3.0, 50.0) == pytest.approx(3.0)


def test_smoothness_of_one_row():
    assert expected_smoothness(1, 1, 3.0, 3.0) == 3.0


def test_smoothness_falls_with_the_batch():
    numbers = [expected_smoothness(1000, b, 1.0, 40.0) for b in range(1, 1001)]
    assert np.all(np.diff(numbers) < 0)


def test_smoothness_bounds_the_batches_on_average():
    # Its definition for convex quadratics x_i x_i^T: E[A_B^2] <= L(b) A, for all batches of b.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 3))
    of_rows = np.einsum("ia,ib->iab", X, X)
    whole = of_rows.mean(axis=0)
    largest = np.linalg.eigvalsh(of_rows).max()
    import itertools

    for b in range(1, 7):
        batches = [of_rows[list(rows)].mean(axis=0) for rows in itertools.combinations(range(6), b)]
        mean_square = np.mean([batch @ batch for batch in batches], axis=0)
        bound = expected_smoothness(6, b, np.linalg.eigvalsh(whole).max(), largest)
        assert np.linalg.eigvalsh(bound * whole - mean_square).min() > -1e-12


@pytest.mark.parametrize("n", [1, 2, 511, 513, 5000, 60_000, 10_000_000])
@pytest.mark.parametrize("ratio", [0.1, 1, 10, 1e3, 1e9])
def test_batch_in_its_bounds(n, ratio):
    got = constants(n, 2.0, 2.0 * ratio)
    assert min(n, 512) <= got.batch <= min(n, 8192)
    assert got.steps == n // got.batch >= 1
    assert got.of_a_row >= got.smoothness >= 2.0
    assert 0 < got.step_size <= 1 / got.smoothness * (1 + 1e-12)
    assert got.step_size == pytest.approx(
        1 / expected_smoothness(n, got.batch, got.smoothness, got.of_a_row)
    )


def test_momentum_forgets_within_an_epoch():
    got = constants(100_000, 1.0, 1.0)
    root = 1 / (2 * got.steps)
    assert got.momentum == pytest.approx((1 - root) / (1 + root))
    # What is left of a step at the end of the epoch is about exp(-1).
    assert got.momentum**got.steps == pytest.approx(math.exp(-1), rel=0.02)
    assert constants(512, 1.0, 1.0).momentum == pytest.approx(1 / 3)


def test_slower_divides_the_step():
    fast, slow = constants(10_000, 1.0, 30.0), constants(10_000, 1.0, 30.0, slower=4.0)
    assert slow.step_size == fast.step_size / 4
    assert slow.batch == fast.batch
