"""ControlVariate: corrects a trainer's gradients by a full gradient and a coefficient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import list_data
from gluon_svrg.arrays.batch import with_axis
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.arrays.row_sparse import is_row_sparse
from gluon_svrg.svrg.coefficient import DeviceGradients, OptimalCoefficient
from gluon_svrg.svrg.gradient import BatchGradient
from gluon_svrg.svrg.row_correction import RowCorrection
from gluon_svrg.svrg.rule import correct
from gluon_svrg.workers import SingleProcess, Workers
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

# Cached rules: one per batch size (whole and last batches, by device) and coefficient.
_MAX_RULES = 16


class ControlVariate:
    """The rule of SVRG with a full gradient, on all devices; inactive before :meth:`set`.

    Parameters
    ----------
    workers : Workers, optional
        The processes that share the batches.

    Attributes
    ----------
    full_gradient : dict of str to list of NDArray, or None
        The mean gradient over all samples at the snapshot, by parameter name and context.
    optimal : OptimalCoefficient or None
        Estimates the coefficient; None if it is a number.
    row_shares : dict of str to NDArray
        As of the FullGradient.
    is_idle : bool
        Whether gradients stay the same, bit for bit: nothing is set, or the coefficient is 0.
    """

    def __init__(self, workers: Workers | None = None) -> None:
        self._workers = workers or SingleProcess()
        self.full_gradient: dict[str, list[NDArray]] | None = None
        self.optimal: OptimalCoefficient | None = None
        self.row_shares: Mapping[str, NDArray] = {}
        self.is_idle = True
        self._row_correction: RowCorrection | None = None
        self._coefficient = 0.0
        # They outlive the snapshot: to make a rule takes as long as a few steps.
        self._rules: dict[tuple[int, float, float, float], FusedFunction] = {}
        self._zeros: dict[str, bool] = {}  # whether a full gradient is 0, of those that were asked

    def set(
        self,
        full_gradient: dict[str, list[NDArray]],
        coefficient: float | OptimalCoefficient,
        row_shares: Mapping[str, NDArray] | None = None,
        sparse_correction: str = "exact",
    ) -> None:
        """Correct by this full gradient from now on; row_sparse parts by RowCorrection."""
        self.full_gradient, self.row_shares, self._zeros = full_gradient, row_shares or {}, {}
        sparse = {n: means for n, means in full_gradient.items() if is_row_sparse(means[0])}
        self._row_correction = (
            RowCorrection(sparse_correction, sparse, self.row_shares) if sparse else None
        )
        self.optimal = coefficient if isinstance(coefficient, OptimalCoefficient) else None
        self._coefficient = 1.0 if isinstance(coefficient, OptimalCoefficient) else coefficient
        self.is_idle = self._coefficient == 0
        if self.optimal is not None:
            self.optimal.reset()

    def clear(self) -> None:
        """Correct nothing from now on."""
        self.full_gradient, self.optimal, self._coefficient = None, None, 0.0
        self.row_shares, self._row_correction, self.is_idle = {}, None, True

    def is_zero(self, name: str) -> bool:
        """Return whether no batch of the full pass has reached a parameter; waits for the device.

        False for a row_sparse gradient, whose rows say so.
        """
        mean = (self.full_gradient or {})[name][0]
        if name not in self._zeros:
            self._zeros[name] = not is_row_sparse(mean) and not mean.asnumpy().any()
        return self._zeros[name]

    def coefficient(self) -> float:
        """Return the coefficient; if it is estimated, the best for all parameters together."""
        return self._coefficient if self.optimal is None else self.optimal.value()

    def coefficients(self, number: int) -> list[float]:
        """Return the coefficient of each of the `number` parameters that are corrected."""
        if self.optimal is None:
            return [self._coefficient] * number
        values = self.optimal.values()
        # There is no estimate before the first batch, or after a parameter was frozen.
        return values if len(values) == number else [1.0] * number

    def correct(
        self,
        params: Sequence[Parameter],
        gradient: BatchGradient,
        scale: float,
        snapshot_scale: float,
    ) -> None:
        """Correct the gradients of a batch in place, on all devices.

        Parameters
        ----------
        params : sequence of Parameter
            The parameters with a full gradient; their gradients are corrected.
        gradient : BatchGradient
            The gradient of the batch at the snapshot.
        scale, snapshot_scale : float
            As for :meth:`apply`.
        """
        if not params:
            return
        full_gradient = self.full_gradient or {}
        if self._row_correction is not None:
            params = self._correct_rows(
                self._row_correction, params, gradient, full_gradient, scale, snapshot_scale
            )
            if not params:
                return
        columns = (
            by_device(param.list_grad() for param in params),
            by_device(gradient.sums[param.name] for param in params),
            by_device(full_gradient[param.name] for param in params),
        )
        if self.optimal is not None:  # whose inner products need an axis
            own, there, means = ([list(map(with_axis, a)) for a in c] for c in columns)
            columns = own, there, means
        devices = list(zip(*columns, gradient.samples, strict=True))
        if self.optimal is not None and (self._workers.is_distributed or len(devices) > 1):
            gradients = [
                DeviceGradients(a, c, mu, samples * scale) for a, c, mu, samples in devices
            ]
            self._correct_devices(self.optimal, gradients, scale / snapshot_scale)
            return
        for device, (grads, snapshot_grads, full_grads, samples) in enumerate(devices):
            if samples:  # .grad holds sums over the samples of one device; an idle one has none
                self.apply(
                    device, samples, grads, snapshot_grads, full_grads, scale, snapshot_scale
                )

    def _correct_rows(
        self,
        row_correction: RowCorrection,
        params: Sequence[Parameter],
        gradient: BatchGradient,
        full_gradient: Mapping[str, list[NDArray]],
        scale: float,
        snapshot_scale: float,
    ) -> list[Parameter]:
        """Correct the row_sparse gradients; return the parameters that have dense ones."""
        dense = []
        for param in params:
            if is_row_sparse(full_gradient[param.name][0]):
                row_correction.correct(
                    param.name,
                    param.list_grad(),
                    gradient.sums[param.name],
                    gradient.samples,
                    self._coefficient,
                    scale,
                    snapshot_scale,
                )
            else:
                dense.append(param)
        return dense

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

    def _correct_devices(
        self, optimal: OptimalCoefficient, devices: list[DeviceGradients], snapshot_scale: float
    ) -> None:
        """Estimate the coefficient from all workers' gradients, and correct the local ones."""
        grads = _sums(device.grads for device in devices)
        snapshot_grads = _sums(device.snapshot_grads for device in devices)
        self._workers.all_reduce([*grads, *snapshot_grads])
        samples = self._workers.all_sum(
            sum(device.samples for device in devices), "auto coefficient"
        )
        whole = DeviceGradients(grads, snapshot_grads, devices[0].full_grads, samples)
        optimal.correct_devices(devices, whole, snapshot_scale)

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


def by_parameter(
    means: Mapping[str, NDArray], params: Iterable[Parameter], scale: float
) -> dict[str, list[NDArray]]:
    """Return a full gradient divided by `scale`, by name and context of these parameters."""
    if scale != 1:
        # By powers of two: exact.
        means = {name: mean / scale for name, mean in means.items()}
    return {
        param.name: [
            mean.as_in_context(data.ctx).astype(data.dtype, copy=False)
            for mean in [to_nd(means[param.name])]
            for data in list_data(param)  # a frozen one has no gradient
        ]
        for param in params
    }


def _sums(devices: Iterable[Sequence[NDArray]]) -> list[NDArray]:
    """Return the sums over the devices, on the first of them: new arrays."""
    first, *others = devices
    totals = [array.copy() for array in first]
    for arrays in others:
        for total, array in zip(totals, arrays, strict=True):
            total += array.as_in_context(total.context)
    return totals
