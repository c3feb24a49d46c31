"""CurvatureMeter: the largest curvature of a network's loss, by differences of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import as_legacy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.svrg.smoothness import largest_eigenvalue
from gluon_svrg.svrg.snapshot import BackwardFunction, Snapshot
from mxnet import gluon


class StepScaling(NamedTuple):
    """How the optimizer scales the step of a parameter, besides the learning rate.

    Attributes
    ----------
    lr_mult : float
        Factor of the learning rate.
    weight_decay : float
        The weight decay.
    """

    lr_mult: float = 1.0
    weight_decay: float = 0.0


class CurvatureMeter:
    r"""Measures the largest curvature of the mean loss of batches, without changing the network.

    The largest eigenvalue of :math:`M^{1/2} (H + C) M^{1/2}`, with the Hessian H of the mean loss,
    the weight decay C and the factors M of the learning rate, both diagonal: the matrix that the
    optimizer's steps apply. A product with H is the central difference

    .. math:: H d \approx (\nabla f(w + r d) - \nabla f(w - r d)) / (2 r)

    on a copy of the weights, so the network, its gradients and its running statistics do not
    change. The loss of a sample must not depend on the other samples of the batch.

    Parameters
    ----------
    net : gluon.Block
        The network, whose parameters are initialised.
    backward : callable
        As for :meth:`Snapshot.gradient`.
    steps : dict of str to StepScaling
        The scaling of each trained parameter, by name.
    scale : float
        What the optimizer multiplies the mean gradient by, divided by what the losses are
        multiplied by.

    Attributes
    ----------
    gradient_evaluations : int
        How many samples' gradients were computed.
    """

    def __init__(
        self,
        net: gluon.Block,
        backward: BackwardFunction,
        steps: Mapping[str, StepScaling],
        scale: float = 1.0,
    ) -> None:
        self._snapshot = Snapshot(net, steps)
        self._snapshot.take()
        self._backward = backward
        self._scale = scale
        weights = self.weights()
        self._shapes = {name: weights[name].shape for name in steps}
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        self._roots = np.repeat([np.sqrt(step.lr_mult) for step in steps.values()], sizes)
        self._decays = np.repeat([step.weight_decay for step in steps.values()], sizes)
        self._ends = np.cumsum(sizes)[:-1]
        self.gradient_evaluations = 0

    def weights(self) -> dict[str, NumPyArray]:
        """Return the network's weights when the meter was created: float64, by name."""
        return {
            name: arrays[0].asnumpy().astype("float64")
            for name, arrays in self._snapshot.weights.items()
        }

    def largest(
        self, batches: Sequence[Any], point: Mapping[str, NumPyArray], radius: float
    ) -> tuple[float, int]:
        """Return the largest curvature at `point`, and how many products it took.

        Parameters
        ----------
        batches : sequence
            What `backward` takes.
        point : dict of str to numpy.ndarray
            The weights, all of the network's, by name.
        radius : float
            The length of r d: small enough for the gradient to be nearly linear, and large enough
            for its rounding not to matter.

        Returns
        -------
        value, products : float, int
            NaN if a gradient is not finite.
        """
        return largest_eigenvalue(self._times(batches, point, radius), len(self._roots))

    def release(self) -> None:
        """Free all arrays."""
        self._snapshot.release()

    def _times(
        self, batches: Sequence[Any], point: Mapping[str, NumPyArray], radius: float
    ) -> Callable[[NumPyArray], NumPyArray]:
        def times(vector: NumPyArray) -> NumPyArray:
            direction = self._roots * vector
            length = float(np.linalg.norm(direction))
            if length == 0:
                return np.zeros_like(vector)
            r = radius / length
            ahead = self._gradient(batches, point, r * direction)
            behind = self._gradient(batches, point, -r * direction)
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told as NaN
                curved = (ahead - behind) / (2 * r) + self._decays * direction
            return np.asarray(self._roots * curved)

        return times

    def _gradient(
        self, batches: Sequence[Any], point: Mapping[str, NumPyArray], change: NumPyArray
    ) -> NumPyArray:
        """Return the mean gradient at ``point + change``: a vector of the trained parameters."""
        changes = dict(zip(self._shapes, np.split(change, self._ends), strict=True))
        for name, arrays in self._snapshot.weights.items():
            values = point[name]
            if name in changes:
                values = values + changes[name].reshape(self._shapes[name])
            for array in arrays:
                as_legacy(array)[:] = mx.nd.array(values, dtype=array.dtype)
        total, samples = np.zeros(len(change)), 0
        for batch in batches:
            gradient = self._snapshot.gradient(self._backward, batch)
            samples += sum(gradient.samples)
            for device in by_device(gradient.sums[name] for name in self._shapes):
                total += np.concatenate([grad.asnumpy().ravel() for grad in device])
        self.gradient_evaluations += samples
        return total * (self._scale / samples)
