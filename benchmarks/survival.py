"""Time what it costs that a run can be killed, watched and read: checkpoints, guards, bars, logs.

All in one process; the rounds are interleaved. Run it by ``make bench-survival``, which puts the
tables into docs/benchmarks/survival.md.
"""

from __future__ import annotations

import argparse
import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluon_svrg.events import EventHandler
from gluoncv.model_zoo import get_model
from mxnet import gluon
from optimizer import timed

BATCH_SIZE = 128
CLASSES = 10
EVERY = 100  # batches from one checkpoint to the next
EPOCHS = 4
RESNET = "cifar_resnet20_v1, 3 x 32 x 32"
MLP = "perceptron 64-64-10"
# What the guards, bars and logs may add to a step, in percent.
BOUNDS = {RESNET: 3, MLP: 20}


class Terminal(io.StringIO):
    """A terminal that shows nothing."""

    def isatty(self) -> bool:
        return True


class CheckpointTimer(gs.CheckpointHandler):
    """Writes down how long each checkpoint takes, when the device has nothing left to do."""

    def __init__(self, directory: Path, every: int = EVERY) -> None:
        super().__init__(directory, every_n_epochs=None, every_n_batches=every, keep_last=2)
        self.seconds: list[float] = []

    def safe_point(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        position = estimator.position
        if position.batch_in_epoch and position.batch % self.every_n_batches == 0:
            mx.nd.waitall()
            begin = time.perf_counter()
            super().safe_point(estimator)
            self.seconds.append(time.perf_counter() - begin)


def new_net(name: str) -> gluon.HybridBlock:
    if name == RESNET:
        net = get_model("cifar_resnet20_v1", classes=CLASSES)
    else:
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Dense(64, activation="relu", in_units=64))
        net.add(gluon.nn.Dense(CLASSES, in_units=64))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    return net


def new_estimator(name: str) -> gs.Estimator:
    net = new_net(name)
    loss = gluon.loss.SoftmaxCELoss()
    loss.hybridize(static_alloc=True)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 1e-3, "momentum": 0.9})
    estimator = gs.Estimator(
        net,
        loss,
        train_metrics=[mx.metric.Accuracy(), mx.metric.Loss("loss")],
        trainer=trainer,
    )
    estimator.logger.handlers.clear()
    estimator.logger.addHandler(logging.NullHandler())
    return estimator


def data_of(name: str, batches: int) -> gs.data.ArrayLoader:
    random = np.random.default_rng(0)
    shape = (3, 32, 32) if name == RESNET else (64,)
    samples = BATCH_SIZE * batches
    x = random.standard_normal((samples, *shape), "float32")
    y = random.integers(0, CLASSES, samples).astype("float32")
    return gs.data.ArrayLoader(x, y, batch_size=BATCH_SIZE, shuffle=True, seed=0)


def watchers(folder: Path) -> list[EventHandler]:
    """Return all guards, bars and logs."""
    return [
        gs.NaNGuardHandler(),
        gs.TimeLimitHandler(1e9),
        gs.SignalHandler(),
        gs.EarlyStoppingHandler("training loss", patience=1000),
        gs.ProgressHandler(Terminal()),
        gs.HistoryFileHandler(folder / "log.csv", overwrite=True),
        gs.HistoryFileHandler(folder / "log.jsonl", overwrite=True),
    ]


class Silent(gluon.contrib.estimator.LoggingHandler):
    """In the place of the bar, which the Estimator would add."""

    def __init__(self) -> None:
        super().__init__(metrics=[])

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    train_begin = train_end = epoch_begin = epoch_end = batch_begin = batch_end = _nothing


def watched(name: str, batches: int, rounds: int, folder: Path) -> list[list[float]]:
    """Return the seconds a step without and with the watchers, round by round."""
    data = data_of(name, batches)

    def epoch(handlers: Callable[[], list]) -> Callable[[], float]:
        estimator = new_estimator(name)
        run = timed(lambda: estimator.fit(data, epochs=EPOCHS, event_handlers=handlers()))
        return lambda: run() / (EPOCHS * batches)

    contestants = {
        "without": epoch(lambda: [Silent()]),
        "with": epoch(lambda: watchers(folder)),
    }
    seconds = report.interleaved(contestants, rounds)
    return [seconds["without"], seconds["with"]]


@contextmanager
def checkpoints(svrg: bool, batches: int) -> Iterator[tuple[float, CheckpointTimer, Path]]:
    """Train a ResNet-20; yield the seconds of 100 batches, the timer, and the folder."""
    estimator = new_estimator(RESNET)
    data = data_of(RESNET, 50)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        timer = CheckpointTimer(Path(folder) / "checkpoints")
        handlers: list[EventHandler] = [timer, Silent()]
        if svrg:
            handlers.append(gs.SVRGHandler(gradient_table=False, progress_bar=False))
        begin = time.perf_counter()
        estimator.fit(data, batches=batches, event_handlers=handlers)
        mx.nd.waitall()
        total = time.perf_counter() - begin - sum(timer.seconds)
        yield total * EVERY / batches, timer, timer.directory


def checkpoint_rows(batches: int) -> list[tuple]:
    rows = []
    for name, svrg in (("SGD with momentum", False), ("SVRG, no table", True)):
        with checkpoints(svrg, batches) as (hundred, timer, folder):
            newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
            size = sum(path.stat().st_size for path in newest.iterdir())
            middle = report.median(timer.seconds)
            rows.append(
                (
                    name,
                    f"{size / 2**20:.1f}",
                    f"{1e3 * middle:.0f}",
                    report.spread(timer.seconds, 1e3, digits=0),
                    f"{hundred:.1f}",
                    f"{100 * middle / hundred:.2f} %",
                    "2 %",
                )
            )
    return rows


def watcher_rows(options: argparse.Namespace) -> list[tuple]:
    rows = []
    for name, batches in ((MLP, options.batches), (RESNET, options.resnet_batches)):
        rounds = options.rounds
        with tempfile.TemporaryDirectory(dir=".") as folder:
            without, with_ = watched(name, batches, rounds, Path(folder))
        ratios = [100 * (b / a - 1) for a, b in zip(without, with_, strict=True)]
        rows.append(
            (
                name,
                f"{1e6 * report.median(without):,.0f}",
                f"{1e6 * report.median(with_):,.0f}",
                f"{report.median(ratios):.1f} % ({report.spread(ratios)})",
                f"{BOUNDS[name]} %",
            )
        )
    return rows


def section(options: argparse.Namespace) -> str:
    written = report.markdown_table(
        [
            "run",
            "size, MiB",
            "median, ms",
            "25 % to 75 %, ms",
            f"{EVERY} batches, s",
            "share",
            "bound",
        ],
        checkpoint_rows(options.checkpoints * EVERY),
    )
    seen = report.markdown_table(
        ["network", "without, us a step", "with", "more (25 % to 75 %)", "bound"],
        watcher_rows(options),
    )
    return f"""**Checkpoints**: a `CheckpointHandler(every_n_batches={EVERY})` in a run of {RESNET},
batches of {BATCH_SIZE}, {options.checkpoints} checkpoints: from the moment when the device has
nothing left to do until the checkpoint is flushed to the disk and the older one removed.

{written}

**Guards, bars and logs**: `NaNGuardHandler`, `TimeLimitHandler`, `SignalHandler`,
`EarlyStoppingHandler`, a `ProgressHandler` on a terminal and two `HistoryFileHandler`s, beside the
same run with none of them; both have an accuracy and a loss over every batch. {EPOCHS} epochs of
{options.batches} and {options.resnet_batches} batches, {options.rounds} interleaved rounds; the
quotient is taken round by round. {report.provenance("bench-survival")}

{seen}"""


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=15)
    command.add_argument("--batches", type=int, default=500, help="batches of the perceptron")
    command.add_argument("--resnet-batches", type=int, default=10, help="batches of the ResNet")
    command.add_argument("--checkpoints", type=int, default=4, help="checkpoints of the ResNet")
    command.add_argument("--quick", action="store_true", help="few batches, two rounds")
    options = command.parse_args()
    if options.quick:
        options.batches, options.resnet_batches, options.rounds = 20, 2, 2
        options.checkpoints = 1
    return options


def main() -> None:
    options = parse()
    report.publish("bench-survival", section(options), options.out)


if __name__ == "__main__":
    main()
