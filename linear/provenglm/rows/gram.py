r"""Weighted products of the columns with each other, :math:`X^T W X`, for each storage of rows.

Rows are read block by block. Arrays are centred and scaled before they are multiplied. CSR rows are
multiplied as they are, because centring is a change of rank one.

Weights may be negative. `ClassWeights` has a K x K matrix for each row, as in softmax's Hessian.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import csr_array, issparse

from provenglm import constants
from provenglm.rows import reading
from provenglm.rows.base import Rows
from provenglm.rows.blas import add_products
from provenglm.rows.blocks import slices_of
from provenglm.rows.centred import Coordinates, Scaled, write_centred
from provenglm.rows.csr import CsrRows, csr_from_parts, transposed
from provenglm.types import NumPyArray
from provenglm.workers import Workers

_MIRRORED = 256
"""Rows of a square block of a matrix that fits into a core's cache twice."""

_UPPER = ~np.tri(_MIRRORED, dtype=bool)


class ClassWeights(NamedTuple):
    """For each row, the matrix ``share * (diag(p) - p p^T)`` of its class probabilities p.

    Attributes
    ----------
    probability : numpy.ndarray, (n, K)
    share : numpy.ndarray, (n,)
    """

    probability: NumPyArray
    share: NumPyArray


Weights: TypeAlias = "NumPyArray | ClassWeights"


def roundings(sizes: Sequence[int]) -> int:
    r"""Return the largest number of roundings of an entry of the products.

    If u is the unit roundoff of the arithmetic, a computed entry differs from the exact one by at
    most :math:`1.01 c u \sum_i |w_i| s_{ij} s_{ik}`, where c is the count, if c u < 0.01 and
    nothing underflows. Here s is the size of a column's number: for arrays in coordinates :math:`|x
    - c| / d`, and for CSR rows :math:`(|x| + |c|) / d`.

    BLAS adds up a block in its own order: with b rows, each product takes part in at most b
    additions. The blocks are added one after the other. The other roundings are those of the
    coordinates, of a weight's root, and of the rank-one centring.

    Parameters
    ----------
    sizes : sequence of int
        The number of rows of each block; for `gram`, the number of rows of each of its `groups`.
    """
    return max(sizes, default=0) + len(sizes) + 16


def gram_of_block(block: Any, weights: Weights, *, ones: bool = False) -> NumPyArray:
    """Return the weighted products of the columns of one block.

    Parameters
    ----------
    block : numpy.ndarray or scipy.sparse.csr_array, (b, p)
        For a float32 array the products are computed in float32.
    weights : numpy.ndarray, (b,), or ClassWeights
    ones : bool
        Whether to add a last column of ones, which is not in the block.

    Returns
    -------
    numpy.ndarray, (w, w)
        The products. w is p, or p + 1 with the ones. For `ClassWeights` the shape is (w K, w K),
        and the classes of a column are adjacent.
    """
    if issparse(block):
        return _joined(_csr_sums(block, weights).matrices(ones), weights)
    return _joined(_array_products(block, weights, ones), weights)


def gram(
    rows: Rows,
    weights: Weights,
    workers: Workers,
    *,
    coordinates: Coordinates | None = None,
    columns: NumPyArray | None = None,
    chosen: NumPyArray | None = None,
    ones: bool = False,
    dtype: Any = np.float64,
) -> NumPyArray:
    """Return the weighted products of the columns of all rows.

    Parameters
    ----------
    rows : Rows
    weights : numpy.ndarray, (n,), or ClassWeights
        The weight of each row, or of each row in `chosen`.
    workers : Workers
    coordinates : Coordinates, optional
        The coordinates of all columns.
    columns : numpy.ndarray, (c,), optional
        The indices of the columns to use; by default all of them.
    chosen : numpy.ndarray, optional
        The indices of the rows to use, which may repeat; by default all rows.
    ones : bool
        As in `gram_of_block`.
    dtype : numpy dtype
        The dtype of the arithmetic for arrays, including the coordinates; for CSR rows it is
        float64.

    Returns
    -------
    numpy.ndarray
        As in `gram_of_block`.
    """
    if rows.is_sparse:
        dtype = np.float64
    if coordinates is not None:
        center, inverse = (
            (part if columns is None else part[columns]).astype(dtype, copy=False)
            for part in (coordinates.center, coordinates.inverse)
        )
        coordinates = Scaled(center, inverse)
    width = rows.shape[1] if columns is None else len(columns)

    def sum_csr_group(group: list[slice]) -> _CsrSums:
        whole = slice(group[0].start, group[-1].stop)
        block: Any = (
            reading.block(rows, whole) if chosen is None else reading.pick(rows, chosen[whole])
        )
        # Centring needs the sums of the columns.
        return _csr_sums(
            block if columns is None else block[:, columns], _weights_of(weights, whole)
        )

    is_copied = coordinates is not None or columns is not None
    # A copy of few columns combines the rows of several blocks.
    size = constants.BLOCK_BYTES // max(1, width * np.dtype(dtype).itemsize) if is_copied else 0

    def sum_array_group(group: list[slice]) -> NumPyArray:
        first, pieces = group[0].start, _together(group, size)
        if chosen is not None:
            # All at once: if rows are decoded in large parts, each call would read a part again.
            gathered = reading.gather(rows, chosen[first : group[-1].stop])
        longest = max(some[-1].stop - some[0].start for some in pieces)
        buffer = np.empty((longest, width), dtype) if is_copied else None

        def piece(some: list[slice]) -> tuple[NumPyArray, Weights]:
            start, stop = some[0].start, some[-1].stop
            for part in some:
                block: Any
                if chosen is None:
                    block = reading.block(rows, part)
                else:
                    block = gathered[part.start - first : part.stop - first]
                if buffer is None:
                    return block, _weights_of(weights, part)
                if columns is not None:
                    block = block[:, columns]
                out = buffer[part.start - start : part.stop - start]
                if coordinates is None:
                    out[:] = block
                else:
                    write_centred(block, coordinates, out)
            assert buffer is not None
            return buffer[: stop - start], _weights_of(weights, slice(start, stop))

        total = np.zeros((_count(weights), width + ones, width + ones), dtype)
        # Scale in place if the piece is used only once.
        _add_pieces(total, map(piece, pieces), buffer if len(total) == 1 else None)
        return total

    parts = groups(rows, width, chosen)
    if not rows.is_sparse:
        total = reduce(_added, workers.map(sum_array_group, parts, together=1))
        return _joined(total, weights)
    sums = reduce(_CsrSums.add, workers.map(sum_csr_group, parts, together=1))
    if coordinates is not None:
        sums.move(coordinates)
    return _joined(sums.matrices(ones), weights)


def groups(rows: Rows, width: int, chosen: NumPyArray | None = None) -> list[list[slice]]:
    """Return the blocks that `gram` reads, in groups whose products are summed separately.

    The groups depend only on the shape and on the number of stored entries. A group has at most
    `BLOCK_ROWS` rows, unless a block has more. It may also have so many rows that it takes at least
    the memory of its products, and its products take at least the time of adding them.
    """
    slices = reading.slices(rows) if chosen is None else slices_of(len(chosen), width, 8)
    most = max(constants.BLOCK_ROWS, width)
    if isinstance(rows, CsrRows) and rows.numbers:
        stored_per_row = width * rows.numbers / (rows.shape[0] * rows.shape[1])
        most = max(most, math.ceil((width / stored_per_row) ** 2))
    return _together(slices or [slice(0, 0)], most)


def _together(parts: Sequence[slice], most: int) -> list[list[slice]]:
    """Return consecutive parts in lists of at most `most` rows, unless one part has more."""
    found: list[list[slice]] = [[]]
    for part in parts:
        if found[-1] and part.stop - found[-1][0].start > most:
            found.append([])
        found[-1].append(part)
    return found


def _weights_of(weights: Weights, part: slice) -> Weights:
    if isinstance(weights, ClassWeights):
        return ClassWeights(weights.probability[part], weights.share[part])
    return weights[part]


def _pairs(weights: Weights) -> Iterator[NumPyArray]:
    """Yield the weights of each pair of classes, the first of them not before the second."""
    if not isinstance(weights, ClassWeights):
        yield weights
        return
    probability, share = weights
    for one in range(probability.shape[1]):
        for other in range(one + 1):
            yield probability[:, one] * ((one == other) - probability[:, other]) * share


def _count(weights: Weights) -> int:
    if not isinstance(weights, ClassWeights):
        return 1
    classes = weights.probability.shape[1]
    return classes * (classes + 1) // 2


def _array_products(block: NumPyArray, weights: Weights, ones: bool) -> NumPyArray:
    n, p = block.shape
    parts = slices_of(n, p, block.itemsize)
    if block.strides[0] < block.strides[1]:
        # Read all columns of a row at once: BLAS splits the rows in its own way.
        parts = [
            slice(start, start + constants.BLOCK_ROWS)
            for start in range(0, n, constants.BLOCK_ROWS)
        ]
    width = p + ones
    total = np.zeros((_count(weights), width, width), block.dtype)
    _add_pieces(total, ((block[part], _weights_of(weights, part)) for part in parts))
    return total


def _add_pieces(
    total: NumPyArray,
    pieces: Iterable[tuple[NumPyArray, Weights]],
    buffer: NumPyArray | None = None,
) -> None:
    """Add the products of arrays to the lower triangles for all pairs of classes.

    A piece stays in a core's cache until it is multiplied.

    Parameters
    ----------
    total : numpy.ndarray, (pairs, w, w)
    pieces : iterable of tuple
        Rows and their weights.
    buffer : numpy.ndarray, (b, p), optional
        An array for the scaled rows. The rows may be stored in it.
    """
    for block, weights in pieces:
        if buffer is None or len(block) > len(buffer):
            is_by_rows = block.strides[1] <= block.strides[0]
            buffer = np.empty(block.shape, total.dtype, order="C" if is_by_rows else "F")
        for each, weight in zip(total, _pairs(weights), strict=True):
            _add(each, block, weight, buffer)


def _add(total: NumPyArray, block: NumPyArray, weight: NumPyArray, buffer: NumPyArray) -> None:
    is_negative = weight < 0
    factor = 1.0
    if is_negative.any():
        if not is_negative.all():
            halves = [(block[some], weight[some]) for some in (is_negative, ~is_negative)]
            for rows, each in halves:
                _add(total, rows, each, buffer)
            return
        factor = -1.0
    p, scaled = block.shape[1], buffer[: len(weight)]
    if np.may_share_memory(block, scaled) and (weight == weight[:1]).all():
        # Rows that are stored in the buffer are multiplied as they are.
        factor, root = float(weight[0]), np.ones(len(weight), total.dtype)
    else:
        root = np.sqrt(factor * weight).astype(total.dtype, copy=False)
        np.multiply(block, root[:, None], out=scaled)
    add_products(total[:p, :p], scaled, factor)
    if len(total) > p:
        total[-1, :p] += factor * (root @ scaled)
        total[-1, -1] += factor * (root @ root)


def _added(total: NumPyArray, each: NumPyArray) -> NumPyArray:
    return np.add(total, each, out=total)


class _CsrSums(NamedTuple):
    """Sums over CSR rows, for all pairs of classes.

    Attributes
    ----------
    products : numpy.ndarray, (pairs, p, p)
    columns : numpy.ndarray, (pairs, p)
        The sums of the columns, which centring needs.
    weight : numpy.ndarray, (pairs, 1)
    """

    products: NumPyArray
    columns: NumPyArray
    weight: NumPyArray

    def add(self, other: _CsrSums) -> _CsrSums:
        """Add the other sums in place, and return the result."""
        for mine, each in zip(self, other, strict=True):
            np.add(mine, each, out=mine)
        return self

    def move(self, coordinates: Coordinates) -> None:
        """Transform the columns to coordinates, in place."""
        center, inverse = coordinates.center, coordinates.inverse
        for products, columns, weight in zip(*self, strict=True):
            if center.any():
                beside = np.multiply.outer(center, columns - 0.5 * weight * center)
                products -= beside
                products -= beside.T
                columns -= weight * center
            if (inverse != 1).any():
                products *= inverse
                products *= inverse[:, None]
                columns *= inverse

    def matrices(self, ones: bool) -> NumPyArray:
        """Return the products, including those of a column of ones if `ones` is set."""
        if not ones:
            return self.products
        pairs, p = self.columns.shape
        total = np.empty((pairs, p + 1, p + 1))
        total[:, :p, :p], total[:, -1, :p], total[:, -1, -1:] = self
        return total


def _csr_sums(block: csr_array, weights: Weights) -> _CsrSums:
    """Return the sums over the rows of a CSR matrix."""
    columns = transposed(block)
    products, sums, totals = [], [], []
    for weight in _pairs(weights):
        data = block.data * np.repeat(weight, np.diff(block.indptr))
        weighted = csr_from_parts(data, block.indices, block.indptr, block.shape)
        products.append((columns @ weighted).T.toarray())
        sums.append(columns @ weight)
        totals.append([weight.sum()])
    stacked = products[0][None] if len(products) == 1 else np.stack(products)
    return _CsrSums(stacked, np.array(sums, np.float64), np.array(totals))


def _joined(total: NumPyArray, weights: Weights) -> NumPyArray:
    """Return the matrix from the lower triangles for all pairs of classes."""
    for each in total:
        _mirror(each)
    if not isinstance(weights, ClassWeights):
        return np.asarray(total[0])
    width, classes = total.shape[1], weights.probability.shape[1]
    whole = np.empty((width, classes, width, classes), total.dtype)
    pairs = iter(total)
    for one in range(classes):
        for other in range(one + 1):
            whole[:, one, :, other] = whole[:, other, :, one] = next(pairs)
    return whole.reshape(width * classes, width * classes)


def _mirror(total: NumPyArray) -> None:
    """Copy the lower triangle to the upper one."""
    for start in range(0, len(total), _MIRRORED):
        stop = start + _MIRRORED
        total[start:stop, stop:] = total[stop:, start:stop].T
        square = total[start:stop, start:stop]
        is_upper = _UPPER[: len(square), : len(square)]
        np.copyto(square, square.T.copy(), where=is_upper)
