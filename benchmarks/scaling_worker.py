"""A worker of scaling.py: how long a sum takes, from a barrier to its end on the first worker."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import gluon_svrg  # noqa: F401  # before MXNet
import mxnet as mx
from gluon_svrg import workers
from gluon_svrg.workers.compression import HalfPrecision, first_not_finite

PIECE = 1 << 18
"""Numbers of each array: those of a big layer."""


def limited(folder: Path, rate: str, number: int) -> None:
    """Have the links limited by who started this, who looks for the file."""
    Path(folder, f"{number}.part").write_text(rate)
    Path(folder, f"{number}.part").rename(folder / f"{number}.asked")
    while not Path(folder, f"{number}.done").exists():
        time.sleep(0.02)


def seconds_of_sums(numbers: int, seconds: float, in_half: bool) -> list[float]:
    own = workers.current()
    half = HalfPrecision()
    sizes = [PIECE] * (numbers // PIECE) + [numbers % PIECE] * bool(numbers % PIECE)
    arrays = [mx.nd.ones(size) for size in sizes]
    times: list[float] = []
    begin = time.perf_counter()
    while own.of_first(len(times) < 5 or time.perf_counter() - begin < seconds, "time"):
        for array in arrays:
            array[:] = 1.0
        mx.nd.waitall()
        own.barrier("the benchmark")
        start = time.perf_counter()
        if in_half:
            half.sum(arrays, own)
            first_not_finite(arrays)
        else:
            own.sum(arrays)
        mx.nd.waitall()
        times.append(time.perf_counter() - start)
    return times[2:]  # the first two make keys and buffers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=int, nargs="+", required=True)
    parser.add_argument("--rates", nargs="+", required=True, help="bits a second, or None")
    parser.add_argument("--folder", type=Path, required=True, help="where a limit is asked for")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each sum, about")
    parser.add_argument("--half", action="store_true", help="also as float16")
    options = parser.parse_args()
    own = workers.current()
    limits = 0
    for _ in range(options.rounds):
        for rate in options.rates:
            if own.is_first:
                limited(options.folder, rate, limits)
            limits += 1
            kinds = [False, True] if options.half else [False]
            for numbers, in_half in itertools.product(options.numbers, kinds):
                times = seconds_of_sums(numbers, options.seconds, in_half)
                if own.is_first:
                    row = {"rate": rate, "numbers": numbers, "seconds": statistics.median(times)}
                    print(json.dumps(row | ({"half": True} if in_half else {})), flush=True)


if __name__ == "__main__":
    main()
