"""GLMRegressor: linear, Huber, Poisson, gamma and Tweedie regression."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.base import RegressorMixin

from provenglm.api.base import LinearEstimator, all_or_nothing, not_told_yet
from provenglm.api.validation import (
    check_features,
    check_numbers,
    check_offset,
    check_target,
    check_weight,
)
from provenglm.arguments import check_finite
from provenglm.huber_scale import solve_with_scale
from provenglm.model.losses import Huber, Loss, Poisson, Squared, explained_deviance
from provenglm.model.offset import Start, WithoutOffset
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, Solution
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.rows.kinds import Data
from provenglm.rows.large import joined
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose

__all__ = ["GLMRegressor"]


class GLMRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]
    """Linear regression; the default ``alpha=1`` is beside the *mean* loss: ``Ridge(alpha=n)``.

    With L2 and L1 penalty, and a squared, Huber, Poisson, gamma or Tweedie loss. It minimises, over
    coefficients w and intercept b, and for Huber the scale sigma, the weighted mean of the losses
    plus ``alpha (1 - l1_ratio) / 2 ||w||^2 + alpha l1_ratio ||w||_1``:

    ============ ============================== ================================================
    loss         of a sample, r = y - (xw + b)  scikit-learn's estimator, S the sum of weights
    ============ ============================== ================================================
    'squared'    r^2 / 2                        ``Ridge(alpha=alpha * S)``,
                                                ``ElasticNet(alpha, l1_ratio=l1_ratio)``
    'huber'      sigma/2 + sigma h(r / sigma)   ``HuberRegressor(epsilon, alpha=alpha * S)``
    'poisson'    exp(xw + b) - y (xw + b)       ``PoissonRegressor(alpha=alpha)``
    'gamma'      half the deviance              ``GammaRegressor(alpha=alpha)``
    'tweedie'    half the deviance              ``TweedieRegressor(power=power, alpha=alpha)``
    ============ ============================== ================================================

    h(z) is z^2/2 up to abs(z) = epsilon, and linear beyond. The last three predict
    exp(xw + b). The features need no scaling, and the intercept is not penalised.

    Parameters
    ----------
    loss : {'squared', 'huber', 'poisson', 'gamma', 'tweedie'}
        Huber's for targets with outliers, Poisson's for counts, gamma for amounts above 0, and
        Tweedie's for amounts of which many are 0. For an exposure see `offset` of `fit`.
    alpha : float, default 1.0
        The strength of the penalty beside the *mean* loss, at least 0. As in PoissonRegressor and
        ElasticNet it means the same for any number of rows. ``Ridge(alpha)`` and
        ``HuberRegressor(alpha=alpha)`` count the sum: this is their alpha divided by S. For
        ``Ridge()`` give ``alpha=1 / n``.
    l1_ratio : float, default 0.0
        As in :class:`GLMClassifier`; for Huber's loss 0.
    epsilon : float, default 1.35
        For Huber's loss: residuals beyond epsilon sigma count as outliers. Above 1.
    power : float, default 1.5
        For Tweedie's loss: the variance is proportional to mean^power. From 1, which is
        loss='poisson', to 2, which is loss='gamma'. For 0 take loss='squared'.
    fit_intercept, tol, max_iter, max_time, warm_start, random_state, verbose, metric
        As in :class:`GLMClassifier`.

    Attributes
    ----------
    coef_ : numpy.ndarray of shape (p,), float64
        The coefficients.
    intercept_ : float
        0.0 without an intercept.
    scale_ : float
        For Huber's loss, sigma; 0 for a perfect fit. Outliers are the samples with
        ``abs(y - model.predict(X)) > epsilon * scale_``.
    objective_, gap_, decrement_, history_, n_iter_, solver_, why_, stop_reason_
        As in :class:`GLMClassifier`.
    n_features_in_, feature_names_in_
        As in :class:`GLMClassifier`.

    See Also
    --------
    GLMClassifier
    """

    def __init__(
        self,
        loss: str = "squared",
        *,
        alpha: float = 1.0,
        l1_ratio: float = 0.0,
        epsilon: float = 1.35,
        power: float = 1.5,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_time: float | None = None,
        warm_start: bool = False,
        random_state: int | RandomState | None = None,
        verbose: Verbose = 0,
        metric: str = "auto",
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.epsilon = epsilon
        self.power = power
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.metric = metric

    @all_or_nothing
    def fit(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> GLMRegressor:
        """Find the optimum.

        Parameters
        ----------
        X : array-like, sparse matrix or Chunks of shape (n, p)
            As in :meth:`GLMClassifier.fit`.
        y : array-like of shape (n,)
            Finite numbers; for Poisson's and Tweedie's loss not negative, and not 0 everywhere;
            for the gamma loss above 0.
        sample_weight : array-like of shape (n,), optional
            Not negative. 2 is as good as a row that stands there twice, 0 leaves the row out.
        offset : array-like of shape (n,), optional
            Numbers that are added to xw + b: where the prediction is the exponential of that,
            ``numpy.log(exposure)``. Of Chunks it may be a list of arrays, as `y`.

        Returns
        -------
        GLMRegressor
            Itself.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be; if X or y has NaN or infinity; if y is none of the loss; if a
            weight is negative or all are 0.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            As :meth:`GLMClassifier.fit`.
        """
        began, loss = time.perf_counter(), self._loss()
        alpha = check_finite("alpha", self.alpha, "the strength of the penalty; 0 for none", 0)
        l1_ratio = self._checked_l1_ratio()
        check_smooth(loss, l1_ratio)
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        problem = Problem(
            features=features,
            target=check_target(type(self).__name__, y, features, weight, loss),
            loss=loss,
            l2=alpha * (1 - l1_ratio),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            l1=alpha * l1_ratio,
        )
        given = check_offset(joined("offset", offset, X), features)
        without = WithoutOffset.of(problem, given)
        start = self._start((features.shape[1],))
        self._forget("scale_")
        solver = self._solve_with_scale if loss.has_scale else solve
        solution = self._run(lambda settings: without.solved(solver, settings, start), began)
        self._keep(solution.coef, solution.intercept)
        self._total = float(len(problem.target)) if weight is None else float(weight.sum())
        self._without_offset = not_told_yet(given)
        return self

    def predict(self, X: object, offset: object = None) -> NumPyArray:
        """Return the prediction for each sample, (n,) and float64: the mean, as the loss has it.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,), optional
            As in `fit`; none is 0, an exposure of 1.
        """
        return self._loss().prediction(self._with_offset(X, offset, "predict"))

    def score(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return R^2; where a logarithm is predicted D^2, the share of the deviance explained.

        As Ridge, HuberRegressor, PoissonRegressor, GammaRegressor and TweedieRegressor do: beside
        the mean of y, which has no offset.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        y : array-like of shape (n,)
            The true values.
        sample_weight : array-like of shape (n,), optional
            Their weights.
        offset : array-like of shape (n,), optional
            As in `predict`.
        """
        from sklearn.metrics import r2_score  # as for classes

        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        loss, name = self._loss(), type(self).__name__
        scores = self._with_offset(X, offset, "score")
        weight = check_weight(sample_weight, scores)
        if not loss.has_logarithm:
            target = check_numbers(name, y, len(scores))
            return float(r2_score(target, loss.prediction(scores), sample_weight=weight))
        return explained_deviance(loss, check_target(name, y, scores, weight, loss), scores, weight)

    def covariance(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> NumPyArray:
        """Return the covariance of the coefficients, from the data of the fit.

        The inverse of the Fisher information H; with a penalty M^-1 H M^-1, with M the Hessian of
        the penalised objective: the variance of the penalised estimate, which does not know its
        bias. For the squared, gamma and Tweedie loss times the dispersion: Pearson's statistic
        divided by the sum of the weights less the degrees of freedom, as in statsmodels' GLM.

        Parameters
        ----------
        X, y, sample_weight, offset
            As they were given to `fit`. A weight is how often a row was seen.

        Returns
        -------
        numpy.ndarray of shape (p + 1, p + 1), or (p, p) without an intercept
            That of the intercept is last.

        Raises
        ------
        ValueError
            For Huber's loss, for a penalty with an ``l1_ratio`` above 0, and for columns that
            depend on each other where there is no penalty.
        """
        if self.loss == "huber":
            raise ValueError(
                "loss is 'huber', which is no likelihood with a Fisher information: resample the "
                "rows (sklearn.utils.resample) and take the deviation of the coefficients"
            )
        self._check_offset_given(offset)
        loss = self._loss()
        features = self._rows_to_score(X)
        scores = self._with_offset(X, offset, "covariance", features)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        target = check_target(type(self).__name__, y, features, weight, loss)
        total = len(target) if weight is None else float(weight.sum())
        alpha, l1_ratio = self._penalty()
        return self._covariance(features, loss, scores, target, weight, alpha * total, l1_ratio)

    def standard_errors(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> NumPyArray:
        """Return the square roots of the diagonal of `covariance`: the intercept's is last."""
        return np.asarray(np.sqrt(self.covariance(X, y, sample_weight, offset).diagonal()))

    def _with_offset(
        self, X: object, offset: object, method: str, features: Data | None = None
    ) -> NumPyArray:
        """Return the scores, (n,), with the offset, as a method of this name needs them.

        `features` are those of X, if they are checked.
        """
        scores = (self._scores(X) if features is None else self._scores_of(features))[:, 0]
        given = check_offset(joined("offset", offset, X), scores)
        if given is None:
            self._warn_without_offset(method)
            return scores
        return scores + given

    def _loss(self) -> Loss:
        """Return the loss that the arguments name."""
        if self.loss not in _LOSSES:
            way = "for classes, take GLMClassifier"
            if not isinstance(self.loss, str):
                way = f"the penalty is a keyword, alpha={self.loss!r}"
            raise ValueError(
                f"loss must be one of {', '.join(map(repr, _LOSSES))}, got {self.loss!r}: {way}"
            )
        return _LOSSES[self.loss].of(self)

    def _solve_with_scale(
        self, problem: Problem, settings: Settings, start: Start | None
    ) -> Solution:
        solution, self.scale_ = solve_with_scale(problem, settings, start)
        return solution

    def _keep(self, coef: NumPyArray, intercept: NumPyArray) -> None:
        self.coef_ = np.array(coef[:, 0], dtype=np.float64)
        self.intercept_ = float(intercept[0])

    def _penalty(self) -> tuple[float, float]:
        """Return alpha and the share of the L1 penalty."""
        return float(self.alpha), self.l1_ratio

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._has_logarithm()
        return tags

    def _more_tags(self) -> dict[str, bool]:
        """Return the same for scikit-learn 1.5."""
        return {"requires_positive_y": self._has_logarithm()}

    def _has_logarithm(self) -> bool:
        return self.loss in _LOSSES and _LOSSES[self.loss].has_logarithm


def check_smooth(loss: Loss, l1_ratio: float) -> None:
    """Raise a ValueError for an L1 penalty beside a loss whose scale is found as well."""
    if loss.has_scale and l1_ratio > 0:
        raise ValueError(
            f"l1_ratio is {l1_ratio:g}, and loss={loss.name!r} has the penalty on squares only, "
            "since its scale is found in an outer iteration that needs smooth optima: set "
            "l1_ratio=0, or take loss='squared'"
        )


_LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (Squared, Huber, Poisson, Gamma, Tweedie)
}
