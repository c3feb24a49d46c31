"""Solve the paths of all folds together: each block of rows is read once for all folds.

Folds share most of their rows, so their optima are close to each other. One Hessian, computed from
a sample of all rows, is the metric of all folds; each fold adds its penalty to the diagonal. A pass
computes the scores of a block for all folds in one product. The sums that it keeps for each fold
are enough to prove that the fold's optimum is as near as `tol` requires. A fold without such a
proof continues alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from provenglm import constants
from provenglm.methods.newton import Newton
from provenglm.methods.secants import Secants
from provenglm.model.cholesky import CholeskyMetric
from provenglm.model.losses import Loss
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.returned import returned
from provenglm.model.sampling import objective_of, penalty_of
from provenglm.model.solution import ROUNDING, Settings, StopReason
from provenglm.path.folds import Folds, PathPoint, point_of
from provenglm.plan import Plan, sample_size
from provenglm.proof.duality import duality_gap
from provenglm.proof.prover import Prover
from provenglm.rows.base import Features
from provenglm.rows.products import column_products
from provenglm.rows.table import Block, Kept, Linear
from provenglm.solve import Session, minimise
from provenglm.types import NumPyArray

_TRIES = 3
"""A fold continues alone after this many steps that are slow, or near the optimum but without a
proof."""

_SLOW = 0.5
"""A step is slow if it leaves more than this part of the decrement."""

Watch = Callable[[str], None]


class FoldEvaluation(NamedTuple):
    """The evaluation of one fold in a pass, without the penalty.

    Attributes
    ----------
    theta : numpy.ndarray, (p + 1, K)
    loss : float
        The mean loss.
    gradient : numpy.ndarray, theta's shape
        The gradient of the mean loss, for the features as they are in the rows.
    kept : Kept, optional
    """

    theta: NumPyArray
    loss: float
    gradient: NumPyArray
    kept: Kept | None


@dataclass
class FoldState:
    """The state of a fold on its path.

    Attributes
    ----------
    objective : Objective
        The fold's objective: rows that are held out have the share 0.
    null : float
        The objective of the best constant prediction.
    pairs : list
        Steps, and the changes of the loss's gradient along them.
    metric : CholeskyMetric, optional
        The common Hessian with the fold's penalty, factored.
    count : int
        Number of snapshots for this point.
    last : float
        The decrement before the last step.
    tries : int
        Number of slow steps and failed proofs for this point.
    """

    fold: int
    objective: Objective
    null: float
    proof: Prover
    at: FoldEvaluation
    pairs: list[tuple[NumPyArray, NumPyArray]] = field(default_factory=list)
    metric: CholeskyMetric | None = None
    count: int = 1
    last: float = np.inf
    tries: int = 0
    session: Session | None = None

    def snapshot(self, value: FoldEvaluation) -> Snapshot:
        """Return the snapshot of an evaluation, with the penalty of this point."""
        return self.objective.snapshot_of(
            value.theta, value.loss, value.gradient.copy(), value.kept
        )

    def begin(self, l2: float) -> None:
        """Take the penalty of the next point."""
        penalty = penalty_of(self.objective.scaling, l2, self.objective.intercept)
        self.objective = replace(self.objective, penalty=penalty)
        self.proof.begin(l2, 0.0)
        self.metric = None
        self.count, self.last, self.tries = 1, np.inf, 0

    def accept(self, value: FoldEvaluation) -> None:
        """Move to a new point if it is lower; otherwise the fold continues alone."""
        old, self.count = self.at, self.count + 1
        if not self.snapshot(value).objective < self.snapshot(old).objective:
            self.tries = _TRIES
            return
        change = value.gradient - old.gradient
        self.objective.to_theta(change)
        self.pairs = [*self.pairs[1 - constants.SECANTS :], (value.theta - old.theta, change)]
        self.at = value


class JointPath:
    """Solve the paths of all folds, one point after the other.

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

    def solve(self, strengths: Sequence[float]) -> list[list[PathPoint]]:
        """Return the points of each fold, from the greatest penalty to the least."""
        folds = self._folds
        whole = folds.penalised(0, strengths[0])
        n, p = whole.features.shape
        size = min(self._plan.sample_size, sample_size(n, p, whole.loss.outputs))
        session = Session(whole, self._settings, replace(self._plan, sample_size=size))
        with session.running():
            objective, self._sample = session.prepare()
            # A proof needs sums in float64.
            objective = replace(objective.precise(), deadline=self._settings.deadline)
            self._objective = objective
            states = self._start()
            result: list[list[PathPoint]] = [[] for _ in states]
            for strength in strengths:
                before = objective.passes
                for state, point in zip(states, self._point(states, strength), strict=True):
                    result[state.fold].append(point)
                self._watch(
                    f"{folds.name}={strength:.4g}: {objective.passes - before:.1f} passes for "
                    f"{len(states)} folds"
                )
        return result

    def _start(self) -> list[FoldState]:
        """Return the folds at the optimum of a part of the sample, or at their null models."""
        objective, sample = self._objective, self._sample
        theta, null = objective.null()
        size = len(sample.rows) // constants.GROWTH
        tol = constants.ERROR_OF_A_START * abs(null) * theta.size / size
        head = sample.head(size)
        theta = minimise(Newton(objective_of(head, objective), head), theta, tol)
        folds = self._folds
        self._shares = np.empty((objective.n, len(folds)))
        for fold in range(len(folds)):
            self._shares[:, fold] = folds.share(fold)
        own = [objective.on(share=share) for share in self._shares.T]
        self._measure(own)
        nulls = [one.null() for one in own]
        values = self._values([(fold, theta) for fold in range(len(folds))])
        states = []
        for fold, (one, value) in enumerate(zip(own, values, strict=True)):
            proof = Prover(folds.problem, one, sample, self._settings.seed)
            states.append(FoldState(fold, one, nulls[fold][1], proof, value))
        worse = [w for w in states if not w.snapshot(w.at).objective < w.null]
        if worse:
            starts = [(state.fold, nulls[state.fold][0]) for state in worse]
            for state, value in zip(worse, self._values(starts), strict=True):
                state.at = value
        return states

    def _point(self, states: list[FoldState], strength: float) -> list[PathPoint]:
        """Solve all folds for one penalty, and return their optima."""
        done: dict[int, PathPoint] = {}
        for state in states:
            l2 = self._folds.penalties(state.fold, strength)[0]
            state.begin(l2)
            if l2 == 0:
                # Only a single fit can tell whether an optimum exists.
                done[state.fold] = self._by_itself(state, strength)
        self._renew(states)
        pending = [state for state in states if state.fold not in done]
        while pending:
            steps = [self._step(state) for state in pending]
            left = [d / state.last for state, (_, d) in zip(pending, steps, strict=True)]
            if max(left) > constants.CHANGED and self._renew(pending):
                steps = [self._step(state) for state in pending]
            moving: list[tuple[FoldState, NumPyArray]] = []
            for state, (step, decrement) in zip(pending, steps, strict=True):
                point = self._judged(state, decrement, strength)
                if point is None:
                    moving.append((state, state.at.theta - step))
                else:
                    done[state.fold] = point
            pending = [state for state, _ in moving]
            if moving:
                values = self._values([(state.fold, theta) for state, theta in moving])
                for state, value in zip(pending, values, strict=True):
                    state.accept(value)
        return [done[state.fold] for state in states]

    def _renew(self, states: list[FoldState]) -> bool:
        """Compute the Hessian again, at the mean of the folds, if the curvature has changed."""
        sample = self._sample
        theta = np.mean([state.at.theta for state in states], axis=0)
        scores = sample.scores(theta)
        curvature = sample.loss.curvature(scores, sample.target)
        if self._hessian is not None:
            change = np.abs(curvature - self._curvature).mean()
            if not change > constants.CHANGED * self._curvature.mean():
                return False
        plain = replace(sample, penalty=np.zeros_like(sample.penalty))
        self._hessian, self._curvature = plain.hessian(scores), curvature
        self._objective.reads.rows += len(sample.rows)
        for state in states:
            state.metric = None
        return True

    def _step(self, state: FoldState) -> tuple[NumPyArray, float]:
        """Return a fold's step and decrement."""
        assert self._hessian is not None
        if state.metric is None:
            hessian = self._hessian.copy()
            penalty = np.repeat(state.objective.penalty, state.objective.loss.outputs)
            hessian.ravel()[:: len(hessian) + 1] += penalty
            state.metric = CholeskyMetric(hessian)
        penalty = state.objective.penalty[:, None]
        secants = Secants()
        for step, change in state.pairs:
            secants.add(step, change + penalty * step)
        gradient = state.snapshot(state.at).gradient
        step = secants.solve(state.metric, gradient)
        return step, 0.5 * float(gradient.ravel() @ step.ravel())

    def _judged(self, state: FoldState, decrement: float, strength: float) -> PathPoint | None:
        """Return the point if the fold has finished, or None if it has to continue."""
        snapshot = state.snapshot(state.at)
        user = returned(state.objective, snapshot, snapshot.theta)
        required_gap = self._settings.tol * (state.null - snapshot.objective)
        required_gap = max(required_gap, ROUNDING * abs(snapshot.objective))
        gap, is_near = np.inf, decrement <= constants.MARGIN * required_gap
        if decrement <= required_gap:
            gap = duality_gap(state.objective, snapshot, required_gap) + max(user.change, 0.0)
        if (
            gap > required_gap
            and is_near
            and (state.proof.newton_is_cheap or state.tries == _TRIES)
        ):
            gap = state.proof.of(user.coef, user.intercept, snapshot, decrement, required_gap)[1]
        if gap <= required_gap:
            reason = StopReason.CONVERGED
        elif state.objective.is_late or state.count > self._settings.max_iter:
            reason = StopReason.MAX_TIME if state.objective.is_late else StopReason.MAX_ITER
            gap = duality_gap(state.objective, snapshot)
        elif state.tries >= _TRIES:
            return self._by_itself(state, strength)
        else:
            state.tries += is_near or decrement > _SLOW * state.last
            state.last = decrement
            return None
        return PathPoint(
            coef=user.coef,
            intercept=user.intercept,
            objective=snapshot.objective + user.change,
            gap=gap,
            decrement=min(decrement + max(user.change, 0.0), gap),
            iterations=state.count,
            reason=reason,
        )

    def _values(self, points: Sequence[tuple[int, NumPyArray]]) -> list[FoldEvaluation]:
        """Return the evaluation of the objectives of some folds, each at its theta, in one pass."""
        whole, outputs = self._objective, self._objective.loss.outputs
        models = [whole.model(theta) for _, theta in points]
        weights = np.hstack([model.weights for model in models])
        biases = np.concatenate([model.bias for model in models])
        table = replace(whole.own, share=self._shares)
        model = Linear(weights, biases, models[0].center)
        given = whole.loss, np.array([fold for fold, _ in points]), model
        scores = None if table.is_out_of_core else np.empty((len(biases), whole.n))

        def evaluated(block: Block) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
            assert scores is not None
            scores[:, block.part] = found = _scores(block, model)
            return _sums(block, *given, found)

        if scores is None:
            losses, products, totals = table.sum(evaluate_folds, *given)
        else:
            losses, products, totals = table.sum(evaluated)
        whole.reads.rows += whole.n
        result = []
        for k, (_, theta) in enumerate(points):
            own = slice(k * outputs, (k + 1) * outputs)
            gradient = np.vstack([products[:, own], totals[own]])
            kept = None if scores is None else Kept(scores[own].T)
            result.append(FoldEvaluation(theta, float(losses[k]), gradient, kept))
        return result

    def _measure(self, objectives: Sequence[Objective]) -> None:
        """Measure the properties of the features that the proofs of each fold need, in one pass."""
        whole, outputs = self._objective, self._objective.loss.outputs
        has_squares = not (whole.rows.is_sparse or whole.centered)
        center = whole.scaling.center if whole.centered else None
        table = replace(whole.own, share=self._shares)
        sums, squares = table.sum(_moments, whole.loss, center, has_squares)
        whole.reads.rows += whole.n
        means, target_products = np.split(sums, [len(objectives)], axis=1)
        for fold, one in enumerate(objectives):
            own = target_products[:, fold * outputs : (fold + 1) * outputs]
            one.take_moments(means[:, fold], own)
            one.squares = squares[fold] if has_squares else None

    def _by_itself(self, state: FoldState, strength: float) -> PathPoint:
        """Return a point from the general solver, started at the fold's present point."""
        folds, scaling = self._folds, self._objective.scaling
        weights, intercept = scaling.to_user(state.at.theta)
        if state.session is None:
            state.session = Session(folds.of(state.fold, strength), self._settings)
        with state.session.running():
            penalties = folds.penalties(state.fold, strength)
            point = point_of(state.session, penalties, (weights, intercept))
        theta = scaling.from_user(point.coef, point.intercept)
        state.at, state.pairs = self._values([(state.fold, theta)])[0], []
        return replace(point, iterations=point.iterations + state.count)


def evaluate_folds(
    block: Block, loss: Loss, folds: NumPyArray, model: Linear
) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
    """Return losses, (f,), products, (p, f K), and residuals, (f K,), times the folds' shares.

    Parameters
    ----------
    block : Block
        A block of a table whose shares are (n, F).
    loss : Loss
    folds : numpy.ndarray, (f,)
        The indices of the folds.
    model : Linear
        The models of these folds, whose weights (p, f K) are side by side.
    """
    return _sums(block, loss, folds, model, _scores(block, model))


def _features(block: Block, center: NumPyArray | None) -> Features:
    return block.raw if center is None else block.raw - center


def _scores(block: Block, model: Linear) -> NumPyArray:
    """Return the scores of all folds, (F K, b)."""
    beside: NumPyArray = model.bias[:, None]
    if block.offset is not None:
        beside = beside + np.tile(block.offset, len(model.bias) // block.offset.shape[1]).T
    products = _features(block, model.center) @ model.weights
    return np.add(products.T, beside, order="C")


def _sums(
    block: Block, loss: Loss, folds: NumPyArray, model: Linear, scores: NumPyArray
) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
    share, target = np.ascontiguousarray(block.share.T[folds]), block.target
    values, residual = np.empty(share.shape), np.empty_like(scores)
    for k, fold_share in enumerate(share):
        part = slice(k * loss.outputs, (k + 1) * loss.outputs)
        values[k], each = loss.value_and_residual(scores[part].T, target)
        np.multiply(each.T, fold_share, out=residual[part])
    products = column_products(_features(block, model.center), residual.T)
    return np.einsum("fi,fi->f", values, share), products, residual.sum(axis=1)


def _moments(
    block: Block, loss: Loss, center: NumPyArray | None, has_squares: bool
) -> tuple[NumPyArray, NumPyArray | None]:
    """Return the sums of the features and their products with the targets, and their squares."""
    features, shares = _features(block, center), block.share
    observed = loss.observed(block.exact_target)
    columns = [share[:, None] * observed for share in shares.T]
    sums = column_products(features, np.column_stack([shares, *columns]))
    return sums, shares.T @ np.square(features) if has_squares else None
