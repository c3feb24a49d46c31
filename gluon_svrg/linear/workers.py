"""Threads over blocks of rows; BLAS has one thread meanwhile.

Blocks are fixed by the data alone and their sums are added in their order, so one thread and many
give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from gluon_svrg._compat import usable_cores
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


_SMALL = 1_000_000


class Workers:
    """As many threads as BLAS would use, which joblib and OMP_NUM_THREADS limit.

    Parameters
    ----------
    size : int
        Numbers in the data. To ask BLAS costs 20 ms: small data leave it alone.
    """

    def __init__(self, size: int) -> None:
        self.count = 1
        self._pool: ThreadPoolExecutor | None = None
        self._controller: ThreadpoolController | None = None
        if size < _SMALL:
            return
        self._controller = ThreadpoolController().select(user_api="blas")
        allowed = [pool["num_threads"] for pool in self._controller.info()]
        self.count = max(1, min([usable_cores(), *allowed]))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the threads while the block runs."""
        if self._controller is None:
            yield
            return
        with self._controller.limit(limits=1):
            if self.count == 1:
                yield
                return
            with ThreadPoolExecutor(self.count, "gluon_svrg.linear") as pool:
                self._pool = pool
                try:
                    yield
                finally:
                    self._pool = None

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterable[Result]:
        """Return the results in the order of `items`."""
        if self._pool is None or len(items) < 2:
            return map(function, items)
        return self._pool.map(function, items)
