"""GLMClassifierCV: logistic and softmax regression with C chosen by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.metrics import get_scorer

from provenglm.api.classifier import GLMClassifier
from provenglm.api.keywords import FOR_CLASSIFIER
from provenglm.api.routing import with_classes
from provenglm.api.scoring import PointOfPath, scores_of_points
from provenglm.api.search import CheckedData, CrossValidated, Solve
from provenglm.api.validation import (
    check_features,
    check_labels,
    check_offset,
    check_weight,
    classes_with_weight,
    with_class_weight,
)
from provenglm.arguments import explains_unknown
from provenglm.model.losses import Logistic, Loss, Softmax
from provenglm.model.problem import Problem
from provenglm.model.solution import Solution
from provenglm.path.folds import PathPoint
from provenglm.rows.disk_checks import joined
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose

__all__ = ["GLMClassifierCV"]

_LEAST_C, _MOST_C = -4, 4
"""Exponents of the smallest and the largest C of the default grid, as in LogisticRegressionCV."""


class _ClassifierAtPoint(PointOfPath, GLMClassifier):
    """A classifier with the coefficients of one point of the path."""


class GLMClassifierCV(CrossValidated, GLMClassifier):
    """Logistic and softmax regression with C chosen by cross-validation.

    It is to :class:`GLMClassifier` what :class:`sklearn.linear_model.LogisticRegressionCV` is to
    LogisticRegression. For each fold, all `Cs` are fitted one after the other, each from the
    optimum of the one before, and scored on the held-out rows. The final fit uses all rows and the
    best C. Folds are weights of the rows, so data are not copied for them unless they are small,
    and one pass can serve all folds. A fold needs about 5 bytes per row, and memory for its scores
    while folds are fitted together; if this exceeds the `memory_limit` of Chunks, folds are fitted
    one by one.

    Parameters
    ----------
    Cs : int or list of float, default 10
        Inverse strengths of the penalty, each above 0. An integer is the number of values on a
        logarithmic grid from 1e-4 to 1e4.
    l1_ratios : sequence of float, default (0.0,)
        Shares of the L1 penalty, from 0 to 1. Each is combined with each of the `Cs`.
    fit_intercept : bool, default True
        Whether to fit an intercept.
    cv : int, splitter or iterable, default None
        An integer is the number of stratified folds; None means 5. Other possibilities are a
        splitter of scikit-learn, and an iterable of pairs of training and test indices. For Chunks
        the splitter must not read X.
    scoring : str, callable or None
        The score on held-out rows: a name known to scikit-learn, or a callable
        ``scorer(estimator, X, y)``. None means the accuracy.
    refit : bool or 'one-standard-error', default True
        Whether to fit all rows with the best C. If False, C and coefficients are the means over
        folds of the best ones of each fold. 'one-standard-error' fits all rows with the strongest
        penalty whose mean score is at most a standard error below the best, for the best
        `l1_ratio`: a sparser or smaller model that is as good as far as the folds can tell.
    class_weight : dict, 'balanced' or None
        As in :class:`GLMClassifier`. 'balanced' counts all rows, not those of a fold.
    tol : float, default 1e-6
        As in :class:`GLMClassifier`, for every point of the path.
    max_iter : int, default 1000
        Maximum number of snapshots per point.
    max_time : float, optional
        Maximum time in seconds for all folds and the final fit together. Points after it take one
        snapshot each, starting at the optimum of the previous C.
    n_jobs : int, optional
        Number of processes for the folds, as in joblib; None means 1. It is not used if folds are
        fitted together, which is faster.
    random_state : int, RandomState or None
        Seed for the rows that are sampled by the solver. It does not change the folds, which `cv`
        defines. None means a fixed seed: the same call returns identical results.
    verbose : 'auto', 0, 1 or 2
        As in :class:`GLMClassifier`, with one line per part of the path.

    Attributes
    ----------
    C_ : float
        The best C.
    Cs_ : numpy.ndarray of shape (n_cs,)
        All Cs, in the order in which they were given.
    l1_ratio_ : float
        The best share of the L1 penalty.
    l1_ratios_ : numpy.ndarray of shape (n_l1_ratios,)
        All shares.
    scores_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs)
        Scores on the held-out rows. All shapes are those of LogisticRegressionCV with
        ``use_legacy_attributes=False``.
    coefs_paths_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs, K, p + 1)
        Coefficients, with the intercept last (without an intercept, the last dimension is p). K is
        1 for two classes.
    n_iter_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs)
        Number of snapshots per point, including the one at its start.
    gaps_, decrements_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs)
        Proven and estimated distance of each point to its optimum. `gap_` belongs to the final
        fit.
    classes_, coef_, intercept_
        As in :class:`GLMClassifier`.
    objective_, gap_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMClassifier`, for the final fit. They are not set if ``refit=False``.
    n_features_in_, feature_names_in_
        As in :class:`GLMClassifier`.

    See Also
    --------
    GLMClassifier

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from provenglm import GLMClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = GLMClassifierCV(Cs=5, cv=3).fit(X, y)
    >>> model.scores_.shape
    (3, 1, 5)
    """

    strength = "C"
    C_: float
    Cs_: NumPyArray

    @explains_unknown(FOR_CLASSIFIER)
    def __init__(
        self,
        Cs: int | Sequence[float] = 10,
        *,
        l1_ratios: Sequence[float] = (0.0,),
        fit_intercept: bool = True,
        cv: object = None,
        scoring: str | Callable[..., float] | None = None,
        refit: bool | str = True,
        class_weight: Mapping[object, float] | str | None = None,
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_time: float | None = None,
        n_jobs: int | None = None,
        random_state: int | RandomState | None = None,
        verbose: Verbose = 0,
    ) -> None:
        self.Cs = Cs
        self.l1_ratios = l1_ratios
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.class_weight = class_weight
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @staticmethod
    def _on_mean(strength: float, total: float) -> float:
        return 1 / strength / total

    def _grid(
        self, strengths: int | NumPyArray, ratios: NumPyArray, problem: Problem
    ) -> NumPyArray:
        if isinstance(strengths, int):
            strengths = np.logspace(_LEAST_C, _MOST_C, strengths)
        wrong = ~(strengths > 0)
        if wrong.any():
            raise ValueError(
                f"Cs must have numbers above 0, got {strengths[np.argmax(wrong)]:g}: each is the "
                "inverse strength of the penalty; inf for no penalty"
            )
        least, weight = float(strengths.min()), problem.sample_weight
        total = len(problem.target) if weight is None else float(weight.sum())
        if math.isinf(self._on_mean(least, total)):
            raise ValueError(f"Cs has {least:g}, and 1 / C overflows float64: give a larger C")
        return np.tile(strengths, (len(ratios), 1))

    def _data(self, X: object, y: object, sample_weight: object, offset: object) -> CheckedData:
        name = type(self).__name__
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        given = check_labels(name, y, features)
        own_weight = check_weight(sample_weight, features)
        weight = with_class_weight(given, own_weight, self.class_weight)
        labels = classes_with_weight(name, given, weight)
        count = len(labels.classes)
        loss: Loss = Logistic() if count == 2 else Softmax(count)
        problem = Problem(
            features=features,
            target=labels.codes,
            loss=loss,
            l2=0.0,
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            offset=check_offset(joined("offset", offset, X), len(labels.codes), loss.outputs),
        )
        model = _ClassifierAtPoint()
        model.classes_ = labels.classes
        return CheckedData(problem, given.classes[given.codes], own_weight, model, labels.classes)

    def _check_fold(self, data: CheckedData, fold: int, weight: NumPyArray) -> None:
        assert data.classes is not None
        classes, codes = data.classes, data.problem.target
        sums = np.bincount(codes, weights=weight, minlength=len(classes))
        if not sums.all():
            place = int(np.argmin(sums))
            rows = int((codes == place).sum())
            raise ValueError(
                f"the training rows of fold {fold} contain none of the {rows} rows of the "
                f"class {classes[place]!s} with a positive weight, so its score would have no "
                "finite optimum: use sklearn.model_selection.StratifiedKFold with "
                "shuffle=True, and no more folds than the class has rows"
            )

    def _own_scores(
        self,
        data: CheckedData,
        path: Sequence[PathPoint],
        test: NumPyArray,
        weight: NumPyArray | None,
    ) -> list[float]:
        assert data.classes is not None
        # A class whose samples all have weight 0 is never predicted.
        codes = np.searchsorted(data.classes, data.target[test])
        codes[~np.isin(data.target[test], data.classes)] = -1
        each = scores_of_points(data.problem, test, path)
        return [_accuracy(scores, codes, weight) for scores in each]

    def _scored(
        self,
        data: CheckedData,
        scorer: Any,
        path: Sequence[PathPoint],
        test: NumPyArray,
        params: Mapping[str, Any],
    ) -> list[float]:
        classes, own = data.classes, data.target[test]
        assert classes is not None
        try:
            return super()._scored(data, with_classes(scorer, classes), path, test, params)
        except ValueError as error:
            unknown = own[~np.isin(own, classes)]
            if scorer is None or not len(unknown):
                raise
            raise ValueError(
                f"scoring is not defined for rows of the class {unknown[0]!s}, which has weight 0 "
                f"and is never predicted ({error}): drop its rows, or use another scoring"
            ) from error

    def _solver(self) -> Solve:
        return solve

    def _own_scorer(self) -> Any:
        return get_scorer("accuracy")

    def _penalty(self) -> tuple[float, float]:
        return self.C_, self.l1_ratio_

    def _warning(self, solution: Solution) -> str:
        if not solution.reason.is_unbounded:
            return super()._warning(solution)
        return (
            f"{type(self).__name__} chose C=inf, which has no finite optimum: "
            f"{solution.reason.why_unbounded}; the fit stopped at ||coef_|| = "
            f"{float(np.linalg.norm(solution.coef)):.3g}: leave math.inf out of Cs"
        )


def _accuracy(scores: NumPyArray, codes: NumPyArray, weight: NumPyArray | None) -> float:
    """Return the accuracy; `codes` are the indices of the true classes."""
    best = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)
    return float(np.average(best == codes, weights=weight))
