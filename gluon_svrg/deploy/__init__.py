"""Trained networks without their Python code: exported, served, converted to ONNX and int8.

A :class:`Predictor` needs neither gluoncv nor the class of the network.
"""

from gluon_svrg.deploy.benchmark import benchmark
from gluon_svrg.deploy.export import export
from gluon_svrg.deploy.images import Normalization
from gluon_svrg.deploy.model_dir import read_card
from gluon_svrg.deploy.onnx import export_onnx
from gluon_svrg.deploy.predictor import Prediction, Predictor
from gluon_svrg.deploy.quantize import quantize

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
