"""Generalized linear models whose every fit says how far it is from the optimum.

Estimators with scikit-learn's interface: logistic, softmax, ridge, elastic net, Huber and Poisson
regression. There is no learning rate and no solver to choose, and ``gap_`` is a proven bound of the
distance to the optimum.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from provenglm.api.estimators import SVRGClassifier, SVRGRegressor
from provenglm.rows.chunks import Chunks

if _TYPE_CHECKING:
    from provenglm.api.classifier_cv import SVRGClassifierCV
    from provenglm.api.regressor_cv import SVRGRegressorCV

__all__ = ["Chunks", "SVRGClassifier", "SVRGClassifierCV", "SVRGRegressor", "SVRGRegressorCV"]

__version__ = "0.8.0"

# Imported when they are asked for: the metrics of scikit-learn that they need take 60 ms.
_LATER = {
    "SVRGClassifierCV": "provenglm.api.classifier_cv",
    "SVRGRegressorCV": "provenglm.api.regressor_cv",
}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
