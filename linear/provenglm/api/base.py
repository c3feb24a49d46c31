"""LinearEstimator: the base class of all estimators."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.random import RandomState
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, InconsistentVersionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from provenglm.api.progress import Progress, distance
from provenglm.api.validation import check_features, check_offset
from provenglm.arguments import check_finite, check_integer, check_number, check_verbose
from provenglm.model.solution import Settings, Solution, StopReason
from provenglm.rows.dask_rows import is_dask, mapped
from provenglm.rows.disk_checks import joined
from provenglm.rows.far_parts import Data
from provenglm.rows.kinds import rows_of
from provenglm.rows.products import row_products
from provenglm.types import NumPyArray, Verbose
from provenglm.workers import Workers

Start = tuple[NumPyArray, NumPyArray]

_Fit = TypeVar("_Fit", bound=Callable[..., Any])

_Predict = TypeVar("_Predict", bound=Callable[..., Any])

_PACKAGE = __name__.split(".")[0]


_OFFSET_HINT = "give the offset of these rows, or offset=0 to silence this warning"


def warn(message: str | Warning, category: type[Warning] = ConvergenceWarning) -> None:
    """Warn at the line of the user's code that called this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _version() -> str:
    return str(sys.modules[_PACKAGE].__version__)


def all_or_nothing(fit: _Fit) -> _Fit:
    """Decorate `fit` so that the estimator stays unchanged if an exception is raised."""

    @wraps(fit)
    def fitted(self: Any, *args: object, **kwargs: object) -> Any:
        before = dict(self.__dict__)
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    return cast("_Fit", fitted)


def lazy_for_dask(predict: _Predict) -> _Predict:
    """Decorate a method of X and offset so that it returns a lazy array for a Dask collection."""

    @wraps(predict)
    def predicted(self: Any, X: Any, offset: Any = None) -> Any:
        if not is_dask(X):
            return predict(self, X, offset)
        # One row tells the type of the result, and whether the columns are those of the fit.
        row = X._meta_nonempty.iloc[:1] if hasattr(X, "columns") else np.zeros((1, X.shape[1]))
        one = predict(self, row, None if offset is None else 0)
        return mapped(getattr(copy(self), predict.__name__), X, offset, one[:0])

    return cast("_Predict", predicted)


class LinearEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of :class:`GLMClassifier` and :class:`GLMRegressor`.

    Subclasses define the parameters. As in scikit-learn, they are validated in `fit`.
    """

    l1_ratio: float
    fit_intercept: bool
    tol: float
    max_iter: int
    max_time: float | None
    metric: str
    warm_start: bool
    random_state: int | RandomState | None
    verbose: Verbose

    coef_: NumPyArray
    intercept_: NumPyArray | float
    n_iter_: int | NumPyArray

    _total: float
    """The sum of the weights of the last fit, or the number of rows if there were no weights."""
    _without_offset: set[str] | None = None
    """Names of the methods that have warned about a missing offset; None if `fit` had none."""
    _known: tuple[object, NumPyArray] | None = None
    """An X that a scorer gets, and its scores with the offset, (n, K)."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def penalty(self) -> str:
        """The kind of penalty: 'l1', 'l2' or 'elasticnet'.

        scikit-learn's SelectFromModel reads it: with 'l1' it keeps the features with coefficients
        other than 0, else those with coefficients above the mean.
        """
        l1_ratio = getattr(self, "l1_ratio_", self.l1_ratio)
        return {0.0: "l2", 1.0: "l1"}.get(l1_ratio, "elasticnet")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_provenglm_version": _version()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        version = state.pop("_provenglm_version", "0.8.0 or earlier")
        if version != _version():
            name = f"{_PACKAGE}.{type(self).__name__}"
            warn(
                InconsistentVersionWarning(
                    estimator_name=name,
                    current_sklearn_version=_version(),
                    original_sklearn_version=version,
                )
            )
        super().__setstate__(state)

    def _settings(self, progress: Progress, began: float | None = None) -> Settings:
        """Return the checked settings of the solver; `began` is the start time, by default now."""
        if self.metric != "auto":
            warn(
                f"metric={self.metric!r} has no effect, and the parameter metric will be removed "
                "in version 0.10: leave it out; the solver is chosen from the data, and why_ "
                "explains the choice",
                FutureWarning,
            )
        for name in ("fit_intercept", "warm_start"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        max_time = self.max_time
        if max_time is not None:
            max_time = check_number(
                "max_time", max_time, "maximum time of the fit in seconds", 0, above=True
            )
        return Settings(
            tol=self._checked_tol(),
            max_iter=check_integer("max_iter", self.max_iter, 1, "maximum number of snapshots"),
            max_time=max_time,
            began=time.perf_counter() if began is None else began,
            seed=self._seed(),
            watch=progress,
            notice=progress.notice,
        )

    def _seed(self) -> int:
        """Return the seed for sampling rows; it is fixed if `random_state` is None."""
        if self.random_state is None:
            return 0
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _checked_tol(self) -> float:
        return check_number(
            "tol", self.tol, "relative distance to the optimum at which the fit ends", 0
        )

    def _checked_l1_ratio(self) -> float:
        meaning = "share of the L1 penalty"
        ratio = check_finite("l1_ratio", self.l1_ratio, meaning, 0)
        if ratio > 1:
            raise ValueError(f"l1_ratio must be a number from 0 to 1, got {ratio!r}: {meaning}")
        return ratio

    def to_sklearn(self) -> Any:
        """Return the fitted model as scikit-learn's own class, for use without this package.

        Predictions are the same, up to the rounding of a sum, and without an offset. It is a
        LogisticRegression, Ridge, ElasticNet, HuberRegressor, PoissonRegressor, GammaRegressor or
        TweedieRegressor with the same penalty; for a search the one of the final fit.

        Returns
        -------
        object
            A fitted estimator of ``sklearn.linear_model``.
        """
        check_is_fitted(self)
        self._warn_without_offset(
            "to_sklearn", "scikit-learn's models take none: add it to the scores, before the link"
        )
        from provenglm.api.to_sklearn import with_fit_of  # sklearn.linear_model takes 60 ms

        return with_fit_of(self, self._equivalent())

    def _equivalent(self) -> Any:
        """Return the unfitted estimator of scikit-learn with the same objective."""
        raise NotImplementedError

    def _keep(self, coef: NumPyArray, intercept: NumPyArray) -> None:
        """Set ``coef_`` and ``intercept_`` from coefficients (p, K) and intercepts (K,)."""
        raise NotImplementedError

    def _run(self, solve: Callable[[Settings], Solution], began: float | None = None) -> Solution:
        """Solve, show progress, set the common attributes, and warn if the fit did not converge.

        `max_time` counts from `began`, a value of `time.perf_counter`; by default from now.
        """
        name = type(self).__name__
        with Progress(name, check_verbose(self.verbose), self._checked_tol()) as progress:
            solution = solve(self._settings(progress, began))
            progress.end(solution)
        self.objective_ = float(solution.objective)
        self.gap_ = float(solution.gap)
        self.decrement_ = float(solution.decrement)
        self.history_ = [dict(vars(record)) for record in solution.history]
        self.n_iter_ = max(1, solution.history[-1].iteration if solution.history else 1)
        self.solver_ = solution.method
        self.why_ = solution.why
        self.stop_reason_ = solution.reason.value
        if not solution.reason.is_success:
            warn(self._warning(solution))
        return solution

    def _forget(self, *names: str) -> None:
        """Delete attributes that an earlier fit has set."""
        for name in names:
            self.__dict__.pop(name, None)

    def _warning(self, solution: Solution) -> str:
        """Return the text of the warning: where the fit ended, why, and what to do."""
        if solution.reason.is_unbounded:
            return (
                f"{type(self).__name__} found no finite optimum: {solution.reason.why_unbounded}; "
                "the loss falls for ever as the coefficients grow, and the fit stopped at "
                f"||coef_|| = {float(np.linalg.norm(solution.coef)):.3g}: give a penalty, such as "
                "alpha=1e-6; more snapshots do not help"
            )
        far = distance("an estimated", solution.decrement, solution.gap)
        name = type(self).__name__
        where = f"{name} stopped with an objective of {solution.objective:.6g}, {far}"
        seconds = solution.history[-1].seconds if solution.history else 0.0
        reason = solution.reason
        if reason is StopReason.MAX_ITER:
            why, what = f"max_iter={self.max_iter} snapshots were over", "raise max_iter or tol"
        elif reason is StopReason.MAX_TIME:
            why, what = f"max_time={self.max_time:g} seconds were over", "raise max_time or tol"
        elif reason is StopReason.INTERRUPTED:
            why = f"it was interrupted after {seconds:.1f} s"
            what = "coef_ is the best point so far; warm_start=True continues from it"
        elif reason is StopReason.UNPROVEN:
            why = reason.value
            what = "give a penalty or a stronger one, standardise X, or raise tol"
            what = f"{what}, which is {self.tol:g}; or compare with another seed (random_state)"
        elif solution.culprit is not None:
            column, ratio = solution.culprit
            name = self._name_of(column)
            if reason is StopReason.LEFT_OUT:
                why, what = f"{name} varies too little for float64 and was left out", "multiply it"
            else:
                why = f"the mean of {name} is {ratio:.0e} times its standard deviation, and "
                why += reason.value
                what = "subtract its mean from it, or a number near that"
        else:
            why, what = reason.value, f"raise tol, which is {self.tol:g}"
        return f"{where}, because {why}: {what}"

    def _with_offset(
        self, X: object, offset: object, method: str, features: Data | None = None
    ) -> NumPyArray:
        """Return the scores with the offset, (n, K); `method` is named in warnings.

        `features` are the checked features of X, if the caller has them already.
        """
        if self._known is not None and X is self._known[0]:
            return self._known[1]
        scores = self._scores(X) if features is None else self._scores_of(features)
        given = check_offset(joined("offset", offset, X), *scores.shape)
        if given is None:
            self._warn_without_offset(method)
            return scores
        scores += given
        return scores

    def _keep_offset(self, offset: NumPyArray | None) -> None:
        """Note whether the fit had an offset, so that a method that gets none can warn."""
        has_offset = offset is not None and bool(offset.any())
        self._without_offset = set() if has_offset else None

    def _warn_without_offset(self, method: str, way: str = _OFFSET_HINT) -> None:
        """Warn, once per method, if the fit had an offset but the prediction has none."""
        if self._without_offset is None or method in self._without_offset:
            return
        warn(
            f"fit had an offset, but {method} has none, which is the same as 0: {way}", UserWarning
        )
        self._without_offset.add(method)

    def _name_of(self, column: int) -> str:
        """Return the index of a column, with its name if there is one."""
        names = getattr(self, "feature_names_in_", None)
        return f"column {column}" + ("" if names is None else f" ({names[column]!r})")

    def _start(self, shape: tuple[int, ...]) -> Start | None:
        """Return the point at which a warm start begins: coefficients (p, K) and intercepts (K,).

        Parameters
        ----------
        shape : tuple of int
            The shape that ``coef_`` will have.
        """
        if not self.warm_start or not hasattr(self, "coef_"):
            return None
        if self.coef_.shape != shape:
            raise ValueError(
                f"warm_start=True, and coef_ of the previous fit has the shape {self.coef_.shape}, "
                f"but this fit needs {shape}: set warm_start=False if features or classes changed"
            )
        coef = self._dense_coef().T.astype(np.float64)
        intercept = np.atleast_1d(np.asarray(self.intercept_, dtype=np.float64))
        return coef, intercept if self.fit_intercept else np.zeros_like(intercept)

    def _dense_coef(self) -> NumPyArray:
        """Return the coefficients as an array, (K, p)."""
        coef: Any = self.coef_
        return np.asarray(np.atleast_2d(coef.toarray() if issparse(coef) else coef))

    def _rows_to_score(self, X: object) -> Data:
        """Return `X` as checked features; raise if there is no fit, or if columns differ."""
        check_is_fitted(self)
        return check_features(self, X, reset=False)

    def _scores(self, X: object) -> NumPyArray:
        """Return ``X @ coef_.T + intercept_``, (n, K) and float64."""
        return self._scores_of(self._rows_to_score(X))

    def _scores_of(self, features: Data) -> NumPyArray:
        """Return the scores of checked features, computed block by block."""
        rows = rows_of(features, np.dtype(np.float64))
        scores = row_products(rows, self._dense_coef().T, Workers(0))
        scores += self.intercept_
        return scores
