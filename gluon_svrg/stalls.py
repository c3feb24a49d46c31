"""StallDetector: logs, once per run, that training waits for its data, and what helps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.dataloader import dataset_of
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.events import Run
from mxnet import gluon

# The fraction of the time above which a wait is logged.
_MIN_STALL_FRACTION = 1 / 3
# A shorter wait would not be noticed.
_MIN_STALL_SECONDS = 0.5
# The check, with MXNet idle before each batch, takes at least this many batches and seconds.
_CHECKED_BATCHES, _CHECKED_SECONDS = 8, 0.25
_MAX_CHECKS = 3


class StallDetector:
    """Measures how long the training waits for batches, and logs a hint if it is too long.

    MXNet computes in threads of its own. While it is busy with earlier batches, time spent on the
    next batch is not lost, and may itself be a wait for MXNet. So a long ``next`` is only a first
    sign. If it takes more than a third of the time, the detector checks a few batches: it waits
    until MXNet is idle before it asks for each, and subtracts the seconds of that wait from those
    of ``next``. The rest is the time that the run would gain.
    """

    def __init__(self) -> None:
        self._tries = 0
        self._is_checking = False
        self._is_done = False
        self._start()

    def watch(self, batches: Iterator[Any], run: Run) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        now = time.perf_counter
        last = now()
        while not self._is_done:
            begin = now()
            if self._is_checking:
                mx.nd.waitall()
            idle = now()
            try:
                batch = next(batches)
            except StopIteration:
                return
            got = now()
            overlap = min(got - idle, idle - begin)
            self._waited += got - idle - overlap
            self._seconds += got - last - overlap
            self._batches += 1
            last = got
            self._decide(run)
            yield batch
        yield from batches

    def _start(self) -> None:
        self._waited = self._seconds = 0.0
        self._batches = 0

    def _decide(self, run: Run) -> None:
        is_long = self._waited > _MIN_STALL_FRACTION * self._seconds
        if not self._is_checking:
            if is_long and self._waited > _MIN_STALL_SECONDS:
                self._is_checking = True
                self._start()
        elif self._batches >= _CHECKED_BATCHES and self._seconds > _CHECKED_SECONDS:
            if is_long:
                run.logger.info(
                    "%.0f %% of the time is spent waiting for data: %s",
                    100 * self._waited / self._seconds,
                    stall_hint(run.train_data),
                )
            self._tries += 1
            self._is_done = is_long or self._tries == _MAX_CHECKS
            self._is_checking = False
            self._start()


def stall_hint(data: object) -> str:
    """Return how to speed up data of this kind."""
    if isinstance(data, ArrayLoader):
        return (
            "what the ArrayLoader does for a batch is its transform and the reading of its arrays; "
            "use a cheaper transform (those of gluon_svrg.data.transforms work on whole batches), "
            "and arrays in memory"
        )
    if isinstance(data, gluon.data.DataLoader):
        if isinstance(dataset_of(data), gluon.data.ArrayDataset):
            return (
                "a DataLoader over arrays costs about 22 microseconds a sample, as it takes them "
                "one by one; use gluon_svrg.data.ArrayLoader(x, y, batch_size=..., shuffle=...)"
            )
        return (
            "give the DataLoader (more) num_workers; if the samples fit into memory, use "
            "gluon_svrg.data.ArrayLoader with gluon_svrg.data.transforms, which work on whole "
            "batches"
        )
    if isinstance(data, mx.io.DataIter):
        return (
            "give the iterator more preprocess_threads if it has them, or wrap it in "
            "mx.io.PrefetchingIter, which reads ahead"
        )
    return (
        "make the batches ahead, in workers (a DataLoader with num_workers), or keep the samples "
        "in memory (gluon_svrg.data.ArrayLoader)"
    )
