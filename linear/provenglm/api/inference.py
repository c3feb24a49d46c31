"""InferenceMixin: standard errors and the statistics of a fit."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np

from provenglm import constants
from provenglm.api.base import LinearEstimator
from provenglm.api.covariance import Covariance, covariance
from provenglm.api.summary import Observations, Summary, summarised
from provenglm.model.losses import ScalarLoss
from provenglm.model.solution import StopReason
from provenglm.rows.kinds import LocalData, rows_of, taken
from provenglm.types import NumPyArray

__all__ = ["InferenceMixin"]

Weights = Literal["frequency", "variance"]

_SAME_DATA, _ROUNDING = 1e-6, 1e-14
"""Tolerances for the test that data are those of the fit: the relative difference between their
objective and objective_, and the rounding of products. On 3,600 random problems the largest
difference was 2 % of the tolerance."""


class DataOfFit(NamedTuple):
    """The data of a fit with one score per row.

    Attributes
    ----------
    features : Data
    loss : ScalarLoss
    scores, target, weight : numpy.ndarray, (n,)
    offset : numpy.ndarray, (n, 1), or None
    strength : float
        The penalty on the sum of the losses.
    l1_ratio : float
    """

    features: Any
    loss: ScalarLoss
    scores: NumPyArray
    target: NumPyArray
    weight: NumPyArray
    offset: NumPyArray | None
    strength: float
    l1_ratio: float


class InferenceMixin(LinearEstimator):
    """Standard errors, and a summary as statistical packages print it."""

    @abstractmethod
    def _data_of_fit(
        self, X: object, y: object, sample_weight: object, offset: object
    ) -> DataOfFit:
        """Return the checked data; raise a ValueError if the model has no standard errors."""

    def covariance(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        *,
        weights: Weights = "frequency",
    ) -> NumPyArray:
        """Return the covariance matrix of the coefficients; of a classifier for two classes.

        It is the inverse of the Fisher information H. With a penalty it is M^-1 H M^-1, where M is
        the Hessian of the penalised objective; this is the variance of the penalised estimate and
        does not include its bias. For the squared, gamma and Tweedie losses it is multiplied by the
        dispersion, which is estimated as in statsmodels' GLM: Pearson's statistic divided by the
        residual degrees of freedom.

        Parameters
        ----------
        X, y, sample_weight, offset
            The arguments of `fit`.
        weights : {'frequency', 'variance'}, default 'frequency'
            What `sample_weight` is. A frequency is a number of equal observations, so the number of
            observations is the sum of the weights. With 'variance', a row is one observation whose
            variance is divided by its weight, as in R; for a mean of m observations that is m. This
            is ``freq_weights`` or ``var_weights`` of statsmodels. It makes no difference if the
            loss has no dispersion.

        Returns
        -------
        numpy.ndarray of shape (p + 1, p + 1), or (p, p) without an intercept
            The covariance matrix. The last row and column belong to the intercept.

        Raises
        ------
        ValueError
            If the loss is Huber's, if there are more than two classes, if there is an L1 penalty,
            if the data are not those of the fit, or if there is no penalty and columns are linearly
            dependent or classes can be separated.
        """
        return self._covariance(self._data_of_fit(X, y, sample_weight, offset), weights).matrix

    def standard_errors(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        *,
        weights: Weights = "frequency",
    ) -> NumPyArray:
        """Return the standard errors of the coefficients, with that of the intercept last.

        They are the square roots of the diagonal of `covariance`, with the same parameters.
        """
        found = self.covariance(X, y, sample_weight, offset, weights=weights)
        return np.asarray(np.sqrt(found.diagonal()))

    def summary(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        *,
        weights: Weights = "frequency",
        level: float = 0.95,
    ) -> Summary:
        """Return coefficients with standard errors, tests and intervals, and the fit's statistics.

        The fit must be without a penalty: a penalised estimate is biased, so neither p values nor
        confidence intervals hold for it.

        Parameters
        ----------
        X, y, sample_weight, offset, weights
            As in `covariance`.
        level : float, default 0.95
            The probability that a confidence interval covers its coefficient.

        Returns
        -------
        Summary
            ``print(model.summary(X, y))`` shows all of it. Its ``table`` is a pandas.DataFrame.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            As in `covariance`, and if there is a penalty.
        """
        data = self._data_of_fit(X, y, sample_weight, offset)
        if not 0 < level < 1:
            raise ValueError(
                f"level must be a number between 0 and 1, got {level!r}: the probability that an "
                "interval covers its coefficient"
            )
        if data.strength > 0:
            raise ValueError(
                f"the fit has a penalty of {data.strength:g} on the sum of the losses, and "
                "penalised estimates are biased, so they have no p values and no confidence "
                "intervals: fit with alpha=0 or C=math.inf, or take standard_errors"
            )
        found = self._covariance(data, weights)
        counts = data.weight > 0
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{column}" for column in range(self.n_features_in_)]
        coef = [*self._dense_coef()[0]]
        if self.fit_intercept:
            names, coef = [*names, "(Intercept)"], [*coef, *np.atleast_1d(self.intercept_)]
        return summarised(
            data.loss,
            [str(name) for name in names],
            np.array(coef),
            found,
            Observations(
                data.scores[counts],
                data.target[counts],
                data.weight[counts],
                None if data.offset is None else data.offset[counts],
                weights == "frequency",
            ),
            bool(self.fit_intercept),
            level,
        )

    def _covariance(self, data: DataOfFit, weights: Weights) -> Covariance:
        """Return the covariance matrix with its dispersion.

        Raises
        ------
        ValueError
            If there is no covariance, or if the data are not those of the fit.
        """
        if not isinstance(weights, str) or weights not in ("frequency", "variance"):
            raise ValueError(
                f"weights must be 'frequency' or 'variance', got {weights!r}: it says what "
                "sample_weight is, which is a parameter of its own"
            )
        # With cross-validation and refit=False there is no stop_reason_.
        ended = next(
            (r for r in StopReason if r.value == getattr(self, "stop_reason_", None)), None
        )
        if ended is not None and ended.is_unbounded:
            raise ValueError(
                f"{ended.value}: infinite coefficients have no standard errors; give a penalty, "
                "such as C=1e4 or alpha=1e-6"
            )
        features, loss, scores, target, weight, _, strength, l1_ratio = data
        if l1_ratio > 0 and math.isfinite(strength) and strength > 0:
            raise ValueError(
                f"l1_ratio is {l1_ratio:g}, and coefficients that an L1 penalty sets to 0 have no "
                "standard errors: fit the remaining columns with l1_ratio=0"
            )
        losses, residual = loss.value_and_residual_at(scores, target)
        counts = weight > 0  # the loss of a row with weight 0 may be infinite, and 0 * inf is NaN
        losses, residual = np.where(counts, losses, 0), np.where(counts, residual, 0)
        fisher = np.where(counts, loss.fisher(scores), 1)
        self._check_data(features, losses, residual, weight, strength)
        observations = weight.sum() if weights == "frequency" else np.count_nonzero(weight)
        return covariance(
            rows_of(features, np.dtype(np.float64)),
            loss,
            residual,
            fisher,
            weight,
            float(observations),
            strength,
            bool(self.fit_intercept),
            getattr(self, "feature_names_in_", None),
        )

    def _check_data(
        self,
        features: LocalData,
        losses: NumPyArray,
        residual: NumPyArray,
        weight: NumPyArray,
        strength: float,
    ) -> None:
        """Raise a ValueError if the sum of the weights or the objective differs from the fit's."""
        total = float(weight.sum())
        if not math.isclose(total, getattr(self, "_total", total), rel_tol=_SAME_DATA):
            raise ValueError(
                f"the weights of these rows have the sum {total:g} (the number of rows if there "
                f"are no weights), and those of the fit had {self._total:g}: give the rows and the "
                "weights of the fit"
            )
        if not hasattr(self, "objective_"):  # a search with refit=False
            return
        coef = self._dense_coef()[0]
        penalty = strength / total * float(coef @ coef) / 2
        objective = float(weight @ losses) / total + penalty
        size = float(weight @ np.abs(losses)) / total + penalty
        off = abs(objective - self.objective_)
        if off <= _SAME_DATA * size:
            return
        # The rounding error of a score is relative to its products, not to their sum.
        few = np.arange(min(len(weight), constants.LEAST_ROWS))
        products = abs(taken(features, few, np.dtype(np.float64))) @ np.abs(coef)
        slope = float(weight @ np.abs(residual)) / total
        if not off <= _SAME_DATA * size + _ROUNDING * slope * float(products.max()):
            raise ValueError(
                f"these are not the data of the fit: their objective is {objective:.8g}, and "
                f"objective_ is {self.objective_:.8g}: give X, y, sample_weight and offset of the "
                "fit, and leave coef_ as it is"
            )

    def _check_offset_given(self, offset: object) -> None:
        """Raise a ValueError if the fit had an offset, but `offset` is None."""
        if self._without_offset is not None and offset is None:
            raise ValueError(
                "fit had an offset, and standard errors need all data of the fit: give the offset, "
                "too"
            )
