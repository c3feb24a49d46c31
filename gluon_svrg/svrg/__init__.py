"""The method: the rule, the snapshot, its table, and what the correction does to the variance."""

from gluon_svrg import _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__)
