"""Judge of the benchmark of sparse and large data: optima with their proof, problems on disk.

`optimum` uses Newton's steps by conjugate gradients, in float64, and no solver that is judged. With
an L1 penalty they run among the weights that are not zero, after proximal steps have found which
ones these are. What is left above the optimum is bounded by the duality gap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from linear_judge import losses, means, objective
from linear_problems import Array, LinearProblem

ROWS = 100_000  # of a file, at a time
Vector = Array


class Reference(NamedTuple):
    """The least value of F, and how sure it is."""

    value: float
    bound: float
    """The duality gap: F at its point is at most this much above the least."""
    start: float
    """F at zero."""
    of_own: float
    """The least value with the intercept penalised as a weight: liblinear's and snapml's F."""
    bound_of_own: float


UNKNOWN = Reference(*[float("nan")] * 5)


class _Function:
    """F and its derivatives over (outputs x (features + 1)), the intercept last."""

    def __init__(self, problem: LinearProblem, of_intercept: float = 0.0) -> None:
        self.problem, self.of_intercept = problem, of_intercept
        self.outputs = problem.classes if problem.loss == "softmax" else 1
        self.shape = self.outputs, problem.x.shape[1] + 1
        self.rows = len(problem.y)
        self.penalty = np.append(np.full(self.shape[1] - 1, problem.l2), of_intercept)
        self.transposed = problem.x.T  # of a sparse matrix: a view, whose products are as fast

    def scores(self, v: Vector) -> Array:
        return np.asarray(self.problem.x @ v[:, :-1].T) + v[:, -1]

    def value(self, v: Vector, scores: Array) -> float:
        loss = losses(self.problem.loss, scores, self.problem.y).mean()
        return float(loss + (self.penalty * v**2).sum() / 2)

    def back(self, residuals: Array) -> Vector:
        """Return the rows' residuals (n, outputs) as a gradient of the mean loss."""
        features = np.asarray(self.transposed @ residuals).T
        return np.concatenate([features, residuals.sum(axis=0)[:, None]], axis=1) / self.rows

    def gradient(self, v: Vector, scores: Array) -> Vector:
        self.mu = means(self.problem.loss, scores)
        residuals = self.mu.copy()
        if self.outputs > 1:
            residuals[np.arange(self.rows), self.problem.y] -= 1
        else:
            residuals -= self.problem.y[:, None]
        return self.back(residuals) + self.penalty * v

    def product(self, v: Vector) -> Vector:
        """Return the Hessian where the gradient was taken, times v."""
        inner = self.scores(v)
        if self.outputs > 1:
            inner -= (self.mu * inner).sum(axis=1, keepdims=True)
            inner *= self.mu
        else:
            inner *= self.mu * (1 - self.mu)
        return self.back(inner) + self.penalty * v

    def diagonal(self) -> Vector:
        squared = self.problem.x.copy()
        squared.data **= 2
        curvatures = self.mu * (1 - self.mu)
        of_features = np.asarray(squared.T @ curvatures).T
        found = np.concatenate([of_features, curvatures.sum(axis=0)[:, None]], axis=1)
        return found / self.rows + self.penalty


def _conjugate_gradients(
    product: Callable[[Vector], Vector], diagonal: Vector, right: Vector, accuracy: float
) -> Vector:
    step, residual = np.zeros_like(right), right.copy()
    direction = solved = residual / diagonal
    first = size = float((residual * solved).sum())
    for _ in range(1000):
        if not size > accuracy**2 * first:
            break
        image = product(direction)
        length = size / float((direction * image).sum())
        step += length * direction
        residual -= length * image
        solved = residual / diagonal
        size, before = float((residual * solved).sum()), size
        direction = solved + size / before * direction
    return step


def _newton(
    function: _Function, v: Vector, slope: Vector, free: Array, wanted: float
) -> tuple[Vector, Array, float]:
    """Minimise F + slope . v over the free entries; return the point, its scores and gradient.

    With a slope, an entry that would change its sign becomes zero, and is not free from then on.
    """
    scores = function.scores(v)
    for _ in range(100):
        value = function.value(v, scores) + float((slope * v).sum())
        gradient = (function.gradient(v, scores) + slope) * free
        size = float(np.sqrt((gradient**2).sum()))
        if size < wanted:
            break
        step = _conjugate_gradients(
            _of_free(function, free), function.diagonal(), -gradient, min(0.1, np.sqrt(size))
        )
        length = 1.0
        while length > 1e-9:
            trial = v + length * step
            trial[(slope != 0) & (trial * slope <= 0)] = 0
            scores = function.scores(trial)
            found = function.value(trial, scores) + float((slope * trial).sum())
            fall = float((gradient * (trial - v)).sum())
            # Near the end F falls by less than its own rounding: the whole step is right.
            if found <= value + 1e-4 * fall or -fall < 1e-13 * value:
                break
            length /= 2
        v = trial
        free = free & ((slope == 0) | (v != 0))
        slope = np.where(free, slope, 0.0)
    return v, scores


def _of_free(function: _Function, free: Array) -> Callable[[Vector], Vector]:
    return lambda direction: function.product(direction) * free


def duality_gap(problem: LinearProblem, v: Vector, gradient: Vector, of_intercept: float) -> float:
    """Return F - D, D the dual's value at the residuals of this point; the L2 may not be zero.

    The residuals have to add up to zero where the intercept is free: the last gradient of a Newton
    run is that near to it. By Fenchel's equality the conjugates of the loss cancel:
    gap = sum of g w + l2 / 2 w^2 + l1 |w| + (|g| - l1)_+^2 / (2 l2), g the gradient of the loss.
    """
    weights, loss = v[:, :-1], gradient[:, :-1] - problem.l2 * v[:, :-1]
    beyond = np.maximum(np.abs(loss) - problem.l1, 0)
    terms = loss * weights + problem.l2 / 2 * weights**2 + problem.l1 * np.abs(weights)
    found = float((terms + beyond**2 / (2 * problem.l2)).sum())
    if of_intercept:
        found += float((gradient[:, -1] ** 2).sum()) / (2 * of_intercept)
    return found


def minimum(problem: LinearProblem, of_intercept: float = 0.0) -> tuple[float, float, Vector]:
    """Return the least value, what it is above the least at most, and where it is."""
    function = _Function(problem, of_intercept)
    v, everywhere = np.zeros(function.shape), np.ones(function.shape, bool)
    start = function.value(v, function.scores(v))
    # Of a gradient of this size the gap is 1e-13 of the whole.
    wanted = float(np.sqrt(2 * problem.l2 * 1e-13 * start))
    if not problem.l1:
        v, scores = _newton(function, v, np.zeros(function.shape), everywhere, wanted)
    else:
        v, scores = _with_l1(function, v, wanted)
    gradient = function.gradient(v, scores)
    bound = duality_gap(problem, v, gradient, of_intercept)
    value = objective(problem, v[:, :-1], v[:, -1])
    return value + of_intercept / 2 * float((v[:, -1] ** 2).sum()), bound, v


def _with_l1(function: _Function, v: Vector, wanted: float) -> tuple[Vector, Array]:
    """Proximal steps for the signs, Newton's among the weights that they leave; until it is it."""
    problem = function.problem
    l1 = np.append(np.full(function.shape[1] - 1, problem.l1), 0.0)
    lengths = np.asarray(problem.x.multiply(problem.x).sum(axis=1))
    smooth = 0.25 * (float(lengths.max()) + 1) + problem.l2
    scores = function.scores(v)
    for _ in range(50):
        v = _accelerated(function, v, l1, smooth, 200)
        slope = l1 * np.sign(v)
        free = (v != 0) | (l1 == 0)
        v, scores = _newton(function, v, slope, free, wanted)
        gradient = function.gradient(v, scores)
        gap = duality_gap(problem, v, gradient, 0.0)
        if gap < 1e-12 * np.log(2):
            break
    return v, scores


def _accelerated(function: _Function, v: Vector, l1: Vector, smooth: float, steps: int) -> Vector:
    """Nesterov's proximal steps, restarted if the step turns against the last."""
    ahead, momentum = v, 1.0
    for _ in range(steps):
        moved = ahead - function.gradient(ahead, function.scores(ahead)) / smooth
        new = np.sign(moved) * np.maximum(np.abs(moved) - l1 / smooth, 0)
        if float(((ahead - new) * (new - v)).sum()) > 0:
            momentum = 1.0
        longer = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / longer * (new - v)
        v, momentum = new, longer
    return v


def of_file(problem: LinearProblem) -> tuple[float, float, Vector]:
    """Return the same as `minimum` of dense rows in a file, which are read a block at a time.

    Newton's steps with the Hessian of a part of the rows, until they converge: the gradients are
    those of all rows.
    """
    rows, columns = problem.x.shape
    random = np.random.default_rng(0)
    chosen = np.sort(random.choice(rows, min(rows, 200_000), replace=False))
    sample = np.ones((len(chosen), columns + 1))
    sample[:, :-1] = problem.x[chosen]
    v = np.zeros((1, columns + 1))
    for _ in range(40):
        value, gradient = look(problem, v)
        bound = duality_gap(problem, v, gradient, 0.0)
        if bound < 1e-11:
            break
        mu = means(problem.loss, sample @ v.T)
        hessian = (sample * (mu * (1 - mu))).T @ sample / len(chosen)
        hessian[np.arange(columns), np.arange(columns)] += problem.l2
        v -= np.linalg.solve(hessian, gradient[0])
    return value, bound, v


def look(problem: LinearProblem, v: Vector) -> tuple[float, Vector]:
    """Return F and its gradient, with blocks of the rows in memory."""
    total, gradient = 0.0, np.zeros_like(v)
    for begin in range(0, len(problem.y), ROWS):
        part = slice(begin, begin + ROWS)
        x, y = np.asarray(problem.x[part], "float64"), problem.y[part]
        scores = x @ v[:, :-1].T + v[:, -1]
        total += float(losses(problem.loss, scores, y).sum())
        residuals = means(problem.loss, scores) - y[:, None]
        gradient[:, :-1] += residuals.T @ x
        gradient[:, -1] += residuals.sum(axis=0)
    gradient /= len(problem.y)
    gradient[:, :-1] += problem.l2 * v[:, :-1]
    return total / len(problem.y) + problem.l2 / 2 * float((v[:, :-1] ** 2).sum()), gradient


def reference(problem: LinearProblem) -> Reference:
    """Return what there is to know of the optimum, from zero."""
    start = objective(problem, np.zeros((problem.classes, problem.x.shape[1])), np.zeros(1))
    if not sp.issparse(problem.x):
        value, bound, _ = of_file(problem)
        return Reference(value, bound, start, float("nan"), float("nan"))
    value, bound, _ = minimum(problem)
    own, bound_of_own = float("nan"), float("nan")
    if problem.loss == "logistic" and not problem.l1:
        own, bound_of_own, _ = minimum(problem, problem.l2)
    return Reference(value, bound, start, own, bound_of_own)


def digest(problem: LinearProblem) -> str:
    """Return what tells data from other data: of rows in a file, every thousandth."""
    found = hashlib.sha256(repr((problem.x.shape, problem.loss, problem.l2, problem.l1)).encode())
    found.update(np.ascontiguousarray(problem.y))
    if sp.issparse(problem.x):
        arrays = [problem.x.indptr, problem.x.indices, problem.x.data]
    else:
        arrays = [problem.x[::1000]]
    for array in arrays:
        found.update(np.ascontiguousarray(array))
    return found.hexdigest()[:16]


def write(folder: Path, problem: LinearProblem) -> None:
    """Put arrays and card into the folder; rows that are a file already stay where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    if sp.issparse(problem.x):
        for name in ("data", "indices", "indptr"):
            np.save(folder / f"x_{name}.npy", getattr(problem.x, name))
    elif not isinstance(problem.x, np.memmap):
        np.save(folder / "x.npy", problem.x)
    np.save(folder / "y.npy", problem.y)
    card: dict[str, Any] = {name: getattr(problem, name) for name in ("name", "loss", "l2", "l1")}
    card |= {"shape": problem.x.shape, "digest": digest(problem)}
    (folder / "card.json").write_text(json.dumps(card, indent=1), encoding="utf-8")


def card_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text(encoding="utf-8"))


def read(folder: Path) -> LinearProblem:
    """Return the problem of a folder; dense rows as the file that they are."""
    card = card_of(folder)
    shape = card.pop("shape")
    del card["digest"]
    if (folder / "x_data.npy").exists():
        arrays = [np.load(folder / f"x_{name}.npy") for name in ("data", "indices", "indptr")]
        x = sp.csr_matrix(tuple(arrays), shape=shape)
        x.has_sorted_indices = x.has_canonical_format = True
    else:
        x = np.load(folder / "x.npy", mmap_mode="r")
    return LinearProblem(x=x, y=np.load(folder / "y.npy"), **card)


class Judge(NamedTuple):
    """How far weights are from a problem's optimum."""

    problem: LinearProblem
    optimum: Reference
    is_own: bool = False
    """Whether the intercept is penalised as a weight, as liblinear and snapml do."""

    def gap(self, weight: Array, bias: Array) -> float:
        """Return (F - F*) / (F(0) - F*)."""
        value = objective(self.problem, weight, bias)
        if self.is_own:
            value += self.problem.l2 / 2 * float(np.square(bias).sum())
        return self.gap_of(value)

    def gap_of(self, value: float) -> float:
        least = self.optimum.of_own if self.is_own else self.optimum.value
        return (value - least) / (self.optimum.start - least)
