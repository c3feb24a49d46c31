"""Linear models solved to a certificate: see :class:`SVRGClassifier`, :class:`SVRGRegressor`."""

from gluon_svrg.linear.estimators import SVRGClassifier, SVRGRegressor

__all__ = ["SVRGClassifier", "SVRGRegressor"]
