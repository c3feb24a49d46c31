"""The coefficient of SVRG: a number, a schedule, or estimated in training."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.events import State
from gluon_svrg.run import Run
from gluon_svrg.schedules import named
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

Coefficient = float | Callable[[float], float]

_SCOPES = ("parameter", "network")
_MAX_RULES = 16  # cached functions, one per batch size
_TINY = 1e-30  # 0 / 0 is 1: without variance at the snapshot the coefficient changes nothing


class DeviceGradients(NamedTuple):
    """The gradients of one device's samples of a batch: one array per parameter, in a fixed order.

    Attributes
    ----------
    grads, snapshot_grads, full_grads : sequences of NDArray
        The sums over its samples, at the weights and at the snapshot, and the full gradient.
    samples : float
        The factor that brings the full gradient to the scale of `grads`.
    """

    grads: Sequence[NDArray]
    snapshot_grads: Sequence[NDArray]
    full_grads: Sequence[NDArray]
    samples: float


class OptimalCoefficient:
    r"""The coefficient :math:`\alpha^* = \mathrm{Cov}(c, a) / \mathrm{Var}(c)`, clamped to [0, 1].

    With *a* and *c* the gradients of a batch at the weights and at the snapshot, and :math:`\mu`
    the full gradient, which is the mean of *c*, both are estimated from the batches since the
    snapshot, with weights that fall by the factor :math:`1 - 1 / \mathrm{window}` per batch:
    :math:`\langle c - \mu, a - \mu \rangle` and :math:`\lVert c - \mu \rVert^2`. Subtracting
    :math:`\mu` from *a* does not change the mean of the product, since *c* - :math:`\mu` has mean
    0, and makes the coefficient exactly 1 at the snapshot.

    A batch is corrected with the estimate from the batches *before* it, so the corrected gradient
    stays unbiased; the first batch has 1. The cost is two sums over the parameters per batch, and
    two numbers per parameter. Several devices and workers add up both gradients, and estimate from
    the whole batch. With accumulation over batches, *a* is the accumulated gradient, which makes
    the estimate noisier. A batch whose gradient is not finite is not used.

    Parameters
    ----------
    scope : 'parameter' or 'network'
        Whether each parameter has its own coefficient, or all have one.
    window : int
        The estimate averages over about this many batches: a smaller window follows changes faster
        and varies more.

    References
    ----------
    Y. Yin et al., "A coefficient makes SVRG effective", ICLR 2025, computes the optimum over the
    whole data set for each element, as a reference, and trains with a linear decay.
    """

    def __init__(self, scope: str = "parameter", window: int = 16) -> None:
        if scope not in _SCOPES:
            raise ValueError(f"scope must be 'parameter' or 'network', got {scope!r}")
        self.scope = scope
        self.window = check_integer(
            "window", window, 1, "the coefficient is estimated from about that many batches"
        )
        # By device: for each parameter the two weighted sums; float64 if all gradients are.
        self._sums: dict[int, list[NDArray]] = {}
        self._rules: dict[tuple[float, float, Any], tuple[FusedFunction, FusedFunction]] = {}

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"OptimalCoefficient({self.scope!r}, window={self.window})"

    def reset(self) -> None:
        """Start a new estimate, at a new snapshot."""
        self._sums = {}

    def correct(
        self,
        device: int,
        grads: Sequence[NDArray],
        snapshot_grads: Sequence[NDArray],
        full_grads: Sequence[NDArray],
        samples: float,
        snapshot_scale: float = 1.0,
    ) -> None:
        """Correct the gradients of one device in place, then learn from them.

        Parameters
        ----------
        device : int
            Its number.
        grads, snapshot_grads, full_grads : sequences of NDArray
            One array per parameter, in a fixed order: the sums over the batch at the weights and
            at the snapshot, and the full gradient.
        samples : float
            The factor that brings the full gradient to the scale of `grads`.
        snapshot_scale : float
            The factor that brings `snapshot_grads` to that scale.
        """
        sums = self._sums_of(device, grads)
        corrected, learned = self._rules_for(samples, snapshot_scale, sums)
        alphas = self._alphas(sums, grads)
        # The estimate from this batch is for the next one.
        self._sums[device] = learned(grads, snapshot_grads, full_grads, sums)
        corrected(grads, snapshot_grads, full_grads, alphas, out=grads)

    def correct_devices(
        self,
        devices: Sequence[DeviceGradients],
        whole: DeviceGradients,
        snapshot_scale: float = 1.0,
    ) -> None:
        """Correct the gradients of several devices in place, then learn from the whole batch.

        So the estimate does not depend on the number of devices and workers.

        Parameters
        ----------
        devices : sequence of DeviceGradients
            Those of each device of this worker.
        whole : DeviceGradients
            The sums over all devices and workers, on the first device.
        snapshot_scale : float
            As for :meth:`correct`.
        """
        sums = self._sums_of(0, whole.grads)
        alphas = self._alphas(sums, whole.grads)
        for device in devices:
            if device.samples:
                corrected, _ = self._rules_for(device.samples, snapshot_scale, sums)
                here = [alpha.as_in_context(device.grads[0].ctx) for alpha in alphas]
                corrected(
                    device.grads, device.snapshot_grads, device.full_grads, here, out=device.grads
                )
        _, learned = self._rules_for(whole.samples, snapshot_scale, sums)
        # From now on these include the sums of other devices, if a run in one process had some.
        self._sums = {0: learned(whole.grads, whole.snapshot_grads, whole.full_grads, sums)}

    def values(self) -> list[float]:
        """Return the coefficient of each parameter, in their order; waits for the devices."""
        totals = self._totals()
        if self.scope == "network":
            totals = [_sum(totals)] * len(totals)
        return [_clamped(total) for total in totals]

    def value(self) -> float:
        """Return the best single coefficient for all parameters; waits for the devices."""
        return _clamped(_sum(self._totals()))

    def state_dict(self) -> State:
        """Return the sums, by device and parameter."""
        return {"sums": {device: list(sums) for device, sums in self._sums.items()}}

    def load_state_dict(self, state: State, contexts: Sequence[mx.Context]) -> None:
        """Continue from what :meth:`state_dict` returned, on these devices."""
        saved = state["sums"]
        self._sums = {
            device: [mx.nd.array(pair, ctx=context, dtype=pair.dtype) for pair in saved[device]]
            for device, context in enumerate(contexts)
            if device in saved
        }

    def _sums_of(self, device: int, grads: Sequence[NDArray]) -> list[NDArray]:
        sums = self._sums.get(device)
        if sums is None or len(sums) != len(grads):  # a parameter was frozen meanwhile
            is_double = all(grad.dtype == np.float64 for grad in grads)
            dtype = "float64" if is_double else "float32"
            sums = self._sums[device] = [mx.nd.zeros(2, grad.ctx, dtype) for grad in grads]
        return sums

    def _rules_for(
        self, samples: float, snapshot_scale: float, sums: list[NDArray]
    ) -> tuple[FusedFunction, FusedFunction]:
        key = samples, snapshot_scale, sums[0].dtype
        if key not in self._rules:
            if len(self._rules) == _MAX_RULES:
                self._rules.clear()
            self._rules[key] = _rules(
                samples, snapshot_scale, 1 - 1 / self.window, np.dtype(sums[0].dtype).name
            )
        return self._rules[key]

    def _alphas(self, sums: list[NDArray], grads: Sequence[NDArray]) -> list[NDArray]:
        return [
            alpha.astype(grad.dtype, copy=False)
            for alpha, grad in zip(_ALPHA(self._shared(sums)), grads, strict=True)
        ]

    def _shared(self, sums: list[NDArray]) -> list[NDArray]:
        return sums if self.scope == "parameter" else [mx.nd.add_n(*sums)] * len(sums)

    def _totals(self) -> list[NumPyArray]:
        """Return the two sums of each parameter, over all devices."""
        return [
            _sum([array.asnumpy().astype("float64") for array in arrays])
            for arrays in zip(*self._sums.values(), strict=True)
        ]


def checked_coefficient(value: object) -> Coefficient | OptimalCoefficient:
    """Return SVRGHandler's `coefficient`, checked; 'auto' becomes an OptimalCoefficient.

    Raises
    ------
    TypeError, ValueError
        If it is no number in [0, 1], no callable, and not 'auto'.
    """
    if isinstance(value, str):
        if value == "auto":
            return OptimalCoefficient()
        raise TypeError(
            f"coefficient must be a number in [0, 1], got {value!r}: 1 is SVRG, 0 the plain "
            "optimizer, and 'auto' estimates the best one"
        )
    if callable(value) or isinstance(value, OptimalCoefficient):
        return value
    return check_coefficient(value)


def resumed_coefficient(
    coefficient: Coefficient | OptimalCoefficient, saved: float | Mapping[str, object]
) -> float | OptimalCoefficient:
    """Return the coefficient for a resume: the `saved` number, or the estimate to restore.

    Raises
    ------
    ValueError
        If the checkpoint has the other kind.
    """
    if isinstance(coefficient, OptimalCoefficient) != isinstance(saved, Mapping):
        was, own = "'auto'", "a number or a schedule"
        if isinstance(coefficient, OptimalCoefficient):
            was, own = own, was
        raise ValueError(
            f"SVRG's coefficient was {was} in the run of the checkpoint, and is {own} in this one: "
            "an estimate cannot continue from a number, nor a number from an estimate; give the "
            "same kind, or begin a new run"
        )
    return coefficient if isinstance(coefficient, OptimalCoefficient) else float(saved)  # type: ignore[arg-type]


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


def schedule_progress(run: Run, extra_batches: int = 0) -> float:
    """Return the fraction of a run that is done, in [0, 1], for the schedule of a coefficient.

    One snapshot has one coefficient, also if it is taken within an epoch: so a run of `epochs`
    counts whole ones, where :attr:`gluon_svrg.events.Run.progress` counts batches, too.
    `extra_batches` more batches count as done: 1 at *batch end*.
    """
    if run.max_epoch:
        return run.position.epoch / run.max_epoch
    return (run.position.batch + extra_batches) / (run.max_batch or 1)


def coefficient_at(
    coefficient: Coefficient | OptimalCoefficient, progress: float
) -> float | OptimalCoefficient:
    """Return the coefficient at `progress`, the fraction of training that is done, in [0, 1].

    One that is estimated is returned as it is.

    Raises
    ------
    TypeError, ValueError
        As `check_coefficient` does, for what a schedule returned.
    """
    if isinstance(coefficient, OptimalCoefficient):
        return coefficient
    if not callable(coefficient):
        return check_coefficient(coefficient)
    return check_coefficient(
        coefficient(progress), f"the coefficient schedule's value at progress {progress:.3g}"
    )


@named
def linear_decay(start: float = 0.75, end: float = 0.0) -> Callable[[float], float]:
    """Return a schedule that goes in a straight line from `start` to `end`.

    alpha-SVRG (Yin et al., ICLR 2025) uses 0.75 to 0. It is :func:`gluon_svrg.schedules.linear`
    with ends that are checked.

    Parameters
    ----------
    start, end : float in [0, 1]
        The coefficient at the beginning and at the end of training.

    Returns
    -------
    callable
        From training progress in [0, 1] to the coefficient.

    Raises
    ------
    TypeError, ValueError
        If an end is not a number in [0, 1].
    """
    start = check_coefficient(start, "start")
    end = check_coefficient(end, "end")

    def schedule(progress: float) -> float:
        # Not schedules.linear, which rounds otherwise: runs of version 0.8 continue to the bit.
        return start + (end - start) * min(1.0, max(0.0, progress))

    return schedule


def _rules(
    samples: float, snapshot_scale: float, memory: float, dtype: str
) -> tuple[FusedFunction, FusedFunction]:
    """Return two functions: one corrects a gradient, the other updates its sums."""

    def control(snapshot_grad: Symbol, full_grad: Symbol) -> Symbol:
        if snapshot_scale != 1:
            snapshot_grad = snapshot_grad * snapshot_scale
        return snapshot_grad - full_grad * samples

    def corrected(grad: Symbol, snapshot_grad: Symbol, full_grad: Symbol, alpha: Symbol) -> Symbol:
        return grad - mx.sym.broadcast_mul(control(snapshot_grad, full_grad), alpha)

    def learned(grad: Symbol, snapshot_grad: Symbol, full_grad: Symbol, sums: Symbol) -> Symbol:
        by_mean = [
            mx.sym.reshape(mx.sym.cast(x, dtype=dtype), shape=(-1,)) / samples
            for x in (control(snapshot_grad, full_grad), grad - full_grad * samples)
        ]
        products = [mx.sym.sum(by_mean[0] * x) for x in (by_mean[1], by_mean[0])]
        pair = mx.sym.concat(*products, dim=0)
        # A step that overflows, which AMP leaves out, teaches nothing: NaN would stay for ever.
        is_zero: Any = mx.sym.sum(pair, keepdims=True) * 0 == 0
        is_finite = mx.sym.broadcast_like(is_zero, pair)
        return mx.sym.where(is_finite, sums * memory + pair, sums)

    return FusedFunction(corrected), FusedFunction(learned)


def _alpha(sums: Symbol) -> Symbol:
    covariance, variance = (mx.sym.slice_axis(sums, axis=0, begin=i, end=i + 1) for i in (0, 1))
    return mx.sym.clip((covariance + _TINY) / (variance + _TINY), 0, 1)


_ALPHA = FusedFunction(_alpha)


def _sum(pairs: list[NumPyArray]) -> NumPyArray:
    return np.sum(pairs, axis=0) if pairs else np.zeros(2)


def _clamped(pair: NumPyArray) -> float:
    covariance, variance = pair + _TINY
    return float(min(1.0, max(0.0, covariance / variance)))
