"""Trained networks without their Python code: exported, served, converted to ONNX and int8.

A :class:`Predictor` needs neither gluoncv nor the class of the network.
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if _TYPE_CHECKING:
    from gluon_svrg.deploy.benchmark import benchmark as benchmark
    from gluon_svrg.deploy.export import export as export
    from gluon_svrg.deploy.images import Normalization
    from gluon_svrg.deploy.model_dir import read_card
    from gluon_svrg.deploy.onnx import export_onnx
    from gluon_svrg.deploy.predictor import Prediction, Predictor
    from gluon_svrg.deploy.quantize import quantize as quantize

__all__ = [
    "Normalization",
    "Prediction",
    "Predictor",
    "benchmark",
    "export",
    "export_onnx",
    "quantize",
    "read_card",
]

_NAMES = {
    "Normalization": "gluon_svrg.deploy.images",
    "Prediction": "gluon_svrg.deploy.predictor",
    "Predictor": "gluon_svrg.deploy.predictor",
    "benchmark": "gluon_svrg.deploy.benchmark",
    "export": "gluon_svrg.deploy.export",
    "export_onnx": "gluon_svrg.deploy.onnx",
    "quantize": "gluon_svrg.deploy.quantize",
    "read_card": "gluon_svrg.deploy.model_dir",
}
"""Where each of them stands: the command line catches a Ctrl-C while MXNet is imported."""

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__, _NAMES)
    _sys.modules[__name__].__class__ = _lazy.PackageWithFunctions
