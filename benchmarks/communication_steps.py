"""Time the steps of a ResNet-20 without the launcher, and on one and two workers under it.

Each contestant is a job of its own, which waits for its turn: the rounds are interleaved. A worker
under the launcher has no standard input, so the turns come by named pipes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import report
import resnet

ALONE = "no launcher"
ALONE_2 = "no launcher, two threads"
STORE = "launcher, one worker"
SOCKETS = "launcher, one worker, sockets"
STORE_2 = "**launcher, two workers**"
SOCKETS_2 = "launcher, two workers, sockets"


class Set(NamedTuple):
    """How a job is started: its workers, threads of each, and the launcher's engine if any."""

    workers: int = 1
    threads: int = 1
    engine: str | None = None


SETS = {
    ALONE: Set(),
    STORE: Set(engine="dist_sync"),
    SOCKETS: Set(engine="sockets"),
    ALONE_2: Set(threads=2),
    STORE_2: Set(2, engine="dist_sync"),
    SOCKETS_2: Set(2, engine="sockets"),
}


class Job:
    """A training that runs an epoch whenever it is told to."""

    def __init__(self, how: Set, folder: Path, batches: int) -> None:
        self.pipes = []
        for rank in range(how.workers):
            pipes = (folder / f"go-{rank}", folder / f"seconds-{rank}")
            for pipe in pipes:
                os.mkfifo(pipe)
            self.pipes.append(pipes)
        launcher = []
        if how.engine is not None:
            launcher = ["-m", "gluon_svrg.launch", "-n", str(how.workers), "--max-restarts", "0"]
            launcher += ["--engine", how.engine, "--threads", str(how.threads)]
        self.process = subprocess.Popen(
            [sys.executable, *launcher, __file__, str(folder), "--batches", str(batches)],
            env=os.environ | {"OMP_NUM_THREADS": str(how.threads)},
            stdout=subprocess.DEVNULL,
        )
        self.epoch()

    def epoch(self) -> float:
        """Return the seconds of one epoch: those of the slowest worker."""
        for go, _ in self.pipes:
            go.write_text("go")
        return max(json.loads(seconds.read_text()) for _, seconds in self.pipes)

    def close(self) -> None:
        for go, _ in self.pipes:
            go.write_text("end")
        self.process.wait()


def serve(folder: Path, batches: int) -> None:
    """Run an epoch for each ``go``; the first one is to warm up."""
    import gluon_svrg.workers
    import mxnet as mx

    rank = gluon_svrg.workers.current().rank
    data = resnet.our_batches(batches)
    estimator = resnet.our_estimator()
    while (folder / f"go-{rank}").read_text() == "go":
        mx.nd.waitall()
        begin = time.perf_counter()
        estimator.fit(data, epochs=1)
        mx.nd.waitall()
        seconds = time.perf_counter() - begin
        (folder / f"seconds-{rank}").write_text(json.dumps(seconds))


def measure(rounds: int, batches: int = 16) -> dict[str, list[float]]:
    """Return the seconds a step of each job in each round."""
    with ExitStack() as stack:
        jobs = {}
        for name, how in SETS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            job = Job(how, folder, batches)
            stack.callback(job.close)
            jobs[name] = job.epoch
        epochs = report.interleaved(jobs, rounds)
    return {name: [one / batches for one in seconds] for name, seconds in epochs.items()}


def table(seconds: dict[str, list[float]]) -> str:
    """Return the table of the seconds a step, beside those of one thread without a launcher."""
    rows = []
    for name, times in seconds.items():
        ratios = [one / alone for one, alone in zip(times, seconds[ALONE], strict=True)]
        rows.append(
            (
                name,
                SETS[name].workers * SETS[name].threads,
                f"{report.median(times) * 1e3:.1f} ({report.spread(times, 1e3)})",
                f"{report.median(ratios):.3f} ({report.spread(ratios, digits=3)})",
            )
        )
    header = ["job", "threads in all", "ms a step", f"beside *{ALONE}*"]
    return report.markdown_table(header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, required=True)
    options = parser.parse_args()
    serve(options.folder, options.batches)
