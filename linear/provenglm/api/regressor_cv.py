"""SVRGRegressorCV: a regressor that finds its alpha by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.metrics import get_scorer, make_scorer, r2_score

from provenglm.api.estimators import SVRGRegressor, check_smooth
from provenglm.api.scoring import PointOfPath, score_path, scores_of_points
from provenglm.api.search import CheckedData, CrossValidated, Solve
from provenglm.api.validation import (
    check_exposure,
    check_features,
    check_offset,
    check_target,
    check_weight,
)
from provenglm.model.losses import Loss, explained_deviance
from provenglm.model.null_model import best_intercept
from provenglm.model.objective import products
from provenglm.model.problem import Problem
from provenglm.path.folds import Folds, PathPoint
from provenglm.rows.kinds import rows_of
from provenglm.rows.large import joined
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose

__all__ = ["SVRGRegressorCV"]

_GREATEST, _LEAST = 4, -4
"""Powers of ten between which a number of alphas is spread, beside the *sum* of the losses."""

_OF_THE_GREATEST = 1e-3
"""The least of a number of alphas with an L1 share, as in LassoCV."""


class _RegressorAtPoint(PointOfPath, SVRGRegressor):
    """The regressor at a point of the path."""


@dataclass(frozen=True)
class _Numbers(CheckedData):
    """What is fitted.

    Attributes
    ----------
    at_point : PointOfPath
    scorer : callable
        Where there is no `scoring`.
    """

    at_point: PointOfPath
    scorer: Any

    def check_folds(self, folds: Folds) -> None:
        for fold in range(len(folds)):
            try:
                self.problem.loss.check_target(self.problem.target, folds.weight(fold))
            except ValueError as error:
                raise ValueError(f"in the training rows of fold {fold}, {error}") from error

    def model(self) -> PointOfPath:
        return self.at_point

    def own_scores(
        self, path: Sequence[PathPoint], test: NumPyArray, weight: NumPyArray | None
    ) -> list[float]:
        problem, target = self.problem, self.target
        if not problem.loss.has_logarithm:
            # A scorer's checks of its arguments would take longer than the path of a small problem.
            each = scores_of_points(problem, test, path)
            return [_r2(target[test], scores[:, 0], weight) for scores in each]
        params = {} if weight is None else {"sample_weight": weight}
        return score_path(self.scorer, self.at_point, problem, test, target, path, params)


class SVRGRegressorCV(CrossValidated, SVRGRegressor):
    """Linear regression that finds its alpha by cross-validation; every point proven or estimated.

    What :class:`sklearn.linear_model.ElasticNetCV` is to ElasticNet, for every loss of
    :class:`SVRGRegressor`: for each fold the optima for all `alphas`, each from the one before it,
    their scores on the held-out rows, and a last fit on all rows with the best alpha. Folds are
    read as :class:`SVRGClassifierCV` says.

    Parameters
    ----------
    loss : {'squared', 'huber', 'poisson', 'gamma', 'tweedie'}
        As in :class:`SVRGRegressor`.
    alphas : int or list of float, default 10
        The strengths of the penalty beside the *mean* loss, each at least 0. A number of them is
        spread evenly in the logarithm. With an L1 share they go from the least alpha that leaves
        all coefficients 0 to a thousandth of it, as in ElasticNetCV; else from 1e4 / S to
        1e-4 / S, with S the sum of the weights: 1 / (C S) for SVRGClassifierCV's Cs.
    l1_ratios : sequence of float, default (0.0,)
        The shares of the penalty that are on sizes instead of squares, from 0 to 1; all of them are
        tried with all `alphas`. For Huber's loss 0.
    epsilon, power, fit_intercept
        As in :class:`SVRGRegressor`.
    cv : int, splitter or iterable, default None
        An integer is the number of folds, of consecutive rows; None is 5; a splitter of
        scikit-learn, which may look at X, unless it is of Chunks; or pairs of training and test
        indices.
    scoring : str, callable or None
        By which a point is judged on held-out rows: a name of scikit-learn's, a callable
        ``scorer(estimator, X, y)``; None is what `score` of :class:`SVRGRegressor` returns: R^2, or
        the share of the deviance that is explained.
    refit, tol, max_iter, max_time, n_jobs, random_state, verbose
        As in :class:`SVRGClassifierCV`.

    Attributes
    ----------
    alpha_ : float
        The best alpha.
    alphas_ : numpy.ndarray of shape (n_alphas,) or (n_l1_ratios, n_alphas)
        All of them, in the order in which they were given; a number of them from the greatest to
        the least. Of two dimensions where each ratio has its own, as in ElasticNetCV.
    l1_ratio_ : float
        The best share, and `l1_ratios_`, of shape (n_l1_ratios,), all of them.
    scores_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_alphas)
        Of the held-out rows.
    coefs_paths_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_alphas, 1, p + 1)
        Coefficients and, last, intercept (without one, p).
    n_iter_, gaps_, decrements_
        Of each point, as in :class:`SVRGClassifierCV`.
    coef_, intercept_
        As in :class:`SVRGRegressor`.
    scale_, objective_, gap_, decrement_, history_, solver_, why_, stop_reason_
        Of the last fit; not there with ``refit=False``.
    n_features_in_, feature_names_in_
        As in :class:`SVRGRegressor`.

    See Also
    --------
    SVRGRegressor

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from provenglm import SVRGRegressorCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = SVRGRegressorCV(alphas=5, cv=3).fit(X, y)
    >>> model.scores_.shape
    (3, 1, 5)
    """

    strength = "alpha"
    alpha_: float
    alphas_: NumPyArray

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
        refit: bool = True,
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
            return np.array([_spread(strengths, float(ratio), problem) for ratio in ratios])
        wrong = ~((strengths >= 0) & np.isfinite(strengths))
        if wrong.any():
            raise ValueError(
                "alphas must have finite numbers of at least 0, got "
                f"{strengths[np.argmax(wrong)]:g}: each is a strength of the penalty; 0 is for none"
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
        at_point = _RegressorAtPoint(self.loss, epsilon=self.epsilon, power=self.power)
        return _Numbers(problem, problem.target, weight, None, at_point, self._own_scorer())

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


def _spread(count: int, ratio: float, problem: Problem) -> NumPyArray:
    """Return `count` alphas, from the greatest to the least."""
    if ratio == 0:
        weight = problem.sample_weight
        total = len(problem.target) if weight is None else float(weight.sum())
        return np.asarray(np.logspace(_GREATEST, _LEAST, count) / total)
    greatest = _greatest_slope(problem) / ratio or 1.0
    return np.asarray(np.geomspace(greatest, _OF_THE_GREATEST * greatest, count))


def _greatest_slope(problem: Problem) -> float:
    """Return how fast the mean loss falls with a coefficient, at most, where all of them are 0."""
    loss, target, share = problem.loss, problem.target, problem.shares()
    offset = problem.offset
    best = np.zeros(())
    if problem.fit_intercept:
        best = best_intercept(loss, target, share, offset)
    scores = np.broadcast_to(best, target.shape) if offset is None else best + offset
    residual = share * loss.residual(scores, target)
    rows = rows_of(problem.features, np.dtype(np.float64))
    slope = sum(products(rows.block(part), residual[part]) for part in rows.slices())
    return float(np.abs(slope).max())


def _r2(target: NumPyArray, scores: NumPyArray, weight: NumPyArray | None) -> float:
    """Return the share of the variance that is explained."""
    target = np.asarray(target, np.float64)
    rest = np.average(np.square(target - scores), weights=weight)
    mean = np.average(target, weights=weight)
    total = np.average(np.square(target - mean), weights=weight)
    if len(target) < 2 or not total > 0:
        return float(r2_score(target, scores, sample_weight=weight))
    return float(1 - rest / total)


def _d2(
    y_true: NumPyArray, y_pred: NumPyArray, *, loss: Loss, sample_weight: NumPyArray | None = None
) -> float:
    """Return the share of the deviance that is explained."""
    # What has underflowed has a logarithm, too.
    scores = np.log(np.maximum(y_pred, np.finfo(np.float64).tiny))
    return explained_deviance(loss, np.asarray(y_true, np.float64), scores, sample_weight)
