"""Measure how cost and memory grow: with samples, batch size and snapshots, and at import.

Memory and imports are measured in processes of their own. Run it by ``make bench-growth``, which
puts the tables into docs/benchmarks/growth.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
import resnet
from gluon_svrg.events import EpochBegin, EpochEnd
from mxnet import gluon

FEATURES, CLASSES = 784, 10
TIMES = (1, 2, 4)
MEMORY = ((resnet.MODEL, resnet.BATCH_SIZE), ("resnet18_v1", 16))
# The handler's arguments; None: without a handler.
METHODS: dict[str, dict[str, Any] | None] = {
    "SGD": None,
    "SVRG, table": {"gradient_table": True},
    "SVRG, no table": {"gradient_table": False},
}
# What `import mxnet` needs on NumPy 1.26, and no more.
ALIASES = "import numpy; numpy.bool, numpy.object = bool, object"
# What is timed, and the row that it is compared with.
IMPORTS = {
    "import numpy": ("import numpy", None),
    "import gluon_svrg": ("import gluon_svrg", "import numpy"),
    "import mxnet": (f"{ALIASES}; import mxnet", None),
    "from gluon_svrg import *": ("from gluon_svrg import *", "import mxnet"),
    "import sklearn.linear_model": ("import sklearn.linear_model", None),
    "from gluon_svrg.linear import *": (
        "from gluon_svrg.linear import *",
        "import sklearn.linear_model",
    ),
}


class EpochClock(EpochBegin, EpochEnd):
    """Times the epochs of a fit; the first, which compiles, does not count."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin = 0.0
        self.priority = -np.inf  # the first to begin

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        mx.nd.waitall()
        self._begin = time.perf_counter()

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        mx.nd.waitall()
        self.seconds.append(time.perf_counter() - self._begin)


def epoch_of(
    net: gluon.HybridBlock, data: Any, method: dict[str, Any] | None
) -> Callable[[], float]:
    """Return a call that trains two epochs and returns the seconds of the second."""
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy(), trainer=trainer)
    estimator.logger.handlers.clear()
    handlers = [] if method is None else [gs.SVRGHandler(**method, progress_bar=False)]

    def run() -> float:
        clock = EpochClock()
        estimator.fit(data, epochs=2, event_handlers=[clock, *handlers])
        return clock.seconds[-1]

    return run


def random_rows(batches: int, batch_size: int) -> gs.data.ArrayLoader:
    random = np.random.default_rng(0)
    samples = batches * batch_size
    x = random.standard_normal((samples, FEATURES), "float32")
    y = random.integers(0, CLASSES, samples).astype("float32")
    return gs.data.ArrayLoader(x, y, batch_size=batch_size, shuffle=True, seed=0)


def resnet_of() -> gluon.HybridBlock:
    from gluoncv.model_zoo import get_model

    return get_model(resnet.MODEL, classes=CLASSES)


def growth_with_samples(rounds: int, rows: int, images: int) -> str:
    """Return the table of epochs at 1, 2 and 4 times the batches."""
    lines = []
    for title, make, data, base in [
        ("softmax regression", lambda: gluon.nn.Dense(CLASSES), random_rows, rows),
        ("ResNet-20", resnet_of, lambda n, _: resnet.our_batches(n), images),
    ]:
        for method, settings in METHODS.items():
            runs = {
                str(times): epoch_of(make(), data(times * base, resnet.BATCH_SIZE), settings)
                for times in TIMES
            }
            seconds = report.interleaved(runs, rounds)
            medians = [report.median(seconds[str(times)]) for times in TIMES]
            samples = [f"{resnet.BATCH_SIZE * base * times:,}" for times in TIMES]
            lines.append(
                (
                    f"{title}, {method}",
                    f"{' / '.join(samples)}",
                    " / ".join(f"{value:.3g}" for value in medians),
                    " / ".join(
                        f"{value / (times * medians[0]):.2f}"
                        for value, times in zip(medians, TIMES, strict=True)
                    ),
                )
            )
    return report.markdown_table(
        ["epoch of", "samples", "median, seconds", "by that of the first and its multiple"], lines
    )


def growth_with_batch_size(rounds: int, samples: int) -> str:
    """Return the table of epochs and table sizes by batch size, softmax regression."""
    lines = []
    for batch_size in (16, 64, 256, 1024):
        data = random_rows(samples // batch_size, batch_size)
        runs = {
            method: epoch_of(gluon.nn.Dense(CLASSES), data, settings)
            for method, settings in METHODS.items()
        }
        medians = {
            name: report.median(values) for name, values in report.interleaved(runs, rounds).items()
        }
        megabytes = len(data) * 4 * (FEATURES + 1) * CLASSES / 2**20
        lines.append(
            (
                batch_size,
                f"{megabytes:.1f}",
                *(f"{value:.3g}" for value in medians.values()),
                *(f"{medians[name] / medians['SGD']:.2f}" for name in list(METHODS)[1:]),
            )
        )
    by_sgd = [f"{name} / SGD" for name in list(METHODS)[1:]]
    names = [f"{name}, s" for name in METHODS]
    return report.markdown_table(["batch size", "table, MiB", *names, *by_sgd], lines)


def peak_memory() -> float:
    """Return the largest resident memory of this process so far, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return 1024.0 * int(line.split()[1])


def train_for_memory(method: str, model: str, batch_size: int) -> None:
    """Train, and print the peak and the parameters' size: what a process of its own does."""
    estimator = resnet.our_estimator(model)
    settings = METHODS[method]
    handlers = [] if settings is None else [gs.SVRGHandler(**settings, progress_bar=False)]
    estimator.fit(resnet.our_batches(4, batch_size), epochs=3, event_handlers=handlers)
    mx.nd.waitall()
    size = sum(4 * param.data().size for param in estimator.trainer._params)
    print(json.dumps([peak_memory(), size]))


def memory(rounds: int) -> str:
    """Return the table of peaks."""
    lines = []
    for model, batch_size in MEMORY:
        sizes = []

        def peak(
            method: str, model: str = model, batch: int = batch_size, to: list = sizes
        ) -> float:
            command = [sys.executable, __file__, "--worker", method, model, str(batch)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak, size = json.loads(done.stdout.splitlines()[-1])
            to.append(size)
            return peak

        runs = {method: functools.partial(peak, method) for method in METHODS}
        peaks = report.interleaved(runs, rounds, warm_up=0)
        base, copy = report.median(peaks["SGD"]), sizes[0]
        lines += [
            (
                f"`{model}`, {method}",
                f"{copy / 2**20:.2f}",
                f"{report.median(values) / 2**20:.1f}",
                report.spread(values, 1 / 2**20),
                f"{(report.median(values) - base) / 2**20:.1f}" if method != "SGD" else "",
                f"{(report.median(values) - base) / copy:.1f}" if method != "SGD" else "",
            )
            for method, values in peaks.items()
        ]
    header = ["training", "parameters, MiB", "peak, MiB", "25 % to 75 %, MiB"]
    return report.markdown_table([*header, "over SGD, MiB", "in copies of the parameters"], lines)


def import_of(statement: str) -> Callable[[], float]:
    """Return a call that imports in a new process and returns the seconds that took."""
    code = (
        f"import time; begin = time.perf_counter(); {statement}; print(time.perf_counter()-begin)"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": str(resnet.cores())}

    def call() -> float:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environ,
        )
        return float(done.stdout)

    return call


def imports(rounds: int) -> str:
    """Return the table of import times."""
    seconds = report.interleaved(
        {name: import_of(statement) for name, (statement, _) in IMPORTS.items()}, rounds
    )
    median = {name: report.median(values) for name, values in seconds.items()}
    lines = [
        (
            f"`{name}`",
            f"{median[name]:.2f}",
            report.spread(values, digits=2),
            "" if base is None else f"{median[name] - median[base]:+.2f} over `{base}`",
        )
        for (name, values), (_, base) in zip(seconds.items(), IMPORTS.values(), strict=True)
    ]
    return report.markdown_table(
        ["statement", "median, s", "25 % to 75 %, s", "difference, s"], lines
    )


def section(options: argparse.Namespace) -> str:
    rounds = options.rounds
    return f"""\
{rounds} interleaved rounds each. {report.provenance("bench-growth", ("mxnet", "numpy", "gluoncv"))}

With samples: the second epoch of a fit, batches of {resnet.BATCH_SIZE}, a snapshot every epoch.
Linear is 1.00.

{growth_with_samples(rounds, options.rows, options.images)}

With batch size: softmax regression on {options.rows * 4 * resnet.BATCH_SIZE:,} rows of {FEATURES}.

{growth_with_batch_size(rounds, options.rows * 4 * resnet.BATCH_SIZE)}

Memory: the peak of a process that trains four batches of 3 x 32 x 32 images, three epochs, float32;
{MEMORY[0][1]} images a batch with `{MEMORY[0][0]}`, {MEMORY[1][1]} with `{MEMORY[1][0]}`. The table
of four batches takes four copies.

{memory(rounds)}

Imports, each in a new process.

{imports(rounds)}"""


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=5)
    command.add_argument("--rows", type=int, default=118, help="batches of rows at 1x")
    command.add_argument("--images", type=int, default=4, help="batches of images at 1x")
    command.add_argument("--quick", action="store_true", help="few batches, one round")
    command.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.quick:
        options.rows, options.images, options.rounds = 8, 1, 1
    return options


def main() -> None:
    options = parse()
    if options.worker:
        method, model, batch_size = options.worker
        train_for_memory(method, model, int(batch_size))
        return
    report.publish("bench-growth", section(options), options.out)


if __name__ == "__main__":
    main()
