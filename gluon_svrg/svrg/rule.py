"""The SVRG rule as a pure function, and its coefficient."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeVar

Array = TypeVar("Array", bound=Any)
Coefficient = float | Callable[[float], float]


def correct(grad: Array, snapshot_grad: Array, full_grad: Array, coefficient: float = 1.0) -> Array:
    r"""Return the variance-reduced gradient of one batch.

    .. math:: g = \nabla f_B(w) - \alpha\,(\nabla f_B(\tilde w) - \mu)

    The three gradients are on one scale: all means over samples, or all sums over the batch,
    with `full_grad` then the full gradient times the number of samples in the batch.

    Parameters
    ----------
    grad : NDArray or numpy.ndarray
        Gradient of the batch at the current weights.
    snapshot_grad : NDArray or numpy.ndarray, same shape and dtype
        Gradient of the same batch at the snapshot's weights.
    full_grad : NDArray or numpy.ndarray, same shape and dtype
        Gradient of all samples at the snapshot's weights.
    coefficient : float in [0, 1]
        1 is SVRG, 0 the plain gradient (returned as it is, bit for bit), between them alpha-SVRG.

    Returns
    -------
    NDArray or numpy.ndarray
        The corrected gradient; the inputs are not changed.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013. Y. Yin et al., "A coefficient makes SVRG effective", ICLR 2025.
    """
    if coefficient == 0:
        return grad
    control = snapshot_grad - full_grad
    if coefficient != 1:
        control = control * coefficient
    return grad - control


def check_coefficient(value: object, source: str = "coefficient") -> float:
    """Return `value` as a float in [0, 1].

    Raises
    ------
    TypeError
        If `value` is not a number.
    ValueError
        If `value` is not in [0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{source} must be a number in [0, 1], got {value!r}: 1 is SVRG, 0 the plain optimizer"
        )
    if not 0 <= float(value) <= 1:
        raise ValueError(
            f"{source} must be in [0, 1], got {value!r}: 1 is SVRG, 0 the plain optimizer"
        )
    return float(value)


def coefficient_at(coefficient: Coefficient, progress: float) -> float:
    """Return the coefficient at `progress`, the fraction of training that is done, in [0, 1].

    Raises
    ------
    TypeError, ValueError
        As `check_coefficient` does, for what a schedule returned.
    """
    if not callable(coefficient):
        return check_coefficient(coefficient)
    return check_coefficient(
        coefficient(progress), f"the coefficient schedule's value at progress {progress:.3g}"
    )


def linear_decay(start: float = 0.75, end: float = 0.0) -> Callable[[float], float]:
    """Return a schedule that goes in a straight line from `start` to `end`.

    alpha-SVRG (Yin et al., ICLR 2025) uses 0.75 to 0.

    Parameters
    ----------
    start, end : float in [0, 1]
        The coefficient at the beginning and at the end of training.

    Returns
    -------
    callable
        From training progress in [0, 1] to the coefficient.
    """
    start = check_coefficient(start, "start")
    end = check_coefficient(end, "end")

    def schedule(progress: float) -> float:
        return start + (end - start) * min(1.0, max(0.0, progress))

    return schedule
