"""SVRGTrainer: a `gluon.Trainer` that reduces the variance of the gradient before each step."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg._mxnet.block import is_fresh, list_data, mark_fresh
from gluon_svrg._mxnet.callbacks import callback_errors
from gluon_svrg._mxnet.trainer import (
    contexts_of,
    halve_loss_scale,
    has_fresh_gradient,
    has_kvstore_that_updates,
    legacy_gradients,
    listed_parameters,
    loss_scale_of,
    scales_losses,
    trained_parameters,
    undo_step_scale,
)
from gluon_svrg.arguments import check_finite, explains_unknown
from gluon_svrg.arrays.row_sparse import set_to_zero
from gluon_svrg.events import Run
from gluon_svrg.optimizer import create
from gluon_svrg.optimizer.owner import check_is_free, check_rate, check_still_belongs_to
from gluon_svrg.optimizer.states import (
    TrainerStates,
    load_states,
    trainer_states,
    warn_unsaved_schedule,
)
from gluon_svrg.svrg.coefficient import OptimalCoefficient, check_coefficient
from gluon_svrg.svrg.collective import match_storage_types, mean_batch_gradient, mean_over_workers
from gluon_svrg.svrg.control_variate import ControlVariate, by_parameter
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.row_correction import check_sparse_correction
from gluon_svrg.svrg.sparse_checks import check_has_shares, check_row_sparse
from gluon_svrg.workers.compression import parse_compression
from gluon_svrg.workers.gradients import (
    all_reduce_gradients,
    check_distributed_arguments,
    resolve_kvstore,
    sync_stale_gradients,
)
from gluon_svrg.workers.parameters import InitialSync
from mxnet import gluon
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

_logger = logging.getLogger(__name__)


class SVRGTrainer(gluon.Trainer):
    r"""A drop-in `gluon.Trainer` with a control variate.

    Without a control variate its steps are those of `gluon.Trainer`, bit for bit, except that the
    names 'nag' and 'lars' stand for the optimizers of this package. With one, each batch's gradient
    is corrected before it is reduced over devices and passed to the optimizer:

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
        As for `gluon.Trainer`. Over several workers, which an MPI launcher has started, all
        gradients are added up over contexts and workers, and every worker runs the optimizer:
        ``update_on_kvstore`` is False then. ``{'type': 'fp16'}`` lets float32 gradients be float16
        between workers; in one process it changes nothing.

    Attributes
    ----------
    control_variate : ControlVariate
        Corrects the gradients; its `full_gradient` is None while they are not corrected.
    is_corrected : bool
        Whether the gradients that wait for a step are corrected.
    on_clear : callable or None
        Called by :meth:`clear_control_variate`; set by a method that has to know of it.
    workers : Workers
        The processes that train together.

    Raises
    ------
    TypeError, ValueError
        If `optimizer` is none, or one of its arguments is no number; if it belongs to other
        parameters already, or its ``lr_scheduler`` does; if `compression_params` is of an unknown
        type. Over several workers: if one of the last two arguments has another value than these,
        or a parameter is sparse.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013.
    """

    @explains_unknown(
        learning_rate="give optimizer_params={'learning_rate': 0.1}",
        lr="give optimizer_params={'learning_rate': 0.1}",
        wd="give optimizer_params={'learning_rate': 0.1, 'wd': 1e-4}",
        momentum="give optimizer_params={'learning_rate': 0.1, 'momentum': 0.9}",
    )
    def __init__(
        self,
        params: gluon.ParameterDict | Mapping[str, gluon.Parameter] | Sequence[gluon.Parameter],
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        kvstore: str | KVStoreBase | None = "device",
        compression_params: dict[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
    ) -> None:
        if isinstance(optimizer, str):
            _check_is_dict(optimizer_params)
            optimizer, optimizer_params = create(optimizer, **(optimizer_params or {})), None
        _check_is_optimizer(optimizer)
        own = listed_parameters(params)
        check_is_free(optimizer, own)
        undo_step_scale(optimizer, own)
        self.workers, self._all_reduce, kvstore = resolve_kvstore(kvstore)
        self._is_single_process = not self.workers.is_distributed
        on_kvstore = update_on_kvstore if self._is_single_process else False
        self._fp16, compression_params = parse_compression(compression_params)
        _check_params(params)
        try:
            super().__init__(
                params, optimizer, optimizer_params, kvstore, compression_params, on_kvstore
            )
        except RuntimeError as error:
            if "has not been initialized" not in str(error):
                raise
            raise RuntimeError(f"{error}: call net.initialize() before you make the trainer") from (
                error
            )
        if on_kvstore and len(self._contexts) == 1 and kvstore in ("local", "device", None):
            raise ValueError(
                f"update_on_kvstore=True needs a kvstore, and on one context MXNet makes none for "
                f"kvstore={kvstore!r}: leave update_on_kvstore out, or pass "
                "kvstore=mx.kv.create('device')"
            )
        if not self._is_single_process:
            check_distributed_arguments(self._params, update_on_kvstore, compression_params)
        self._known = self._optimizer.param_dict  # by which the optimizer knows the parameters
        self._initial_sync = InitialSync(self.workers)
        self.is_corrected = False
        self._is_reduced = False  # whether the gradients that wait for update() have been corrected
        self._ignores_stale = False  # in this step
        self._unused: set[str] = set()  # not reached since the last step, nor in the full pass
        self.control_variate = ControlVariate(self.workers)
        self.on_clear: Callable[[], None] | None = None

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
        """The estimator of the coefficient; None if the coefficient is a number."""
        return self.control_variate.optimal

    @property
    def full_gradient(self) -> dict[str, list[NDArray]] | None:
        """The mean gradient over all samples at the snapshot, by parameter name and context."""
        return self.control_variate.full_gradient

    @property
    def loss_scale(self) -> float:
        """The present loss scale of MXNet's AMP; 1.0 without AMP."""
        return loss_scale_of(self)

    def set_learning_rate(self, lr: float) -> None:
        """As `gluon.Trainer.set_learning_rate`; raises if `lr` is no finite number."""
        super().set_learning_rate(check_finite("lr", lr, "the learning rate of the next steps"))

    def lower_loss_scale(self) -> bool:
        """Halve :attr:`loss_scale`, after an overflow; return whether there is one to halve."""
        return halve_loss_scale(self)

    def set_control_variate(
        self,
        full_gradient: FullGradient,
        coefficient: float | OptimalCoefficient = 1.0,
        sparse_correction: str = "exact",
    ) -> None:
        """Correct the gradients from now on.

        Parameters
        ----------
        full_gradient : FullGradient
            The mean gradient at the snapshot. If it is that of this worker's samples, it is
            averaged over all workers. A dense mean of a row_sparse gradient stands for its rows
            that are not 0.
        coefficient : float in [0, 1] or OptimalCoefficient
            1 is SVRG; 0 leaves the gradient as it is. An :class:`OptimalCoefficient` estimates it,
            from this snapshot on.
        sparse_correction : 'exact' or 'sparse'
            Row_sparse gradients: see :class:`gluon_svrg.svrg.row_correction.RowCorrection`.

        Raises
        ------
        TypeError, ValueError
            If `coefficient` is not a number in [0, 1], if `full_gradient` is none, lacks a
            parameter that is trained here, or has no loss scale with MXNet's AMP; if optimizer
            or kvstore cannot take row_sparse ones.
        """
        check_sparse_correction(sparse_correction)
        if not isinstance(coefficient, OptimalCoefficient):
            coefficient = check_coefficient(coefficient)
        _check_is_full_gradient(full_gradient, trained_parameters(self))
        self.restore_control_variate(full_gradient, coefficient, sparse_correction)

    def restore_control_variate(
        self,
        full_gradient: FullGradient,
        coefficient: float | OptimalCoefficient,
        sparse_correction: str,
    ) -> None:
        """As :meth:`set_control_variate`, from a checkpoint.

        Parameters whose ``grad_req`` has changed since the snapshot may be missing.
        """
        if full_gradient.loss_scale is None and scales_losses(self):
            # The gradients in a table would be taken for ones with the scale of a later step.
            raise ValueError(
                "this trainer scales its losses (MXNet's AMP), and the full gradient does not say "
                "by how much its own were scaled: give loss_scaler=trainer to the svrg.Interval, "
                "or full_gradient._replace(loss_scale=trainer.loss_scale) of a Snapshot"
            )
        self._sync_new_parameters()
        known = [param for param in self._params if param.name in full_gradient.means]
        means = match_storage_types(mean_over_workers(full_gradient, self.workers).means, known)
        on_all_contexts = by_parameter(means, known, self._scale_of(full_gradient))
        check_row_sparse(self, coefficient, sparse_correction)
        check_has_shares(sparse_correction, means, full_gradient.row_shares)
        self.control_variate.set(
            on_all_contexts, coefficient, full_gradient.row_shares, sparse_correction
        )
        self.is_corrected = False

    def clear_control_variate(self) -> None:
        """Continue as a plain `gluon.Trainer`."""
        self.control_variate.clear()
        self.is_corrected = False
        if self.on_clear is not None:
            self.on_clear()

    def correct(self, snapshot_gradient: BatchGradient) -> None:
        """Correct the gradient of the batch that has just been through the backward pass.

        To be called once for each backward pass, before :meth:`step` or :meth:`allreduce_grads`.
        With ``grad_req='add'`` each pass of an accumulated gradient is corrected on its own. A
        parameter that the backward pass did not reach has a gradient of zero, and is corrected
        and updated like the others; unless no batch of the full pass has reached it either.

        Parameters
        ----------
        snapshot_gradient : BatchGradient
            The gradient of the same batch at the snapshot.

        Raises
        ------
        RuntimeError
            If no control variate is set, or if the gradient is corrected already.
        """
        self._check_can_be_corrected(snapshot_gradient)
        params = [] if self.control_variate.is_idle else self._corrected_params()
        stale = self._clear_marks(params, snapshot_gradient.samples)
        self.control_variate.correct(
            params, snapshot_gradient, self.loss_scale, self._scale_of(snapshot_gradient)
        )
        unused = set(filter(self.control_variate.is_zero, stale))
        self._unused = unused & self._unused if self.is_corrected else unused
        self.is_corrected, self._is_reduced = True, False

    def corrected_gradient(self, samples: int) -> FullGradient:
        """Return the mean of the corrected gradient, over all contexts and workers: new arrays.

        To be called between :meth:`correct` and :meth:`step`. As the next step's control variate it
        makes the method recursive: STORM, SARAH, PAGE (``docs/howto/recursive.md``).

        Parameters
        ----------
        samples : int
            The number of samples that this worker has computed: the argument of `step`.

        Raises
        ------
        RuntimeError, ValueError
            If the gradients that wait for a step are not corrected; if `samples` is not positive.
        """
        if not self.is_corrected:
            raise RuntimeError(
                "there is no corrected gradient: call correct() after the backward pass, and "
                "corrected_gradient() after it, before step() or allreduce_grads()"
            )
        samples = self._total_samples(samples)
        used = [] if self.control_variate.is_idle else [p.name for p in self._corrected_params()]
        means = mean_batch_gradient(trained_parameters(self), used, samples, self.workers)
        return FullGradient(means, samples, self.loss_scale, is_of_all_workers=True)

    def _check_can_be_corrected(self, snapshot_gradient: BatchGradient) -> None:
        if self.full_gradient is None:
            raise RuntimeError(
                "there is no control variate to correct with: call set_control_variate() first"
            )
        # A worker without samples has no backward pass.
        is_again = self.is_corrected and any(snapshot_gradient.samples)
        if is_again and not self.has_waiting_gradient():
            raise RuntimeError(
                "the gradient is corrected already: call correct() once per backward pass, and "
                "give an Estimator one SVRGHandler only"
            )

    def _clear_marks(self, params: Sequence[gluon.Parameter], samples: Sequence[int]) -> set[str]:
        """Return the parameters that the backward pass has not reached on any device.

        Their gradients hold an earlier batch's: they are zeroed, unless they were corrected since
        the last step. Without marks, the next backward pass can be told from this one.
        """
        stale = set()
        for param in params:
            is_reached = False
            for device, data in enumerate(list_data(param)):
                if is_fresh(data):
                    is_reached |= bool(samples[device])
                elif samples[device] and not self.is_corrected and param.grad_req == "write":
                    set_to_zero(param.list_grad()[device])
                mark_fresh(data, False)
            if not is_reached:
                stale.add(param.name)
        return stale

    def _scale_of(self, gradient: BatchGradient | FullGradient) -> float:
        return self.loss_scale if gradient.loss_scale is None else gradient.loss_scale

    def _corrected_params(self) -> list[gluon.Parameter]:
        # A parameter that was frozen at the snapshot has no full gradient: until the next snapshot
        # its gradient stays the plain one, which is unbiased too.
        known = self.full_gradient or {}
        return [param for param in trained_parameters(self) if param.name in known]

    def synchronize(self, net: gluon.Block | None = None, *, recheck: bool = False) -> None:
        """Give all workers the first one's weights and running statistics, once.

        Call it before the first forward pass, if the workers may have different initial weights;
        `fit` does so. Parameters without a shape get it, if any worker knows it.

        Parameters
        ----------
        net : Block, optional
            Its parameters are synchronized, too: some may not be trained.
        recheck : bool
            Whether to compare parameters that were synchronized before, and to copy them again if
            they differ.
        """
        more = [] if net is None else net.collect_params().values()
        self._initial_sync.broadcast([*self._params, *more], recheck=recheck)

    def _sync_new_parameters(self) -> None:
        if not self._is_single_process:
            self._initial_sync.broadcast_late(self._params)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Divide the gradients by the samples, add them up over contexts and workers, and update.

        Parameters
        ----------
        batch_size : int
            The number of samples that this worker has computed, normally ``len(loss)``. Over
            several workers the sum of all gradients is divided by the samples of all.
        ignore_stale_grad : bool
            Whether to leave alone the parameters that the backward passes since the last step have
            not reached, on any context of any worker. Otherwise they end the step with a
            UserWarning, as in `gluon.Trainer`. See :meth:`correct` for corrected gradients.

        Raises
        ------
        RuntimeError
            If a trainer of other parameters was given the optimizer since.
        """
        self._check_optimizer()
        samples = self._total_samples(batch_size)
        self._sync_new_parameters()
        self._ignores_stale = ignore_stale_grad
        try:
            super().step(samples, ignore_stale_grad)
        finally:
            self._ignores_stale = False

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """As `gluon.Trainer.update`, after :meth:`allreduce_grads`; `batch_size` as in `step`.

        Raises
        ------
        RuntimeError
            If a control variate is set and the gradients are not corrected; or as for `step`.
        """
        self._check_optimizer()
        samples = self._total_samples(batch_size)
        self._sync_new_parameters()
        if not self._is_reduced:
            self._check_is_corrected()
        self.is_corrected = False
        super().update(samples, ignore_stale_grad)

    def _total_samples(self, samples: int) -> int:
        """Return the sum over all workers of the numbers of samples that each has computed."""
        if self._is_single_process:
            return samples
        total: int = self.workers.all_sum(samples, "samples of a step")
        return total

    def _check_optimizer(self) -> None:
        # A plain gluon.Trainer takes an optimizer that belongs to this one.
        if self._optimizer.param_dict is not self._known:
            check_still_belongs_to(self._optimizer, self._params)
            self._known = self._optimizer.param_dict
        check_rate(self._optimizer)

    def zero_stale_gradients(self) -> list[gluon.Parameter]:
        """Zero the gradients that no backward pass has written since the last step.

        Over several workers all call it together. :meth:`step` does so where it matters; a loop
        that clips the gradients of a network which does not use all parameters calls it before.

        Returns
        -------
        list of Parameter
            Those that no context of any worker has a gradient of: ``step(..., True)`` leaves them
            alone.
        """
        if self.is_corrected or self._is_reduced:
            self._mark_corrected_gradients()
        return sync_stale_gradients(trained_parameters(self), self.workers)

    def has_waiting_gradient(self) -> bool:
        """Return whether the network has gradients of a backward pass that no step has used."""
        return has_fresh_gradient(self)

    def _check_is_corrected(self) -> None:
        if self.full_gradient is not None and not self.is_corrected:
            raise RuntimeError(
                "a control variate is set, but the gradient of this step was not corrected: call "
                "correct() after each backward pass, or clear_control_variate() to continue "
                "without"
            )

    def _init_params(self) -> None:
        # It reads and writes running statistics on several contexts: with static_shape MXNet does
        # not order that after the backward pass, which may still be writing them.
        if len(contexts_of(self)) > 1:
            mx.nd.waitall()
        super()._init_params()

    def allreduce_grads(self) -> None:
        """As `gluon.Trainer.allreduce_grads`, over contexts and workers."""
        self._sync_new_parameters()
        super().allreduce_grads()

    def save_states(self, fname: str | os.PathLike[str]) -> None:
        """Save the optimizer's states, its counts of updates, its rates and its schedule.

        The file is written whole or not at all. It is an .npz file, no pickle as MXNet's is. A
        control variate is not part of it.

        Parameters
        ----------
        fname : str or path
            The file.
        """
        if self.full_gradient is not None:
            _logger.warning(
                "the control variate is not part of the saved states in %s: take a new snapshot "
                "after loading them",
                fname,
            )
        warn_unsaved_schedule(self)
        trainer_states(self).write(fname)

    def load_states(self, fname: str | os.PathLike[str]) -> None:
        """Continue from what :meth:`save_states` wrote, also on other devices.

        As with `gluon.Trainer` the learning rate and the other arguments of the optimizer come from
        the file, too. The optimizer stays the same object. Load the network's parameters
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
        """
        load_states(self, TrainerStates.read(fname))

    def _allreduce_grads(self) -> None:
        # step() and allreduce_grads() both pass here: the last moment to notice it.
        self._check_is_corrected()
        self.is_corrected, self._is_reduced = False, True
        has_one_gradient = self._is_single_process and len(self._contexts) == 1
        on_kvstore = has_kvstore_that_updates(self)
        unused = []
        if not has_one_gradient or on_kvstore or self._ignores_stale:
            unused = self.zero_stale_gradients()  # else `_update` looks for them
        if unused and on_kvstore and not self._ignores_stale:
            # MXNet says so when its kvstore has taken the step already.
            raise UserWarning(
                f"Gradient of Parameter `{unused[0].name}` on context {self._contexts[0]} has not "
                "been updated by backward since last `step`: call step with ignore_stale_grad=True "
                "to leave it alone"
            )
        if self._is_single_process:
            # A kvstore that runs the optimizer calls it back from C++.
            left_out = _mxnet.trainer.left_out(self, unused) if unused else nullcontext()
            with callback_errors(), left_out:
                super()._allreduce_grads()
            return
        super()._allreduce_grads()
        trained = trained_parameters(self)
        all_reduce_gradients(
            trained, self._all_reduce, self._fp16, may_overflow=scales_losses(self)
        )

    def _update(self, ignore_stale_grad: bool = False) -> None:
        self._is_reduced = False
        self._mark_corrected_gradients()
        on_kvstore = has_kvstore_that_updates(self)  # which has taken the step
        with legacy_gradients(self) if scales_losses(self) else nullcontext():
            super()._update(ignore_stale_grad or on_kvstore)
        # MXNet clears the marks of the gradients it uses, but not with a kvstore that updates, nor
        # in a step that an overflow has left out.
        if on_kvstore or scales_losses(self):
            for param in trained_parameters(self):
                _mark(param, False)

    def _mark_corrected_gradients(self) -> None:
        """Let a step use all corrected gradients, also those that the backward pass did not reach.

        A gradient of zero that nothing has reached, in the full pass neither, stays stale.
        """
        for param in [] if self.control_variate.is_idle else self._corrected_params():
            if param.name not in self._unused:
                _mark(param, True)


def _mark(param: gluon.Parameter, fresh: bool) -> None:
    for data in list_data(param):
        mark_fresh(data, fresh)


def _check_is_dict(optimizer_params: object) -> None:
    if optimizer_params is None or isinstance(optimizer_params, Mapping):
        return
    way_out = "give {'learning_rate': 0.1}, for example"
    with suppress(TypeError, ValueError):
        way_out = f"give {dict(optimizer_params)!r}"  # type: ignore[call-overload]  # or an error
    raise TypeError(f"optimizer_params must be a dict, got {optimizer_params!r}: {way_out}")


def _check_params(params: object) -> None:
    if isinstance(params, gluon.Block):
        raise ValueError(
            f"params must be Parameters, got the network {params.name!r}: give its collect_params()"
        )
    if isinstance(params, Mapping | Sequence | gluon.ParameterDict) and not list(params):
        raise ValueError(
            "params is empty: give the collect_params() of a network that has layers with weights"
        )


def _check_is_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise ValueError(
            f"optimizer must be a name or an Optimizer, got {optimizer!r}: give 'sgd', or "
            "gluon_svrg.LARS(...)"
        )


def _check_is_full_gradient(full_gradient: object, trained: Sequence[gluon.Parameter]) -> None:
    if not isinstance(full_gradient, FullGradient):
        raise TypeError(
            f"full_gradient must be what Snapshot.full_gradient() returns, got {full_gradient!r}"
        )
    missing = [param.name for param in trained if param.name not in full_gradient.means]
    if missing:
        raise ValueError(
            f"the full gradient lacks parameter {missing[0]!r}, which this trainer trains: take "
            "the snapshot of the Block that holds all the trainer's parameters"
        )


def require_svrg_trainer(run: Run) -> SVRGTrainer:
    """Return the SVRGTrainer of `run`.

    Raises
    ------
    ValueError
        If its trainer is not an SVRGTrainer.
    """
    trainer = run.trainer
    if not isinstance(trainer, SVRGTrainer):
        raise ValueError(
            f"SVRGHandler needs an SVRGTrainer, got {type(trainer).__name__}: make it with "
            "gluon_svrg.SVRGTrainer, which takes the same arguments as gluon.Trainer"
        )
    return trainer
