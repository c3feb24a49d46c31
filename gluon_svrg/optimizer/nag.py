"""NAG: SGD with Nesterov's momentum."""

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
from mxnet.ndarray.sparse import BaseSparseNDArray


@register
class NAG(Optimizer):
    r"""SGD with Nesterov's momentum.

    .. math::
        g &= \mathrm{clip}(\mathrm{rescale\_grad} \cdot \nabla f(w)) + \mathrm{wd}\, w \\
        m &\leftarrow \mathrm{momentum}\, m - \mathrm{lr}\, g \\
        w &\leftarrow w + \mathrm{momentum}\, m - \mathrm{lr}\, g

    Both lines use the weight from before the step. MXNet's own NAG computes the weight decay in the
    momentum from the *new* weight, but not if an inference pass has left the weight in oneDNN's
    private layout: its result depends on what ran before, and varies from run to run. This one
    depends on its arguments only. With weight decay it keeps one more array for each shape that
    the weights have. A sparse gradient is taken as a dense one.

    Parameters
    ----------
    learning_rate : float, optional
        As for :class:`Optimizer`: 0.01 if there is no `lr_scheduler` either.
    momentum : float in [0, 1), default 0.0
        0 is plain SGD, MXNet's default.
    use_fused_step : bool, default True
        Use MXNet's kernels ``nag_mom_update`` and ``sgd_update``.
    aggregate_num : int or `numpy.inf`, default `numpy.inf`
        The number of parameters that one call updates.
    **kwargs
        As for :class:`Optimizer`.

    Raises
    ------
    ValueError
        If `momentum` is not in [0, 1), or as :class:`Optimizer`; in a step, if a state does not fit
        its weight.

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of initialization and momentum
    in deep learning", ICML 2013, written for the point at which the gradient is taken, as in
    MXNet's ``src/operator/optimizer_op-inl.h``.
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        momentum: float = 0.0,
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
        self._scratch: dict[tuple[Any, ...], NDArray] = {}

    def create_state(self, index: int, weight: NDArray) -> NDArray | None:
        """Return the momentum of `weight`, zeros of its shape and dtype; None with momentum 0."""
        return nd.zeros_like(weight) if self.momentum else None

    def step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update `weights` and `states` by the formula, in NDArray arithmetic."""
        grads = _dense(grads)
        check_step(self, self.momentum, indices, weights, grads, states)
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        for weight, grad, mom, lr, wd in zip(weights, grads, states, lrs, wds, strict=True):
            down = lr * (self.preprocess(grad) + wd * weight)
            if mom is not None:
                mom *= self.momentum
                mom -= down
                weight += self.momentum * mom
            weight -= down

    def fused_step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update as :meth:`step` does, by one kernel per parameter."""
        grads = _dense(grads)
        if weights[0].dtype == np.float64:
            # The kernels round learning rate, momentum and decay to float32.
            self.step(indices, weights, grads, states)
            return
        check_step(self, self.momentum, indices, weights, grads, states)
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        scalars = {"rescale_grad": self.rescale_grad}
        if self.clip_gradient is not None:
            scalars["clip_gradient"] = self.clip_gradient
        for weight, grad, mom, lr, wd in zip(weights, grads, states, lrs, wds, strict=True):
            if mom is None:
                nd.sgd_update(weight, grad, lr=lr, wd=wd, out=weight, **scalars)
                continue
            # The kernel reads the weight after it has written it, for the decay of the momentum.
            new = self._scratch_like(weight) if wd else weight
            nd.nag_mom_update(
                weight, grad, mom, lr=lr, wd=wd, momentum=self.momentum, out=new, **scalars
            )
            if new is not weight:
                new.copyto(weight)

    def _scratch_like(self, weight: NDArray) -> NDArray:
        """Return an array of that shape, the same in each step.

        New memory in each step took 1.3 times as long, and parts of one array 1.2 times
        (ResNet-50): MXNet copies such a part before and after the kernel.
        """
        key = weight.shape, weight.dtype, weight.context
        if key not in self._scratch:
            self._scratch[key] = nd.empty(weight.shape, weight.context, weight.dtype)
        return self._scratch[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_scratch": {}}


def _dense(grads: list[NDArray]) -> list[NDArray]:
    return [g.tostype("default") if isinstance(g, BaseSparseNDArray) else g for g in grads]
