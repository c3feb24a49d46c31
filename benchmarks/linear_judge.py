"""Judge of the linear solvers' benchmark: the objective in float64, its optimum, problems on disk.

A problem is written once, into a folder of arrays with a card; every solver's process reads it, so
that all of them get the same bits, whatever NumPy they have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from linear_problems import Array, LinearProblem
from scipy.linalg import cho_factor, cho_solve

ROWS = 100_000  # at a time: what an objective needs beside the data stays small


def objective(problem: LinearProblem, weight: Array, bias: Array) -> float:
    """Return F at weights (outputs x features) and biases (outputs), in float64."""
    weight, bias = np.atleast_2d(weight).astype("float64"), np.ravel(bias).astype("float64")
    s = problem.weights()
    total = 0.0
    for part in _parts(len(s)):
        scores = problem.x[part].astype("float64", copy=False) @ weight.T + bias
        total += s[part] @ losses(problem.loss, scores, problem.y[part])
    penalty = problem.l2 / 2 * (weight**2).sum() + problem.l1 * np.abs(weight).sum()
    return float(total / s.sum() + penalty)


def losses(name: str, scores: Array, y: Array) -> Array:
    """Return the loss of each row, (n,), of its scores, (n, K)."""
    if name == "softmax":
        highest = scores.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(scores - highest).sum(axis=1)) + highest[:, 0]
        return log_sums - scores[np.arange(len(y)), y]
    z = scores[:, 0]
    if name == "logistic":
        return np.logaddexp(0, z) - y * z
    if name == "poisson":
        return np.exp(z) - y * z
    raise ValueError(f"{name!r} is no loss of these problems: logistic, softmax, poisson")


def means(name: str, scores: Array) -> Array:
    """Return what is predicted, (n, K): probabilities, or rates."""
    if name == "softmax":
        table = np.exp(scores - scores.max(axis=1, keepdims=True))
        return table / table.sum(axis=1, keepdims=True)
    if name == "logistic":
        return 1 / (1 + np.exp(-scores))
    return np.exp(scores)


def _parts(rows: int) -> Iterator[slice]:
    return (slice(begin, begin + ROWS) for begin in range(0, rows, ROWS))


class Optimum(NamedTuple):
    """The least value of F, and how sure it is."""

    value: float
    """F at the weights, by `objective`."""
    decrement: float
    """Newton's estimate of what F at the weights is above the least."""
    start: float
    """F at zero."""
    condition: float
    """Of the Hessian at the optimum (one output: exact; softmax: of the worst class's block)."""
    raw_condition: float
    """The same before the columns are standardised."""


UNKNOWN = Optimum(*[float("nan")] * 5)


class _Newton:
    """F of standardised columns and the ones of the intercept, with all that Newton needs."""

    def __init__(self, problem: LinearProblem) -> None:
        self.problem = problem
        self.s = problem.weights() / problem.weights().sum()
        x = problem.x
        self.mean, self.scale = x.mean(axis=0), x.std(axis=0)
        self.scale[self.scale == 0] = 1
        self.z = np.ones((x.shape[0], x.shape[1] + 1))
        np.subtract(x, self.mean, out=self.z[:, :-1])
        self.z[:, :-1] /= self.scale
        self.penalty = np.append(problem.l2 / self.scale**2, 0.0)
        self.outputs = problem.classes if problem.loss == "softmax" else 1
        self.y = np.eye(self.outputs)[problem.y] if self.outputs > 1 else problem.y[:, None]

    def value(self, v: Array) -> float:
        with np.errstate(over="ignore"):  # of a step that is far too long
            loss = losses(self.problem.loss, self.z @ v.T, self.problem.y)
        return float(self.s @ loss + (self.penalty * v**2).sum() / 2)

    def look(self, v: Array) -> Array:
        """Return the gradient, and keep what the Hessian is made of."""
        self.mu = means(self.problem.loss, self.z @ v.T)
        return (self.s[:, None] * (self.mu - self.y)).T @ self.z + self.penalty * v

    def curvatures(self) -> Array:
        return self.mu if self.problem.loss == "poisson" else self.mu * (1 - self.mu)

    def product(self, v: Array) -> Array:
        """Return the Hessian times v."""
        inner = self.z @ v.T
        if self.problem.loss == "softmax":
            inner -= (self.mu * inner).sum(axis=1, keepdims=True)
            inner *= self.mu
        else:
            inner *= self.curvatures()
        return (self.s[:, None] * inner).T @ self.z + self.penalty * v

    def blocks(self) -> list[Array]:
        """Return each output's own block of the Hessian."""
        curvatures, found = self.s[:, None] * self.curvatures(), []
        for k in range(self.outputs):
            block = np.diag(self.penalty)
            for part in _parts(len(self.s)):
                block += (self.z[part] * curvatures[part, k, None]).T @ self.z[part]
            found.append(block)
        return found

    def weights(self, v: Array) -> tuple[Array, Array]:
        weight = v[:, :-1] / self.scale
        return weight, v[:, -1] - weight @ self.mean


def optimum(problem: LinearProblem) -> tuple[Optimum, Array, Array]:
    """Find the least F by Newton's method in float64; return it, the weights and the biases.

    The steps come from conjugate gradients in the metric of the outputs' own blocks, which for one
    output is the Hessian itself.
    """
    if problem.x.shape[0] < problem.x.shape[1]:
        # The weights lie in the span of the rows: solve in as many dimensions as there are rows.
        basis, triangle = np.linalg.qr(problem.x.T)
        found, weight, bias = optimum(problem._replace(x=triangle.T))
        return found, weight @ basis.T, bias
    newton = _Newton(problem)
    v = np.zeros((newton.outputs, newton.z.shape[1]))
    start = best = newton.value(v)
    decrement, factors, before = np.inf, [], -1
    cheap = newton.z.size * newton.z.shape[1] * newton.outputs < 3e10
    for number in range(60):
        gradient = newton.look(v)
        if cheap or number in (0, 1, 2, 4, 7, 12, 20, 35):
            blocks = newton.blocks()
            factors = [cho_factor(block) for block in blocks]
        step, decrement = _conjugate_gradients(newton, factors, -gradient)
        length, found = _line_search(newton, v, step, best, decrement)
        if (decrement < 1e-13 * (start - best) and number - before > 1) or not length:
            break
        if decrement >= 1e-13 * (start - best):
            before = number
        v, best = v + length * step, found
    weight, bias = newton.weights(v)
    conditions = [np.linalg.cond(block) for block in blocks]
    raw = [np.linalg.cond(_unscaled(newton, block)) for block in blocks]
    value = objective(problem, weight, bias)
    return Optimum(value, float(decrement), start, max(conditions), max(raw)), weight, bias


def _unscaled(newton: _Newton, block: Array) -> Array:
    """Return a block of the Hessian in the user's own columns."""
    size = len(block)
    change = np.eye(size)
    change[:-1, :-1] = np.diag(newton.scale)
    change[-1, :-1] = newton.mean
    return change.T @ block @ change


def _conjugate_gradients(
    newton: _Newton, factors: list[tuple[Array, bool]], right: Array
) -> tuple[Array, float]:
    """Solve H step = right; return the step and half of right . step, the decrement."""

    def solve(vectors: Array) -> Array:
        solved = np.stack([cho_solve(f, v) for f, v in zip(factors, vectors, strict=True)])
        # The same to all classes changes nothing but the penalty: the optimum has none of it, and
        # without it the blocks are near to the Hessian.
        return solved - solved.mean(axis=0) if len(solved) > 1 else solved

    step, residual = np.zeros_like(right), right.copy()
    direction = solved = solve(residual)
    first = size = float((residual * solved).sum())
    for _ in range(300):
        if not size > 1e-6 * first:
            break
        product = newton.product(direction)
        length = size / float((direction * product).sum())
        step, residual = step + length * direction, residual - length * product
        solved = solve(residual)
        size, before = float((residual * solved).sum()), size
        direction = solved + size / before * direction
    return step, float((right * step).sum()) / 2


def _line_search(
    newton: _Newton, v: Array, step: Array, best: float, decrement: float
) -> tuple[float, float]:
    """Return the first of 1, 1/2, 1/4, ... that F falls with, and F there; 0 if there is none."""
    length = 1.0
    while length > 1e-6:
        found = newton.value(v + length * step)
        # Near the end F falls by less than its own rounding: the whole step is right.
        if found <= best - 1e-4 * length * decrement or decrement < 1e-12 * best:
            return length, found
        length /= 2
    return 0.0, best


def write(folder: Path, problem: LinearProblem, known: Optimum) -> None:
    """Put arrays and card into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", problem.x)
    np.save(folder / "y.npy", problem.y)
    if problem.sample_weight is not None:
        np.save(folder / "weight.npy", problem.sample_weight)
    card = {field: getattr(problem, field) for field in ("name", "loss", "l2", "class_weight")}
    text = json.dumps({**card, "optimum": known._asdict()}, indent=1)
    (folder / "card.json").write_text(text, encoding="utf-8")


class Judge(NamedTuple):
    """A problem that was read from its folder, and how far weights are from its optimum."""

    problem: LinearProblem
    optimum: Optimum

    def gap(self, weight: Array, bias: Array) -> float:
        """Return (F - F*) / (F(0) - F*)."""
        return self.gap_of(objective(self.problem, weight, bias))

    def gap_of(self, value: float) -> float:
        return (value - self.optimum.value) / (self.optimum.start - self.optimum.value)


def read(folder: Path) -> Judge:
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    known = Optimum(**card.pop("optimum"))
    weight = folder / "weight.npy"
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("x", "y")}
    given = np.load(weight) if weight.exists() else None
    return Judge(LinearProblem(**card, **arrays, sample_weight=given), known)
