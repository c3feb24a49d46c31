"""What a user does with an installed wheel; run in a folder that holds nothing else."""

import importlib
import importlib.metadata
import pkgutil
import runpy
import sys
from pathlib import Path

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from mxnet import gluon

package = Path(gs.__file__).parent
assert package.is_relative_to(sys.prefix), f"{package} is not what was installed"
assert gs.__version__ == importlib.metadata.version("gluon-svrg") == sys.argv[1]
for module in pkgutil.walk_packages([str(package)], "gluon_svrg."):
    if not module.name.endswith("__main__") and not module.name.startswith("gluon_svrg.linear"):
        importlib.import_module(module.name)
try:
    importlib.import_module("gluon_svrg.linear")
except ImportError as error:  # a distribution of its own
    assert "needs provenglm, which is not installed: `pip install ./linear`" in str(error)  # noqa: PT017

rng = np.random.default_rng(0)
x = rng.normal(size=(40, 4)).astype("float32")
data = gs.data.ArrayLoader(x, (x.sum(axis=1) > 0).astype("float32"), batch_size=8)


def train(epochs):
    """Train, or continue, with checkpoints; return the network and its history."""
    gs.seed_everything(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu", in_units=4), gluon.nn.Dense(2, in_units=8))
    net.initialize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    handlers = [gs.SVRGHandler(), gs.CheckpointHandler("checkpoints")]
    result = estimator.fit(data, epochs=epochs, event_handlers=handlers, resume="auto")
    return net, result.history


train(1)
net, history = train(3)
assert len(history) == 3
gs.deploy.export(net, "model", x[:2], class_names=["below", "above"])
outputs = gs.deploy.Predictor.load("model").predict(x)
np.testing.assert_allclose(outputs, net(mx.nd.array(x)).asnumpy(), atol=1e-5)

# The command line, as `python -m` runs it; in a process of its own it would import MXNet again.
sys.argv = ["deploy", "--help"]
try:
    runpy.run_module("gluon_svrg.deploy", run_name="__main__", alter_sys=True)
except SystemExit as end:
    if end.code:
        raise
print("it works")
