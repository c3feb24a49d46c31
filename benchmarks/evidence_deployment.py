"""A trained ResNet-20 without its Python code: in a fresh process, in onnxruntime, in int8."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import evidence_common as common
import evidence_presets
import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluoncv.model_zoo import get_model

PART = "deployment"
_FRESH = """
import sys
sys.modules["gluoncv"] = None  # not importable
import numpy as np
from gluon_svrg import deploy
model, inputs, outputs = sys.argv[1:]
np.save(outputs, deploy.Predictor.load(model)(np.load(inputs)))
"""


def jobs() -> list[common.Row]:
    return list(common.product(preset=["nag"], seed=[0, 1, 2]))


def work(job: common.Row) -> common.Row:
    """Compare the model that the preset's run has exported with its network."""
    model = Path(evidence_presets.folder(job)) / "model"
    card = gs.deploy.read_card(model)
    images, labels = common.fashion_mnist(32)[1]
    mean, std = card["normalization"]["mean"][0], card["normalization"]["std"][0]
    x = ((images / 255 - mean) / std).astype("float32")
    train = common.fashion_mnist(32, 512)[0][0]
    calibration = ((train / 255 - mean) / std).astype("float32")
    expected = _of_network(model, x)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x)
        command = [sys.executable, "-c", _FRESH, str(model), f"{folder}/x.npy", f"{folder}/y.npy"]
        subprocess.run(command, check=True)
        fresh = np.load(f"{folder}/y.npy")
        gs.deploy.export_onnx(model, f"{folder}/model.onnx")
        onnx = _of_onnxruntime(f"{folder}/model.onnx", x)
        gs.deploy.quantize(model, f"{folder}/int8", calibration)
        int8 = gs.deploy.Predictor.load(f"{folder}/int8")(x)
    return {
        name: {
            "difference": float(np.abs(y - expected).max()),
            "same_class": int((y.argmax(1) == expected.argmax(1)).sum()),
            "accuracy": float((y.argmax(1) == labels).mean()),
        }
        for name, y in (("network", expected), ("fresh", fresh), ("onnx", onnx), ("int8", int8))
    }


def _of_network(model: Path, x: np.ndarray) -> np.ndarray:
    """Return the outputs of gluoncv's own network with the parameters of the model."""
    net = get_model("cifar_resnet20_v1", classes=10)
    net.initialize()
    net(mx.nd.array(x[:1]))
    saved = mx.nd.load(str(model / "model-0000.params"))
    by_suffix = {name.split(":", 1)[1].split("_", 1)[1]: value for name, value in saved.items()}
    for name, param in net.collect_params().items():
        param.set_data(by_suffix.pop(name.split("_", 1)[1]))
    assert not by_suffix
    batches = (mx.nd.array(x[i : i + 500]) for i in range(0, len(x), 500))
    return np.concatenate([net(batch).asnumpy() for batch in batches])


def _of_onnxruntime(path: str, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    batches = (x[i : i + 500] for i in range(0, len(x), 500))
    return np.concatenate([session.run(None, {name: batch})[0] for batch in batches])


def draw(_: common.Results) -> None:
    """Draw nothing: two figures say it."""


def section(results: common.Results) -> str:
    names = {
        "network": "the network in its own process",
        "fresh": "`Predictor` in a fresh process, gluoncv not importable",
        "onnx": "onnxruntime",
        "int8": "`Predictor` in int8, 512 training images for its ranges",
    }
    rows = []
    for name, text in names.items():
        runs = [run[name] for run in results.of(preset="nag")]
        rows.append(
            (
                text,
                f"{max(run['difference'] for run in runs):.1e}",
                ", ".join(str(run["same_class"]) for run in runs),
                common.spread([run["accuracy"] for run in runs], 2, 100),
            )
        )
    header = ["how", "largest difference", "same class, of 10,000", "test accuracy, %"]
    return report.markdown_table(header, rows)
