"""Tells, once a run, that the training waits for its data, and what helps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet import dataset_of
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.events import Run
from mxnet import gluon

_SHARE = 1 / 3
# Below this, in seconds, nobody would notice.
_WORTH_A_WORD = 0.5
# So many batches, and so many seconds of them, are looked at with MXNet idle before each.
_CHECKED_BATCHES, _CHECKED_SECONDS = 8, 0.25
_TRIES = 3


class DataWatch:
    """Measures how long the training waits for batches, and logs a hint if it is too long.

    MXNet computes in threads of its own. While it is still busy with the batches before, time spent
    on the next one is not lost, and may itself be a wait for MXNet. So the seconds that ``next``
    takes are a suspicion only. Once they are more than a third of the time, a few batches are asked
    for after a wait until MXNet is idle. The seconds for which it would have been busy are taken
    off those for a batch: what is left is what the run would gain.
    """

    def __init__(self) -> None:
        self._tries = 0
        self._is_checking = False
        self._is_done = False
        self._start()

    def watched(self, batches: Iterator[Any], run: Run) -> Iterator[Any]:
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
        is_long = self._waited > _SHARE * self._seconds
        if not self._is_checking:
            if is_long and self._waited > _WORTH_A_WORD:
                self._is_checking = True
                self._start()
        elif self._batches >= _CHECKED_BATCHES and self._seconds > _CHECKED_SECONDS:
            if is_long:
                run.logger.info(
                    "the training waits for its data for %.0f %% of the time: %s",
                    100 * self._waited / self._seconds,
                    advice(run.train_data),
                )
            self._tries += 1
            self._is_done = is_long or self._tries == _TRIES
            self._is_checking = False
            self._start()


def advice(data: object) -> str:
    """Return what makes data of this kind come sooner."""
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
