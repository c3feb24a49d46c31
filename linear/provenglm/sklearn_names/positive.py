"""Fits with ``positive=True``: scikit-learn's solver, and a bound for its result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from provenglm.types import NumPyArray


def fit_positive(
    model: Any, X: Any, y: object, weight: object, offset: object, **params: object
) -> None:
    """Fit scikit-learn's own class, and give its attributes to `model`, with ``gap_``.

    No method of this package bounds coefficients. ``tol`` and warnings are scikit-learn's.

    Parameters
    ----------
    model : SklearnNamed
        Ridge, Lasso, ElasticNet or a search, with the arguments of scikit-learn.
    X, y, weight, offset
        The data of the fit.
    **params : dict
        Parameters for a splitter.
    """
    fitted = model._original(**model.get_params(deep=False))
    target: Any = y if offset is None else np.asarray(y, np.float64) - np.asarray(offset)
    fitted.fit(X, target, weight, **params)
    model.__dict__.update(vars(fitted))
    target = np.asarray(target, np.float64)
    share = np.ones(len(target)) if weight is None else np.asarray(weight, np.float64)
    model._total = float(share.sum())
    alpha, l1_ratio = model._penalty_on_mean()
    residual = (target.T - np.asarray(fitted.predict(X), np.float64).reshape(target.shape).T).T
    share = share / model._total
    bounds = [
        _bound(X, target_k, residual_k, coef_k, share, alpha_k, l1_ratio, model.fit_intercept)
        for target_k, residual_k, coef_k, alpha_k in zip(
            np.atleast_2d(target.T),
            np.atleast_2d(residual.T),
            np.atleast_2d(fitted.coef_),
            np.broadcast_to(alpha, len(np.atleast_2d(fitted.coef_))),
            strict=True,
        )
    ]
    objectives, gaps = np.array(bounds).T
    is_one = np.ndim(fitted.coef_) == 1
    model.objective_, model.gap_ = (float(v[0]) if is_one else v for v in (objectives, gaps))
    model.solver_ = "scikit-learn's"
    model.why_ = "scikit-learn's solver, because coefficients are bounded: positive=True"
    model._keep_offset(None if offset is None else np.asarray(offset))


def _bound(
    X: Any,
    target: NumPyArray,
    residual: NumPyArray,
    coef: NumPyArray,
    share: NumPyArray,
    alpha: float,
    l1_ratio: float,
    fit_intercept: bool,
) -> tuple[float, float]:
    """Return the objective, and the duality gap at a multiple of the residuals."""
    l1, l2 = alpha * l1_ratio, alpha * (1 - l1_ratio)
    primal = share @ residual**2 / 2 + l1 * coef.sum() + l2 / 2 * coef @ coef
    dual = residual - share @ residual if fit_intercept else residual
    slope = np.asarray(
        X.T @ (share * dual) if hasattr(X, "T") else np.asarray(X).T @ (share * dual)
    )
    # Without an L2 penalty no slope may be above l1.
    scale = 1.0 if l2 > 0 or slope.max() <= l1 else l1 / float(slope.max())
    dual, slope = scale * dual, scale * slope
    conjugate = float((np.maximum(slope - l1, 0) ** 2).sum() / (2 * l2)) if l2 > 0 else 0.0
    gap = primal - share @ (dual * target - dual**2 / 2) + conjugate
    return float(primal), max(float(gap), 0.0) if math.isfinite(gap) else math.inf
