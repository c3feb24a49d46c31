"""What the parts of the evidence share: data, networks, results that are kept line by line."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluon_svrg.data.transforms import Compose, Normalize, RandomCrop, RandomFlipLeftRight, ToFloat
from gluon_svrg.reporting.curves import use_colours
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from mxnet.gluon import nn

use_colours()  # in all pictures of the evidence
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
# Of Fashion-MNIST's training set, pixels in [0, 1].
MEAN, STD = [0.2860], [0.3530]
BATCH_SIZE = 128
Split = tuple[np.ndarray, np.ndarray]
Row = dict[str, Any]


def fashion_mnist(size: int = 28, samples: int | None = None) -> tuple[Split, Split]:
    """Return training and test set: N x 1 x size x size, uint8; of the first only `samples`."""
    pad = (size - 28) // 2
    (images, labels), test = (
        (np.pad(x, ((0, 0), (pad, pad), (pad, pad)))[:, None], y.astype("float32"))
        for x, y in gs.data.load_fashion_mnist()
    )
    return (images[:samples], labels[:samples]), test


def loader_of(
    split: Split, batch_size: int, seed: int | None = None, augments: bool = False
) -> Any:
    """Return a loader of normalised float32 batches, shuffled where there is a seed."""
    steps = [RandomCrop(pad=2), RandomFlipLeftRight()] if augments else []
    transform = Compose(*steps, ToFloat(), Normalize(MEAN, STD))
    arrays: tuple[Any, ...] = split
    if not augments:  # once and for all
        transform, arrays = None, tuple(a.asnumpy() for a in _normalised(split))
    return gs.data.ArrayLoader(
        *arrays, batch_size=batch_size, shuffle=seed is not None, seed=seed, transform=transform
    )


def _normalised(split: Split) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    images = (split[0].astype("float32") / 255 - MEAN[0]) / STD[0]
    return mx.nd.array(images), mx.nd.array(split[1])


def make_net(name: str) -> gluon.HybridBlock:
    """Return one of the four networks, initialised and hybridized."""
    if name == "resnet20":
        net = get_model("cifar_resnet20_v1", classes=10)
    else:
        net = nn.HybridSequential()
    if name == "mlp":
        net.add(nn.Dense(256, activation="relu"), nn.Dropout(0.2))
        net.add(nn.Dense(128, activation="relu"), nn.Dense(10))
    elif name == "lenet":
        for channels in (20, 50):
            net.add(nn.Conv2D(channels, 5, activation="relu"), nn.MaxPool2D(2, 2))
        net.add(nn.Dense(500, activation="relu"), nn.Dense(10))
    elif name == "softmax":
        net.add(nn.Dense(10))
    net.initialize(mx.init.Xavier(magnitude=2))
    net.hybridize(static_alloc=True)
    return net


def backward_of(net: gluon.Block) -> Callable[[Any], mx.nd.NDArray]:
    loss_function = gluon.loss.SoftmaxCELoss()

    def backward(batch: Any) -> mx.nd.NDArray:
        with autograd.record():
            loss = loss_function(net(batch[0]), batch[1])
        loss.backward()
        return loss

    return backward


def loss_and_accuracy(net: gluon.Block, split: Split) -> tuple[float, float]:
    loss_function = gluon.loss.SoftmaxCELoss()
    losses, hits = 0.0, 0
    for images, labels in loader_of(split, 1000):
        scores = net(images)
        losses += loss_function(scores, labels).sum().asscalar()
        hits += int((scores.argmax(axis=1) == labels).sum().asscalar())
    return losses / len(split[1]), hits / len(split[1])


class Results:
    """The lines of one part: one a job, written as it ends."""

    def __init__(self, part: str) -> None:
        self.path = RESULTS / f"{part}.jsonl"
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        self.rows: list[Row] = [json.loads(line) for line in text.splitlines()]

    def run(self, jobs: Iterable[Row], work: Callable[[Row], Row]) -> None:
        """Do the jobs that have no line yet."""
        for job in jobs:
            if any(row["job"] == job for row in self.rows):
                continue
            row = {"job": job, "result": work(job), "made": made()}
            self.rows.append(row)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(self.path.stem, json.dumps(job), flush=True)

    def of(self, **wanted: Any) -> list[Row]:
        """Return the results of the jobs that have these settings."""
        return [
            row["result"]
            for row in self.rows
            if all(row["job"].get(key) == value for key, value in wanted.items())
        ]

    def provenance(self) -> str:
        lines = sorted({row["made"] for row in self.rows})
        return "; ".join(lines)


def made() -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("mxnet", "numpy")]
    python = f"Python {platform.python_version()}"
    return f"{report.machine()}, {python}, {', '.join(versions)}, {datetime.date.today()}"


def spread(values: list[float], digits: int = 2, scale: float = 1.0) -> str:
    """Return mean and standard deviation as text."""
    scaled = [scale * value for value in values]
    if len(scaled) == 1:
        return f"{scaled[0]:.{digits}f}"
    return f"{mean(scaled):.{digits}f} ± {stdev(scaled):.{digits}f}"


def product(**options: list[Any]) -> Iterator[Row]:
    """Yield every combination as a dict; the last option varies fastest."""
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))
