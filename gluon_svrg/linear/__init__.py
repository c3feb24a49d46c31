"""Linear models that are solved without a step size to choose, with scikit-learn's conventions.

It needs NumPy, SciPy and scikit-learn, and does not import MXNet.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if _TYPE_CHECKING:
    from gluon_svrg.linear.cross_validation.cv import SVRGClassifierCV
    from gluon_svrg.linear.data.chunks import Chunks
    from gluon_svrg.linear.estimators import SVRGClassifier, SVRGRegressor

__all__ = ["Chunks", "SVRGClassifier", "SVRGClassifierCV", "SVRGRegressor"]

_NAMES = {
    "Chunks": "gluon_svrg.linear.data.chunks",
    "SVRGClassifier": "gluon_svrg.linear.estimators",
    "SVRGClassifierCV": "gluon_svrg.linear.cross_validation.cv",
    "SVRGRegressor": "gluon_svrg.linear.estimators",
}
"""Where each of them stands."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES)
