"""Time the steps of a ResNet-20 without the launcher, on one and two workers, and in PyTorch.

Each contestant is a job of its own, which waits for its turn: the rounds are interleaved.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import communication_pipes
import report
import resnet

ALONE = "no launcher"
HALF = "no launcher, half a batch"
HALF_CORE = "no launcher, half a batch, on one core"
TWICE = "no launcher, half a batch, two at once"
ALONE_2 = "no launcher, two threads"
STORE = "launcher, one worker"
STORE_2 = "**launcher, two workers**, dist_sync"
MPI_2 = "**launcher, two workers**, MPI"
SOCKETS_2 = "launcher, two workers, sockets"
TORCH = "PyTorch"
TORCH_HALF = "PyTorch, half a batch"
DDP_2 = "PyTorch, DDP over Gloo, two workers"


class Set(NamedTuple):
    """How a job is started: its workers, threads of each, the launcher's engine if any, its batch.

    Without an engine several workers know nothing of each other, and each has a batch of its own.
    `half` is the job of one worker with as many samples as each of these has. With `is_on_one_core`
    Python and the kernels share a core, as those of two workers on two cores do.
    """

    workers: int = 1
    threads: int = 1
    engine: str | None = None
    batch_size: int = resnet.BATCH_SIZE
    half: str | None = None
    is_on_one_core: bool = False


SETS = {
    ALONE: Set(),
    HALF: Set(batch_size=resnet.BATCH_SIZE // 2),
    HALF_CORE: Set(batch_size=resnet.BATCH_SIZE // 2, half=HALF, is_on_one_core=True),
    TWICE: Set(2, batch_size=resnet.BATCH_SIZE // 2, half=HALF),
    STORE: Set(engine="dist_sync"),
    ALONE_2: Set(threads=2),
    STORE_2: Set(2, engine="dist_sync", half=HALF),
    MPI_2: Set(2, engine="mpi", half=HALF),
    SOCKETS_2: Set(2, engine="sockets", half=HALF),
    TORCH: Set(),
    TORCH_HALF: Set(batch_size=resnet.BATCH_SIZE // 2),
    DDP_2: Set(2, half=TORCH_HALF),
}


def start(name: str, folder: Path, batches: int, torch_python: str) -> communication_pipes.Job:
    how = SETS[name]
    communication_pipes.make(folder, how.workers)
    size = [str(folder), "--batches", str(batches), "--batch-size", str(how.batch_size)]
    environment = os.environ | {"OMP_NUM_THREADS": str(how.threads)}
    if name in (TORCH, TORCH_HALF, DDP_2):
        command = [torch_python, str(Path(__file__).with_name("communication_ddp.py")), *size]
        # The launcher of PyTorch sets these, too.
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environment |= {"WORLD_SIZE": str(how.workers)}
        processes = [
            subprocess.Popen(
                command, env=environment | {"RANK": str(rank)}, stdout=subprocess.DEVNULL
            )
            for rank in range(how.workers)
        ]
        return communication_pipes.Job(folder, how.workers, processes)
    if how.is_on_one_core:
        size.append("--one-core")
    launcher = []
    if how.engine is not None:
        launcher = ["-m", "gluon_svrg.launch", "-n", str(how.workers), "--max-restarts", "0"]
        launcher += ["--engine", how.engine, "--threads", str(how.threads)]
    command = [sys.executable, *launcher, __file__, *size]
    processes = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], env=environment, stdout=subprocess.DEVNULL
        )
        for rank in range(1 if launcher else how.workers)
    ]
    return communication_pipes.Job(folder, how.workers, processes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(folder: Path, batches: int, batch_size: int, rank: int) -> None:
    import gluon_svrg.workers
    import mxnet as mx

    data = resnet.our_batches(batches, batch_size)
    estimator = resnet.our_estimator()

    def epoch() -> float:
        mx.nd.waitall()
        begin = time.perf_counter()
        estimator.fit(data, epochs=1)
        mx.nd.waitall()
        return time.perf_counter() - begin

    communication_pipes.serve(folder, rank or gluon_svrg.workers.current().rank, epoch)


def measure(rounds: int, torch_python: str, batches: int = 48) -> dict[str, list[float]]:
    """Return the seconds a step of each job in each round; without PyTorch where there is none."""
    has_torch = resnet.torch_version(torch_python) is not None
    with ExitStack() as stack:
        jobs = {}
        for name in SETS:
            if name in (TORCH, TORCH_HALF, DDP_2) and not has_torch:
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            job = start(name, folder, batches, torch_python)
            stack.callback(job.close)
            jobs[name] = job.epoch
        epochs = report.interleaved(jobs, rounds)
    return {name: [one / batches for one in seconds] for name, seconds in epochs.items()}


def table(seconds: dict[str, list[float]]) -> str:
    """Return the table of the seconds a step, beside those of one thread without a launcher."""
    rows = []
    for name, times in seconds.items():
        how = SETS[name]
        cells = []
        both = [HALF_CORE, TWICE] if how.workers == 2 and how.half == HALF else [None, None]
        for other in (ALONE, DDP_2, how.half, *both):
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
        "beside DDP",
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
