"""CrossValidated: the base class of estimators that choose their penalty by cross-validation."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import get_scorer

from provenglm.api.base import all_or_nothing, warn
from provenglm.api.progress import Progress, show
from provenglm.api.routing import RoutedScoring, check_params, params_of
from provenglm.api.scoring import PointOfPath, score_path
from provenglm.api.splits import (
    best_of,
    checked_ratios,
    checked_strengths,
    splits_of,
    within_one_error,
)
from provenglm.arguments import check_number, check_verbose
from provenglm.model.budget import beside_folds
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings, Solution, StopReason
from provenglm.path.folds import Folds, PathPoint, Start
from provenglm.path.solve_path import solve_path
from provenglm.plan import is_small
from provenglm.types import NumPyArray

if TYPE_CHECKING:
    from typing_extensions import Self

Solve = Callable[[Problem, Settings, "Start | None"], Solution]
"""A function from a problem, its settings and a start to its solution."""

_FINAL_FIT_ATTRIBUTES = (
    *("objective_", "gap_", "decrement_", "history_"),
    *("solver_", "why_", "stop_reason_", "scale_"),
)


_ONE_ERROR = "one-standard-error"


class Path(NamedTuple):
    """The optima on all rows for a grid of penalties.

    Attributes
    ----------
    strengths : numpy.ndarray of shape (n_l1_ratios, n_strengths)
        The Cs or alphas of each ratio.
    coefs : numpy.ndarray of shape (n_l1_ratios, n_strengths, K, p + 1)
        Coefficients, with the intercept last (without an intercept, the last dimension is p). K is
        1 for regression and for two classes.
    gaps : numpy.ndarray of shape (n_l1_ratios, n_strengths)
        The proven distance of each point to its optimum.
    """

    strengths: NumPyArray
    coefs: NumPyArray
    gaps: NumPyArray


@dataclass(frozen=True)
class CheckedData:
    """The checked data of a cross-validation.

    Attributes
    ----------
    problem : Problem
        The problem without a penalty.
    target : numpy.ndarray, (n,)
        The labels or values that the user gave.
    weight : numpy.ndarray, (n,), or None
        The sample weights that the user gave.
    model : PointOfPath
        An estimator that can be set to any point of a path.
    classes : numpy.ndarray, (K,), or None
        For classifiers: the labels, without classes whose samples all have weight 0.
    """

    problem: Problem
    target: NumPyArray
    weight: NumPyArray | None
    model: PointOfPath
    classes: NumPyArray | None = None


class CrossValidated(RoutedScoring):
    """Base class of :class:`GLMClassifierCV` and :class:`GLMRegressorCV`.

    A subclass defines the parameters, the checks of the data, the solver and the default scorer.
    """

    l1_ratios: Sequence[float]
    refit: bool | str
    n_jobs: int | None

    # The base class reads these; here they are not parameters.
    l1_ratio = 0.0
    warm_start = False
    metric = "auto"

    strength: ClassVar[str]
    """Name of the strength of the penalty: ``C`` for the parameter ``Cs``."""

    @staticmethod
    @abstractmethod
    def _on_mean(strength: float, total: float) -> float:
        """Return the penalty on the mean loss, for weights whose sum is `total`."""

    @abstractmethod
    def _data(self, X: object, y: object, sample_weight: object, offset: object) -> CheckedData:
        """Return the checked data."""

    @abstractmethod
    def _grid(
        self, strengths: int | NumPyArray, ratios: NumPyArray, problem: Problem
    ) -> NumPyArray:
        """Return the checked strengths for each ratio, of shape (n_l1_ratios, n_strengths)."""

    @abstractmethod
    def _check_fold(self, data: CheckedData, fold: int, weight: NumPyArray) -> None:
        """Raise a ValueError if the training rows of a fold have no finite optimum."""

    @abstractmethod
    def _own_scores(
        self,
        data: CheckedData,
        path: Sequence[PathPoint],
        test: NumPyArray,
        weight: NumPyArray | None,
    ) -> list[float]:
        """Return the score of each point on the test rows if `scoring` is None."""

    @abstractmethod
    def _solver(self) -> Solve:
        """Return the function that solves the final fit."""

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        **params: object,
    ) -> Self:
        """Fit every fold with every penalty, then all rows with the best penalty.

        Ctrl-C raises KeyboardInterrupt, and the estimator keeps the results of its previous fit.

        Parameters
        ----------
        X : array-like of shape (n, p)
            As in :class:`GLMClassifier`.
        y : array-like of shape (n,)
            Labels for a classifier, numbers for a regressor.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights. They are used in the fits and in the scores.
        offset : array-like of shape (n,), for three or more classes (n, K), optional
            Numbers added to the scores of the training rows and of the held-out rows.
        **params : dict
            Parameters for the splitter and the scorer, such as ``groups``. They need
            ``sklearn.set_config(enable_metadata_routing=True)``.

        Returns
        -------
        GLMClassifierCV or GLMRegressorCV
            The fitted estimator.

        Raises
        ------
        TypeError, ValueError
            As in `fit` without cross-validation. Also if the training rows of a fold have no finite
            optimum, for example because they lack a class, or if all scores are NaN.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If a point of the path or the final fit does not reach `tol`.
        """
        check_params(params, self, "fit")
        if not isinstance(self.refit, (bool, np.bool_)) and self.refit != _ONE_ERROR:
            raise TypeError(f"refit must be True, False or {_ONE_ERROR!r}, got {self.refit!r}")
        deadline = self._deadline()
        data, ratios, grid = self._data_and_grid(X, y, sample_weight, offset)
        problem = data.problem
        split_params, score_params = self._routed(data.weight, params)
        counts, tests = splits_of(
            self.cv, problem.features, data.target, split_params, is_classifier(self)
        )
        held = sum(array.nbytes for array in (*counts, *tests, data.target))
        problem = beside_folds(problem, len(counts), held)
        folds = Folds(problem, counts, self.strength, self._on_mean)
        for fold, total in enumerate(folds.totals):
            if not total > 0:
                raise ValueError(
                    f"the training rows of fold {fold} all have sample_weight 0, so there is "
                    "nothing to fit: drop these rows first, or shuffle the folds"
                )
            self._check_fold(data, fold, folds.weight(fold))
        # A list per ratio, with a list per fold, with the points for all strengths.
        by_ratio = self._paths(folds, ratios, grid, deadline)
        paths = [list(fold_paths) for fold_paths in zip(*by_ratio, strict=True)]
        scorer = None if self.scoring is None else get_scorer(self.scoring)
        scores = np.array(
            [
                [self._scored(data, scorer, path, test, score_params) for path in fold_paths]
                for fold_paths, test in zip(paths, tests, strict=True)
            ]
        )
        self._choose(folds, grid, ratios, paths, scores, deadline)
        if data.classes is not None:
            self.classes_ = data.classes
        weight = data.problem.sample_weight
        self._total = float(len(data.target)) if weight is None else float(weight.sum())
        self._keep_offset(problem.offset)
        return self

    def path(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> Path:
        """Return the optimum on all rows for each penalty. The estimator is not fitted by it.

        It is the path of :func:`sklearn.linear_model.enet_path`, for every loss.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in `fit`.

        Returns
        -------
        Path
            The named tuple ``(strengths, coefs, gaps)``.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If a point does not reach `tol`.
        """
        deadline = self._deadline()
        data, ratios, grid = self._data_and_grid(X, y, sample_weight, offset)
        problem = data.problem
        once = np.ones(len(problem.target), dtype=np.uint8)
        whole = Folds(beside_folds(problem, 1, once.nbytes), [once], self.strength, self._on_mean)
        points = [paths[0] for paths in self._paths(whole, ratios, grid, deadline)]
        return Path(
            grid,
            np.array([[_row(point, problem.fit_intercept) for point in path] for path in points]),
            np.array([[point.gap for point in path] for path in points]),
        )

    def _data_and_grid(
        self, X: object, y: object, sample_weight: object, offset: object
    ) -> tuple[CheckedData, NumPyArray, NumPyArray]:
        """Return the checked data, the ratios, and the strengths for each ratio."""
        strengths = checked_strengths(self.strength, getattr(self, f"{self.strength}s"))
        ratios = checked_ratios(self.l1_ratios)
        data = self._data(X, y, sample_weight, offset)
        return data, ratios, self._grid(strengths, ratios, data.problem)

    def _scored(
        self,
        data: CheckedData,
        scorer: Any,
        path: Sequence[PathPoint],
        test: NumPyArray,
        params: Mapping[str, Any],
    ) -> list[float]:
        """Return the score of each point on the test rows; `params` are for all rows."""
        if scorer is None:
            weight = None if data.weight is None else data.weight[test]
            if weight is not None and not weight.any():
                raise ValueError(
                    "cv gives a fold whose test rows all have sample_weight 0, so their score is "
                    "not defined: drop these rows first, or shuffle the folds"
                )
            return self._own_scores(data, path, test, weight)
        params = params_of(test, params, len(data.target))
        return score_path(scorer, data.model, data.problem, test, data.target, path, params)

    def _deadline(self) -> float:
        """Return the time at which `max_time` is over."""
        if self.max_time is None:
            return math.inf
        meaning = "maximum time of the fit in seconds"
        return time.perf_counter() + check_number("max_time", self.max_time, meaning, 0, above=True)

    def _paths(
        self, folds: Folds, ratios: NumPyArray, grid: NumPyArray, deadline: float
    ) -> list[list[list[PathPoint]]]:
        """Return the points for each ratio and each fold, in the order of the strengths."""
        return [
            self._paths_of_ratio(replace(folds, l1_ratio=ratio), strengths, deadline)
            for ratio, strengths in zip(ratios, grid, strict=True)
        ]

    def _paths_of_ratio(
        self, folds: Folds, strengths: NumPyArray, deadline: float
    ) -> list[list[PathPoint]]:
        name = type(self).__name__
        verbose = check_verbose(self.verbose)
        progress = Progress(name, 0, self._checked_tol())
        settings = replace(self._settings(progress), watch=None, max_time=None, deadline=deadline)
        penalties = [self._on_mean(strength, 1.0) for strength in strengths]
        order = np.argsort(np.negative(penalties), kind="stable")

        def watch(line: str) -> None:
            if verbose != 0:
                show(f"{name}, {line}")

        weaker_and_weaker = [float(strengths[k]) for k in order]
        paths = solve_path(folds, weaker_and_weaker, settings, watch, self.n_jobs)
        places = np.argsort(order)
        paths = [[path[k] for k in places] for path in paths]
        far = _furthest(paths, self.strength, strengths)
        if far:
            warn(f"{name} stopped before tol={self.tol:g} was reached at {far}")
        return paths

    def _choose(
        self,
        folds: Folds,
        grid: NumPyArray,
        ratios: NumPyArray,
        paths: list[list[list[PathPoint]]],
        scores: NumPyArray,
        deadline: float,
    ) -> None:
        """Choose the best strength and ratio, fit all rows with them, and set the attributes."""
        problem = folds.problem
        if self.refit == _ONE_ERROR:
            penalties = np.array([[self._on_mean(s, 1.0) for s in each] for each in grid])
            places = [within_one_error(scores, penalties)] * len(paths)
        elif self.refit:
            places = [best_of(scores.mean(axis=0))] * len(paths)
        else:
            places = [best_of(fold_scores) for fold_scores in scores]
        points = [path[r][k] for path, (k, r) in zip(paths, places, strict=True)]
        strength = float(np.mean([grid[r, k] for k, r in places]))
        ratio = float(np.mean([ratios[r] for _, r in places]))
        coef = np.mean([point.coef for point in points], axis=0)
        intercept = np.mean([point.intercept for point in points], axis=0)
        if self.refit:
            k, r = places[0]
            strength, ratio = float(grid[r, k]), float(ratios[r])
            weight = problem.sample_weight
            total = len(problem.target) if weight is None else float(weight.sum())
            penalty = self._on_mean(strength, total)
            last = replace(problem, l2=penalty * (1 - ratio), l1=penalty * ratio)
            # Newton's method on all rows gains nothing from a start.
            start = None if is_small(problem) else (coef, intercept)
            solution = self._refitted(last, start, deadline)
            coef, intercept = solution.coef, solution.intercept
        else:
            self._forget(*_FINAL_FIT_ATTRIBUTES)
        is_one = (grid == grid[0]).all()
        setattr(self, f"{self.strength}_", strength)
        setattr(self, f"{self.strength}s_", grid[0] if is_one else grid)
        self.l1_ratio_, self.l1_ratios_ = ratio, ratios
        self._keep(coef, intercept)
        self.scores_ = scores

        def table(value: Callable[[PathPoint], object]) -> NumPyArray:
            return np.array([[[value(point) for point in path] for path in of] for of in paths])

        self.coefs_paths_ = table(lambda point: _row(point, problem.fit_intercept))
        self.n_iter_ = table(lambda point: point.iterations)
        self.gaps_ = table(lambda point: point.gap)
        self.decrements_ = table(lambda point: point.decrement)

    def _refitted(self, problem: Problem, start: Start | None, deadline: float) -> Solution:
        def solved(settings: Settings) -> Solution:
            settings = replace(settings, max_time=None, deadline=deadline)
            solution = self._solver()(problem, settings, start)
            if solution.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            return solution

        return self._run(solved)


def _row(point: PathPoint, with_intercept: bool) -> NumPyArray:
    if not with_intercept:
        return point.coef.T
    return np.column_stack([point.coef.T, point.intercept])


def _furthest(paths: list[list[PathPoint]], name: str, strengths: NumPyArray) -> str:
    """Return a text about the points that did not reach `tol`; empty if all did."""
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
    way = (
        f"raise {'max_time' if late else 'max_iter'} or tol, or leave out the {name}s of the "
        "weakest penalties"
    )
    if all(point[3].is_unbounded for point in far):
        way = f"leave {'math.inf' if name == 'C' else 0} out of {name}s"
    return (
        f"{len(far)} of {len(paths) * len(strengths)} points of the path; the furthest is fold "
        f"{fold} with {name}={strength:g}, {distance}, because {reason.value}: {way}"
    )
