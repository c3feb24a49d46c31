"""A classifier that finds its C by cross-validation, along a path."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import RandomState
from sklearn.metrics import get_scorer
from sklearn.utils.metadata_routing import (
    _raise_for_params,
)
from sklearn.utils.validation import _check_method_params

from provenglm.arguments import check_number, check_verbose
from provenglm.base import warn
from provenglm.centred import centred
from provenglm.cross_validation.folds import Folds, PathPoint, Start
from provenglm.cross_validation.path import solve_path
from provenglm.cross_validation.routing import RoutedScoring
from provenglm.cross_validation.scoring import accuracy, score_path, scores_of_points
from provenglm.cross_validation.splits import (
    best_of,
    check_folds,
    checked_ratios,
    checked_strengths,
    splits_of,
)
from provenglm.data.budget import beside_folds
from provenglm.data.large import joined
from provenglm.estimators import SVRGClassifier
from provenglm.losses import Logistic, Softmax
from provenglm.plan import is_small
from provenglm.problem import Problem
from provenglm.shown import Progress, show
from provenglm.solution import Settings, Solution, StopReason
from provenglm.solve import solve
from provenglm.types import NumPyArray, Verbose
from provenglm.validation import (
    Labels,
    check_features,
    check_labels,
    check_weight,
    classes_with_weight,
    with_class_weight,
)

__all__ = ["SVRGClassifierCV"]


_OF_THE_LAST_FIT = (
    *("objective_", "gap_", "decrement_", "history_"),
    *("solver_", "why_", "stop_reason_"),
)


class _Data(NamedTuple):
    """What is fitted.

    Attributes
    ----------
    codes : numpy.ndarray, (n,)
        The classes' places; -1 of a class that is left out.
    target : numpy.ndarray, (n,)
        The labels as they were given.
    weight : numpy.ndarray, (n,), or None
        Without that of the classes.
    """

    problem: Problem
    labels: Labels
    codes: NumPyArray
    target: NumPyArray
    weight: NumPyArray | None


class SVRGClassifierCV(RoutedScoring, SVRGClassifier):
    """Logistic regression that finds its C by cross-validation; every point proven or estimated.

    What :class:`sklearn.linear_model.LogisticRegressionCV` is to LogisticRegression: for each fold
    the optima for all `Cs`, each from the one before it, their scores on the held-out rows, and a
    last fit on all rows with the best C. Folds are weights of the rows as they are, and read
    together: nothing is copied for them, unless the data are few. A fold has some 5 bytes for each
    row, and its scores while folds are read together: where they are beyond the `memory_limit` of
    Chunks, folds are fitted one by one.

    Parameters
    ----------
    Cs : int or list of float, default 10
        One over the strengths of the penalty, each above 0. A number of them is spread evenly in
        the logarithm from 1e-4 to 1e4.
    l1_ratios : sequence of float, default (0.0,)
        The shares of the penalty that are on sizes instead of squares, from 0 to 1; all of them are
        tried with all `Cs`.
    fit_intercept : bool, default True
        Whether there is an intercept.
    cv : int, splitter or iterable, default None
        An integer is the number of stratified folds, None is 5; a splitter of scikit-learn, which
        may look at X, unless it is of Chunks; or pairs of training and test indices.
    scoring : str, callable or None
        By which a point is judged on held-out rows: a name of scikit-learn's, a callable
        ``scorer(estimator, X, y)``; None is the accuracy.
    refit : bool, default True
        Whether, with the best C, all rows are fitted. Otherwise C and coefficients are the means of
        what is best in each fold.
    class_weight : dict, 'balanced' or None
        As in :class:`SVRGClassifier`; 'balanced' counts all rows, not those of a fold.
    tol : float, default 1e-6
        As in :class:`SVRGClassifier`, for every point.
    max_iter : int, default 1000
        The most snapshots of a point.
    max_time : float, optional
        The most seconds, of all folds and the last fit together: points that it leaves no time for
        take one snapshot each, from the optimum of the C before.
    n_jobs : int, optional
        Processes that share the folds, as joblib counts them; None is 1. Not used where the folds
        are read together, which takes less time.
    random_state : int, RandomState or None
        Which samples are drawn. It changes the way to the optima, and no fold: those are `cv`'s.
    verbose : 'auto', 0, 1 or 2
        As in :class:`SVRGClassifier`; a line for each part of the path.

    Attributes
    ----------
    C_ : float
        The best C.
    Cs_ : numpy.ndarray of shape (n_cs,)
        All of them, in the order in which they were given.
    l1_ratio_ : float
        The best share, and `l1_ratios_`, of shape (n_l1_ratios,), all of them.
    scores_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs)
        Of the held-out rows. All shapes are those of LogisticRegressionCV with
        ``use_legacy_attributes=False``.
    coefs_paths_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs, K, p + 1)
        Coefficients and, last, intercept (without one, p); K is 1 for two classes.
    n_iter_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs)
        Snapshots of each point; that of its start counts.
    gaps_, decrements_ : numpy.ndarray of shape (n_folds, n_l1_ratios, n_cs)
        How far above its optimum each point is: proven, and estimated.
    classes_, coef_, intercept_
        As in :class:`SVRGClassifier`.
    objective_, gap_, decrement_, history_, solver_, why_, stop_reason_
        Of the last fit; not there with ``refit=False``.
    n_features_in_, feature_names_in_
        As in :class:`SVRGClassifier`.

    See Also
    --------
    SVRGClassifier

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from provenglm import SVRGClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = SVRGClassifierCV(Cs=5, cv=3).fit(X, y)
    >>> model.scores_.shape
    (3, 1, 5)
    """

    # What the base class reads, and is no argument here.
    l1_ratio = 0.0
    warm_start = False
    metric = "auto"

    def __init__(
        self,
        Cs: int | Sequence[float] = 10,
        *,
        l1_ratios: Sequence[float] = (0.0,),
        fit_intercept: bool = True,
        cv: object = None,
        scoring: str | Callable[..., float] | None = None,
        refit: bool = True,
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

    def fit(
        self, X: object, y: object, sample_weight: object = None, **params: object
    ) -> SVRGClassifierCV:
        """Find the optima of all folds and Cs, the best C, and the optimum of all rows with it.

        Ctrl-C ends it with KeyboardInterrupt; nothing of it is kept, what an earlier fit found is.

        Parameters
        ----------
        X : array-like of shape (n, p)
            As in :class:`SVRGClassifier`.
        y : array-like of shape (n,)
            Labels.
        sample_weight : array-like of shape (n,), optional
            Not negative. It counts in the fits, and in the scores as well.
        **params : dict
            For splitter and scorer, such as ``groups``: with
            ``sklearn.set_config(enable_metadata_routing=True)`` alone.

        Returns
        -------
        SVRGClassifierCV
            Itself.

        Raises
        ------
        TypeError, ValueError
            As :meth:`SVRGClassifier.fit`; if a fold's training rows lack a class; if no score is a
            number.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If a point of the path, or the last fit, is not as near its optimum as `tol` asks.
        """
        _raise_for_params(params, self, "fit")
        strengths = checked_strengths(self.Cs)
        if not isinstance(self.refit, (bool, np.bool_)):
            raise TypeError(f"refit must be True or False, got {self.refit!r}")
        ratios = checked_ratios(self.l1_ratios)
        deadline = self._deadline()
        data = self._data(X, y, sample_weight, strengths)
        split_params, score_params = self._routed(data.weight, params)
        counts, tests = splits_of(self.cv, data.problem.features, data.target, split_params)
        held = sum(array.nbytes for array in (*counts, *tests, data.target))
        folds = Folds(beside_folds(data.problem, len(counts), held), counts)
        check_folds(folds, data.labels)
        # Of each fold, with each ratio: the points of all Cs.
        by_ratio = [self._paths(replace(folds, l1_ratio=r), strengths, deadline) for r in ratios]
        paths = [list(of_fold) for of_fold in zip(*by_ratio, strict=True)]
        each = zip(paths, tests, strict=True)
        scores = np.array(
            [[self._scored(path, data, test, score_params) for path in of] for of, test in each]
        )
        self._choose(folds.problem, (strengths, ratios), paths, scores, deadline)
        self.classes_ = data.labels.classes
        return self

    def _data(self, X: object, y: object, sample_weight: object, strengths: NumPyArray) -> _Data:
        """Return the checked data, as a problem with the greatest penalty."""
        name = type(self).__name__
        features = check_features(self, X, reset=True)
        y, sample_weight = joined("y", y, X), joined("sample_weight", sample_weight, X)
        given = check_labels(name, y, features)
        own_weight = check_weight(sample_weight, features)
        weight = with_class_weight(given, own_weight, self.class_weight)
        labels = classes_with_weight(name, given, weight)
        count = len(labels.classes)
        total = len(labels.codes) if weight is None else float(weight.sum())
        least = float(strengths.min())
        if math.isinf(1 / least / total):
            raise ValueError(f"Cs has {least:g}, and 1 / C is beyond float64: give a greater C")
        problem = Problem(
            features=features,
            target=labels.codes,
            loss=Logistic() if count == 2 else Softmax(count),
            l2=1 / least / total,
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
        )
        return _Data(problem, labels, _codes(given, labels), given.classes[given.codes], own_weight)

    def _deadline(self) -> float:
        """Return when `max_time` is over."""
        if self.max_time is None:
            return math.inf
        meaning = "the seconds after which the fit ends"
        return time.perf_counter() + check_number("max_time", self.max_time, meaning, 0, above=True)

    def _paths(self, folds: Folds, strengths: NumPyArray, deadline: float) -> list[list[PathPoint]]:
        """Return the points of each fold, in the order of the Cs as they were given."""
        name = type(self).__name__
        verbose = check_verbose(self.verbose)
        progress = Progress(name, 0, self._checked_tol())
        settings = replace(self._settings(progress), watch=None, max_time=None, deadline=deadline)
        order = np.argsort(strengths, kind="stable")

        def watch(line: str) -> None:
            if verbose != 0:
                show(f"{name}, {line}")

        ascending = [float(strengths[k]) for k in order]
        paths = solve_path(folds, ascending, settings, watch, self.n_jobs)
        places = np.argsort(order)
        paths = [[path[k] for k in places] for path in paths]
        far = _furthest(paths, strengths)
        if far:
            warn(
                f"{name} stopped before tol={self.tol:g} was reached at {far}, or leave out the "
                "greatest Cs"
            )
        return paths

    def _scored(
        self, path: list[PathPoint], data: _Data, test: NumPyArray, params: Mapping[str, Any]
    ) -> list[float]:
        """Return the score of each point on the test rows."""
        features = data.problem.features
        if self.scoring is not None:
            classes, target = data.labels.classes, data.target
            own = _check_method_params(np.empty((len(target), 0)), params, indices=test)
            scorer = get_scorer(self.scoring)
            return score_path(scorer, features, test, target, classes, path, own)
        weight = None if data.weight is None else data.weight[test]
        if weight is not None and not weight.any():
            raise ValueError(
                "cv gives a fold whose test rows all have the sample_weight 0, and their accuracy "
                "is not defined: leave such rows out before, or shuffle the folds"
            )
        return [
            accuracy(scores, data.codes[test], weight)
            for scores in scores_of_points(features, test, path)
        ]

    def _choose(
        self,
        problem: Problem,
        grid: tuple[NumPyArray, NumPyArray],
        paths: list[list[list[PathPoint]]],
        scores: NumPyArray,
        deadline: float,
    ) -> None:
        """Keep the paths, and the best C and ratio with their coefficients."""
        strengths, ratios = grid
        if self.refit:
            c, r = best_of(scores.mean(axis=0))
            places = [(c, r)] * len(paths)
        else:
            places = [best_of(of_fold) for of_fold in scores]
        points = [path[r][c] for path, (c, r) in zip(paths, places, strict=True)]
        C = float(np.mean([strengths[c] for c, _ in places]))
        ratio = float(np.mean([ratios[r] for _, r in places]))
        coef = np.mean([point.coef for point in points], axis=0)
        intercept = np.mean([point.intercept for point in points], axis=0)
        if self.refit:
            C, ratio = float(strengths[c]), float(ratios[r])
            weight = problem.sample_weight
            penalty = 1 / C / (len(problem.target) if weight is None else float(weight.sum()))
            last = replace(problem, l2=penalty * (1 - ratio), l1=penalty * ratio)
            start = coef, intercept
            # Where that is exact Newton, it would save nothing.
            solution = self._refitted(last, None if is_small(problem) else start, deadline)
            coef, intercept = solution.coef, solution.intercept
        else:
            self._forget(*_OF_THE_LAST_FIT)
        self.C_, self.Cs_ = C, strengths
        self.l1_ratio_, self.l1_ratios_ = ratio, ratios
        self.coef_ = np.ascontiguousarray(coef.T)
        self.intercept_ = np.array(intercept, dtype=np.float64)
        self.scores_ = scores

        def of_each(value: Callable[[PathPoint], object]) -> NumPyArray:
            return np.array([[[value(point) for point in path] for path in of] for of in paths])

        self.coefs_paths_ = of_each(lambda point: _row(point, problem.fit_intercept))
        self.n_iter_ = of_each(lambda point: point.iterations)
        self.gaps_ = of_each(lambda point: point.gap)
        self.decrements_ = of_each(lambda point: point.decrement)

    def _refitted(self, problem: Problem, start: Start | None, deadline: float) -> Solution:
        def solved(settings: Settings) -> Solution:
            settings = replace(settings, max_time=None, deadline=deadline)
            solution = solve(problem, settings, start)
            if solution.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            return centred(solution, problem)

        return self._run(solved)

    def _penalty(self) -> tuple[float, float]:
        return self.C_, self.l1_ratio_

    def _warning(self, solution: Solution) -> str:
        if solution.reason is not StopReason.UNBOUNDED:
            return super()._warning(solution)
        return (
            f"{type(self).__name__} chose C=inf, which has no finite optimum: the classes can be "
            "separated, and nothing is penalised; the fit stopped at ||coef_|| = "
            f"{float(np.linalg.norm(solution.coef)):.3g}: leave math.inf out of Cs"
        )


def _codes(given: Labels, labels: Labels) -> NumPyArray:
    """Return the classes' places; -1 of a class whose samples all have the weight 0."""
    if len(labels.classes) == len(given.classes):
        return labels.codes
    known = np.isin(given.classes, labels.classes)
    return np.where(known[given.codes], labels.codes.astype(np.int64), -1)


def _row(point: PathPoint, with_intercept: bool) -> NumPyArray:
    if not with_intercept:
        return point.coef.T
    return np.column_stack([point.coef.T, point.intercept])


def _furthest(paths: list[list[PathPoint]], strengths: NumPyArray) -> str:
    """Return which points are not as near as asked, in words; nothing where all are."""
    far = [
        (point.decrement, fold, strengths[k], point.reason)
        for fold, path in enumerate(paths)
        for k, point in enumerate(path)
        if not point.reason.is_success
    ]
    if not far:
        return ""
    decrement, fold, strength, reason = max(far, key=lambda point: point[:3])
    distance = f"an estimated {decrement:.1e} above the optimum"
    if not math.isfinite(decrement):
        distance = "at a distance from the optimum that is not known yet"
    late = any(point[3] is StopReason.MAX_TIME for point in far)
    return (
        f"{len(far)} of {len(paths) * len(strengths)} points of the path; the furthest is fold "
        f"{fold} with C={strength:g}, {distance}, because {reason.value}: raise "
        f"{'max_time' if late else 'max_iter'} or tol"
    )
