"""The least value of a quadratic with a penalty on sizes, against plain coordinate descent."""

import numpy as np
import pytest
from provenglm.l1.proximal import iterate, step
from provenglm.l1.quadratic import Matrix, Products, minimise

CASES = range(16)


def case(seed):
    """H, c and mu: correlated, some singular, with duplicate columns, one without a penalty."""
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(3, 40)), int(rng.integers(10, 60))
    X = rng.normal(size=(n, m)) @ (np.eye(m) + (seed % 3) * rng.normal(size=(m, m)) / np.sqrt(m))
    if seed % 4 == 0:
        X[:, 1] = X[:, 0]
    H = X.T @ X / n
    c = X.T @ (X[:, :3].sum(axis=1) + rng.normal(size=n)) / n
    l1 = np.full(m, np.abs(c).max() * 10 ** rng.uniform(-2, -0.2))
    l1[-1] = 0
    return H, c, l1


def value(H, c, l1, t):
    return 0.5 * t @ H @ t - c @ t + l1 @ np.abs(t)


def descended(H, c, l1, sweeps=3000):
    """Coordinate descent."""
    t = np.zeros(len(c))
    gradient = -c.copy()
    for _ in range(sweeps):
        before = t.copy()
        for j in range(len(t)):
            wanted = t[j] * H[j, j] - gradient[j]
            new = np.sign(wanted) * max(abs(wanted) - l1[j], 0) / H[j, j]
            gradient += (new - t[j]) * H[j]
            t[j] = new
        if np.abs(t - before).max() < 1e-14:
            break
    return t


def off(H, c, l1, t):
    """By how much the conditions of the optimum are violated, relative to the penalty."""
    gradient = H @ t - c
    beyond = np.maximum(np.abs(gradient) - l1, 0)
    return np.where(t != 0, np.abs(gradient + l1 * np.sign(t)), beyond).max() / l1.max()


@pytest.mark.parametrize("seed", CASES)
def test_matrix(seed):
    H, c, l1 = case(seed)
    for start in (np.zeros(len(c)), np.random.default_rng(1).normal(size=len(c))):
        t = minimise(Matrix(H), c, l1, start)
        assert off(H, c, l1, t) < 1e-9
    if np.linalg.cond(H) < 1e6:
        assert np.abs(t - descended(H, c, l1)).max() < 1e-8


@pytest.mark.parametrize("seed", CASES)
def test_products(seed):
    H, c, l1 = case(seed)
    matrix = minimise(Matrix(H), c, l1, np.zeros(len(c)))
    products = Products(lambda v: H @ v, H.diagonal(), 1e-8)
    t = minimise(products, c, l1, np.zeros(len(c)), rounds=20)
    least = value(H, c, l1, matrix)
    assert value(H, c, l1, t) - least < 1e-4 * abs(least)
    if np.linalg.cond(H) < 1e4:
        assert value(H, c, l1, t) - least < 1e-9 * abs(least)


def test_products_that_do_not_see_ones():
    # As those of softmax, of which the same for all classes changes nothing.
    m = 31
    X = np.random.default_rng(4).normal(size=(50, m))
    X -= X[:, :-1].mean(axis=1, keepdims=True)
    X[:, -1] = 0
    H = X.T @ X / 50
    H[-1, -1] = 1  # the penalty of no intercept, where powers of ones would lead
    c, l1 = H @ np.linspace(-3, 3, m), np.full(m, 0.1)
    steps = Products(lambda v: H @ v, H.diagonal(), 1e-8)
    t, _ = steps.descend(np.zeros(m), -c, l1)
    least = value(H, c, l1, minimise(Matrix(H), c, l1, np.zeros(m)))
    assert value(H, c, l1, t) - least < 0.05 * abs(least)


@pytest.mark.parametrize("seed", CASES)
def test_search_and_steps_lead_lower(seed):
    H, c, l1 = case(seed)
    start = np.random.default_rng(2).normal(size=len(c))
    for quadratic in (Matrix(H), Products(lambda v: H @ v, H.diagonal(), 1e-6)):
        t, gradient = quadratic.descend(start, H @ start - c, l1)
        assert value(H, c, l1, t) < value(H, c, l1, start)
        assert np.abs(gradient - (H @ t - c)).max() < 1e-10
    # The search by itself goes to the end.
    t, _ = Matrix(H).descend(start, H @ start - c, l1)
    assert off(H, c, l1, t) < 1e-8


def test_sweeps_are_those_of_coordinate_descent():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 320))
    H, c = X.T @ X / 900, X.T @ X[:, :9].sum(axis=1) / 900
    l1 = np.full(320, 0.2)
    t, gradient, is_near = Matrix(H).near(np.zeros(320), -c, l1)
    assert is_near
    least = value(H, c, l1, minimise(Matrix(H), c, l1, np.zeros(320)))
    # A hundredth in the metric of the diagonal, a few in that of H.
    assert value(H, c, l1, t) - least < 0.1 * -least
    assert np.abs(gradient - (H @ t - c)).max() < 1e-12
    damped = Matrix(H).damped(np.full(320, 0.5))
    assert np.allclose(damped.times(t), H @ t + 0.5 * t)


class Ridge:
    """A model whose quadratic is exact."""

    def __init__(self, H, c, l1):
        self.H, self.c, self.l1 = H, c, l1

    def scores(self, theta):
        return theta

    def value(self, theta, scores):
        return 0.5 * theta @ self.H @ theta - self.c @ theta

    def gradient(self, theta, scores):
        return self.H @ theta - self.c

    def quadratic(self, scores, caution):
        return Matrix(self.H)

    def steepest(self):
        return self.H.diagonal()


def test_one_step_solves_a_quadratic_and_its_decrement_is_the_distance():
    H, c, l1 = case(3)
    H = H + 0.1 * np.eye(len(H))
    start = np.random.default_rng(1).normal(size=len(c))
    best = descended(H, c, l1)
    taken = step(Matrix(H), start, H @ start - c, l1)
    assert np.abs(taken.to - best).max() < 1e-8
    distance = value(H, c, l1, start) - value(H, c, l1, best)
    assert taken.decrement == pytest.approx(distance, rel=1e-9)
    first, second = (
        point for _, point in zip(range(2), iterate(Ridge(H, c, l1), start), strict=False)
    )
    assert first.decrement == pytest.approx(distance, rel=1e-9)
    assert second.decrement < 1e-12
