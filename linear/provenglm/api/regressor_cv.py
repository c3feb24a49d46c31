"""GLMRegressorCV: generalized linear regression with alpha chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.metrics import get_scorer, make_scorer, r2_score

from provenglm.api.keywords import FOR_REGRESSOR
from provenglm.api.regressor import GLMRegressor, check_smooth
from provenglm.api.scoring import PointOfPath, score_path, scores_of_points
from provenglm.api.search import CheckedData, CrossValidated, Solve
from provenglm.api.validation import (
    check_exposure,
    check_features,
    check_offset,
    check_target,
    check_weight,
)
from provenglm.arguments import explains_unknown
from provenglm.model.losses import Loss, ScalarLoss, explained_deviance
from provenglm.model.null_model import best_intercept
from provenglm.model.problem import Problem
from provenglm.path.folds import PathPoint
from provenglm.rows.disk_checks import joined
from provenglm.rows.products import column_products
from provenglm.rows.table import Block, Linear
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose
from provenglm.workers import Workers

__all__ = ["GLMRegressorCV"]

_GREATEST, _LEAST = 4, -4
"""Exponents of the largest and the smallest alpha of the default grid, for the *sum* of losses."""


class _RegressorAtPoint(PointOfPath, GLMRegressor):
    """A regressor with the coefficients of one point of the path."""


class GLMRegressorCV(CrossValidated, GLMRegressor):
    """Generalized linear regression with alpha chosen by cross-validation.

    It is to :class:`GLMRegressor` what :class:`sklearn.linear_model.ElasticNetCV` is to ElasticNet,
    for every loss. For each fold, all `alphas` are fitted one after the other, each from the
    optimum of the one before, and scored on the held-out rows. The final fit uses all rows and the
    best alpha. Folds are read as described in :class:`GLMClassifierCV`.

    Parameters
    ----------
    loss : {'squared', 'huber', 'poisson', 'gamma', 'tweedie'}
        As in :class:`GLMRegressor`.
    alphas : int or list of float, default 10
        Strengths of the penalty on the *mean* loss, each at least 0. An integer is the number of
        values on a logarithmic grid. With an L1 penalty the grid goes from the smallest alpha with
        all coefficients 0 to a thousandth of it, as in ElasticNetCV. Otherwise it goes from 1e4 / S
        to 1e-4 / S, where S is the sum of the weights; this is 1 / (C S) for the Cs of
        GLMClassifierCV.
    l1_ratios : sequence of float, default (0.0,)
        Shares of the L1 penalty, from 0 to 1. Each is combined with each of the `alphas`. For
        Huber's loss only 0 is possible.
    epsilon, power, fit_intercept
        As in :class:`GLMRegressor`.
    cv : int, splitter or iterable, default None
        An integer is the number of folds of consecutive rows; None means 5. Other possibilities are
        a splitter of scikit-learn, and an iterable of pairs of training and test indices. For
        Chunks the splitter must not read X.
    scoring : str, callable or None
        The score on held-out rows: a name known to scikit-learn, or a callable
        ``scorer(estimator, X, y)``. None means the `score` of :class:`GLMRegressor`: R^2, or the
        explained deviance.
    refit, tol, max_iter, max_time, n_jobs, random_state, verbose
        As in :class:`GLMClassifierCV`.

    Attributes
    ----------
    alpha_ : float
        The best alpha.
    alphas_ : numpy.ndarray of shape (n_alphas,) or (n_l1_ratios, n_alphas)
        All alphas, in the order in which they were given; a grid goes from the largest to the
        smallest. It has two dimensions if each ratio has its own grid, as in ElasticNetCV.
    l1_ratio_ : float
        The best share of the L1 penalty.
    l1_ratios_ : numpy.ndarray of shape (n_l1_ratios,)
        All shares.
    scores_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_alphas)
        Scores on the held-out rows.
    coefs_paths_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_alphas, 1, p + 1)
        Coefficients, with the intercept last (without an intercept, the last dimension is p).
    n_iter_, gaps_, decrements_
        As in :class:`GLMClassifierCV`.
    coef_, intercept_
        As in :class:`GLMRegressor`.
    scale_, objective_, gap_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressor`, for the final fit. They are not set if ``refit=False``.
    n_features_in_, feature_names_in_
        As in :class:`GLMRegressor`.

    See Also
    --------
    GLMRegressor

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from provenglm import GLMRegressorCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GLMRegressorCV(alphas=5, cv=3).fit(X, y)
    >>> model.scores_.shape
    (3, 1, 5)
    """

    strength = "alpha"
    _alpha_ratio = 1e-3
    """Ratio of the smallest to the largest alpha of the grid with an L1 penalty, as in LassoCV."""
    alpha_: float
    alphas_: NumPyArray

    @explains_unknown(FOR_REGRESSOR)
    def __init__(
        self,
        loss: str = "squared",
        *,
        alphas: int | Sequence[float] = 10,
        l1_ratios: Sequence[float] = (0.0,),
        epsilon: float = 1.35,
        power: float = 1.5,
        fit_intercept: bool = True,
        cv: object = None,
        scoring: str | Callable[..., float] | None = None,
        refit: bool | str = True,
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_time: float | None = None,
        n_jobs: int | None = None,
        random_state: int | RandomState | None = None,
        verbose: Verbose = 0,
    ) -> None:
        self.loss = loss
        self.alphas = alphas
        self.l1_ratios = l1_ratios
        self.epsilon = epsilon
        self.power = power
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @staticmethod
    def _on_mean(strength: float, total: float) -> float:  # noqa: ARG004
        return strength

    def _grid(
        self, strengths: int | NumPyArray, ratios: NumPyArray, problem: Problem
    ) -> NumPyArray:
        check_smooth(problem.loss, float(ratios.max()))
        if isinstance(strengths, int):
            return np.array(
                [_spread(strengths, float(ratio), problem, self._alpha_ratio) for ratio in ratios]
            )
        wrong = ~((strengths >= 0) & np.isfinite(strengths))
        if wrong.any():
            raise ValueError(
                "alphas must have finite numbers of at least 0, got "
                f"{strengths[np.argmax(wrong)]:g}: each is a strength of the penalty; 0 for no "
                "penalty"
            )
        return np.tile(strengths, (len(ratios), 1))

    def _data(self, X: object, y: object, sample_weight: object, offset: object) -> CheckedData:
        loss = self._loss()
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        weight = check_weight(sample_weight, features)
        target = check_target(type(self).__name__, y, features, weight, loss)
        given = check_offset(joined("offset", offset, X), len(target))
        check_exposure(loss, given, weight, bool(self.fit_intercept))
        problem = Problem(
            features=features,
            target=target,
            loss=loss,
            l2=0.0,
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            offset=given,
        )
        model = _RegressorAtPoint(self.loss, epsilon=self.epsilon, power=self.power)
        return CheckedData(problem, problem.target, weight, model)

    def _check_fold(self, data: CheckedData, fold: int, weight: NumPyArray) -> None:
        try:
            data.problem.loss.check_target(data.problem.target, weight)
        except ValueError as error:
            raise ValueError(f"in the training rows of fold {fold}, {error}") from error

    def _own_scores(
        self,
        data: CheckedData,
        path: Sequence[PathPoint],
        test: NumPyArray,
        weight: NumPyArray | None,
    ) -> list[float]:
        problem, target = data.problem, data.target
        if not problem.loss.has_logarithm:
            # On small problems the input checks of scikit-learn's scorer take longer than the path.
            each = scores_of_points(problem, test, path)
            return [_r2(target[test], scores[:, 0], weight) for scores in each]
        params = {} if weight is None else {"sample_weight": weight}
        scorer = self._own_scorer()
        return score_path(scorer, data.model, problem, test, target, path, params)

    def _solver(self) -> Solve:
        if self._loss().has_scale:
            return self._solve_with_scale
        self._forget("scale_")
        return solve

    def _own_scorer(self) -> Any:
        loss = self._loss()
        return make_scorer(_d2, loss=loss) if loss.has_logarithm else get_scorer("r2")

    def _penalty(self) -> tuple[float, float]:
        return self.alpha_, self.l1_ratio_


def _spread(count: int, ratio: float, problem: Problem, alpha_ratio: float) -> NumPyArray:
    """Return a grid of `count` alphas, from the largest to the smallest."""
    if ratio == 0:
        weight = problem.sample_weight
        total = len(problem.target) if weight is None else float(weight.sum())
        return np.asarray(np.logspace(_GREATEST, _LEAST, count) / total)
    greatest = _greatest_slope(problem) / ratio or 1.0
    return np.asarray(np.geomspace(greatest, alpha_ratio * greatest, count))


def _greatest_slope(problem: Problem) -> float:
    """Return the largest absolute derivative of the mean loss if all coefficients are 0."""
    table = problem.table(Workers(problem.features.size), precise=True)
    best = np.zeros(1)
    if problem.fit_intercept:
        best = best_intercept(problem.loss, table)
    p = problem.features.shape[1]
    slope = table.sum(_slopes, problem.loss, at=Linear(np.zeros((p, 1)), best))
    return float(np.abs(slope).max())


def _slopes(block: Block, loss: Loss) -> NumPyArray:
    residual = loss.residual(block.scores, block.exact_target)
    return column_products(block.features, block.share[:, None] * residual)


def _r2(target: NumPyArray, scores: NumPyArray, weight: NumPyArray | None) -> float:
    """Return R^2."""
    target = np.asarray(target, np.float64)
    rest = np.average(np.square(target - scores), weights=weight)
    mean = np.average(target, weights=weight)
    total = np.average(np.square(target - mean), weights=weight)
    if len(target) < 2 or not total > 0:
        return float(r2_score(target, scores, sample_weight=weight))
    return float(1 - rest / total)


def _d2(
    y_true: NumPyArray,
    y_pred: NumPyArray,
    *,
    loss: ScalarLoss,
    sample_weight: NumPyArray | None = None,
) -> float:
    """Return D^2, the explained deviance."""
    # A prediction that has underflowed to 0 needs a finite logarithm.
    scores = np.log(np.maximum(y_pred, np.finfo(np.float64).tiny))
    return explained_deviance(loss, np.asarray(y_true, np.float64), scores, sample_weight)
