"""AdamW: Adam with decoupled weight decay, which MXNet 1.9.1 has kernels for and no class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gluon_svrg.arguments import check_finite, check_number
from gluon_svrg.optimizer.optimizer import Optimizer, State, check_is_dense, register
from mxnet import ndarray as nd
from mxnet.ndarray import NDArray

_LEARNING_RATE = 0.001  # Adam's, of its paper and of every implementation


# What PyTorch and optax call them.
_NAMES_ELSEWHERE = {
    "b1": "beta1",
    "b2": "beta2",
    "betas": "beta1 and beta2",
    "eps": "epsilon",
    "lr": "learning_rate",
    "weight_decay": "wd",
}


class Update(NamedTuple):
    """The parameter of this number in a step, its t-th."""

    number: int
    weight: NDArray
    grad: NDArray
    state: tuple[NDArray, ...]
    lr: float
    wd: float
    t: int


@register
class AdamW(Optimizer):
    r"""Adam with decoupled weight decay.

    .. math::
        g &= \mathrm{clip}(\mathrm{rescale\_grad} \cdot \nabla f(w)) \\
        m &\leftarrow \beta_1 m + (1 - \beta_1)\, g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\, g^2 \\
        w &\leftarrow (1 - \mathrm{lr}\,\mathrm{wd})\, w
             - \mathrm{lr}\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    t is the number of updates of the parameter. The weight decay is multiplied by the learning
    rate, with its schedule and ``lr_mult``, as in PyTorch and optax: a `wd` from there is the same
    here. The paper, and MXNet's kernel, multiply it by the schedule alone.

    Parameters
    ----------
    learning_rate : float, optional
        As for :class:`Optimizer`, but 0.001 if there is no `lr_scheduler` either.
    beta1, beta2 : float in [0, 1), default 0.9 and 0.999
        The decay of the moving averages of gradient and squared gradient.
    epsilon : float > 0, default 1e-8
        Added to the root, after the correction of its bias (MXNet's Adam adds it before).
    use_fused_step : bool, default True
        Use MXNet's kernel ``multi_adamw_update`` for float32.
    aggregate_num : int or `numpy.inf`, default `numpy.inf`
        The number of parameters that one call updates.
    **kwargs
        As for :class:`Optimizer`. `wd` is 0 by default; usual are 0.01 to 0.1.

    Raises
    ------
    ValueError
        If `beta1` or `beta2` is not in [0, 1), if `epsilon` is not positive, or as
        :class:`Optimizer`; in a step, if a gradient is sparse or a state does not fit its weight.

    References
    ----------
    D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015. I. Loshchilov,
    F. Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        *,
        use_fused_step: bool = True,
        aggregate_num: float = np.inf,
        **kwargs: Any,
    ) -> None:
        for name in sorted(_NAMES_ELSEWHERE.keys() & kwargs.keys()):
            raise TypeError(
                f"{type(self).__name__} has no argument {name!r}: give {_NAMES_ELSEWHERE[name]}"
            )
        if learning_rate is None and kwargs.get("lr_scheduler") is None:
            learning_rate = _LEARNING_RATE
        super().__init__(
            learning_rate=learning_rate,
            use_fused_step=use_fused_step,
            aggregate_num=aggregate_num,
            **kwargs,
        )
        self.beta1 = _checked_beta("beta1", beta1)
        self.beta2 = _checked_beta("beta2", beta2)
        self.epsilon = check_finite(
            "epsilon",
            epsilon,
            "with 0 a weight whose gradients are 0 would become NaN",
            0,
            above=True,
        )

    def create_state(self, index: int, weight: NDArray) -> tuple[NDArray, ...]:
        """Return mean and variance: zeros of the shape and dtype of `weight`, for float16 float32.

        In float16 the squares of usual gradients are 0.
        """
        dtype = "float32" if weight.dtype == np.float16 else weight.dtype
        names = self._state_names(index)
        return tuple(nd.zeros(weight.shape, weight.context, dtype) for _ in names)

    def step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update `weights` and `states` by the formula, in NDArray arithmetic."""
        for update in self._updates(indices, weights, grads, states):
            self._apply(update)

    def fused_step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update as :meth:`step` does, by one kernel per parameter.

        Weights that are not float32 are updated by the formula: the kernel rounds float64's rates.
        """
        updates = self._updates(indices, weights, grads, states)
        # The kernel leaves out an update whose scale is 0 or not finite, with decay and averages.
        is_usable = self.rescale_grad != 0 and math.isfinite(self.rescale_grad)
        if is_usable and weights[0].dtype == np.float32:
            self._fused_apply(updates)
            return
        for update in updates:
            self._apply(update)

    def _state_names(self, index: int) -> tuple[str, ...]:
        """Return what the arrays of the parameter's state are."""
        return "mean", "variance"

    def _direction(self, update: Update, grad: NDArray) -> NDArray:
        """Return of what the averages are taken; `grad` is the rescaled and clipped gradient."""
        return grad

    def _updates(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> list[Update]:
        for index, weight, grad, state in zip(indices, weights, grads, states, strict=True):
            check_is_dense(self, index, grad)
            self._check_state(index, weight, state)
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        counts = [self._index_update_count[index] for index in indices]
        columns = (indices, weights, grads, states, lrs, wds, counts)
        return [Update(*fields) for fields in zip(*columns, strict=True)]

    def _check_state(self, index: int, weight: NDArray, state: State) -> None:
        names = self._state_names(index)
        arrays = state if isinstance(state, tuple | list) else [state]
        shapes = [getattr(array, "shape", None) for array in arrays]
        if len(shapes) < len(names) or set(shapes) != {weight.shape}:
            raise ValueError(
                f"the state of {self._name(index)!r} has arrays of the shapes {shapes}, but "
                f"{type(self).__name__} needs {', '.join(names)} of shape {weight.shape}: it is "
                "from other parameters, another optimizer, or one with other settings (of MARS, "
                "gamma and exempt): load the states of this run"
            )

    def _apply(self, update: Update) -> None:
        weight = update.weight
        if weight.dtype == np.float16:
            # Without master copies; even so only the sum is rounded, not each of its parts.
            weight = weight.astype("float32")
            self._apply(update._replace(weight=weight, grad=update.grad.astype("float32")))
            nd.cast(weight, dtype="float16", out=update.weight)
            return
        grad = self._direction(update, self.preprocess(update.grad))
        mean, var, *_ = update.state
        beta1, beta2 = self._betas(weight)
        mean *= beta1
        mean += (1 - beta1) * grad
        var *= beta2
        var += (1 - beta2) * nd.square(grad)
        root = nd.sqrt(var / (1 - beta2**update.t))
        weight *= 1 - update.lr * update.wd
        weight -= update.lr / (1 - beta1**update.t) * mean / (root + self.epsilon)

    def _fused_apply(self, updates: Sequence[Update]) -> None:
        scale = nd.full((1,), self.rescale_grad, updates[0].weight.context)
        for update in updates:
            self._kernel(update, update.grad, scale, clip=self.clip_gradient)

    def _kernel(
        self, update: Update, grad: NDArray, scale: NDArray, clip: float | None = None
    ) -> None:
        """Update by the kernel; `scale`, shape (1,), multiplies `grad` on the device."""
        mean, var, *_ = update.state
        beta1, beta2 = self._betas(update.weight)
        # The kernel knows no correction of the bias, so rate and epsilon have it; and it decays by
        # wd without the rate. multi_adamw_update, for one parameter: adamw_update overwrites the
        # gradient, and is slower; with several, the threads divide the longest array only.
        root = math.sqrt(1 - beta2**update.t)
        nd.contrib.multi_adamw_update(
            [update.weight],
            [grad],
            [mean],
            [var],
            scale,
            lrs=[update.lr * root / (1 - beta1**update.t)],
            wds=[update.lr * update.wd],
            etas=[1.0],
            beta1=beta1,
            beta2=beta2,
            epsilon=self.epsilon * root,
            out=[update.weight],
            **({} if clip is None else {"clip_gradient": clip}),
        )

    def _betas(self, weight: NDArray) -> tuple[float, float]:
        """Return the betas as arrays of the weight's dtype have them.

        In float32 1 - 0.999 is 1.3e-5 off: the correction of the bias has to be off by the same.
        """
        if weight.dtype == np.float64:
            return self.beta1, self.beta2
        return float(np.float32(self.beta1)), float(np.float32(self.beta2))


def _checked_beta(name: str, beta: float) -> float:
    check_number(name, beta, "how much of a moving average stays in a step")
    if not 0 <= beta < 1:
        raise ValueError(
            f"{name} must be in [0, 1), got {beta!r}: from 1 on, old gradients never fade"
        )
    return beta
