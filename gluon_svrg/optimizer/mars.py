"""MARS: AdamW on the gradient and its last change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gluon_svrg.arguments import check_finite, check_number
from gluon_svrg.optimizer.adamw import AdamW, Update
from gluon_svrg.optimizer.exemption import Exempt, ExemptByName
from gluon_svrg.optimizer.optimizer import register
from mxnet import ndarray as nd
from mxnet.ndarray import NDArray


def norm_scale(squares: NDArray, max_norm: float) -> NDArray:
    r"""Return by what arrays are multiplied so that their norms are at most `max_norm`.

    .. math:: \mathrm{max\_norm} / \max(\|c\|, \mathrm{max\_norm})

    Parameters
    ----------
    squares : NDArray, shape (arrays,), float32 or float64
        The squares of their norms.
    max_norm : float
        The largest norm.

    Returns
    -------
    NDArray, shape (arrays,)
        1 where a norm is not finite: what is NaN or infinite stays to be seen.
    """
    norms = nd.sqrt(squares)
    scale = max_norm / nd.maximum(norms, max_norm)
    return nd.where(nd.contrib.isfinite(squares), scale, nd.ones_like(scale))


@register
class MARS(ExemptByName, AdamW):
    r"""AdamW on the gradient and its last change, by one gradient a step.

    .. math::
        c &= g_t + \gamma \frac{\beta_1}{1 - \beta_1} (g_t - g_{t-1}) \\
        c &\leftarrow c / \max(1, \|c\| / \mathrm{max\_norm}) \\
        m &\leftarrow \beta_1 m + (1 - \beta_1)\, c \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\, c^2

    and the step of :class:`AdamW` with m and v. :math:`g_t` is the rescaled and clipped gradient of
    this step, :math:`g_{t-1}` that of the parameter's last one, on another batch: what its authors
    call MARS-approx and use. In the first step :math:`c = g`, as in timm. With ``gamma=0`` and
    ``max_norm=None`` it is AdamW, bit for bit.

    It is a momentum of the quasi-hyperbolic kind, and no reduction of the gradient's variance:
    where the norm is not cut, :math:`m_t = (1 - \gamma)\, u_t + \gamma\, g_t`, u being the plain
    moving average (Ma & Yarats), but for a part of the first gradient that fades as
    :math:`\beta_1^t`; and the variance of m is a little larger than that of u (6 % at the
    defaults). The change of the gradient itself would take the last weights' gradient on the *same*
    batch, so a second gradient a step; for that much more it has not been seen to pay.

    Parameters
    ----------
    learning_rate : float, optional
        As for :class:`AdamW`; its authors take three to ten times AdamW's.
    beta1, beta2 : float in [0, 1), default 0.95 and 0.99
        As for :class:`AdamW`.
    epsilon : float > 0, default 1e-8
        As for :class:`AdamW`.
    gamma : float in [0, 1], default 0.025
        How much the change of the gradient counts; 0: not at all. ``1 - beta1`` is Nesterov's
        momentum.
    max_norm : float > 0 or None, default 1.0
        The norm to which c is cut in each parameter, on the device; None: it is not. The gradient
        is the mean over the batch, if `rescale_grad` divides it, as a Trainer does.
    exempt : str, re.Pattern, callable, collection of str or None
        Which parameters take AdamW's step, with neither change nor cut: given as to
        :class:`LARS`; by default none. The authors exempt all but matrices, and in their script
        for CIFAR the convolutions, too.
    use_fused_step : bool, default True
        Use MXNet's kernels for float32.
    aggregate_num : int or `numpy.inf`, default `numpy.inf`
        The number of parameters that one call updates.
    **kwargs
        As for :class:`Optimizer`.

    Raises
    ------
    ValueError
        If `gamma` is not in [0, 1], if `max_norm` is not positive, if `exempt` is a string and no
        regular expression, or as :class:`AdamW`.

    References
    ----------
    H. Yuan, Y. Liu, S. Wu, X. Zhou, Q. Gu, "MARS: unleashing the power of variance reduction for
    training large models", ICML 2025 (arXiv 2411.10438). J. Ma, D. Yarats, "Quasi-hyperbolic
    momentum and Adam for deep learning", ICLR 2019 (arXiv 1810.06801).
    """

    def __init__(
        self,
        learning_rate: float | None = None,
        beta1: float = 0.95,
        beta2: float = 0.99,
        epsilon: float = 1e-8,
        *,
        gamma: float = 0.025,
        max_norm: float | None = 1.0,
        exempt: Exempt = None,
        use_fused_step: bool = True,
        aggregate_num: float = np.inf,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            beta1,
            beta2,
            epsilon,
            use_fused_step=use_fused_step,
            aggregate_num=aggregate_num,
            **kwargs,
        )
        check_number("gamma", gamma, "how much the change of the gradient counts")
        if not 0 <= gamma <= 1:
            raise ValueError(
                f"gamma must be in [0, 1], got {gamma!r}: 0 is AdamW, 1 the whole change of the "
                "gradient"
            )
        if max_norm is not None:
            check_finite("max_norm", max_norm, "None is no limit", 0, above=True)
        self.gamma = gamma
        self.max_norm = max_norm
        self._set_exempt(exempt, warns=True)

    def _state_names(self, index: int) -> tuple[str, ...]:
        names = super()._state_names(index)
        is_plain = not self.gamma or self.is_exempt(self._name(index))
        return names if is_plain else (*names, "last gradient")

    def _updates(self, indices: list[int], *lists: Any) -> list[Update]:
        self._check_exempt(indices)
        return super()._updates(indices, *lists)

    def _direction(self, update: Update, grad: NDArray) -> NDArray:
        if self.is_exempt(self._name(update.number)):
            return grad
        direction = grad
        for last in update.state[2:]:
            change = self._weight_of_change(update)
            if change:
                direction = grad + change * (grad - last)
            grad.copyto(last)
        if self.max_norm is not None:
            scale = norm_scale(_square_of_norm(direction), self.max_norm)
            direction = direction * scale
        return direction

    def _weight_of_change(self, update: Update) -> float:
        """Return by what the change of the gradient is multiplied: nothing in the first step."""
        if update.t == self.begin_num_update + 1:
            return 0.0
        return self.gamma * self.beta1 / (1 - self.beta1)

    def _fused_apply(self, updates: Sequence[Update]) -> None:
        plain: list[Update] = []
        changed: list[Update] = []
        for update in updates:
            is_exempt = self.is_exempt(self._name(update.number))
            is_plain = is_exempt or (self.max_norm is None and len(update.state) == 2)
            (plain if is_plain else changed).append(update)
        if plain:
            super()._fused_apply(plain)
        if not changed:
            return
        directions = [self._fused_direction(update) for update in changed]
        scales = nd.ones((len(changed),), changed[0].weight.context)
        if self.max_norm is not None:
            squares = nd.concat(*[_square_of_norm(array) for array in directions], dim=0)
            scales = norm_scale(squares, self.max_norm)
        for i, (update, direction) in enumerate(zip(changed, directions, strict=True)):
            # The kernel's rescale_grad is an array: the cut costs no pass over the gradient.
            self._kernel(update, direction, scales[i : i + 1])
            for last in update.state[2:]:
                self._keep(update.grad, last)

    def _fused_direction(self, update: Update) -> NDArray:
        """Return c, before it is cut, in the place of the last gradient if there is one."""
        for last in update.state[2:]:
            # SGD's kernel with these rates: last + (1 + change) (clip(rescale_grad grad) - last).
            clip = -1.0 if self.clip_gradient is None else self.clip_gradient
            return nd.sgd_update(
                last,
                update.grad,
                lr=-(1 + self._weight_of_change(update)),
                wd=-1.0,
                rescale_grad=self.rescale_grad,
                clip_gradient=clip,
                out=last,
            )
        return self.preprocess(update.grad)

    def _keep(self, grad: NDArray, last: NDArray) -> None:
        """Write the rescaled and clipped gradient into `last`."""
        grad.copyto(last)
        if self.rescale_grad != 1:
            last *= self.rescale_grad
        if self.clip_gradient is not None:
            nd.clip(last, -self.clip_gradient, self.clip_gradient, out=last)


def _square_of_norm(array: NDArray) -> NDArray:
    """Return the sum of the squares, shape (1,): a dot product is the fastest."""
    flat = array.reshape(-1)
    return nd.dot(flat, flat)
