"""Threads over blocks of rows; BLAS has one thread meanwhile.

Blocks are fixed by the data alone and their sums are added in their order, so one thread and many
give the same bits, but for small data, which leave BLAS its threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import joblib
import numpy as np
from threadpoolctl import ThreadpoolController

from provenglm import constants

Item = TypeVar("Item")
Result = TypeVar("Result")

_LEAST_WORK_OF_THREADS = 1 << 18
"""Multiplications of a product of matrices from which on OpenBLAS takes several threads."""

_TURNS = 4
"""Parts of the items for each thread: one that is behind leaves some to the others."""


class _Blas:
    """BLAS with one thread, as long as anybody in this process wants it so.

    The number is the process's: were each fit to put back what it had found, two that overlap would
    leave BLAS with one thread for ever. And threadpoolctl 3.8 lets but one Python thread set it at
    a time: the first fit and the last one may be in different threads, so a thread of its own does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._threads = 1
        self._controller: ThreadpoolController | None = None
        self._setter: ThreadPoolExecutor | None = None

    @contextmanager
    def limited(self) -> Iterator[int]:
        """Limit BLAS while the block runs; give the threads that it had."""
        with self._lock:
            if self._users == 0:
                # Once a process: to look for the libraries takes 20 ms, and NumPy's and SciPy's are
                # loaded by now.
                if self._controller is None:
                    self._controller = ThreadpoolController().select(user_api="blas")
                controller = self._controller
                self._threads = min([pool["num_threads"] for pool in controller.info()], default=1)
                self._setter = ThreadPoolExecutor(1, "provenglm")
                self._limit = controller.wrap(limits=1)
                self._setter.submit(self._limit.__enter__).result()
            self._users += 1
        try:
            yield self._threads
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._setter is not None:
                    self._setter.submit(self._limit.__exit__, None, None, None).result()
                    self._setter.shutdown()


_blas = _Blas()


class Workers:
    """As many threads as BLAS would use, which joblib and OMP_NUM_THREADS limit.

    A fit outside of the main thread takes no further ones: in a pool of threads, fits that each
    took some would wait for each other.

    Parameters
    ----------
    size : int
        Numbers in the data: few of them are one thread's work.
    threads : int, optional
        Another number of them.
    """

    def __init__(self, size: int, threads: int | None = None) -> None:
        self.count = 1
        self._wanted = threads
        self._is_small = size < constants.SMALL
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the threads while the block runs, without NumPy's warnings: see `map`."""
        with np.errstate(over="ignore", invalid="ignore"), self._with_threads():
            yield

    @contextmanager
    def one_blas_thread(self, work: float) -> Iterator[None]:
        """Limit BLAS to one thread while the block runs, also for small data.

        Many small products in a row take longer with several threads, if other processes run.

        Parameters
        ----------
        work : float
            Multiplications of each product. BLAS takes one thread for a small one by itself.
        """
        if not self._is_small or work < _LEAST_WORK_OF_THREADS:
            yield
            return
        with _blas.limited():
            yield

    @contextmanager
    def _with_threads(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_small and is_main:
            yield
            return
        with _blas.limited() as threads:
            most = max(1, min(joblib.cpu_count(), threads)) if is_main else 1
            self.count = self._wanted or most
            if self.count == 1:
                yield
                return
            with ThreadPoolExecutor(self.count, "provenglm") as pool:
                self._pool = pool
                try:
                    yield
                finally:
                    self._pool = None

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        together: int | None = None,
    ) -> Iterable[Result]:
        """Return the results in the order of `items`.

        Without NumPy's warnings in a thread, as there are none in `running`: a trial step may lead
        to scores that overflow; its objective is then infinite, and it is refused.

        Parameters
        ----------
        together : int, optional
            Items of a part; 1 where a result is a matrix: a part's results are kept until it is
            done, and those of two parts for each thread at most.
        """
        if self._pool is None or len(items) < 2:
            return map(function, items)

        def quiet(some: Sequence[Item]) -> list[Result]:
            with np.errstate(over="ignore", invalid="ignore"):
                return [function(item) for item in some]

        # To hand over each small block by itself would take as long as the block.
        size = together or -(-len(items) // (_TURNS * self.count))
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        most = 2 * self.count if together else len(parts)
        return _in_order(self._pool, quiet, parts, most)


def _in_order(
    pool: ThreadPoolExecutor,
    function: Callable[[Item], list[Result]],
    parts: Sequence[Item],
    most: int,
) -> Iterator[Result]:
    """Yield the results of all parts; at most `most` parts run or wait to be yielded."""
    begun: deque[Future[list[Result]]] = deque()
    try:
        for part in parts:
            if len(begun) == most:
                yield from begun.popleft().result()
            begun.append(pool.submit(function, part))
        while begun:
            yield from begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()
