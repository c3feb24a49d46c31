"""Time a whole `trainer.step` of LARS, NAG, Signum, AdamW, MARS and SGD on ResNet-50's parameters.

Ours stands beside MXNet's in one process; the rounds are interleaved. Run it by
``make bench-optimizer``, which puts the table into docs/benchmarks/optimizer.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gluon_svrg
import mxnet as mx
import numpy as np
import report
from mxnet import gluon, nd


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
        "NAG, MXNet": mxnet.NAG(**momentum),
        "NAG, ours": gluon_svrg.NAG(**momentum),
        "Signum, MXNet": mxnet.Signum(**momentum),
        "Signum, ours": gluon_svrg.Signum(**momentum),
        "signSGD, MXNet": mxnet.Signum(**rates, momentum=0.0),
        "signSGD, ours": gluon_svrg.Signum(**rates, momentum=0.0),
        "Adam, MXNet": mxnet.Adam(**rates),
        "AdamW, ours": gluon_svrg.AdamW(**rates),
        "MARS, ours": gluon_svrg.MARS(**rates),
        "MARS, ours, max_norm=None": gluon_svrg.MARS(**rates, max_norm=None),
    }
    calls = {name: trainer_step(params, optimizer) for name, optimizer in steps.items()}
    calls["two reads of the memory"] = two_reads(params)
    return calls


def timed(step: Callable[[], None]) -> Callable[[], float]:
    """Return a call that takes the step and returns its seconds up to `waitall`."""

    def call() -> float:
        mx.nd.waitall()
        begin = time.perf_counter()
        step()
        mx.nd.waitall()
        return time.perf_counter() - begin

    return call


def section(seconds: dict[str, list[float]], rounds: int) -> str:
    medians = {name: report.median(values) for name, values in seconds.items()}
    base = {
        "LARS": "LARS, MXNet",
        "NAG,": "NAG, MXNet",
        "Sign": "Signum, MXNet",
        "sign": "signSGD, MXNet",
    }
    rows = [
        (
            name,
            f"{1e3 * medians[name]:.1f}",
            report.spread(values, 1e3),
            f"{medians[base[name[:4]]] / medians[name]:.2f}" if name[:4] in base else "",
        )
        for name, values in seconds.items()
    ]
    header = ["step", "median, ms", "25 % to 75 %, ms", "times as fast as MXNet's"]
    floor = medians["SGD with momentum, MXNet, one by one"] + medians["two reads of the memory"]
    adam = medians["Adam, MXNet"]
    return f"""A whole `trainer.step` on ResNet-50's 25.6 million weights in 193 parameters,
float32, to `waitall`; {rounds} interleaved rounds. {report.provenance("bench-optimizer")}

{report.markdown_table(header, rows)}

Our LARS takes {medians["LARS, ours"] / floor:.2f} times SGD with momentum, one by one, plus two
reads of the memory. Of the time of MXNet's Adam, which has no array of last gradients,
AdamW takes {medians["AdamW, ours"] / adam:.2f} and MARS {medians["MARS, ours"] / adam:.2f}."""


def main() -> None:
    options = report.parser(__doc__, rounds=20).parse_args()
    steps = contestants(parameters())
    seconds = report.interleaved(
        {name: timed(step) for name, step in steps.items()}, options.rounds
    )
    report.publish("bench-optimizer", section(seconds, options.rounds), options.out)


if __name__ == "__main__":
    main()
