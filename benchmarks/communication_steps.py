"""Time the steps of a ResNet-20 on one, two and four workers: MPI, PyTorch.

Each contestant is a job of its own, which waits for its turn: the rounds are interleaved.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import communication_jobs
import communication_pipes
import report
import resnet
from communication_jobs import Engine

ALONE = "one process"
HALF = "one process, half a batch"
HALF_CORE = "one process, half a batch, on one core"
TWICE = "one process, half a batch, two at once"
TORCH = "PyTorch"


class Set(NamedTuple):
    """How a job is started: its workers, the engine between them if any, the batch of all.

    Without an engine several workers know nothing of each other, and each has a batch of its own.
    `half` is the job of one worker with as many samples as each of these has. With `is_on_one_core`
    Python and the kernels share a core, as those of two workers on two cores do.
    """

    workers: int = 1
    engine: Engine | None = None
    batch_size: int = resnet.BATCH_SIZE
    threads: int = 1
    half: str | None = None
    is_on_one_core: bool = False


def sets(engines: dict[str, Engine]) -> dict[str, Set]:
    """Return the jobs: each engine with two and with four workers, and what to compare with."""
    half = resnet.BATCH_SIZE // 2
    found = {
        ALONE: Set(),
        f"{ALONE}, two threads": Set(threads=2),
        HALF: Set(batch_size=half),
        HALF_CORE: Set(batch_size=half, half=HALF, is_on_one_core=True),
        TWICE: Set(2, batch_size=half, half=HALF),
    }
    if any(engine.name == "gloo" for engine in engines.values()):
        found[TORCH] = Set(engine=next(e for e in engines.values() if e.name == "gloo"))
    for workers in (2, 4):
        for name, engine in engines.items():
            is_like_half = workers == 2 and engine.name != "gloo"
            half_of = HALF if is_like_half else None
            found[f"{name}, {workers} workers"] = Set(workers, engine, half=half_of)
    return found


def start(how: Set, folder: Path, batches: int) -> communication_pipes.Job:
    communication_pipes.make(folder, how.workers)
    size = [str(folder), "--batches", str(batches), "--batch-size", str(how.batch_size)]
    if how.engine is not None:
        script = "communication_ddp.py" if how.engine.name == "gloo" else Path(__file__).name
        processes = communication_jobs.start(how.engine, how.workers, script, size)
        return communication_pipes.Job(folder, how.workers, processes)
    if how.is_on_one_core:
        size.append("--one-core")
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *size, "--rank", str(rank)],
            env=os.environ | {"OMP_NUM_THREADS": str(how.threads)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(how.workers)
    ]
    return communication_pipes.Job(folder, how.workers, processes)


def serve(folder: Path, batches: int, batch_size: int, rank: int) -> None:
    import gluon_svrg.workers
    import mxnet as mx

    data = resnet.our_batches(batches, batch_size)
    estimator = resnet.our_estimator()

    def epoch() -> list[float]:
        mx.nd.waitall()
        begin = time.perf_counter()
        estimator.fit(data, epochs=1)
        mx.nd.waitall()
        return [time.perf_counter() - begin]

    communication_pipes.serve(folder, rank or gluon_svrg.workers.current().rank, epoch)


def measure(rounds: int, jobs_of: dict[str, Set], batches: int = 48) -> dict[str, list[float]]:
    """Return the seconds a step of each job in each round."""
    with ExitStack() as stack:
        jobs = {}
        for name, how in jobs_of.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            job = start(how, folder, batches)
            stack.callback(job.close)
            jobs[name] = lambda job=job: job.turn()[0]
        epochs = report.interleaved(jobs, rounds)
    return {name: [one / batches for one in seconds] for name, seconds in epochs.items()}


def table(seconds: dict[str, list[float]], jobs: dict[str, Set]) -> str:
    """Return the table of the seconds a step, beside those of one process with one thread."""
    rows = []
    for name, times in seconds.items():
        how = jobs[name]
        cells = []
        both = [HALF_CORE, TWICE] if how.workers == 2 and how.half == HALF else [None, None]
        ddp = f"PyTorch, Gloo, {how.workers} workers"
        for other in (ALONE, ddp if how.engine else None, how.half, *both):
            if other not in seconds:
                cells.append("")
                continue
            ratios = [a / b for a, b in zip(times, seconds[other], strict=True)]
            if other in (how.half, *both):
                ratios = [1 / ratio for ratio in ratios]
            cells.append(f"{report.median(ratios):.3f} ({report.spread(ratios, digits=3)})")
        milliseconds = f"{report.median(times) * 1e3:.1f} ({report.spread(times, 1e3)})"
        rows.append((name, how.workers * how.threads, how.batch_size, milliseconds, *cells))
    header = [
        "job",
        "threads in all",
        "batch",
        "ms a step",
        f"beside *{ALONE}*",
        "beside DDP with as many",
        "weak scaling",
        "beside one on one core",
        "beside two without a sum",
    ]
    return report.markdown_table(header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0, help="of one that is in no job")
    parser.add_argument("--one-core", action="store_true")
    options = parser.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    serve(options.folder, options.batches, options.batch_size, options.rank)
