"""AutoLearningRateHandler: the learning rate of a convex problem, from its measured curvature."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg.arguments import check_integer
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.batch.backward import backward_of, shape_inference_of
from gluon_svrg.batch.parts import BatchParts, unpack_batch
from gluon_svrg.batch.processor import BatchProcessor
from gluon_svrg.data.training_data import TrainingData, training_data
from gluon_svrg.events import (
    AddsPasses,
    EpochBegin,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
)
from gluon_svrg.handlers.gradient_update import GradientUpdateHandler
from gluon_svrg.handlers.schedule import check_no_lr_scheduler
from gluon_svrg.optimizer.nag import NAG
from gluon_svrg.settings import OPTIMIZER
from gluon_svrg.svrg.convexity import LinearModel, UnsupportedProblemError
from gluon_svrg.svrg.curvature import CurvatureMeter, StepScaling
from gluon_svrg.svrg.smoothness import Smoothness

# The largest change of an output between the middle and an end of a difference of gradients.
_CHANGE = 0.1
# A learning rate is not lowered by less than this fraction.
_MARGIN = 0.05


class AutoLearningRateHandler(
    TrainBegin, EpochBegin, Stateful, AddsPasses, HasExclusiveTasks, RequiresRun
):
    """Sets the learning rate of a convex problem from its measured curvature: nothing to search.

    At the beginning of the run's first epoch, where SVRG takes its first snapshot, it measures the
    largest curvature of the loss by differences of gradients, and sets the trainer's learning rate
    to :meth:`gluon_svrg.svrg.Smoothness.learning_rate` for the batch size and the momentum. The
    rate is one for SVRG: with plain SGD, which needs one that falls, it is where to begin.

    It knows networks that are one fully connected layer, of whatever class, with
    SoftmaxCrossEntropyLoss, SigmoidBinaryCrossEntropyLoss, LogisticLoss, L2Loss or HuberLoss, and
    the optimizers SGD and NAG. Of any other it says in the log why it leaves the learning rate
    alone. Weight decay, multiples of the learning rate (`lr_mult`, `wd_mult`), weights of samples
    and of the loss, AMP's loss scale, and the batches that GradientUpdateHandler accumulates are
    counted in.

    The curvature of softmax depends on the weights, so it is measured again 1, 2, 4, 8, ... epochs
    later, and if it has grown, the rate is lowered. It is never raised.

    Parameters
    ----------
    samples : int
        How many samples are measured on: at most that many, at most a sixteenth of an epoch, at
        least one batch. The largest curvature of a single sample is looked for among all, if the
        batches are in memory.
    priority : float
        Before SVRG's snapshot.

    Attributes
    ----------
    smoothness : Smoothness or None
        What was measured last; None if the learning rate was left alone.
    learning_rate : float or None
        What was set last.
    gradient_evaluations : int
        How many samples' gradients it took.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range. At *train begin*: if the optimizer
        has an lr_scheduler. In `fit`: if a ScheduleHandler sets the learning rate as well.

    Notes
    -----
    It computes on a copy of the weights and draws no random numbers, so the run is that of the
    same learning rate set by hand, bit for bit; but for data whose samples draw from MXNet's
    generators when they are made. A run that continues from a checkpoint has the rate from there.
    """

    state_key = "learning_rate"

    def __init__(self, samples: int = 1024, priority: float = Order.SCHEDULE) -> None:
        self.samples = check_integer(
            "samples", samples, 1, "the curvature is measured on that many samples"
        )
        self.priority = float(priority)
        self.smoothness: Smoothness | None = None
        self.learning_rate: float | None = None
        self.gradient_evaluations = 0
        self._first = 0  # the epoch that began with the first measurement
        self._next: int | None = 0  # the one that begins with the next; None: there is none

    def exclusive_tasks(self) -> list[str]:
        """Return that it chooses the learning rate, which a PlateauHandler may reduce later."""
        return ["choose the first learning rate"]

    def extra_passes(self) -> list[str]:
        """Return what the measurement costs in passes per sample."""
        return [
            "AutoLearningRateHandler adds about one to the first epoch, less if an epoch has more "
            f"than {16 * self.samples} samples"
        ]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check that nothing else sets the learning rate, and forget earlier runs."""
        check_no_lr_scheduler(self, estimator.trainer)
        self._forget()

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Measure and set the learning rate, if this epoch is due for it."""
        epoch = estimator.position.epoch
        if self._next is None or epoch < self._next:
            return
        try:
            self._measure(estimator, epoch)
        except UnsupportedProblemError as reason:
            self._next = None
            self._note(estimator, estimator.trainer.learning_rate)
            estimator.logger.warning(
                "AutoLearningRateHandler leaves the learning rate at %.4g: %s",
                estimator.trainer.learning_rate,
                reason,
            )

    def state_dict(self, estimator: Run) -> State:
        """Return the measurement and the epoch of the next; empty without a measurement."""
        if self.smoothness is None:
            return {}
        return {
            "smoothness": list(self.smoothness),
            "learning_rate": self.learning_rate,
            "gradient_evaluations": self.gradient_evaluations,
            "first": self._first,
            "next": self._next,
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`; the learning rate itself is the trainer's."""
        self._forget()
        if state:  # else nothing was measured, and what that run was told, this one is told again
            self.smoothness = Smoothness(*state["smoothness"])
            self.learning_rate = state["learning_rate"]
            self.gradient_evaluations = state["gradient_evaluations"]
            self._first, self._next = state["first"], state["next"]

    def _forget(self) -> None:
        self.smoothness = self.learning_rate = None
        self.gradient_evaluations = 0
        self._first, self._next = 0, 0

    def _measure(self, estimator: Run, epoch: int) -> None:
        momentum = _momentum_of(estimator)
        net, trained = estimator.net, _mxnet.trained_parameters(estimator.trainer)
        linear = LinearModel.of(net, estimator.loss, trained)
        batches = _Batches.of(estimator, self.samples)
        shape_inference_of(estimator)(batches.parts[0])
        for parts in batches.parts:
            linear.check_batch(parts)
        meter = CurvatureMeter(net, backward_of(estimator), _steps(estimator), _scale(estimator))
        known = self.smoothness
        try:
            measured = _measure_smoothness(estimator, linear, batches, meter, known)
            # The same on all workers, but for the last bits if their processors differ.
            self.smoothness = Smoothness(
                *estimator.workers.broadcast_object(list(measured), "measured curvature")
            )
            self.gradient_evaluations += meter.gradient_evaluations
        finally:
            meter.release()
        rate = self.smoothness.learning_rate(batches.size, momentum)
        if known is None:
            self._first = epoch
        # That of other losses was largest where it was taken.
        is_to_grow = linear.loss.kind == "softmax"
        self._next = self._first + max(1, 2 * (epoch - self._first)) if is_to_grow else None
        self._set(estimator, rate, batches.size, momentum, is_first=known is None)

    def _note(self, estimator: Run, rate: float | str) -> None:
        """Let the settings of the run say which learning rate it really has."""
        estimator.settings.setdefault(OPTIMIZER, {})["lr"] = rate

    def _set(
        self, estimator: Run, rate: float, batch_size: int, momentum: float, is_first: bool
    ) -> None:
        """Set or lower the learning rate, and log it."""
        assert self.smoothness is not None
        before = estimator.trainer.learning_rate
        if not is_first and rate > (1 - _MARGIN) * before:
            return
        estimator.trainer.set_learning_rate(rate)
        self.learning_rate = rate
        self._note(estimator, f"{rate:.6g}, measured by AutoLearningRateHandler")
        reason = (
            f"the largest curvature of the mean loss is {self.smoothness.mean:.3g}, and of one "
            f"sample's {self.smoothness.sample:.3g}, for steps of {batch_size} samples and a "
            f"momentum of {momentum:g}"
        )
        if is_first:
            share = self.smoothness.samples
            cost = f"{self.gradient_evaluations} gradients"
            if share:
                cost = f"{self.gradient_evaluations / share:.2g} passes over the data"
            estimator.logger.info(
                "the learning rate is set to %.4g: %s (measured by %s)", rate, reason, cost
            )
        else:
            estimator.logger.info(
                "epoch %d: the learning rate is lowered from %.4g to %.4g: %s",
                estimator.position.epoch,
                before,
                rate,
                reason,
            )


class _Batches(NamedTuple):
    """The batches of a measurement: whole batches, on each of several workers.

    Attributes
    ----------
    data : TrainingData
        All batches.
    parts : list of BatchParts
        Some batches, spread over the data if any of them can be had.
    size : int
        How many samples a step has.
    samples : int or None
        How many an epoch has, if it is known.
    """

    data: TrainingData
    parts: list[BatchParts]
    size: int
    samples: int | None

    @classmethod
    def of(cls, run: Run, wanted: int) -> _Batches:
        """Return batches of at most `wanted` samples, but at least one."""
        if run.batch_axis != 0:
            raise UnsupportedProblemError(
                f"the samples are along axis {run.batch_axis}, not along the first"
            )
        data = _undivided_data(run)
        first = _parts(run, data.batch(0) if data.is_indexed else data.first_batches(1)[0])
        size = _num_samples(first)
        samples = data.num_samples
        if samples is None and data.num_batches:
            samples = data.num_batches * size
        if samples is not None:
            wanted = min(wanted, samples // 16)
        number = min(max(1, wanted // size), data.num_batches or 1)
        parts = [first]
        if number > 1 and data.is_indexed:
            step = (data.num_batches or 1) / number
            parts += [_parts(run, data.batch(int(k * step))) for k in range(1, number)]
        elif number > 1:
            parts = [_parts(run, batch) for batch in data.first_batches(number)]
        step_size = size * _batches_of_a_step(run)
        return cls(data, parts, step_size, None if samples is None else max(samples, size))

    def all_in_memory(self, run: Run) -> list[BatchParts]:
        """Return all batches if they are in memory, else these."""
        data = self.data
        if not (data.keeps_batches and data.is_indexed and data.num_batches):
            return self.parts
        return [_parts(run, data.batch(index)) for index in range(data.num_batches)]


def _undivided_data(run: Run) -> TrainingData:
    """Return the undivided training data, of which each worker has a part."""
    if not run.workers.is_distributed:
        return run.data
    data = training_data(run.train_data)
    if not data.is_indexed:
        raise UnsupportedProblemError(
            f"each of {run.workers.size} workers has only its own part of {data.kind}; give an "
            "ArrayLoader or a list, or measure with one worker, and set what it logs"
        )
    return data


def _measure_smoothness(
    run: Run,
    linear: LinearModel,
    batches: _Batches,
    meter: CurvatureMeter,
    known: Smoothness | None,
) -> Smoothness:
    """Measure the smoothness; if it is `known` from an earlier epoch, only the mean's curvature."""
    probes = [linear.measurement_batch(parts) for parts in batches.parts]
    weights = meter.weights()
    change = _CHANGE * min(1.0, linear.loss.width)
    radius = change / max(1e-30, math.sqrt(max(_largest_row(linear, p)[0] for p in batches.parts)))
    if known is not None:
        mean, _ = meter.largest(probes, weights, radius)
        return known._replace(mean=_check_curvature(mean))
    everything = batches.all_in_memory(run)
    for parts in everything:
        linear.check_batch(parts)
    point = linear.measurement_point(weights, everything)
    mean, _ = meter.largest(probes, point, radius)
    norm, sample = _largest_sample(linear, everything)
    of_a_sample, _ = meter.largest(
        [linear.measurement_batch(sample)], point, change / math.sqrt(norm)
    )
    if linear.loss.kind == "softmax" and any(weights[linear.weight].ravel()):
        here, _ = meter.largest(probes, weights, radius)
        mean = max(mean, _check_curvature(here))
    return Smoothness(
        _check_curvature(mean), max(_check_curvature(of_a_sample), mean), batches.samples
    )


def _largest_sample(linear: LinearModel, batches: list[BatchParts]) -> tuple[float, BatchParts]:
    """Return the largest weighted squared norm of a row, and a batch with that row alone."""
    rows = ((*_largest_row(linear, parts), parts) for parts in batches)
    norm, row, parts = max(rows, key=lambda item: math.inf if item[0] != item[0] else item[0])
    if not 0 < norm < math.inf:
        raise UnsupportedProblemError(
            f"the longest row of the data has the squared norm {norm:g}; look for zeros, NaN and "
            "infinity in them"
        )
    alone = [None if part is None else part[row : row + 1] for part in parts]
    return norm, BatchParts(*alone)


def _largest_row(linear: LinearModel, parts: BatchParts) -> tuple[float, int]:
    norms = linear.squared_norms(parts)
    row = int(norms.argmax())  # of NaN, the first NaN
    return float(norms[row]), row


def _check_curvature(curvature: float) -> float:
    if not 0 < curvature < math.inf:
        raise UnsupportedProblemError(
            f"the measured curvature is {curvature:g}; look for NaN, infinity, zeros and very "
            "large numbers in the data"
        )
    return curvature


def _momentum_of(run: Run) -> float:
    """Return the momentum.

    Raises
    ------
    UnsupportedProblemError
        If the optimizer is neither SGD nor NAG, or the batch processor has its own `fit_batch`.
    """
    optimizer = _mxnet.optimizer_of(run.trainer)
    if type(optimizer) not in (mx.optimizer.SGD, mx.optimizer.NAG, NAG):
        raise UnsupportedProblemError(
            f"the optimizer is {type(optimizer).__name__}, and the rule is one for SGD and NAG; "
            "give the trainer 'sgd' or 'nag'"
        )
    processor = type(run.batch_processor)
    if not (
        issubclass(processor, BatchProcessor) and processor.fit_batch is BatchProcessor.fit_batch
    ):
        raise UnsupportedProblemError(
            f"the batch processor {processor.__name__} may compute anything"
        )
    momentum = float(vars(optimizer)["momentum"])
    if not 0 <= momentum < 1:
        raise UnsupportedProblemError(f"the momentum is {momentum:g}, and must be in [0, 1)")
    return momentum


def _batches_of_a_step(run: Run) -> int:
    found = [h.accumulate for h in run.handlers if isinstance(h, GradientUpdateHandler)]
    return found[0] if found else 1


def _steps(run: Run) -> dict[str, StepScaling]:
    decay = _mxnet.optimizer_of(run.trainer).wd
    return {
        param.name: StepScaling(float(param.lr_mult), float(decay * param.wd_mult))
        for param in _mxnet.trained_parameters(run.trainer)
    }


def _scale(run: Run) -> float:
    return _mxnet.step_scale(run.trainer) / _mxnet.loss_scale_of(run.trainer)


def _parts(run: Run, batch: object) -> BatchParts:
    return unpack_batch(batch, run.net, run.batch_axis, len(run.context))


def _num_samples(parts: BatchParts) -> int:
    return int(tree_leaves(parts.data)[0].shape[0])
