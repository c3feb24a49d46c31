"""Train a ResNet-20 by every optimizer several times, and compare all weights bit for bit.

Each run has weight decay and an evaluation after each epoch. Five runs are processes of their own,
two are jobs of two workers. Run it by ``make repeatability``, which puts the table into
docs/benchmarks/repeatability.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluon_svrg.data import ArrayLoader
from gluon_svrg.optimizer import Optimizer
from gluoncv.model_zoo import get_model
from mxnet import gluon

# 'groupadagrad' takes sparse gradients on a GPU; the rest are other names and MXNet's own tests.
NOT_TRIED = {"groupadagrad", "ccsgd", "test", "_svrgoptimizer", "_assignmentoptimizer"}
# SGLD draws random numbers: each worker its own.
NOT_ON_WORKERS = {"sgld"}
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {"momentum": 0.9} for name in ("sgd", "nag", "lars", "lbsgd", "signum")},
    "rmsprop": {"centered": True},
}
LEARNING_RATES = {"sgd": 0.1, "nag": 0.1, "lars": 5.0, "lbsgd": 0.01}


def optimizers() -> list[str]:
    """Return every name that SVRGTrainer accepts, and that has an update for a CPU."""
    known = {*mx.optimizer.Optimizer.opt_registry, *Optimizer.opt_registry}
    return sorted(known - NOT_TRIED)


def train(optimizer: str | mx.optimizer.Optimizer, epochs: int = 3) -> str:
    """Train from the same seed; return a hash of all parameters."""
    gs.seed_everything(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(96, 3, 32, 32)).astype("float32"), np.arange(96) % 10
    net = get_model("cifar_resnet20_v1", classes=10)
    net.initialize(mx.init.Xavier(magnitude=2))
    net.hybridize(static_alloc=True)
    arguments: dict[str, Any] | None = None
    if isinstance(optimizer, str):
        rate = LEARNING_RATES.get(optimizer, 1e-3)
        arguments = {"learning_rate": rate, "wd": 1e-2, **ARGUMENTS.get(optimizer, {})}
    trainer = gs.SVRGTrainer(net.collect_params(), optimizer, arguments)
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), trainer=trainer)
    loader = ArrayLoader(x, y, batch_size=32, shuffle=True, seed=0)
    estimator.fit(loader, val_data=ArrayLoader(x[:64], y[:64], batch_size=32), epochs=epochs)
    values = [param.data().asnumpy() for param in net.collect_params().values()]
    if not all(np.isfinite(value).all() for value in values):
        raise ValueError(f"{optimizer} diverged: equal weights would say nothing")
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()[:16]


def run(
    names: Iterable[str], workers: int = 1, folder: Path | None = None, epochs: int = 3
) -> dict[str, str]:
    """Train by each optimizer in a new job; return the hash of each."""
    command = [sys.executable, "-W", "ignore"]
    if workers > 1:
        command += ["-m", "gluon_svrg.launch", "-n", str(workers), "--max-restarts", "0"]
    done = subprocess.run(
        [*command, __file__, "--epochs", str(epochs), "--only", *names],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        text=True,
        capture_output=True,
    )
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if "{" in line:
            for name, value in json.loads(line[line.index("{") :]).items():
                found.setdefault(name, set()).add(value)
    if done.returncode:
        raise RuntimeError(f"{names}: {done.stderr[-2000:]}")
    return {name: " ".join(sorted(values)) for name, values in found.items()}


def section(alone: dict[str, list[str]], together: dict[str, list[str]]) -> str:
    rows = [
        (
            f"`{name}`",
            f"{len(set(alone[name]))} ({len(alone[name])} runs)",
            f"{len(set(together[name]))} ({len(together[name])} runs)" if name in together else "",
        )
        for name in alone
    ]
    table = report.markdown_table(["optimizer", "one process", "two workers"], rows)
    return f"""\
The number of different results among the runs, all parameters compared bit for bit. The
network is gluoncv's `cifar_resnet20_v1`, float32, in three epochs of three batches of 32, with
weight decay 0.01 and an evaluation after each epoch. `sgld` draws random numbers, other ones on
each worker. {report.provenance("repeatability")}

{table}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", help="train by these here, and print their hashes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="the Markdown file to put the section into")
    options = parser.parse_args()
    if options.only:
        for name in options.only:
            print(json.dumps({name: train(name, options.epochs)}), flush=True)
        return
    names = optimizers()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {name: [pool.submit(run, [name]) for _ in range(5)] for name in names}
        alone = {name: [job.result()[name] for job in jobs] for name, jobs in runs.items()}
    on_workers = [name for name in names if name not in NOT_ON_WORKERS]
    jobs = [run(on_workers, workers=2) for _ in range(2)]
    together = {name: [job[name] for job in jobs] for name in on_workers}
    report.publish("repeatability", section(alone, together), options.out)


if __name__ == "__main__":
    main()
