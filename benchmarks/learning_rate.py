"""The suggestion of find_learning_rate beside the best rate of a searched grid.

Three networks, each with SGD and Adam: see ``section``. Run it by ``make bench-learning_rate``, which puts
the table into docs/benchmarks.md.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
import word_language_model as language
from gluoncv.model_zoo import get_model
from mxnet import gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

_OPTIMIZERS = {"SGD, momentum 0.9": ("sgd", {"momentum": 0.9}), "Adam": ("adam", {})}


class Problem(NamedTuple):
    """What is trained: data, an Estimator of an optimizer, and for how many epochs."""

    name: str
    train_data: Any
    val_data: Any
    estimator: Callable[[str, dict[str, Any]], gs.Estimator]
    epochs: int
    handlers: Callable[[], list[Any]] = list
    batch_axis: int = 0

    def found(self, optimizer: str, arguments: dict[str, Any]) -> tuple[gs.LearningRateTest, float]:
        """Return the result of the test, and its seconds."""
        estimator = self.estimator(optimizer, arguments)
        begin = time.perf_counter()
        result = gs.find_learning_rate(
            estimator,
            self.train_data,
            event_handlers=self.handlers(),
            batch_axis=self.batch_axis,
        )
        return result, time.perf_counter() - begin

    def trained(self, rate: float, optimizer: str, arguments: dict[str, Any]) -> float:
        """Return the validation loss after a run at this rate; infinity if it was NaN."""
        estimator = self.estimator(optimizer, {"learning_rate": rate, **arguments})
        try:
            fit = estimator.fit(
                self.train_data,
                self.val_data,
                epochs=self.epochs,
                batch_axis=self.batch_axis,
                event_handlers=[*self.handlers(), gs.NaNGuardHandler()],
                verbose=0,
            )
        except FloatingPointError:
            return math.inf
        loss = fit.history.last("validation loss")
        return loss if math.isfinite(loss) else math.inf


def digits(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of the digits, enlarged to `size`, and their numbers."""
    x, y = load_digits(return_X_y=True)
    images = (x / 16).reshape(-1, 1, 8, 8).astype("float32")
    return images.repeat(size // 8, 2).repeat(size // 8, 3), y.astype("float32")


def of_digits(name: str, size: int, epochs: int, make: Callable[[], nn.HybridBlock]) -> Problem:
    x, y = digits(size)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    train = gs.data.ArrayLoader(x[:1400], y[:1400], batch_size=64, shuffle=True, seed=0)
    val = gs.data.ArrayLoader(x[1400:], y[1400:], batch_size=397)

    def estimator(optimizer: str, arguments: dict[str, Any]) -> gs.Estimator:
        gs.seed_everything(0)
        net = make()
        net.initialize(mx.init.Xavier())
        net.hybridize()
        trainer = gs.SVRGTrainer(net.collect_params(), optimizer, dict(arguments))
        return gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)

    return Problem(name, train, val, estimator, epochs)


def mlp() -> nn.HybridBlock:
    net = nn.HybridSequential()
    net.add(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10))
    return net


def resnet() -> nn.HybridBlock:
    return get_model("cifar_resnet20_v1", classes=10)


def of_text() -> Problem:
    def batches(words: int, seed: int) -> list[Any]:
        return language.batches_of(language.Writer(seed).write(words).words, 20, 20)

    def estimator(optimizer: str, arguments: dict[str, Any]) -> gs.Estimator:
        gs.seed_everything(0)
        net = language.LanguageModel(64, 0.2)
        net.initialize(mx.init.Xavier())
        trainer = gs.SVRGTrainer(net.collect_params(), optimizer, dict(arguments))
        return gs.Estimator(
            net,
            gluon.loss.SoftmaxCELoss(axis=2, batch_axis=1),
            train_metrics=mx.metric.Loss("loss"),
            trainer=trainer,
            batch_processor=language.TruncatedBPTT(),
        )

    return Problem(
        "LSTM on generated text",
        batches(40_000, 1),
        batches(8_000, 2),
        estimator,
        3,
        lambda: [gs.GradientUpdateHandler(clip_norm=0.25)],
        batch_axis=1,
    )
