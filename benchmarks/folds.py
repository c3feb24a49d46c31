"""Measure the memory of a cross validation: 100 folds in one process, beside a bare loop.

Each contestant is a process of its own. Run it by ``make bench-folds``, which puts the table into
docs/benchmarks/folds.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from mxnet import autograd, gluon

FEATURES, HIDDEN, CLASSES, BATCHES, BATCH_SIZE = 500, 512, 10, 20, 32
CONTESTANTS = ("bare loop", "Estimator", "Estimator, SVRG, table")
# The gradients of each batch, without the biases, in bytes.
TABLE = BATCHES * 4 * (FEATURES * HIDDEN + HIDDEN * HIDDEN + HIDDEN * CLASSES)
Batches = list[tuple[mx.nd.NDArray, mx.nd.NDArray]]


def network() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    for _ in range(2):
        net.add(gluon.nn.Dense(HIDDEN, activation="relu"))
    net.add(gluon.nn.Dense(CLASSES))
    net.initialize()
    net.hybridize()
    return net


def bare_fold(batches: Batches, epochs: int) -> None:
    net, loss_function = network(), gluon.loss.SoftmaxCELoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for _ in range(epochs):
        for data, label in batches:
            with autograd.record():
                loss = loss_function(net(data), label)
            loss.backward()
            trainer.step(BATCH_SIZE)


def fold(batches: Batches, epochs: int, with_svrg: bool) -> None:
    net = network()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy(), trainer=trainer)
    handlers = [gs.SVRGHandler(gradient_table=True)] if with_svrg else []
    estimator.fit(batches, epochs=epochs, event_handlers=handlers, verbose=0)


def resident() -> float:
    """Return the resident memory of this process, in MiB."""
    with open("/proc/self/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 2**10


def work(contestant: str, folds: int, epochs: int) -> list[float]:
    """Return the resident memory after each fold, in MiB."""
    random = np.random.default_rng(0)
    batches = [
        (
            mx.nd.array(random.standard_normal((BATCH_SIZE, FEATURES))),
            mx.nd.array(random.integers(0, CLASSES, BATCH_SIZE)),
        )
        for _ in range(BATCHES)
    ]
    sizes = []
    for _ in range(folds):
        if contestant == CONTESTANTS[0]:
            bare_fold(batches, epochs)
        else:
            fold(batches, epochs, with_svrg=contestant == CONTESTANTS[2])
        mx.nd.waitall()
        sizes.append(resident())
    return sizes


def section(options: argparse.Namespace) -> str:
    peaks = {}
    lines = []
    for contestant in CONTESTANTS:
        arguments = [contestant, str(options.folds), str(options.epochs)]
        command = [sys.executable, __file__, "--worker", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes = json.loads(done.stdout.splitlines()[-1])
        peaks[contestant] = max(sizes)
        lines.append(
            (
                contestant,
                f"{sizes[0]:.0f}",
                f"{sizes[len(sizes) // 2]:.0f}",
                f"{sizes[-1]:.0f}",
                f"{max(sizes):.0f}",
                f"{max(sizes) / peaks[CONTESTANTS[0]]:.2f}",
            )
        )
    header = ["what", "after 1 fold, MiB", f"after {options.folds // 2 + 1}"]
    header += [f"after {options.folds}", "largest", "by that of the bare loop"]
    return f"""\
{options.folds} networks {FEATURES}-{HIDDEN}-{HIDDEN}-{CLASSES} one after the other in one process,
as the folds of a cross validation: {BATCHES} batches of {BATCH_SIZE}, {options.epochs} epochs each.
Nothing asks for a garbage collection. Resident memory after each fold; a gradient table has
{TABLE / 2**20:.0f} MiB. {report.provenance("bench-folds")}

{report.markdown_table(header, lines)}"""


def main() -> None:
    command = report.parser(__doc__, rounds=1)
    command.add_argument("--folds", type=int, default=100)
    command.add_argument("--epochs", type=int, default=2)
    command.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.worker:
        contestant, folds, epochs = options.worker
        print(json.dumps(work(contestant, int(folds), int(epochs))))
        return
    report.publish("bench-folds", section(options), options.out)


if __name__ == "__main__":
    main()
