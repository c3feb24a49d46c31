"""The estimators of `provenglm`, with a method that makes a layer of Gluon of a fitted model.

`provenglm` is a distribution of its own (the folder ``linear`` of the repository), which needs no
MXNet. Neither does this package, until `to_gluon` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import provenglm
from provenglm import Chunks, Distributed
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from mxnet.gluon.nn import Dense

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


class _ToGluon:
    """A fitted linear model that can become a layer."""

    def to_gluon(self, dtype: str = "float32") -> Dense:
        """Return the model as a layer of Gluon, for `gluon_svrg.deploy.export` or as a last layer.

        Parameters
        ----------
        dtype : str
            Of the layer's parameters and inputs. 'float64' where features are large beside their
            spread, such as dates in seconds: float32 has seven digits.

        Returns
        -------
        mxnet.gluon.nn.Dense
            Initialized on the CPU, with ``in_units=n_features_in_``, and as many units as
            ``coef_`` has rows: the scores of `decision_function`, before softmax; one unit for two
            classes, the score of ``classes_[1]``, before the logistic function; one for a
            regression: its prediction, for Poisson the logarithm of it. A classifier's layer has
            the attribute ``class_names``, the names of ``classes_``, which `deploy.export` writes
            into the card.

        Raises
        ------
        ImportError
            If MXNet is not installed.
        """
        check_is_fitted(self)
        module = import_module("gluon_svrg.linear.to_gluon")  # imports MXNet
        coef, intercept = vars(self)["coef_"], vars(self)["intercept_"]
        coef = coef.toarray() if issparse(coef) else np.atleast_2d(coef)
        layer: Dense = module.dense(coef, np.atleast_1d(intercept), dtype)
        if hasattr(self, "classes_"):
            layer.class_names = [str(name) for name in self.classes_]
        return layer


class GLMClassifier(_ToGluon, provenglm.GLMClassifier):  # noqa: D101
    __doc__ = provenglm.GLMClassifier.__doc__


class GLMClassifierCV(_ToGluon, provenglm.GLMClassifierCV):  # noqa: D101
    __doc__ = provenglm.GLMClassifierCV.__doc__


class GLMRegressor(_ToGluon, provenglm.GLMRegressor):  # noqa: D101
    __doc__ = provenglm.GLMRegressor.__doc__


class GLMRegressorCV(_ToGluon, provenglm.GLMRegressorCV):  # noqa: D101
    __doc__ = provenglm.GLMRegressorCV.__doc__


# The names of the estimators up to version 0.8.
SVRGClassifier = GLMClassifier
SVRGClassifierCV = GLMClassifierCV
SVRGRegressor = GLMRegressor
SVRGRegressorCV = GLMRegressorCV
