"""GradientSums adds up the gradients of all batches; RowSums adds up sparse rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.finite import NonFiniteDetector
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.arrays.row_sparse import is_row_sparse, row_indices, row_sparse, stored_values
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from mxnet.ndarray import NDArray


class GradientSums:
    """The sums of the gradients of a full pass, by parameter and context.

    In float64, so that 10^5 small batches lose no digits, and in new accumulators for each pass.
    After each batch the device records whether the sums are finite; this is read once, at the end,
    so the error can name the batch without a wait at each.

    Parameters
    ----------
    grads : dict of str to list of NDArray
        The buffers of the gradients of each batch.
    add : FusedFunction
        Adds gradients to totals; used again by later passes.

    Attributes
    ----------
    batches, samples : int
        How many were added.
    """

    def __init__(self, grads: Mapping[str, list[NDArray]], add: FusedFunction) -> None:
        self._sums = {
            name: [mx.nd.zeros(grad.shape, grad.ctx, "float64") for grad in arrays]
            for name, arrays in grads.items()
            if not is_row_sparse(arrays[0])
        }
        self._rows = {
            name: _RowSparseSums(arrays) for name, arrays in grads.items() if name not in self._sums
        }
        self._by_context = by_device(self._sums.values())
        self._add = add
        self._detector = NonFiniteDetector()
        self.batches = self.samples = 0

    def add(self, gradient: BatchGradient) -> None:
        """Add the gradient of one more batch."""
        if self._sums:
            dense = by_device(gradient.sums[name] for name in self._sums)
            for totals, grads in zip(self._by_context, dense, strict=True):
                self._add(totals, grads, out=totals)
            self._detector.add(self._by_context)
        for name, sums in self._rows.items():
            sums.add(gradient.sums[name], sum(gradient.samples), self.batches)
        self.batches += 1
        self.samples += sum(gradient.samples)

    def full_gradient(self, dtypes: Mapping[str, object]) -> FullGradient:
        """Return the means, with these dtypes by parameter, and free the sums.

        Raises
        ------
        ValueError
            If there was no batch.
        FloatingPointError
            If the gradient of a batch is NaN or infinite; names the parameter and the batch.
        """
        if not self.batches:
            raise ValueError(
                "the full gradient needs at least one batch, got none: the training data is "
                "empty, or an iterator that is used up"
            )
        self._check_finite()
        self._by_context = []
        means, shares = {}, {}
        for name, dtype in dtypes.items():
            # One parameter at a time, since the sums take twice the memory of the means.
            mean_dtype = "float32" if dtype == np.float16 else dtype
            if name in self._sums:
                means[name] = _mean(self._sums.pop(name), mean_dtype, self.samples)
            else:
                rows = self._rows.pop(name)
                means[name] = rows.mean(mean_dtype, self.samples)
                shares[name] = rows.shares(self.samples)
        return FullGradient(means, self.samples, row_shares=shares)

    def _check_finite(self) -> None:
        """Raise FloatingPointError if a sum is not finite, which it then stays."""
        first = self._detector.first_bad()
        for name, totals in self._sums.items() if first is not None else ():
            if first and not all(np.isfinite(total.asnumpy()).all() for total in totals):
                raise _not_finite(name, first[0])
        for name, sums in self._rows.items():
            if sums.first_not_finite is not None:
                raise _not_finite(name, sums.first_not_finite)


class RowSums:
    """Sums by row, in float64; a row takes memory once it occurs.

    In host memory, since only the host knows how many rows a gradient has.

    Parameters
    ----------
    rows : int
        How many rows there may be: each takes 8 bytes for an index.
    width : tuple of int
        The shape of a row.
    """

    def __init__(self, rows: int, width: tuple[int, ...] = ()) -> None:
        self._places = np.full(rows, -1, dtype="int64")
        self._sums = np.zeros((0, *width))
        self._used = 0

    def add(self, rows: NumPyArray, values: NumPyArray | float) -> None:
        """Add `values` to these rows, which must be distinct."""
        places = self._places[rows]
        new = np.flatnonzero(places < 0)
        if len(new):
            end = self._used + len(new)
            places[new] = self._places[rows[new]] = np.arange(self._used, end)
            self._used = end
            if end > len(self._sums):
                grown = np.zeros((max(end, 2 * len(self._sums)), *self._sums.shape[1:]))
                grown[: len(self._sums)] = self._sums
                self._sums = grown
        self._sums[places] += values

    def rows(self) -> NumPyArray:
        """Return the rows that have occurred, ascending."""
        return np.asarray(np.flatnonzero(self._places >= 0))

    def values(self) -> NumPyArray:
        """Return the sums of :meth:`rows`, in their order."""
        return np.asarray(self._sums[self._places[self.rows()]])


class _RowSparseSums:
    """The sums of one parameter's row_sparse gradients, and each row's number of samples.

    Parameters
    ----------
    grads : list of NDArray
        The gradient on each context.
    """

    def __init__(self, grads: list[NDArray]) -> None:
        self._shape: tuple[int, ...] = grads[0].shape
        self._context = grads[0].ctx
        self._sums = [RowSums(self._shape[0], self._shape[1:]) for _ in grads]
        self._samples = RowSums(self._shape[0])
        self.first_not_finite: int | None = None

    def add(self, grads: list[NDArray], samples: int, batch: int) -> None:
        """Add the gradient of a batch, which has `samples` samples on all contexts together."""
        rows_by_context = []
        for sums, grad in zip(self._sums, grads, strict=True):
            rows, values = row_indices(grad), stored_values(grad)
            sums.add(rows, values)
            if self.first_not_finite is None and not np.isfinite(values).all():
                self.first_not_finite = batch
            rows_by_context.append(rows)
        # Each context has a part of the batch, which has a row if one of the parts has it.
        self._samples.add(reduce(np.union1d, rows_by_context), samples)

    def mean(self, dtype: object, samples: int) -> NDArray:
        """Return the mean over all samples: the rows that occur, on the first context."""
        total, *others = self._sums
        for other in others:
            total.add(other.rows(), other.values())
        values = total.values() / max(1, samples)
        return row_sparse(
            values.astype(np.dtype(dtype)),  # type: ignore[call-overload]
            total.rows(),
            self._shape,
            self._context,
        )

    def shares(self, samples: int) -> NDArray:
        """Return for each row the fraction of samples whose batch contains it; float64."""
        return mx.nd.array(self._samples.values() / max(1, samples), dtype="float64")


def _not_finite(name: str, batch: int) -> FloatingPointError:
    return FloatingPointError(
        f"the full gradient of parameter {name!r} is NaN or infinite; batch {batch} "
        "(the first is 0) is the first that gave such a gradient: look at its data and "
        "labels, or lower the learning rate if the weights have diverged"
    )


def _mean(sums: list[NDArray], dtype: object, samples: int) -> NDArray:
    """Return the sum over contexts, divided by the number of samples; overwrites the first."""
    total = sums[0]
    for other in sums[1:]:
        total += other.as_in_context(total.context)
    total /= max(1, samples)  # other workers may have all samples
    return total.astype(dtype, copy=False)
