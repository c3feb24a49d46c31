"""Conjugate gradients against dense linear algebra: the solution, early ends, Ritz values."""

import numpy as np
import pytest
from provenglm import constants
from provenglm.model.conjugate_gradients import conjugate_gradients

SHAPES = pytest.mark.parametrize("shape", [(12,), (4, 3)], ids=["one output", "classes"])


def case(shape, seed=0):
    """A positive definite matrix, its diagonal's inverse, and a right side."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    half = rng.normal(size=(size, size)) * 10 ** rng.uniform(-1, 1, size)
    matrix = half.T @ half + 0.1 * np.eye(size)
    return matrix, 1 / matrix.diagonal(), rng.normal(size=shape)


def by(matrix):
    """Multiply arrays of any shape by a matrix."""
    return lambda array: (matrix @ array.ravel()).reshape(array.shape)


def textbook(matrix, inverse, right, count):
    """The iterates of preconditioned conjugate gradients (Golub & Van Loan 2013, 11.5)."""
    x, r = np.zeros(right.size), right.ravel().copy()
    z = inverse * r
    p, steps = z.copy(), [x]
    for _ in range(count):
        length = (r @ z) / (p @ matrix @ p)
        x, new = x + length * p, r - length * matrix @ p
        ratio = (new @ (inverse * new)) / (r @ z)
        r, z = new, inverse * new
        p = z + ratio * p
        steps.append(x)
    return steps


@SHAPES
def test_the_solution_is_that_of_a_dense_solver(shape):
    matrix, inverse, right = case(shape)
    before = right.copy()
    found = conjugate_gradients(by(matrix), right, by(np.diag(inverse)), 1e-12)
    exact = np.linalg.solve(matrix, right.ravel())
    np.testing.assert_allclose(found.step.ravel(), exact, rtol=1e-7, atol=1e-9)
    assert found.step.shape == shape
    assert np.array_equal(right, before)


@SHAPES
@pytest.mark.parametrize("leaves", [0.5, 0.1, 1e-3])
def test_an_end_as_soon_as_little_enough_is_left(shape, leaves):
    matrix, inverse, right = case(shape)
    found = conjugate_gradients(by(matrix), right, by(np.diag(inverse)), leaves)
    steps = textbook(matrix, inverse, right, len(found.lengths))
    np.testing.assert_allclose(found.step.ravel(), steps[-1], rtol=1e-8, atol=1e-10)
    rests = [right.ravel() - matrix @ step for step in steps]
    squares = [rest @ (inverse * rest) for rest in rests]
    assert found.first == pytest.approx(squares[0])
    assert found.square == pytest.approx(squares[-1], rel=1e-6, abs=1e-12 * squares[0])
    assert squares[-1] <= leaves**2 * squares[0]
    assert all(square > leaves**2 * squares[0] for square in squares[:-1])
    ratios = np.array(squares[1:]) / squares[:-1]
    # After as many steps as there are unknowns rounding is left.
    np.testing.assert_allclose(found.ratios, ratios, rtol=1e-6, atol=1e-12)


@SHAPES
@pytest.mark.parametrize("last", [1, 3])
def test_a_call_after_each_step_that_may_end_it(shape, last):
    matrix, inverse, right = case(shape)
    told = []

    def taken(length, square, rest):
        told.append((length, square, rest.copy()))
        return len(told) == last

    found = conjugate_gradients(by(matrix), right, by(np.diag(inverse)), 1e-9, taken)
    steps = textbook(matrix, inverse, right, last)
    assert len(told) == len(found.lengths) == last
    for (length, square, rest), before, after in zip(told, steps[:-1], steps[1:], strict=True):
        left = right.ravel() - matrix @ before
        assert square == pytest.approx(left @ (inverse * left), rel=1e-8)
        np.testing.assert_allclose(rest.ravel(), right.ravel() - matrix @ after, atol=1e-9)
        # What the model falls by is half of the length times the square.
        model = [0.5 * x @ matrix @ x - right.ravel() @ x for x in (before, after)]
        assert model[0] - model[1] == pytest.approx(0.5 * length * square, rel=1e-6)
    np.testing.assert_allclose(found.step.ravel(), steps[-1], rtol=1e-8, atol=1e-10)


def test_a_curvature_that_is_not_positive_ends_it():
    same = np.array([3.0, 1.0])
    found = conjugate_gradients(by(np.diag([-1.0, 0.0])), same, np.copy, 1e-9)
    assert not found.step.any()
    assert found.square == found.first == 10
    # After a step along which there is one.
    matrix, right = np.diag([1.0, 2.0, -1e-3]), np.array([1.0, 1.0, 1e-3])
    found = conjugate_gradients(by(matrix), right, np.copy, 1e-12)
    assert 0 < len(found.lengths) < 4
    assert np.isfinite(found.step).all()
    np.testing.assert_allclose(found.step[:2], [1.0, 0.5], rtol=1e-2)


def test_no_right_side_is_no_step():
    found = conjugate_gradients(by(np.eye(3)), np.zeros(3), np.copy, 0.1)
    assert not found.step.any()
    assert found.lengths == []
    assert found.least_eigenvalue == 1


def test_at_most_so_many_steps(monkeypatch):
    monkeypatch.setattr(constants, "MOST_STEPS", 2)
    matrix, inverse, right = case((12,))
    found = conjugate_gradients(by(matrix), right, by(np.diag(inverse)), 0.0)
    assert len(found.lengths) == 2


def test_the_least_ritz_value():
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    matrix = q @ np.diag([0.01, 0.5, 1.0, 2.0]) @ q.T
    right = rng.normal(size=4)
    whole = conjugate_gradients(by(matrix), right, np.copy, 1e-10)
    assert whole.least_eigenvalue == pytest.approx(0.01)
    # After two steps: that of the matrix over the space of both.
    ends = iter([False, True])
    part = conjugate_gradients(by(matrix), right, np.copy, 1e-10, lambda *_: next(ends))
    basis, _ = np.linalg.qr(np.column_stack([right, matrix @ right]))
    values = np.linalg.eigvalsh(basis.T @ matrix @ basis)
    assert part.least_eigenvalue == pytest.approx(values[0])
