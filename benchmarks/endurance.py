"""Long runs in one process: answers stay right and memory does not grow.

32 threads ask one Predictor for a minute; 100,000 predictions follow each other; an Estimator
trains for a million steps, with SVRG. Memory is that of the process (RSS), after a tenth of the
work and at its end. Run it by ``make endurance``; it ends with 1 if an answer is wrong or the
memory has grown by more than 5 %.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import report
from mxnet import gluon

THREADS = 32
MOST_GROWTH = 0.05


class Outcome(NamedTuple):
    """What came out: how much was done, how many answers were wrong, memory in MiB."""

    what: str
    done: int
    wrong: int
    early: float
    late: float

    @property
    def is_good(self) -> bool:
        return not self.wrong and self.late <= (1 + MOST_GROWTH) * self.early

    def row(self) -> tuple[str, ...]:
        return (
            self.what,
            f"{self.done:,}",
            str(self.wrong),
            f"{self.early:,.0f}",
            f"{self.late:,.0f}",
        )


def memory() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def make_predictor(folder: Path) -> gs.deploy.Predictor:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, 3), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"))
    net.add(gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(5))
    net.initialize(mx.init.Xavier())
    sample = np.random.default_rng(0).normal(size=(2, 3, 12, 12)).astype("float32")
    gs.deploy.export(net, folder / "model", sample)
    return gs.deploy.Predictor(folder / "model")


def ask_by_threads(predictor: gs.deploy.Predictor, seconds: float) -> Outcome:
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(n, 3, 12, 12)).astype("float32") for n in (1, 2, 3, 7, 16, 70)]
    answers = [predictor(x) for x in inputs]
    begin = time.monotonic()
    early: list[float] = []
    counts, wrong = [0] * THREADS, [0] * THREADS

    def ask(number: int) -> None:
        while (spent := time.monotonic() - begin) < seconds:
            kind = (number + counts[number]) % len(inputs)
            found = predictor(inputs[kind])
            wrong[number] += not np.allclose(found, answers[kind], rtol=1e-5, atol=1e-6)
            counts[number] += 1
            if number == 0 and not early and spent > seconds / 10:
                early.append(memory())

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    what = f"predictions by {THREADS} threads in {seconds:g} s"
    return Outcome(what, sum(counts), sum(wrong), early[0], memory())


def predict(predictor: gs.deploy.Predictor, number: int) -> Outcome:
    x = np.random.default_rng(2).normal(size=(1, 3, 12, 12)).astype("float32")
    answer, wrong, early = predictor(x), 0, 0.0
    for done in range(number):
        wrong += not np.array_equal(predictor(x), answer)
        if done == number // 10:
            early = memory()
    return Outcome("predictions one after the other", number, wrong, early, memory())


class Memory(gs.events.BatchEnd):
    """Keeps the memory at one batch."""

    def __init__(self, at: int) -> None:
        self.at, self.found = at, 0.0

    def batch_end(self, estimator: gs.Estimator, *args: object, **kwargs: object) -> None:
        if estimator.position.batch == self.at:
            self.found = memory()


def train(steps: int) -> Outcome:
    batches = [
        (mx.nd.random.normal(shape=(8, 4)), mx.nd.array(np.arange(8) % 3)) for _ in range(500)
    ]
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    loss = gluon.loss.SoftmaxCELoss()
    loss.hybridize(static_alloc=True, static_shape=True)
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    estimator = gs.Estimator(net, loss, trainer=trainer)
    look = Memory(steps // 10)
    result = estimator.fit(
        batches, batches=steps, event_handlers=[gs.SVRGHandler(update_freq=2), look], verbose=0
    )
    is_finite = all(np.isfinite(p.data().asnumpy()).all() for p in net.collect_params().values())
    done = sum(row["batches"] for row in result.history)
    return Outcome(
        "training steps, a snapshot every second epoch",
        done,
        int(not is_finite),
        look.found,
        memory(),
    )


def main() -> int:
    command = report.parser(__doc__, rounds=1)
    command.add_argument("--seconds", type=float, default=60.0, help="of the threads")
    command.add_argument("--predictions", type=int, default=10**5)
    command.add_argument("--steps", type=int, default=10**6)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        predictor = make_predictor(Path(folder))
        outcomes = [
            ask_by_threads(predictor, options.seconds),
            predict(predictor, options.predictions),
            train(options.steps),
        ]
    header = ["what", "done", "wrong", "MiB after a tenth", "MiB at the end"]
    text = f"""One process, one after the other; resident memory. {report.provenance("endurance")}

{report.markdown_table(header, [outcome.row() for outcome in outcomes])}"""
    report.publish("endurance", text, options.out)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
