"""Fit Huber's regression with its scale, by an outer search for sigma. The loss is in `losses`.

The objective over the coefficients w, the intercept b and the scale sigma > 0, with the residuals
r = y - Xw - b, the weights s and their sum S, is

    F(w, b, sigma) = (1/S) sum_i s_i [sigma/2 + sigma h(r_i / sigma)] + alpha/2 ||w||^2

where h(z) is z^2/2 for abs(z) <= epsilon, and epsilon (abs(z) - epsilon/2) for larger z (Huber,
*Robust Statistics*, on concomitant scale estimates; Owen, *A robust hybrid of lasso and ridge
regression*, 2006; these are the sources of scikit-learn's ``HuberRegressor``). F is convex in w, b
and sigma together. It is 1/(2S) times HuberRegressor's objective with an ``alpha`` of alpha S.

For a fixed sigma, F is sigma times (1/2 + G), where G is the objective of a problem with the target
y / sigma, the coefficients w / sigma, the loss h and the penalty alpha sigma. For fixed
coefficients, let T be the best sigma: the root of ``mean(min((r/sigma)^2, epsilon^2)) = 1``. At the
optimum, T is sigma. The search is a secant method for the root of log T - log sigma. This has the
sign of -dF/dsigma, so every solve narrows an interval.

**Certificate.** For any u with abs(u_i) <= epsilon, Fenchel's inequality gives
sigma h(r/sigma) >= u r - sigma u^2/2. If also mean(u^2) <= 1 and, with an intercept, mean(u) = 0,
the terms with sigma and b are at least 0, and

    F >= mean(u y) - ||(1/S) sum_i s_i u_i x_i||^2 / (2 alpha)   for all w, b, sigma.

The bound uses u_i = r_i / sigma, clipped, centred and scaled down to meet the three conditions.
With u = 0 it is 0. At the optimum mean(u^2) is 1, mean(u) is 0, and (1/S) sum_i s_i u_i x_i is
alpha w. If alpha is small and the last equation holds to few digits only, the bound is far below F.
Therefore a Newton step for w, b and sigma moves the u_i of rows that are not outliers. The
remaining error is quadratic in the distance to the optimum.

Without a penalty the sum of s_i u_i x_i must be exactly 0. A small change of the u_i of rows that
are not outliers cancels the sum that rounding has left. Let tau be the size of this change, the
root of (1/S) sum_i s_i change_i^2. It equals the norm of that sum in the inverse of the Gram matrix
of these rows; `orthogonal` bounds it. Then mean(u y) is mean(u r) for the residuals r of any
coefficients, and F is at least mean(u r) - tau root(mean(r^2)), where the second mean is over the
rows that are not outliers. The conditions on u are checked with a margin for a change of size tau.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from provenglm import constants
from provenglm.model.losses import Huber
from provenglm.model.problem import Problem
from provenglm.model.returned import shifted
from provenglm.model.solution import ROUNDING, Record, Settings, Solution, StopReason, judged
from provenglm.model.triangle import TriangleMetric, parts_of_triangle, triangle
from provenglm.plan import in_memory_if_small
from provenglm.proof.orthogonal import LARGEST_RATIO, ProofRows, qr_bounds
from provenglm.rows.products import column_products
from provenglm.rows.table import Block, Table
from provenglm.solve import solve
from provenglm.types import NumPyArray
from provenglm.workers import Workers

# The largest change of log sigma in a step: a secant far from the root may lead anywhere.
_FURTHEST = math.log(10)
# A scale counts as its own best scale if the ratio of the two is at least this.
_OWN_BEST = 0.99
# Features are centred before products if their mean is more than this many standard deviations.
_FAR = 1e5
# Rows are not outliers if their residual is below this part of epsilon.
_INSIDE = 0.9
# Steps at the level of rounding, and attempts at a proof.
_TRIES = 3
# Two scales are equal up to rounding if their logarithms differ by at most this.
_SAME_LOG = 1e-13


def best_scale(
    residual: NumPyArray, epsilon: float, weight: NumPyArray | None, least: float = 0.0
) -> float:
    """Return the best sigma for these residuals.

    It is the root of ``f(t) = mean(min(r^2 t, epsilon^2)) = 1`` with t = 1/sigma^2. f is concave
    and piecewise linear. Newton's method starts at the left, where no residual is clipped. It never
    passes the root, and reaches it after finitely many steps.

    Parameters
    ----------
    residual : numpy.ndarray of shape (n,), float64
        y - Xw - b.
    epsilon : float
        Above 1.
    weight : numpy.ndarray of shape (n,), or None
        The weights of the samples.
    least : float
        A lower bound, which is returned if the root is smaller.

    Returns
    -------
    float
        The best sigma. If f stays below 1 it is 0, or `least`: all rows except outliers are then
        fitted perfectly.
    """
    unit = float(np.abs(residual).max(initial=0.0))
    if unit == 0:
        return least
    squares = (residual / unit) ** 2  # without overflow
    s = np.ones(len(residual)) if weight is None else weight
    total, above = float(s.sum()), float(s @ squares)
    variance = above / total
    while True:
        outside = squares > epsilon**2 * variance
        remaining = total - epsilon**2 * float(s[outside].sum())
        inside = float(s[~outside] @ squares[~outside])
        if remaining <= 0 or inside == 0:
            return least
        smaller = inside / remaining
        if smaller >= variance:
            return max(unit * math.sqrt(variance), least)
        variance = smaller


def far_means(problem: Problem) -> NumPyArray:
    """Return the centres that are subtracted from the features before products, (p,).

    They are 0, except for columns whose deviation is a small part of their mean. The means are
    computed from the first rows.
    """
    table = _table(problem)
    center = np.zeros(table.rows.shape[1])
    if not problem.fit_intercept or table.rows.is_sparse:
        return center
    block = table.gathered(np.arange(min(table.n, constants.LEAST_ROWS)))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = block.mean(axis=0)
        deviation = np.sqrt(np.square(block - mean).mean(axis=0))
    is_far = np.abs(mean) > _FAR * deviation
    center[is_far] = mean[is_far]
    return center


def lower_bound(
    problem: Problem,
    residual: NumPyArray,
    scale: float,
    epsilon: float,
    center: NumPyArray | None = None,
) -> float:
    """Return a lower bound of F over all coefficients, intercepts and scales, with a penalty.

    See the module's docstring.

    Parameters
    ----------
    problem : Problem
        The problem. Its loss is not used.
    residual : numpy.ndarray of shape (n,), float64
        y - Xw - b.
    scale : float
        Above 0.
    epsilon : float
        Above 1.
    center : numpy.ndarray, (p,), optional
        Centres to subtract from the features; this only changes rounding errors.
    """
    n = len(residual)
    s = np.ones(n) if problem.sample_weight is None else problem.sample_weight
    s = s / s.sum()
    dual = np.clip(residual / scale, -epsilon, epsilon)
    if problem.fit_intercept:
        dual = dual - s @ dual
    dual /= max(1.0, float(np.abs(dual).max()) / epsilon, math.sqrt(float(s @ dual**2)))
    with np.errstate(over="ignore", invalid="ignore"):  # with features of 1e300 there is no bound
        slope = _products(problem, s * dual, center)
        bound = float((s * dual) @ problem.target - slope @ slope / (2 * problem.l2))
    return bound if bound > 0 else 0.0


def bound_without_penalty(
    problem: Problem,
    coef: NumPyArray,
    residual: NumPyArray,
    dual: NumPyArray,
    epsilon: float,
    center: NumPyArray,
) -> float:
    """Return a lower bound of F without a penalty, in two passes over the rows.

    See the module's docstring. If columns are sums of others up to rounding, the bound holds for
    coefficients that are at most `LARGEST_RATIO` times as large as `coef`.

    Parameters
    ----------
    coef : numpy.ndarray, (p,)
    residual : numpy.ndarray, (n,)
        The residuals at these coefficients.
    dual : numpy.ndarray, (n,)
        The numbers u. They are clipped to epsilon.
    """
    table = _table(problem)
    (n, p), share = table.rows.shape, table.share
    width = p + problem.fit_intercept
    if width > constants.MOST_WEIGHTS:
        return 0.0
    dual = np.clip(dual, -epsilon, epsilon)
    is_inside = np.abs(dual) < _INSIDE * epsilon

    def blocks() -> Iterator[ProofRows]:
        for part in parts_of_triangle(n, width):
            raw: Any = Block(table, 0, part).raw
            numbers = _moved(raw.toarray() if table.rows.is_sparse else raw, center)
            features = np.hstack([numbers, np.ones((len(numbers), width - p))])
            weight = share[part] * is_inside[part]
            yield ProofRows(features, share[part], weight, dual[part, None])

    found = qr_bounds(blocks, width)
    if found is None:
        return 0.0
    farthest = np.abs(dual) + np.where(is_inside, found.norm * found.norms, 0.0)
    square = math.sqrt(float(share @ dual**2)) + found.norm
    inside_size = math.sqrt(float(share[is_inside] @ residual[is_inside] ** 2))
    bound = float((share * dual) @ residual) - found.norm * inside_size
    bound -= LARGEST_RATIO * float(np.linalg.norm(found.sizes[:p] * coef)) * found.left
    bound /= max(1.0, float(farthest.max()) / epsilon, square)
    return bound if bound > 0 else 0.0


def _table(problem: Problem) -> Table:
    """Return the rows in float64."""
    table = problem.table(Workers(0), precise=True)
    assert isinstance(table, Table)
    return table


def _moved(block: Any, center: NumPyArray | None) -> Any:
    return block if center is None or not center.any() else block - center


def _products(problem: Problem, dual: NumPyArray, center: NumPyArray | None) -> NumPyArray:
    """Return the sum of the features over all rows, weighted with one number per row, (p,)."""

    def products(block: Block) -> NumPyArray:
        return column_products(_moved(block.raw, center), dual[block.part])

    return np.asarray(_table(problem).sum(products))


def _scores(
    problem: Problem, coef: NumPyArray, intercept: NumPyArray, center: NumPyArray
) -> NumPyArray:
    """Return the scores of all rows in float64, (n, 1)."""
    products = _table(problem).sum(lambda block: [_moved(block.raw, center) @ coef])
    return np.asarray(np.concatenate(products) + shifted(intercept, center, coef))


def moved(
    problem: Problem,
    coef: NumPyArray,
    residual: NumPyArray,
    scale: float,
    epsilon: float,
    center: NumPyArray | None = None,
    is_perfect: bool = False,
) -> NumPyArray:
    """Return residuals for which `lower_bound` is closer to F; see the module's docstring.

    Parameters
    ----------
    coef : numpy.ndarray, (p,)
    is_perfect : bool
        Whether the best scale is almost 0, so that the mean of u^2 may be below 1.
    center : numpy.ndarray, (p,), optional
        As in `lower_bound`.
    """
    table = _table(problem)
    p, s = table.rows.shape[1], table.share
    if p > constants.MOST_WEIGHTS:
        return residual
    dual = np.clip(residual / scale, -epsilon, epsilon)
    scale_term = 0.0 if is_perfect else (s @ dual**2 - 1) / 2
    wrong = np.append(_products(problem, s * dual, center) - problem.l2 * coef, scale_term)
    if problem.fit_intercept:
        wrong = np.append(wrong, s @ dual)
    inside = np.flatnonzero((np.abs(dual) < epsilon) & (s > 0))
    # With many rows use some of them. With fewer rows the remaining error is larger.
    chosen = inside[:: math.ceil(max(1, len(inside) * (p + 2) ** 2 / constants.LARGEST_PROOF))]
    size = max(2 * (p + 2), constants.PART_ROWS // (p + 2))
    parts = [chosen[start : start + size] for start in range(0, len(chosen), size)]

    def columns(part: NumPyArray) -> NumPyArray:
        scale_term = np.zeros(len(part)) if is_perfect else dual[part]
        beside = [scale_term, np.ones(len(part))][: len(wrong) - p]
        return np.column_stack([_moved(table.gathered(part), center), *beside])

    weighted = (columns(part) * np.sqrt(s[part])[:, None] for part in parts)
    with np.errstate(over="ignore", invalid="ignore"):
        upper = triangle(weighted, len(wrong))
    if not np.isfinite(upper).all():
        return residual
    step = TriangleMetric(upper).solve(wrong)
    dual = dual.copy()
    for part in parts:
        dual[part] -= columns(part) @ step
    return scale * dual


def joint_objective(
    problem: Problem, coef: NumPyArray, residual: NumPyArray, scale: float, epsilon: float
) -> float:
    """Return F as defined in the module's docstring; for a scale of 0 return its limit."""
    size = np.abs(residual)
    inside = size <= epsilon * scale
    # Compute sigma h(r / sigma) without a quotient that may overflow.
    loss = np.where(inside, 0.0, epsilon * (size - epsilon * scale / 2))
    if scale > 0:
        loss[inside] = size[inside] / scale * size[inside] / 2
    mean = float(np.average(loss, weights=problem.sample_weight))
    return scale / 2 + mean + problem.l2 / 2 * float(np.vdot(coef, coef))


def _gap(objective: float, bound: float, error: float, scale: float, epsilon: float) -> float:
    """Return F minus a lower bound, plus the effect of errors of the scores: see `duality`.

    The slope of a loss is at most epsilon, and its second derivative at most 1 / sigma.

    Parameters
    ----------
    error : float
        The root mean square of the errors.
    scale : float
        The scale for F, sigma.
    """
    gap = max(objective - bound, 0.0)
    change = error / math.sqrt(2 * scale) if scale > 0 else math.inf
    return gap + min(epsilon * error, 2 * math.sqrt(gap) * change + change * change)


def weighted_median(values: NumPyArray, weight: NumPyArray | None) -> float:
    """Return the smallest value such that values up to it have at least half of the weight."""
    order = np.argsort(values, kind="stable")
    sums = np.arange(1, len(values) + 1) if weight is None else np.cumsum(weight[order])
    return float(values[order[np.searchsorted(sums, sums[-1] / 2)]])


def solve_with_scale(
    problem: Problem,
    settings: Settings,
    start: tuple[NumPyArray, NumPyArray] | None = None,
) -> tuple[Solution, float]:
    """Minimise over coefficients, intercept and scale.

    Parameters
    ----------
    problem : Problem
        The problem. Its loss is Huber's, with epsilon in units of the scale; ``l2`` is alpha.
    settings : Settings
        ``tol``, ``max_iter`` and ``max_time`` apply to the whole search. ``tol`` is relative to the
        improvement over the best constant (with an intercept), or over 0.
    start : tuple, optional
        Coefficients of shape (p, 1) and intercept of shape (1,).

    Returns
    -------
    solution : Solution
        The solution, with objective, gap and records of F. The gap is proven for coefficients,
        intercept and scale together.
    scale : float
        The best sigma for the solution's coefficients; 0 for a perfect fit.
    """
    assert isinstance(problem.loss, Huber)
    epsilon = problem.loss.epsilon
    if problem.offset is not None:
        # The search only depends on residuals.
        problem = replace(problem, target=problem.target - problem.offset[:, 0], offset=None)
    return _Search(in_memory_if_small(problem), epsilon, settings).run(start)


@dataclass
class _Secant:
    """The search for the root of log T - log sigma; x is log sigma."""

    last: tuple[float, float] | None = None
    low: float = -math.inf
    high: float = math.inf

    def next(self, x: float, best: float) -> float:
        """Return the next x; `best` is T at x."""
        if best == 0:  # a perfect fit of all but outliers, at this sigma
            self.high = x
            return x - _FURTHEST if self.low == -math.inf else (self.low + x) / 2
        value = math.log(best) - x
        if value > 0:
            self.low = x
        else:
            self.high = x
        following = x + value
        if self.last is not None and self.last[1] != value:
            before, was = self.last
            secant = x - value * (x - before) / (value - was)
            # The objective is convex in sigma, so the root is inside the interval.
            following = secant if self.low < secant < self.high else following
        self.last = x, value
        return min(max(following, x - _FURTHEST), x + _FURTHEST)


@dataclass
class _Search:
    """One search for sigma; see the module's docstring."""

    problem: Problem
    epsilon: float
    settings: Settings
    history: list[Record] = field(default_factory=list)
    waiting: Record | None = None  # shown when it is known whether it was the last one of its solve
    first: float = math.nan  # F at the best constant
    passes: float = 0.0
    center: NumPyArray = field(default_factory=lambda: np.zeros(0))
    began: float = field(default_factory=time.perf_counter)
    deadline: float = math.inf

    def run(self, start: tuple[NumPyArray, NumPyArray] | None) -> tuple[Solution, float]:
        problem, weight, settings = self.problem, self.problem.sample_weight, self.settings
        self.began = self.began if settings.began is None else settings.began
        self.deadline = settings.deadline
        if settings.max_time is not None:
            self.deadline = min(self.deadline, self.began + settings.max_time)
        self.center = far_means(problem)
        scale, at = self._beginning(start)
        least = 1e-12 * scale
        secant, tries = _Secant(), 0
        for _ in range(constants.MOST_STEPS):
            solution = self._solve(scale, at)
            residual = problem.target - self._scores(solution)
            best = best_scale(residual, self.epsilon, weight)
            x = math.log(scale)
            following = max(secant.next(x, best), math.log(least))
            solution = self._certified(solution, residual, scale, best, following)
            is_near = solution.gap <= self._wanted(solution.objective)
            tries += solution.decrement <= self._rounding()
            if solution.reason.is_cut_off or is_near or tries > _TRIES:
                break
            if abs(following - x) <= _SAME_LOG:
                solution = replace(solution, reason=StopReason.STALLED)
                break
            scale, at = math.exp(following), (solution.coef, solution.intercept)
        else:
            solution = replace(solution, reason=StopReason.STALLED)
        solution = self._ended(solution)
        self._tell()
        return replace(solution, history=self.history), best

    def _ended(self, solution: Solution) -> Solution:
        """Return the solution for the user's coefficients, with the reason why the search ended."""
        problem, change, culprit = self.problem, 0.0, None
        reason = solution.reason if solution.reason.is_cut_off else StopReason.ESTIMATED
        if solution.reason is StopReason.STALLED:
            reason = StopReason.STALLED
        wanted, gap = self._wanted(solution.objective), solution.gap
        objective, decrement = solution.objective, solution.decrement
        if self.center.any() and reason is not StopReason.INTERRUPTED:
            # The intercept for features that are not centred is rounded once more.
            scores = _scores(problem, solution.coef, solution.intercept, self.center)[:, 0]
            residual = problem.target - scores
            best = best_scale(residual, self.epsilon, problem.sample_weight)
            new = joint_objective(problem, solution.coef, residual, best, self.epsilon)
            change, objective = new - objective, new
            gap, decrement = max(gap + change, 0.0), decrement + max(change, 0.0)
            sizes = np.abs(self.center) * np.abs(solution.coef[:, 0])
            culprit = int(np.argmax(sizes)), _FAR
        decrement = min(decrement, gap)
        reason = judged(reason, gap, solution.decrement, wanted, self._rounding(), change)
        if self.waiting is not None:
            self.waiting = replace(
                self.waiting,
                objective=objective,
                gap=gap,
                decrement=decrement,
                seconds=time.perf_counter() - self.began,
            )
        return replace(
            solution,
            objective=objective,
            gap=gap,
            decrement=decrement,
            reason=reason,
            culprit=culprit if reason is StopReason.ROUNDED else None,
        )

    def _beginning(
        self, start: tuple[NumPyArray, NumPyArray] | None
    ) -> tuple[float, tuple[NumPyArray, NumPyArray]]:
        """Return the scale and the coefficients to start from.

        Given coefficients are used if they are better than a constant.
        """
        problem = self.problem
        self.first, middle, scale = min(self._constants())
        if start is not None:
            residual = problem.target - _scores(problem, *start, self.center)[:, 0]
            best = best_scale(residual, self.epsilon, problem.sample_weight)
            value = joint_objective(problem, start[0], residual, best, self.epsilon)
            if value < self.first and best > 0:
                return best, start
        # If nearly all targets are equal, start with any small scale.
        scale = scale or 1e-3 * float(np.abs(problem.target - middle).max()) or 1.0
        return scale, (np.zeros((problem.features.shape[1], 1)), np.full(1, middle))

    def _constants(self) -> Iterator[tuple[float, float, float]]:
        """Yield F at some constant predictions, each with the constant and its best scale."""
        target, weight = self.problem.target, self.problem.sample_weight
        constants = [0.0]
        if self.problem.fit_intercept:
            mean = float(np.average(target, weights=weight))
            constants = [weighted_median(target, weight), mean]
        for constant in constants:
            residual = target - constant
            scale = best_scale(residual, self.epsilon, weight)
            objective = joint_objective(self.problem, np.zeros(1), residual, scale, self.epsilon)
            yield objective, constant, scale

    def _solve(self, scale: float, start: tuple[NumPyArray, NumPyArray]) -> Solution:
        """Solve for a fixed scale; objective and gap of the result are not those of F."""
        settings = self.settings
        limits = replace(
            settings,
            max_iter=max(1, settings.max_iter - self._count()),
            max_time=None,
            began=self.began,
            deadline=self.deadline,
            watch=self._watch_at(scale),
        )
        problem = replace(
            self.problem,
            target=self.problem.target / scale,
            loss=Huber(self.epsilon),
            l2=self.problem.l2 * scale,
        )
        coef, intercept = start
        found = solve(problem, limits, (coef / scale, intercept / scale))
        coef, intercept = found.coef * scale, found.intercept * scale
        scores = None
        # The difference of F and its bound needs more digits than float32 has.
        if found.scores is not None and found.scores.dtype == np.float64:
            scores = found.scores * scale
        return replace(
            found,
            coef=coef,
            intercept=intercept,
            scores=scores,
            score_error=found.score_error * scale,
            decrement=found.decrement * scale,
        )

    def _certified(
        self,
        solution: Solution,
        residual: NumPyArray,
        scale: float,
        best: float,
        following: float,
    ) -> Solution:
        """Return the solution with objective, gap and decrement of F; update the last record."""
        problem, epsilon = self.problem, self.epsilon
        objective = joint_objective(problem, solution.coef, residual, best, epsilon)
        # If the optimum is a perfect fit, each scale has a smaller one as its best.
        is_perfect = best < _OWN_BEST * scale
        at = scale if is_perfect else best
        bound = self._lower_bound(solution, residual, at)
        z = np.minimum(np.abs(residual) / scale, epsilon)
        slope = (1 - float(np.average(z**2, weights=problem.sample_weight))) / 2
        step = scale if best == 0 else math.exp(following) - scale
        gap = _gap(objective, bound, solution.score_error, best, epsilon)
        decrement = min(solution.decrement + abs(slope * step) / 2, gap)
        wanted = self._wanted(objective)
        rounds = _TRIES if wanted >= decrement else 0
        while gap > wanted and rounds > 0:
            with np.errstate(over="ignore", invalid="ignore"):
                residual = moved(
                    problem, solution.coef[:, 0], residual, at, epsilon, self.center, is_perfect
                )
            bound = self._lower_bound(solution, residual, at)
            gap = min(gap, _gap(objective, bound, solution.score_error, best, epsilon))
            rounds -= 1
        decrement = min(decrement, gap)
        if self.waiting is not None:
            self.waiting = replace(self.waiting, objective=objective, gap=gap, decrement=decrement)
        return replace(solution, objective=objective, gap=gap, decrement=decrement)

    def _lower_bound(self, solution: Solution, moved: NumPyArray, scale: float) -> float:
        """Return a lower bound of F by moved residuals."""
        problem, epsilon, center = self.problem, self.epsilon, self.center
        if problem.l2 > 0:
            return lower_bound(problem, moved, scale, epsilon, center)
        residual, coef = problem.target - self._scores(solution), solution.coef[:, 0]
        return bound_without_penalty(problem, coef, residual, moved / scale, epsilon, center)

    def _scores(self, solution: Solution) -> NumPyArray:
        """Return the scores of all rows, (n,), in float64."""
        if solution.scores is not None:
            return solution.scores[:, 0]
        return _scores(self.problem, solution.coef, solution.intercept, self.center)[:, 0]

    def _wanted(self, objective: float) -> float:
        """Return the required distance to the optimum."""
        return max(self.settings.tol * (self.first - objective), self._rounding())

    def _rounding(self) -> float:
        return ROUNDING * self.first

    def _count(self) -> int:
        """Return the number of snapshots so far."""
        last = self.waiting or (self.history[-1] if self.history else None)
        return 0 if last is None else last.iteration

    def _watch_at(self, scale: float) -> Callable[[Record], None]:
        passes, before = self.passes, self._count()

        def watch(record: Record) -> None:
            self._tell()
            self.passes = passes + record.passes
            self.waiting = replace(
                record,
                iteration=before + record.iteration,
                passes=self.passes,
                objective=scale * (0.5 + record.objective),
                # Gap and decrement of the record are for this scale alone.
                gap=math.inf,
                decrement=math.inf,
            )

        return watch

    def _tell(self) -> None:
        """Add the waiting record to the history, and show it."""
        record, self.waiting = self.waiting, None
        if record is not None:
            self.history.append(record)
            if self.settings.watch is not None:
                self.settings.watch(record)
