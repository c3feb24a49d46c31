"""RowCorrection: the rule of SVRG for row_sparse gradients, exact or as sparse as the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.row_sparse import row_indices, row_indices_nd, row_sparse, stored_values
from gluon_svrg.svrg.rule import correct
from mxnet.ndarray import NDArray

SPARSE_CORRECTIONS = ("exact", "sparse")


class RowCorrection:
    r"""Corrects row_sparse gradients by a row_sparse full gradient.

    *exact* is SVRG's rule: the corrected gradient has all rows of the full gradient, as with dense
    storage. *sparse* uses the full gradient only on the rows of the batch, each divided by the
    fraction of batches that have it:

    .. math:: g = \nabla f_B(w) - \alpha\,(\nabla f_B(\tilde w) - D_B \mu), \quad
        (D_B)_{rr} = [r \in B] / p_r

    The mean of :math:`D_B` over the batches is the identity on the rows that occur, so the mean of
    the corrected gradients is the full gradient, and the update has the rows of the batch.

    Parameters
    ----------
    mode : 'exact' or 'sparse'
        One of the two.
    means : dict of str to list of NDArray
        The row_sparse full gradients, by parameter name and context.
    row_shares : dict of str to NDArray
        p of each of their rows: see :class:`gluon_svrg.svrg.gradient.FullGradient`.

    Attributes
    ----------
    is_sparse : bool
        Whether the mode is 'sparse'.

    Raises
    ------
    ValueError
        If `mode` is neither.

    References
    ----------
    H. Mania et al., "Perturbed iterate analysis for asynchronous stochastic optimization", SIAM
    Journal on Optimization 27, 2017, section 4 (sparse SVRG). R. Leblond, F. Pedregosa,
    S. Lacoste-Julien, "Improved asynchronous parallel optimization analysis for stochastic
    incremental methods", JMLR 19, 2018, section 2.
    """

    def __init__(
        self,
        mode: str,
        means: Mapping[str, list[NDArray]],
        row_shares: Mapping[str, NDArray],
    ) -> None:
        check_sparse_correction(mode)
        self.is_sparse = mode == "sparse"
        self._means = dict(means)
        if self.is_sparse:
            self._means = {n: _weighted(arrays, row_shares[n]) for n, arrays in means.items()}

    def correct(
        self,
        name: str,
        grads: Sequence[NDArray],
        snapshot_grads: Sequence[NDArray],
        samples: Sequence[int],
        coefficient: float,
        scale: float,
        snapshot_scale: float,
    ) -> None:
        """Correct the gradients of one parameter on all contexts in place.

        Parameters
        ----------
        name : str
            The parameter's name.
        grads, snapshot_grads : sequences of NDArray
            One on each context: sums over its samples at the weights and at the snapshot.
        samples : sequence of int
            How many each context had; the gradient of one without any stays as it is.
        coefficient, scale, snapshot_scale : float
            As for :meth:`gluon_svrg.svrg.control_variate.ControlVariate.apply`.
        """
        parts = self._full_gradient_of_rows(name, snapshot_grads, samples)
        for grad, snapshot_grad, part, number in zip(
            grads, snapshot_grads, parts, samples, strict=True
        ):
            if number:
                if snapshot_scale != scale:
                    snapshot_grad = snapshot_grad * (scale / snapshot_scale)
                full, counted = part
                corrected = correct(grad, snapshot_grad, full * (counted * scale), coefficient)
                corrected.copyto(grad)

    def _full_gradient_of_rows(
        self, name: str, snapshot_grads: Sequence[NDArray], samples: Sequence[int]
    ) -> list[tuple[NDArray, int]]:
        """Return, per context, the rows of the full gradient and their scale."""
        means = self._means[name]
        if not self.is_sparse:
            return list(zip(means, samples, strict=True))
        if len(means) == 1:
            return [(mx.nd.sparse.retain(means[0], row_indices_nd(snapshot_grads[0])), samples[0])]
        # A row counts once per batch, even if several contexts have it: on the first of them.
        parts, seen = [], np.zeros(0, "int64")
        for mean, grad in zip(means, snapshot_grads, strict=True):
            rows = row_indices(grad)
            own = np.setdiff1d(rows, seen, assume_unique=True)
            seen = np.union1d(seen, own)
            parts.append((_retained(mean, own), sum(samples)))
        return parts


def check_sparse_correction(mode: object) -> None:
    """Raise ValueError if `mode` is neither 'exact' nor 'sparse'."""
    if mode not in SPARSE_CORRECTIONS:
        raise ValueError(
            f"sparse_correction must be 'exact' or 'sparse', got {mode!r}: 'exact' corrects each "
            "row that ever occurs, 'sparse' those of the batch"
        )


def _retained(array: NDArray, rows: NumPyArray) -> NDArray:
    if not len(rows):
        return mx.nd.zeros(array.shape, array.ctx, array.dtype, stype="row_sparse")
    return mx.nd.sparse.retain(array, mx.nd.array(rows, array.ctx, "int64"))


def _weighted(means: Sequence[NDArray], shares: NDArray) -> list[NDArray]:
    """Return the means, each row divided by its frequency, which is the same on all contexts."""
    first = means[0]
    values = stored_values(first)
    divisors = shares.asnumpy().reshape(-1, *[1] * (values.ndim - 1))
    weighted = (values / divisors).astype(values.dtype)
    return [row_sparse(weighted, row_indices(first), mean.shape, mean.context) for mean in means]
