"""The suggestion of find_learning_rate beside the best rate of a searched grid.

Three networks, each with three optimizers. Run it by ``make bench-finder``, which puts
the table into docs/benchmarks/finder.md.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluoncv.model_zoo import get_model
from mxnet import gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits

sys.path.append(str(Path(__file__).resolve().parents[1] / "recipes"))
import word_language_model as language

_OPTIMIZERS = {
    "SGD, momentum 0.9": ("sgd", {"momentum": 0.9}),
    "Adam": ("adam", {}),
    "SGD": ("sgd", {}),
}


class Problem(NamedTuple):
    """What is trained: data, an Estimator of an optimizer, and for how many epochs."""

    name: str
    train_data: Any
    val_data: Any
    estimator: Callable[[int, str, dict[str, Any]], gs.Estimator]
    epochs: int
    handlers: Callable[[], list[Any]] = list
    batch_axis: int = 0
    seeds: int = 2
    optimizers: tuple[str, ...] = tuple(_OPTIMIZERS)

    def found(self, optimizer: str, arguments: dict[str, Any]) -> tuple[gs.LearningRateTest, float]:
        """Return the result of the test, and its seconds."""
        estimator = self.estimator(0, optimizer, arguments)
        begin = time.perf_counter()
        result = gs.find_learning_rate(
            estimator,
            self.train_data,
            event_handlers=self.handlers(),
            batch_axis=self.batch_axis,
        )
        return result, time.perf_counter() - begin

    def trained(self, rate: float, optimizer: str, arguments: dict[str, Any]) -> float:
        """Return the mean validation loss of runs whose rate falls from this one to 0."""
        return float(np.mean([self._run(s, rate, optimizer, arguments) for s in range(self.seeds)]))

    def _run(self, seed: int, rate: float, optimizer: str, arguments: dict[str, Any]) -> float:
        estimator = self.estimator(seed, optimizer, arguments)
        falling = gs.ScheduleHandler("learning_rate", gs.schedules.linear(rate, 0.0))
        try:
            fit = estimator.fit(
                self.train_data,
                self.val_data,
                epochs=self.epochs,
                batch_axis=self.batch_axis,
                event_handlers=[*self.handlers(), falling, gs.NaNGuardHandler()],
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

    def estimator(seed: int, optimizer: str, arguments: dict[str, Any]) -> gs.Estimator:
        gs.seed_everything(seed)
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

    def estimator(seed: int, optimizer: str, arguments: dict[str, Any]) -> gs.Estimator:
        gs.seed_everything(seed)
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


class Row(NamedTuple):
    """What came of a problem with an optimizer."""

    problem: str
    optimizer: str
    suggestion: float
    seconds: float
    losses: dict[float, float]
    own: float

    @property
    def best(self) -> float:
        return min(self.losses, key=lambda rate: self.losses[rate])


def searched(problem: Problem, name: str, optimizer: str, arguments: dict[str, Any]) -> Row:
    """Return the suggestion beside the best of a grid, widened until the best is inside of it."""
    test, seconds = problem.found(optimizer, arguments)
    assert test.suggestion is not None, test
    middle = round(math.log2(test.suggestion))
    losses: dict[float, float] = {}
    exponents = list(range(middle - 2, middle + 3))
    while exponents:
        for exponent in exponents:
            losses[2.0**exponent] = problem.trained(2.0**exponent, optimizer, arguments)
            print(problem.name, name, 2.0**exponent, losses[2.0**exponent], flush=True)
        best = math.log2(min(losses, key=lambda rate: losses[rate]))
        low, high = math.log2(min(losses)), math.log2(max(losses))
        # Two more on the side on which the best is the last but one, or the last.
        exponents = [low - 1, low - 2] if best < low + 2 else []
        exponents += [high + 1, high + 2] if best > high - 2 else []
    own = problem.trained(test.suggestion, optimizer, arguments)
    return Row(problem.name, name, test.suggestion, seconds, losses, own)


def section(rows: list[Row]) -> str:
    header = [
        "network", "optimizer", "suggestion", "best of the grid", "suggestion / best",
        "validation loss with the suggestion", "with the best of the grid", "seconds of the test",
    ]  # fmt: skip
    cells = [
        (
            row.problem,
            row.optimizer,
            f"{row.suggestion:.2g}",
            f"{row.best:.2g}",
            f"{row.suggestion / row.best:.2g}",
            f"{row.own:.3f}",
            f"{row.losses[row.best]:.3f}",
            f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    return f"""\
Each rate is the first one of a run in which it falls linearly to 0 (mean of two seeds, one for
ResNet-20). The grid has powers of 2, until two on either side of the best are worse; the best has
the least validation loss at the end. The MLP (64-128-64-10) and the ResNet-20 of gluoncv (images of
16 x 16) learn 1,400 of scikit-learn's digits in batches of 64 for 10 epochs, 220 batches; the LSTM
(64 units, its gradient clipped to a norm of 0.25) is that of `recipes/word_language_model.py`, for
3 epochs, 300 batches. The test takes 100 batches at most.
{report.provenance("bench-finder")}

{report.markdown_table(header, cells)}"""


def main() -> None:
    options = report.parser(__doc__, rounds=1).parse_args()
    problems = [
        of_digits("MLP", 8, 10, mlp),
        of_text(),
        # It takes most of the time.
        of_digits("ResNet-20", 16, 10, resnet)._replace(
            seeds=1, optimizers=("SGD, momentum 0.9", "Adam")
        ),
    ]
    rows = [
        searched(problem, name, *_OPTIMIZERS[name])
        for problem in problems
        for name in problem.optimizers
    ]
    report.publish("bench-finder", section(rows), options.out)


if __name__ == "__main__":
    main()
