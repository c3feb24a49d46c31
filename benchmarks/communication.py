"""What workers cost: a sum over two of them, and the steps of a ResNet-20 on one and two.

Two workers, one server and a scheduler on this machine, one thread each, so the four of them share
its cores, and no wire is measured. In each round every way sums the same arrays once, in turn; the
time is that of the first worker, from a barrier to the end of the sum.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable

import communication_steps
import gluon_svrg  # noqa: F401  # before MXNet
import mxnet as mx
import report
from gluon_svrg import workers
from gluon_svrg.launch.environment import SERVER_ENVIRONMENT

WAYS = {
    "StoreWorkers": "dist_sync, buckets",
    "MPIWorkers": "MPI, buckets",
    "SocketWorkers": "sockets",
    "pushpull": "one key an array, as `gluon.Trainer`",
}


def softmax() -> list[tuple[int, ...]]:
    """Return the shapes of a softmax regression's arrays."""
    return [(10, 784), (10,)]


def resnet_20() -> list[tuple[int, ...]]:
    """Return those of CIFAR's ResNet-20."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    for before, width in ((16, 16), (16, 32), (32, 64)):
        for block in range(3):
            inputs = before if block == 0 else width
            shapes += [(width, inputs, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if inputs != width:
                shapes += [(width, inputs, 1, 1), (width,), (width,)]
    return [*shapes, (10, 64), (10,)]


def resnet_50() -> list[tuple[int, ...]]:
    """Return those of ImageNet's ResNet-50."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for kernel in ((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [kernel, kernel[:1], kernel[:1]]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


PROBLEMS: dict[str, Callable[[], list[tuple[int, ...]]]] = {
    "softmax, 784 x 10": softmax,
    "ResNet-20": resnet_20,
    "1e6 numbers": lambda: [(1_000_000,)],
    "ResNet-50": resnet_50,
}


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each way on each problem; run by each worker."""
    own = workers.current()
    assert isinstance(own, workers.StoreWorkers)
    address = "127.0.0.1", int(os.environ["COMMUNICATION_MPI_PORT"])
    mpi = workers.MPIWorkers(own.rank, own.size, address, b"communication")
    seconds: dict[str, dict[str, list[float]]] = {}
    key = 0
    for problem, shapes in PROBLEMS.items():
        arrays = [mx.nd.random.normal(shape=shape) for shape in shapes()]
        keys = list(range(key, key + len(arrays)))
        key += len(arrays)
        own.store.init(keys, [mx.nd.zeros(array.shape) for array in arrays])

        def by_keys(arrays: list[mx.nd.NDArray] = arrays, keys: list[int] = keys) -> None:
            for i, (number, array) in enumerate(zip(keys, arrays, strict=True)):
                own.store.pushpull(number, array, out=array, priority=-i)

        ways: dict[str, Callable[[], None]] = {
            "StoreWorkers": lambda arrays=arrays: own.sum(arrays),  # type: ignore[misc]
            "MPIWorkers": lambda arrays=arrays: mpi.sum(arrays),  # type: ignore[misc]
            "SocketWorkers": lambda arrays=arrays: workers.SocketWorkers.sum(own, arrays),  # type: ignore[misc]
            "pushpull": by_keys,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(3 + rounds):
            for name, way in ways.items():
                for array in arrays:
                    array[:] = 1.0  # sums of sums would soon be infinite
                mx.nd.waitall()
                own.barrier("the benchmark")
                begin = time.perf_counter()
                way()
                mx.nd.waitall()
                if turn >= 3:
                    times[name].append(time.perf_counter() - begin)
        seconds[problem] = times
    return seconds


def in_a_cluster(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return what `measure` returns on the first of two workers."""
    environment = os.environ | {
        "GLUON_SVRG_WORKERS": "2",
        "GLUON_SVRG_ADDRESS": f"127.0.0.1:{communication_steps.free_port()}",
        "GLUON_SVRG_KEY": secrets.token_hex(16),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(communication_steps.free_port()),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_INTERFACE": "lo",
        "COMMUNICATION_MPI_PORT": str(communication_steps.free_port()),
        "OMP_NUM_THREADS": "1",
    }
    server = [sys.executable, "-m", "gluon_svrg.workers.server"]
    worker = [sys.executable, __file__, "--worker", "--rounds", str(rounds)]
    others = [
        subprocess.Popen(server, env=environment | {"DMLC_ROLE": "scheduler"}),
        subprocess.Popen(server, env=environment | {"DMLC_ROLE": "server"} | SERVER_ENVIRONMENT),
        subprocess.Popen(
            worker,
            env=environment | {"DMLC_ROLE": "worker", "GLUON_SVRG_RANK": "1"},
            stdout=subprocess.DEVNULL,
        ),
    ]
    try:
        first = subprocess.run(
            worker,
            env=environment | {"DMLC_ROLE": "worker", "GLUON_SVRG_RANK": "0"},
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        for process in others:
            process.kill()
            process.wait()
    return json.loads(first.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def section(seconds: dict[str, dict[str, list[float]]], steps: dict[str, list[float]]) -> str:
    rows = []
    for problem, times in seconds.items():
        shapes = PROBLEMS[problem]()
        row: list[object] = [problem, len(shapes), f"{numbers(shapes):,}"]
        row += [
            f"**{report.median(times[name]) * 1e3:.2f}** ({report.spread(times[name], 1e3, 2)})"
            for name in WAYS
        ]
        rows.append(row)
    header = ["arrays of", "arrays", "numbers", *(f"{k}: {v}" for k, v in WAYS.items())]
    return "\n\n".join(
        [
            "## What workers cost",
            "Milliseconds (quartiles) a step of `fit`, 48 steps a run, on a CIFAR ResNet-20 with "
            "SGD, momentum and a global batch of 128 images, on one machine; beside it PyTorch's "
            "loop by hand, without a metric or a handler. Ratios are those of the same round. "
            "Weak scaling: the step of one worker alone with as many samples, divided by that of "
            "all. Alone, a worker has a core for Python beside that of its kernels; of two workers "
            "on two cores each has one for both. So beside it the same from a worker that is kept "
            "on one core. Two processes share a machine's memory and caches, whatever they do: "
            "beside two that know nothing of each other is what working together costs.",
            communication_steps.table(steps),
            "Milliseconds (quartiles) from a barrier until two workers have the sums of their "
            "float32 arrays: two workers, a server and a scheduler on one machine, a thread each.",
            report.markdown_table(header, rows),
            report.provenance("bench-communication"),
        ]
    )


def numbers(shapes: list[tuple[int, ...]]) -> int:
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return total


def main() -> None:
    parser = report.parser(__doc__, rounds=30)
    parser.add_argument("--worker", action="store_true", help="be one of the workers")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.rounds)))
    else:
        # A round of these takes two minutes: epochs so long that the begin of `fit` is a hundredth.
        steps = communication_steps.measure(max(1, options.rounds // 4), options.peers_python)
        text = section(in_a_cluster(options.rounds), steps)
        report.publish("bench-communication", text, options.out)


if __name__ == "__main__":
    main()
