"""The rows of a data set with what belongs to each of them, and the one verb that goes over them.

All sums over rows are taken by `Table.sum`: it calls a function once per block of rows, and adds
the results in a fixed order. Rows in memory may have a table of scores as well, which the function
gets a part of. Rows that are far away (files, other processes) have none: their scores are computed
again, from the features, wherever a function asks for them. So nothing with a number for each row
is kept between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from provenglm import constants
from provenglm.rows.base import Features, Rows
from provenglm.rows.blocks import parts_of
from provenglm.rows.disk import DiskRows
from provenglm.rows.products import column_moments
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_GROUP, _LEAST_GROUPS = 8, 32
"""The results of so many blocks are added by one thread, if there are at least so many groups."""


class Linear(NamedTuple):
    """A linear model, small enough to be sent to where the rows are.

    Attributes
    ----------
    weights : numpy.ndarray, (p,) or (p, K)
    bias : numpy.ndarray, () or (K,)
        The intercepts, in float64.
    center : numpy.ndarray, (p,), optional
        What is subtracted from the features first.
    """

    weights: NumPyArray
    bias: NumPyArray
    center: NumPyArray | None = None


class Kept(NamedTuple):
    """What is kept for all rows in memory at a point.

    Attributes
    ----------
    scores : numpy.ndarray, (n,) or (n, K)
        Offsets included.
    residuals : numpy.ndarray, scores' shape, optional
    """

    scores: NumPyArray
    residuals: NumPyArray | None = None


class Block:
    """Some consecutive rows, and what belongs to each of them.

    Parameters
    ----------
    table : Table
    index : int
        The number of the block.
    part : slice
        The rows in the table.
    at : Linear, optional
        The model that `scores` are for.
    kept : Kept, optional
        Tables for this model, instead of computing its scores.
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
        """The number of the first row among all."""
        return int(self._table.start + self.part.start)

    @property
    def raw(self) -> Features:
        """The features, (b, p). They must not be modified."""
        if self._raw is None:
            self._raw = self._table.rows.block(self.part)
        return self._raw

    @property
    def features(self) -> Features:
        """The features less the model's center."""
        if self._at is not None and self._at.center is not None:
            return self.raw - self._at.center
        return self.raw

    @property
    def target(self) -> NumPyArray:
        """The targets, (b,): classes as they are, numbers in the features' dtype."""
        target = self._table.target[self.part]
        if target.dtype.kind in "iu":
            return target
        return target.astype(self._table.rows.dtype, copy=False)

    @property
    def exact_target(self) -> NumPyArray:
        """The targets, (b,), as they are."""
        return self._table.target[self.part]

    @property
    def share(self) -> NumPyArray:
        """The shares, (b,), in float64; those of all rows sum to 1."""
        return np.ascontiguousarray(self._table.share[self.part])

    @property
    def offset(self) -> NumPyArray | None:
        """The offsets, (b,) or (b, K), or None."""
        return None if self._table.offset is None else self._table.offset[self.part]

    def beside(self, bias: NumPyArray | float) -> NumPyArray:
        """Return intercepts plus offsets, in the features' dtype.

        The sum of the two is taken in float64, because both may be large and cancel.
        """
        dtype, offset = self._table.rows.dtype, self.offset
        return np.asarray(bias if offset is None else bias + offset, dtype)

    def products(self, model: Linear) -> NumPyArray:
        """Return the scores of another model, without offsets."""
        if not model.weights.any():
            shape = (len(self), *model.weights.shape[1:])
            return np.full(shape, np.asarray(model.bias, self._table.rows.dtype))
        products = self.features @ model.weights
        products += np.asarray(model.bias, products.dtype)
        return np.asarray(products)

    @property
    def scores(self) -> NumPyArray:
        """The scores of the model, (b,) or (b, K), offsets included."""
        if self._kept is not None:
            return self._kept.scores[self.part]
        if self._scores is None:
            assert self._at is not None
            weights, bias, _ = self._at
            beside = self.beside(bias)
            if weights.any():
                self._scores = self.features @ weights
                self._scores += beside
            else:
                self._scores = np.full((len(self), *weights.shape[1:]), beside)
        return self._scores

    @property
    def precise_scores(self) -> NumPyArray:
        """The scores in float64."""
        return self.scores.astype(np.float64, copy=False)

    @property
    def residuals(self) -> NumPyArray | None:
        """The residuals, if there is a table of them."""
        kept = self._kept
        return None if kept is None or kept.residuals is None else kept.residuals[self.part]


@dataclass(frozen=True)
class Table:
    """Rows with targets, shares and offsets.

    Parameters
    ----------
    rows : Rows
    target : numpy.ndarray, (n,)
    share : numpy.ndarray, (n,)
        The shares, in float64, which sum to 1.
    workers : Workers
    offset : numpy.ndarray, (n,) or (n, K), optional
        What is added to the scores, in float64.
    start : int
        The number of the first row among those of all tables.
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
    def is_far(self) -> bool:
        """Whether nothing with a number for each row is kept: see the module's text."""
        return self.rows.is_on_disk

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each block."""
        return [part.stop - part.start for part in self.rows.slices()]

    def precise(self) -> Table:
        """Return the same rows with features in float64."""
        return replace(self, rows=self.rows.precise())

    def thinned(self, every: int) -> Table:
        """Return a table of rows on disk of which a sum reads one block in `every`."""
        assert isinstance(self.rows, DiskRows)
        return replace(self, rows=self.rows.thinned(every))

    def sum(
        self,
        function: Callable[..., Any],
        *small: Any,
        at: Linear | None = None,
        kept: Kept | None = None,
        reads: bool = True,
    ) -> Any:
        """Return the sum of what a function returns for the blocks of all rows.

        Numbers and arrays are added, tuples element by element; lists are concatenated, and other
        objects added with ``+``. The order is fixed by the data.

        Parameters
        ----------
        function : callable
            A function of a block, followed by `small`. For far rows it is a function of a module,
            and `small` are arguments that can be pickled.
        at : Linear, optional
            The model whose scores the function asks for.
        kept : Kept, optional
            Its tables, of rows in memory.
        reads : bool
            Whether the function needs features. If not, blocks are as large as is fast for arrays
            with a few numbers for each row.
        """
        if reads or (at is not None and kept is None):
            slices = self.rows.slices()
        else:
            outputs = 1 if kept is None or kept.scores.ndim == 1 else kept.scores.shape[1]
            slices = parts_of(self.n, outputs)
        if len(slices) == 1:
            return function(Block(self, 0, slices[0], at, kept), *small)
        size = max(1, min(_GROUP, len(slices) // _LEAST_GROUPS))

        def of_group(start: int) -> Any:
            found = None
            for index in range(start, min(start + size, len(slices))):
                block = Block(self, index, slices[index], at, kept)
                found = added(found, function(block, *small))
            return found

        total = None
        for found in self.workers.map(of_group, range(0, len(slices), size), together=1):
            total = added(total, found)
        return total

    def known(self, function: Callable[..., Any], *small: Hashable) -> Any:
        """Return the sum of a function that needs no features; it is computed once.

        The result must not be modified.
        """
        key = function, small
        if key not in self._known:
            self._known[key] = self.sum(function, *small, reads=False)
        return self._known[key]

    def gathered(self, indices: NumPyArray, beside: int = 0) -> NumPyArray:
        """Return some rows' features, dense and in float64, and further columns that are unset."""
        raw = np.empty((len(indices), self.rows.shape[1] + beside))
        size = max(constants.LEAST_BLOCK_ROWS, len(indices) // (4 * self.workers.count))
        # Each thread has a part of the disk.
        order = np.argsort(indices) if self.is_far else None

        def gather(start: int) -> None:
            part: Any = slice(start, start + size)
            part = part if order is None else order[part]
            raw[part, : self.rows.shape[1]] = self.rows.gather(indices[part])

        for _ in self.workers.map(gather, range(0, len(indices), size)):
            pass
        return raw

    def picked(self, indices: NumPyArray) -> Features:
        """Return some rows' features in float64, in the type of a block."""
        return self.rows.precise().pick(indices)

    def beside(self, indices: NumPyArray) -> tuple[NumPyArray, NumPyArray, NumPyArray | None]:
        """Return the targets, shares and offsets of some rows."""
        offset = None if self.offset is None else self.offset[indices]
        return self.target[indices], np.asarray(self.share[indices]), offset

    def moments(self, center: NumPyArray, wanted: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
        """Return the means of ``x - center`` and of its square for some columns, in float64."""
        mean, square = self.sum(_moments, center, wanted)
        return mean, square


def _moments(block: Block, center: NumPyArray, wanted: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    return column_moments(block.features, block.share, center, wanted)


def added(total: Any, found: Any) -> Any:
    """Return the sum of two results; the first may be None, and may be modified."""
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
