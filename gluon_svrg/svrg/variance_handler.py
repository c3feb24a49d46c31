"""VarianceHandler: measures during training how SVRG changes the variance of the gradient."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.arrays.replicas import distinct_replicas
from gluon_svrg.batch.backward import backward_of
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import (
    BatchEnd,
    ExceptionRaised,
    GradientReady,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.rng import seed_mxnet, worker_seed
from gluon_svrg.svrg.coefficient import OptimalCoefficient, check_coefficient
from gluon_svrg.svrg.controller import SVRGController
from gluon_svrg.svrg.full_pass import IndexedBatch
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.snapshot_schedule import (
    Phase,
    RatioBounds,
    average_if_constant,
    average_if_growing,
)
from gluon_svrg.svrg.variance import Coefficients, GradientMoments, VarianceMeter
from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class VarianceRecord:
    """A measurement at one point of a run.

    Attributes
    ----------
    epoch : int
        The number of the epoch.
    at : float
        The fraction of the epoch that was done, in (0, 1]. (The argument `at` of the handler is in
        percent.)
    ratio : float
        The variance of the corrected gradient, divided by that of the plain one.
    svrg_ratio : float
        The same with the coefficient 1.
    optimal_ratio : float
        The same with the best coefficient of each parameter.
    optimal_coefficient : float
        The best single coefficient for all parameters.
    variance : float
        The variance of a batch's plain gradient: its mean squared distance from the mean.
    average : float
        The average of the ratio over the epoch, if it stays at its present value for the rest.
    """

    epoch: int
    at: float
    ratio: float
    svrg_ratio: float
    optimal_ratio: float
    optimal_coefficient: float
    variance: float
    average: float


class VarianceHandler(
    TrainBegin,
    GradientReady,
    BatchEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    HasExclusiveTasks,
    RequiresRun,
):
    """Measures whether SVRG pays: how the correction changes the variance of the gradient.

    At some points of an epoch it computes, for a few random batches (the first of a new iteration
    of a DataLoader), the gradient at the weights and at the snapshot, and from them the variance
    ratio: the variance of the corrected gradient divided by that of the plain one. An epoch with
    SVRG takes about three gradients per sample, so SVRG pays if the ratio is below 1/3 (Defazio &
    Bottou 2019; the default points are theirs). With ``SVRGHandler(max_variance_ratio=...)`` the
    SVRGHandler acts on it.

    While SVRG is off it measures what SVRG *would* do, with a copy of the weights from the
    beginning of the epoch as the snapshot. That needs no full pass, since the variance does not
    depend on the full gradient, a constant. So a plain run with a VarianceHandler says whether SVRG
    would pay. After SVRG was switched off, it measures only in the epochs of a recheck. A
    measurement that decides whether to switch SVRG on takes at most 2.5 % of an epoch's batches (at
    least 3 batches), and all of them at most 15 %: one or two points in the first third of the
    first epoch, one to four in the next.

    A row of the history gets ``variance_ratio``, the ratio averaged over the epoch, and
    ``variance_ratio_at_11``, the ratio when 11 % of it are done, for each point.

    Parameters
    ----------
    at : sequence of float
        When to measure: percentages of an epoch's batches, in (0, 100].
    batches : int
        The number of batches of each measurement, at least 2. It computes two gradients of each,
        or one if SVRG has a gradient table. The default with 4 points takes 64 gradients of a batch
        per epoch: 5 % of the time of an SVRG epoch of 469 batches.
    every_n_epochs : int
        Measure in every n-th epoch, from the first on.
    coefficient : float or 'auto'
        The coefficient to assume while SVRG is off; 'auto' is the best one for each parameter.
    seed : int
        Seed of the choice of batches.
    priority : float
        After the optimizer's step, before the history.

    Attributes
    ----------
    records : list of VarianceRecord
        The measurements of this run, including those before a resume.
    gradient_evaluations : int
        How many gradients (one per sample) the measurements took, without those at the snapshot,
        which the SVRGHandler counts.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If a point is not in (0, 100], or another argument is out of its range.

    Notes
    -----
    The gradients are computed on a copy: neither BatchNorm's statistics nor the network's gradients
    change. Both gradients of a batch see the same random numbers. For that MXNet is seeded, so the
    dropout masks of the training differ from those without this handler, unless SVRG seeds MXNet
    anyway.

    References
    ----------
    A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced optimization for deep
    learning", NeurIPS 2019.
    """

    state_key = "variance"

    def __init__(
        self,
        at: Sequence[float] = (2, 11, 33, 100),
        batches: int = 8,
        every_n_epochs: int = 1,
        coefficient: float | str = 1.0,
        *,
        seed: int = 0,
        priority: float = Order.VARIANCE,
    ) -> None:
        self.at = _check_points(at)
        self.batches = check_integer(
            "batches", batches, 2, "the variance is taken over that many batches"
        )
        self.every_n_epochs = check_integer(
            "every_n_epochs", every_n_epochs, 1, "the ratio is measured every every_n_epochs epochs"
        )
        if isinstance(coefficient, str) and coefficient != "auto":
            raise TypeError(
                f"coefficient must be a number in [0, 1] or 'auto', got {coefficient!r}"
            )
        self.coefficient: float | str = (
            coefficient if isinstance(coefficient, str) else check_coefficient(coefficient)
        )
        self.seed = check_integer("seed", seed, 0, "it decides which batches are taken")
        check_number(
            "priority", priority, "it measures after the optimizer's step", least=-2000, above=True
        )
        self.priority = float(priority)
        self.records: list[VarianceRecord] = []
        self.gradient_evaluations = 0
        self._controller: SVRGController | None = None
        self._data: TrainingData
        self._meter: VarianceMeter
        self._reference: Snapshot
        # Whether the weights from the beginning of this epoch serve as a snapshot.
        self._has_reference = False

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return ["measure the variance ratio"]

    def attach(self, controller: SVRGController) -> None:
        """Measure the SVRG of this controller in the next run, and report to it."""
        self._controller = controller

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check the data, and prepare the measurements."""
        _check_length(estimator.data)
        self.records, self.gradient_evaluations = [], 0
        self._has_reference = False
        names = [param.name for param in _mxnet.parameters_of(estimator.trainer)]
        self._meter = VarianceMeter(estimator.net, names, estimator.workers)
        self._reference = Snapshot(estimator.net, names)
        self._data = estimator.data

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Copy the weights before an epoch's first step, if they serve as a snapshot."""
        position = estimator.position
        if position.batch_in_epoch:
            return
        self._has_reference = self._needs_reference(position.epoch)
        if self._has_reference:
            self._reference.take()

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Measure, if this batch is a point of measurement."""
        epoch, done = estimator.position.epoch, estimator.position.batch_in_epoch + 1
        length = self._data.num_batches
        if not length or not self._measures_in(epoch):
            return
        points, batches = self._plan(epoch, length)
        numbers = [max(1, round(point / 100 * length)) for point in points]
        if done in numbers and (self._is_on or self._has_reference):
            self._measure(estimator, epoch, done / length, batches, done == numbers[-1])

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Free what belongs to the run; `records` stay."""
        self._controller = None
        if "_data" in vars(self):  # else an exception came before train begin
            self._reference.release()
            self._meter.release()
            del self._data, self._reference, self._meter

    exception_raised = train_end

    def state_dict(self, estimator: Run) -> State:
        """Return the measurements, and the weights that serve as a snapshot."""
        return {
            "records": [asdict(record) for record in self.records],
            "gradient_evaluations": self.gradient_evaluations,
            "reference": (
                [distinct_replicas(arrays) for arrays in self._reference.weights.values()]
                if self._has_reference
                else None
            ),
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`."""
        self.records = [VarianceRecord(**record) for record in state["records"]]
        self.gradient_evaluations = state["gradient_evaluations"]
        self._has_reference = state["reference"] is not None
        if state["reference"] is not None:
            names = estimator.net.collect_params().keys()
            self._reference.load(dict(zip(names, state["reference"], strict=True)))

    @property
    def _is_on(self) -> bool:
        return self._controller is not None and self._controller.is_on

    def _must_measure(self, epoch: int) -> bool:
        """Return whether SVRG, which is off, needs a measurement in this epoch."""
        return self._controller is not None and self._controller.criterion.must_measure(epoch)

    def _measures_in(self, epoch: int) -> bool:
        return self._must_measure(epoch) or epoch % self.every_n_epochs == 0

    def _needs_reference(self, epoch: int) -> bool:
        """Return whether this plain epoch is measured, against the weights at its beginning."""
        if self._is_on:
            return False
        # After SVRG was switched off, only the epochs of a recheck are measured.
        is_off = self._controller is not None and self._controller.criterion.phase is Phase.OFF
        return self._must_measure(epoch) or (self._measures_in(epoch) and not is_off)

    def _plan(self, epoch: int, length: int) -> tuple[Sequence[float], int]:
        """Return at which percentages of the epoch to measure, and on how many batches."""
        if self._controller is None:
            return self.at, self.batches
        return self._controller.criterion.plan(self.at, self.batches, length, epoch)

    def _measure(self, estimator: Run, epoch: int, at: float, batches: int, is_last: bool) -> None:
        controller, is_on = self._controller, self._is_on
        moments = self._moments(estimator, epoch, batches)
        coefficient = self._coefficient_now(estimator, moments)
        ratio = moments.ratio(coefficient)
        # In the epoch of a trial the snapshot is taken in the middle.
        begin = controller.criterion.fraction_before_snapshot(epoch) if controller else 0.0
        earlier = [r for r in self.records if r.epoch == epoch and r.at > begin]
        # At the snapshot both gradients are equal, and 1 is the best coefficient.
        at_snapshot = (1 - coefficient) ** 2 if isinstance(coefficient, float) else 0.0
        if is_on and controller is not None and controller.interval.epoch < epoch:
            # The snapshot is from an earlier epoch: continue from the last measurement.
            at_snapshot = next((r.ratio for r in reversed(self.records) if r.epoch < epoch), ratio)
        average = average_if_constant(
            [(x - begin) / (1 - begin) for x in (*(r.at for r in earlier), at)],
            [*(r.ratio for r in earlier), ratio],
            at_snapshot,
        )
        own = VarianceRecord(
            epoch=epoch,
            at=at,
            ratio=ratio,
            svrg_ratio=moments.ratio(1.0),
            optimal_ratio=moments.ratio(moments.optimal_coefficients()),
            optimal_coefficient=moments.optimal_coefficient(),
            variance=moments.variance(),
            average=average,
        )
        # All workers use the first one's figures, since their processors may round differently.
        record = VarianceRecord(**estimator.workers.broadcast_object(asdict(own), "variance ratio"))
        self.records.append(record)
        estimator.logger.info(
            "epoch %d, %.3g %%: variance ratio %.3g (%.3g with the best coefficients, about %.2f)",
            epoch,
            100 * at,
            record.ratio,
            record.optimal_ratio,
            record.optimal_coefficient,
        )
        estimator.figures["variance_ratio"] = record.average
        points = self._points_of(at)
        estimator.figures |= {f"variance_ratio_at_{point:g}": record.ratio for point in points}
        if controller is None:
            return
        if controller.criterion.is_in_trial(epoch) or not math.isnan(record.average):
            upper = average_if_growing(at, record.ratio, at_snapshot)
            was_needed = self._must_measure(epoch)
            controller.on_measurement(RatioBounds(epoch, at, record.average, upper, is_last))
            if was_needed:  # else the epoch is measured to its end, whatever the decision
                self._has_reference = self._must_measure(epoch)

    def _points_of(self, at: float) -> list[float]:
        """Return the points, in percent, that fall on this batch of the epoch."""
        length = self._data.num_batches or 1
        return [p for p in self.at if max(1, round(p / 100 * length)) == round(at * length)]

    def _moments(self, estimator: Run, epoch: int, number: int) -> GradientMoments:
        key = (epoch, estimator.position.batch_in_epoch)
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        batches = _random_batches(self._data, number, sequence, estimator)
        scale = _mxnet.loss_scale_of(estimator.trainer)
        if self._controller is None or not self._controller.is_on:
            backward = backward_of(estimator)
            seed = worker_seed(estimator.workers.rank, self.seed)

            def masked(item: IndexedBatch) -> object:
                seed_mxnet(seed, *key, item[0])  # as the MaskLock of an Interval does
                return backward(item[1])

            moments = self._meter.measure_locked(
                masked, batches, lambda item: self._reference.gradient(masked, item), scale, scale
            )
            seed_mxnet(seed, *key)
            self.gradient_evaluations += 2 * moments.samples
            return moments
        interval = self._controller.interval

        def locked(item: IndexedBatch) -> object:
            return interval.backward_at(item[0])(item[1])

        moments = self._meter.measure_locked(
            locked, batches, lambda item: interval.gradient_at(item[1], item[0]), scale
        )
        interval.masks.release()
        self.gradient_evaluations += moments.samples
        return moments

    def _coefficient_now(self, estimator: Run, moments: GradientMoments) -> Coefficients:
        coefficient: float | str | OptimalCoefficient = self.coefficient
        if self._controller is not None:
            trainer, criterion = self._controller.trainer, self._controller.criterion
            if self._controller.is_on:
                is_number = trainer.optimal_coefficient is None
                return trainer.coefficient if is_number else trainer.coefficients
            epoch = estimator.position.epoch
            if criterion.phase is Phase.OFF or criterion.must_measure(epoch):
                coefficient = self._controller.next_coefficient(extra_batches=1)
        return coefficient if isinstance(coefficient, float) else moments.optimal_coefficients()


def _random_batches(
    data: TrainingData, number: int, sequence: np.random.SeedSequence, estimator: Run
) -> Iterator[IndexedBatch]:
    """Yield `number` random batches, or the first ones of data without an index."""
    length = data.num_batches
    if not data.is_indexed or length is None:
        yield from enumerate(data.first_batches(number))
        return
    # A smaller batch varies more than the others.
    is_last_smaller = _num_samples(data.batch(length - 1), estimator) < _num_samples(
        data.batch(0), estimator
    )
    candidates = length - (is_last_smaller and length > 2)
    order = np.random.Generator(np.random.PCG64(sequence)).permutation(candidates)
    for index in order[:number].tolist():
        yield index, data.batch(index)


def _check_points(at: object) -> tuple[float, ...]:
    points = tuple(at) if isinstance(at, (list, tuple)) else (at,)
    if not points:
        raise ValueError(
            "at must hold at least one percentage, got none: (2, 11, 33, 100) is usual"
        )
    for point in points:
        message = f"at must hold percentages of an epoch, above 0 and at most 100, got {point!r}"
        if isinstance(point, bool) or not isinstance(point, numbers.Real):
            raise TypeError(message)
        if not 0 < float(point) <= 100:
            raise ValueError(message)
    return tuple(sorted({float(point) for point in points}))


def _check_length(data: TrainingData) -> None:
    if data.num_batches is None:
        raise ValueError(
            f"VarianceHandler measures at fractions of an epoch, and {data.kind} has no length: "
            "give train_data a __len__"
        )
    if data.num_batches == 1:
        raise ValueError(
            "VarianceHandler needs at least two batches per epoch, got 1: use a smaller batch size"
        )


def _num_samples(batch: object, estimator: Run) -> int:
    """Return the number of samples of a batch, on all workers."""
    data = next(iter(tree_leaves(batch)), None)
    samples = data.shape[estimator.batch_axis] if isinstance(data, (NDArray, np.ndarray)) else 0
    return int(estimator.workers.all_sum(samples, "samples of a batch"))
