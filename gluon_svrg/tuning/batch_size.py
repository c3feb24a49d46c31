"""find_batch_size: from which batch size on a larger one saves little, or does not fit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import as_current, as_legacy
from gluon_svrg.arguments import check_integer, check_number, explains_unknown
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.arrays.samples import num_samples, sample_axis
from gluon_svrg.data.training_data import training_data
from gluon_svrg.events import EventHandlers, Run
from gluon_svrg.tuning.dry_run import DryRun, check_arguments, rolled_back
from mxnet.ndarray import NDArray

# Steps of one size, of which the fastest counts; the first one, which plans its memory, does not.
_STEPS = 3

# What MXNet says if there is no memory left, on a GPU and on the CPU.
_NO_MEMORY = ("out of memory", "cudamalloc", "failed to allocate", "memory allocation failed")


@dataclass(frozen=True)
class BatchSizeTest:
    """What :func:`find_batch_size` has measured.

    Attributes
    ----------
    batch_sizes : list of int
        The sizes that were tried and fit into memory, each twice the one before.
    seconds_per_sample : list of float
        How long a training step takes, divided by the size.
    suggestion : int
        The largest size that is worth it.
    reason : str
        Why no larger one is.
    """

    batch_sizes: list[int]
    seconds_per_sample: list[float]
    suggestion: int
    reason: str


@explains_unknown(
    init_val="min_batch_size",
    batch_size="min_batch_size",
    epochs="it takes some batches of each size: leave it out",
)
def find_batch_size(
    estimator: Run,
    data: Iterable[object],
    min_batch_size: int = 8,
    max_batch_size: int | None = None,
    *,
    least_gain: float = 0.1,
    event_handlers: EventHandlers = None,
    batch_axis: int = 0,
) -> BatchSizeTest:
    """Find the largest batch size that fits into memory and still makes a sample cheaper.

    Training steps with batches of `min_batch_size`, twice that, four times, ... samples are timed,
    until a step takes less than `least_gain` less time per sample than one of half the size, or
    memory is exhausted, or `max_batch_size` is reached. The batches are made of the samples of the
    first batch of `data`, over and over. Everything is restored afterwards, as by
    :func:`gluon_svrg.find_learning_rate`.

    It says what a step costs, not how well the network learns: a larger batch takes fewer steps per
    epoch, and another learning rate. Time to load data is not measured. On a CPU that other
    programs use as well the result differs from call to call; and there memory seldom runs out
    with an error, so give a `max_batch_size`.

    Parameters
    ----------
    estimator : Estimator
        Whose network, loss, batch processor and trainer take the steps.
    data : iterable of (data, label)
        The training data; one batch is read.
    min_batch_size, max_batch_size : int
        The first size, and the last; by default the number of samples of `data`, at most 1,024.
    least_gain : float in (0, 1)
        By which part the time per sample has to fall when the size doubles.
    event_handlers, batch_axis
        As for :func:`gluon_svrg.find_learning_rate`.

    Returns
    -------
    BatchSizeTest
        With `suggestion`, `reason`, `batch_sizes` and `seconds_per_sample`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, the data have no batch, or one of sparse arrays. If
        there are several workers.
    MXNetError
        If a step of the first size fails, or one of another size for any reason but a lack of
        memory.
    """
    check_arguments(estimator, data, "find_batch_size")
    check_integer("min_batch_size", min_batch_size, 1, "the first size that is tried")
    check_number("least_gain", least_gain, "a part of the time per sample", 0, above=True)
    if least_gain >= 1:
        raise ValueError(f"least_gain must be less than 1, got {least_gain!r}: no size saves all")
    if max_batch_size is None:
        max_batch_size = max(min_batch_size, min(training_data(data).num_samples or 1024, 1024))
    check_integer("max_batch_size", max_batch_size, 1, "the last size that is tried")
    if max_batch_size < min_batch_size:
        raise ValueError(
            f"max_batch_size must be at least min_batch_size, got {max_batch_size!r} and "
            f"{min_batch_size!r}: the size grows from the one to the other"
        )
    last = max_batch_size

    def steps(dry_run: DryRun) -> BatchSizeTest:
        batch = next(iter(dry_run.batches(1)))
        return _tested(dry_run, batch, min_batch_size, last, least_gain, batch_axis)

    return rolled_back(estimator, data, event_handlers, batch_axis, steps)


def _tested(
    dry_run: DryRun, batch: object, size: int, last: int, least_gain: float, batch_axis: int
) -> BatchSizeTest:
    seconds: dict[int, float] = {}
    reason = f"max_batch_size={last} is reached"
    while size <= last:
        try:
            seconds[size] = _seconds_per_sample(dry_run, batch, size, batch_axis)
            gain = _gain(seconds, size)
            if gain < least_gain:
                # Once more, both of them: another program may have disturbed one.
                for other in (size // 2, size):
                    again = _seconds_per_sample(dry_run, batch, other, batch_axis)
                    seconds[other] = min(seconds[other], again)
                gain = _gain(seconds, size)
        except mx.base.MXNetError as e:
            if len(seconds) < 1 or not any(text in str(e).lower() for text in _NO_MEMORY):
                raise
            seconds.pop(size, None)
            reason = f"a batch of {size} samples does not fit into memory"
            break
        if gain < least_gain:
            reason = (
                f"a sample of a batch of {size} takes {100 * abs(gain):.0f} % "
                f"{'less' if gain >= 0 else 'more'} time than one of a batch of {size // 2}"
            )
            sizes = list(seconds)
            return BatchSizeTest(sizes, list(seconds.values()), size // 2, reason)
        size *= 2
    sizes = list(seconds)
    return BatchSizeTest(sizes, list(seconds.values()), sizes[-1], reason)


def _gain(seconds: dict[int, float], size: int) -> float:
    """Return by which part a sample is cheaper than at half the size; 1 for the first."""
    return 1 - seconds[size] / seconds[size // 2] if size // 2 in seconds else 1.0


def _seconds_per_sample(dry_run: DryRun, batch: object, size: int, batch_axis: int) -> float:
    made = _of_size(batch, size, batch_axis)
    times = []
    for _ in range(1 + _STEPS):
        mx.nd.waitall()
        begin = time.perf_counter()
        dry_run.step(dry_run.backward(made))
        mx.nd.waitall()
        times.append(time.perf_counter() - begin)
    return min(times[1:]) / size


def _of_size(batch: object, size: int, batch_axis: int) -> Any:
    """Return a batch of `size` samples: those of `batch`, over and over."""
    number = num_samples(tree_leaves(batch)[0], batch_axis)
    rows = np.arange(size) % number

    def of_size(array: Any) -> Any:
        if not isinstance(array, NDArray):
            return np.take(array, rows, sample_axis(array, batch_axis))
        if getattr(array, "stype", "default") != "default":
            raise ValueError(
                f"the batches have arrays of storage type {array.stype!r}, of which "
                "find_batch_size makes no other sizes: give dense ones"
            )
        axis = sample_axis(array, batch_axis)
        index = mx.nd.array(rows, array.ctx, "int64")
        return as_current(mx.nd.take(as_legacy(array), index, axis=axis))

    return tree_map(of_size, batch)
