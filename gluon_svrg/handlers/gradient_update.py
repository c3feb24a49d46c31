"""GradientUpdateHandler: the optimizer's step, with accumulation and clipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import has_gradient, is_fresh, list_data, mark_fresh, storage_types
from gluon_svrg._mxnet.trainer import (
    name_of_stale,
    scales_losses,
    step_scale,
    trained_parameters,
    updates_on_kvstore,
)
from gluon_svrg.arguments import check_integer, check_number, explains_unknown
from gluon_svrg.arrays.batch import samples_of_loss, with_axis
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.events import (
    BatchEnd,
    ExceptionRaised,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TakesDueSteps,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.optimizer.states import structural_names
from gluon_svrg.svrg.trainer import SVRGTrainer
from gluon_svrg.workers import SingleProcess, Workers
from gluon_svrg.workers.gradients import sync_stale_gradients
from mxnet import gluon
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.ndarray import NDArray

_UNUSED = (
    "the samples of a step have not used parameter {!r}, which has no gradient: if the network "
    "uses a part of its parameters at a time, give GradientUpdateHandler(ignore_stale_grad=True), "
    "which leaves the others alone; else look at the network's forward method, or freeze the "
    "parameter by grad_req = 'null'"
)


class GradientUpdateHandler(
    mx_estimator.GradientUpdateHandler,
    TrainBegin,
    BatchEnd,
    TakesDueSteps,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    RequiresRun,
):
    """Takes the optimizer's step at the end of each batch, or every few batches.

    The gradient is divided by the number of samples of the step, over all workers.

    The gradient that is clipped is the one that the optimizer gets: of the mean loss over all
    samples of the step, over all devices and workers, after SVRG's correction.
    `gluon.utils.clip_global_norm` on each device would clip the gradient of each device, not their
    sum (MXNet issue 12859).

    Parameters
    ----------
    accumulate : int
        The number of batches whose gradients are added up for one step. The last step of an epoch
        may have fewer. Above 1, ``grad_req`` is 'add' while `fit` runs, also of layers that are
        unfrozen during the run. Gradients with ``grad_req='add'`` are zero after each step.
    clip_norm : float, optional
        If the norm of the gradient (over all parameters) is greater, it is scaled down to this.
    clip_value : float, optional
        Each entry of the gradient is clipped to [-clip_value, clip_value].
    priority : float
        That of MXNet's handler: the step comes first at *batch end*.
    ignore_stale_grad : bool
        Whether a step leaves the parameters alone that none of its samples has used, without weight
        decay or momentum, as PyTorch, Keras and ``gluon.Trainer.step(ignore_stale_grad=True)`` do.
        By default they are an error. While SVRG corrects the gradients, a parameter that some
        batches use has a gradient of zero in the others, and is corrected there, too: without that
        the step would be biased.

    Attributes
    ----------
    gradient_norm : float or None
        The norm at the last step, before it was clipped; None without `clip_norm`. Reading it
        waits for the device.

    Raises
    ------
    TypeError, ValueError
        If an argument is no positive number, both `clip_norm` and `clip_value` are given, or
        `ignore_stale_grad` is no bool. In `fit`: if the samples of a step do not use a parameter.

    References
    ----------
    R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks",
    ICML 2013.
    """

    state_key = "accumulation"
    supports_workers = True

    @explains_unknown(
        accumulate_grad_batches="accumulate",
        gradient_accumulation_steps="accumulate",
        max_norm="clip_norm",
        clipnorm="clip_norm",
        global_clipnorm="clip_norm",
        gradient_clip_val="clip_norm",
        clipvalue="clip_value",
        clip_gradient="clip_value",
    )
    def __init__(
        self,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        priority: float = Order.STEP,
        *,
        ignore_stale_grad: bool = False,
    ) -> None:
        super().__init__(float(priority))
        check_integer("accumulate", accumulate, 1, "a step is taken every that many batches")
        if clip_norm is not None:
            check_number("clip_norm", clip_norm, "the greatest norm of the gradient", 0, above=True)
        if clip_value is not None:
            check_number(
                "clip_value", clip_value, "the greatest entry of the gradient", 0, above=True
            )
        if clip_norm is not None and clip_value is not None:
            raise ValueError(
                f"give clip_norm or clip_value, got both ({clip_norm!r} and {clip_value!r}): the "
                "result would depend on which comes first"
            )
        if not isinstance(ignore_stale_grad, bool):
            raise TypeError(
                f"ignore_stale_grad must be a bool, got {ignore_stale_grad!r}: it says whether a "
                "step leaves alone what its samples have not used"
            )
        self.accumulate = accumulate
        self.ignore_stale_grad = ignore_stale_grad
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self._batches = 0
        self._samples = 0  # of this worker
        self._workers: Workers = SingleProcess()
        self._is_single_process = True
        # The parameters whose gradients add up, and the grad_req that they had.
        self._accumulated: dict[gluon.Parameter, str] = {}
        self._norm: NDArray | None = None
        self._squares = FusedFunction(_sum_of_squares)
        self._scale = FusedFunction(_scaled)
        self._limit = FusedFunction(_limited)

    @property
    def gradient_norm(self) -> float | None:
        """The norm at the last step, before it was clipped."""
        return None if self._norm is None else float(self._norm.asscalar())

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Set ``grad_req`` to 'add', if a step has several batches."""
        self._batches = self._samples = 0
        self._workers = estimator.workers
        self._is_single_process = not self._workers.is_distributed
        self._norm = None
        trained = trained_parameters(estimator.trainer)
        self._accumulated = {param: "add" for param in trained if param.grad_req == "add"}
        if self.accumulate > 1:
            self._add_up(estimator.trainer)
        if all(map(has_gradient, self._accumulated)):
            self._zero_gradients()  # gradients from before this run do not count

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take the step, if enough batches have been accumulated."""
        if self.accumulate > 1:
            self._add_up(estimator.trainer)  # layers that a handler has unfrozen
        self._samples += sum(samples_of_loss(loss) for loss in kwargs["loss"])
        self._batches += 1
        if self._batches == self.accumulate:
            self._step(estimator.trainer)

    def steps_due(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Take a step with the remaining batches."""
        if self._batches:
            self._step(estimator.trainer)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let gradients be overwritten again."""
        for param, grad_req in self._accumulated.items():
            if param.grad_req == "add":  # else a handler has frozen it
                param.grad_req = grad_req
        self._accumulated = {}

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let gradients be overwritten again."""
        self.train_end(estimator)

    def state_dict(self, estimator: Run) -> State:
        """Return the counts of all workers, and this worker's gradients that wait for a step."""
        return {
            "batches": self._batches,
            "samples": self._workers.reduction(self._samples, sum),
            "gradients": {
                place: [grad.asnumpy() for grad in param.list_grad()]
                for place, param in self._waiting_params(estimator)
            },
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue with the gradients that have not been used yet."""
        self._batches = state["batches"]
        self._samples = state["samples"] if self._workers.is_first else 0
        if self._batches >= self.accumulate:
            raise ValueError(
                f"the checkpoint was written in the middle of a step over more than "
                f"accumulate={self.accumulate} batches ({self._batches} are waiting): resume with "
                "the accumulate that it was written with"
            )
        if self.accumulate > 1:  # other parameters may be trained than at the run's begin
            self._add_up(estimator.trainer)
        self._zero_gradients()
        for place, param in self._waiting_params(estimator):
            saved = state["gradients"][place]
            grads = param.list_grad()
            if len(saved) != len(grads):  # another number of devices: the first gets the sum
                saved = [np.sum(saved, axis=0)]
            for grad, value in zip(grads, saved, strict=False):
                to_nd(grad)[:] = mx.nd.array(value, dtype=grad.dtype)
            for data in param.list_data():  # a step may follow before the next backward pass
                mark_fresh(data, True)

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Return the state of one worker, if the run continues with another number of workers.

        The first worker gets the sum of the gradients that wait for a step, the others zeros.

        Parameters
        ----------
        states : sequence of dict
            Those that the workers had, by rank.
        is_first : bool
            Whether it is for the first worker.
        """
        gradients = {
            place: [np.sum([np.sum(state["gradients"][place], axis=0) for state in states], axis=0)]
            for place in states[0]["gradients"]
        }
        if not is_first:
            gradients = {place: [0 * total] for place, (total,) in gradients.items()}
        return states[0] | {"gradients": gradients}

    def _waiting_params(self, estimator: Run) -> list[tuple[str, gluon.Parameter]]:
        """Return the parameters with gradients that have not been used yet, with their places."""
        params = [param for param in self._accumulated if param.grad_req != "null"]
        if not self._batches:
            params = []
        return list(zip(structural_names(estimator.net, params), params, strict=True))

    def _add_up(self, trainer: gluon.Trainer) -> None:
        """Set ``grad_req`` to 'add' where it is not yet; the gradients keep their values."""
        for param in trained_parameters(trainer):
            if param.grad_req == "add":
                continue
            _, grad_stype = storage_types(param)
            if grad_stype != "default":
                raise ValueError(
                    f"parameter {param.name!r} has a gradient of stype {grad_stype!r}, "
                    "which cannot be added up over batches: make the layer with "
                    "sparse_grad=False, or accumulate=1"
                )
            self._accumulated.setdefault(param, param.grad_req)
            held = []
            if has_gradient(param):
                arrays = zip(param.list_data(), param.list_grad(), strict=True)
                held = [(data, grad, is_fresh(data)) for data, grad in arrays]
            param.grad_req = "add"  # makes new arrays, of zeros
            for place, (data, grad, is_new) in enumerate(held):
                grad.copyto(param.list_grad()[place])
                mark_fresh(data, is_new)

    def _step(self, trainer: gluon.Trainer) -> None:
        """Take the step; raise ValueError if it needs a gradient that no sample has given."""
        try:
            self._take_step(trainer)
        except UserWarning as warning:
            if (name := name_of_stale(warning)) is None:
                raise
            raise ValueError(_UNUSED.format(name)) from None

    def _take_step(self, trainer: gluon.Trainer) -> None:
        samples = self._samples
        self._samples = self._batches = 0
        is_on_kvstore = updates_on_kvstore(trainer)
        if is_on_kvstore and scales_losses(trainer):
            raise ValueError(
                "AMP's loss scaling looks for an overflow after a kvstore has made the update: "
                "make the trainer with update_on_kvstore=False"
            )
        if is_on_kvstore or self.ignore_stale_grad:
            self._settle_stale(trainer, is_on_kvstore)
        if self.clip_norm is None and self.clip_value is None:
            trainer.step(samples, self.ignore_stale_grad)
        elif is_on_kvstore:
            self._clip_before_the_sum(trainer, samples)
            trainer.step(samples, self.ignore_stale_grad)
        else:
            trainer.allreduce_grads()
            total = self._workers.all_sum(samples, "samples of a step that clips")
            for grads in _gradients_of(trainer):
                self._clip(grads, [grads], total / step_scale(trainer))
            trainer.update(samples, self.ignore_stale_grad)
        if is_on_kvstore and not isinstance(trainer, SVRGTrainer):
            for param in trained_parameters(trainer):
                for data in list_data(param):
                    mark_fresh(data, False)  # which MXNet does not do there
        if self._accumulated:
            self._zero_gradients()

    def _settle_stale(self, trainer: gluon.Trainer, is_on_kvstore: bool) -> None:
        """Zero what earlier batches have left in gradients that are clipped or added up now."""
        if isinstance(trainer, SVRGTrainer):
            is_clipped = self.clip_norm is not None or self.clip_value is not None
            if is_clipped and self._is_single_process:  # else the step does so
                trainer.zero_stale_gradients()
            return
        unused = sync_stale_gradients(trained_parameters(trainer), SingleProcess())
        if unused and is_on_kvstore:  # gluon.Trainer would take a step with a gradient of zero
            if not self.ignore_stale_grad:
                raise ValueError(_UNUSED.format(unused[0].name))
            raise ValueError(
                f"the samples of a step have not used parameter {unused[0].name!r}, and "
                "ignore_stale_grad=True does not work with a gluon.Trainer whose kvstore takes the "
                "step: make an SVRGTrainer, which takes the same arguments, or give "
                "update_on_kvstore=False"
            )

    def _clip_before_the_sum(self, trainer: gluon.Trainer, samples: int) -> None:
        """Clip before the kvstore adds up over the devices and takes the step, both in one."""
        devices = _gradients_of(trainer)
        first, *others = devices
        totals = first
        if others:
            totals = [
                mx.nd.add_n(*(grad.as_in_context(grads[0].ctx) for grad in grads))
                for grads in zip(*devices, strict=True)
            ]
        scale = samples / step_scale(trainer)
        if self.clip_norm is not None:
            self._clip(totals, devices, scale)
            return
        self._clip(totals, [totals], scale)
        for total, grad in zip(totals, first, strict=True):
            if total is not grad:
                total.copyto(grad)
        for grads in others:
            mx.nd.reset_arrays(*grads, num_arrays=len(grads))

    def _clip(self, totals: list[NDArray], clipped: list[list[NDArray]], scale: float) -> None:
        """Clip the gradients `clipped`, whose sum over devices is `totals`, times 1 / `scale`."""
        if self.clip_value is not None:
            for grads in clipped:
                # Arrays: MXNet's clip would round the bounds to float32.
                bounds = [
                    mx.nd.full((1,), self.clip_value * scale, grad.ctx, grad.dtype)
                    for grad in grads
                ]
                self._limit(grads, bounds, out=grads)
            return
        assert self.clip_norm is not None
        squares = self._squares(_at_least_float32(totals))
        norm = mx.nd.sqrt(mx.nd.add_n(*squares)) / scale
        # Exactly 1 if the norm is small enough; without the 1e-6 that PyTorch adds to the norm.
        factor = self.clip_norm / mx.nd.maximum(norm, self.clip_norm)
        for grads in clipped:
            here = factor.as_in_context(grads[0].ctx)
            self._scale(grads, [here.astype(grad.dtype) for grad in grads], out=grads)
        self._norm = norm

    def _zero_gradients(self) -> None:
        params = filter(has_gradient, self._accumulated)  # a handler may have frozen some
        for grads in by_device(param.list_grad() for param in params):
            mx.nd.reset_arrays(*map(with_axis, grads), num_arrays=len(grads))


def _gradients_of(trainer: gluon.Trainer) -> list[list[NDArray]]:
    devices = by_device(param.list_grad() for param in trained_parameters(trainer))
    return [list(map(with_axis, grads)) for grads in devices]


def _sum_of_squares(grad: mx.sym.Symbol) -> mx.sym.Symbol:
    # A dot product is ten times as fast as MXNet's norm and sum.
    flat = mx.sym.reshape(grad, shape=(-1,))
    return mx.sym.dot(flat, flat)


def _scaled(grad: mx.sym.Symbol, factor: mx.sym.Symbol) -> mx.sym.Symbol:
    return mx.sym.broadcast_mul(grad, factor)


def _limited(grad: mx.sym.Symbol, bound: mx.sym.Symbol) -> mx.sym.Symbol:
    low = mx.sym.broadcast_maximum(grad, mx.sym.negative(bound))
    return mx.sym.broadcast_minimum(low, bound)


def _at_least_float32(arrays: Sequence[NDArray]) -> list[NDArray]:
    """Return the arrays in the widest of their dtypes: squares overflow float16 from 256 on."""
    widest = np.result_type(np.float32, *(array.dtype for array in arrays))
    return [array.astype(widest, copy=False) for array in arrays]
