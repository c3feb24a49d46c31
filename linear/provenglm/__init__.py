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

    SVRGClassifierCV, SVRGRegressorCV = GLMClassifierCV, GLMRegressorCV

__all__ = [
    "Chunks",
    "Distributed",
    "GLMClassifier",
    "GLMClassifierCV",
    "GLMRegressor",
    "GLMRegressorCV",
    "SVRGClassifier",
    "SVRGClassifierCV",
    "SVRGRegressor",
    "SVRGRegressorCV",
]

__version__ = "0.8.0"

# The names of the estimators up to version 0.8.
SVRGClassifier = GLMClassifier
SVRGRegressor = GLMRegressor

# Imported on first use, because scikit-learn's metrics, which they need, take 60 ms to import.
_ON_FIRST_USE = {
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
