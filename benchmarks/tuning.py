"""Time training steps of gluoncv's networks before and after tune_for_cpu.

All in one process; the rounds are interleaved. Run it by ``make bench-tuning``, which puts the
table into docs/benchmarks/tuning.md.
"""

from __future__ import annotations

from collections.abc import Callable

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from gluoncv.model_zoo import get_model
from mxnet import autograd, gluon
from optimizer import timed

# Name, images a batch, and their size.
NETWORKS = [
    ("cifar_resnet20_v1", 128, 32),
    ("resnet18_v1", 8, 224),
    ("mobilenet1.0", 8, 224),
]


def train_step(net: gluon.HybridBlock, batch_size: int, size: int) -> Callable[[], None]:
    random = np.random.default_rng(0)
    x = mx.nd.array(random.standard_normal((batch_size, 3, size, size), "float32"))
    y = mx.nd.array(random.integers(0, 10, batch_size))
    net.hybridize(static_alloc=True)
    loss_function = gluon.loss.SoftmaxCELoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-4})

    def step() -> None:
        with autograd.record():
            loss = loss_function(net(x), y)
        loss.backward()
        trainer.step(batch_size)

    return step


def measure(name: str, batch_size: int, size: int, rounds: int) -> tuple[str, ...]:
    """Return a row of the table."""
    steps, changed = {}, []
    for kind in ("as it comes", "tuned"):
        net = get_model(name, classes=10)
        net.initialize(mx.init.Xavier())
        if kind == "tuned":
            changed = gs.tune_for_cpu(net)
        steps[kind] = timed(train_step(net, batch_size, size))
    seconds = report.interleaved(steps, rounds, warm_up=2)
    before, after = (report.median(values) for values in seconds.values())
    spreads = [report.spread(values, 1e3, digits=0) for values in seconds.values()]
    return (
        f"`{name}`, {batch_size} x 3 x {size} x {size}",
        str(len(changed)),
        f"{1e3 * before:.0f} ({spreads[0]})",
        f"{1e3 * after:.0f} ({spreads[1]})",
        f"{before / after:.2f}",
    )


def main() -> None:
    options = report.parser(__doc__, rounds=7).parse_args()
    rows = [measure(*network, options.rounds) for network in NETWORKS]
    provenance = report.provenance("bench-tuning", ("mxnet", "numpy", "gluoncv"))
    header = ["network", "layers changed", "as it comes, ms", "tuned, ms", "times as fast"]
    text = f"""\
A training step to `waitall`, float32, hybridized with static memory, all cores; medians and
quartiles of {options.rounds} interleaved rounds. {provenance}

{report.markdown_table(header, rows)}"""
    report.publish("bench-tuning", text, options.out)


if __name__ == "__main__":
    main()
