"""SVRGTrainer: a `gluon.Trainer` that reduces the variance of the gradient before each step."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg.checkpoint.optimizer_states import States, load_states, states_of
from gluon_svrg.events import Run
from gluon_svrg.optimizer import create
from gluon_svrg.svrg.coefficient import OptimalCoefficient, check_coefficient
from gluon_svrg.svrg.control_variate import ControlVariate
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from mxnet import gluon
from mxnet.kvstore import KVStore
from mxnet.ndarray import NDArray

_logger = logging.getLogger(__name__)


class SVRGTrainer(gluon.Trainer):
    r"""A drop-in `gluon.Trainer` with a control variate.

    With no control variate set it behaves exactly as `gluon.Trainer`. With one, each batch's
    gradient is corrected before it is reduced over devices and given to the optimizer:

    .. math:: g = \nabla f_B(w) - \alpha\,(\nabla f_B(\tilde w) - \mu)

    Weight decay, momentum, clipping and the optimizer act on `g`. Every optimizer, every local
    kvstore, several devices, ``update_on_kvstore`` both ways and ``grad_req='add'`` work as they do
    in `gluon.Trainer`. :class:`gluon_svrg.svrg.Interval` shows the loop by hand.

    Parameters
    ----------
    params : ParameterDict, dict or list of Parameter
        The parameters to train.
    optimizer : str or Optimizer
        The optimizer, or its name: of this package's optimizers, else of MXNet's.
    optimizer_params : dict, optional
        The arguments of its constructor.
    kvstore, compression_params, update_on_kvstore
        As for `gluon.Trainer`. With a ``dist_sync`` kvstore a control variate needs
        ``update_on_kvstore=False``.

    Attributes
    ----------
    control_variate : ControlVariate
        What gradients are corrected by; its `full_gradient` is None if they are not.
    is_corrected : bool
        Whether the gradients that wait for a step are corrected.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013.
    """

    def __init__(
        self,
        params: gluon.ParameterDict | Mapping[str, gluon.Parameter] | Sequence[gluon.Parameter],
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: str | KVStore | None = "device",
        compression_params: dict[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        if not isinstance(optimizer, str | mx.optimizer.Optimizer):
            raise ValueError(
                f"optimizer must be a name or an Optimizer, got {optimizer!r}: give 'sgd', or "
                "gluon_svrg.LARS(...)"
            )
        if isinstance(optimizer, str):
            optimizer, optimizer_params = create(optimizer, **(optimizer_params or {})), None
        super().__init__(
            params, optimizer, optimizer_params, kvstore, compression_params, update_on_kvstore
        )
        self.is_corrected = False
        self.control_variate = ControlVariate()
        self._sums = _SumsOverWorkers()

    @property
    def coefficient(self) -> float:
        """The coefficient of the control variate: 0.0 while there is none.

        Of an :class:`OptimalCoefficient`, the best one for all parameters; waits for the devices.
        """
        return self.control_variate.coefficient()

    @property
    def coefficients(self) -> dict[str, float]:
        """The coefficient of each corrected parameter, by its name; waits for the devices."""
        names = [param.name for param in self._corrected_params()]
        return dict(zip(names, self.control_variate.coefficients(len(names)), strict=True))

    @property
    def optimal_coefficient(self) -> OptimalCoefficient | None:
        """What estimates the coefficient; None if it is a number."""
        return self.control_variate.optimal

    @property
    def full_gradient(self) -> dict[str, list[NDArray]] | None:
        """The mean gradient over all samples at the snapshot, by parameter name and context."""
        return self.control_variate.full_gradient

    @property
    def loss_scale(self) -> float:
        """What MXNet's AMP multiplies the losses by at the moment; 1.0 without it."""
        return _mxnet.loss_scale_of(self)

    def lower_loss_scale(self) -> bool:
        """Halve :attr:`loss_scale`, after an overflow; return whether there is one to halve."""
        return _mxnet.halve_loss_scale(self)

    def set_control_variate(
        self, full_gradient: FullGradient, coefficient: float | OptimalCoefficient = 1.0
    ) -> None:
        """Correct the gradients from now on.

        Parameters
        ----------
        full_gradient : FullGradient
            The gradient of all samples at the snapshot. With a distributed kvstore, of the
            samples of this worker: the mean is over the samples of all workers.
        coefficient : float in [0, 1] or OptimalCoefficient
            1 is SVRG; 0 leaves the gradient as it is. An :class:`OptimalCoefficient` estimates it,
            from this snapshot on.

        Raises
        ------
        TypeError, ValueError
            If `coefficient` is not a number in [0, 1], if `full_gradient` is none or lacks a
            parameter that is trained here, or if a distributed kvstore runs the optimizer.
        """
        if not isinstance(coefficient, OptimalCoefficient):
            coefficient = check_coefficient(coefficient)
        if not isinstance(full_gradient, FullGradient):
            raise TypeError(
                f"full_gradient must be what Snapshot.full_gradient() returns, got "
                f"{full_gradient!r}"
            )
        trained = _mxnet.trained_parameters(self)
        missing = [param.name for param in trained if param.name not in full_gradient.means]
        if missing:
            raise ValueError(
                f"the full gradient lacks parameter {missing[0]!r}, which this trainer trains: "
                "take the snapshot of the Block that holds all the trainer's parameters"
            )
        means = self._mean_over_workers(full_gradient)
        scale = self._scale_of(full_gradient)
        if scale != 1:
            # By powers of two: exact.
            means = {name: mean / scale for name, mean in means.items()}
        on_all_contexts = {
            param.name: [
                means[param.name].as_in_context(grad.context).astype(grad.dtype, copy=False)
                for grad in param.list_grad()
            ]
            for param in trained
        }
        self.control_variate.set(on_all_contexts, coefficient)
        self.is_corrected = False

    def clear_control_variate(self) -> None:
        """Continue as a plain `gluon.Trainer`."""
        self.control_variate.clear()
        self.is_corrected = False

    def correct(self, snapshot_gradient: BatchGradient) -> None:
        """Correct the gradient of the batch that has just been through the backward pass.

        To be called once for each backward pass, before :meth:`step` or :meth:`allreduce_grads`.
        With ``grad_req='add'`` each pass of an accumulated gradient is corrected on its own. A
        parameter that the backward pass did not reach has a gradient of zero, and is corrected
        and updated like the others.

        Parameters
        ----------
        snapshot_gradient : BatchGradient
            The gradient of the same batch at the snapshot.

        Raises
        ------
        RuntimeError
            If no control variate is set, or if the gradient is corrected already.
        """
        full_gradient = self.full_gradient
        if full_gradient is None:
            raise RuntimeError(
                "there is no control variate to correct with: call set_control_variate() first"
            )
        if self.is_corrected and not _mxnet.has_fresh_gradient(self):
            raise RuntimeError(
                "the gradient is corrected already: call correct() once per backward pass, and "
                "give an Estimator one SVRGHandler only"
            )
        params = [] if self.control_variate.is_idle else self._corrected_params()
        scale, snapshot_scale = self.loss_scale, self._scale_of(snapshot_gradient)
        for device, samples in enumerate(snapshot_gradient.samples):
            self._clear_stale(params, device, samples)
            # .grad holds sums over the samples of one device; an idle one has none.
            if samples and params:
                self.control_variate.apply(
                    device,
                    samples,
                    [param.list_grad()[device] for param in params],
                    [snapshot_gradient.sums[param.name][device] for param in params],
                    [full_gradient[param.name][device] for param in params],
                    scale,
                    snapshot_scale,
                )
        self.is_corrected = True

    def _scale_of(self, gradient: BatchGradient | FullGradient) -> float:
        return self.loss_scale if gradient.loss_scale is None else gradient.loss_scale

    def _corrected_params(self) -> list[gluon.Parameter]:
        # A parameter that was frozen at the snapshot has no full gradient: until the next snapshot
        # its gradient stays the plain one, which is unbiased too.
        known = self.full_gradient or {}
        return [param for param in _mxnet.trained_parameters(self) if param.name in known]

    def _clear_stale(self, params: list[gluon.Parameter], device: int, samples: int) -> None:
        """Clear the gradients that hold an earlier batch's; until the next pass all are used."""
        for param in params:
            data = param.list_data()[device]
            is_stale = not (_mxnet.is_fresh(data) or self.is_corrected)
            if is_stale and samples and param.grad_req == "write":
                param.list_grad()[device][:] = 0
            _mxnet.mark_fresh(data, False)

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Save the optimizer's states, its counts of updates, its rates and its schedule.

        The file is written whole or not at all. It is an .npz file, no pickle as MXNet's is. A
        control variate is not part of it.

        Parameters
        ----------
        fname : str or path
            The file.

        Raises
        ------
        RuntimeError
            If the servers of a dist kvstore run the optimizer, because they hold its states.
        """
        if self.full_gradient is not None:
            _logger.warning(
                "the control variate is not part of the saved states in %s: take a new snapshot "
                "after loading them",
                fname,
            )
        states_of(self).write(fname)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Continue from what :meth:`save_states` wrote, on whatever devices this trainer runs.

        As with `gluon.Trainer` the learning rate and whatever else the optimizer was made with
        come from the file too. The optimizer stays the same object. Load the network's parameters
        first: with ``update_on_kvstore`` MXNet empties the states when parameters are set.

        Parameters
        ----------
        fname : str or path
            The file. Nothing in it is run.

        Raises
        ------
        ValueError
            If it is not such a file, or the states of another optimizer, schedule or other
            parameters; nothing is changed then.
        RuntimeError
            If the servers of a dist kvstore run the optimizer.
        """
        load_states(self, States.read(fname))

    def _allreduce_grads(self) -> None:
        # step() and allreduce_grads() both pass here: the last moment to notice that a gradient
        # was not corrected.
        if self.full_gradient is not None and not self.is_corrected:
            raise RuntimeError(
                "a control variate is set, but the gradient of this step was not corrected: call "
                "correct() after each backward pass, or clear_control_variate() to continue without"
            )
        self.is_corrected = False
        super()._allreduce_grads()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self.control_variate.is_idle:
            super()._update(ignore_stale_grad)
            return
        # Corrected gradients are all to be used, those that the backward pass did not reach too.
        self._mark_corrected_gradients(fresh=True)
        super()._update(ignore_stale_grad)
        self._mark_corrected_gradients(fresh=False)

    def _mark_corrected_gradients(self, fresh: bool) -> None:
        for param in self._corrected_params():
            for data in param.list_data():
                _mxnet.mark_fresh(data, fresh)

    def _mean_over_workers(self, full_gradient: FullGradient) -> dict[str, NDArray]:
        """Return the means over the samples of all workers of a distributed kvstore."""
        if not self._kv_initialized:
            self._init_kvstore()
        if not self._distributed:
            return full_gradient.means
        if self._update_on_kvstore:
            raise ValueError(
                f"a control variate needs update_on_kvstore=False with the kvstore "
                f"{self._kvstore.type!r}, got True: servers that run the optimizer cannot add up "
                "the full gradients of the workers; make the trainer with update_on_kvstore=False"
            )
        if self._params_to_init:
            self._init_params()
            # MXNet does not order this pull of the initial weights before the first push of
            # gradients to the same keys, and has been seen to pull the sum of those gradients.
            mx.nd.waitall()
        names = [param.name for param in self._params]
        return self._sums.mean(self._kvstore, full_gradient, names)


def svrg_trainer_of(run: Run) -> SVRGTrainer:
    """Return the trainer of `run`; raises ValueError if it is no SVRGTrainer."""
    trainer = run.trainer
    if not isinstance(trainer, SVRGTrainer):
        raise ValueError(
            f"SVRGHandler needs an SVRGTrainer, got {type(trainer).__name__}: make it with "
            "gluon_svrg.SVRGTrainer, which takes the same arguments as gluon.Trainer"
        )
    return trainer


class _SumsOverWorkers:
    """Adds up full gradients over the workers of a distributed kvstore.

    By keys of their own: float64, and never confused with the weights and gradients, whose keys are
    the numbers of the parameters.
    """

    def __init__(self) -> None:
        self._kvstore: KVStore | None = None

    def mean(
        self, kvstore: KVStore, full_gradient: FullGradient, names: list[str]
    ) -> dict[str, NDArray]:
        """Return the means over the samples of all workers, by name.

        Parameters
        ----------
        kvstore : KVStore
            The trainer's.
        full_gradient : FullGradient
            That of this worker's samples.
        names : list of str
            The trainer's parameters in their order, the same on all workers.
        """
        keys = {
            name: len(names) + index
            for index, name in enumerate(names)
            if name in full_gradient.means
        }
        sums = {
            name: full_gradient.means[name].astype("float64") * full_gradient.samples
            for name in keys
        }
        samples = mx.nd.array([full_gradient.samples], dtype="float64")
        arrays = [(keys[name], sums[name]) for name in keys] + [(2 * len(names), samples)]
        if self._kvstore is not kvstore:
            # A key may be initialised once: doing it again would wait for ever.
            for key, array in arrays:
                kvstore.init(key, mx.nd.zeros_like(array))
            self._kvstore = kvstore
        for key, array in arrays:
            kvstore.pushpull(key, array, out=array, priority=-key)
        total = samples.asscalar()
        return {name: (sums[name] / total).astype(full_gradient.means[name].dtype) for name in keys}
