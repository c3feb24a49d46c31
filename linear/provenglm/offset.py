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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from provenglm.problem import Problem
from provenglm.solution import Record, Settings, Solution
from provenglm.types import NumPyArray

Start = tuple[NumPyArray, NumPyArray]
Solve = Callable[[Problem, Settings, "Start | None"], Solution]

_FARTHEST = 100.0
"""From the mean, of offsets that are logarithms: exp() of it and of targets is within float64."""


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
            row = int(np.argmax(np.abs(offset)))
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
        return replace(
            solution,
            intercept=solution.intercept - self.shift,
            objective=self.factor * solution.objective + self.constant,
            gap=self.factor * solution.gap,
            decrement=self.factor * solution.decrement,
            history=[self._record(record) for record in solution.history],
        )

    def _record(self, record: Record) -> Record:
        return replace(
            record,
            objective=self.factor * record.objective + self.constant,
            gap=self.factor * record.gap,
            decrement=self.factor * record.decrement,
        )
