"""ControlVariate: full gradient and coefficient by which a trainer's gradients are corrected."""

from __future__ import annotations

from collections.abc import Sequence

from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.svrg.coefficient import OptimalCoefficient
from gluon_svrg.svrg.rule import correct
from mxnet.ndarray import NDArray

# Batch sizes (of whole and of last batches, by device) times coefficients that are kept ready.
_MAX_RULES = 16


class ControlVariate:
    """The rule of SVRG with its full gradient, on all devices; none before :meth:`set`.

    Attributes
    ----------
    full_gradient : dict of str to list of NDArray, or None
        The mean gradient over all samples at the snapshot, by parameter name and context.
    optimal : OptimalCoefficient or None
        What estimates the coefficient; None if it is a number.
    is_idle : bool
        Whether gradients stay as they are, bit for bit: it is not set, or its coefficient is 0.
    """

    def __init__(self) -> None:
        self.full_gradient: dict[str, list[NDArray]] | None = None
        self.optimal: OptimalCoefficient | None = None
        self.is_idle = True
        self._coefficient = 0.0
        # They outlive the snapshot: to write a rule down anew takes as long as some steps.
        self._rules: dict[tuple[int, float, float, float], FusedFunction] = {}

    def set(
        self,
        full_gradient: dict[str, list[NDArray]],
        coefficient: float | OptimalCoefficient,
    ) -> None:
        """Correct by this full gradient from now on."""
        self.full_gradient = full_gradient
        self.optimal = coefficient if isinstance(coefficient, OptimalCoefficient) else None
        self._coefficient = 1.0 if isinstance(coefficient, OptimalCoefficient) else coefficient
        self.is_idle = self._coefficient == 0
        if self.optimal is not None:
            self.optimal.reset()

    def clear(self) -> None:
        """Correct nothing from now on."""
        self.full_gradient, self.optimal, self._coefficient = None, None, 0.0
        self.is_idle = True

    def coefficient(self) -> float:
        """Return the coefficient; if it is estimated, the best for all parameters together."""
        return self._coefficient if self.optimal is None else self.optimal.value()

    def coefficients(self, number: int) -> list[float]:
        """Return the coefficient of each of the `number` parameters that are corrected."""
        if self.optimal is None:
            return [self._coefficient] * number
        values = self.optimal.values()
        # Before the first batch, or since a parameter was frozen, there is no estimate.
        return values if len(values) == number else [1.0] * number

    def apply(
        self,
        device: int,
        samples: int,
        grads: Sequence[NDArray],
        snapshot_grads: Sequence[NDArray],
        full_grads: Sequence[NDArray],
        scale: float,
        snapshot_scale: float,
    ) -> None:
        """Correct the gradients of one device in place.

        Parameters
        ----------
        device : int
            Its number.
        samples : int
            How many samples of the batch it had.
        grads, snapshot_grads, full_grads : sequences of NDArray
            One array per parameter: sums over those samples at the weights and at the snapshot, and
            the mean over all samples at the snapshot.
        scale, snapshot_scale : float
            What the losses of `grads` and of `snapshot_grads` were multiplied by.
        """
        if self.optimal is not None:
            self.optimal.correct(
                device, grads, snapshot_grads, full_grads, samples * scale, scale / snapshot_scale
            )
            return
        rule = self._rule_for(samples, scale, snapshot_scale)
        rule(grads, snapshot_grads, full_grads, out=grads)

    def _rule_for(self, samples: int, scale: float, snapshot_scale: float) -> FusedFunction:
        coefficient = self._coefficient
        key = samples, coefficient, scale, snapshot_scale
        if key not in self._rules:
            if len(self._rules) == _MAX_RULES:
                self._rules.clear()
            self._rules[key] = FusedFunction(
                lambda grad, snapshot_grad, full_grad: correct(
                    grad,
                    snapshot_grad
                    if snapshot_scale == scale
                    else snapshot_grad * (scale / snapshot_scale),
                    full_grad * (samples * scale),
                    coefficient,
                )
            )
        return self._rules[key]
