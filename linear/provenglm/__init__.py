"""Generalized linear models whose every fit says how far it is from the optimum.

Estimators with scikit-learn's interface: logistic, softmax, ridge, elastic net, Huber and Poisson
regression. There is no learning rate and no solver to choose, and ``gap_`` is a proven bound of the
distance to the optimum.
"""

from provenglm.cross_validation.cv import SVRGClassifierCV
from provenglm.cross_validation.regressor import SVRGRegressorCV
from provenglm.data.chunks import Chunks
from provenglm.estimators import SVRGClassifier, SVRGRegressor

__all__ = ["Chunks", "SVRGClassifier", "SVRGClassifierCV", "SVRGRegressor", "SVRGRegressorCV"]

__version__ = "0.8.0"
