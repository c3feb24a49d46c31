"""Measure a step on sparse rows: plain SGD, and SVRG's two ways for row_sparse gradients.

Each contestant is a loop by hand over the same batches. Run it by ``make bench-sparse``, which puts
the tables into docs/benchmarks/sparse.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from mxnet import autograd, gluon

ROWS, COLUMNS, STORED, CLASSES, BATCH_SIZE = 52_186, 67_129, 14, 20, 128
MORE_COLUMNS = (COLUMNS, 4 * COLUMNS, 16 * COLUMNS)
Batches = list[tuple[mx.nd.NDArray, mx.nd.NDArray]]


class Way(NamedTuple):
    """How a step is taken: by SVRG unless `correction` is empty."""

    correction: str = ""
    table: bool = False
    grad_stype: str = "row_sparse"


WAYS = {
    "SGD": Way(),
    "SVRG, sparse": Way("sparse"),
    "SVRG, sparse, table": Way("sparse", table=True),
    "SVRG, exact": Way("exact"),
    "SVRG, exact, table": Way("exact", table=True),
    "SGD, dense gradient": Way(grad_stype="default"),
    "SVRG, dense gradient": Way("exact", grad_stype="default"),
}


class Wide(gluon.HybridBlock):
    """A linear model of sparse rows."""

    def __init__(self, columns: int, grad_stype: str) -> None:
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get(
                "weight", shape=(columns, CLASSES), grad_stype=grad_stype, init="zeros"
            )

    def hybrid_forward(self, F, x, weight):  # noqa: N803
        return F.sparse.dot(x, weight)


def batches_of(columns: int, rows: int) -> Batches:
    """Return batches of rows with 14 numbers; which columns have them falls off as with words."""
    rng = np.random.default_rng(0)
    # A column's frequency is that of its rank: the numbers of a log-uniform draw, of Zipf's law.
    drawn = np.exp(rng.uniform(0, np.log(columns), (rows, STORED))).astype("int64") - 1
    order = rng.permutation(columns)
    labels = rng.integers(0, CLASSES, rows).astype("float32")
    batches = []
    for begin in range(0, rows, BATCH_SIZE):
        lines = [np.unique(order[line]) for line in drawn[begin : begin + BATCH_SIZE]]
        ends = np.cumsum([0, *(len(line) for line in lines)])
        values = np.concatenate([np.full(len(line), len(line) ** -0.5) for line in lines])
        x = mx.nd.sparse.csr_matrix(
            (values, np.concatenate(lines), ends), shape=(len(lines), columns), dtype="float32"
        )
        batches.append((x, mx.nd.array(labels[begin : begin + BATCH_SIZE])))
    return batches


def stepper(way: Way, columns: int, batches: Batches) -> Callable[[int], float]:
    """Return what takes that many steps, and returns the seconds of one."""
    net = Wide(columns, way.grad_stype)
    net.initialize()
    net.hybridize()
    loss_function = gluon.loss.SoftmaxCELoss()
    loss_function.hybridize()
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})

    def backward(batch):
        data, label = batch
        with autograd.record():
            loss = loss_function(net(data), label)
        loss.backward()
        return loss

    interval = gs.svrg.Interval(net, backward, gradient_table=way.table, progress_bar=False)
    if way.correction:
        full_gradient = interval.begin(batches)
        trainer.set_control_variate(full_gradient, sparse_correction=way.correction)
    position = 0

    def steps(number: int) -> float:
        nonlocal position
        mx.nd.waitall()
        begin = time.perf_counter()
        for index in range(position, position + number):
            batch = batches[index % len(batches)]
            loss = backward(batch)
            if way.correction:
                trainer.correct(interval.gradient(batch, index % len(batches)))
            trainer.step(len(loss))
        mx.nd.waitall()
        position += number
        return (time.perf_counter() - begin) / number

    return steps


def measured(columns: int, rows: int, ways: dict[str, Way], options) -> dict[str, list[float]]:
    batches = batches_of(columns, rows)
    contestants = {name: stepper(way, columns, batches) for name, way in ways.items()}
    runs = {name: (lambda s=steps: s(options.steps)) for name, steps in contestants.items()}
    return report.interleaved(runs, options.rounds)


def ratio(times: dict[str, list[float]], name: str) -> str:
    pairs = zip(times[name], times["SGD"], strict=True)
    return report.spread([own / plain for own, plain in pairs], 1, 2)


def section(options) -> str:
    lines: list[tuple[str, str, str]] = []
    for is_dense in (False, True):
        # Apart: after the large arrays of the dense ways a plain step takes twice as long.
        ways = {n: way for n, way in WAYS.items() if (way.grad_stype == "default") == is_dense}
        times = measured(COLUMNS, options.rows, {"SGD": WAYS["SGD"]} | ways, options)
        lines += [(name, report.spread(times[name], 1e3, 2), ratio(times, name)) for name in ways]
    some = {name: WAYS[name] for name in ("SGD", "SVRG, sparse", "SVRG, sparse, table")}
    growth = []
    for columns in MORE_COLUMNS:
        times = measured(columns, options.rows // 4, some, options)
        cells = [report.spread(times[name], 1e3, 2) for name in some]
        more = [
            report.spread([a - b for a, b in zip(times[name], times["SGD"], strict=True)], 1e3, 2)
            for name in list(some)[1:]
        ]
        growth.append((f"{columns:,}", *cells, *more))
    return f"""\
Softmax regression with {CLASSES} classes on {options.rows:,} rows of {COLUMNS:,} columns, {STORED}
numbers each, drawn by Zipf's law; batches of {BATCH_SIZE}, float32. Milliseconds (quartiles) a step
of a loop by hand with MXNet's SGD, and its ratio to plain SGD's in the same round. The gradient is
row_sparse, but for the last two. {report.provenance("bench-sparse")}

{report.markdown_table(["what", "ms a step", "beside SGD"], lines)}

A quarter of the rows, and more columns. What grows is MXNet's gradient of a product with sparse
rows, which marks the columns that occur in an array of all columns; the last two columns are what
SVRG adds to SGD's step, one such gradient more without a table.

{report.markdown_table(["columns", *some, "sparse less SGD", "table less SGD"], growth)}"""


def main() -> None:
    command = report.parser(__doc__, rounds=7)
    command.add_argument("--rows", type=int, default=ROWS)
    command.add_argument("--steps", type=int, default=100)
    options = command.parse_args()
    report.publish("bench-sparse", section(options), options.out)


if __name__ == "__main__":
    main()
