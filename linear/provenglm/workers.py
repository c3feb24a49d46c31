"""Threads that process blocks of rows, while BLAS is limited to one thread.

The blocks depend on the data alone, and their sums are added in a fixed order. The result is
therefore identical for any number of threads, except for small data, where BLAS keeps its threads.
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
"""OpenBLAS uses several threads for matrix products with at least this many multiplications."""

_TURNS = 4
"""Number of parts of the items per thread, so that a fast thread can take over work of a slow
one."""


class _Blas:
    """Limit BLAS to one thread while at least one fit in this process needs it.

    The limit holds for the whole process. If each fit restored the number that it found, two
    overlapping fits would leave BLAS with one thread for ever. In threadpoolctl 3.8 only one Python
    thread can change the number at a time, but the first and the last fit may run in different
    threads. Therefore a dedicated thread changes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._threads = 1
        self._controller: ThreadpoolController | None = None
        self._setter: ThreadPoolExecutor | None = None

    @contextmanager
    def limited(self) -> Iterator[int]:
        """Limit BLAS while the block runs; yield the number of threads that it had."""
        with self._lock:
            if self._users == 0:
                # Once per process: searching for the libraries takes 20 ms. NumPy's and SciPy's are
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
    """A pool with as many threads as BLAS would use; joblib and OMP_NUM_THREADS limit them.

    A fit outside the main thread uses no further threads, because fits in a pool of threads could
    otherwise wait for each other.

    Parameters
    ----------
    size : int
        Number of numbers in the data. Small data are processed by one thread.
    threads : int, optional
        Number of threads, instead of the default.
    """

    def __init__(self, size: int, threads: int | None = None) -> None:
        self.count = 1
        self._wanted = threads
        self._is_small = size < constants.SMALL
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the threads and switch off NumPy's warnings (see `map`) until the block ends."""
        with np.errstate(over="ignore", invalid="ignore"), self._with_threads():
            yield

    @contextmanager
    def one_blas_thread(self, work: float) -> Iterator[None]:
        """Limit BLAS to one thread while the block runs, also for small data.

        Many small products in sequence are slower with several threads if other processes run.

        Parameters
        ----------
        work : float
            Number of multiplications per product. BLAS itself uses one thread for a small product.
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

        NumPy's warnings are off in the threads, as in `running`: the scores of a trial step may
        overflow; the objective is then infinite, and the step is rejected.

        Parameters
        ----------
        together : int, optional
            Number of items per part. It is 1 if a result is a matrix, because the results of a part
            are kept until the part is done, and those of at most two parts per thread.
        """
        if self._pool is None or len(items) < 2:
            return map(function, items)

        def quiet(some: Sequence[Item]) -> list[Result]:
            with np.errstate(over="ignore", invalid="ignore"):
                return [function(item) for item in some]

        # Submitting each small block separately would take as long as processing it.
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
    """Yield the results of all parts; at most `most` parts are running or waiting."""
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
