"""Find the batch size from which on a larger one is hardly faster, or does not fit into memory."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg.arguments import check_integer, check_number, explains_unknown
from gluon_svrg.arrays.batch import num_samples, sample_axis
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.data.training_data import training_data
from gluon_svrg.events import EventHandlers, Run
from gluon_svrg.tuning.dry_run import DryRun, check_arguments, rolled_back
from mxnet.ndarray import NDArray

# The number of timed steps per size, of which the fastest counts. One more step before them, in
# which MXNet plans its memory, is not timed.
_STEPS = 3

# Parts of MXNet's messages if there is no memory left, on GPU and CPU.
_OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "cudamalloc",
    "failed to allocate",
    "memory allocation failed",
)


@dataclass(frozen=True)
class BatchSizeTest:
    """The result of :func:`find_batch_size`.

    Attributes
    ----------
    batch_sizes : list of int
        The sizes that fit into memory, each twice the one before.
    seconds_per_sample : list of float
        The time of a training step per sample, for each size.
    suggestion : int
        The suggested size.
    reason : str
        Why no larger size is suggested.
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
    """Find the largest batch size that fits into memory and still reduces the time per sample.

    Training steps are timed with batches of `min_batch_size`, twice that, four times, ... samples.
    The test ends if the time per sample falls by less than `least_gain` when the size doubles, if
    memory is exhausted, or at `max_batch_size`. The batches repeat the samples of the first batch
    of `data`. Everything is restored afterwards, as by :func:`gluon_svrg.find_learning_rate`.

    The result says how fast a step is, not how well the network learns: a larger batch means fewer
    steps per epoch, and needs another learning rate. Loading the data is not timed. On a CPU that
    other programs use, the result varies from call to call. A CPU seldom raises an error when
    memory is exhausted, so give `max_batch_size`.

    Parameters
    ----------
    estimator : Estimator
        Its network, loss, batch processor and trainer take the steps.
    data : iterable of (data, label)
        The training data; one batch is read.
    min_batch_size, max_batch_size : int
        The first and the last size; the default for the last one is the number of samples of
        `data`, at most 1,024.
    least_gain : float in (0, 1)
        The fraction by which the time per sample must fall when the size doubles.
    event_handlers, batch_axis
        As for :func:`gluon_svrg.find_learning_rate`.

    Returns
    -------
    BatchSizeTest
        With `suggestion`, `reason`, `batch_sizes` and `seconds_per_sample`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, if the data have no batch or sparse arrays, or if there
        are several workers.
    MXNetError
        If a step of the first size fails, or a later one for another reason than memory.
    """
    check_arguments(estimator, data, "find_batch_size")
    check_integer("min_batch_size", min_batch_size, 1, "the first size that is tried")
    check_number("least_gain", least_gain, "a part of the time per sample", 0, above=True)
    if least_gain >= 1:
        raise ValueError(
            f"least_gain must be less than 1, got {least_gain!r}: the time cannot fall to 0"
        )
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
        return _test_sizes(dry_run, batch, min_batch_size, last, least_gain, batch_axis)

    return rolled_back(estimator, data, event_handlers, batch_axis, steps)


def _test_sizes(
    dry_run: DryRun, batch: object, size: int, last: int, least_gain: float, batch_axis: int
) -> BatchSizeTest:
    seconds: dict[int, float] = {}
    reason = f"max_batch_size={last} is reached"
    while size <= last:
        try:
            seconds[size] = _seconds_per_sample(dry_run, batch, size, batch_axis)
            gain = _gain(seconds, size)
            if gain < least_gain:
                # Measure both sizes again, because another program may have disturbed one.
                for other in (size // 2, size):
                    again = _seconds_per_sample(dry_run, batch, other, batch_axis)
                    seconds[other] = min(seconds[other], again)
                gain = _gain(seconds, size)
        except mx.base.MXNetError as e:
            if len(seconds) < 1 or not any(
                text in str(e).lower() for text in _OUT_OF_MEMORY_MESSAGES
            ):
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
    """Return the fraction of time per sample that doubling to `size` saves; 1 for the first."""
    return 1 - seconds[size] / seconds[size // 2] if size // 2 in seconds else 1.0


def _seconds_per_sample(dry_run: DryRun, batch: object, size: int, batch_axis: int) -> float:
    resized = _resized(batch, size, batch_axis)
    times = []
    for _ in range(1 + _STEPS):
        mx.nd.waitall()
        begin = time.perf_counter()
        dry_run.step(dry_run.backward(resized))
        mx.nd.waitall()
        times.append(time.perf_counter() - begin)
    return min(times[1:]) / size


def _resized(batch: object, size: int, batch_axis: int) -> Any:
    """Return a batch of `size` samples, which repeats the samples of `batch`."""
    number = num_samples(tree_leaves(batch)[0], batch_axis)
    rows = np.arange(size) % number

    def resize(array: Any) -> Any:
        if not isinstance(array, NDArray):
            return np.take(array, rows, sample_axis(array, batch_axis))
        if getattr(array, "stype", "default") != "default":
            raise ValueError(
                f"the batches have arrays of storage type {array.stype!r}, which "
                "find_batch_size cannot resize: give dense arrays"
            )
        axis = sample_axis(array, batch_axis)
        index = mx.nd.array(rows, array.ctx, "int64")
        return to_active_mode(mx.nd.take(to_nd(array), index, axis=axis))

    return tree_map(resize, batch)
