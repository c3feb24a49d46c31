"""RidgeCV, LassoCV and ElasticNetCV, with scikit-learn's arguments and attributes."""

from __future__ import annotations

from numbers import Real
from typing import Any, cast

import numpy as np
from sklearn import linear_model
from sklearn.utils import check_scalar
from sklearn.utils.metadata_routing import MetadataRouter

from provenglm.api.base import all_or_nothing
from provenglm.api.regressor import GLMRegressor
from provenglm.api.regressor_cv import GLMRegressorCV
from provenglm.sklearn_names.base import SklearnNamed, named_like
from provenglm.sklearn_names.regressors import Ridge
from provenglm.types import NumPyArray

__all__ = ["ElasticNetCV", "LassoCV", "RidgeCV"]

_N_ALPHAS = 100


class _PathCV(SklearnNamed, GLMRegressorCV):
    """A search of `alpha` by the mean squared error."""

    _curvature = 1.0
    loss = "squared"
    scoring: Any = None
    l1_ratios: Any
    refit = True
    epsilon, power = 1.35, 1.5
    eps: float
    alphas: Any
    l1_ratio: Any

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        **params: object,
    ) -> Any:
        """Fit every fold with every penalty, then all rows with the best penalty.

        The parameters and errors are those of :meth:`GLMRegressorCV.fit`.
        """
        return self._fit_copy(X, y, sample_weight, offset, **params)

    def _own(self) -> Any:
        own = super()._own()
        own.scoring = "neg_mean_squared_error"
        own.l1_ratios = np.ravel(self.l1_ratio)
        own._alpha_ratio = self.eps
        has_grid = self.alphas is None or isinstance(self.alphas, (str, int, np.integer))
        if has_grid and not np.all(own.l1_ratios):
            raise ValueError(
                "Automatic alpha grid generation is not supported for l1_ratio=0. Please supply a "
                "grid by providing your estimator with the appropriate `alphas=` argument."
            )
        if self.alphas is None or isinstance(self.alphas, str):  # before scikit-learn 1.9
            count = vars(self).get("n_alphas")
            own.alphas = count if isinstance(count, int) else _N_ALPHAS
        elif not isinstance(self.alphas, (int, np.integer)):
            for k, alpha in enumerate(self.alphas):
                check_scalar(alpha, f"alphas[{k}]", Real, min_val=0.0, include_boundaries="left")
            own.alphas = np.sort(self.alphas)[::-1]
        return own

    def _tol_of_objective(self) -> float:
        return float(self.tol)

    def _penalty_on_mean(self) -> tuple[float, float]:
        return self.alpha_, vars(self).get("l1_ratio_", 1.0)

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        super()._fit(X, y, weight, offset, **params)
        self.mse_path_ = np.squeeze(np.moveaxis(-self.scores_, 0, 2))
        self.n_iter_ = max(1, self.history_[-1]["iteration"] if self.history_ else 1)
        self.dual_gap_ = self.gap_

    def _penalty(self) -> tuple[float, float]:
        return self.alpha_, self.l1_ratio_

    def _scorer(self) -> Any:
        return super(SklearnNamed, self._own())._scorer()

    def score(  # type: ignore[override]
        self, X: object, y: object, sample_weight: object = None, offset: object = None
    ) -> float:
        """Return R^2. The parameters are those of `fit`."""
        return float(GLMRegressor.score(self, X, y, sample_weight, offset))


@named_like(linear_model.LassoCV)
class LassoCV(_PathCV):
    """Lasso with alpha by cross-validation, as in scikit-learn, with proven optima.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.LassoCV`, with its defaults; see :class:`Lasso`.

    Attributes
    ----------
    alpha_, alphas_, mse_path_, coef_, intercept_, n_iter_, dual_gap_
        As in scikit-learn, in float32 if X is, else in float64. ``dual_gap_`` is ``gap_``.
    gaps_, decrements_, gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressorCV`.

    See Also
    --------
    GLMRegressorCV
    """

    l1_ratio = 1.0
    path = staticmethod(linear_model.lasso_path)


@named_like(linear_model.ElasticNetCV)
class ElasticNetCV(_PathCV):
    """Elastic net with alpha by cross-validation, as in scikit-learn, with proven optima.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.ElasticNetCV`, with its defaults; see
        :class:`ElasticNet`.

    Attributes
    ----------
    alpha_, alphas_, l1_ratio_, mse_path_, coef_, intercept_, n_iter_, dual_gap_
        As in scikit-learn, in float32 if X is, else in float64. ``dual_gap_`` is ``gap_``.
    gaps_, decrements_, gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressorCV`.

    See Also
    --------
    GLMRegressorCV
    """

    path = staticmethod(linear_model.enet_path)


@named_like(linear_model.RidgeCV)
class RidgeCV(Ridge):
    """Ridge regression with alpha by cross-validation, as in scikit-learn.

    scikit-learn chooses `alpha`: for ``cv=None`` by its formula for leaving one row out. The final
    fit is that of :class:`Ridge`.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.RidgeCV`, with its defaults.

    Attributes
    ----------
    alpha_, best_score_, cv_results_, coef_, intercept_, n_features_in_, feature_names_in_
        As in scikit-learn.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`Ridge`.

    See Also
    --------
    Ridge
    """

    alpha_: Any

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        **params: object,
    ) -> Any:
        """Choose `alpha`, then fit all rows with it.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in :class:`Ridge`.
        **params : dict
            Parameters for the scorer. They need
            ``sklearn.set_config(enable_metadata_routing=True)``.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit_copy(X, y, sample_weight, offset, **params)

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        search = self._original(**self.get_params(deep=False))
        target = y if offset is None else np.asarray(y, np.float64) - np.asarray(offset)
        search.fit(X, target, weight, **params)
        self.alpha = search.alpha_
        if getattr(X, "dtype", None) == np.float32:
            X = cast("NumPyArray", X).astype(np.float64)  # as scikit-learn's formula does
        super()._fit(X, y, weight, offset)
        for name in ("alpha_", "best_score_", "cv_results_"):
            if hasattr(search, name):
                setattr(self, name, getattr(search, name))

    def _penalty(self) -> tuple[float, float]:
        return self._on_mean(float(self.alpha_), self._total), 0.0

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of scikit-learn's RidgeCV."""
        router = self._original(**self.get_params(deep=False)).get_metadata_routing()
        return router.add_self_request(self)
