"""Conversion of fitted models to scikit-learn's own classes."""

from __future__ import annotations

import inspect
import math
from typing import Any

# Classes, not the module: patch_sklearn replaces the names of the module.
from sklearn.linear_model import (
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)

_ATTRIBUTES = (
    *("intercept_", "n_iter_", "classes_", "n_features_in_", "feature_names_in_", "scale_"),
    *("outliers_", "dual_gap_", "alpha_", "alphas_", "l1_ratio_", "l1_ratios_", "mse_path_"),
    *("C_", "Cs_", "scores_", "coefs_paths_", "best_score_", "cv_results_"),
)
"""Attributes beside ``coef_`` that have the same meaning there."""


def with_fit_of(model: Any, target: Any) -> Any:
    """Give an estimator of scikit-learn the fit of `model`, and return it."""
    coef = model._dense_coef()
    target.coef_ = coef.copy() if model.coef_.ndim == 2 else coef[0].copy()
    for name in _ATTRIBUTES:
        if name in vars(model):
            setattr(target, name, vars(model)[name])
    if hasattr(target, "_get_loss"):
        target._base_loss = target._get_loss()  # `predict` of PoissonRegressor needs its link
    return target


def classifier(model: Any) -> Any:
    """Return an unfitted LogisticRegression for a fitted GLMClassifier."""
    C, l1_ratio = model._penalty()
    arguments: dict[str, Any] = {"C": C, "fit_intercept": model.fit_intercept}
    arguments["class_weight"] = model.class_weight
    if l1_ratio > 0:
        arguments |= {"l1_ratio": l1_ratio, "solver": "saga"}
    # Before version 1.8 it had no l1_ratio without penalty='elasticnet', and no infinite C.
    parameters = inspect.signature(LogisticRegression).parameters
    if "penalty" in parameters and parameters["penalty"].default == "l2":
        if math.inf == C:
            arguments |= {"penalty": None, "C": 1.0}
        elif l1_ratio > 0:
            arguments["penalty"] = "elasticnet"
    return LogisticRegression(**arguments)


def regressor(model: Any) -> Any:
    """Return an unfitted estimator of scikit-learn for a fitted GLMRegressor."""
    alpha, l1_ratio = model._penalty()
    on_sum = alpha * model._total
    common = {"fit_intercept": model.fit_intercept}
    if model.loss == "squared" and l1_ratio > 0:
        return ElasticNet(alpha, l1_ratio=l1_ratio, **common)
    if model.loss == "squared":
        return Ridge(on_sum, **common)
    if model.loss == "huber":
        return HuberRegressor(epsilon=model.epsilon, alpha=on_sum, **common)
    if model.loss == "poisson":
        return PoissonRegressor(alpha=alpha, **common)
    if model.loss == "gamma":
        return GammaRegressor(alpha=alpha, **common)
    if model.loss == "tweedie":
        return TweedieRegressor(power=model.power, alpha=alpha, **common)
    raise ValueError(
        f"loss is {model.loss!r}, which no estimator of scikit-learn has: keep provenglm's class"
    )
