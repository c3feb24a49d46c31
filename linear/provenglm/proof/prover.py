"""Choose the rows of a proof, and decide when proofs are tried."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from provenglm import constants
from provenglm.model.budget import memory_budget, rows_of_a_sample
from provenglm.model.objective import Objective, Snapshot
from provenglm.model.problem import Problem
from provenglm.model.sample import Sample
from provenglm.model.sampling import draw
from provenglm.proof.certificate import Certificate, Model, RowSubset
from provenglm.types import NumPyArray

_GROWTH = 4
"""Each proof uses this many times the rows of the previous one."""

_CHEAP_FRACTION = 0.25
"""A proof by a Newton step is tried before others if it costs less than this part of a pass."""


def certificate_of(objective: Objective) -> Certificate:
    """Return the certificate for points of an objective."""
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
    """Proofs for the points of one run, or of a path.

    Parameters
    ----------
    problem : Problem
    objective : Objective
        The objective with rows, coordinates and the shares of a run or of a fold.
    sample : Sample
        The sample, whose rows a proof uses if they are enough.
    seed : int
        The seed for drawing other rows.

    Attributes
    ----------
    has_factor : bool
        Whether a Newton step on some rows is affordable; see `certificate`.
    """

    def __init__(self, problem: Problem, objective: Objective, sample: Sample, seed: int) -> None:
        self._problem, self._objective = problem, objective
        self._sample, self._seed = sample, seed
        n, p = problem.features.shape
        self._width = (p + 1) * problem.loss.outputs
        most = min(constants.LARGEST_PROOF / self._width**2, constants.SAMPLE_NUMBERS / (p + 1))
        self._most = int(min(n, most, rows_of_a_sample(memory_budget(problem), p)))
        # Fewer rows than weights leave directions without a curvature.
        has_rows = self._most >= min(n, 2 * (p + 1))
        self.has_factor = self._width <= constants.MOST_WEIGHTS and has_rows
        self._curvature: float | None = None
        self.begin(problem.l2, problem.l1)

    def begin(self, l2: float, l1: float) -> None:
        """Set the penalties of the next point of a path."""
        self._l2, self._l1 = l2, l1
        width = self._problem.features.shape[1] + 1
        self._least = max(constants.LEAST_ROWS, constants.ROWS_OF_A_FEATURE * width)

    @cached_property
    def _certificate(self) -> Certificate:
        return certificate_of(self._objective)

    @property
    def newton_is_cheap(self) -> bool:
        """Whether a Newton step on the fewest rows costs much less than a pass over all rows."""
        step = constants.PRODUCT * float(self._least + self._width) * self._width
        a_pass = constants.NUMBER * self._objective.n
        return self.has_factor and step <= _CHEAP_FRACTION * a_pass

    @cached_property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self._seed, 1])

    def expected(self, known: Snapshot, estimate: float) -> float:
        """Return the approximate bound that the largest possible number of rows would give."""
        if not self.has_factor:
            return estimate
        fraction = self._most / self._objective.n
        return estimate / max(fraction, self._curvature_fraction(known))

    def of(
        self,
        coef: NumPyArray,
        intercept: NumPyArray,
        known: Snapshot,
        estimate: float,
        required_gap: float,
    ) -> tuple[float, float]:
        """Return the objective in float64 and a bound of its distance to the optimum, or inf.

        Parameters
        ----------
        known : Snapshot
            The snapshot of this point.
        estimate : float
            An estimate of the distance. The smaller it is, the fewer rows are needed.
        required_gap : float
            The required bound.
        """
        certificate = self._certificate
        if not np.isfinite(certificate.loss.self_concordance):
            return np.inf, np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            point = certificate.at(Model(coef, intercept, self._l2, self._l1), known)
            if point is None:
                return np.inf, np.inf
            gap, newton_is_cheap = np.inf, self.newton_is_cheap
            near = estimate / max(required_gap, 1e-300)
            if newton_is_cheap:
                gap = certificate.newton_bound(point, self._rows_for_proof(known, near))
            if gap > required_gap:
                gap = min(gap, certificate.penalty_bound(point, required_gap))
            if gap > required_gap and self.has_factor and not newton_is_cheap:
                gap = min(gap, certificate.newton_bound(point, self._rows_for_proof(known, near)))
            numbers = float(self._objective.n) * self._width**2
            if gap > required_gap and self.has_factor and numbers <= constants.LARGEST_PROOF:
                gap = min(gap, certificate.qr_bound(point))
        return point.objective, gap

    def provable_fraction(self, known: Snapshot) -> float:
        """Return the part of the required gap at which the sample's rows can prove an estimate."""
        return self._curvature_fraction(known) / constants.SAFETY

    @cached_property
    def _sample_subset(self) -> RowSubset | None:
        """The sample's rows, if they are not all rows and a proof can use their coordinates."""
        is_some = 0 < len(self._sample.rows) < self._objective.n
        if not (is_some and self.has_factor):
            return None
        return self._certificate.subset_of_sample(self._sample, self._objective.scaling)

    def _curvature_fraction(self, known: Snapshot) -> float:
        """Return the part of the total curvature that the sample's rows have.

        A bound from these rows is about the estimate divided by this part.
        """
        if self._curvature is None:
            self._curvature = 0.0
            if self._sample_subset is not None:
                sample = self._sample
                share = self._sample_subset.own.share
                scores = sample.scores(known.theta)
                each = sample.loss.sure_second_derivative(scores, sample.target).diagonal
                own, whole = (float((some @ each).sum()) for some in (share, sample.share))
                self._curvature = own / whole if whole > 0 else 0.0
        return self._curvature

    def _rows_for_proof(self, known: Snapshot, near: float) -> RowSubset:
        """Return the rows for a proof; `near` is the estimate divided by the required gap."""
        problem, size, fraction = (
            self._problem,
            len(self._sample.rows),
            self._curvature_fraction(known),
        )
        n, wanted = self._objective.n, 2 * near
        is_enough = fraction > 0 and near <= self.provable_fraction(known) and self._least <= size
        if self._sample_subset is not None and is_enough:
            count = max(self._least, int(min(1, wanted / fraction) * size))
            self._least = _GROWTH * count
            return self._sample_subset.head(count)
        count = max(self._least, int(min(1, wanted) * n))
        self._least = _GROWTH * count
        size = min(count, self._most)
        if size >= n:
            return self._certificate.all()
        rows, _ = draw(problem.loss, self._objective.table, size, self._rng)
        return self._certificate.subset(rows)
