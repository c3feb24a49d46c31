"""The rows of a data set with their targets, shares and offsets, and all sums over them.

`Table.sum` calls a function once per block of rows and adds the results in a fixed order. If the
rows are in memory, the scores of all rows may be kept, and the function gets those of its block. If
the rows are in files or in other processes, no array with a number per row is kept between two
calls: scores are computed from the features whenever a function needs them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from provenglm import constants
from provenglm.rows import reading
from provenglm.rows.base import Features, Rows
from provenglm.rows.blocks import parts_of
from provenglm.rows.centred import Coordinates
from provenglm.rows.copies import ScaledRows
from provenglm.rows.disk import DiskRows
from provenglm.rows.kinds import rows_of
from provenglm.rows.products import column_moments
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_GROUP, _LEAST_GROUPS = 8, 32
"""Blocks are summed in groups of up to `_GROUP`, each by one thread. The groups are smaller if
there would be fewer than `_LEAST_GROUPS` of them."""


class Linear(NamedTuple):
    """A linear model. It can be pickled and sent to the processes that have the rows.

    Attributes
    ----------
    weights : numpy.ndarray, (p, K)
    bias : numpy.ndarray, (K,)
        The intercepts, in float64.
    center : numpy.ndarray, (p,), optional
        The centres to subtract from the features.
    """

    weights: NumPyArray
    bias: NumPyArray
    center: NumPyArray | None = None


class Kept(NamedTuple):
    """The scores and residuals of all rows at a point, which are kept if the rows are in memory.

    Attributes
    ----------
    scores : numpy.ndarray, (n, K)
        The scores, including offsets.
    residuals : numpy.ndarray, scores' shape, optional
    """

    scores: NumPyArray
    residuals: NumPyArray | None = None


class Block:
    """Consecutive rows with their targets, shares and offsets.

    Parameters
    ----------
    table : Table
    index : int
        The index of the block.
    part : slice
        The indices of the rows in the table.
    at : Linear, optional
        The model whose scores `scores` returns.
    kept : Kept, optional
        The scores and residuals of this model for all rows, if they are kept.
    """

    def __init__(
        self,
        table: Table,
        index: int,
        part: slice,
        at: Linear | None = None,
        kept: Kept | None = None,
    ) -> None:
        self._table, self.index, self.part = table, index, part
        self._at, self._kept = at, kept
        self._raw: Features | None = None
        self._scores: NumPyArray | None = None

    def __len__(self) -> int:
        return int(self.part.stop - self.part.start)

    @property
    def start(self) -> int:
        """The index of the first row in the whole data set."""
        return int(self._table.start + self.part.start)

    @property
    def raw(self) -> Features:
        """The features, (b, p). They must not be modified."""
        if self._raw is None:
            self._raw = reading.block(self._table.rows, self.part)
        return self._raw

    @property
    def features(self) -> Features:
        """The features minus the centres of the model."""
        if self._at is not None and self._at.center is not None:
            return self.raw - self._at.center
        return self.raw

    @property
    def target(self) -> NumPyArray:
        """The targets, (b,). Numbers have the dtype of the features; classes stay as they are."""
        target = self._table.target[self.part]
        if target.dtype.kind in "iu":
            return target
        return target.astype(self._table.rows.dtype, copy=False)

    @property
    def exact_target(self) -> NumPyArray:
        """The targets, (b,), in their own dtype."""
        return self._table.target[self.part]

    @property
    def share(self) -> NumPyArray:
        """The shares, (b,), in float64. The shares of all rows sum to 1."""
        return np.ascontiguousarray(self._table.share[self.part])

    @property
    def offset(self) -> NumPyArray | None:
        """The offsets, (b, K), or None."""
        return None if self._table.offset is None else self._table.offset[self.part]

    def bias_with_offsets(self, bias: NumPyArray) -> NumPyArray:
        """Return intercepts plus offsets, in the dtype of the features.

        The sum is computed in float64, because both may be large and cancel.
        """
        dtype, offset = self._table.rows.dtype, self.offset
        return np.asarray(bias if offset is None else bias + offset, dtype)

    def products(self, model: Linear) -> NumPyArray:
        """Return the scores of another model, without offsets."""
        if not model.weights.any():
            shape = len(self), model.weights.shape[1]
            return np.full(shape, np.asarray(model.bias, self._table.rows.dtype))
        products = self.features @ model.weights
        products += np.asarray(model.bias, products.dtype)
        return np.asarray(products)

    @property
    def scores(self) -> NumPyArray:
        """The scores of the model, including offsets, (b, K)."""
        if self._kept is not None:
            return self._kept.scores[self.part]
        if self._scores is None:
            assert self._at is not None
            weights, bias, _ = self._at
            beside = self.bias_with_offsets(bias)
            if weights.any():
                self._scores = self.features @ weights
                self._scores += beside
            else:
                self._scores = np.full((len(self), weights.shape[1]), beside)
        return self._scores

    @property
    def precise_scores(self) -> NumPyArray:
        """The scores in float64."""
        return self.scores.astype(np.float64, copy=False)

    @property
    def residuals(self) -> NumPyArray | None:
        """The residuals, if they are kept; otherwise None."""
        kept = self._kept
        return None if kept is None or kept.residuals is None else kept.residuals[self.part]


class CachedSums:
    """A table whose sums of a few numbers, which need no features, are computed only once."""

    _known: dict[Any, Any]

    @abstractmethod
    def sum(self, function: Callable[..., Any], *small: Any, reads: bool = True) -> Any:
        """Return the sum of a function's results for all blocks."""

    def known(self, function: Callable[..., Any], *small: Hashable) -> Any:
        """Return the sum of a function that needs no features, which is computed only once.

        The result must not be modified.
        """
        key = function, small
        if key not in self._known:
            self._known[key] = self.sum(function, *small, reads=False)
        return self._known[key]


@dataclass(frozen=True)
class Table(CachedSums):
    """The rows of a data set with targets, shares and offsets.

    Parameters
    ----------
    rows : Rows
    target : numpy.ndarray, (n,)
    share : numpy.ndarray, (n,)
        The shares, in float64, which sum to 1.
    workers : Workers
    offset : numpy.ndarray, (n, K), optional
        The offsets of the scores, in float64.
    start : int
        The index of the table's first row in the whole data set, if the data have several tables.
    """

    rows: Rows
    target: NumPyArray
    share: NumPyArray
    workers: Workers
    offset: NumPyArray | None = None
    start: int = 0
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.rows.shape[0]

    @property
    def has_offset(self) -> bool:
        """Whether there are offsets."""
        return self.offset is not None

    @property
    def is_out_of_core(self) -> bool:
        """Whether the rows are not in memory, so that no array with a number per row is kept."""
        return self.rows.is_on_disk

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each block."""
        return [part.stop - part.start for part in reading.slices(self.rows)]

    def precise(self) -> Table:
        """Return the same rows with features in float64."""
        return replace(self, rows=self.rows.precise())

    def scaled(self, coordinates: Coordinates, dtype: np.dtype[Any], keeps: bool = True) -> Table:
        """Return a table of the rows in other coordinates.

        Parameters
        ----------
        coordinates : Coordinates
        dtype : numpy.dtype
        keeps : bool
            Whether to copy the rows. If False, each sum transforms its blocks again.
        """
        rows = ScaledRows(self.rows, coordinates, dtype)
        return replace(self, rows=rows_of(rows.copied(self.workers)) if keeps else rows)

    def head(self, count: int) -> Table:
        """Return a table of the first `count` rows. The rows must be dense and in memory."""
        part = slice(0, count)
        return replace(
            self,
            rows=rows_of(reading.block(self.rows, part)),
            target=self.target[part],
            share=self.share[part],
            offset=None if self.offset is None else self.offset[part],
        )

    def subsampled(self, stride: int) -> Table:
        """Return a table that sums over one block in `stride`. The rows must be on disk."""
        assert isinstance(self.rows, DiskRows)
        return replace(self, rows=self.rows.subsampled(stride))

    def sum(
        self,
        function: Callable[..., Any],
        *small: Any,
        at: Linear | None = None,
        kept: Kept | None = None,
        reads: bool = True,
    ) -> Any:
        """Return the sum of a function's results for all blocks.

        Numbers and arrays are added, and tuples are added element by element. Lists are
        concatenated. Other objects are added with ``+``. The order depends on the data alone.

        Parameters
        ----------
        function : callable
            A function that is called with a block and `small`. If the rows are in other processes,
            it must be defined at the top level of a module, and `small` must be picklable.
        at : Linear, optional
            The model whose scores the function needs.
        kept : Kept, optional
            The kept scores and residuals of this model, for rows in memory.
        reads : bool
            Whether the function needs features. If neither features nor new scores are needed, the
            blocks are larger than those that are read.
        """
        if reads or (at is not None and kept is None):
            slices = reading.slices(self.rows)
        else:
            slices = parts_of(self.n, 1 if kept is None else kept.scores.shape[1])
        if len(slices) == 1:
            return function(Block(self, 0, slices[0], at, kept), *small)
        size = max(1, min(_GROUP, len(slices) // _LEAST_GROUPS))

        def sum_group(start: int) -> Any:
            found = None
            for index in range(start, min(start + size, len(slices))):
                block = Block(self, index, slices[index], at, kept)
                found = added(found, function(block, *small))
            return found

        total = None
        for found in self.workers.map(sum_group, range(0, len(slices), size), together=1):
            total = added(total, found)
        return total

    def gathered(self, indices: NumPyArray, extra: int = 0) -> NumPyArray:
        """Return rows by their indices, dense and in float64, with `extra` unset columns."""
        raw = np.empty((len(indices), self.rows.shape[1] + extra))
        size = max(constants.LEAST_BLOCK_ROWS, len(indices) // (4 * self.workers.count))
        # Sort the indices, so that each thread reads its own part of the file.
        order = np.argsort(indices) if self.is_out_of_core else None

        def gather(start: int) -> None:
            part: Any = slice(start, start + size)
            part = part if order is None else order[part]
            raw[part, : self.rows.shape[1]] = reading.gather(self.rows, indices[part])

        for _ in self.workers.map(gather, range(0, len(indices), size)):
            pass
        return raw

    def picked(self, indices: NumPyArray) -> Features:
        """Return rows by their indices, in float64 and in the type of a block."""
        return reading.pick(self.rows.precise(), indices)

    def row_data(self, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray | None]:
        """Return targets, shares and offsets of rows by their indices."""
        offset = None if self.offset is None else self.offset[indices]
        return self.target[indices], np.asarray(self.share[indices]), offset

    def moments(self, center: NumPyArray, wanted: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the means of ``x - center`` and of its square for some columns, in float64."""
        mean, square = self.sum(_moments, center, wanted)
        return mean, square


def _moments(block: Block, center: NumPyArray, wanted: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    return column_moments(block.features, block.share, center, wanted)


def added(total: Any, found: Any) -> Any:
    """Return the sum of two results. The first one may be None, and may be modified."""
    if total is None:
        return found
    if isinstance(total, np.ndarray) and total.shape == np.shape(found) and total.ndim:
        total += found
        return total
    if found is None:
        return total
    if isinstance(total, tuple) and type(total).__add__ is tuple.__add__:
        each = [added(a, b) for a, b in zip(total, found, strict=True)]
        return type(total)(*each) if hasattr(total, "_fields") else tuple(each)
    return total + found
