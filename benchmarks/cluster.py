"""Fit linear models on a Dask cluster of this machine: rounds, bytes, kills, files, beside dask-ml.

Run it by ``make bench-cluster``, which puts the tables into docs/benchmarks/cluster.md. Seconds on
one machine say little about a cluster; rounds, bytes, tasks, CPU seconds and bits do.
"""

from __future__ import annotations

import math
import os
import pickle
import random
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import psutil
import report
from dask import delayed
from distributed import Client, LocalCluster
from provenglm import GLMClassifier
from provenglm.rows.dask_rows import DaskRows

ROWS, COLUMNS, PARTS = 581_012, 54, 20  # the shape of covtype
PACKAGES = ("dask", "numpy", "scikit-learn")
SOLVERS = "lbfgs", "newton", "proximal_grad", "admm"


@contextmanager
def cluster(workers: int, **settings: Any) -> Iterator[Client]:
    given = {"threads_per_worker": 1, "dashboard_address": ":0", **settings}
    with LocalCluster(n_workers=workers, **given) as local, Client(local) as client:
        yield client


class Rounds:
    """The rounds of the fits within a block: whether X is read, and the bytes of results."""

    def __enter__(self) -> Rounds:
        self.all: list[tuple[bool, int, int]] = []
        self._run = run = DaskRows.run

        def counted(source: DaskRows, *given: Any, reads: bool = True, only: int | None = None):
            found = run(source, *given, reads=reads, only=only)
            sizes = [len(pickle.dumps(one, 5)) for one in found]
            self.all.append((reads and only is None, max(sizes), sum(sizes)))
            return found

        DaskRows.run = counted
        return self

    def __exit__(self, *_: object) -> None:
        DaskRows.run = self._run

    @property
    def reads(self) -> int:
        return sum(reads for reads, _, _ in self.all)

    @property
    def sample(self) -> int:
        """The bytes of the round that returns most."""
        return max(total for _, _, total in self.all)

    @property
    def largest(self) -> int:
        """The bytes of the largest result of a partition, but for the sample's rows and tables."""
        each = sorted((largest for reads, largest, _ in self.all if reads), reverse=True)
        return each[1]


def covtype(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS)) @ (np.eye(COLUMNS) + 0.1)
    X *= np.logspace(0, 2, COLUMNS)
    scores = (X / X.std(axis=0)) @ rng.normal(size=COLUMNS) / 3
    return X, (scores + rng.logistic(size=ROWS) > 0).astype(int)


def partitions(folder: str, array: np.ndarray, parts: int = PARTS) -> Any:
    """Return a lazy array of `.npy` files."""
    each = []
    for k, block in enumerate(np.array_split(array, parts)):
        path = f"{folder}/{array.ndim}-{k}.npy"
        np.save(path, block)
        each.append(dask.array.from_delayed(delayed(np.load)(path), block.shape, block.dtype))
    return dask.array.concatenate(each)


def cpu_seconds(client: Client) -> tuple[float, float]:
    """Return the CPU seconds of the workers, and those of the head: scheduler and solver."""
    return sum(client.run(_own_cpu).values()), _own_cpu()


def _own_cpu() -> float:
    times = psutil.Process().cpu_times()
    return times.user + times.system


def _tasks(dask_scheduler: Any) -> int:
    return sum(entry[2] == "processing" for entry in dask_scheduler.transition_log)


class Objective:
    """Our objective with C = 1, relative to its value without features.

    Gaps are (F - F*) / (F0 - F*).
    """

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self._X, self._sign = X, 2 * y - 1
        best = GLMClassifier(tol=1e-13).fit(X, y)
        share = y.mean()
        self.least = self._value(best.coef_[0], best.intercept_)
        null = self._value(np.zeros(X.shape[1]), math.log(share / (1 - share)))
        self.gain = null - self.least

    def _value(self, w: np.ndarray, b: Any) -> float:
        losses = np.logaddexp(0, -self._sign * (self._X @ w + np.ravel(b)[0]))
        return float(losses.mean() + w @ w / 2 / len(self._X))

    def gap(self, model: Any) -> str:
        found = self._value(np.ravel(model.coef_), model.intercept_)
        return f"{max(0.0, found - self.least) / self.gain:.0e}"

    def proven(self, model: GLMClassifier) -> str:
        return f"{model.gap_ / self.gain:.0e}"


class LateError(Exception):
    """The time limit is over."""


def _late(*_: object) -> None:
    raise LateError


def measured(client: Client, fit: Any, limit: int) -> tuple[Any, list[str]]:
    """Return what a fit returns, and its seconds, tasks and CPU seconds as text."""
    before, tasks, began = cpu_seconds(client), client.run_on_scheduler(_tasks), time.perf_counter()
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(limit)
    try:
        found = fit()
    except LateError:
        found = None
    finally:
        signal.alarm(0)
    seconds = time.perf_counter() - began
    tasks = client.run_on_scheduler(_tasks) - tasks
    workers, head = (a - b for a, b in zip(cpu_seconds(client), before, strict=True))
    shown = f"{seconds:.1f}" if found is not None else f"> {limit}, stopped"
    return found, [shown, f"{tasks:,}", f"{workers:.1f} + {head:.1f}"]


def beside_dask_ml(options: Any) -> str:
    X, y = covtype()
    objective = Objective(X, y)
    shapes, lines = [], []
    config = {"distributed.admin.low-level-log-length": 1_000_000}
    files = tempfile.TemporaryDirectory()
    with files as folder, dask.config.set(config), cluster(2) as client:
        far, target = partitions(folder, X).persist(), partitions(folder, y).persist()
        GLMClassifier(max_iter=1).fit(far, target)  # imports on the workers
        for tol in (1e-6, 1e-10):
            with Rounds() as rounds:
                model, cells = measured(
                    client,
                    lambda tol=tol: GLMClassifier(tol=tol).fit(far, target),
                    options.limit,
                )
            name, all_rounds = f"provenglm, tol={tol:g}", len(rounds.all)
            lines.append((name, all_rounds, *cells, objective.gap(model)))
            bytes_ = f"{rounds.largest:,}", f"{rounds.sample / 1e6:.1f}"
            shapes.append((name, all_rounds, rounds.reads, *bytes_, objective.proven(model)))
        for solver in SOLVERS if options.peers else ():
            from dask_ml.linear_model import LogisticRegression

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model, cells = measured(
                    client,
                    lambda solver=solver: LogisticRegression(solver=solver).fit(far, target),
                    options.limit,
                )
            gap = "" if model is None else objective.gap(model)
            lines.append((f"dask-ml, {solver}", "", *cells, gap))
    header = ["solver", "rounds", "with X", "largest sum, bytes", "sample, MB", "proven gap"]
    costs = ["solver", "rounds", "seconds", "tasks", "CPU seconds", "gap"]
    return f"""\
Random data of the shape of covtype, {ROWS:,} x {COLUMNS} in float64, {PARTS} partitions, persisted
on two workers with one thread each; two classes, C = 1. A round is a call for all partitions; some
need X, the others y alone. The bytes are those of the pickled results of a partition.
{report.provenance("bench-cluster", PACKAGES)}

{report.markdown_table(header, shapes)}

The same data and workers; CPU seconds of the workers and of the head; the gap is that of our
objective, (F - F*) / (F0 - F*). dask-ml penalises standardised coefficients and the intercept
(newton nothing), so its gap is not 0 at its own optimum.

{report.markdown_table(costs, lines)}"""


def correlated() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield standardised columns with condition numbers, and labels."""
    n, p = 100_000, 100
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(n, p)))
    turn, _ = np.linalg.qr(rng.normal(size=(p, p)))
    for kappa in (10, 100, 1_000, 10_000):
        X = basis * np.logspace(0, -math.log10(kappa), p) * math.sqrt(n) @ turn
        X /= X.std(axis=0)
        scores = X @ rng.normal(size=p)
        y = (3 * scores / scores.std() + rng.logistic(size=n) > 0).astype(int)
        yield f"condition {np.linalg.cond(X):,.0f}", X, y


def conditions(_: Any) -> str:
    lines = []
    for name, X, y in correlated():
        objective = Objective(X, y)
        with tempfile.TemporaryDirectory() as folder, Rounds() as rounds:
            model = GLMClassifier().fit(partitions(folder, X), partitions(folder, y))
        gaps = objective.proven(model), objective.gap(model)
        lines.append((name, rounds.reads, len(rounds.all), *gaps))
    header = ["100,000 x 100", "rounds with X", "all rounds", "proven gap", "true gap"]
    return f"""\
Standardised columns with geometric singular values; `tol=1e-6`.
{report.provenance("bench-cluster", PACKAGES)}

{report.markdown_table(header, lines)}"""


def spark(_: Any) -> str:
    """Fit the same objective with Spark's MLlib, on two threads of one process."""
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    lines = []
    problems = [("shape of covtype", *covtype()), *correlated()]
    for name, X, y in problems:
        objective = Objective(X, y)
        names = [f"x{j}" for j in range(X.shape[1])]
        with tempfile.TemporaryDirectory() as folder:
            frame = pd.DataFrame(X, columns=names).assign(label=y.astype(float))
            for k, part in enumerate(np.array_split(np.arange(len(y)), PARTS)):
                frame.iloc[part].to_parquet(Path(folder) / f"{k:02d}.parquet")
            rows = VectorAssembler(inputCols=names, outputCol="features").transform(
                session.read.parquet(folder)
            )
            rows = rows.select("features", "label").cache()
            rows.count()
            for iterations in (100, 10_000):
                # The penalty of C = 1, on the coefficients as they are.
                model = LogisticRegression(
                    regParam=1 / len(y), standardization=False, maxIter=iterations
                )
                began = time.perf_counter()
                found = model.fit(rows)
                seconds = time.perf_counter() - began
                point = SimpleNamespace(
                    coef_=found.coefficients.toArray(), intercept_=found.intercept
                )
                lines.append(
                    (
                        name,
                        f"MLlib, maxIter={iterations}",
                        found.summary.totalIterations,
                        f"{seconds:.1f}",
                        objective.gap(point),
                    )
                )
        began = time.perf_counter()
        with Rounds() as rounds, tempfile.TemporaryDirectory() as folder:
            model = GLMClassifier().fit(partitions(folder, X), partitions(folder, y))
        seconds = time.perf_counter() - began
        gap = objective.gap(model)
        lines.append((name, "provenglm", rounds.reads, f"{seconds:.1f}", gap))
    session.stop()
    header = ["data", "solver", "rounds with X", "seconds", "gap"]
    return f"""\
The same objective by Spark's MLlib, which reads X once or more in each iteration: `local[2]`,
cached; `maxIter` 100 is its default, `tol` 1e-6. provenglm on Dask's threads, lazy.
{report.provenance("bench-cluster", (*PACKAGES, "pyspark"))}

{report.markdown_table(header, lines)}"""


def slowed(block: np.ndarray) -> np.ndarray:
    time.sleep(0.02)
    return block


def kills(options: Any) -> str:
    X, y = covtype()
    X, y = X[:200_000], y[:200_000]
    draw, bits, seconds, errors, killed = random.Random(0), set(), [], 0, 0
    # A cluster for each: a killed worker is not always started again.
    for k in range(options.kills):
        with tempfile.TemporaryDirectory() as folder, cluster(3) as client:
            far, target = (
                partitions(folder, X).map_blocks(slowed, dtype=float),
                partitions(folder, y),
            )
            far = far.persist() if k % 2 else far
            victim = draw.choice(list(client.run(os.getpid).values()))
            timer = threading.Timer(draw.uniform(0.1, 2.0), os.kill, (victim, signal.SIGKILL))
            timer.start()
            began = time.perf_counter()
            try:
                bits.add(GLMClassifier().fit(far, target).coef_.tobytes())
            except Exception as error:
                print(error)
                errors += 1
            seconds.append(time.perf_counter() - began)
            killed += timer.finished.is_set()
            timer.cancel()
    lines = [
        (options.kills, killed, errors, len(bits), report.spread(seconds), f"{max(seconds):.1f}")
    ]
    header = ["fits", "killed within the fit", "errors", "different results", "seconds", "longest"]
    return f"""\
200,000 x {COLUMNS} in {PARTS} partitions, lazy and persisted in turn, on three workers; one is
killed by SIGKILL at a random moment of the first two seconds.
{report.provenance("bench-cluster", PACKAGES)}

{report.markdown_table(header, lines)}"""


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parquet(_: Any) -> str:
    files, n, p, limit = 32, 200_000, 64, 800
    rng = np.random.default_rng(0)
    weights = rng.normal(size=p) / 4
    with tempfile.TemporaryDirectory() as folder:
        for k in range(files):
            X = rng.normal(size=(n, p)).astype(np.float32)
            frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(p)])
            frame["y"] = (X @ weights + rng.logistic(size=n) > 0).astype(np.int8)
            frame.to_parquet(Path(folder) / f"{k:02d}.parquet")
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        environment = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 65536}
        with dask.config.set(environment), cluster(2, memory_limit=f"{limit}MB") as client:
            client.run(_imported)
            before = max(client.run(_peak).values())
            read = dask.dataframe.read_parquet(folder)
            began = time.perf_counter()
            with Rounds() as rounds:
                model = GLMClassifier().fit(read.drop(columns="y"), read["y"])
            seconds = time.perf_counter() - began
            peak = max(client.run(_peak).values())
    line = [
        f"{files} x {n:,} x {p}",
        f"{size / 1e6:,.0f}",
        f"{files * n * p * 4 / 1e6:,.0f}",
        f"2 x {limit}",
        rounds.reads,
        f"{seconds:.0f}",
        f"{model.gap_ / (math.log(2) - model.objective_):.0e}",
        f"{peak / 1e6:.0f} ({before / 1e6:.0f} before)",
    ]
    header = ["float32", "MB on disk", "MB as arrays", "memory limit, MB", "reads of X", "seconds"]
    return f"""\
Parquet files, read again in each round, on two workers whose memory limits together are smaller.
{report.provenance("bench-cluster", PACKAGES)}

{report.markdown_table([*header, "proven gap", "peak of a worker, MB"], [line])}"""


def _imported() -> None:
    import provenglm  # noqa: F401


SECTIONS = {
    "kills": kills,
    "parquet": parquet,
    "conditions": conditions,
    "dask-ml": beside_dask_ml,
    "spark": spark,
}


def main() -> None:
    command = report.parser(__doc__, rounds=1)
    command.add_argument("--only", choices=SECTIONS, help="one table")
    command.add_argument("--kills", type=int, default=30)
    command.add_argument("--limit", type=int, default=300, help="seconds of each solver of dask-ml")
    command.add_argument("--no-peers", dest="peers", action="store_false")
    options = command.parse_args()
    for name, section in SECTIONS.items():
        if name == "spark" and shutil.which("java") is None:
            print("Spark needs a Java runtime: its table stays as it is")
        elif options.only in (None, name):
            report.publish(f"bench-cluster {name}", section(options), options.out)


if __name__ == "__main__":
    main()
