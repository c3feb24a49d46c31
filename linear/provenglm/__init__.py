"""Generalized linear models whose every fit says how far it is from the optimum.

Estimators with scikit-learn's interface: logistic, softmax, ridge, elastic net, Huber and Poisson
regression. There is no learning rate and no solver to choose, and ``gap_`` is a proven bound of the
distance to the optimum.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from provenglm.api.classifier import GLMClassifier
from provenglm.api.regressor import GLMRegressor
from provenglm.rows.chunks import Chunks
from provenglm.rows.mpi import Distributed

if _TYPE_CHECKING:
    from provenglm.api.classifier_cv import GLMClassifierCV
    from provenglm.api.regressor_cv import GLMRegressorCV
    from provenglm.sklearn_names.classifiers import LogisticRegression, LogisticRegressionCV
    from provenglm.sklearn_names.patch import patch_sklearn, unpatch_sklearn
    from provenglm.sklearn_names.regressors import (
        ElasticNet,
        GammaRegressor,
        HuberRegressor,
        Lasso,
        PoissonRegressor,
        Ridge,
        TweedieRegressor,
    )
    from provenglm.sklearn_names.searches import ElasticNetCV, LassoCV, RidgeCV

    SVRGClassifierCV, SVRGRegressorCV = GLMClassifierCV, GLMRegressorCV

__all__ = [
    "Chunks",
    "Distributed",
    "ElasticNet",
    "ElasticNetCV",
    "GLMClassifier",
    "GLMClassifierCV",
    "GLMRegressor",
    "GLMRegressorCV",
    "GammaRegressor",
    "HuberRegressor",
    "Lasso",
    "LassoCV",
    "LogisticRegression",
    "LogisticRegressionCV",
    "PoissonRegressor",
    "Ridge",
    "RidgeCV",
    "SVRGClassifier",
    "SVRGClassifierCV",
    "SVRGRegressor",
    "SVRGRegressorCV",
    "TweedieRegressor",
    "patch_sklearn",
    "unpatch_sklearn",
]

__version__ = "0.9.0rc1"

# The names of the estimators up to version 0.8.
SVRGClassifier = GLMClassifier
SVRGRegressor = GLMRegressor

_SKLEARN_NAMES = {
    "classifiers": ("LogisticRegression", "LogisticRegressionCV"),
    "patch": ("patch_sklearn", "unpatch_sklearn"),
    "regressors": (
        *("ElasticNet", "GammaRegressor", "HuberRegressor", "Lasso", "PoissonRegressor"),
        *("Ridge", "TweedieRegressor"),
    ),
    "searches": ("ElasticNetCV", "LassoCV", "RidgeCV"),
}

# Imported on first use, because scikit-learn's metrics, which they need, take 60 ms to import, and
# its linear models 100 ms.
_ON_FIRST_USE = {
    **{
        name: (f"provenglm.sklearn_names.{module}", name)
        for module, names in _SKLEARN_NAMES.items()
        for name in names
    },
    "GLMClassifierCV": ("provenglm.api.classifier_cv", "GLMClassifierCV"),
    "GLMRegressorCV": ("provenglm.api.regressor_cv", "GLMRegressorCV"),
    "SVRGClassifierCV": ("provenglm.api.classifier_cv", "GLMClassifierCV"),
    "SVRGRegressorCV": ("provenglm.api.regressor_cv", "GLMRegressorCV"),
}


def __getattr__(name: str) -> _Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, class_name = _ON_FIRST_USE[name]
    return getattr(_import_module(module), class_name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
