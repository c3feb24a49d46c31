"""GradientTable: the gradient of each batch at the snapshot; TablePolicy: whether to keep it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.row_sparse import is_row_sparse
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.svrg.gradient import BatchGradient
from gluon_svrg.svrg.snapshot import Snapshot
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import CSRNDArray

_WAY_OUT = "give batches that repeat exactly, or gradient_table=False"


class GradientTable:
    """Keeps the gradient of each batch at the snapshot, so that no step recomputes it.

    An epoch then costs one gradient per sample instead of two; the table takes the memory of one
    set of gradients per batch. The batches must repeat exactly, in any order, from the full pass to
    the next: a batch is recognised by its number and by its arrays, which must be the same objects
    or, with `by_content`, equal.

    Parameters
    ----------
    by_content : bool
        For batches whose arrays are created in each pass. They are compared by two sums over each
        array, later, in :meth:`check`, so that no batch has to wait.
    memory : float
        The maximal size in bytes. A larger table is dropped and stays empty. For row_sparse
        gradients, whose sizes are not known before the full pass.

    Attributes
    ----------
    has_overflowed : bool
        Whether the table was dropped because of its size.
    """

    def __init__(self, by_content: bool = False, memory: float = math.inf) -> None:
        self.has_overflowed = False
        self._memory = memory
        self._nbytes = 0
        self._gradients: list[BatchGradient] = []
        self._arrays: list[tuple[object, ...]] = []
        self._by_content = by_content
        self._fingerprints: list[list[NDArray]] = []
        self._compared: list[tuple[int, list[NDArray]]] = []
        self._weights: dict[tuple[int, mx.Context], NDArray] = {}
        self._copy = FusedFunction(mx.sym.identity)
        self._freed: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._gradients) if self._freed is None else self._freed[0]

    @property
    def nbytes(self) -> int:
        """The size of the gradients in bytes; after :meth:`free` that before it."""
        if self._freed is not None:
            return self._freed[1]
        return self._nbytes

    def append(self, gradient: BatchGradient, arrays: Sequence[object] = ()) -> None:
        """Keep a copy of the gradient of the next batch.

        Parameters
        ----------
        gradient : BatchGradient
            The gradient of the batch at the snapshot.
        arrays : sequence of objects
            The arrays that identify the batch; with `by_content` NDArrays.
        """
        self._nbytes += gradient.nbytes
        if self._nbytes > self._memory:
            self.has_overflowed = True
            self.clear()
        if self.has_overflowed:
            return
        dense = {n: grads for n, grads in gradient.sums.items() if not is_row_sparse(grads[0])}
        copies = [self._copy(grads) for grads in zip(*dense.values(), strict=True)]
        of_dense = dict(zip(dense, map(list, zip(*copies, strict=True)), strict=True))
        sums = {
            name: of_dense.get(name) or [grad.copy() for grad in grads]
            for name, grads in gradient.sums.items()
        }
        self._gradients.append(gradient._replace(sums=sums))
        if self._by_content:
            self._fingerprints.append(self._fingerprint(arrays))
        else:
            self._arrays.append(tuple(arrays))

    def gradient(self, index: int, arrays: Sequence[object] = ()) -> BatchGradient:
        """Return the gradient of batch number `index` (from 0) of the full pass.

        Parameters
        ----------
        index : int
            The number of the batch.
        arrays : sequence of objects
            As for :meth:`append`.

        Raises
        ------
        ValueError
            If the table does not hold that batch, or was freed.
        """
        if self._freed is not None:
            raise ValueError(
                "the gradient table is empty: its run has ended, and only its counts are left; "
                "look at it during the run, in a handler"
            )
        if not 0 <= index < len(self):
            raise ValueError(
                f"the gradient table has the {len(self)} batches of the full pass, and this is "
                f"batch {index} (the first is 0): {_WAY_OUT}"
            )
        if self._by_content:
            self._compared.append((index, self._fingerprint(arrays)))
            return self._gradients[index]
        expected = self._arrays[index]
        if len(arrays) != len(expected) or any(
            a is not b for a, b in zip(arrays, expected, strict=True)
        ):
            raise ValueError(
                f"batch {index} (the first is 0) has other arrays than it had in the full pass, "
                f"so the gradient table does not hold its gradient: {_WAY_OUT}"
            )
        return self._gradients[index]

    def free(self) -> None:
        """Free the memory at the end of the run; the length and `nbytes` stay."""
        self._freed = len(self), self.nbytes
        self.clear()
        self._weights.clear()

    def clear(self) -> None:
        """Remove all batches."""
        self._gradients.clear()
        self._arrays.clear()
        self._fingerprints.clear()
        self._compared.clear()
        self._nbytes = 0

    def check(self) -> None:
        """Compare the contents of the batches since the last call with those of the full pass.

        Raises
        ------
        ValueError
            If a batch has other values, so that its gradient was not the one in the table.
        """
        compared, self._compared = self._compared, []
        for index, fingerprint in compared:
            for ours, kept in zip(fingerprint, self._fingerprints[index], strict=True):
                value, (known, size) = ours.asnumpy()[0], kept.asnumpy()
                # The order of addition may differ. NaN differs from everything but NaN.
                if not (abs(value - known) <= 1e-9 * size or (np.isnan(value) and np.isnan(known))):
                    raise ValueError(
                        f"batch {index} (the first is 0) has other values than it had in the full "
                        "pass, so the gradient table did not hold its gradient, and weights were "
                        f"updated with a wrong one: {_WAY_OUT}"
                    )

    def _fingerprint(self, arrays: Sequence[Any]) -> list[NDArray]:
        """Return, for each array x, the sums of x * r and |x| * r with fixed random numbers r."""
        return [
            mx.nd.concat(mx.nd.dot(x, r), mx.nd.dot(mx.nd.abs(x), r), dim=0)
            for x, r in (
                (part.reshape(-1).astype("float64"), self._weights_for(part))
                for array in arrays
                for part in _stored(to_nd(array))
            )
        ]

    def _weights_for(self, array: NDArray) -> NDArray:
        key = array.size, array.ctx
        if key not in self._weights:
            values = np.random.Generator(np.random.PCG64(0)).uniform(0.5, 1.5, array.size)
            self._weights[key] = mx.nd.array(values, array.ctx, "float64")
        return self._weights[key]


class TablePolicy:
    """Decides whether the gradients of the full pass are kept in a table.

    Parameters
    ----------
    gradient_table, table_memory
        As for :class:`gluon_svrg.svrg.Interval`.
    is_locked : bool
        Whether the data are locked if possible; without a lock they do not repeat.
    logger : logging.Logger
        Logs each decision once.

    Attributes
    ----------
    is_on : bool or None
        The last decision, None before the first; saved in checkpoints, so that a resume does not
        log it again.
    """

    def __init__(
        self,
        gradient_table: str | bool,
        table_memory: float,
        is_locked: bool,
        logger: logging.Logger,
    ) -> None:
        self.is_on: bool | None = None
        self._has_overflowed = False
        self._gradient_table = gradient_table
        self._table_memory = table_memory
        self._is_locked = is_locked
        self._logger = logger

    def make_table(self, data: TrainingData, snapshot: Snapshot) -> GradientTable | None:
        """Return an empty table for `data`, or None; log the reason, if the decision is new.

        Parameters
        ----------
        data : TrainingData
            The batches.
        snapshot : Snapshot
            The weights at which the gradients are computed. If some are row_sparse, their sizes are
            known after the full pass.

        Raises
        ------
        ValueError
            If a table is required, and the batches may not repeat.
        """
        if self._has_overflowed:
            return None
        is_made, reason = self._decide(data, snapshot.gradient_nbytes)
        has_rows = snapshot.has_row_sparse_gradients
        if has_rows and is_made:
            reason += " without the rows of row_sparse gradients"
        self._set(is_made, reason)
        is_limited = has_rows and self._gradient_table == "auto"
        memory = self._table_memory if is_limited else math.inf
        return GradientTable(not data.keeps_batches, memory) if is_made else None

    def keep_or_drop(self, table: GradientTable | None) -> GradientTable | None:
        """Return the table after the full pass, or None if it took too much memory."""
        if table is None or not table.has_overflowed:
            return table
        self._has_overflowed = True
        limit = self._table_memory / 2**20
        self._set(False, f"with its rows it takes more than table_memory={limit:.1f} MiB")
        return None

    def _set(self, is_on: bool, reason: str) -> None:
        if is_on != self.is_on:
            self.is_on = is_on
            self._logger.info(
                "SVRG: gradient table %s: %s%s",
                "on" if is_on else "off",
                reason,
                "; an epoch with a snapshot costs 2 gradients per sample, not 3" if is_on else "",
            )

    def _decide(self, data: TrainingData, nbytes: int) -> tuple[bool, str]:
        if self._gradient_table is False:
            return False, "gradient_table=False"
        why_not = data.reason_not_repeatable() if self._is_locked else "lock='off'"
        if why_not and self._gradient_table is True:
            raise ValueError(
                f"gradient_table=True needs batches that repeat exactly, but {why_not}: give a "
                "list of batches or a gluon_svrg.data.ArrayLoader, or gradient_table='auto'"
            )
        if why_not or data.num_batches is None:
            return False, why_not or "the number of batches is not known"
        total = nbytes * data.num_batches
        size = f"{data.num_batches} batches take {total / 2**20:.1f} MiB"
        if self._gradient_table == "auto" and total > self._table_memory:
            return False, f"{size}, more than table_memory={self._table_memory / 2**20:.1f} MiB"
        return True, size


def _stored(array: NDArray) -> list[NDArray]:
    """Return the arrays that an array consists of, without empty ones for a CSR array."""
    if not isinstance(array, CSRNDArray):
        return [array]
    return [part for part in (array.data, array.indices) if part.size] + [array.indptr]
