"""Time a whole `trainer.step` of LARS, Signum and SGD on ResNet-50's parameters.

Ours stands beside MXNet's in one process; the rounds are interleaved. Run it by
``make bench-optimizer``, which puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gluon_svrg
import mxnet as mx
import numpy as np
from mxnet import gluon, nd

ROUNDS = 20
# Machines that lend their cores by the second slow down under a load without a break.
PAUSE = 0.2
BEGIN, END = "<!-- bench-optimizer -->", "<!-- /bench-optimizer -->"


def parameters() -> list[gluon.Parameter]:
    """Return ResNet-50's trained parameters, each with a random gradient."""
    net = gluon.model_zoo.vision.resnet50_v1()
    # The shapes without a forward pass: outside of autograd.record one would leave the weights in
    # oneDNN's layout, which every update would have to undo. Training does not.
    net.infer_shape(nd.zeros((1, 3, 224, 224)))
    net.initialize()
    params = [param for param in net.collect_params().values() if param.grad_req != "null"]
    for param in params:
        param.grad()[:] = nd.random.normal(0, 1e-3, param.shape)
    return params


def trainer_step(params: list[gluon.Parameter], optimizer: object) -> Callable[[], None]:
    trainer = gluon.Trainer(params, optimizer)

    def step() -> None:
        for param in params:
            param.data()._fresh_grad = True
        trainer.step(1)

    return step


def one_by_one(optimizer: mx.optimizer.Optimizer) -> mx.optimizer.Optimizer:
    """Let a stock optimizer call a kernel a parameter: on a CPU that is faster than its four."""
    optimizer.aggregate_num = 0
    return optimizer


def two_reads(params: list[gluon.Parameter]) -> Callable[[], None]:
    """Read as many floats as weights and gradients have, once."""
    vector = nd.random.normal(shape=(sum(int(np.prod(param.shape)) for param in params),))

    def read() -> None:
        nd.dot(vector, vector)
        nd.dot(vector, vector)

    return read


def contestants(params: list[gluon.Parameter]) -> dict[str, Callable[[], None]]:
    rates = {"learning_rate": 1e-6, "wd": 1e-4}
    momentum = {**rates, "momentum": 0.9}
    names = {"param_idx2name": {i: param.name for i, param in enumerate(params)}}
    mxnet = mx.optimizer
    steps = {
        "LARS, MXNet": mxnet.LARS(**momentum),
        "LARS, MXNet, told the names": mxnet.LARS(**momentum, **names),
        "LARS, ours": gluon_svrg.LARS(**momentum),
        "LARS, ours, step()": gluon_svrg.LARS(**momentum, use_fused_step=False),
        "SGD with momentum, MXNet": mxnet.SGD(**momentum),
        "SGD with momentum, MXNet, one by one": one_by_one(mxnet.SGD(**momentum)),
        "Signum, MXNet": mxnet.Signum(**momentum),
        "Signum, ours": gluon_svrg.Signum(**momentum),
        "signSGD, MXNet": mxnet.Signum(**rates, momentum=0.0),
        "signSGD, ours": gluon_svrg.Signum(**rates, momentum=0.0),
    }
    timed = {name: trainer_step(params, optimizer) for name, optimizer in steps.items()}
    timed["two reads of the memory"] = two_reads(params)
    return timed


def measure(timed: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return milliseconds from the call to `waitall`, by name, the rounds interleaved."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for step in timed.values():
        step()
    for _ in range(rounds):
        for name, step in timed.items():
            mx.nd.waitall()
            time.sleep(PAUSE)
            begin = time.perf_counter()
            step()
            mx.nd.waitall()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return times


def table(times: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = {"LARS": "LARS, MXNet", "Sign": "Signum, MXNet", "sign": "signSGD, MXNet"}
    lines = [
        "| step | median, ms | 25 % to 75 %, ms | times as fast as MXNet's |",
        "|---|---|---|---|",
    ]
    for name, values in times.items():
        low, _, high = statistics.quantiles(values, n=4)
        ratio = f"{medians[base[name[:4]]] / medians[name]:.2f}" if name[:4] in base else ""
        lines.append(f"| {name} | {medians[name]:.1f} | {low:.1f} to {high:.1f} | {ratio} |")
    floor = medians["SGD with momentum, MXNet, one by one"] + medians["two reads of the memory"]
    lines.append("")
    lines.append(
        f"Our LARS takes {medians['LARS, ours'] / floor:.2f} times SGD with momentum, one by one, "
        "plus two reads of the memory."
    )
    return "\n".join(lines)


def machine() -> str:
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{models[0] if models else platform.machine()}, {len(models)} cores"


def section(times: dict[str, list[float]], rounds: int) -> str:
    return "\n".join(
        [
            BEGIN,
            "## Optimizers",
            "",
            "A whole `trainer.step` on ResNet-50's 25.6 million weights in 193 parameters,",
            f"float32, to `waitall`; {rounds} interleaved rounds. {machine()}; Python "
            f"{platform.python_version()}, MXNet {mx.__version__}, NumPy {np.__version__}; "
            f"{datetime.date.today()}; `make bench-optimizer`.",
            "",
            table(times),
            END,
        ]
    )


def write_section(path: Path, text: str) -> None:
    """Put `text` in the place of the section in `path`, or at its end."""
    old = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    if BEGIN in old:
        before, rest = old.split(BEGIN, 1)
        new = before + text + rest.split(END, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n{text}\n"
    path.write_text(new, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="the Markdown file to put the table into")
    options = parser.parse_args()
    text = section(measure(contestants(parameters()), options.rounds), options.rounds)
    print(text)
    if options.out:
        write_section(options.out, text)


if __name__ == "__main__":
    main()
