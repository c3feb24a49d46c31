"""The SVRG rule as a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # not when it runs: the linear models use it without MXNet
    from gluon_svrg._typing import NumPyArray
    from mxnet.ndarray import NDArray
    from mxnet.symbol import Symbol

Array = TypeVar("Array", "NDArray", "NumPyArray", "Symbol")


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
    corrected: Array = grad - control
    return corrected
