"""GLMRegressor: linear, Huber, Poisson, gamma and Tweedie regression."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.base import RegressorMixin

from provenglm.api.base import Start, all_or_nothing, lazy_for_dask
from provenglm.api.far_data import Checked, far_data
from provenglm.api.far_score import far_deviance
from provenglm.api.inference import DataOfFit, InferenceMixin
from provenglm.api.keywords import FOR_REGRESSOR
from provenglm.api.validation import (
    check_exposure,
    check_features,
    check_numbers,
    check_offset,
    check_target,
    check_weight,
)
from provenglm.arguments import check_finite, explains_unknown
from provenglm.huber_scale import solve_with_scale
from provenglm.model.losses import Huber, Loss, Poisson, ScalarLoss, Squared, explained_deviance
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, Solution
from provenglm.model.tweedie import Gamma, Tweedie
from provenglm.rows.dask_rows import DaskRows, is_dask
from provenglm.rows.disk_checks import joined
from provenglm.rows.far_parts import Source
from provenglm.rows.mpi import Distributed
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose

__all__ = ["GLMRegressor"]


class GLMRegressor(RegressorMixin, InferenceMixin):  # type: ignore[misc]
    """Generalized linear regression with a proven distance to the optimum.

    The loss is squared, Huber, Poisson, gamma or Tweedie, with L2 and L1 penalties. The default
    ``alpha=1`` penalises the *mean* loss, which is ``Ridge(alpha=n)``. The objective, in the
    coefficients w and the intercept b (and the scale sigma for Huber), is the weighted mean loss
    plus ``alpha (1 - l1_ratio) / 2 ||w||^2 + alpha l1_ratio ||w||_1``:

    ============ ============================== ================================================
    loss         per sample, r = y - (xw + b)   scikit-learn's estimator, S the sum of weights
    ============ ============================== ================================================
    'squared'    r^2 / 2                        ``Ridge(alpha=alpha * S)``,
                                                ``ElasticNet(alpha, l1_ratio=l1_ratio)``
    'huber'      sigma/2 + sigma h(r / sigma)   ``HuberRegressor(epsilon, alpha=alpha * S)``
    'poisson'    exp(xw + b) - y (xw + b)       ``PoissonRegressor(alpha=alpha)``
    'gamma'      half the deviance              ``GammaRegressor(alpha=alpha)``
    'tweedie'    half the deviance              ``TweedieRegressor(power=power, alpha=alpha)``
    ============ ============================== ================================================

    Here h(z) is z^2/2 up to abs(z) = epsilon, and linear beyond. The last three losses have a
    logarithmic link: they predict exp(xw + b). Features need no scaling, and the intercept is not
    penalised.

    Parameters
    ----------
    loss : {'squared', 'huber', 'poisson', 'gamma', 'tweedie'}
        Huber's loss is for targets with outliers, Poisson's for counts, gamma for positive amounts,
        and Tweedie's for amounts many of which are 0. For an exposure see `offset` of `fit`.
    alpha : float, default 1.0
        Strength of the penalty on the *mean* loss, at least 0. As in PoissonRegressor and
        ElasticNet, its meaning does not depend on the number of rows. ``Ridge(alpha)`` and
        ``HuberRegressor(alpha=alpha)`` use the sum of the losses: divide their alpha by S. For
        ``Ridge()`` give ``alpha=1 / n``. With 0, ``coef_`` is the optimum of least norm, as
        ``LinearRegression`` has it, for up to 2e10 products of numbers of X (n p min(n, p));
        beyond, where columns are sums of others, it is any optimum.
    l1_ratio : float, default 0.0
        As in :class:`GLMClassifier`. It must be 0 for Huber's loss.
    epsilon : float, default 1.35
        For Huber's loss: residuals larger than epsilon sigma count as outliers. It must be above 1.
    power : float, default 1.5
        For Tweedie's loss: the variance is proportional to mean^power. It goes from 1, which is
        loss='poisson', to 2, which is loss='gamma'. For 0 use loss='squared'.
    fit_intercept, tol, max_iter, max_time, warm_start, random_state, verbose, metric
        As in :class:`GLMClassifier`.

    Attributes
    ----------
    coef_ : numpy.ndarray of shape (p,), float64
        The coefficients.
    intercept_ : float
        The intercept; 0.0 if ``fit_intercept=False``.
    scale_ : float
        For Huber's loss: sigma, which is 0 if the fit is perfect. Outliers are the samples with
        ``abs(y - model.predict(X)) > epsilon * scale_``.
    objective_, gap_, decrement_, history_, n_iter_, solver_, why_, stop_reason_
        As in :class:`GLMClassifier`.
    n_features_in_, feature_names_in_
        As in :class:`GLMClassifier`.

    See Also
    --------
    GLMClassifier
    """

    @explains_unknown(FOR_REGRESSOR)
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
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix, Chunks, Distributed or Dask collection of shape (n, p)
            As in :meth:`GLMClassifier.fit`.
        y : array-like of shape (n,)
            Finite numbers. For Poisson's and Tweedie's loss they must not be negative, and not all
            0; for the gamma loss they must be positive.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights. Weight 2 is the same as repeating the row, weight 0 the same as
            leaving it out.
        offset : array-like of shape (n,), optional
            Numbers added to xw + b. For a loss with a logarithmic link this is
            ``numpy.log(exposure)``. For Chunks it may be a list of arrays.

        Returns
        -------
        GLMRegressor
            The fitted estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid, if X or y contains NaN or infinity, if the loss does not
            accept y, or if a weight is negative or all weights are 0.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            As in :meth:`GLMClassifier.fit`.
        """
        if isinstance(X, Distributed):
            fitted: GLMRegressor = X.fit(self, y, sample_weight, offset)
            return fitted
        began, loss = time.perf_counter(), self._loss()
        alpha = check_finite("alpha", self.alpha, "strength of the penalty; 0 for no penalty", 0)
        l1_ratio = self._checked_l1_ratio()
        check_smooth(loss, l1_ratio)
        if is_dask(X) or isinstance(X, Source):
            _check_far(loss)
        if is_dask(X):
            X = DaskRows(X, y, sample_weight, offset)
        if isinstance(X, Source):
            data = far_data(self, X, loss)
        else:
            data = self._checked(X, y, sample_weight, offset, loss)
        penalty = self._on_mean(alpha, data.total)
        problem = Problem(
            features=data.features,
            target=data.target,
            loss=loss,
            l2=penalty * (1 - l1_ratio),
            sample_weight=data.weight,
            fit_intercept=bool(self.fit_intercept),
            l1=penalty * l1_ratio,
            offset=data.offset,
        )
        start = self._start((data.features.shape[1],))
        self._forget("scale_")
        solver = self._solve_with_scale if loss.has_scale else solve
        solution = self._run(lambda settings: solver(problem, settings, start), began)
        self._keep(solution.coef, solution.intercept)
        self._total = data.total
        self._keep_offset(data.offset)
        return self

    def _checked(
        self, X: object, y: object, sample_weight: object, offset: object, loss: Loss
    ) -> Checked:
        """Return the data of a fit in this process."""
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        target = check_target(type(self).__name__, y, features, weight, loss)
        given = check_offset(joined("offset", offset, X), len(target))
        check_exposure(loss, given, weight, bool(self.fit_intercept))
        total = float(len(target)) if weight is None else float(weight.sum())
        return Checked(features, target, weight, given, total)

    @lazy_for_dask
    def predict(self, X: object, offset: object = None) -> NumPyArray:
        """Return the predicted mean of each sample, of shape (n,), in float64.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,), optional
            As in `fit`. If it is left out, it is 0, which is an exposure of 1.
        """
        return self._loss().prediction(self._with_offset(X, offset, "predict")[:, 0])

    def score(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return R^2, or D^2 (the explained deviance) for a loss with a logarithmic link.

        The same as in Ridge, HuberRegressor, PoissonRegressor, GammaRegressor and TweedieRegressor.
        The baseline is the mean of y, without the offset.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        y : array-like of shape (n,)
            True values.
        sample_weight : array-like of shape (n,), optional
            Sample weights.
        offset : array-like of shape (n,), optional
            As in `predict`.
        """
        if is_dask(X):
            return far_deviance(self, DaskRows(X, y, sample_weight, offset))
        from sklearn.metrics import r2_score  # this import takes 60 ms

        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        loss, name = self._loss(), type(self).__name__
        scores = self._with_offset(X, offset, "score")[:, 0]
        weight = check_weight(sample_weight, scores)
        if not loss.has_logarithm:
            target = check_numbers(name, y, len(scores))
            return float(r2_score(target, loss.prediction(scores), sample_weight=weight))
        return explained_deviance(loss, check_target(name, y, scores, weight, loss), scores, weight)

    def _data_of_fit(
        self, X: object, y: object, sample_weight: object, offset: object
    ) -> DataOfFit:
        if self.loss == "huber":
            raise ValueError(
                "loss is 'huber', which has no likelihood and no Fisher information: resample the "
                "rows (sklearn.utils.resample) and use the standard deviation of the coefficients"
            )
        self._check_offset_given(offset)
        loss = self._loss()
        features = self._rows_to_score(X)
        scores = self._with_offset(X, offset, "covariance", features)[:, 0]
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        target = check_target(type(self).__name__, y, features, weight, loss)
        weight = np.ones(len(target)) if weight is None else weight
        alpha, l1_ratio = self._penalty()
        return DataOfFit(
            features,
            loss,
            scores,
            target,
            weight,
            check_offset(joined("offset", offset, X), len(scores)),
            alpha * float(weight.sum()),
            l1_ratio,
        )

    def _loss(self) -> ScalarLoss:
        """Return the loss object for the arguments."""
        if self.loss not in _LOSSES:
            way = "for classes, use GLMClassifier"
            if isinstance(self.loss, str) and self.loss.lower() in _LOSSES:
                way = f"did you mean {self.loss.lower()!r}?"
            elif not isinstance(self.loss, str):
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

    def _equivalent(self) -> Any:
        from provenglm.api.to_sklearn import regressor  # sklearn.linear_model takes 60 ms

        return regressor(self)

    def _penalty(self) -> tuple[float, float]:
        """Return the penalty on the mean loss and l1_ratio."""
        return self._on_mean(float(self.alpha), self._total), self.l1_ratio

    @staticmethod
    def _on_mean(strength: float, total: float) -> float:  # noqa: ARG004
        """Return the penalty on the mean loss, for weights whose sum is `total`."""
        return strength

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._has_logarithm()
        return tags

    def _more_tags(self) -> dict[str, bool]:
        """Return the tags in the format of scikit-learn 1.5."""
        return {"requires_positive_y": self._has_logarithm()}

    def _has_logarithm(self) -> bool:
        return self.loss in _LOSSES and _LOSSES[self.loss].has_logarithm


def check_smooth(loss: Loss, l1_ratio: float) -> None:
    """Raise a ValueError if there is an L1 penalty and the loss estimates a scale."""
    if loss.has_scale and l1_ratio > 0:
        raise ValueError(
            f"l1_ratio is {l1_ratio:g}, and loss={loss.name!r} supports the L2 penalty only, "
            "because its scale is estimated in an outer iteration that needs a smooth objective: "
            "set l1_ratio=0, or use loss='squared'"
        )


def _check_far(loss: Loss) -> None:
    """Raise a ValueError if a loss needs all residuals in this process."""
    if loss.has_scale:
        raise ValueError(
            f"loss={loss.name!r} estimates its scale from all residuals, and X has rows of other "
            "processes: use loss='squared', or give rows of this process, such as Chunks"
        )


_LOSSES: dict[str, type[ScalarLoss]] = {
    loss.name: loss for loss in (Squared, Huber, Poisson, Gamma, Tweedie)
}
