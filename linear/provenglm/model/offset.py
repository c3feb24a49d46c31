r"""Offsets of the scores, such as the logarithm of an exposure, taken into targets and weights.

A loss of :math:`z + o` is a factor times the loss of :math:`z` with another target, and a constant:

=============== ============================ ======================= ===================
loss            target                       factor                  constant
=============== ============================ ======================= ===================
squared, Huber  :math:`y - o`                1                       0
Poisson         :math:`y e^{-o}`             :math:`e^o`             :math:`-y o`
Tweedie, gamma  :math:`y e^{-o}`             :math:`e^{(2 - p) o}`   0
=============== ============================ ======================= ===================

So a problem with offsets is one without, of other targets and weights, and all that is known of
such a problem is known of it: certificate, null model, samples, data on disk. The weights have
another sum, by which the penalty is divided again.

Of the logistic loss there is no such target: `LogisticWithOffset` is a loss that adds the offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from provenglm.model.losses import OFFSET_OF_FLOAT32, Dual, Logistic, Loss, Noise, SecondDerivative
from provenglm.model.problem import Problem
from provenglm.model.returned import rise
from provenglm.model.solution import Record, Settings, Solution
from provenglm.types import NumPyArray

Start = tuple[NumPyArray, NumPyArray]
Solve = Callable[[Problem, Settings, "Start | None"], Solution]

_FARTHEST = 100.0
"""From the mean, of offsets that are logarithms: exp() of it and of targets is within float64."""

_STEPS, _SAME = 200, 1e-14
"""Of a search for the best constant: at most, and where two of its points are the same."""


@dataclass(frozen=True)
class WithoutOffset:
    """A problem without offsets that has the optimum of one with them.

    Attributes
    ----------
    problem : Problem
    shift : float
        By which its intercept is larger: the mean of the offsets, where there is an intercept.
    factor, constant : float
        An objective of the problem with offsets is the factor times one of this, and the constant.
    """

    problem: Problem
    shift: float = 0.0
    factor: float = 1.0
    constant: float = 0.0

    @classmethod
    def of(cls, problem: Problem, offset: NumPyArray | None) -> WithoutOffset:
        """Take offsets, (n,), into targets and weights.

        Raises
        ------
        ValueError
            If exp() of the offsets is beyond float64.
        """
        if offset is None:
            return cls(problem)
        weight = problem.sample_weight
        shift = float(np.average(offset, weights=weight)) if problem.fit_intercept else 0.0
        offset = offset - shift
        has_logarithm = problem.loss.has_logarithm
        if has_logarithm and float(np.abs(offset).max()) > _FARTHEST:
            # The greatest is the one that overflows, unless only a small one is that far off.
            row = int(np.argmax(offset))
            row = row if offset[row] > _FARTHEST else int(np.argmin(offset))
            raise ValueError(
                f"offset is {offset[row] + shift:g} in row {row}, and loss={problem.loss.name!r} "
                "predicts exp(scores + offset), which is beyond any exposure: give the logarithm "
                "of the exposure, numpy.log(exposure)"
            )
        target, factors, constants = problem.loss.without_offset(offset, problem.target)
        constant = float(np.average(constants, weights=weight)) if np.ndim(constants) else 0.0
        problem = replace(problem, target=target)
        if factors is None:
            return cls(problem, shift, 1.0, constant)
        factor = float(np.average(factors, weights=weight))
        problem = replace(
            problem,
            sample_weight=factors if weight is None else weight * factors,
            l2=problem.l2 / factor,
            l1=problem.l1 / factor,
        )
        return cls(problem, shift, factor, constant)

    def solved(self, solve: Solve, settings: Settings, start: Start | None) -> Solution:
        """Return what `solve` finds, as a solution of the problem with offsets."""
        watch = settings.watch
        if watch is not None:
            seen = watch
            settings = replace(settings, watch=lambda record: seen(self._record(record)))
        if start is not None:
            start = start[0], start[1] + self.shift
        solution = solve(self.problem, settings, start)
        intercept = solution.intercept - self.shift
        change = self._change(solution, intercept)
        return replace(
            solution,
            intercept=intercept,
            objective=self.factor * (solution.objective + change) + self.constant,
            gap=self.factor * max(solution.gap + change, 0.0),
            decrement=self.factor * solution.decrement,
            history=[self._record(record) for record in solution.history],
        )

    def _change(self, solution: Solution, intercept: NumPyArray) -> float:
        """Return what rounding the intercept once more adds to the objective."""
        exact = zip(intercept.tolist(), solution.intercept.tolist(), strict=True)
        step = np.array([math.fsum([new, self.shift, -old]) for new, old in exact])
        problem = self.problem
        weight = problem.sample_weight
        share = np.ones(len(problem.target)) if weight is None else weight
        scores = solution.scores + solution.step
        if scores.shape[1] == 1:
            scores = scores[:, 0]
        return rise(problem.loss, share / share.sum(), problem.target, scores, step)

    def _record(self, record: Record) -> Record:
        return replace(
            record,
            objective=self.factor * record.objective + self.constant,
            gap=self.factor * record.gap,
            decrement=self.factor * record.decrement,
        )


@dataclass(frozen=True, eq=False)
class LogisticWithOffset(Loss):
    """The logistic loss of scores to which offsets are added.

    Its targets are the numbers of the rows, so that a part of the rows knows its offsets.

    Attributes
    ----------
    offset : numpy.ndarray, (n,)
    classes : numpy.ndarray, (n,)
        0 or 1.
    """

    offset: NumPyArray
    classes: NumPyArray

    name = "logistic"
    slope = 1.0
    is_separable = True
    needs_all_targets = True
    bytes_of_a_row = 16

    def _added(self, scores: NumPyArray, target: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return what the logistic loss is taken of: scores and classes."""
        return scores + self.offset[target].astype(scores.dtype), self.classes[target]

    def observed(self, target: NumPyArray) -> NumPyArray:
        return self.classes[target]

    def groups(self, target: NumPyArray) -> NumPyArray | None:
        return _LOGISTIC.groups(self.classes[target])

    def value(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _LOGISTIC.value(*self._added(scores, target))

    def residual(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _LOGISTIC.residual(*self._added(scores, target))

    def value_and_residual(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        return _LOGISTIC.value_and_residual(*self._added(scores, target))

    def curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _LOGISTIC.curvature(*self._added(scores, target))

    def second_derivative(
        self, scores: NumPyArray, target: NumPyArray, caution: float = 0.0
    ) -> SecondDerivative:
        return _LOGISTIC.second_derivative(*self._added(scores, target), caution)

    def change(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        return _LOGISTIC.change(*self._added(scores, target), step)

    def conjugate(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        of_classes = _LOGISTIC.conjugate(dual, self.classes[target])
        return np.asarray(of_classes - dual * self.offset[target])

    def inside(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _LOGISTIC.inside(dual, self.classes[target])

    def balanced(self, excess: NumPyArray, mean: NumPyArray, is_long: bool = False) -> Dual:
        dual = _LOGISTIC.balanced(excess, mean, is_long)
        terms = dual.terms
        if isinstance(terms, float):
            return dual
        return dual._replace(terms=lambda scores, target: terms(*self._added(scores, target)))

    def noise(self, scores: NumPyArray, target: NumPyArray, share: NumPyArray) -> Noise:
        # The sums are rounded as well.
        size = np.abs(scores) + np.abs(self.offset[target])
        of_sums = Noise(0.0, float(share @ np.square(size)), True)
        return _LOGISTIC.noise(*self._added(scores, target), share) + of_sums

    def is_far_off(self, bias: float, value: float, least: float) -> bool:
        return float(np.abs(self.offset).max()) > OFFSET_OF_FLOAT32

    def null_scores(self, target: NumPyArray, weight: NumPyArray) -> NumPyArray:
        # Newton's method on a convex function of one number, whose root lies between these.
        offset, share = self.offset[target], weight / weight.sum()
        best = _LOGISTIC.null_scores(self.classes[target], weight)
        low, high = best - offset.max(), best - offset.min()
        middle = best - share @ offset
        for _ in range(_STEPS):
            slope = share @ self.residual(middle + np.zeros(len(target)), target)
            low, high = (low, middle) if slope > 0 else (middle, high)
            curvature = share @ self.curvature(middle + np.zeros(len(target)), target)
            step = slope / curvature if curvature > 0 else np.inf
            following = middle - step
            if not low < following < high:
                following = (low + high) / 2
            if abs(following - middle) <= _SAME * max(1.0, abs(middle)):
                break
            middle = following
        return np.asarray(middle)


_LOGISTIC = Logistic()
