"""A worker of communication.py: sums of arrays, and messages.

Given ``--start`` it only says when all workers have met.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import communication_pipes

REPEATS = {"ResNet-20": 20, "ResNet-50": 3, "message": 200}


def resnet_20() -> list[tuple[int, ...]]:
    """Return the shapes of CIFAR's ResNet-20: 1.09 MB in 65 arrays of float32."""
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
    """Return those of ImageNet's ResNet-50: 102 MB in 161 arrays."""
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


PROBLEMS = {"ResNet-20": resnet_20, "ResNet-50": resnet_50}


def medians(
    begin: Callable[[], None], ways: dict[str, Callable[[], None]]
) -> Callable[[], list[float]]:
    """Return what times each way, a call at a time, each after `begin`."""

    def measure() -> list[float]:
        found = []
        for name, way in ways.items():
            seconds = []
            for _ in range(REPEATS[name]):
                begin()
                start = time.perf_counter()
                way()
                seconds.append(time.perf_counter() - start)
            found.append(sorted(seconds)[len(seconds) // 2])
        return found

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", action="store_true")
    options = parser.parse_args()

    import gluon_svrg  # noqa: F401  # before MXNet
    import mxnet as mx
    from gluon_svrg import workers

    own = workers.current()
    own.barrier("the start")
    if options.start:
        (options.folder / f"met-{own.rank}").write_text(repr(time.time()))
        return
    arrays = {name: [mx.nd.ones(shape) for shape in shapes()] for name, shapes in PROBLEMS.items()}

    def begin() -> None:
        for array in arrays["ResNet-20"] + arrays["ResNet-50"]:
            array[:] = 1.0  # sums of sums would soon be infinite
        mx.nd.waitall()
        own.barrier("the benchmark")
        # A worker that waited in the first barrier has paused, and leaves it later.
        own.barrier("the sums")

    def add(some: list[mx.nd.NDArray]) -> None:
        own.all_reduce(some)
        mx.nd.waitall()

    sums = medians(begin, {name: lambda s=some: add(s) for name, some in arrays.items()})  # type: ignore[misc]
    messages = medians(
        lambda: None, {"message": lambda: own.all_gather_object([None, 0, None], "vote") and None}
    )
    communication_pipes.serve(options.folder, own.rank, lambda: [*sums(), *messages()])


if __name__ == "__main__":
    main()
