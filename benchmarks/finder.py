"""The suggestion of find_learning_rate beside the best rate of a searched grid.

Sixteen problems on which its rule was chosen, and four others. Run it by ``make bench-finder``,
which puts the table into docs/benchmarks/finder.md and draws docs/images/bench_finder.png. The
losses of the grids, which do not depend on the finder, are kept in benchmarks/results/finder.json;
without this file the search is repeated.
"""

from __future__ import annotations

import json
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
from matplotlib.figure import Figure
from mxnet import gluon
from mxnet.gluon import nn
from sklearn.datasets import load_digits, make_classification, make_friedman1

sys.path.append(str(Path(__file__).resolve().parents[1] / "recipes"))
import word_language_model as language

_ROOT = Path(__file__).resolve().parents[1]
_GRIDS = _ROOT / "benchmarks" / "results" / "finder.json"
_PICTURE = _ROOT / "docs" / "images" / "bench_finder.png"

_MOMENTUM, _ADAM, _SGD = ("sgd", {"momentum": 0.9}), ("adam", {}), ("sgd", {})


class Problem(NamedTuple):
    """What is trained: data, an Estimator of an optimizer, and for how many epochs."""

    train_data: Any
    val_data: Any
    estimator: Callable[[int, str, dict[str, Any]], gs.Estimator]
    epochs: int
    handlers: Callable[[], list[Any]] = list
    batch_axis: int = 0
    seeds: int = 2

    def found(self, optimizer: str, arguments: dict[str, Any]) -> tuple[gs.LearningRateTest, float]:
        """Return what the finder has found, and its seconds."""
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


def classes() -> tuple[np.ndarray, np.ndarray]:
    """Return 8,000 samples of 40 features and eight classes, of which 5 % are wrong."""
    x, y = make_classification(
        8000, 40, n_informative=15, n_classes=8, class_sep=1.2, flip_y=0.05, random_state=1
    )
    return x.astype("float32"), y.astype("float32")


def curve() -> tuple[np.ndarray, np.ndarray]:
    """Return 5,000 samples of 20 features, and the noisy outputs of a random network."""
    random = np.random.default_rng(3)
    x = random.normal(size=(5000, 20)).astype("float32")
    weights = random.normal(size=(20, 8))
    y = np.tanh(x @ weights / 3) @ random.normal(size=8) + 0.1 * random.normal(size=5000)
    return x, y.astype("float32").reshape(-1, 1)


def of_arrays(
    data: tuple[np.ndarray, np.ndarray],
    make: Callable[[], nn.HybridBlock],
    batch_size: int = 64,
    epochs: int = 10,
    training: int = 1400,
    loss: gluon.loss.Loss | None = None,
) -> Problem:
    x, y = data
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    n = training
    train = gs.data.ArrayLoader(x[:n], y[:n], batch_size=batch_size, shuffle=True, seed=0)
    val = gs.data.ArrayLoader(x[n:], y[n:], batch_size=397)

    def estimator(seed: int, optimizer: str, arguments: dict[str, Any]) -> gs.Estimator:
        gs.seed_everything(seed)
        net = make()
        net.initialize(mx.init.Xavier())
        net.hybridize()
        trainer = gs.SVRGTrainer(net.collect_params(), optimizer, dict(arguments))
        metric = mx.metric.Loss("loss")
        of_samples = loss or gluon.loss.SoftmaxCELoss()
        return gs.Estimator(net, of_samples, train_metrics=metric, trainer=trainer)

    return Problem(train, val, estimator, epochs)


def dense(*units: int, activation: str = "relu", dropout: float = 0.0) -> nn.HybridBlock:
    """Return a network of dense layers, with dropout after the first of them."""
    first, *others, last = units if len(units) > 1 else (None, *units)
    net = nn.HybridSequential()
    if first:
        net.add(nn.Dense(first, activation=activation))
    if dropout:
        net.add(nn.Dropout(dropout))
    for number in others:
        net.add(nn.Dense(number, activation=activation))
    net.add(nn.Dense(last))
    return net


def cnn(*channels: int, has_norm: bool, units: tuple[int, ...] = ()) -> nn.HybridBlock:
    net = nn.HybridSequential()
    for number in channels:
        net.add(nn.Conv2D(number, 3, padding=1, activation=None if has_norm else "relu"))
        if has_norm:
            net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(2))
    for number in units:
        net.add(nn.Dense(number, activation="relu"))
    net.add(nn.Dense(10))
    return net


def of_text(
    units: int = 64,
    dropout: float = 0.2,
    rows: int = 20,
    steps: int = 20,
    words: int = 40_000,
    epochs: int = 3,
    clip_norm: float | None = 0.25,
    seeds: tuple[int, int] = (1, 2),
) -> Problem:
    def batches(words: int, seed: int) -> list[Any]:
        return language.batches_of(language.Writer(seed).write(words).words, rows, steps)

    def estimator(seed: int, optimizer: str, arguments: dict[str, Any]) -> gs.Estimator:
        gs.seed_everything(seed)
        net = language.LanguageModel(units, dropout)
        net.initialize(mx.init.Xavier())
        trainer = gs.SVRGTrainer(net.collect_params(), optimizer, dict(arguments))
        return gs.Estimator(
            net,
            gluon.loss.SoftmaxCELoss(axis=2, batch_axis=1),
            train_metrics=mx.metric.Loss("loss"),
            trainer=trainer,
            batch_processor=language.TruncatedBPTT(),
        )

    def handlers() -> list[Any]:
        return [gs.GradientUpdateHandler(clip_norm=clip_norm)] if clip_norm else []

    train, val = batches(words, seeds[0]), batches(8_000, seeds[1])
    return Problem(train, val, estimator, epochs, handlers, batch_axis=1)


class Case(NamedTuple):
    """A problem with an optimizer."""

    network: str
    optimizer: str
    problem: Problem
    arguments: tuple[str, dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.network}; {self.optimizer}"


def usual() -> list[Case]:
    """Return the three networks that the page is about; the rule was chosen on them, too."""
    mlp = of_arrays(digits(8), lambda: dense(128, 64, 10))
    text = of_text()
    # It takes most of the time: one seed.
    resnet = of_arrays(digits(16), lambda: get_model("cifar_resnet20_v1", classes=10))
    resnet = resnet._replace(seeds=1)
    return [
        Case("MLP", "SGD, momentum 0.9", mlp, _MOMENTUM),
        Case("MLP", "Adam", mlp, _ADAM),
        Case("MLP", "SGD", mlp, _SGD),
        Case("LSTM", "SGD, momentum 0.9", text, _MOMENTUM),
        Case("LSTM", "Adam", text, _ADAM),
        Case("LSTM", "SGD", text, _SGD),
        Case("ResNet-20", "SGD, momentum 0.9", resnet, _MOMENTUM),
        Case("ResNet-20", "Adam", resnet, _ADAM),
    ]


def other() -> list[Case]:
    """Return cases that differ from those in network, data, batch size and weight decay."""
    wide = of_arrays(classes(), lambda: dense(512, 512, 8, dropout=0.2), 32, 3, 6240)
    large = of_arrays(classes(), lambda: dense(256, 256, 8), 256, 12, 6240)
    tanh = of_arrays(
        curve(), lambda: dense(64, 64, 1, activation="tanh"), 50, 4, 3900, gluon.loss.L2Loss()
    )
    small = of_arrays(curve(), lambda: dense(64, 32, 1), 16, 2, 3900, gluon.loss.L2Loss())
    norm = of_arrays(digits(8), lambda: cnn(16, 32, has_norm=True), 128, 12, 1401)
    plain = of_arrays(digits(8), lambda: cnn(8, 16, has_norm=False, units=(32,)), 16, 4, 1401)
    lstm = of_text(32, 0.0, 10, 10, 20_000, 1, None, (11, 12))
    softmax = of_arrays(digits(8), lambda: dense(10), 32, 8, 1401)
    return [
        Case(
            "softmax regression",
            "SGD, momentum 0.9",
            softmax,
            ("sgd", {"momentum": 0.9, "wd": 1e-3}),
        ),
        Case(
            "MLP, 512 units, batches of 32", "NAG 0.9", wide, ("nag", {"momentum": 0.9, "wd": 1e-4})
        ),
        Case("MLP, batches of 256", "Adam", large, _ADAM),
        Case("MLP, regression", "SGD", tanh, _SGD),
        Case("MLP, regression, batches of 16", "Adam", small, ("adam", {"wd": 1e-4})),
        Case("CNN, batch norm, batches of 128", "SGD", norm, ("sgd", {"wd": 5e-4})),
        Case("CNN, batches of 16", "SGD, momentum 0.9", plain, _MOMENTUM),
        Case("LSTM, 32 units, no clipping", "Adam", lstm, _ADAM),
    ]


def tried_once() -> list[Case]:
    """Return cases that were run once, after the rule was fixed."""
    friedman = make_friedman1(4000, 10, noise=1.0, random_state=2)
    x, y = friedman[0].astype("float32"), friedman[1].astype("float32").reshape(-1, 1)
    l2 = gluon.loss.L2Loss()
    curve10 = of_arrays((x, y), lambda: dense(100, 50, 1, dropout=0.1), 40, 4, 3200, l2)
    tanh = of_arrays(classes(), lambda: dense(200, 100, 8, activation="tanh"), 128, 6, 6240)
    norm = of_arrays(digits(16), lambda: cnn(12, 24, has_norm=True, units=(48,)), 32, 5)
    lstm = of_text(48, 0.1, 16, 12, 30_000, 2, 1.0, (21, 22))
    return [
        Case("CNN, batch norm, batches of 32", "Adam", norm, ("adam", {"wd": 1e-4})),
        Case("MLP, tanh, batches of 128", "NAG 0.9", tanh, ("nag", {"momentum": 0.9})),
        Case("MLP, regression, dropout", "AdamW", curve10, ("adamw", {"wd": 0.01})),
        Case("LSTM, 48 units", "SGD, momentum 0.5", lstm, ("sgd", {"momentum": 0.5})),
    ]


class Row(NamedTuple):
    """What came of a case."""

    case: Case
    suggestion: float
    trials: int
    seconds: float
    losses: dict[float, float]
    own: float

    @property
    def best(self) -> float:
        return min(self.losses, key=lambda rate: self.losses[rate])

    @property
    def ratio(self) -> float:
        return self.suggestion / self.best


def searched(case: Case, kept: dict[str, dict[str, float]]) -> Row:
    """Return the suggestion beside the best of a grid, widened until the best is inside of it."""
    test, seconds = case.problem.found(*case.arguments)
    assert test.suggestion is not None, test
    print(case.name, test.suggestion, test.trials, f"{seconds:.1f} s", flush=True)
    grid = kept.setdefault(case.name, {})

    def loss_of(rate: float) -> float:
        if repr(rate) not in grid:
            grid[repr(rate)] = case.problem.trained(rate, *case.arguments)
            _GRIDS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(case.name, rate, grid[repr(rate)], flush=True)
        return grid[repr(rate)]

    middle = round(math.log2(test.suggestion))
    losses: dict[float, float] = {}
    exponents = list(range(middle - 2, middle + 3))
    while exponents:
        losses |= {2.0**exponent: loss_of(2.0**exponent) for exponent in exponents}
        best = math.log2(min(losses, key=lambda rate: losses[rate]))
        low, high = math.log2(min(losses)), math.log2(max(losses))
        # Two more on the side on which the best is the last but one, or the last.
        exponents = [low - 1, low - 2] if best < low + 2 else []
        exponents += [high + 1, high + 2] if best > high - 2 else []
    own = loss_of(test.suggestion)
    return Row(case, test.suggestion, len(test.trials), seconds, losses, own)


def table(rows: list[Row]) -> str:
    header = [
        "network", "optimizer", "suggestion", "best of the grid", "suggestion / best",
        "validation loss with the suggestion", "with the best of the grid", "trials", "seconds",
    ]  # fmt: skip
    cells = [
        (
            row.case.network,
            row.case.optimizer,
            f"{row.suggestion:.2g}",
            f"{row.best:.2g}",
            f"{row.ratio:.2g}",
            f"{row.own:.3f}",
            f"{row.losses[row.best]:.3f}",
            row.trials,
            f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    return report.markdown_table(header, cells)


def section(chosen: list[Row], others: list[Row], once: list[Row]) -> str:
    rows = [*chosen, *others, *once]
    inside = sum(1 / 3 <= row.ratio <= 3 for row in rows)
    ratios = [row.ratio for row in rows]
    mean = np.exp(np.mean(np.log(ratios)))
    return f"""\
{inside} of {len(rows)} suggestions are within a factor of 3 of the best rate of the grid: they are
{min(ratios):.2g} to {max(ratios):.2g} times the best rate, {mean:.2g} times in the geometric mean.

![Validation loss over the learning rate, with the suggestion](../images/bench_finder.png)

The validation loss at the end of a run over its first learning rate, for each network and
optimizer; the line is the suggestion, the grey band a factor of 3 around the best rate.

Each rate is the first one of a run in which it falls linearly to 0 (mean of two seeds, one for
ResNet-20). The grid has powers of 2, until two on either side of the best are worse; the best has
the least validation loss at the end. The MLP (64-128-64-10) and the ResNet-20 of gluoncv (images of
16 x 16) learn 1,400 of scikit-learn's digits in batches of 64 for 10 epochs, 220 batches; the LSTM
(64 units, its gradient clipped to a norm of 0.25) is that of `recipes/word_language_model.py`, for
3 epochs, 300 batches:

{table(chosen)}

These have other networks, data, batch sizes and weight decays (`benchmarks/finder.py`), and runs of
132 to 585 batches. The rule and its constants were chosen on these and on the problems above:

{table(others)}

These were run once, after that:

{table(once)}

{report.provenance("bench-finder")}"""


def draw(rows: list[Row]) -> None:
    figure = Figure(figsize=(12, 13.5), layout="constrained")
    for row, axes in zip(rows, figure.subplots(5, 4).ravel(), strict=True):
        rates = sorted(rate for rate in row.losses if math.isfinite(row.losses[rate]))
        losses = [row.losses[rate] for rate in rates]
        least = min(losses)
        axes.axvspan(row.best / 3, row.best * 3, color="0.9")
        axes.plot(rates, losses, "o-", markersize=4)
        axes.axvline(row.suggestion, color="C1", linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0.95 * least, min(max(losses), 3 * least) * 1.02)
        axes.set_title(f"{row.case.network}\n{row.case.optimizer}", fontsize=9)
        axes.tick_params(labelsize=8)
    figure.supxlabel("learning rate")
    figure.supylabel("validation loss")
    figure.savefig(_PICTURE, dpi=90)


def main() -> None:
    options = report.parser(__doc__, rounds=1).parse_args()
    kept = json.loads(_GRIDS.read_text(encoding="utf-8")) if _GRIDS.exists() else {}
    # ResNet-20, which takes most of the time, comes last.
    once = [searched(case, kept) for case in tried_once()]
    others = [searched(case, kept) for case in other()]
    chosen = [searched(case, kept) for case in usual()]
    draw([*chosen, *others, *once])
    report.publish("bench-finder", section(chosen, others, once), options.out)


if __name__ == "__main__":
    main()
