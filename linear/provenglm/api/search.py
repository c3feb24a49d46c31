"""Estimators that find the strength of their penalty by cross-validation, along a path."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import get_scorer
from sklearn.utils.metadata_routing import (
    _raise_for_params,
)
from sklearn.utils.validation import _check_method_params

from provenglm.api.base import all_or_nothing, warn
from provenglm.api.progress import Progress, show
from provenglm.api.routing import RoutedScoring
from provenglm.api.scoring import PointOfPath, score_path
from provenglm.api.splits import (
    best_of,
    checked_ratios,
    checked_strengths,
    splits_of,
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
"""From a problem, its settings and a start to its solution."""

_OF_THE_LAST_FIT = (
    *("objective_", "gap_", "decrement_", "history_"),
    *("solver_", "why_", "stop_reason_", "scale_"),
)


@dataclass(frozen=True)
class CheckedData:
    """What is fitted, and how it is scored.

    Attributes
    ----------
    problem : Problem
        Without a penalty.
    target : numpy.ndarray, (n,)
        As it was given.
    weight : numpy.ndarray, (n,), or None
        As it was given.
    classes : numpy.ndarray, (K,), or None
        Of labels, without those whose samples all have the weight 0.
    """

    problem: Problem
    target: NumPyArray
    weight: NumPyArray | None
    classes: NumPyArray | None

    @abstractmethod
    def check_folds(self, folds: Folds) -> None:
        """Raise a ValueError if the training rows of a fold have no finite optimum."""

    @abstractmethod
    def model(self) -> PointOfPath:
        """Return an estimator that can stand for any point of a path."""

    @abstractmethod
    def own_scores(
        self, path: Sequence[PathPoint], test: NumPyArray, weight: NumPyArray | None
    ) -> list[float]:
        """Return the score of each point on the test rows, where there is no `scoring`."""

    def scores(
        self, scorer: Any, path: Sequence[PathPoint], test: NumPyArray, params: Mapping[str, Any]
    ) -> list[float]:
        """Return the score of each point on the test rows; `params` are those of all rows."""
        if scorer is None:
            weight = None if self.weight is None else self.weight[test]
            if weight is not None and not weight.any():
                raise ValueError(
                    "cv gives a fold whose test rows all have the sample_weight 0, and their score "
                    "is not defined: leave such rows out before, or shuffle the folds"
                )
            return self.own_scores(path, test, weight)
        params = _check_method_params(np.empty((len(self.target), 0)), params, indices=test)
        return score_path(scorer, self.model(), self.problem, test, self.target, path, params)


class CrossValidated(RoutedScoring):
    """What the estimators share that choose a penalty by cross-validation.

    A subclass has the arguments, and says what is checked, solved and scored.
    """

    l1_ratios: Sequence[float]
    refit: bool
    n_jobs: int | None

    # What the base class reads, and is no argument here.
    l1_ratio = 0.0
    warm_start = False
    metric = "auto"

    strength: ClassVar[str]
    """What a strength of the penalty is called: ``C`` of the argument ``Cs``."""

    @staticmethod
    @abstractmethod
    def _on_mean(strength: float, total: float) -> float:
        """Return the penalty beside the mean loss, of weights whose sum is `total`."""

    @abstractmethod
    def _data(self, X: object, y: object, sample_weight: object, offset: object) -> CheckedData:
        """Return the checked data."""

    @abstractmethod
    def _grid(
        self, strengths: int | NumPyArray, ratios: NumPyArray, problem: Problem
    ) -> NumPyArray:
        """Return the checked strengths for each ratio, (n_l1_ratios, n_strengths)."""

    @abstractmethod
    def _solver(self) -> Solve:
        """Return what solves the last fit."""

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        **params: object,
    ) -> Self:
        """Find the optima of all folds and penalties, and of all rows with the best penalty.

        Ctrl-C ends it with KeyboardInterrupt; nothing of it is kept, what an earlier fit found is.

        Parameters
        ----------
        X : array-like of shape (n, p)
            As in :class:`SVRGClassifier`.
        y : array-like of shape (n,)
            Labels, of a regressor numbers.
        sample_weight : array-like of shape (n,), optional
            Not negative. It counts in the fits, and in the scores as well.
        offset : array-like of shape (n,), for three or more classes (n, K), optional
            What is added to the scores: of training rows and of held-out rows.
        **params : dict
            For splitter and scorer, such as ``groups``: with
            ``sklearn.set_config(enable_metadata_routing=True)`` alone.

        Returns
        -------
        SVRGClassifierCV or SVRGRegressorCV
            Itself.

        Raises
        ------
        TypeError, ValueError
            As in `fit` without cross-validation; if a fold's training rows have no finite optimum,
            as those that lack a class; if no score is a number.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If a point of the path, or the last fit, is not as near its optimum as `tol` asks.
        """
        _raise_for_params(params, self, "fit")
        strengths = checked_strengths(self.strength, getattr(self, f"{self.strength}s"))
        if not isinstance(self.refit, (bool, np.bool_)):
            raise TypeError(f"refit must be True or False, got {self.refit!r}")
        ratios = checked_ratios(self.l1_ratios)
        deadline = self._deadline()
        data = self._data(X, y, sample_weight, offset)
        problem = data.problem
        grid = self._grid(strengths, ratios, problem)
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
                    f"the training rows of fold {fold} all have the sample_weight 0, and there is "
                    "nothing to fit: leave such rows out before, or shuffle the folds"
                )
        data.check_folds(folds)
        # Of each fold, with each ratio: the points of all strengths.
        by_ratio = [
            self._paths(replace(folds, l1_ratio=ratio), of_ratio, deadline)
            for ratio, of_ratio in zip(ratios, grid, strict=True)
        ]
        paths = [list(of_fold) for of_fold in zip(*by_ratio, strict=True)]
        scorer = None if self.scoring is None else get_scorer(self.scoring)
        each = zip(paths, tests, strict=True)
        scores = np.array(
            [[data.scores(scorer, path, test, score_params) for path in of] for of, test in each]
        )
        self._choose(folds, grid, ratios, paths, scores, deadline)
        if data.classes is not None:
            self.classes_ = data.classes
        weight = data.problem.sample_weight
        self._total = float(len(data.target)) if weight is None else float(weight.sum())
        self._keep_offset(problem.offset)
        return self

    def _deadline(self) -> float:
        """Return when `max_time` is over."""
        if self.max_time is None:
            return math.inf
        meaning = "the seconds after which the fit ends"
        return time.perf_counter() + check_number("max_time", self.max_time, meaning, 0, above=True)

    def _paths(self, folds: Folds, strengths: NumPyArray, deadline: float) -> list[list[PathPoint]]:
        """Return the points of each fold, in the order of the strengths as they were given."""
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
        """Keep the paths, and the best strength and ratio with their coefficients."""
        problem = folds.problem
        if self.refit:
            places = [best_of(scores.mean(axis=0))] * len(paths)
        else:
            places = [best_of(of_fold) for of_fold in scores]
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
            # Where that is exact Newton, it would save nothing.
            start = None if is_small(problem) else (coef, intercept)
            solution = self._refitted(last, start, deadline)
            coef, intercept = solution.coef, solution.intercept
        else:
            self._forget(*_OF_THE_LAST_FIT)
        is_one = (grid == grid[0]).all()
        setattr(self, f"{self.strength}_", strength)
        setattr(self, f"{self.strength}s_", grid[0] if is_one else grid)
        self.l1_ratio_, self.l1_ratios_ = ratio, ratios
        self._keep(coef, intercept)
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
