"""Time training steps with one thread, with one a core, and with other ways to wait, under load.

Each contestant is a process of its own, with its own environment; they take turns, and busy
processes beside them make the load. Run it by ``make bench-threads``, which puts the table into
docs/benchmarks/threads.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import report

CORES = str(len(os.sched_getaffinity(0)))
# libgomp's default if no variable sets it (its env.c): about a millisecond of a busy core.
DEFAULT_SPIN = "300000"
# The variables of OpenMP in the environment; an empty set is that of a user without settings.
CONTESTANTS: dict[str, dict[str, str]] = {
    "a thread a core, libgomp's default": {
        "OMP_NUM_THREADS": CORES,
        "GOMP_SPINCOUNT": DEFAULT_SPIN,
    },
    "**as it comes**: a thread a core, asleep soon": {},
    "a thread a core, asleep at once": {"OMP_NUM_THREADS": CORES, "OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
OURS = "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


def epoch_of(
    net: Any, x: Any, y: Any, batch_size: int, learning_rate: float, with_svrg: bool
) -> Callable[[], None]:
    """Return an epoch of an initialised network."""
    import gluon_svrg as gs
    import mxnet as mx
    from mxnet import gluon

    net.hybridize(static_alloc=True, static_shape=True)
    options = {"learning_rate": learning_rate}
    trainer = gs.SVRGTrainer(net.collect_params(), "sgd", options)
    estimator = gs.Estimator(net, gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy(), trainer=trainer)
    data = gs.data.ArrayLoader(x, y, batch_size=batch_size, shuffle=True, seed=0)
    handlers = [gs.SVRGHandler()] if with_svrg else []
    return lambda: estimator.fit(data, epochs=1, event_handlers=handlers, verbose=0)


def softmax(batch_size: int, features: int, batches: int) -> Callable[[], None]:
    """Return an epoch of softmax regression in float64, by SVRG with a table."""
    import numpy as np
    from mxnet import gluon

    random = np.random.default_rng(0)
    x = random.standard_normal((batches * batch_size, features)) / features**0.5
    y = random.integers(0, 10, len(x)).astype("float64")
    net = gluon.nn.Dense(10, in_units=features)
    net.cast("float64")
    net.initialize()
    return epoch_of(net, x, y, batch_size, learning_rate=0.1, with_svrg=True)


def perceptron(batch_size: int, features: int, hidden: int, batches: int) -> Callable[[], None]:
    """Return an epoch of a perceptron of one hidden layer, by SGD."""
    import numpy as np
    from mxnet import gluon

    random = np.random.default_rng(0)
    x = random.standard_normal((batches * batch_size, features), "float32")
    y = random.integers(0, 10, len(x)).astype("float32")
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(hidden, activation="relu", in_units=features))
    net.add(gluon.nn.Dense(10, in_units=hidden))
    net.initialize()
    return epoch_of(net, x, y, batch_size, learning_rate=0.01, with_svrg=False)


def resnet(batch_size: int, batches: int) -> Callable[[], None]:
    """Return an epoch of gluoncv's ``cifar_resnet20_v1``, by SGD."""
    import mxnet as mx
    import numpy as np
    from gluoncv.model_zoo import get_model

    random = np.random.default_rng(0)
    x = random.standard_normal((batches * batch_size, 3, 32, 32), "float32")
    y = random.integers(0, 10, len(x)).astype("float32")
    net = get_model("cifar_resnet20_v1", classes=10)
    net.initialize(mx.init.Xavier())
    return epoch_of(net, x, y, batch_size, learning_rate=0.01, with_svrg=False)


# The name of a task, and what makes its epoch.
TASKS: dict[str, tuple[Callable[..., Callable[[], None]], dict[str, Any]]] = {
    "softmax regression, 64 features, batch 16": (
        softmax,
        {"batch_size": 16, "features": 64, "batches": 94},
    ),
    "softmax regression, 784 features, batch 128": (
        softmax,
        {"batch_size": 128, "features": 784, "batches": 40},
    ),
    "perceptron 64-64-10, batch 128": (
        perceptron,
        {"batch_size": 128, "features": 64, "hidden": 64, "batches": 200},
    ),
    "perceptron 784-512-10, batch 128": (
        perceptron,
        {"batch_size": 128, "features": 784, "hidden": 512, "batches": 60},
    ),
    "ResNet-20, batch 16": (resnet, {"batch_size": 16, "batches": 10}),
    "ResNet-20, batch 128": (resnet, {"batch_size": 128, "batches": 3}),
}


class Worker:
    """A process that trains an epoch each time it is told to."""

    def __init__(self, task: str, environment: dict[str, str]) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in OURS}
        environ |= {name: value for name, value in environment.items() if value}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", task],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self()

    def __call__(self) -> tuple[float, float]:
        """Train an epoch; return its seconds by the clock, and those of all processors."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("seconds "):
                wall, cpu = map(float, line.split()[1:])
                return wall, cpu
        raise RuntimeError("the worker has ended: look at what it has printed")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(task: str) -> None:
    """Be a worker."""
    import gluon_svrg  # noqa: F401  (before MXNet)
    import mxnet as mx

    make, arguments = TASKS[task]
    epoch = make(**arguments)
    epoch()
    mx.nd.waitall()
    for _ in sys.stdin:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        epoch()
        mx.nd.waitall()
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
        print(f"seconds {wall} {cpu}", flush=True)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep that many processes busy meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measured(task: str, loads: list[int], rounds: int) -> list[tuple[str, int, str, str, str, str]]:
    """Return the rows of a task."""
    names = list(CONTESTANTS)
    workers = {name: Worker(task, CONTESTANTS[name]) for name in names}
    rows = []
    for busy in loads:
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        with load(busy):
            for turn in range(rounds):
                order = names[turn % len(names) :] + names[: turn % len(names)]
                for name in order:
                    time.sleep(report.PAUSE)
                    seconds[name].append(workers[name]())
        first = seconds[names[0]]
        for name in names:
            wall = report.median(w for w, _ in seconds[name])
            cpu = report.median(c for _, c in seconds[name])
            pairs = [w / v for (w, _), (v, _) in zip(seconds[name], first, strict=True)]
            rows.append(
                (
                    task,
                    busy,
                    name,
                    f"{1e3 * wall:.0f}",
                    f"{1e3 * cpu:.0f}",
                    f"{report.median(pairs):.2f} ({report.spread(pairs, digits=2)})",
                )
            )
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.end()
    return rows


HEADER = (
    "task",
    "busy processes",
    "threads",
    "ms an epoch",
    "CPU ms an epoch",
    "times the first (quartiles)",
)


def section(rows: list[tuple[Any, ...]], rounds: int) -> str:
    return f"""\
How long a short epoch takes, with the processor time of all threads, alone and beside processes
that are always busy. Each contestant is a process of its own; {rounds} interleaved rounds, whose
medians are shown, with the median of the quotients of each round. A thread that waits for another
keeps its core busy for a while, then it sleeps: by libgomp's default after milliseconds, as it
comes after `GOMP_SPINCOUNT=10000` looks, with `OMP_WAIT_POLICY=passive` at once.
{report.provenance("bench-threads")}

{report.markdown_table(HEADER, rows)}"""


def parse() -> argparse.Namespace:
    command = report.parser(__doc__, rounds=5)
    command.add_argument("--loads", type=int, nargs="+", default=[0, 3], help="busy processes")
    command.add_argument("--quick", action="store_true", help="the first task, one round")
    return command.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
        return
    options = parse()
    tasks = list(TASKS)
    if options.quick:
        tasks, options.rounds, options.loads = tasks[:1], 1, [0]
    rows: list[tuple[Any, ...]] = []
    for task in tasks:
        rows += measured(task, options.loads, options.rounds)
    report.publish("bench-threads", section(rows, options.rounds), options.out)


if __name__ == "__main__":
    main()
