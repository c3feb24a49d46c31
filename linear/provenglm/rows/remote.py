"""Rows in other processes: functions are sent there, and their sums are returned.

The rows are divided into parts. Each part is a `Table` in one of the processes. A function is
called once per part, and its small results are sent back. They are added in this process in a fixed
order, so the sum does not depend on which process has which part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import csr_array, vstack

from provenglm.rows.base import Features
from provenglm.rows.table import CachedSums, Kept, Linear, Table, added
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_ARITY = 8
"""The number of results that are added together on each level of the tree."""


class RemoteRows(NamedTuple):
    """The shape and dtype of rows in other processes.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        The dtype of the blocks: float32 or float64.
    is_sparse : bool
        Whether a block is a CSR matrix.
    is_on_disk : bool
        Whether the rows are handled as rows on disk, which they are by default.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_sparse: bool = False
    is_on_disk: bool = True

    def precise(self) -> RemoteRows:
        """Return the same rows with blocks in float64."""
        return self._replace(dtype=np.dtype(np.float64))


class RemoteTable(CachedSums, ABC):
    """The table of rows in other processes, with the methods of `Table`.

    Parameters
    ----------
    rows : RemoteRows
    workers : Workers
        The threads of this process.
    has_offset : bool
        Whether there are offsets.
    """

    is_out_of_core = True

    def __init__(self, rows: RemoteRows, workers: Workers, has_offset: bool = False) -> None:
        self.rows, self.workers, self.has_offset = rows, workers, has_offset
        self._known: dict[Any, Any] = {}

    @abstractmethod
    def run(self, function: Callable[..., Any], *small: Any, reads: bool = True) -> list[Any]:
        """Call a function for the `Table` of each part; return the results in order.

        Parameters
        ----------
        function : callable
            A function that is defined at the top level of a module. Its first argument is the table
            of a part.
        *small
            Further arguments. They are pickled.
        reads : bool
            Whether the function needs features, and not only their shape.
        """

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.rows.shape[0]

    def precise(self) -> RemoteTable:
        """Return the same table with features in float64."""
        table = copy(self)
        table.rows = self.rows.precise()
        return table

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each block, which depends on the dtype."""
        key = _sizes, self._is_precise
        if key not in self._known:
            found = self.run(*key, reads=False)
            self._known[key] = [size for sizes in found for size in sizes]
        known: list[int] = self._known[key]
        return known

    def sum(
        self,
        function: Callable[..., Any],
        *small: Any,
        at: Linear | None = None,
        kept: Kept | None = None,
        reads: bool = True,
    ) -> Any:
        """Return the sum of a function's results for all blocks; see `Table.sum`."""
        assert kept is None
        given = self._is_precise, function, small, at, reads
        return _tree(self.run(_sum, *given, reads=reads or at is not None))

    def gathered(self, indices: NumPyArray, extra: int = 0) -> NumPyArray:
        """Return rows by their indices, dense and in float64, with `extra` unset columns."""
        raw = np.empty((len(indices), self.rows.shape[1] + extra))
        for places, features in self.run(_gathered, indices):
            raw[places, : self.rows.shape[1]] = features
        return raw

    def picked(self, indices: NumPyArray) -> Features:
        """Return rows by their indices, in float64 and in the type of a block."""
        if not self.rows.is_sparse:
            return self.gathered(indices)
        found = self.run(_picked, indices)
        order = np.argsort(np.concatenate([places for places, _ in found]), kind="stable")
        return csr_array(vstack([features for _, features in found], format="csr"))[order]

    def row_data(self, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray | None]:
        """Return targets, shares and offsets of rows by their indices."""
        found = self.run(_row_data, indices, reads=False)
        order = np.argsort(np.concatenate([places for places, _ in found]), kind="stable")
        target, share, offset = zip(*(values for _, values in found), strict=True)
        offsets = np.concatenate(offset)[order] if self.has_offset else None
        return np.concatenate(target)[order], np.concatenate(share)[order], offsets

    def moments(self, center: NumPyArray, wanted: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the means of ``x - center`` and of its square for some columns, in float64."""
        mean, square = _tree(self.run(_moments, center, wanted))
        return mean, square

    @property
    def _is_precise(self) -> bool:
        return self.rows.dtype == np.float64


AnyTable: TypeAlias = "Table | RemoteTable"
"""The table of a data set, in this process or in others."""


def _tree(results: list[Any]) -> Any:
    """Return the sum of the results, added in a tree whose shape depends only on their number."""
    while len(results) > 1:
        groups = [results[start : start + _ARITY] for start in range(0, len(results), _ARITY)]
        results = []
        for group in groups:
            total = None
            for found in group:
                total = added(total, found)
            results.append(total)
    return results[0]


def _with_dtype(table: Table, is_precise: bool) -> Table:
    return table.precise() if is_precise else table


def _sizes(table: Table, is_precise: bool) -> list[int]:
    return _with_dtype(table, is_precise).sizes


def _sum(
    table: Table,
    is_precise: bool,
    function: Callable[..., Any],
    small: tuple[Any, ...],
    at: Linear | None,
    reads: bool,
) -> Any:
    return _with_dtype(table, is_precise).sum(function, *small, at=at, reads=reads)


def _own(table: Table, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    """Return which `indices` belong to this table, by position, and their rows in the table."""
    places = np.flatnonzero((indices >= table.start) & (indices < table.start + table.n))
    return places, indices[places] - table.start


def _gathered(table: Table, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    places, own = _own(table, indices)
    return places, table.gathered(own)


def _picked(table: Table, indices: NumPyArray) -> tuple[NumPyArray, Features]:
    places, own = _own(table, indices)
    return places, table.picked(own)


def _row_data(table: Table, indices: NumPyArray) -> tuple[NumPyArray, Any]:
    places, own = _own(table, indices)
    return places, table.row_data(own)


def _moments(table: Table, center: NumPyArray, wanted: NumPyArray) -> Any:
    return table.moments(center, wanted)
