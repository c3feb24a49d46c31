"""The variance ratio: what the correction does to the variance of a batch's gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg.arrays.row_sparse import is_row_sparse
from gluon_svrg.svrg.gradient import BatchGradient
from gluon_svrg.svrg.locks import MaskLock
from gluon_svrg.svrg.snapshot import BackwardFunction, Snapshot
from gluon_svrg.workers import SingleProcess, Workers
from mxnet import gluon
from mxnet.ndarray import NDArray

Coefficients = float | Mapping[str, float]


class GradientMoments:
    r"""Variances and covariance of a batch's gradient at the weights and at the snapshot.

    With *a* the gradient of a batch at the weights and *c* that of the same batch at the snapshot,
    the corrected gradient :math:`a - \alpha (c - \mu)` has the variance

    .. math:: \mathrm{Var}(a) - 2 \alpha\, \mathrm{Cov}(c, a) + \alpha^2\, \mathrm{Var}(c),

    where the variance of a vector is the sum of its elements' variances, the mean squared distance
    from its mean. It is least at :math:`\alpha^* = \mathrm{Cov}(c, a) / \mathrm{Var}(c)` (Y. Yin et
    al., "A coefficient makes SVRG effective", ICLR 2025). All are computed in one pass, in float64,
    by Welford's updates, and divided by the number of batches less one.

    Parameters
    ----------
    workers : Workers, optional
        The processes that share each batch; all of them get the same moments.

    Attributes
    ----------
    batches : int
        How many batches were added.
    samples : int
        How many samples they had.
    """

    def __init__(self, workers: Workers | None = None) -> None:
        self._workers = workers or SingleProcess()
        self.batches = 0
        self.samples = 0
        self._means: dict[str, tuple[NDArray, NDArray]] = {}
        # By name: the sums of products (a, a), (c, a) and (c, c) of the distances from the means.
        self._sums: dict[str, NDArray] = {}

    def add(
        self,
        gradient: BatchGradient,
        snapshot_gradient: BatchGradient,
        scale: float = 1.0,
        snapshot_scale: float = 1.0,
    ) -> None:
        """Add one batch.

        Parameters
        ----------
        gradient, snapshot_gradient : BatchGradient
            The gradients of the batch at the weights and at the snapshot.
        scale, snapshot_scale : float
            The loss scale of each, if the gradient does not have one.
        """
        if gradient.loss_scale is not None:
            scale = gradient.loss_scale
        if snapshot_gradient.loss_scale is not None:
            snapshot_scale = snapshot_gradient.loss_scale
        self.batches += 1
        sums = {name: _sum(grads) for name, grads in gradient.sums.items()}
        snapshot_sums = {
            name: _sum(grads) for name, grads in snapshot_gradient.sums.items() if name in sums
        }
        self._workers.all_reduce([*sums.values(), *snapshot_sums.values()])
        samples = self._workers.all_sum(sum(gradient.samples), "variance of a batch")
        self.samples += samples
        for name, total in sums.items():
            a = total / (samples * scale)
            # A parameter that was frozen at the snapshot is not corrected until the next one.
            c = (
                snapshot_sums[name] / (samples * snapshot_scale)
                if name in snapshot_sums
                else mx.nd.zeros_like(a)
            )
            if name not in self._means:
                self._means[name] = a, c
                self._sums[name] = mx.nd.zeros(3, a.context, "float64")
                continue
            a_mean, c_mean = self._means[name]
            a -= a_mean
            c -= c_mean
            products = (mx.nd.dot(x, y) for x, y in ((a, a), (c, a), (c, c)))
            self._sums[name] += mx.nd.concat(*products, dim=0) * (1 - 1 / self.batches)
            a_mean += a / self.batches
            c_mean += c / self.batches

    def variance(self, coefficient: Coefficients = 0.0) -> float:
        """Return the variance of a batch's corrected gradient; with 0 that of the plain one.

        Parameters
        ----------
        coefficient : float, or dict of str to float
            One for all parameters, or one for each by name.

        Raises
        ------
        ValueError
            If fewer than two batches were added.
        """
        total = 0.0
        for name, (plain, covariance, snapshot) in self._by_name().items():
            alpha = coefficient.get(name, 1.0) if isinstance(coefficient, Mapping) else coefficient
            total += plain - 2 * alpha * covariance + alpha**2 * snapshot
        # If the two gradients are equal, rounding may give a number below 0.
        return max(0.0, total) if math.isfinite(total) else total

    def ratio(self, coefficient: Coefficients = 1.0) -> float:
        """Return the variance of the corrected gradient, divided by that of the plain one.

        It is 1 if both are 0.
        """
        plain, corrected = self.variance(0.0), self.variance(coefficient)
        return 1.0 if plain == corrected else corrected / plain if plain else math.inf

    def optimal_coefficient(self) -> float:
        """Return the single coefficient in [0, 1] with the least variance."""
        moments = list(self._by_name().values())
        return _clamped(sum(row[1] for row in moments), sum(row[2] for row in moments))

    def optimal_coefficients(self) -> dict[str, float]:
        """Return for each parameter the coefficient in [0, 1] with the least variance."""
        return {name: _clamped(row[1], row[2]) for name, row in self._by_name().items()}

    def _by_name(self) -> dict[str, list[float]]:
        if self.batches < 2:
            raise ValueError(f"a variance needs at least two batches, got {self.batches}")
        return {
            name: (sums.asnumpy() / (self.batches - 1)).tolist()
            for name, sums in self._sums.items()
        }


class VarianceMeter:
    """Measures the variances at a network's weights, without changing the network.

    The gradients are computed on a :class:`gluon_svrg.Snapshot`, so those of the network,
    BatchNorm's running statistics and the trainer do not change. It takes six copies of the
    parameters while it measures: weights and gradients of the copy, and two means in float64.

    Parameters
    ----------
    net, params
        As for :class:`gluon_svrg.Snapshot`.
    workers : Workers, optional
        As for :class:`GradientMoments`.
    """

    def __init__(
        self,
        net: gluon.Block,
        params: Iterable[str] | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._workers = workers
        self._copy = Snapshot(net, params)

    def release(self) -> None:
        """Free the copy's arrays until the next measurement."""
        self._copy.release()

    def measure(
        self,
        backward: BackwardFunction,
        batches: Iterable[object],
        snapshot_gradient: Callable[[Any], BatchGradient],
        scale: float = 1.0,
        snapshot_scale: float = 1.0,
    ) -> GradientMoments:
        """Return the moments over `batches`, at the network's present weights.

        Both gradients of a batch see the same random numbers, such as dropout masks: MXNet is
        seeded for that, so measure between two batches, not within one. It costs one gradient per
        batch, plus the calls of `snapshot_gradient`.

        Parameters
        ----------
        backward : callable
            As for :meth:`gluon_svrg.Snapshot.gradient`.
        batches : iterable
            At least two batches, of equal size.
        snapshot_gradient : callable
            Takes a batch and returns its gradient at the snapshot: ``interval.gradient_at`` for
            batches of an ArrayLoader, or
            ``lambda batch: snapshot.gradient(backward, batch)``. It is called first.
        scale, snapshot_scale : float
            As for :meth:`GradientMoments.add`.
        """
        masks = MaskLock(workers=self._workers)
        masks.next_snapshot()
        lock = masks.release

        def at_snapshot(item: tuple[int, object]) -> BatchGradient:
            nonlocal lock
            index, batch = item
            masks.lock(index)
            gradient = snapshot_gradient(batch)
            # An Interval has masks of its own; a table has those of the full pass.
            lock = gradient.lock or partial(masks.lock, index)
            return gradient

        def at_weights(item: tuple[int, object]) -> object:
            lock()
            return backward(item[1])

        try:
            return self.measure_locked(
                at_weights, enumerate(batches), at_snapshot, scale, snapshot_scale
            )
        finally:
            masks.release()

    def measure_locked(
        self,
        backward: BackwardFunction,
        batches: Iterable[Any],
        snapshot_gradient: Callable[[Any], BatchGradient],
        scale: float = 1.0,
        snapshot_scale: float = 1.0,
    ) -> GradientMoments:
        """Return the same; here `backward` and `snapshot_gradient` seed MXNet themselves."""
        moments = GradientMoments(self._workers)
        self._copy.take()
        for batch in batches:
            there = snapshot_gradient(batch)
            moments.add(self._copy.gradient(backward, batch), there, scale, snapshot_scale)
        return moments


def _sum(grads: Sequence[NDArray]) -> NDArray:
    """Return the sum over the devices: flat, float64, on the first of them."""
    # The variance of a row_sparse gradient, too, is that of all elements.
    dense = [g.tostype("default") if is_row_sparse(g) else to_nd(g) for g in grads]
    flat = [g.reshape(-1).astype("float64").as_in_context(grads[0].ctx) for g in dense]
    return mx.nd.add_n(*flat)


def _clamped(covariance: float, variance: float) -> float:
    # Without variance at the snapshot the coefficient changes nothing.
    return min(1.0, max(0.0, covariance / variance)) if variance > 0 else 1.0
