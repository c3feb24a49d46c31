"""Time a training step of a small network in our Estimator, in MXNet's, and in a bare loop.

All in one process; the rounds are interleaved. Run it by ``make bench-loop``, which puts the
table into docs/benchmarks/loop.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from mxnet import autograd, gluon
from mxnet.gluon.contrib import estimator as mx_estimator
from optimizer import timed

BATCH_SIZE = 128
FEATURES = HIDDEN = 64
CLASSES = 10

BARE = "bare Gluon loop, list of batches"
BARE_NO_METRIC = "bare Gluon loop, list of batches, no metric"
BARE_MODE = "bare Gluon loop, list of batches, no metric, MXNet's NumPy mode"
OURS = "**gluon_svrg.Estimator**, ArrayLoader"
OURS_MODE = "gluon_svrg.Estimator, ArrayLoader, MXNet's NumPy mode"
OURS_SVRG = "gluon_svrg.Estimator with SVRGHandler, ArrayLoader"
OURS_SVRG_MODE = "gluon_svrg.Estimator with SVRGHandler, ArrayLoader, MXNet's NumPy mode"
OURS_LIST = "gluon_svrg.Estimator, list of batches"
OURS_DATA_LOADER = "gluon_svrg.Estimator, DataLoader of NDArrays"
OURS_NUMPY = "gluon_svrg.Estimator, DataLoader of NumPy arrays"
MXNET = "MXNet's Estimator, DataLoader of NDArrays"
MXNET_NUMPY = "MXNet's Estimator, DataLoader of NumPy arrays"
OF_IMAGES = "convolutional network: "
# Which time is divided by which, and the bound of the quotient.
RATIOS = [
    (OURS, BARE, "at most 1.3"),
    (MXNET, OURS, "at least 5"),
    (MXNET_NUMPY, OURS, ""),
    (BARE_MODE, BARE_NO_METRIC, ""),
    (OURS_MODE, OURS, "at most 1.05"),
    (OURS_SVRG_MODE, OURS_SVRG, "at most 1.05"),
    (OF_IMAGES + OURS_MODE, OF_IMAGES + OURS, "at most 1.05"),
    (OF_IMAGES + OURS_SVRG_MODE, OF_IMAGES + OURS_SVRG, "at most 1.05"),
]


class Task(NamedTuple):
    """What a loop trains."""

    net: gluon.HybridBlock
    loss: gluon.loss.Loss
    trainer: gluon.Trainer


def arrays(batches: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    samples = BATCH_SIZE * batches
    x = random.standard_normal((samples, FEATURES), "float32")
    return x, random.integers(0, CLASSES, samples).astype("float32")


def sliced(
    x: np.ndarray, y: np.ndarray, array: Callable[..., mx.nd.NDArray] = mx.nd.array
) -> list[tuple[mx.nd.NDArray, mx.nd.NDArray]]:
    return [
        (array(x[begin : begin + BATCH_SIZE]), array(y[begin : begin + BATCH_SIZE]))
        for begin in range(0, len(x), BATCH_SIZE)
    ]


def data_loader(
    x: np.ndarray | mx.nd.NDArray, y: np.ndarray | mx.nd.NDArray
) -> gluon.data.DataLoader:
    return gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), BATCH_SIZE, shuffle=True)


def perceptron() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(HIDDEN, activation="relu", in_units=FEATURES))
    net.add(gluon.nn.Dense(CLASSES, in_units=HIDDEN))
    return net


def convolutional() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    for channels, inputs in ((16, 1), (32, 16)):
        net.add(gluon.nn.Conv2D(channels, 3, in_channels=inputs, activation="relu"))
        net.add(gluon.nn.BatchNorm(in_channels=channels))
        net.add(gluon.nn.MaxPool2D())
    net.add(gluon.nn.Flatten())
    net.add(gluon.nn.Dense(CLASSES, in_units=32 * 5 * 5))
    return net


def new_task(net: gluon.HybridBlock) -> Task:
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True)
    return Task(net, loss, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}))


def bare_loop(data: list, metric: mx.metric.EvalMetric | None) -> Callable[[], None]:
    task = new_task(perceptron())

    def epoch() -> None:
        if metric is not None:
            metric.reset()
        for x, y in data:
            with autograd.record():
                pred = task.net(x)
                loss = task.loss(pred, y)
            loss.backward()
            task.trainer.step(len(x))
            if metric is not None:
                metric.update(y, pred)

    return epoch


def estimator_loop(
    kind: Any,
    data: Any,
    svrg: bool = False,
    new_net: Callable[[], gluon.HybridBlock] = perceptron,
) -> Callable[[], None]:
    task = new_task(new_net())
    trainer = task.trainer
    if svrg:
        trainer = gs.SVRGTrainer(task.net.collect_params(), "sgd", {"learning_rate": 0.01})
    estimator = kind(task.net, task.loss, train_metrics=mx.metric.Accuracy(), trainer=trainer)
    estimator.logger.handlers.clear()
    handlers = [gs.SVRGHandler()] if svrg else []
    return lambda: estimator.fit(data, epochs=1, event_handlers=handlers)


def in_numpy_mode(make: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Return a loop that is made, and runs, in MXNet's NumPy mode, and leaves it."""
    mx.npx.set_np()
    epoch = make()
    mx.npx.reset_np()

    def run() -> None:
        mx.npx.set_np()
        epoch()
        mx.nd.waitall()
        mx.npx.reset_np()

    return run


def contestants(batches: int) -> dict[str, Callable[[], None]]:
    x, y = arrays(batches)
    data = sliced(x, y)
    loader = gs.data.ArrayLoader(x, y, batch_size=BATCH_SIZE, shuffle=True)
    of_mode = gs.data.ArrayLoader(x, y, batch_size=BATCH_SIZE, shuffle=True)
    of_numpy, of_ndarrays = data_loader(x, y), data_loader(mx.nd.array(x), mx.nd.array(y))
    return {
        BARE_NO_METRIC: bare_loop(data, None),
        BARE_MODE: in_numpy_mode(lambda: bare_loop(sliced(x, y, mx.np.array), None)),
        BARE: bare_loop(data, mx.metric.Accuracy()),
        OURS: estimator_loop(gs.Estimator, loader),
        OURS_MODE: in_numpy_mode(lambda: estimator_loop(gs.Estimator, of_mode)),
        OURS_SVRG: estimator_loop(gs.Estimator, loader, svrg=True),
        OURS_SVRG_MODE: in_numpy_mode(lambda: estimator_loop(gs.Estimator, of_mode, svrg=True)),
        OURS_LIST: estimator_loop(gs.Estimator, data),
        OURS_DATA_LOADER: estimator_loop(gs.Estimator, of_ndarrays),
        OURS_NUMPY: estimator_loop(gs.Estimator, of_numpy),
        MXNET: estimator_loop(mx_estimator.Estimator, of_ndarrays),
        MXNET_NUMPY: estimator_loop(mx_estimator.Estimator, of_numpy),
    }


def contestants_of_images(batches: int) -> dict[str, Callable[[], None]]:
    """Return the same Estimators around a network whose operators take most of a step."""
    images = np.random.default_rng(0).standard_normal((BATCH_SIZE * batches, 1, 28, 28), "float32")
    labels = arrays(batches)[1]

    def loop(svrg: bool) -> Callable[[], None]:
        loader = gs.data.ArrayLoader(images, labels, batch_size=BATCH_SIZE, shuffle=True)
        return estimator_loop(gs.Estimator, loader, svrg, convolutional)

    return {
        OF_IMAGES + OURS: loop(False),
        OF_IMAGES + OURS_MODE: in_numpy_mode(lambda: loop(False)),
        OF_IMAGES + OURS_SVRG: loop(True),
        OF_IMAGES + OURS_SVRG_MODE: in_numpy_mode(lambda: loop(True)),
    }


def section(seconds: dict[str, list[float]], batches: int, rounds: int) -> str:
    """Return the tables; `seconds` are those of a step."""
    medians = {name: report.median(values) for name, values in seconds.items()}
    rows = [
        (
            name,
            f"{1e6 * medians[name]:,.0f}",
            report.spread(values, 1e6, digits=0),
            f"{medians[name] / medians[BARE]:.2f}",
        )
        for name, values in seconds.items()
    ]
    header = ["loop", "median, us a step", "25 % to 75 %, us", "times the bare loop"]
    ratios = []
    for slow, fast, bound in RATIOS:
        quotients = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
        name = f"{slow} / {fast.removeprefix(OF_IMAGES)}".replace("*", "")
        text = f"{report.median(quotients):.2f} ({report.spread(quotients, digits=2)})"
        ratios.append((name, text, bound))
    return f"""\
Microseconds a training step, to `waitall`: {FEATURES}-{HIDDEN}-{CLASSES} perceptron, float32,
hybridized with its loss, SGD, batches of {BATCH_SIZE} from arrays in memory, an accuracy that sees
every batch. One epoch of {batches} batches a round, in an Estimator one call of `fit`; one process,
{rounds} interleaved rounds, after an epoch to warm up. The bare loop reads its batches from a list,
in order; ArrayLoader and DataLoader (without workers) shuffle. The convolutional network has two
layers of 3 x 3 filters (16 and 32) on images of 28 x 28, and {batches // 10} batches an epoch.
{report.provenance("bench-loop")}

{report.markdown_table(header, rows)}

The second table divides the times of each round, and has the median of the rounds.

{report.markdown_table(["quotient", "median (25 % to 75 %)", "bound"], ratios)}"""


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=41)
    command.add_argument("--batches", type=int, default=200, help="batches an epoch")
    command.add_argument("--quick", action="store_true", help="20 batches, two rounds")
    options = command.parse_args()
    if options.quick:
        options.batches, options.rounds = 20, 2
    return options


def main() -> None:
    options = parse()
    few = options.batches // 10
    loops = contestants(options.batches) | contestants_of_images(few)
    seconds = report.interleaved(
        {name: timed(epoch) for name, epoch in loops.items()}, options.rounds
    )
    steps = {name: few if name.startswith(OF_IMAGES) else options.batches for name in seconds}
    seconds = {name: [s / steps[name] for s in values] for name, values in seconds.items()}
    report.publish("bench-loop", section(seconds, options.batches, options.rounds), options.out)


if __name__ == "__main__":
    main()
