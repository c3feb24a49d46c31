"""scikit-learn's regressors: Ridge, Lasso, ElasticNet, Huber, Poisson, gamma and Tweedie."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn import linear_model

from provenglm.api.base import all_or_nothing
from provenglm.api.regressor import GLMRegressor
from provenglm.sklearn_names.base import SeveralTargets, SklearnNamed, named_like
from provenglm.types import NumPyArray

__all__ = [
    "ElasticNet",
    "GammaRegressor",
    "HuberRegressor",
    "Lasso",
    "PoissonRegressor",
    "Ridge",
    "TweedieRegressor",
]


_sparse_coef = linear_model.ElasticNet.sparse_coef_.fget


class _OnSum(GLMRegressor):
    """A regressor with `alpha` on the sum of the losses."""

    @staticmethod
    def _on_mean(strength: float, total: float) -> float:
        return strength / total


@named_like(linear_model.Ridge)
class Ridge(SeveralTargets, _OnSum):
    """Ridge regression as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.Ridge`, with its defaults: `alpha` is the penalty on
        the *sum* of the losses. `solver`, `copy_X` and `random_state` do not change the optimum.
        With ``positive=True`` the solver is scikit-learn's.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn, in float32 if X is, else in float64.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressor`; with several targets arrays or lists, one entry per target.

    See Also
    --------
    GLMRegressor
    """

    loss = "squared"

    def _for_target(self, k: int, count: int) -> Ridge:
        model = super()._for_target(k, count)
        strengths = np.ravel(self.alpha)
        if len(strengths) not in (1, count):
            raise ValueError(
                "Number of targets and number of penalties do not correspond: "
                f"{len(strengths)} != {count}"
            )
        model.alpha = float(strengths[k if len(strengths) > 1 else 0])
        return model

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        if np.size(self.alpha) == 1:
            self.alpha = float(np.ravel(self.alpha)[0])
        super()._fit(X, y, weight, offset, **params)

    def _finish(self) -> None:
        self.n_iter_ = np.ravel(np.asarray(self.n_iter_, dtype=np.int32))


class _CoordinateDescent(SeveralTargets):
    """What Lasso and ElasticNet have besides."""

    loss = "squared"
    path = staticmethod(linear_model.enet_path)

    @all_or_nothing
    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        offset: object = None,
        check_input: bool = True,
    ) -> Any:
        """Fit the model.

        Parameters
        ----------
        X, y, sample_weight, offset
            As in :class:`Ridge`.
        check_input : bool
            Has no effect: data are always checked.

        Returns
        -------
        object
            The fitted estimator.
        """
        return self._fit_copy(X, y, sample_weight, offset)

    def _tol_of_objective(self) -> float:
        return float(self.tol)

    def _finish(self) -> None:
        super()._finish()
        if isinstance(self.n_iter_, np.ndarray):
            self.n_iter_ = self.n_iter_.tolist()

    @property
    def sparse_coef_(self) -> csr_matrix | csr_array:
        """``coef_`` as a sparse matrix or array of shape (n_targets, p), as in scikit-learn."""
        return _sparse_coef(self)


@named_like(linear_model.ElasticNet)
class ElasticNet(_CoordinateDescent):
    """Elastic net as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.ElasticNet`, with its defaults: `alpha` is the penalty
        on the *mean* loss. `precompute`, `selection`, `copy_X` and `random_state` do not change the
        optimum. With ``positive=True`` the solver is scikit-learn's.

    Attributes
    ----------
    coef_, intercept_, sparse_coef_, n_iter_, dual_gap_, n_features_in_, feature_names_in_
        As in scikit-learn, in float32 if X is, else in float64. ``dual_gap_`` is ``gap_``.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`Ridge`.

    See Also
    --------
    GLMRegressor
    """


@named_like(linear_model.Lasso)
class Lasso(_CoordinateDescent):
    """Lasso as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.Lasso`, as in :class:`ElasticNet`.

    Attributes
    ----------
    coef_, intercept_, sparse_coef_, n_iter_, dual_gap_, n_features_in_, feature_names_in_
        As in :class:`ElasticNet`.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`Ridge`.

    See Also
    --------
    GLMRegressor
    """

    l1_ratio = 1.0


@named_like(linear_model.PoissonRegressor)
class PoissonRegressor(SklearnNamed, GLMRegressor):
    """Poisson regression as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.PoissonRegressor`, with its defaults. `solver` has no
        effect.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn, in float64.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressor`.

    See Also
    --------
    GLMRegressor
    """

    loss = "poisson"


@named_like(linear_model.GammaRegressor)
class GammaRegressor(SklearnNamed, GLMRegressor):
    """Gamma regression as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.GammaRegressor`, as in :class:`PoissonRegressor`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn, in float64.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressor`.

    See Also
    --------
    GLMRegressor
    """

    loss = "gamma"


_TWEEDIE: dict[float, str] = {0: "squared", 1: "poisson", 2: "gamma"}


@named_like(linear_model.TweedieRegressor)
class TweedieRegressor(SklearnNamed, GLMRegressor):
    """Tweedie regression as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.TweedieRegressor`, with its defaults. `power` must be
        0 (with the identity as link) or from 1 to 2 (with the logarithm). `solver` has no effect.

    Attributes
    ----------
    coef_, intercept_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn, in float64.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressor`.

    See Also
    --------
    GLMRegressor
    """

    link: str

    @property
    def loss(self) -> str:  # type: ignore[override]
        """The loss of :class:`GLMRegressor` for `power`."""
        return _TWEEDIE.get(self.power, "tweedie")

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.power != 0 and not 1 <= self.power <= 2:
            raise ValueError(
                f"power is {self.power!r}, and here it must be 0 or from 1 to 2: use "
                "sklearn.linear_model.TweedieRegressor"
            )
        link = "identity" if self.power == 0 else "log"
        if self.link not in ("auto", link):
            raise ValueError(
                f"link is {self.link!r}, and with power={self.power!r} it must be {link!r} here: "
                "use sklearn.linear_model.TweedieRegressor"
            )


@named_like(linear_model.HuberRegressor)
class HuberRegressor(SklearnNamed, _OnSum):
    """Huber regression as in scikit-learn, with a proven distance to the optimum.

    Parameters
    ----------
    *args, **kwargs
        Those of :class:`sklearn.linear_model.HuberRegressor`, with its defaults: `alpha` is the
        penalty on the *sum* of the losses.

    Attributes
    ----------
    coef_, intercept_, scale_, outliers_, n_iter_, n_features_in_, feature_names_in_
        As in scikit-learn, in float64.
    gap_, objective_, decrement_, history_, solver_, why_, stop_reason_
        As in :class:`GLMRegressor`.

    See Also
    --------
    GLMRegressor
    """

    loss = "huber"
    outliers_: NumPyArray

    def _fit(self, X: object, y: object, weight: object, offset: object, **params: object) -> None:
        super()._fit(X, y, weight, offset, **params)
        far = self.epsilon * self.scale_
        self.outliers_ = np.abs(np.asarray(y).ravel() - self.predict(X, offset)) > far
