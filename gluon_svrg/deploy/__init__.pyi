"""The public names of this package; each is imported when it is first asked for."""

from gluon_svrg.deploy.benchmark import benchmark as benchmark
from gluon_svrg.deploy.export import export as export
from gluon_svrg.deploy.images import Normalization as Normalization
from gluon_svrg.deploy.model_dir import read_card as read_card
from gluon_svrg.deploy.onnx import export_onnx as export_onnx
from gluon_svrg.deploy.predictor import Prediction as Prediction, Predictor as Predictor
from gluon_svrg.deploy.quantize import quantize as quantize
