"""SVRGTrainer: a `gluon.Trainer` that reduces the variance of the gradient before each step."""

from __future__ import annotations

import logging
import os
from typing import Any

import mxnet as mx
from gluon_svrg.arrays.fused import Fused
from gluon_svrg.checkpoint.optimizer_states import States, load_states, states_of
from gluon_svrg.optimizer import create
from gluon_svrg.svrg.coefficient import OptimalCoefficient
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.rule import check_coefficient, correct
from mxnet import gluon
from mxnet.ndarray import NDArray

_logger = logging.getLogger(__name__)

# Batch sizes (of whole and of last batches, by device) times coefficients that are kept ready.
_MOST_RULES = 16


class SVRGTrainer(gluon.Trainer):
    r"""A drop-in `gluon.Trainer` with a control variate.

    With no control variate set it behaves exactly as `gluon.Trainer`. With one, each batch's
    gradient is corrected before it is reduced over devices and given to the optimizer:

    .. math:: g = \nabla f_B(w) - \alpha\,(\nabla f_B(\tilde w) - \mu)

    Weight decay, momentum, gradient clipping and the optimizer act on `g`. Every optimizer, every
    local kvstore, several devices, ``update_on_kvstore`` both ways and ``grad_req='add'`` work as
    they do in `gluon.Trainer`.

    :class:`gluon_svrg.SVRGHandler` does the calls below in an Estimator; by hand they are::

        snapshot.take()
        trainer.set_control_variate(snapshot.full_gradient(backward, batches))
        for batch in batches:
            loss = backward(batch)
            trainer.correct(snapshot.gradient(backward, batch))
            trainer.step(len(loss))

    Parameters
    ----------
    params : ParameterDict, dict or list of Parameter
        The parameters to train.
    optimizer : str or Optimizer
        The optimizer, or its name: of this package where it has one of that name, else MXNet's.
    optimizer_params : dict, optional
        What its constructor takes.
    kvstore, compression_params, update_on_kvstore
        As for `gluon.Trainer`. With a ``dist_sync`` kvstore a control variate needs
        ``update_on_kvstore=False``.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: Any = "device",
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
        self._full_gradient: dict[str, list[NDArray]] | None = None
        self._coefficient = 0.0
        self._optimal: OptimalCoefficient | None = None
        self._is_corrected = False
        self._rules: dict[tuple[int, float, float, float], Fused] = {}
        self._store_with_sum_keys: Any = None

    @property
    def coefficient(self) -> float:
        """The coefficient of the control variate: 0.0 while there is none.

        Of an :class:`OptimalCoefficient`, the one that would be best for all parameters together as
        of now, which waits for the devices.
        """
        return self._coefficient if self._optimal is None else self._optimal.value()

    @property
    def coefficients(self) -> dict[str, float]:
        """The coefficient of each corrected parameter, by its name; waits for the devices."""
        names = [param.name for param in self._corrected_params()]
        if self._optimal is None:
            return dict.fromkeys(names, self._coefficient)
        values = self._optimal.values()
        if len(values) != len(names):  # before the first batch, or since a parameter was frozen
            values = [1.0] * len(names)
        return dict(zip(names, values, strict=True))

    @property
    def optimal_coefficient(self) -> OptimalCoefficient | None:
        """What estimates the coefficient; None where it is a number."""
        return self._optimal

    @property
    def full_gradient(self) -> dict[str, list[NDArray]] | None:
        """The mean gradient over all samples at the snapshot, by parameter name and context."""
        return self._full_gradient

    @property
    def loss_scale(self) -> float:
        """What MXNet's AMP multiplies the losses by at the moment; 1.0 without it."""
        # MXNet's AMP puts this attribute there; MXNet itself asks for it in this way.
        scaler = getattr(self, "_amp_loss_scaler", None)
        return 1.0 if scaler is None else float(scaler.loss_scale)

    def lower_loss_scale(self) -> bool:
        """Halve :attr:`loss_scale`, after an overflow; return whether there is one to halve."""
        scaler = getattr(self, "_amp_loss_scaler", None)
        if scaler is None or scaler.loss_scale <= 1:
            return False
        scaler._loss_scale = scaler._next_loss_scale = scaler.loss_scale / 2
        scaler._unskipped = 0
        return True

    def set_control_variate(
        self,
        full_gradient: FullGradient,
        coefficient: float | OptimalCoefficient = 1.0,
        loss_scale: float | None = None,
    ) -> None:
        """Correct the gradients from now on.

        Parameters
        ----------
        full_gradient : FullGradient
            The gradient of all samples at the snapshot. With a distributed kvstore, of the
            samples of this worker: the mean is taken over the samples of all workers.
        coefficient : float in [0, 1] or OptimalCoefficient
            1 is SVRG; 0 leaves the gradient as it is. An :class:`OptimalCoefficient` estimates it,
            from this snapshot on.
        loss_scale : float, optional
            What the losses of the full pass were multiplied by; by default, :attr:`loss_scale`.

        Raises
        ------
        TypeError, ValueError
            If `coefficient` is not a number in [0, 1], if `full_gradient` is none or lacks a
            parameter that is trained here, or if a distributed kvstore runs the optimizer.
        """
        optimal = coefficient if isinstance(coefficient, OptimalCoefficient) else None
        coefficient = 1.0 if optimal else check_coefficient(coefficient)
        if not isinstance(full_gradient, FullGradient):
            raise TypeError(
                f"full_gradient must be what Snapshot.full_gradient() returns, got "
                f"{full_gradient!r}"
            )
        trained = [param for param in self._params if param.grad_req != "null"]
        missing = [param.name for param in trained if param.name not in full_gradient.means]
        if missing:
            raise ValueError(
                f"the full gradient lacks parameter {missing[0]!r}, which this trainer trains: "
                "take the snapshot of the Block that holds all the trainer's parameters"
            )
        means = self._mean_over_workers(full_gradient)
        if loss_scale is None:
            loss_scale = self.loss_scale
        if loss_scale != 1:
            # By powers of two: exact.
            means = {name: mean / loss_scale for name, mean in means.items()}
        self._full_gradient = {
            param.name: [
                means[param.name].as_in_context(grad.context).astype(grad.dtype, copy=False)
                for grad in param.list_grad()
            ]
            for param in trained
        }
        if optimal is not None:
            optimal.reset()
        self._coefficient, self._optimal = coefficient, optimal
        self._is_corrected = False

    def clear_control_variate(self) -> None:
        """Go on as a plain `gluon.Trainer`."""
        self._full_gradient = None
        self._coefficient, self._optimal = 0.0, None
        self._is_corrected = False

    def correct(self, snapshot_gradient: BatchGradient, loss_scale: float | None = None) -> None:
        """Correct the gradient of the batch that has just been through the backward pass.

        To be called once for each backward pass, before :meth:`step` or :meth:`allreduce_grads`.
        With ``grad_req='add'`` each pass of an accumulated gradient is corrected on its own. A
        parameter that the backward pass did not reach has a gradient of zero, and is corrected
        and updated like the others.

        Parameters
        ----------
        snapshot_gradient : BatchGradient
            The gradient of the same batch at the snapshot.
        loss_scale : float, optional
            What its losses were multiplied by; by default :attr:`loss_scale`, which is in the
            network's own gradient.

        Raises
        ------
        RuntimeError
            If no control variate is set, or if the gradient is corrected already.
        """
        if self._full_gradient is None:
            raise RuntimeError(
                "there is no control variate to correct with: call set_control_variate() first"
            )
        if self._is_corrected and not self._has_fresh_gradient():
            raise RuntimeError(
                "the gradient is corrected already: call correct() once a backward pass, and "
                "give an Estimator one SVRGHandler only"
            )
        if self._coefficient == 0:  # the base optimizer, bit for bit
            self._is_corrected = True
            return
        params = self._corrected_params()
        for device, samples in enumerate(snapshot_gradient.samples):
            self._clear_stale(params, device, samples)
            # .grad holds sums over the samples of one device; an idle one has none.
            if samples:
                self._apply_rule(
                    device,
                    samples,
                    [param.list_grad()[device] for param in params],
                    [snapshot_gradient.sums[param.name][device] for param in params],
                    [self._full_gradient[param.name][device] for param in params],
                    loss_scale or self.loss_scale,
                )
        self._is_corrected = True

    def _corrected_params(self) -> list[gluon.Parameter]:
        # A parameter that was frozen at the snapshot has no full gradient: until the next snapshot
        # its gradient stays the plain one, which is unbiased too.
        return [
            param
            for param in self._params
            if param.grad_req != "null" and param.name in (self._full_gradient or ())
        ]

    def _clear_stale(self, params: list[gluon.Parameter], device: int, samples: int) -> None:
        """Clear the gradients that hold an earlier batch's; until the next pass all are used."""
        for param in params:
            data = param.list_data()[device]
            is_stale = not (data._fresh_grad or self._is_corrected)
            if is_stale and samples and param.grad_req == "write":
                param.list_grad()[device][:] = 0
            data._fresh_grad = False

    def _apply_rule(
        self,
        device: int,
        samples: int,
        grads: list[NDArray],
        snapshot_grads: list[NDArray],
        full_grads: list[NDArray],
        snapshot_scale: float,
    ) -> None:
        """Correct the gradients of one device in place."""
        if self._optimal is None:
            rule = self._rule_for(samples, snapshot_scale)
            rule(grads, snapshot_grads, full_grads, out=grads)
            return
        scale = self.loss_scale
        self._optimal.correct(
            device, grads, snapshot_grads, full_grads, samples * scale, scale / snapshot_scale
        )

    def _rule_for(self, samples: int, loss_scale: float) -> Fused:
        """Return the rule for a batch of that many samples, and its snapshot gradient's scale."""
        scale = self.loss_scale
        key = samples, self._coefficient, scale, loss_scale
        if key not in self._rules:
            coefficient = self._coefficient
            if len(self._rules) == _MOST_RULES:
                self._rules.clear()
            self._rules[key] = Fused(
                lambda grad, snapshot_grad, full_grad: correct(
                    grad,
                    snapshot_grad if loss_scale == scale else snapshot_grad * (scale / loss_scale),
                    full_grad * (samples * scale),
                    coefficient,
                )
            )
        return self._rules[key]

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
        if self._full_gradient is not None:
            _logger.warning(
                "the control variate is not part of the saved states in %s: take a new snapshot "
                "after loading them",
                fname,
            )
        states_of(self).write(fname)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save_states` wrote, on whatever devices this trainer runs.

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
            If it is not such a file, or the states of another optimizer, schedule or number of
            parameters, or of other shapes or dtypes; nothing is changed then.
        RuntimeError
            If the servers of a dist kvstore run the optimizer.
        """
        load_states(self, States.read(fname))

    def _allreduce_grads(self) -> None:
        # step() and allreduce_grads() both pass here: the last moment to notice that a gradient
        # was not corrected.
        if self._full_gradient is not None and not self._is_corrected:
            raise RuntimeError(
                "a control variate is set, but the gradient of this step was not corrected: call "
                "correct() after each backward pass, or clear_control_variate() to go on without"
            )
        self._is_corrected = False
        super()._allreduce_grads()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._coefficient == 0:  # as it is without a control variate, too
            super()._update(ignore_stale_grad)
            return
        # Corrected gradients are all to be used, those that the backward pass did not reach too.
        self._mark_corrected_gradients(fresh=True)
        super()._update(ignore_stale_grad)
        self._mark_corrected_gradients(fresh=False)

    def _mark_corrected_gradients(self, fresh: bool) -> None:
        for param in self._params:
            if param.grad_req != "null" and param.name in (self._full_gradient or ()):
                for data in param.list_data():
                    data._fresh_grad = fresh

    def _has_fresh_gradient(self) -> bool:
        return any(
            data._fresh_grad
            for param in self._params
            if param.grad_req != "null"
            for data in param.list_data()
        )

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
        # Keys of their own: float64, and never confused with the weights and gradients, which have
        # the keys below. A key may be initialised once: doing it again would wait for ever.
        keys = {
            param.name: len(self._params) + index
            for index, param in enumerate(self._params)
            if param.name in full_gradient.means
        }
        sums = {
            name: full_gradient.means[name].astype("float64") * full_gradient.samples
            for name in keys
        }
        samples = mx.nd.array([full_gradient.samples], dtype="float64")
        arrays = [(keys[name], sums[name]) for name in keys] + [(2 * len(self._params), samples)]
        if self._store_with_sum_keys is not self._kvstore:
            for key, array in arrays:
                self._kvstore.init(key, mx.nd.zeros_like(array))
            self._store_with_sum_keys = self._kvstore
        for key, array in arrays:
            self._kvstore.pushpull(key, array, out=array, priority=-key)
        total = samples.asscalar()
        return {name: (sums[name] / total).astype(full_gradient.means[name].dtype) for name in keys}
