"""Rows that live in other processes: the same verb, which is sent to where they are.

The rows are cut into parts. Each part is a `Table` somewhere, and a function is called once per
part. Its results are small, and are added here in the order of a fixed tree over the parts. So the
result does not depend on which process has which part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import csr_array, vstack

from provenglm.rows.base import Features
from provenglm.rows.table import Kept, Linear, Table, added
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_ARITY = 8
"""The number of results that are added to one on each level of the tree."""


class FarRows(NamedTuple):
    """What is known here of rows that live in other processes.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        The dtype of their blocks: float32 or float64.
    is_sparse : bool
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_sparse: bool = False
    is_on_disk: bool = True

    def precise(self) -> FarRows:
        """Return the same rows with blocks in float64."""
        return self._replace(dtype=np.dtype(np.float64))


class FarTable(ABC):
    """The table of rows in other processes. It has the verbs of `Table`.

    Parameters
    ----------
    rows : FarRows
    workers : Workers
        The threads of this process.
    has_offset : bool
        Whether there are offsets.
    """

    is_far = True

    def __init__(self, rows: FarRows, workers: Workers, has_offset: bool = False) -> None:
        self.rows, self.workers, self.has_offset = rows, workers, has_offset
        self._known: dict[Any, Any] = {}

    @abstractmethod
    def run(self, function: Callable[..., Any], *small: Any) -> list[Any]:
        """Return the results of a function of each part's `Table`, in the order of the parts.

        Parameters
        ----------
        function : callable
            A function of a module; its first argument is the table of a part.
        *small
            Further arguments, which are pickled.
        """

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.rows.shape[0]

    def precise(self) -> FarTable:
        """Return the same table with features in float64."""
        table = copy(self)
        table.rows = self.rows.precise()
        return table

    @cached_property
    def sizes(self) -> list[int]:
        """The number of rows of each block."""
        return [size for sizes in self.run(_sizes, self._is_precise) for size in sizes]

    def sum(
        self,
        function: Callable[..., Any],
        *small: Any,
        at: Linear | None = None,
        kept: Kept | None = None,
        reads: bool = True,
    ) -> Any:
        """Return the sum of what a function returns for all blocks: see `Table.sum`."""
        assert kept is None
        return _tree(self.run(_sum, self._is_precise, function, small, at, reads))

    def known(self, function: Callable[..., Any], *small: Hashable) -> Any:
        """Return the sum of a function that needs no features: see `Table.known`."""
        key = function, small
        if key not in self._known:
            self._known[key] = self.sum(function, *small, reads=False)
        return self._known[key]

    def gathered(self, indices: NumPyArray, beside: int = 0) -> NumPyArray:
        """Return some rows' features, dense and in float64, and further columns that are unset."""
        raw = np.empty((len(indices), self.rows.shape[1] + beside))
        for places, features in self.run(_gathered, indices):
            raw[places, : self.rows.shape[1]] = features
        return raw

    def picked(self, indices: NumPyArray) -> Features:
        """Return some rows' features in float64, in the type of a block."""
        if not self.rows.is_sparse:
            return self.gathered(indices)
        found = self.run(_picked, indices)
        order = np.argsort(np.concatenate([places for places, _ in found]), kind="stable")
        return csr_array(vstack([features for _, features in found], format="csr"))[order]

    def beside(self, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray | None]:
        """Return the targets, shares and offsets of some rows."""
        found = self.run(_beside, indices)
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


AnyTable: TypeAlias = "Table | FarTable"
"""The rows of a data set, wherever they are."""


def _tree(results: list[Any]) -> Any:
    """Return the sum of results, added in a tree whose shape depends on their number alone."""
    while len(results) > 1:
        groups = [results[start : start + _ARITY] for start in range(0, len(results), _ARITY)]
        results = []
        for group in groups:
            total = None
            for found in group:
                total = added(total, found)
            results.append(total)
    return results[0]


def _of_dtype(table: Table, is_precise: bool) -> Table:
    return table.precise() if is_precise else table


def _sizes(table: Table, is_precise: bool) -> list[int]:
    return _of_dtype(table, is_precise).sizes


def _sum(
    table: Table,
    is_precise: bool,
    function: Callable[..., Any],
    small: tuple[Any, ...],
    at: Linear | None,
    reads: bool,
) -> Any:
    return _of_dtype(table, is_precise).sum(function, *small, at=at, reads=reads)


def _own(table: Table, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    """Return the places of the table's rows among the indices, and their numbers in the table."""
    places = np.flatnonzero((indices >= table.start) & (indices < table.start + table.n))
    return places, indices[places] - table.start


def _gathered(table: Table, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    places, own = _own(table, indices)
    return places, table.gathered(own)


def _picked(table: Table, indices: NumPyArray) -> tuple[NumPyArray, Features]:
    places, own = _own(table, indices)
    return places, table.picked(own)


def _beside(table: Table, indices: NumPyArray) -> tuple[NumPyArray, Any]:
    places, own = _own(table, indices)
    return places, table.beside(own)


def _moments(table: Table, center: NumPyArray, wanted: NumPyArray) -> Any:
    return table.moments(center, wanted)
