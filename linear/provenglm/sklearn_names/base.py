"""SklearnNamed: the base class of the estimators with scikit-learn's names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from sklearn.base import MultiOutputMixin
from sklearn.metrics import r2_score
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.validation import _num_samples

from provenglm.api.base import LinearEstimator, all_or_nothing, warn
from provenglm.api.regressor import GLMRegressor
from provenglm.arguments import hint_for
from provenglm.rows.chunks import Chunks
from provenglm.rows.far_parts import Source
from provenglm.sklearn_names.positive import fit_positive
from provenglm.sklearn_names.rounding import round_to_float32
from provenglm.types import NumPyArray

if TYPE_CHECKING:
    from typing_extensions import Self

_Class = TypeVar("_Class", bound="type[SklearnNamed]")

_OWN_TOL, _OWN_MAX_ITER = 1e-6, 1000
"""The defaults of GLMClassifier and GLMRegressor."""

_LEAST_TOL = 1e-15
"""Below it, the rounding of float64 may end a fit with a warning."""

_OTHER_OPTIMUM = {
    ("solver", "liblinear"): "the intercept is not penalised, and several classes are fitted by "
    "softmax",
    ("multi_class", "ovr"): "several classes are fitted by softmax: use "
    "sklearn.multiclass.OneVsRestClassifier",
}
"""Values that may have no effect, but with which scikit-learn has another optimum."""

_NO_LONGER_NONE = ("l1_ratio", "l1_ratios")

_PER_TARGET = ("objective_", "gap_", "decrement_", "history_", "solver_", "why_", "stop_reason_")

_NUMBERS = {"intercept_", "alpha_", "l1_ratio_", "scale_", "dual_gap_"}
"""Numbers that have NumPy's methods in scikit-learn, such as ``alpha_.round(3)``."""

_told: set[tuple[str, str, str]] = set()
"""Class, argument and value of the warnings of this process."""


def named_like(original: type) -> Callable[[_Class], _Class]:
    """Decorate a class so that it has the arguments and defaults of scikit-learn's `original`.

    The installed scikit-learn decides which arguments there are.
    """
    signature = inspect.signature(original.__init__)  # type: ignore[misc]
    known = [name for name in signature.parameters if name != "self"]

    def decorate(cls: _Class) -> _Class:
        def __init__(self: Any, *args: object, **kwargs: object) -> None:  # noqa: N807
            for name in kwargs:
                if name not in known:
                    raise TypeError(
                        f"{type(self).__name__} got an unexpected keyword argument {name!r}: "
                        f"{hint_for(name, known, {})}"
                    )
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            for name in known:
                setattr(self, name, bound.arguments[name])

        vars(__init__)["__signature__"] = signature
        __init__.__qualname__ = f"{cls.__qualname__}.__init__"
        cls.__init__ = __init__  # type: ignore[method-assign]
        cls._original = original
        return cls

    return decorate


class SklearnNamed(LinearEstimator):
    """Base class of the estimators that have scikit-learn's names, arguments and attributes.

    `fit` makes a copy whose arguments have the meaning of this package, fits the copy, and takes
    its attributes.
    """

    _original: ClassVar[type]
    _without_effect: ClassVar[Collection[tuple[str, str]]] = _OTHER_OPTIMUM
    _curvature: float | None = None
    """A bound for the curvature of the loss, where scikit-learn's coefficients have X's dtype."""

    # Arguments that scikit-learn's class may lack.
    l1_ratio: float = 0.0
    tol = _OWN_TOL
    max_iter = _OWN_MAX_ITER
    max_time = None
    metric = "auto"
    warm_start = False
    random_state = None
    verbose = 0

    @all_or_nothing
    def fit(self, X: object, y: object, sample_weight: object = None, offset: object = None) -> Any:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse matrix or Chunks of shape (n, p)
            As in :meth:`GLMClassifier.fit`.
        y : array-like of shape (n,)
            Labels of a classifier, numbers of a regressor. Ridge, RidgeCV, Lasso and ElasticNet
            also take several targets, (n, n_targets).
        sample_weight : float or array-like of shape (n,), optional
            Non-negative weights.
        offset : array-like of shape (n,), for three or more classes (n, K), optional
            Numbers added to the scores.

        Returns
        -------
        object
            The fitted estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid or has no equivalent here, or as in :class:`GLMClassifier` and
            :class:`GLMRegressor`.
        """
        return self._fit_copy(X, y, sample_weight, offset)

    def to_sklearn(self) -> Any:
        """Return the fitted model as scikit-learn's own class, with the same arguments.

        Its predictions are the same, up to the rounding of a sum. It needs no provenglm.
        """
        return super().to_sklearn()

    def _fit_copy(
        self, X: object, y: object, weight: object, offset: object, **params: object
    ) -> Self:
        if isinstance(X, Source):
            # Distributed calls `fit` again, of the copy that this method has given to it.
            self._fit(X, y, weight, offset)
            return self
        self._check_arguments()
        if isinstance(weight, (int, float)):
            weight = np.full(_num_samples(X), float(weight))
        if vars(self).get("positive"):
            own = copy(self)
            fit_positive(own, X, y, weight, offset, **params)
        else:
            own = self._own()
            own._fit(X, y, weight, offset, **params)
            if own._curvature is not None and getattr(X, "dtype", None) == np.float32:
                round_to_float32(own, X, own._curvature)
        arguments = {name: vars(self)[name] for name in self._get_param_names()}
        # What a subclass or a script has set on the estimator stays, as in scikit-learn.
        fitted = {
            name: value
            for name, value in vars(own).items()
            if "_" in (name[0], name[-1]) or name in vars(self)
        }
        for name in _NUMBERS & fitted.keys():
            if type(fitted[name]) is float:
                fitted[name] = np.float64(fitted[name])
        self.__dict__.clear()
        self.__dict__.update(fitted, **arguments)
        return self

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        """Fit a copy that `_own` has made."""
        super().fit(X, y, weight, offset, **params)

    def _own(self) -> Self:
        """Return a copy whose arguments have the meaning of this package."""
        own = copy(self)
        own.tol = min(max(self._tol_of_objective(), _LEAST_TOL), _OWN_TOL)
        own.verbose = 2 if self.verbose else 0
        default = inspect.signature(type(self)).parameters.get("max_iter")
        if default is not None and self.max_iter == default.default:
            own.max_iter = _OWN_MAX_ITER
        return own

    def _tol_of_objective(self) -> float:
        """Return `tol` as a distance of the objective.

        scikit-learn's is for the gradient, and the distance is about its square.
        """
        return float(self.tol) ** 2

    def _penalty_on_mean(self) -> tuple[Any, float]:
        """Return the penalty on the mean loss, one number or one per target, and l1_ratio."""
        raise NotImplementedError

    def _check_arguments(self) -> None:
        """Raise a ValueError for arguments that cannot be followed, warn for those of no effect."""
        name, params = type(self).__name__, self.get_params(deep=False)
        original: Any = self._original
        validate_parameter_constraints(original._parameter_constraints, params, caller_name=name)
        self._warn_of_changes(params)
        for argument, value in self._without_effect:
            if params.get(argument) == value:
                self._tell_once(argument, value)

    def _tell_once(self, argument: str, value: str) -> None:
        """Warn, once in a process, that a value with another optimum has no effect."""
        name = type(self).__name__
        if (name, argument, value) not in _told:
            _told.add((name, argument, value))
            sentence = _OTHER_OPTIMUM[argument, value]
            warn(f"{argument}={value!r} has no effect in {name}: {sentence}", UserWarning)

    def _warn_of_changes(self, params: Mapping[str, object]) -> None:
        """Warn, as scikit-learn does, of arguments that its next version has no more or changes."""
        for name, parameter in inspect.signature(type(self)).parameters.items():
            default, value = parameter.default, params[name]
            is_default = isinstance(value, str) and value == default
            if default == "deprecated" and not is_default:
                warn(
                    f"{name!r} was deprecated in scikit-learn, whose next versions remove it, and "
                    f"got {value!r}: see its documentation",
                    FutureWarning,
                )
            elif default == "warn" and is_default:
                warn(
                    f"The default value for {name} will change in the next versions of "
                    f"scikit-learn's {type(self).__name__}: see its documentation, or give a value",
                    FutureWarning,
                )
            elif name in _NO_LONGER_NONE and value is None and default is not None:
                warn(
                    f"'{name}=None' was deprecated in scikit-learn, whose next versions refuse it: "
                    "give a number from 0 to 1",
                    FutureWarning,
                )

    def _penalty(self) -> tuple[float, float]:
        """Return the strength of the penalty, as in the base class, and l1_ratio."""
        penalty: tuple[float, float] = super(SklearnNamed, self._own())._penalty()
        return penalty

    def _equivalent(self) -> Any:
        return self._original(**self.get_params(deep=False))


class SeveralTargets(MultiOutputMixin, SklearnNamed, GLMRegressor):  # type: ignore[misc]
    """Base class of the regressors that take several targets, each of which is fitted alone."""

    _curvature = 1.0
    dual_gap_: float | NumPyArray

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        table = None if isinstance(X, (Chunks, Source)) else _table(y)
        if table is None:
            GLMRegressor.fit(self, X, y, weight, offset)
            self.intercept_ = np.float64(cast("float", self.intercept_))  # type: ignore[assignment]
            self._finish()
            return
        models = []
        for k in range(table.shape[1]):
            model = self._for_target(k, table.shape[1])
            column = (
                offset
                if offset is None or np.ndim(cast("Any", offset)) < 2
                else np.asarray(offset)[:, k]
            )
            GLMRegressor.fit(model, X, table[:, k], weight, column)
            models.append(model)
        self.__dict__.update(vars(models[0]))
        self.coef_ = np.array([model.coef_ for model in models])
        if self.fit_intercept:
            self.intercept_ = np.array([model.intercept_ for model in models])
        if len(models) == 1:
            self.coef_ = self.coef_[0]
            self._finish()
            return
        for name in (*_PER_TARGET, "n_iter_"):
            values = [getattr(model, name) for model in models]
            is_number = isinstance(values[0], (int, float))
            setattr(self, name, np.array(values) if is_number else values)
        self._finish()

    def _for_target(self, k: int, count: int) -> Self:
        """Return a copy with the arguments for target k of `count`."""
        model = copy(self)
        if self.warm_start and np.ndim(getattr(self, "coef_", 0)) == 2:
            model.coef_ = self.coef_[k]
            model.intercept_ = float(np.broadcast_to(self.intercept_, count)[k])
        return model

    def _penalty_on_mean(self) -> tuple[Any, float]:
        alpha: Any = np.asarray(self.alpha)
        return self._on_mean(alpha, self._total), self.l1_ratio

    def _finish(self) -> None:
        """Set the attributes of scikit-learn's class."""
        self.dual_gap_ = self.gap_

    def predict(self, X: object, offset: object = None) -> NumPyArray:
        """Return the predictions, of shape (n,) or (n, n_targets).

        They are in float32 if X and ``coef_`` are, else in float64.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, p)
            As in `fit`.
        offset : array-like of shape (n,), optional
            As in `fit`; for several targets (n, n_targets). If it is left out, it is 0.
        """
        if np.ndim(self.__dict__.get("coef_", ())) < 2:
            predicted = super().predict(X, offset)
        else:
            predicted = self._with_offset(X, offset, "predict")
        is_narrow = getattr(X, "dtype", None) == self.coef_.dtype == np.float32
        return predicted.astype(np.float32) if is_narrow else predicted

    def score(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return R^2, for several targets their mean. The parameters are those of `fit`."""
        if np.ndim(self.__dict__.get("coef_", ())) < 2:
            return super().score(X, y, sample_weight, offset)
        predicted = self.predict(X, offset)
        return float(r2_score(y, predicted, sample_weight=sample_weight))


def _table(y: object) -> NumPyArray | None:
    """Return several targets as an array (n, n_targets); None if there is one."""
    if isinstance(y, Sequence) and len(y) and not isinstance(y[0], (list, tuple)):
        return None
    shape = getattr(y, "shape", None)
    if isinstance(y, Sequence):
        table = np.asarray(y)
    elif shape is None or len(shape) != 2:
        return None
    else:
        table = np.asarray(y)
    return table if table.ndim == 2 else None
