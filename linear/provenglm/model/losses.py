r"""The losses of a linear model, as functions of its scores :math:`z = xW + b`.

Each loss defines its value, its residual (the gradient with respect to the scores), its curvature
(the second derivative), and its conjugate :math:`l^*(u) = \sup_z uz - l(z)`. Scores and residuals
have the shape ``(n, K)``; their dtype, float32 or float64, is kept. All losses but softmax have one
score per sample, K = 1: they are subclasses of `ScalarLoss`, whose formulas are for arrays of shape
``(n,)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from provenglm.arguments import check_finite
from provenglm.rows.gram import ClassWeights, Weights
from provenglm.types import NumPyArray

OFFSET_OF_FLOAT32 = 30.0
"""Float64 is used if a mean is more than this many standard deviations from 0, because float32 then
loses up to 2 digits."""

_LEAST_CURVATURE = 1e-3
"""The curvature that a Hessian uses for samples on the linear part of Huber's loss."""

MOST_LOG = {2: 10.0, 4: 80.0, 8: 500.0}
"""The largest score, by the bytes of a number: the sum of exp() of larger scores would overflow."""


MAX_AMPLIFICATION = 16.0
"""The residuals of the duality gap are at most this many times those at the scores, and so is their
rounding error: a residual has few digits of a mean that is far below that of the targets."""


class RoundingTerms(NamedTuple):
    """The quantities that bound the rounding errors of a pass; those of parts can be added.

    Attributes
    ----------
    curvature : float
        The largest curvature.
    square : float
        The mean square of |prediction| + |target|: a residual is the difference of the two.
    is_exact : bool
        Whether no score was clipped to the range of its loss.
    """

    curvature: float
    square: float
    is_exact: bool

    def __add__(self, other: RoundingTerms) -> RoundingTerms:  # type: ignore[override]
        return RoundingTerms(
            max(self.curvature, other.curvature),
            self.square + other.square,
            self.is_exact and other.is_exact,
        )


_SINGULAR = 1e-12
"""An eigenvalue of the intercepts' Hessian below this part of the largest one is rounding."""


class SecondDerivative:
    """The second derivatives of the losses of some samples, with one score per sample.

    Parameters
    ----------
    diagonal : numpy.ndarray, (n, 1)
    """

    def __init__(self, diagonal: NumPyArray) -> None:
        self._diagonal = diagonal

    @property
    def diagonal(self) -> NumPyArray:
        """The second derivative with respect to each score, (n, K)."""
        return self._diagonal

    def astype(self, dtype: np.dtype[Any]) -> SecondDerivative:
        """Return the same second derivatives in another dtype."""
        return SecondDerivative(self.diagonal.astype(dtype, copy=False))

    def subset(self, rows: slice | NumPyArray) -> SecondDerivative:
        """Return the second derivatives of some samples."""
        return SecondDerivative(self.diagonal[rows])

    def times(self, step: NumPyArray) -> NumPyArray:
        """Return the change of the residuals by a step of the scores, as a new array."""
        return np.asarray(self.diagonal * step)

    def total(self, share: NumPyArray) -> NumPyArray:
        """Return the weighted sum over all samples, (K, K)."""
        return np.asarray((share @ self.diagonal)[:, None])

    def weights(self, share: NumPyArray) -> Weights:
        """Return the weights of the rows in the Hessian; see `gram`."""
        return np.asarray(share * self.diagonal[:, 0])

    def inverse_of_total(self, share: NumPyArray) -> NumPyArray:
        """Return the inverse of the weighted sum; 0 if the sum is 0."""
        total = self.total(share)
        return np.divide(1, total, out=np.zeros_like(total), where=total > 0)


class SecondDerivativeOfClasses(SecondDerivative):
    """The second derivatives of softmax: diag p - p p^T for each sample.

    Parameters
    ----------
    probability : numpy.ndarray, (n, K)
    """

    def __init__(self, probability: NumPyArray) -> None:
        self.probability = probability

    @property
    def diagonal(self) -> NumPyArray:
        return np.asarray(self.probability * (1 - self.probability))

    def astype(self, dtype: np.dtype[Any]) -> SecondDerivativeOfClasses:
        # The classes of a row are contiguous, as in the steps that they are multiplied with.
        return SecondDerivativeOfClasses(np.ascontiguousarray(self.probability, dtype))

    def subset(self, rows: slice | NumPyArray) -> SecondDerivativeOfClasses:
        return SecondDerivativeOfClasses(self.probability[rows])

    def times(self, step: NumPyArray) -> NumPyArray:
        probability = self.probability
        deviation: NumPyArray = step - np.einsum("ik,ik->i", probability, step)[:, None]
        deviation *= probability
        return deviation

    def total(self, share: NumPyArray) -> NumPyArray:
        probability = self.probability
        root = probability * np.sqrt(share).astype(probability.dtype)[:, None]
        # The product of an array with itself takes half the time, and is exactly symmetric.
        total = np.asarray(root.T @ root, np.float64)
        # Probabilities sum to 1, so a shift of all classes has no curvature.
        return np.asarray(np.diag(total.sum(axis=1)) - total)

    def weights(self, share: NumPyArray) -> Weights:
        return ClassWeights(self.probability, share)

    def inverse_of_total(self, share: NumPyArray) -> NumPyArray:
        return np.linalg.pinv(self.total(share), rcond=_SINGULAR, hermitian=True)


Terms: TypeAlias = Callable[[NumPyArray, NumPyArray], NumPyArray]
"""A function of the scores and targets of some rows."""


class Dual(NamedTuple):
    """Residuals in the domain of the conjugate with mean 0, and a bound of their Fenchel terms.

    Attributes
    ----------
    kept, target_factor : float
    constant : numpy.ndarray, (K,), or float
        The residuals are u = kept r + constant + target_factor y, where y is `Loss.observed`. In
        the formulas of a `ScalarLoss` it is a number.
    terms : callable or float
        Return a bound of Fenchel's terms l(z) + l*(u) - u z from the scores and targets of some
        rows; or the mean of these terms over all rows, if it is known.
    """

    kept: float
    constant: NumPyArray | float
    target_factor: float
    terms: Terms | float


class Loss(ABC):
    """A convex loss of one sample."""

    name: str
    outputs: int = 1
    """The number of scores per sample."""
    is_quadratic: bool = False
    """Whether the second derivative is constant."""
    has_classes: bool = False
    """Whether targets are the indices of classes; otherwise they are numbers."""
    is_separable: bool = False
    """Whether samples have classes: if a plane separates these, there is no finite optimum."""
    falls_at_zero: bool = False
    """Whether the loss of a target 0 decreases for ever as its score decreases."""
    bytes_of_a_row: int = 0
    """Bytes that a fit needs per row, in addition to the scores."""
    needs_all_targets: bool = False
    """Whether the best constant depends on more than the mean of the targets."""
    has_dispersion: bool = False
    """Whether the variance of the targets has an unknown factor."""
    has_logarithm: bool = False
    """Whether the prediction is the exponential of the score."""
    has_least: bool = False
    """Whether the infimum of the loss may differ from 0."""
    has_scale: bool = False
    """Whether the scale of the residuals is estimated as well, in an outer iteration."""

    # Properties that the certificate uses: see `certificate`.
    has_third_derivative: bool = True
    """Whether the curvature changes along a step; otherwise the loss is quadratic in its range."""
    initial_move: float = 0.0
    """The largest relative move before any step, among rows with a `least_curvature` above 0."""

    @property
    def self_concordance(self) -> float:
        """The largest change of a row's relative move if its score changes by 1.

        It bounds the third derivative divided by the second. If it is infinite, no proof by a
        Newton step is tried. If it is finite, `rounding_terms` must be defined as well.
        """
        return np.inf

    @abstractmethod
    def value(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the loss of each sample, shape ``(n,)``."""

    @abstractmethod
    def residual(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the derivative with respect to the scores, shape ``(n, K)``."""

    @abstractmethod
    def value_and_residual(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return value and residual; together they may cost less than one after the other."""

    @abstractmethod
    def curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the diagonal of the second derivative, shape ``(n, K)``."""

    @abstractmethod
    def second_derivative(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float = 0.0
    ) -> SecondDerivative:
        """Return the curvatures for a Hessian with respect to the scores.

        Parameters
        ----------
        curvature_shift : float
            The curvature shift, from 0 to 1. If the loss depends on a mean, the curvature is that
            of the mean after this part of the way to the target, because a sample far on the wrong
            side has almost no curvature of its own. For Huber's loss, this part of the curvature is
            that of the lowest parabola above the loss.
        """

    @abstractmethod
    def conjugate(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the conjugate of each sample at `dual`, shape ``(n,)``; inf outside its domain."""

    @abstractmethod
    def inside(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return residuals that rounding has moved out of the conjugate's domain, moved back."""

    @abstractmethod
    def fenchel(self, scores: NumPyArray, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return l(z) + l*(u) - u z of each sample, (n,), which is at least 0 up to rounding."""

    @abstractmethod
    def null_scores(self, target: NumPyArray, weight: NumPyArray) -> NumPyArray:
        """Return the best intercepts of the model without features, (K,)."""

    @abstractmethod
    def balanced(self, excess: NumPyArray, mean: NumPyArray) -> Dual:
        """Return residuals with mean 0, close to those at the scores.

        Parameters
        ----------
        excess : numpy.ndarray, (K,)
            The mean of the residuals at the scores.
        mean : numpy.ndarray, (K,)
            The mean of `observed`.
        """

    @abstractmethod
    def observed(self, target: NumPyArray) -> NumPyArray:
        """Return the values that residuals refer to, (n, K): numbers, or indicators of classes."""

    def probability(self, scores: NumPyArray) -> NumPyArray:
        """Return the probabilities of the classes, (n, K); only for a loss with K outputs."""
        raise NotImplementedError(self.name)

    def margins(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return by how much each row's own class leads the best other one, (n,); for classes."""
        raise NotImplementedError(self.name)

    def check_target(  # noqa: B027 - most take all numbers
        self, target: NumPyArray, weight: NumPyArray | None
    ) -> None:
        """Raise a ValueError if a finite target is outside the range of this loss."""

    def groups(self, target: NumPyArray) -> NumPyArray | None:
        """Return the groups of the targets, from 0: rows of a rare group are drawn more often.

        Return None if all groups are equally informative.
        """
        return target.astype(np.intp, copy=False) if self.has_classes else None

    @property
    def group_count(self) -> int:
        """The number of these groups."""
        return max(2, self.outputs)

    def is_far_off(self, bias: float, value: float, least: float) -> bool:
        """Whether float32 has too few digits for the scores.

        Parameters
        ----------
        bias : float
            The best constant; with offsets the root mean square of its scores, with the sign of
            their mean.
        value, least : float
            The mean loss at the best constant, and its infimum.
        """
        return bool(np.square(bias) > 2 * OFFSET_OF_FLOAT32**2 * (value - least))

    def least(self, target: NumPyArray) -> NumPyArray:
        """Return the infimum of the loss of each sample, shape ``(n,)``."""
        return np.zeros(len(target))

    def is_exact(self, scores: NumPyArray, target: NumPyArray) -> bool:
        """Return whether no score of these rows is clipped: see `MOST_LOG`.

        Values and residuals of a clipped score prove nothing.
        """
        return True

    def sure_second_derivative(self, scores: NumPyArray, target: NumPyArray) -> SecondDerivative:
        """Return the curvatures that the certificate may use; the others are 0."""
        return self.second_derivative(scores, target)

    @abstractmethod
    def least_curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return a certain curvature, (n,), for short steps along any combination of scores.

        For classes it holds along any combination that does not shift all of them.
        """

    @abstractmethod
    def quadratic_step(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        """Return the changes by a step of the scores, computed from the curvature alone.

        Returns
        -------
        residual : numpy.ndarray, (n, K)
            The change of the residuals.
        square : numpy.ndarray, (n,)
            The product of this change with the step.
        relative_move : numpy.ndarray, (n,)
            The relative move of the mean towards the border of its range, at most 1.
        """

    @abstractmethod
    def rounding_terms(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        """Return the quantities that bound the rounding errors of these rows."""


class ScalarLoss(Loss):
    """A loss of one score per sample, defined by formulas for arrays of shape ``(n,)``.

    A subclass defines at least `value_at`, `residual_at`, `curvature_at`, `conjugate_at`,
    `balanced_at` and `null_score`. This class converts from and to the shapes of `Loss`.
    """

    @classmethod
    def of(cls, arguments: Any) -> ScalarLoss:  # noqa: ARG003
        """Return the loss for an estimator's arguments, after checking them."""
        return cls()

    @abstractmethod
    def value_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the loss of each sample."""

    @abstractmethod
    def residual_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the derivative with respect to each score, as a new array."""

    @abstractmethod
    def curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the second derivative with respect to each score."""

    @abstractmethod
    def conjugate_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the conjugate of each sample; inf outside its domain."""

    @abstractmethod
    def balanced_at(self, excess: float, mean: float) -> Dual:
        """Return residuals with mean 0; see `Loss.balanced`. The terms get scores (n,)."""

    @abstractmethod
    def null_score(self, target: NumPyArray, weight: NumPyArray) -> float:
        """Return the best intercept of the model without features."""

    def value_and_residual_at(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        """Return value and residual; together they may cost less than one after the other."""
        return self.value_at(scores, target), self.residual_at(scores, target)

    def curvature_in_hessian_at(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float
    ) -> NumPyArray:
        """Return the curvatures for a Hessian; see `Loss.second_derivative`.

        They are positive also if the curvature may vanish.
        """
        return self.curvature_at(scores, target)

    def sure_curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return the curvature if the certificate may use it, else 0."""
        return self.curvature_at(scores, target)

    def least_curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return a certain curvature for short steps; see `Loss.least_curvature`."""
        return self.sure_curvature_at(scores, target)

    def relative_move_at(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> NumPyArray:
        """Return the relative move by a step of the scores; see `Loss.quadratic_step`."""
        return np.asarray(self.self_concordance * np.abs(step))

    def inside_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return residuals in the conjugate's domain; see `Loss.inside`."""
        return dual

    def fenchel_at(self, scores: NumPyArray, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return Fenchel's terms; see `Loss.fenchel`."""
        return self.value_at(scores, target) + self.conjugate_at(dual, target) - dual * scores

    def is_exact_at(self, scores: NumPyArray, target: NumPyArray) -> bool:
        """Return whether no score of these rows is clipped; see `Loss.is_exact`."""
        return True

    def rounding_terms_at(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        """Return the quantities that bound the rounding errors of these rows."""
        return RoundingTerms(1.0, float(share @ np.square(np.abs(scores) + np.abs(target))), True)

    # Predictions, for arrays of shape (n,).

    def prediction(self, scores: NumPyArray) -> NumPyArray:
        """Return the prediction of the targets."""
        return np.asarray(np.exp(scores)) if self.has_logarithm else scores

    def deviance(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        """Return half the deviance of each sample: the loss minus its infimum."""
        return self.value_at(scores, target) - self.least(target)

    def fisher(self, scores: NumPyArray) -> NumPyArray:
        """Return the expectation of the curvature: 1 / (V(m) g'(m)^2) for the mean m."""
        raise NotImplementedError(
            f"loss={self.name!r} has no Fisher information and so no standard errors: resample the "
            "rows (sklearn.utils.resample), or define `fisher` if it is a likelihood"
        )

    # The same formulas in the shapes of `Loss`.

    def value(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.value_at(scores[:, 0], target)

    def residual(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.residual_at(scores[:, 0], target)[:, None]

    def value_and_residual(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        value, residual = self.value_and_residual_at(scores[:, 0], target)
        return value, residual[:, None]

    def curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.curvature_at(scores[:, 0], target)[:, None]

    def second_derivative(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float = 0.0
    ) -> SecondDerivative:
        diagonal = self.curvature_in_hessian_at(scores[:, 0], target, curvature_shift)
        return SecondDerivative(diagonal[:, None])

    def conjugate(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.conjugate_at(dual[:, 0], target)

    def inside(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.inside_at(dual[:, 0], target)[:, None]

    def fenchel(self, scores: NumPyArray, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.fenchel_at(scores[:, 0], dual[:, 0], target)

    def null_scores(self, target: NumPyArray, weight: NumPyArray) -> NumPyArray:
        return np.array([self.null_score(target, weight)])

    def balanced(self, excess: NumPyArray, mean: NumPyArray) -> Dual:
        kept, constant, target_factor, terms = self.balanced_at(float(excess[0]), float(mean[0]))
        if callable(terms):
            terms = _of_one_score(terms)
        return Dual(kept, np.array([constant]), target_factor, terms)

    def observed(self, target: NumPyArray) -> NumPyArray:
        return target[:, None]

    def is_exact(self, scores: NumPyArray, target: NumPyArray) -> bool:
        return self.is_exact_at(scores[:, 0], target)

    def sure_second_derivative(self, scores: NumPyArray, target: NumPyArray) -> SecondDerivative:
        return SecondDerivative(self.sure_curvature_at(scores[:, 0], target)[:, None])

    def least_curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.least_curvature_at(scores[:, 0], target)

    def quadratic_step(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        scores, step = scores[:, 0], step[:, 0]
        residual = self.sure_curvature_at(scores, target) * step
        return residual[:, None], residual * step, self.relative_move_at(scores, target, step)

    def rounding_terms(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        return self.rounding_terms_at(scores[:, 0], target, share)


def _of_one_score(terms: Terms) -> Terms:
    return lambda scores, target: terms(scores[:, 0], target)


@dataclass(frozen=True)
class Logistic(ScalarLoss):
    r"""Logistic loss, :math:`\log(1 + e^z) - yz`, for targets 0 and 1."""

    name = "logistic"
    self_concordance = 1.0
    has_classes = True
    is_separable = True

    def fisher(self, scores: NumPyArray) -> NumPyArray:
        return self.curvature_at(scores, scores)

    def balanced_at(self, excess: float, mean: float) -> Dual:
        # (1 - m) p + m q with q = 0 or 1 has the same mean as the targets.
        score_mean = mean + excess
        down = score_mean > mean
        # A class with 1e-17 of all weights gives 0 for both.
        up = mean - score_mean
        mixed = 1 - mean / score_mean if down else up / (1 - score_mean) if up > 0 else 0.0
        sign = 1.0 if down else -1.0

        def terms(scores: NumPyArray, _: NumPyArray) -> NumPyArray:
            # KL(u || p) <= log(1 + chi^2(u, p)), and chi^2 = m^2 e^(+-z). If p is almost 0,
            # convexity gives a better bound: KL(u || p) <= m KL(q || p), which is at most
            # m (log 2 + max(+-z, 0)).
            scores = sign * scores.astype(np.float64)
            logarithm = scores + 2 * np.log(mixed)
            square = np.log1p(np.exp(-np.abs(logarithm))) + np.maximum(logarithm, 0)
            return np.asarray(np.minimum(square, mixed * (np.log(2) + np.maximum(scores, 0))))

        constant = 0.0 if down else mixed
        return Dual(1 - mixed, constant, -mixed, terms if mixed else 0.0)

    def inside_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.asarray(np.clip(dual, -target, 1 - target))

    def value_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.value_and_residual_at(scores, target)[0]

    def residual_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        with np.errstate(over="ignore"):  # 1 / inf is the probability then
            probability: NumPyArray = np.exp(-scores)
        probability += 1
        np.divide(1, probability, out=probability)
        probability -= target
        return probability

    def value_and_residual_at(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        # Use exp(-|z|), which cannot overflow. Work in place, with targets in the scores' dtype,
        # because temporary arrays and conversions took a tenth of a pass.
        target = target.astype(scores.dtype, copy=False)
        small: NumPyArray = -np.abs(scores)
        np.exp(small, out=small)
        value: NumPyArray = np.log1p(small)
        value += np.maximum(scores, 0)
        value -= target * scores
        # exp(min(z, 0)), as `small` is at most 1.
        probability: NumPyArray = np.maximum(small, scores >= 0)
        small += 1
        probability /= small
        probability -= target
        return value, probability

    def curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        small = np.exp(-np.abs(scores))
        return np.asarray(small / np.square(1 + small))

    def curvature_in_hessian_at(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float
    ) -> NumPyArray:
        if not curvature_shift:
            return self.curvature_at(scores, target)
        # With q between p and y: q (1 - q) = (1 - c) p (1 - p) + c (1 - c) (p - y)^2.
        residual = self.residual_at(scores, target)
        more = curvature_shift * (1 - curvature_shift) * np.square(residual)
        return (1 - curvature_shift) * self.curvature_at(scores, target) + more

    def relative_move_at(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> NumPyArray:
        small = np.exp(-np.abs(scores))
        near, far = 1 / (1 + small), small / (1 + small)  # of the likelier class, and the other
        up = np.where(scores >= 0, far, near)
        return np.maximum(-up * step, np.where(scores >= 0, near, far) * step)

    def rounding_terms_at(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        return RoundingTerms(0.25, 4 * float(share.sum()), True)

    def conjugate_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        probability = dual + target
        inside = (probability >= 0) & (probability <= 1)
        entropy = x_log_x(probability) + x_log_x(1 - probability)
        return np.where(inside, entropy, np.inf)

    def margins(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.where(target > 0, scores[:, 0], -scores[:, 0])

    def null_score(self, target: NumPyArray, weight: NumPyArray) -> float:
        # If a class has 1e-19 of all weights, 1 minus the other's share would be 0.
        return float(np.log(weight @ target) - np.log(weight @ (1 - target)))


@dataclass(frozen=True)
class Softmax(Loss):
    r"""Cross-entropy :math:`\log \sum_k e^{z_k} - z_y` of classes; targets are indices."""

    outputs: int = 2

    name = "softmax"
    self_concordance = 1.0
    has_classes = True
    is_separable = True

    def balanced(self, excess: NumPyArray, mean: NumPyArray) -> Dual:
        score_mean = mean + excess
        ratio = np.divide(mean, score_mean, out=np.ones_like(score_mean), where=score_mean > 0)
        kept = min(1.0, float(ratio.min()))
        constant = np.maximum(mean - kept * score_mean, 0)
        logarithm = np.where(constant > 0, 2 * np.log(np.where(constant > 0, constant, 1)), -np.inf)

        def terms(scores: NumPyArray, _: NumPyArray) -> NumPyArray:
            # u = kept p + c with sum c = 1 - kept: chi^2 = sum c^2 / p - (1 - kept)^2. It is
            # computed in the scores' dtype: log1p() of small numbers keeps all its digits, and if
            # exp() overflows, the other bound is smaller.
            scores = np.array(scores.T, order="C")
            top = scores.max(axis=0)
            scores -= top
            normaliser = np.log(np.exp(scores).sum(axis=0))
            each = logarithm.astype(scores.dtype)[:, None] - scores
            each += normaliser
            square = np.log1p(np.exp(each, out=each).sum(axis=0))
            # By convexity, KL(u || p) <= -sum c log p.
            mixed = constant.sum() * normaliser - constant @ scores
            return np.asarray(np.minimum(square, mixed), np.float64)

        return Dual(kept, constant, kept - 1, terms if kept < 1 else 0.0)

    def inside(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        observed = self.observed(target)
        return np.asarray(np.clip(dual, -observed, 1 - observed))

    def observed(self, target: NumPyArray) -> NumPyArray:
        indicator = np.zeros((len(target), self.outputs))
        indicator[np.arange(len(target)), target] = 1
        return indicator

    def margins(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        rows, others = np.arange(len(scores)), scores.copy()
        others[rows, target] = -np.inf
        return np.asarray(scores[rows, target] - others.max(axis=1))

    def value(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self.value_and_residual(scores, target)[0]

    def probability(self, scores: NumPyArray) -> NumPyArray:
        """Return the classes' probabilities, shape ``(n, K)``."""
        return self._exponential(scores)[0].T

    def residual(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        probability = self._exponential(scores)[0]
        probability[target, np.arange(len(target))] -= 1
        return probability.T

    def value_and_residual(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        probability, normaliser, top = self._exponential(scores)
        rows = np.arange(len(target))
        # In this order a shift of all classes costs no digit.
        value = normaliser + (top - scores[rows, target])
        probability[target, rows] -= 1
        return value, probability.T

    def _exponential(self, scores: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        """Return the probabilities, (K, n), the logarithm of their normaliser, and the top score.

        The normaliser is that of the scores minus the top score, (n,).

        The computation goes class by class: NumPy takes several times as long for sums over few
        contiguous numbers as for sums over long rows.
        """
        exponential = np.array(scores.T, order="C")
        top = exponential.max(axis=0)
        exponential -= top
        np.exp(exponential, out=exponential)
        total = exponential.sum(axis=0)
        exponential /= total
        return exponential, np.log(total), top

    def curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        probability = self.probability(scores)
        return np.asarray(probability * (1 - probability))

    def second_derivative(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float = 0.0
    ) -> SecondDerivative:
        mean = self.probability(scores)
        if curvature_shift:
            mean *= 1 - curvature_shift
            mean[np.arange(len(target)), target] += curvature_shift
        return SecondDerivativeOfClasses(mean)

    def least_curvature(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        # diag p - p p^T is at least min p (I - 1 1^T / K).
        return np.asarray(self.probability(scores).min(axis=1))

    def quadratic_step(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
        probability = self.probability(scores)
        mean = (probability * step).sum(axis=1, keepdims=True)
        deviation = step - mean
        residual = probability * deviation
        return residual, (residual * deviation).sum(axis=1), -deviation.min(axis=1)

    def rounding_terms(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        return RoundingTerms(0.5, 4 * float(share.sum()), True)

    def conjugate(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        probability = dual.copy()
        probability[np.arange(len(dual)), target] += 1
        inside = (probability >= 0).all(axis=1) & (
            np.abs(probability.sum(axis=1) - 1) <= 1e-6 * self.outputs
        )
        return np.where(inside, x_log_x(probability).sum(axis=1), np.inf)

    def fenchel(self, scores: NumPyArray, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        terms = self.value(scores, target) + self.conjugate(dual, target)
        return np.asarray(terms - (dual * scores).sum(axis=1))

    def null_scores(self, target: NumPyArray, weight: NumPyArray) -> NumPyArray:
        count = np.bincount(target, weights=weight, minlength=self.outputs)
        # A class whose weights are all 0 would have the intercept -infinity.
        logarithm = np.log(np.maximum(count, 1e-12 * count.sum()) / count.sum())
        return np.asarray(logarithm - logarithm.mean())


@dataclass(frozen=True)
class Squared(ScalarLoss):
    r"""Half the squared error, :math:`(z - y)^2 / 2`."""

    name = "squared"
    self_concordance = 0.0
    is_quadratic = True
    has_third_derivative = False
    has_dispersion = True

    def fisher(self, scores: NumPyArray) -> NumPyArray:
        return np.ones_like(scores)

    def balanced_at(self, excess: float, mean: float) -> Dual:
        return Dual(1.0, -excess, 0.0, 0.5 * excess**2)

    def value_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.asarray(0.5 * np.square(scores - target))

    def residual_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return scores - target

    def curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.ones_like(scores)

    def conjugate_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return 0.5 * np.square(dual) + dual * target

    def null_score(self, target: NumPyArray, weight: NumPyArray) -> float:
        return float(weight @ target / weight.sum())


@dataclass(frozen=True)
class Huber(ScalarLoss):
    r"""Huber's loss: half the squared error up to `epsilon`, then a line of slope `epsilon`."""

    epsilon: float = 1.35

    name = "huber"
    has_third_derivative = False
    initial_move = 0.5
    needs_all_targets = True
    has_scale = True
    bytes_of_a_row = 100  # for the search for the scale

    @classmethod
    def of(cls, arguments: Any) -> ScalarLoss:
        meaning = "outliers are beyond epsilon times the scale, which would be 0 for 1"
        return cls(check_finite("epsilon", arguments.epsilon, meaning, 1, above=True))

    def balanced_at(self, excess: float, mean: float) -> Dual:
        size = abs(excess)
        mixed = size / (size + self.epsilon)
        constant = float(-mixed * np.sign(excess) * self.epsilon)

        def terms(scores: NumPyArray, target: NumPyArray) -> NumPyArray:
            scores = scores.astype(np.float64)
            dual = (1 - mixed) * self.residual_at(scores, target) + constant
            exact = self.value_at(scores, target) + 0.5 * np.square(dual) - dual * (scores - target)
            return np.asarray(np.maximum(exact, 0))

        return Dual(1 - mixed, constant, 0.0, terms if mixed else 0.0)

    @property
    def self_concordance(self) -> float:
        return 1 / self.epsilon

    def value_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        error = scores - target
        inside = np.clip(error, -self.epsilon, self.epsilon)
        return np.asarray(inside * (error - 0.5 * inside))

    def residual_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.clip(scores - target, -self.epsilon, self.epsilon)

    def curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.asarray((np.abs(scores - target) <= self.epsilon).astype(scores.dtype))

    def sure_curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        # A step that leaves the parabola is not covered, so rows near its end have no curvature
        # here.
        return self._inside(scores, target, 0.9)

    def least_curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return self._inside(scores, target, self.initial_move)

    def _inside(self, scores: NumPyArray, target: NumPyArray, fraction: float) -> NumPyArray:
        return np.asarray(np.abs(scores - target) <= fraction * self.epsilon, scores.dtype)

    def relative_move_at(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> NumPyArray:
        return np.abs(scores - target + step) / self.epsilon

    def conjugate_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        # Rounding may have moved the residual an ulp out of the domain.
        inside = np.abs(dual) <= self.epsilon * (1 + 1e-6)
        return np.where(inside, 0.5 * np.square(dual) + dual * target, np.inf)

    def curvature_in_hessian_at(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float
    ) -> NumPyArray:
        error = np.abs(scores - target)
        inside = error <= self.epsilon
        # The curvature of the lowest parabola above the loss, as in iteratively reweighted least
        # squares (Huber 1981, section 7.8).
        above = np.minimum(1, self.epsilon / np.maximum(error, self.epsilon))
        if not inside.mean() > 0.1:
            # Far from the optimum hardly any sample has a curvature.
            return np.asarray(above)
        own = np.maximum(inside, _LEAST_CURVATURE)
        return np.asarray((1 - curvature_shift) * own + curvature_shift * above)

    def null_score(self, target: NumPyArray, weight: NumPyArray) -> float:
        # Minimise a convex function of one number by Newton's method, from the weighted median: the
        # active set settles in a few steps.
        order = np.argsort(target)
        total = np.cumsum(weight[order])
        middle = target[order[np.searchsorted(total, total[-1] / 2)]]
        for _ in range(50):
            error = middle - target
            slope = weight @ np.clip(error, -self.epsilon, self.epsilon)
            curvature = weight @ (np.abs(error) <= self.epsilon)
            if curvature == 0 or abs(slope) <= 1e-14 * self.epsilon * total[-1]:
                break
            middle = middle - slope / curvature
        return float(middle)


@dataclass(frozen=True)
class Poisson(ScalarLoss):
    r"""Poisson loss with a log link, half the deviance: :math:`e^z - yz`.

    The constant :math:`y \log y - y` is left out, as in a likelihood.
    """

    name = "poisson"
    self_concordance = 1.0
    has_least = True
    has_logarithm = True
    falls_at_zero = True

    def deviance(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.asarray(np.exp(scores) - target * scores - self.least(target))

    def fisher(self, scores: NumPyArray) -> NumPyArray:
        return _exp(scores)

    def check_target(self, target: NumPyArray, weight: NumPyArray | None) -> None:
        check_not_negative(self.name, target, weight)

    def groups(self, target: NumPyArray) -> NumPyArray | None:
        return (target > 0).astype(np.intp)

    def is_far_off(self, bias: float, value: float, least: float) -> bool:
        return abs(value) > OFFSET_OF_FLOAT32 * (value - least)

    def balanced_at(self, excess: float, mean: float) -> Dual:
        kept, added, terms = balanced_means(
            mean + excess, mean, lambda scores, _: scores.astype(np.float64)
        )
        return Dual(kept, added, kept - 1, terms)

    def inside_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        return np.asarray(np.maximum(dual, -target))

    def value_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _exp(scores) - target * scores

    def residual_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _exp(scores) - target

    def value_and_residual_at(
        self, scores: NumPyArray, target: NumPyArray
    ) -> tuple[NumPyArray, NumPyArray]:
        mean = _exp(scores)
        return mean - target * scores, mean - target

    def curvature_at(self, scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        return _exp(scores)

    def curvature_in_hessian_at(
        self, scores: NumPyArray, target: NumPyArray, curvature_shift: float
    ) -> NumPyArray:
        return (1 - curvature_shift) * _exp(scores) + curvature_shift * target

    def relative_move_at(
        self, scores: NumPyArray, target: NumPyArray, step: NumPyArray
    ) -> NumPyArray:
        return -step

    def rounding_terms_at(
        self, scores: NumPyArray, target: NumPyArray, share: NumPyArray
    ) -> RoundingTerms:
        mean = _exp(scores)
        square = float(share @ np.square(mean + np.abs(target)))
        largest = 1.01 * float(mean.max(initial=0))
        return RoundingTerms(largest, square, self.is_exact_at(scores, target))

    def is_exact_at(self, scores: NumPyArray, target: NumPyArray) -> bool:
        return float(scores.max(initial=0)) < MOST_LOG[scores.dtype.itemsize]

    def conjugate_at(self, dual: NumPyArray, target: NumPyArray) -> NumPyArray:
        mean = dual + target
        return np.where(mean >= 0, x_log_x(mean) - mean, np.inf)

    def least(self, target: NumPyArray) -> NumPyArray:
        return target - x_log_x(target)

    def null_score(self, target: NumPyArray, weight: NumPyArray) -> float:
        return float(np.log(weight @ target / weight.sum()))


def balanced_means(
    mean: float, wanted: float, logarithm: Terms
) -> tuple[float, float, Terms | float]:
    r"""Return the change of positive numbers m to `kept` m + `added` with the wanted mean.

    A factor alone costs least, just as a constant added to m's logarithm does. If the factor would
    exceed `MAX_AMPLIFICATION`, a constant is added.

    Parameters
    ----------
    mean : float
        The mean of m. It may be a difference that has lost its digits.
    wanted : float
    logarithm : callable
        Return :math:`\log m` in float64, from scores and targets of some rows.

    Returns
    -------
    kept, added : float
    terms : callable or float
        As in `Dual`: the divergence :math:`q \log(q / m) - q + m` of the new numbers q.
    """
    if wanted < MAX_AMPLIFICATION * mean or not np.isfinite(mean):
        kept = wanted / mean
        return kept, 0.0, mean * float(kept * np.log(kept) - kept + 1)
    kept = MAX_AMPLIFICATION
    added = wanted - kept * mean

    def terms(scores: NumPyArray, target: NumPyArray) -> NumPyArray:
        log_mean = logarithm(scores, target)
        old = _exp(log_mean)
        new = kept * old + added
        return np.asarray(np.maximum(new * (np.log(new) - log_mean - 1) + old, 0))

    return kept, added, terms


def explained_deviance(
    loss: ScalarLoss, target: NumPyArray, scores: NumPyArray, weight: NumPyArray | None
) -> float:
    """Return 1 - D(y, prediction) / D(y, mean(y)), where D is the deviance; all arrays are (n,).

    It is computed from the logarithms of the predictions, which do not underflow. As with R^2, if
    all y are equal it is 1 for a perfect prediction and 0 for any other.
    """
    if weight is not None:
        # The deviance of a row with weight 0 may be infinite, and 0 times infinity is NaN.
        counts = weight > 0
        target, scores, weight = target[counts], scores[counts], weight[counts]
    share = np.ones(len(target)) if weight is None else weight
    best = np.full(len(target), loss.null_score(target, share))
    model_deviance, null_deviance = (
        max(float(np.average(loss.deviance(z, target), weights=weight)), 0.0)
        for z in (scores, best)
    )
    # Rounding may leave a positive deviance for equal targets.
    nothing = 1e-14 * float((np.abs(loss.value_at(best, target)) + loss.fisher(best)).max())
    if null_deviance <= nothing:
        return 1.0 if model_deviance <= nothing else 0.0
    return 1 - model_deviance / null_deviance


def check_not_negative(name: str, target: NumPyArray, weight: NumPyArray | None) -> None:
    """Raise a ValueError if the targets of a loss with a log link are negative or all 0."""
    if (target < 0).any():
        row = int(np.argmax(target < 0))
        raise ValueError(
            f"y is {target[row]:g} in row {row}, and loss={name!r} needs numbers of at least 0: "
            "take the squared loss for values of both signs"
        )
    if not (target if weight is None else target[weight > 0]).any():
        raise ValueError(
            f"y is 0 in every row with a positive weight, and loss={name!r} has no finite optimum "
            "there (the logarithm of the mean goes to minus infinity): give positive values, too"
        )


def _exp(scores: NumPyArray) -> NumPyArray:
    """Return exp() of the scores, with the largest scores clipped."""
    mean: NumPyArray = np.exp(np.minimum(scores, MOST_LOG[scores.dtype.itemsize]))
    return mean


def x_log_x(x: NumPyArray) -> NumPyArray:
    """Return x log x, with its limit 0 at 0."""
    return np.asarray(x * np.log(np.where(x > 0, x, 1)))
