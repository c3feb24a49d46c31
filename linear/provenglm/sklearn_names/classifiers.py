"""LogisticRegression and LogisticRegressionCV, with scikit-learn's arguments and attributes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse import hstack, issparse
from sklearn import linear_model

from provenglm.api.base import all_or_nothing, warn
from provenglm.api.classifier import GLMClassifier
from provenglm.api.classifier_cv import GLMClassifierCV
from provenglm.api.far_data import Checked
from provenglm.api.inference import DataOfFit
from provenglm.api.search import CheckedData, Path
from provenglm.rows.chunks import Chunks
from provenglm.sklearn_names.base import SklearnNamed, named_like
from provenglm.types import NumPyArray

__all__ = ["LogisticRegression", "LogisticRegressionCV"]

_RATIOS = {"l1": 1.0, "l2": 0.0, None: 0.0}


@named_like(linear_model.LogisticRegression)
class LogisticRegression(SklearnNamed, GLMClassifier):
    """Logistic regression as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.LogisticRegression`, with its defaults. The solver is
        chosen from the data: `solver`, `dual`, `n_jobs` and `multi_class` have no effect, but with
        ``solver='liblinear'`` and two classes the intercept is penalised, as in scikit-learn.
        `tol` is for the gradient, so its square is used for the distance to the optimum, but at
        most 1e-6.

    Attributes
    ----------
    coef_, intercept_, classes_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn, in float32 if X is, else in float64. The iterations are those of this
        package's solver.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMClassifier`.

    See Also
    --------
    GLMClassifier
    """

    _without_effect = (("multi_class", "ovr"),)
    _column = 0.0
    """The value of a column of the last fit that stood for the intercept; 0 if there was none."""

    solver: str
    intercept_scaling: float
    class_weight: Any = None
    # Not the property of the base class: an argument of some versions.
    penalty: Any = "deprecated"

    @property
    def _curvature(self) -> float | None:  # type: ignore[override]
        # Of the softmax; of two classes a quarter. liblinear's results are in float64.
        return None if self.solver == "liblinear" else 0.5

    def _own(self) -> LogisticRegression:
        own = super()._own()
        own._column = 0.0
        if self.penalty is None:
            own.C = math.inf
        if self.penalty in _RATIOS:
            own.l1_ratio = _RATIOS[self.penalty]
        elif self.l1_ratio is None and self.penalty == "elasticnet":
            raise ValueError(
                "l1_ratio must be specified when penalty is elasticnet, got None: a number from 0 "
                "to 1"
            )
        elif self.l1_ratio is None:
            own.l1_ratio = 0.0
        return own

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if vars(self).get("n_jobs") is not None:
            warn(
                "'n_jobs' has no effect: a fit takes the threads that OMP_NUM_THREADS allows",
                FutureWarning,
            )
        if self.penalty is None and self.C != 1.0:
            warn("Setting penalty=None will ignore the C and l1_ratio parameters", UserWarning)
        if self.penalty in ("l1", "l2") and self.l1_ratio not in (None, _RATIOS[self.penalty]):
            warn(
                f"Inconsistent values: penalty={self.penalty} with l1_ratio={self.l1_ratio}. "
                "l1_ratio parameter is only used when penalty is 'elasticnet'. Got "
                f"(penalty={self.penalty})",
                UserWarning,
            )

    @property
    def _is_liblinear(self) -> bool:
        return self.solver == "liblinear" and bool(self.fit_intercept)

    def _checked(self, X: object, y: object, sample_weight: object, offset: object) -> Checked:
        data = super()._checked(X, y, sample_weight, offset)
        if not self._is_liblinear or len(data.classes) > 2 or isinstance(data.features, Chunks):
            return data
        # liblinear's intercept is the coefficient of one more column, and is penalised with it.
        self._column = float(self.intercept_scaling)
        self.fit_intercept = self.warm_start = False
        return data._replace(features=_with_column(data.features, self._column))

    def _keep(self, coef: NumPyArray, intercept: NumPyArray) -> None:
        if self._column:
            coef, intercept = coef[:-1], self._column * coef[-1]
        super()._keep(coef, intercept)

    def _data_of_fit(
        self, X: object, y: object, sample_weight: object, offset: object
    ) -> DataOfFit:
        if self._column:
            raise ValueError(
                "solver is 'liblinear', with which the intercept is penalised, and standard errors "
                "need a free intercept: fit with another solver"
            )
        return super()._data_of_fit(X, y, sample_weight, offset)

    def _penalty_on_mean(self) -> tuple[float, float]:
        return 1 / (self.C * self._total), self.l1_ratio

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        super()._fit(X, y, weight, offset, **params)
        if self._is_liblinear and not self._column:
            self._tell_once("solver", "liblinear")
        self.n_iter_ = np.ravel(np.asarray(self.n_iter_, dtype=np.int32))


def _with_column(features: Any, value: float) -> Any:
    """Return an array or CSR matrix with one more column of one value."""
    dtype = features.dtype if features.dtype.kind == "f" else np.float64
    column = np.full((features.shape[0], 1), value, dtype=dtype)
    if issparse(features):
        return hstack([features, column], format="csr", dtype=dtype)
    return np.hstack([features, column], dtype=dtype)


@named_like(linear_model.LogisticRegressionCV)
class LogisticRegressionCV(SklearnNamed, GLMClassifierCV):
    """Logistic regression with C by cross-validation, as in scikit-learn, with proven optima.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.LogisticRegressionCV`, with its defaults. `solver`,
        `dual`, `intercept_scaling` and `multi_class` have no effect; `tol` is as in
        :class:`LogisticRegression`.

    Attributes
    ----------
    C_, Cs_, l1_ratio_, l1_ratios_, scores_, coefs_paths_, n_iter_, coef_, intercept_, classes_
        As in scikit-learn, with the shapes that `use_legacy_attributes` asks for.
    gaps_, decrements_, gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMClassifierCV`.

    See Also
    --------
    GLMClassifierCV
    """

    class_weight: Any = None
    penalty: Any = "deprecated"
    # Their shapes depend on `use_legacy_attributes`.
    C_: Any
    l1_ratio_: Any
    n_iter_: Any
    scores_: Any
    coefs_paths_: Any

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        **params: object,
    ) -> LogisticRegressionCV:
        """Fit every fold with every penalty, then all rows with the best penalty.

        The parameters and errors are those of :meth:`GLMClassifierCV.fit`.
        """
        return self._fit_copy(X, y, sample_weight, offset, **params)

    def path(
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> Path:
        """Return the optimum on all rows for each penalty, as :meth:`GLMClassifierCV.path`."""
        return super(SklearnNamed, self._own()).path(X, y, sample_weight, offset)

    def _own(self) -> LogisticRegressionCV:
        own = super()._own()
        own.scoring = self._scoring()
        if self.penalty == "elasticnet" and self._has_no_ratios():
            raise ValueError(
                f"l1_ratios is {self.l1_ratios!r}, and penalty='elasticnet' needs numbers from 0 "
                "to 1"
            )
        if self.penalty in _RATIOS:
            own.l1_ratios = (_RATIOS[self.penalty],)
        elif self._has_no_ratios():
            own.l1_ratios = (0.0,)
        return own

    def _scoring(self) -> Any:
        return None if isinstance(self.scoring, str) and self.scoring == "warn" else self.scoring

    def _scorer(self) -> Any:
        return super(SklearnNamed, self._own())._scorer()

    def _has_no_ratios(self) -> bool:
        ratios: Any = self.l1_ratios
        return ratios is None or isinstance(ratios, str)

    def _check_fold(self, data: CheckedData, fold: int, weight: NumPyArray) -> None:
        """Allow folds that lack a class, as scikit-learn does, if they have two others."""
        if len(np.unique(data.problem.target[weight > 0])) < 2:
            super()._check_fold(data, fold, weight)

    def _fit_copy(
        self, X: object, y: object, weight: object, offset: object, **params: object
    ) -> LogisticRegressionCV:
        super()._fit_copy(X, y, weight, offset, **params)
        legacy = vars(self).get("use_legacy_attributes", "penalty" in vars(self))
        if legacy:
            self._keep_legacy_attributes()
        return self

    def _keep_legacy_attributes(self) -> None:
        """Change the attributes to the form that scikit-learn had before version 1.10."""
        names = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        one = slice(None) if not self._has_no_ratios() or self.penalty == "elasticnet" else 0

        def turned(table: NumPyArray) -> NumPyArray:
            return np.asarray(np.swapaxes(table, 1, 2)[:, :, one])

        self.scores_ = {name: turned(self.scores_) for name in names}
        self.coefs_paths_ = {
            name: turned(self.coefs_paths_[:, :, :, k]) for k, name in enumerate(names)
        }
        self.n_iter_ = turned(self.n_iter_)[np.newaxis]
        self.C_ = np.full(len(names), self.C_)
        self.l1_ratio_ = np.full(len(names), self.l1_ratio_)

    def _penalty(self) -> tuple[float, float]:
        return float(np.ravel(self.C_)[0]), float(np.ravel(self.l1_ratio_)[0])
