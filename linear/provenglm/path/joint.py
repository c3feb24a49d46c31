"""The folds' paths together: a block of rows is read once for all of them.

Folds share most of their rows, so that their optima are close to each other: a few standard errors
apart. One Hessian, of a sample of all rows, is the metric of all folds; the penalty is added to
its diagonal. A pass takes the scores of a block for all folds in one product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from provenglm import constants
from provenglm.methods.newton import Newton
from provenglm.methods.secants import Metric, Secants
from provenglm.model.cholesky import CholeskyMetric
from provenglm.model.objective import Objective, Snapshot, products
from provenglm.model.problem import Problem
from provenglm.model.returned import returned
from provenglm.model.sampling import objective_of, penalty_of
from provenglm.model.solution import MOST_UNPROVEN, ROUNDING, Settings, StopReason, judged
from provenglm.path.folds import Folds, PathPoint, point_of
from provenglm.plan import Plan, sample_size
from provenglm.proof.duality import duality_gap
from provenglm.proof.prover import proven
from provenglm.solve import Session, minimise
from provenglm.types import NumPyArray

Watch = Callable[[str], None]


def suits(plan: Plan, problem: Problem) -> bool:
    """Whether folds are solved together: if the metric is a sample's Hessian.

    Also if most of the work would be the Hessian of all rows, for each fold and point. Not if each
    fold has a scale of its own.
    """
    if problem.loss.has_scale:
        return False
    n, p = problem.features.shape
    width = (p + 1) * problem.loss.outputs
    if plan.name == "sampled-newton-cg":
        return width <= constants.MOST_WEIGHTS
    is_long = n >= 4 * constants.ROWS_OF_A_FEATURE * width
    is_long = is_long and float(n) * width * width >= constants.SMALL_HESSIAN / 4
    return plan.name == "sampled-newton" or (plan.name == "newton-cholesky" and is_long)


@dataclass
class Value:
    """Mean loss of a fold at a point, its gradient and scores: what does not know the penalty."""

    theta: NumPyArray
    loss: float
    gradient: NumPyArray
    scores: NumPyArray


@dataclass
class Walk:
    """Where a fold is on its path.

    Attributes
    ----------
    objective : Objective
        The penalty and moments are the fold's; the shares are those of all rows.
    null : float
        The objective of the best constant prediction.
    pairs : list
        Steps, and the changes of the loss's gradient along them.
    """

    fold: int
    objective: Objective
    null: float
    at: Value
    pairs: list[tuple[NumPyArray, NumPyArray]] = field(default_factory=list)
    count: int = 1
    last: float = np.inf
    poor: int = 0
    session: Session | None = None


class JointPass:
    """The full pass over all rows, for several folds at once."""

    def __init__(self, objective: Objective, folds: Folds) -> None:
        self._objective = objective
        self._folds = folds
        self._totals = folds.totals

    def share(self, fold: int) -> NumPyArray:
        """Return each row's share of a fold's training set, (n,): made when it is asked for."""
        return np.asarray(self._folds.weight(fold) / self._totals[fold])

    def moments(self) -> list[tuple[NumPyArray, NumPyArray]]:
        """Return each fold's moments, as `Objective.moments`: one pass."""
        objective = self._objective
        outputs = objective.loss.outputs

        def columns(rows: slice) -> NumPyArray:
            target = objective.loss.observed(objective.target[rows])
            if outputs > 1:
                hot = np.zeros((len(target), outputs))
                hot[np.arange(len(target)), target] = 1
                target = hot.T
            weights = [self._folds.weight(fold, rows) for fold in range(len(self._folds))]
            parts = [np.vstack([weight, weight * target]) for weight in weights]
            return np.asarray(np.concatenate(parts).T)

        def of_block(rows: slice) -> tuple[NumPyArray, NumPyArray]:
            block, wanted = objective.block(rows), columns(rows)
            return products(block, wanted.astype(block.dtype)), wanted.sum(axis=0)

        sums: NumPyArray | float = 0.0
        totals: NumPyArray | float = 0.0
        for of_rows, of_ones in objective.workers.map(of_block, objective.rows.slices()):
            sums, totals = sums + of_rows, totals + of_ones
        objective.reads.rows += objective.n
        scaling = objective.scaling
        if not objective.centered:
            sums = sums - np.multiply.outer(scaling.center, totals)
        sums = (np.asarray(sums).T * scaling.inverse).T
        result = []
        for fold, total in enumerate(self._totals):
            own = sums[:, fold * (outputs + 1) : (fold + 1) * (outputs + 1)] / total
            result.append((own[:, 0], own[:, 1] if outputs == 1 else own[:, 1:]))
        return result

    def values(self, points: Sequence[tuple[int, NumPyArray]]) -> list[Value]:
        """Return the value of each (fold, theta): one pass over all rows."""
        objective = self._objective
        dtype, outputs = objective.rows.dtype, objective.loss.outputs
        users = [objective.scaling.to_user(theta) for _, theta in points]
        weights = np.column_stack([weights for weights, _ in users]).astype(dtype)
        bias = [theta[-1] for _, theta in points] if objective.centered else [b for _, b in users]
        biases = np.concatenate([np.atleast_1d(b) for b in bias])
        count = len(biases)
        scores = np.empty((count, objective.n), dtype)
        folds = [fold for fold, _ in points]

        def of_block(rows: slice) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
            block = objective.block(rows)
            beside = self._beside(biases, rows, dtype)
            score = np.add((block @ weights).T, beside, order="C")
            scores[:, rows] = score
            weight = np.stack([self._folds.weight(fold, rows) for fold in folds])
            target = objective.targets(rows, dtype)
            if outputs == 1:
                target = np.broadcast_to(target, score.shape)
                loss, residual = objective.loss.value_and_residual(score, target)
                residual *= weight
            else:
                loss, residual = self._of_classes(score, target, weight)
            return (
                (loss * weight).sum(axis=1, dtype=np.float64),
                np.asarray(residual @ block).T,
                residual.sum(axis=1, dtype=np.float64),
            )

        width = objective.rows.shape[1]
        losses, gradients = np.zeros(len(points)), np.zeros((width + 1, count))
        for loss, of_weights, of_bias in objective.workers.map(of_block, objective.rows.slices()):
            losses += loss
            gradients[:-1] += of_weights
            gradients[-1] += of_bias
        objective.reads.rows += objective.n
        result = []
        for k, (fold, theta) in enumerate(points):
            own = slice(k * outputs, (k + 1) * outputs)
            gradient = gradients[:, own].reshape(theta.shape) / self._totals[fold]
            objective.to_theta(gradient)
            table = scores[own].reshape((*theta.shape[:0:-1], objective.n)).T
            result.append(Value(theta, float(losses[k] / self._totals[fold]), gradient, table))
        return result

    def _beside(self, biases: NumPyArray, rows: slice, dtype: np.dtype[Any]) -> NumPyArray:
        """Return what is added to the scores of some rows, which broadcasts to (points K, rows)."""
        offset, beside = self._objective.offset, biases[:, None]
        if offset is not None:
            each = offset[rows].reshape(rows.stop - rows.start, -1)
            beside = beside + np.tile(each, len(biases) // each.shape[1]).T
        return np.asarray(beside, dtype)

    def _of_classes(
        self, scores: NumPyArray, target: NumPyArray, weight: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return losses, (folds, rows), and weighted residuals, (folds K, rows)."""
        outputs = self._objective.loss.outputs
        losses, residuals = np.empty(weight.shape, scores.dtype), np.empty_like(scores)
        for k, own in enumerate(weight):
            part = slice(k * outputs, (k + 1) * outputs)
            losses[k], residual = self._objective.loss.value_and_residual(scores[part].T, target)
            np.multiply(residual.T, own, out=residuals[part])
        return losses, residuals


class _Unproven(NamedTuple):
    """A point that an estimate has ended, and whose bound is far from what is asked."""

    walk: Walk
    strength: float
    penalty: NumPyArray
    snapshot: Snapshot
    decrement: float
    gap: float
    enough: float


def _believed(point: PathPoint) -> PathPoint:
    """Return a point as one whose estimate is believed."""
    if point.reason is not StopReason.UNPROVEN:
        return point
    return replace(point, reason=StopReason.ESTIMATED)


class JointPath:
    """All folds from point to point.

    Parameters
    ----------
    folds : Folds
    plan : Plan
    settings : Settings
    watch : callable
    """

    def __init__(self, folds: Folds, plan: Plan, settings: Settings, watch: Watch) -> None:
        self._folds = folds
        self._plan = plan
        self._settings = settings
        self._watch = watch
        self._hessian: NumPyArray | None = None
        self._curvature: NumPyArray = np.zeros(0)
        self._farthest: _Unproven | None = None

    def solve(self, strengths: Sequence[float]) -> list[list[PathPoint]]:
        """Return the points of each fold, from the greatest penalty to the least."""
        folds = self._folds
        whole = replace(folds.problem, l2=folds.penalties(0, strengths[0])[0])
        n, p = whole.features.shape
        size = min(self._plan.sample_size, sample_size(n, p, whole.loss.outputs))
        session = Session(whole, self._settings, replace(self._plan, sample_size=size))
        with session.running():
            objective, self._sample = session.prepare()
            self._pass = JointPass(objective, folds)
            self._objective = objective
            walks = self._start()
            result: list[list[PathPoint]] = [[] for _ in walks]
            for strength in strengths:
                before = objective.passes
                for walk, point in zip(walks, self._point(walks, strength), strict=True):
                    result[walk.fold].append(point)
                self._watch(
                    f"{folds.name}={strength:.4g}: {objective.passes - before:.1f} passes for "
                    f"{len(walks)} folds"
                )
            if self._farthest is not None and self._is_proven(self._farthest):
                result = [[_believed(point) for point in path] for path in result]
        return result

    def _is_proven(self, one: _Unproven) -> bool:
        """Whether the estimate of the point is right whose bound is farthest from what is asked.

        All points have the same metric, and there it is the least reliable.
        """
        folds, fold = self._folds, one.walk.fold
        problem = folds.penalised(fold, one.strength)
        problem = replace(problem, sample_weight=folds.weight(fold).astype(np.float64))
        objective = replace(one.walk.objective, share=self._pass.share(fold), penalty=one.penalty)
        sample = replace(self._sample, penalty=one.penalty)
        snapshot, enough = one.snapshot, one.enough
        self._watch("proving the point that is farthest from a proof")
        gap = proven(problem, objective, sample, snapshot, one.decrement, self._settings, enough)
        return gap <= MOST_UNPROVEN * enough

    def _start(self) -> list[Walk]:
        """Return the folds at the optimum of a part of the sample, or at their null models."""
        objective, sample = self._objective, self._sample
        theta, null = objective.null()
        size = len(sample.rows) // constants.GROWTH
        tol = constants.ERROR_OF_A_START * abs(null) * theta.size / size
        head = sample.head(size)
        theta = minimise(Newton(objective_of(head, objective), head), theta, tol)
        moments = self._pass.moments()
        values = self._pass.values([(fold, theta) for fold in range(len(self._folds))])
        walks = []
        for fold, value in enumerate(values):
            # Without its shares: kept, they would be 8 bytes for each row and fold.
            own = replace(objective, moments=moments[fold])
            walks.append(Walk(fold, own, self._null(fold)[1], value))
        worse = [walk for walk in walks if not self._full(walk, walk.at) < walk.null]
        if worse:
            values = self._pass.values([(w.fold, self._null(w.fold)[0]) for w in worse])
            for walk, value in zip(worse, values, strict=True):
                walk.at = value
        return walks

    def _null(self, fold: int) -> tuple[NumPyArray, float]:
        """Return a fold's best constant prediction, and its objective."""
        return replace(self._objective, share=self._pass.share(fold)).null()

    def _full(self, walk: Walk, value: Value) -> float:
        """Return the objective, with the penalty."""
        penalty = walk.objective.used(value.theta)
        return value.loss + 0.5 * float((penalty * value.theta * value.theta).sum())

    def _gradient(self, walk: Walk, value: Value) -> NumPyArray:
        return np.asarray(value.gradient + walk.objective.used(value.theta) * value.theta)

    def _point(self, walks: list[Walk], strength: float) -> list[PathPoint]:
        """Lead all folds to their optima for a penalty; return these."""
        problem = self._folds.problem
        scaling = self._objective.scaling
        done: dict[int, PathPoint] = {}
        for walk in walks:
            l2 = self._folds.penalties(walk.fold, strength)[0]
            penalty = penalty_of(scaling, l2, problem.fit_intercept)
            walk.objective = replace(walk.objective, penalty=penalty)
            walk.count, walk.last, walk.poor = 1, np.inf, 0
            if l2 == 0:
                done[walk.fold] = self._by_itself(walk, strength)
        self._renew(walks)
        while pending := [walk for walk in walks if walk.fold not in done]:
            steps = self._steps(pending)
            stale = any(
                d > constants.CHANGED * w.last for w, (_, d) in zip(pending, steps, strict=True)
            )
            if stale and self._renew(pending):
                steps = self._steps(pending)
            moving: list[tuple[Walk, NumPyArray]] = []
            for walk, (step, decrement) in zip(pending, steps, strict=True):
                point = self._judge(walk, decrement, strength)
                if point is None:
                    moving.append((walk, step))
                else:
                    done[walk.fold] = point
            if moving:
                for walk in self._move(moving):
                    done[walk.fold] = self._by_itself(walk, strength)
        return [done[walk.fold] for walk in walks]

    def _steps(self, walks: list[Walk]) -> list[tuple[NumPyArray, float]]:
        """Return each fold's step and decrement."""
        result = []
        for walk in walks:
            gradient = self._gradient(walk, walk.at)
            penalty = walk.objective.used(walk.at.theta)
            secants = Secants()
            for step, change in walk.pairs:
                secants.add(step, change + penalty * step)
            step = secants.solve(self._metric(walk), gradient)
            result.append((step, 0.5 * float(gradient.ravel() @ step.ravel())))
        return result

    def _metric(self, walk: Walk) -> Metric:
        assert self._hessian is not None
        hessian = self._hessian.copy()
        penalty = np.repeat(walk.objective.penalty, self._objective.loss.outputs)
        hessian.ravel()[:: len(hessian) + 1] += penalty
        return CholeskyMetric(hessian)

    def _renew(self, walks: list[Walk]) -> bool:
        """Compute the Hessian again, at the mean of the folds, if the curvature has changed."""
        sample = self._sample
        theta = np.mean([walk.at.theta for walk in walks], axis=0)
        scores = sample.scores(theta)
        curvature = sample.loss.curvature(scores, sample.target)
        if self._hessian is not None:
            change = np.abs(curvature - self._curvature).mean()
            if not change > constants.CHANGED * self._curvature.mean():
                return False
        plain = replace(sample, penalty=np.zeros_like(sample.penalty))
        self._hessian, self._curvature = plain.hessian(scores), curvature
        self._objective.reads.rows += len(sample.rows)
        return True

    def _judge(self, walk: Walk, decrement: float, strength: float) -> PathPoint | None:
        """Return the point if the fold has converged, or None if it has to continue."""
        value = walk.at
        full = self._full(walk, value)
        gained = self._settings.tol * (walk.null - full)
        rounding = ROUNDING * abs(full)
        if decrement <= max(gained / 10, rounding):
            return self._kept(walk, strength, decrement, StopReason.ESTIMATED, self._gap(walk))
        if decrement <= gained and (gap := self._gap(walk)) <= gained:
            return self._kept(walk, strength, decrement, StopReason.ESTIMATED, gap)
        if walk.count > self._settings.max_iter:
            return self._kept(walk, strength, decrement, StopReason.MAX_ITER, self._gap(walk))
        if time.perf_counter() >= self._settings.deadline:
            return self._kept(walk, strength, decrement, StopReason.MAX_TIME, self._gap(walk))
        walk.poor = walk.poor + 1 if decrement > constants.SLOW * walk.last else 0
        walk.last = decrement
        return self._by_itself(walk, strength) if walk.poor >= constants.TRIES else None

    def _gap(self, walk: Walk) -> float:
        return duality_gap(*self._at(walk))

    def _at(self, walk: Walk) -> tuple[Objective, Snapshot]:
        """Return a fold's objective, and what is known where it is."""
        value = walk.at
        snapshot = Snapshot(
            value.theta, self._full(walk, value), self._gradient(walk, value), value.scores
        )
        return replace(walk.objective, share=self._pass.share(walk.fold)), snapshot

    def _kept(
        self, walk: Walk, strength: float, decrement: float, reason: StopReason, gap: float
    ) -> PathPoint:
        objective, snapshot = self._at(walk)
        value = snapshot.objective
        user = returned(objective, snapshot, snapshot.theta)
        enough, gap = self._settings.tol * (walk.null - value), max(gap + user.change, 0.0)
        rounding = ROUNDING * abs(value)
        reason = judged(reason, gap, decrement, enough, rounding, user.change)
        is_farther = self._farthest is None or gap * self._farthest.enough > (
            self._farthest.gap * max(enough, rounding)
        )
        if reason is StopReason.UNPROVEN and is_farther:
            self._farthest = _Unproven(
                walk, strength, objective.penalty, snapshot, decrement, gap, max(enough, rounding)
            )
        return PathPoint(
            coef=user.coef,
            intercept=user.intercept,
            objective=value + user.change,
            gap=gap,
            decrement=min(decrement + max(user.change, 0.0), gap),
            iterations=walk.count,
            reason=reason,
        )

    def _move(self, moving: list[tuple[Walk, NumPyArray]]) -> list[Walk]:
        """Take the steps, in one pass; return the folds that no step leads lower."""
        values = self._pass.values([(walk.fold, walk.at.theta - step) for walk, step in moving])
        short = []
        for (walk, step), value in zip(moving, values, strict=True):
            walk.count += 1
            if not self._accept(walk, value):
                short.append((walk, step / 4))
        if not short:
            return []
        values = self._pass.values([(walk.fold, walk.at.theta - step) for walk, step in short])
        return [
            walk
            for (walk, _), value in zip(short, values, strict=True)
            if not self._accept(walk, value)
        ]

    def _accept(self, walk: Walk, value: Value) -> bool:
        """Go to the new point if it is lower."""
        if not self._full(walk, value) < self._full(walk, walk.at):
            return False
        old = walk.at
        pair = value.theta - old.theta, value.gradient - old.gradient
        walk.pairs = [*walk.pairs[1 - constants.SECANTS :], pair]
        walk.at = value
        return True

    def _by_itself(self, walk: Walk, strength: float) -> PathPoint:
        """Return a point by the solver itself, from where the fold is."""
        folds, scaling = self._folds, self._objective.scaling
        weights, intercept = scaling.to_user(walk.at.theta)
        start = weights.reshape(len(weights), -1), np.atleast_1d(intercept)
        if walk.session is None:
            walk.session = Session(folds.of(walk.fold, strength), self._settings)
        with walk.session.running():
            point = point_of(walk.session, folds.penalties(walk.fold, strength), start)
        theta = scaling.from_user(point.coef, point.intercept).reshape(walk.at.theta.shape)
        walk.at = self._pass.values([(walk.fold, theta)])[0]
        walk.pairs = []
        return replace(point, iterations=point.iterations + walk.count)
