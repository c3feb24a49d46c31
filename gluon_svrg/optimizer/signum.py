"""Signum: signSGD with momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
from gluon_svrg.optimizer.optimizer import (
    Optimizer,
    State,
    check_momentum,
    check_step,
    register,
)
from mxnet import ndarray as nd
from mxnet.ndarray import NDArray


@register
class Signum(Optimizer):
    r"""The sign of the momentum, times the learning rate.

    .. math::
        g &= \mathrm{clip}(\mathrm{rescale\_grad} \cdot \nabla f(w)) + \mathrm{wd}\, w \\
        m &\leftarrow \mathrm{momentum}\, m - (1 - \mathrm{momentum})\, g \\
        w &\leftarrow (1 - \mathrm{lr}\,\mathrm{wd\_lh})\, w + \mathrm{lr}\, \mathrm{sign}(m)

    With ``momentum=0`` it is signSGD, and all decay is decoupled, as in MXNet's kernel:

    .. math:: w \leftarrow (1 - \mathrm{lr}\,(\mathrm{wd} + \mathrm{wd\_lh}))\, w
              - \mathrm{lr}\, \mathrm{sign}(\nabla f(w))

    Each entry of a weight moves by the learning rate, whatever the size of the gradient: use one as
    small as for Adam.

    Parameters
    ----------
    learning_rate : float, optional
        As for :class:`Optimizer`: 0.01 if there is no `lr_scheduler` either.
    momentum : float in [0, 1), default 0.9
        0 is signSGD.
    wd_lh : float, default 0.0
        The decoupled weight decay of Loshchilov and Hutter, for every parameter: as in MXNet,
        ``wd_mult`` is not applied to it.
    use_fused_step : bool, default True
        Use MXNet's kernels ``signum_update`` and ``signsgd_update``.
    aggregate_num : int or `numpy.inf`, default `numpy.inf`
        The number of parameters that one call updates.
    **kwargs
        As for :class:`Optimizer`.

    Raises
    ------
    ValueError
        If `momentum` is not in [0, 1), or as :class:`Optimizer`; in a step, if a gradient is sparse
        or a state does not fit its weight.

    References
    ----------
    J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: compressed optimisation
    for non-convex problems", ICML 2018. I. Loshchilov, F. Hutter, "Decoupled weight decay
    regularization", ICLR 2019.
    """

    # The order is that of MXNet 2's Signum, so all of them may be given by position.
    def __init__(
        self,
        learning_rate: float | None = None,
        momentum: float = 0.9,
        wd_lh: float = 0.0,
        use_fused_step: bool = True,
        aggregate_num: float = np.inf,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            use_fused_step=use_fused_step,
            aggregate_num=aggregate_num,
            **kwargs,
        )
        self.momentum = check_momentum(momentum)
        self.wd_lh = wd_lh

    def create_state(self, index: int, weight: NDArray) -> NDArray | None:
        """Return the momentum of `weight`, zeros of its shape and dtype; None with momentum 0."""
        return nd.zeros_like(weight) if self.momentum else None

    def step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update `weights` and `states` by the formula, in NDArray arithmetic."""
        check_step(self, self.momentum, indices, weights, grads, states)
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        for weight, grad, mom, lr, wd in zip(weights, grads, states, lrs, wds, strict=True):
            if mom is None:
                weight *= 1 - lr * (wd + self.wd_lh)
                weight -= lr * nd.sign(grad)
            else:
                grad = self.preprocess(grad) + wd * weight
                # The momentum has the sign that the kernel gives it: both can use the same state.
                mom *= self.momentum
                mom -= (1 - self.momentum) * grad
                weight *= 1 - lr * self.wd_lh
                weight += lr * nd.sign(mom)

    def fused_step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update as :meth:`step` does, by one kernel per parameter."""
        if weights[0].dtype == np.float64:
            # The kernels round learning rate, momentum and decay to float32.
            self.step(indices, weights, grads, states)
            return
        check_step(self, self.momentum, indices, weights, grads, states)
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        scalars = {"momentum": self.momentum, "wd_lh": self.wd_lh}
        scalars["rescale_grad"] = self.rescale_grad
        if self.clip_gradient is not None:
            scalars["clip_gradient"] = self.clip_gradient
        for weight, grad, mom, lr, wd in zip(weights, grads, states, lrs, wds, strict=True):
            if mom is None:
                nd.signsgd_update(weight, grad, lr=lr, wd=wd + self.wd_lh, out=weight)
            else:
                nd.signum_update(weight, grad, mom, lr=lr, wd=wd, out=weight, **scalars)
