"""Proofs for the points of one run: on which rows, and when they pay."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from provenglm import constants
from provenglm.model.budget import room, rows_of_a_sample
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.model.sampling import draw
from provenglm.proof.certificate import Certificate, Model, Some
from provenglm.types import NumPyArray

_GROWTH = 4
"""A further proof takes so many times the rows of the one before."""

_LITTLE_OF_A_PASS = 0.25
"""A proof by a Newton step that costs less of a pass is tried before others."""


def certificate_of(objective: Objective) -> Certificate:
    """Return what proves points of an objective."""
    scaling = objective.scaling
    used = scaling.inverse > 0
    return Certificate(
        objective.table,
        objective.loss,
        objective.intercept,
        scaling.center,
        np.divide(1, scaling.inverse, out=np.ones_like(scaling.inverse), where=used),
    )


class Prover:
    """Proofs for points of one data set, of a path as well.

    Parameters
    ----------
    problem : Problem
    objective : Objective
        Its rows and coordinates, with the shares that count.
    sample : Sample
        Whose rows a proof takes, if they are enough.
    seed : int
        Of the rows that are drawn.

    Attributes
    ----------
    has_factor : bool
        Whether a Newton step on some rows is affordable: see `certificate`.
    """

    def __init__(self, problem: Problem, objective: Objective, sample: Sample, seed: int) -> None:
        self._problem, self._objective = problem, objective
        self._sample, self._seed = sample, seed
        n, p = problem.features.shape
        self._width = (p + 1) * problem.loss.outputs
        most = min(constants.LARGEST_PROOF / self._width**2, constants.SAMPLE_NUMBERS / (p + 1))
        self._most = int(min(n, most, rows_of_a_sample(room(problem), p)))
        # Fewer rows than weights leave directions without a curvature.
        has_rows = self._most >= min(n, 2 * (p + 1))
        self.has_factor = self._width <= constants.MOST_WEIGHTS and has_rows
        self._curvature: float | None = None
        self.begin(problem.l2, problem.l1)

    def begin(self, l2: float, l1: float) -> None:
        """Take the penalties of the next point of a path."""
        self._l2, self._l1 = l2, l1
        width = self._problem.features.shape[1] + 1
        self._least = max(constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * width)

    @cached_property
    def _certificate(self) -> Certificate:
        return certificate_of(self._objective)

    @property
    def is_cheap(self) -> bool:
        """Whether a Newton step on the fewest rows costs much less than a pass over all rows."""
        step = constants.PRODUCT * float(self._least + self._width) * self._width
        a_pass = constants.NUMBER * self._objective.n
        return self.has_factor and step <= _LITTLE_OF_A_PASS * a_pass

    @cached_property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self._seed, 1])

    def expected(self, known: Snapshot, estimate: float) -> float:
        """Return about the bound from as many rows as a proof can have."""
        if not self.has_factor:
            return estimate
        part = self._most / self._objective.n
        return estimate / max(part, self._part(known))

    def of(
        self,
        coef: NumPyArray,
        intercept: NumPyArray,
        known: Snapshot,
        estimate: float,
        enough: float,
    ) -> tuple[float, float]:
        """Return the objective in float64 and a bound of its distance to the optimum, or inf.

        Parameters
        ----------
        known : Snapshot
            Of this point.
        estimate : float
            Of the distance: the fewer rows are enough.
        enough : float
            The bound that is wanted.
        """
        certificate = self._certificate
        if not np.isfinite(certificate.loss.slope):
            return np.inf, np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            point = certificate.at(Model(coef, intercept, self._l2, self._l1), known)
            if point is None:
                return np.inf, np.inf
            gap, is_cheap = np.inf, self.is_cheap
            near = estimate / max(enough, 1e-300)
            if is_cheap:
                gap = certificate.by_a_factor(point, self._some(known, near))
            if gap > enough:
                gap = min(gap, certificate.without_a_step(point, enough))
            if gap > enough and self.has_factor and not is_cheap:
                gap = min(gap, certificate.by_a_factor(point, self._some(known, near)))
            numbers = float(self._objective.n) * self._width**2
            if gap > enough and self.has_factor and numbers <= constants.LARGEST_PROOF:
                gap = min(gap, certificate.by_rotation(point))
        return point.objective, gap

    def reach(self, known: Snapshot) -> float:
        """Return at which part of what is asked for an estimate is proven by the sample's rows."""
        return self._part(known) / constants.SAFETY

    @cached_property
    def _of_sample(self) -> Some | None:
        """The sample's rows, if they are some of all and in coordinates of a proof."""
        is_some = 0 < len(self._sample.rows) < self._objective.n
        if not (is_some and self.has_factor):
            return None
        return self._certificate.of_sample(self._sample, self._objective.scaling)

    def _part(self, known: Snapshot) -> float:
        """Return the part of all curvature that the sample's rows have, once.

        The bound is about the estimate, divided by it.
        """
        if self._curvature is None:
            self._curvature = 0.0
            if self._of_sample is not None:
                sample = self._sample
                share = self._of_sample.own.share
                scores = sample.scores(known.theta)
                each = sample.loss.sure_curvature(scores, sample.target).reshape(len(share), -1)
                own, whole = (float((some @ each).sum()) for some in (share, sample.share))
                self._curvature = own / whole if whole > 0 else 0.0
        return self._curvature

    def _some(self, known: Snapshot, near: float) -> Some:
        """Return as many rows as a proof needs, if the estimate is `near` times what is asked."""
        problem, size, part = self._problem, len(self._sample.rows), self._part(known)
        n, wanted = self._objective.n, 2 * near
        is_enough = part > 0 and near <= self.reach(known) and self._least <= size
        if self._of_sample is not None and is_enough:
            count = max(self._least, int(min(1, wanted / part) * size))
            self._least = _GROWTH * count
            return self._of_sample.head(count)
        count = max(self._least, int(min(1, wanted) * n))
        self._least = _GROWTH * count
        size = min(count, self._most)
        if size >= n:
            return self._certificate.all()
        rows, _ = draw(problem.loss, self._objective.table, size, self._rng)
        return self._certificate.some(rows)
