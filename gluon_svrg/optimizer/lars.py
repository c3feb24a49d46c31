"""LARS: SGD with momentum and a separate learning rate for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from gluon_svrg.optimizer.exemption import EXEMPT, Exempt, ExemptByName
from gluon_svrg.optimizer.optimizer import State, check_momentum, check_step, register
from mxnet import ndarray as nd
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray, RowSparseNDArray, row_sparse_array

# MXNet's preloaded kernels keep their pointers in arrays of this length, and do not check.
_KERNEL_CAPACITY = 60


def trust_ratio(
    weight_norm: NDArray, grad_norm: NDArray, wd: float | NDArray, eta: float, epsilon: float
) -> NDArray:
    r"""Return the trust ratio of each layer, on the device of the norms.

    .. math:: \eta \|w\| / (\|g\| + \mathrm{wd}\, \|w\| + \epsilon)

    Parameters
    ----------
    weight_norm, grad_norm : NDArray, shape (layers,), float32 or float64
        The norms of each layer's weight and of its rescaled gradient.
    wd : float or NDArray, shape (layers,)
        The weight decay of each layer.
    eta, epsilon : float
        The trust coefficient, and a small number.

    Returns
    -------
    NDArray, shape (layers,)
        1 for a layer one of whose norms is 0 (such as that of a new bias: the paper leaves the case
        open, MXNet takes 1) or not finite.
    """
    ratio = eta * weight_norm / (grad_norm + wd * weight_norm + epsilon)
    usable = (weight_norm > 0) * (grad_norm > 0) * nd.contrib.isfinite(weight_norm + grad_norm)
    return nd.where(usable, ratio, nd.ones_like(ratio))


@register
class LARS(ExemptByName):
    r"""SGD with momentum; the trust ratio scales the learning rate of each layer.

    .. math::
        r &= \eta \|w\| / (\|g\| + \mathrm{wd}\, \|w\| + \epsilon)
             \quad\text{with}\quad g = \mathrm{rescale\_grad} \cdot \nabla f(w) \\
        m &\leftarrow \mathrm{momentum}\, m
             - \mathrm{lr}\, r\, (\mathrm{clip}(g) + \mathrm{wd}\, w) \\
        w &\leftarrow w + m

    Two deviations from the paper, both MXNet's: the ratio of exempt parameters is 1, and the
    gradient may be clipped, after the ratio has been taken.

    Parameters
    ----------
    learning_rate : float, optional
        0.1 if there is no `lr_scheduler` either, as in MXNet 2; a scheduler keeps its own base.
    momentum : float in [0, 1), default 0.0
        The paper uses 0.9.
    eta : float > 0, default 0.001
        The trust coefficient.
    epsilon : float, default 1e-8
        Added to the denominator of the ratio.
    lazy_update : bool, default False
        For a row_sparse gradient, update only its rows. The ratio is still that of the whole
        weight. Such a step waits for the gradient, whose number of rows is not known before.
    use_fused_step : bool, default True
        Use MXNet's fused kernels.
    aggregate_num : int or `numpy.inf`, default `numpy.inf`
        The number of parameters that one call updates.
    exempt : str, re.Pattern, callable, collection of str or None
        Which parameters have the ratio 1: a regular expression that is searched for in their names,
        a predicate of a name, or the names. By default those that end in ``gamma``, ``beta`` or
        ``bias``; None: no parameters. The first step warns if an expression, a predicate or a name
        fits no parameter. A dist kvstore and the ``save_states`` of `gluon.Trainer` pickle the
        optimizer, and a lambda cannot be pickled.
    **kwargs
        As for :class:`Optimizer`.

    Raises
    ------
    ValueError
        If `momentum` is not in [0, 1), if `eta` is not positive, if `exempt` is a string and no
        regular expression, if `lazy_update` is combined with
        ``use_fused_step=False`` or `multi_precision`, or as :class:`Optimizer`; in a step, if a
        gradient is sparse and `lazy_update` is False, or a state does not fit its weight.

    References
    ----------
    Y. You, I. Gitman, B. Ginsburg, "Large batch training of convolutional networks", 2017,
    algorithm 1. The effect of the exemption on ResNet-50: PaddlePaddle's pull request 26733.
    """

    # The order is that of MXNet 2's LARS, so all of them may be given by position.
    def __init__(
        self,
        learning_rate: float | None = None,
        momentum: float = 0.0,
        eta: float = 0.001,
        epsilon: float = 1e-8,
        lazy_update: bool = False,
        use_fused_step: bool = True,
        aggregate_num: float = np.inf,
        exempt: Exempt = EXEMPT,
        **kwargs: Any,
    ) -> None:
        if learning_rate is None and kwargs.get("lr_scheduler") is None:
            learning_rate = 0.1
        super().__init__(
            learning_rate=learning_rate,
            use_fused_step=use_fused_step,
            aggregate_num=aggregate_num,
            **kwargs,
        )
        if not eta > 0:
            raise ValueError(f"eta must be positive, got {eta!r}: with 0 no layer would be trained")
        if lazy_update and not use_fused_step:
            raise ValueError(
                "lazy_update=True needs use_fused_step=True, got False: step() is dense"
            )
        if lazy_update and self.multi_precision:
            raise ValueError(
                "lazy_update=True needs multi_precision=False, got True: the float32 copy of a "
                "float16 weight is written back whole"
            )
        self.momentum = check_momentum(momentum)
        self.eta = eta
        self.epsilon = epsilon
        self.lazy_update = lazy_update
        # A net without such parameters may well be trained with the default.
        self._set_exempt(exempt, warns=exempt != EXEMPT)

    def create_state(self, index: int, weight: NDArray) -> NDArray | None:
        """Return the momentum of `weight`, zeros of its shape and dtype; None with momentum 0."""
        return nd.zeros_like(weight) if self.momentum else None

    def step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update `weights` and `states` by the formula, in NDArray arithmetic."""
        check_step(self, self.momentum, indices, weights, grads, states)
        for layer in self._layers(indices, weights, grads, states):
            self._apply(layer)

    def fused_step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update as :meth:`step` does, by fused kernels that read the learning rates on the device.

        A float64 weight is updated by the formula: the kernels round its rates to float32.
        """
        if not self.lazy_update:
            check_step(self, self.momentum, indices, weights, grads, states)
        layers = self._layers(indices, weights, grads, states)
        if self.lazy_update:
            for layer in layers:
                if isinstance(layer.grad, BaseSparseNDArray):
                    self._apply_to_rows(layer, cast(RowSparseNDArray, layer.grad))
            layers = [layer for layer in layers if not isinstance(layer.grad, BaseSparseNDArray)]
        if layers and layers[0].weight.dtype == np.float64:
            for layer in layers:
                self._apply(layer)
            return
        self._fused_apply_exempt([layer for layer in layers if layer.is_exempt])
        self._fused_apply_scaled([layer for layer in layers if not layer.is_exempt])

    def _layers(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> list[_Layer]:
        self._check_exempt(indices)
        self._update_count(indices)
        lrs, wds = self._get_lrs(indices), self._get_wds(indices)
        exempt = [self.is_exempt(self._name(index)) for index in indices]
        return [
            _Layer(*fields) for fields in zip(weights, grads, states, lrs, wds, exempt, strict=True)
        ]

    def _apply(self, layer: _Layer) -> None:
        weight, grad, mom, lr, wd, is_exempt = layer
        rate: float | NDArray = lr
        if not is_exempt:
            ratio = self._ratios([weight], [grad], wd)
            rate = (lr * ratio).astype(weight.dtype, copy=False)
        step = rate * (self.preprocess(grad) + wd * weight)
        if mom is None:
            weight -= step
        else:
            mom *= self.momentum
            mom -= step
            weight += mom

    def _apply_to_rows(self, layer: _Layer, grad: RowSparseNDArray) -> None:
        """Update the rows of a row_sparse gradient."""
        weight, _, mom, lr, wd, is_exempt = layer
        rows = grad.indices
        rate: float | NDArray = lr
        if not is_exempt:
            rate = lr * self._ratios([weight], [grad.data], wd)
        step = rate * (self.preprocess(grad.data) + wd * nd.take(weight, rows))
        # The kernel does only what needs the rows: the momentum and the weight.
        scaled = row_sparse_array((step, rows), shape=grad.shape, ctx=grad.context)
        if mom is None:
            nd.sgd_update(weight, scaled, lr=1, lazy_update=True, out=weight)
        else:
            nd.sgd_mom_update(
                weight, scaled, mom, lr=1, momentum=self.momentum, lazy_update=True, out=weight
            )

    def _fused_apply_exempt(self, layers: list[_Layer]) -> None:
        for start in range(0, len(layers), _KERNEL_CAPACITY):
            some = layers[start : start + _KERNEL_CAPACITY]
            self._kernel(some, *_rates_on_device(some))

    def _fused_apply_scaled(self, layers: list[_Layer]) -> None:
        if not layers:
            return
        lrs, wds = _rates_on_device(layers)
        lrs = lrs * self._ratios(
            [layer.weight for layer in layers], [layer.grad for layer in layers], wds
        )
        # One call per layer: within a call the threads divide the entries of the longest array, so
        # that layers of unequal size take 1.5 times as long by four, 2.8 times by sixty.
        for i, layer in enumerate(layers):
            self._kernel([layer], lrs[i : i + 1], wds[i : i + 1])

    def _ratios(self, weights: list[NDArray], grads: list[NDArray], wd: float | NDArray) -> NDArray:
        grad_norms = _norms(grads) * self.rescale_grad
        return trust_ratio(_norms(weights), grad_norms, wd, self.eta, self.epsilon)

    def _kernel(self, layers: list[_Layer], lrs: NDArray, wds: NDArray) -> None:
        scalars = {"rescale_grad": self.rescale_grad, "num_weights": len(layers)}
        if self.clip_gradient is not None:
            scalars["clip_gradient"] = self.clip_gradient
        weights = [layer.weight for layer in layers]
        if self.momentum:
            arrays = [array for layer in layers for array in (layer.weight, layer.grad, layer.mom)]
            nd.preloaded_multi_sgd_mom_update(
                *arrays, lrs, wds, momentum=self.momentum, out=weights, **scalars
            )
        else:
            arrays = [array for layer in layers for array in (layer.weight, layer.grad)]
            nd.preloaded_multi_sgd_update(*arrays, lrs, wds, out=weights, **scalars)


class _Layer(NamedTuple):
    """One parameter in a step."""

    weight: NDArray
    grad: NDArray
    mom: NDArray | None
    lr: float
    wd: float
    is_exempt: bool


def _rates_on_device(layers: list[_Layer]) -> tuple[NDArray, NDArray]:
    """Return the learning rates and weight decays, shape (layers,), float32 for the kernels."""
    context = layers[0].weight.context
    lrs = nd.array([layer.lr for layer in layers], ctx=context, dtype="float32")
    wds = nd.array([layer.wd for layer in layers], ctx=context, dtype="float32")
    return lrs, wds


def _norms(arrays: Sequence[NDArray]) -> NDArray:
    """Return the norms of `arrays`, shape (arrays,), in float32, or float64 for float64 arrays."""
    # A dot product is the fastest: on ResNet-50's layers multi_sum_sq takes 4 times as long, and
    # nd.norm even longer. Besides, multi_sum_sq adds up float16 arrays in float16.
    flat = [array.reshape(-1) for array in arrays]
    if flat[0].dtype == np.float16:
        flat = [vector.astype("float32") for vector in flat]
    return nd.sqrt(nd.concat(*[nd.dot(vector, vector) for vector in flat], dim=0))
