"""Trained networks without their Python code: exported, served, converted to ONNX and int8.

A :class:`Predictor` needs neither gluoncv nor the class of the network.
"""

import sys as _sys

from gluon_svrg import _lazy

# Not imported here: the command line catches a Ctrl-C while MXNet is imported.
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__)
_sys.modules[__name__].__class__ = _lazy.PackageWithFunctions
