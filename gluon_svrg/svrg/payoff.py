"""Payoff: whether SVRG is worth its cost, by measurements of the variance ratio in a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from gluon_svrg._mxnet.trainer import loss_scale_of, parameters_of
from gluon_svrg._typing import State
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.arrays.replicas import distinct_replicas
from gluon_svrg.batch.backward import backward_of
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.rng import seed_mxnet, worker_seed
from gluon_svrg.run import Run
from gluon_svrg.svrg.coefficient import (
    Coefficient,
    OptimalCoefficient,
    coefficient_at,
    schedule_progress,
)
from gluon_svrg.svrg.full_pass import IndexedBatch
from gluon_svrg.svrg.interval import Interval
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.trainer import require_svrg_trainer
from gluon_svrg.svrg.variance import Coefficients, GradientMoments, VarianceMeter
from mxnet.ndarray import NDArray

# To switch SVRG on, the ratio must be at most this fraction of the bound. Measured on three
# batches, the ratio may be off by a factor of three. A full pass that turns out to be useless costs
# an epoch, and at the bound itself SVRG gains nothing.
_SAFETY_FACTOR = 0.5
# The trial ends when this percentage of the epoch is done. This is late enough to decide, and most
# of the epoch is left.
_TRIAL_END_PERCENT = 100 / 3
# The part of an epoch's batches that one measurement uses, and that all measurements use until the
# decision: at two gradients per batch 0.3 epochs, 3 % of a run of ten. That is six measurements,
# two in the trial and four in the epoch after it, and fewer if an epoch has under 120 batches.
_MAX_COST_PER_MEASUREMENT, _MAX_TRIAL_COST = 0.025, 0.15
# Measured on two batches, the ratio scatters by a factor of four: 0.06 may look like 0.4.
_MIN_BATCHES = 3


class Stage(Enum):
    """What SVRG does at present."""

    WAITING = "the trial before the first snapshot has not begun"
    TRIAL = "it is measured whether the first snapshot will pay"
    DUE = "the first snapshot will pay, and is taken next"
    SCHEDULED = "snapshots are taken as scheduled"
    OFF = "SVRG is switched off"


class RatioBounds(NamedTuple):
    """Bounds of the average variance ratio over an epoch.

    Attributes
    ----------
    epoch : int
        The epoch.
    fraction_done : float
        How much of it is done, in (0, 1].
    lower : float
        The average if the ratio stays constant from here on (:func:`average_if_constant`).
    upper : float
        The average if the ratio continues to grow (:func:`average_if_growing`).
    is_last : bool
        Whether this was the epoch's last measurement.
    """

    epoch: int
    fraction_done: float
    lower: float
    upper: float
    is_last: bool


class Decision(Enum):
    """A decision after a measurement; the value is its text in the log."""

    SWITCHED_ON = "SVRG is switched on"
    NOT_SWITCHED_ON = "SVRG is not switched on"
    SWITCHED_OFF = "SVRG is switched off"
    STAYS_OFF = "SVRG stays off"
    SWITCHED_ON_AGAIN = "SVRG is switched on again, with its next snapshot"


class PayoffCriterion:
    r"""Decides from measured variance ratios whether SVRG is on.

    A full pass costs as many gradients as an epoch, and SVRG pays only if the variance ratio,
    averaged over the epoch, is small enough. The ratio does not depend on the full gradient, which
    is a constant, so it can be measured without a full pass.

    *Before the first snapshot* there is a trial. The epoch begins with the plain optimizer and a
    copy of the weights in the snapshot's place. When a fraction *p* of the epoch is done, the ratio
    :math:`r(p)` is measured. It grows with the distance from the copy, so two bounds on its average
    over the epoch are known:

    - The lower bound assumes that the ratio stays constant from here on. If it is above
      `max_ratio`, SVRG is not switched on.
    - The upper bound assumes that the ratio continues to grow in proportion to the progress, which
      gives :math:`r(p) / (2 p)`; in fact it saturates later. If this bound is not above
      `max_ratio`, the snapshot is taken now.

    Otherwise the next measurement decides. At the last one, after a third of the epoch, the lower
    bound must be at most half of `max_ratio`. Waiting costs nothing, because meanwhile the epoch
    continues with the plain optimizer.

    *While SVRG is on* it is switched off as soon as the lower bound is above `max_ratio`.

    *After SVRG was switched off*, the ratio is measured once more in the next epoch, without a full
    pass, and then every `recheck_every` epochs. In the first epoch the weights of any network move
    far, so the ratio is large (0.65 for a softmax regression whose ratio is 0.05 from the second
    epoch on). To be switched on again, the ratio must be at most half of `max_ratio`.

    Parameters
    ----------
    max_ratio, recheck_every
        `max_variance_ratio` and `recheck_every_n_epochs` of :class:`gluon_svrg.SVRGHandler`; error
        messages use those names.
    stop_epoch : int, optional
        The first epoch without SVRG, whatever the measurements are.

    Attributes
    ----------
    stage : Stage
        What SVRG does at present.
    off_since : int or None
        The epoch in which SVRG was switched off; None unless it is off.
    times_off : int
        The number of times that it was switched off.
    trial_epoch : int or None
        The epoch of the trial; None before it.
    snapshot_fraction : float
        How much of `trial_epoch` was done when its snapshot was taken, in [0, 1).
    """

    def __init__(
        self, max_ratio: float | None, recheck_every: int | None, stop_epoch: int | None = None
    ) -> None:
        if max_ratio is not None:
            check_number(
                "max_variance_ratio",
                max_ratio,
                "SVRG is switched off if the variance ratio is greater, and pays under about 1/3",
                least=0,
                above=True,
            )
        if recheck_every is not None:
            check_integer(
                "recheck_every_n_epochs",
                recheck_every,
                1,
                "the ratio is measured again every n epochs",
            )
            if max_ratio is None:
                raise ValueError(
                    f"recheck_every_n_epochs={recheck_every} needs max_variance_ratio: without it "
                    "SVRG is never switched off"
                )
        self.max_ratio = max_ratio
        self.recheck_every = recheck_every
        self._stop_epoch = stop_epoch
        self.reset()

    def reset(self) -> None:
        """Begin a new run."""
        self.stage = Stage.SCHEDULED if self.max_ratio is None else Stage.WAITING
        self.off_since: int | None = None
        self.times_off = 0
        self.trial_epoch: int | None = None
        self.snapshot_fraction = 0.0
        self._failed_recheck: int | None = None

    def start_trial(self, epoch: int) -> None:
        """Start the trial in this epoch: measure whether the first snapshot will pay."""
        self.stage, self.trial_epoch = Stage.TRIAL, epoch

    def is_in_trial(self, epoch: int) -> bool:
        """Return whether this epoch has the trial, and the trial has not decided yet."""
        return self.stage is Stage.TRIAL and self.trial_epoch == epoch

    def is_snapshot_overdue(self, epoch: int) -> bool:
        """Return whether the trial's epoch has ended without its snapshot, before `epoch`.

        This is so if the epoch was cut short, or if the last measurement was at its end.
        """
        is_open = self.stage in (Stage.TRIAL, Stage.DUE)
        return is_open and self.trial_epoch is not None and self.trial_epoch < epoch

    def is_recheck(self, epoch: int) -> bool:
        """Return whether this epoch, without SVRG, is measured to switch SVRG on again."""
        if self.off_since is None or epoch <= self.off_since or epoch == self._failed_recheck:
            return False
        # In the last epoch before stop_epoch, SVRG could not be switched on again.
        if self._stop_epoch is not None and epoch + 1 >= self._stop_epoch:
            return False
        since, every = epoch - self.off_since, self.recheck_every
        return (since == 1 and self.times_off == 1) or (every is not None and since % every == 0)

    def must_measure(self, epoch: int) -> bool:
        """Return whether a decision to switch SVRG on needs a measurement in this plain epoch."""
        return self.is_in_trial(epoch) or self.is_recheck(epoch)

    def plan(
        self, at: Sequence[float], batches: int, length: int, epoch: int
    ) -> tuple[Sequence[float], int]:
        """Return the percentages of `epoch` at which to measure, and the batches for each.

        Measurements in a plain epoch must be cheap. The trial has at most two measurements, the
        last ones in the first third of the epoch. The epoch after the trial has one in the first
        half and then the last ones, which are the most informative. Each epoch has at least one.

        Parameters
        ----------
        at : sequence of float
            The percentages of a VarianceHandler, in increasing order.
        batches : int
            The requested number of batches of one measurement.
        length : int
            The number of batches of the epoch.
        epoch : int
            The epoch.
        """
        if not self.must_measure(epoch):
            return at, batches
        batches = min(batches, max(_MIN_BATCHES, int(_MAX_COST_PER_MEASUREMENT * length)))
        number = max(2, int(_MAX_TRIAL_COST * length / batches))
        in_trial = min(2, number // 2)
        if self.is_in_trial(epoch):
            early = [point for point in at if point <= _TRIAL_END_PERCENT]
            return early[-in_trial:] or at[:1], batches
        first = [point for point in at if point <= 50][-1:] or list(at[:1])
        rest = [point for point in reversed(at) if point not in first]
        return sorted([*first, *rest][: number - in_trial]), batches

    def update(self, ratio: RatioBounds, is_on: bool) -> Decision | None:
        """Decide after a measurement; return None if nothing changes.

        A NaN never switches SVRG off: the full pass will report what is wrong.

        Parameters
        ----------
        ratio : RatioBounds
            The bounds that were measured.
        is_on : bool
            Whether SVRG corrects the gradients at present.
        """
        if self.max_ratio is None:
            return None
        is_above = ratio.lower > self.max_ratio
        is_unclear = ratio.is_last and ratio.lower > _SAFETY_FACTOR * self.max_ratio
        if self.is_in_trial(ratio.epoch):
            is_small = not is_above and ratio.upper <= self.max_ratio
            if is_above or (is_unclear and not is_small):
                self._switch_off(ratio.epoch)
                return Decision.NOT_SWITCHED_ON
            if is_small or ratio.is_last:
                self.stage = Stage.DUE
                return Decision.SWITCHED_ON
        elif is_on and is_above:
            self._switch_off(ratio.epoch)
            return Decision.SWITCHED_OFF
        elif self.is_recheck(ratio.epoch):
            if is_above or is_unclear:
                self._failed_recheck = ratio.epoch  # later measurements are not needed
                return Decision.STAYS_OFF
            if ratio.is_last:
                self.stage, self.off_since = Stage.SCHEDULED, None
                return Decision.SWITCHED_ON_AGAIN
        return None

    def reason(self, decision: Decision, ratio: float) -> str:
        """Return how the ratio compares with the bound, for the log."""
        bound = f"max_variance_ratio={self.max_ratio:.3g}"
        if decision in (Decision.SWITCHED_ON, Decision.SWITCHED_ON_AGAIN):
            return f"under {bound}"
        if self.max_ratio is not None and ratio > self.max_ratio:
            return f"above {bound}"
        return f"not clearly under {bound}: it is more than half of it"

    def next_recheck(self) -> int | None:
        """Return the epoch in which the ratio is measured next while SVRG is off, or None."""
        every = 1 if self.times_off == 1 else self.recheck_every
        return None if self.off_since is None or every is None else self.off_since + every

    def snapshot_taken(self, fraction_done: float) -> None:
        """Record that a snapshot was taken when this fraction of the epoch was done."""
        if self.stage in (Stage.TRIAL, Stage.DUE):
            self.stage, self.snapshot_fraction = Stage.SCHEDULED, fraction_done

    def fraction_before_snapshot(self, epoch: int) -> float:
        """Return how much of `epoch` was done when its snapshot was taken, in the trial; else 0."""
        return self.snapshot_fraction if epoch == self.trial_epoch else 0.0

    def _switch_off(self, epoch: int) -> None:
        self.stage, self.off_since = Stage.OFF, epoch
        self.times_off += 1

    def state_dict(self) -> State:
        """Return the decisions so far."""
        state: State = {
            "epoch": self.off_since,
            "times": self.times_off,
            "failed_look": self._failed_recheck,
        }
        if self.trial_epoch is not None or self.stage is Stage.WAITING:
            state["trial"] = {
                "epoch": self.trial_epoch,
                "is_over": self.stage in (Stage.SCHEDULED, Stage.OFF),
                "is_due": self.stage is Stage.DUE,
                "part": self.snapshot_fraction,
            }
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from what :meth:`state_dict` returned; versions without a trial saved none."""
        self.off_since, self.times_off = state["epoch"], state["times"]
        self._failed_recheck = state["failed_look"]
        none = {"epoch": None, "is_over": True, "is_due": False, "part": 0.0}
        trial = state.get("trial", none)
        self.trial_epoch, self.snapshot_fraction = trial["epoch"], trial["part"]
        if self.off_since is not None:
            self.stage = Stage.OFF
        elif trial["is_over"]:
            self.stage = Stage.SCHEDULED
        elif trial["is_due"]:
            self.stage = Stage.DUE
        else:
            self.stage = Stage.WAITING if self.trial_epoch is None else Stage.TRIAL


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


class MeasurementPlan(NamedTuple):
    """What a :class:`gluon_svrg.VarianceHandler` asks for in an epoch.

    `measures_epoch` is whether it measures in this one; the other fields are its arguments.
    """

    at: Sequence[float]
    batches: int
    measures_epoch: bool
    coefficient: float | str
    seed: int


class Payoff:
    """Measures in a run how SVRG changes the variance of the gradient, and decides if it pays.

    The SVRGHandler owns it, and does what `criterion` decides. A VarianceHandler says when to
    measure, and reads the records; without SVRG it has a Payoff of its own.

    While SVRG is on, its gradients at the snapshot are used. While it is off, the weights at the
    beginning of the epoch serve as a snapshot.

    Parameters
    ----------
    run : Run
        The run.
    criterion : PayoffCriterion
        Makes the decisions; without a bound, there are none.
    coefficient : float, callable or OptimalCoefficient, optional
        The coefficient of SVRG; None without SVRG.

    Attributes
    ----------
    interval : Interval or None
        The snapshot with which gradients are corrected; None while SVRG is off. The handler
        sets it.
    records : list of VarianceRecord
        The measurements of this run, including those before a resume.
    gradient_evaluations : int
        The number of gradients (one per sample) that the measurements took, without those that
        `interval` counts.
    """

    def __init__(
        self,
        run: Run,
        criterion: PayoffCriterion,
        coefficient: Coefficient | OptimalCoefficient | None = None,
    ) -> None:
        self.criterion = criterion
        self.interval: Interval | None = None
        self.records: list[VarianceRecord] = []
        self.gradient_evaluations = 0
        self._run, self._data, self._coefficient = run, run.data, coefficient
        names = [param.name for param in parameters_of(run.trainer)]
        self._meter = VarianceMeter(run.net, names, run.workers)
        self._reference = Snapshot(run.net, names)
        # Whether the weights from the beginning of this epoch serve as a snapshot.
        self._has_reference = False

    @property
    def is_on(self) -> bool:
        """Whether SVRG corrects the gradients."""
        return self.interval is not None

    def keep_reference(self, measures_epoch: bool) -> None:
        """Copy the weights at the beginning of an epoch, if they are needed as a snapshot.

        Parameters
        ----------
        measures_epoch : bool
            Whether the VarianceHandler measures in this epoch.
        """
        epoch = self._run.position.epoch
        # After SVRG was switched off, only recheck epochs are measured.
        is_measured = self.criterion.must_measure(epoch) or (
            measures_epoch and self.criterion.stage is not Stage.OFF
        )
        self._has_reference = is_measured and not self.is_on
        if self._has_reference:
            self._reference.take()

    def measure(self, plan: MeasurementPlan) -> VarianceRecord | None:
        """Measure and decide at *batch end*, if the plan includes this batch; else return None."""
        position, length = self._run.position, self._data.num_batches
        epoch, done = position.epoch, position.batch_in_epoch + 1
        must_measure = self.criterion.must_measure(epoch)
        if not length or not (must_measure or plan.measures_epoch):
            return None
        points, batches = self.criterion.plan(plan.at, plan.batches, length, epoch)
        numbers = [max(1, round(point / 100 * length)) for point in points]
        if done not in numbers or not (self.is_on or self._has_reference):
            return None
        moments = self._moments(batches, plan.seed)
        coefficient = self._coefficient_now(plan.coefficient, moments)
        at_snapshot = self._ratio_at_snapshot(coefficient, moments)
        record = self._record(done / length, moments, coefficient, at_snapshot)
        self._decide(record, at_snapshot, is_last=done == numbers[-1])
        if must_measure:  # otherwise the epoch is measured to its end, whatever the decision
            self._has_reference = self.criterion.must_measure(epoch)
        return record

    def release(self) -> None:
        """Free what belongs to the run; the records stay."""
        if "_run" not in vars(self):  # already released
            return
        self._reference.release()
        self._meter.release()
        self.interval = None
        del self._run, self._data, self._reference, self._meter

    def state_dict(self) -> State:
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

    def load_state_dict(self, state: State) -> None:
        """Continue from `state`."""
        self.records = [VarianceRecord(**record) for record in state["records"]]
        self.gradient_evaluations = state["gradient_evaluations"]
        self._has_reference = state["reference"] is not None
        if state["reference"] is not None:
            names = self._run.net.collect_params().keys()
            self._reference.load(dict(zip(names, state["reference"], strict=True)))

    def _ratio_at_snapshot(self, coefficient: Coefficients, moments: GradientMoments) -> float:
        """Return the ratio at the beginning of this epoch, or at the snapshot in its middle."""
        epoch = self._run.position.epoch
        if self.interval is not None and self.interval.epoch < epoch:
            # The snapshot is from an earlier epoch: continue from the last measurement.
            earlier = (r.ratio for r in reversed(self.records) if r.epoch < epoch)
            return next(earlier, moments.ratio(coefficient))
        # At the snapshot both gradients are equal, and 1 is the best coefficient.
        return (1 - coefficient) ** 2 if isinstance(coefficient, float) else 0.0

    def _record(
        self,
        at: float,
        moments: GradientMoments,
        coefficient: Coefficients,
        at_snapshot: float,
    ) -> VarianceRecord:
        """Add a record of these moments, and log it."""
        run, epoch, ratio = self._run, self._run.position.epoch, moments.ratio(coefficient)
        # In the epoch of a trial the snapshot is taken in the middle.
        begin = self.criterion.fraction_before_snapshot(epoch)
        earlier = [r for r in self.records if r.epoch == epoch and r.at > begin]
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
        # All workers use the first worker's figures, since their processors may round differently.
        record = VarianceRecord(**run.workers.broadcast_object(asdict(own), "variance ratio"))
        self.records.append(record)
        run.logger.info(
            "epoch %d, %.3g %%: variance ratio %.3g (%.3g with the best coefficients, about %.2f)",
            epoch,
            100 * at,
            record.ratio,
            record.optimal_ratio,
            record.optimal_coefficient,
        )
        return record

    def _decide(self, record: VarianceRecord, at_snapshot: float, is_last: bool) -> None:
        """Let the criterion decide, and log what it has decided."""
        if math.isnan(record.average) and not self.criterion.is_in_trial(record.epoch):
            return
        upper = average_if_growing(record.at, record.ratio, at_snapshot)
        bounds = RatioBounds(record.epoch, record.at, record.average, upper, is_last)
        decision = self.criterion.update(bounds, self.is_on)
        if decision is None:
            return
        is_off = decision in (Decision.SWITCHED_OFF, Decision.NOT_SWITCHED_ON)
        recheck = self.criterion.next_recheck() if is_off else None
        self._run.logger.info(
            "epoch %d, %.3g %%: %s: the variance ratio, averaged over the epoch, is %.3g, %s%s%s",
            record.epoch,
            100 * record.at,
            decision.value,
            record.average,
            self.criterion.reason(decision, record.average),
            "; the plain optimizer continues" if is_off else "",
            "" if recheck is None else f"; next measurement in epoch {recheck}",
        )

    def _moments(self, number: int, seed: int) -> GradientMoments:
        """Return the moments of `number` batches' gradients at the weights and at the snapshot."""
        run = self._run
        key = (run.position.epoch, run.position.batch_in_epoch)
        sequence = np.random.SeedSequence(seed, spawn_key=key)
        batches = _random_batches(self._data, number, sequence, run)
        scale = loss_scale_of(run.trainer)
        interval = self.interval
        if interval is None:
            backward = backward_of(run)
            own_seed = worker_seed(run.workers.rank, seed)

            def masked(item: IndexedBatch) -> object:
                seed_mxnet(own_seed, *key, item[0])  # as the MaskLock of an Interval does
                return backward(item[1])

            moments = self._meter.measure_locked(
                masked, batches, lambda item: self._reference.gradient(masked, item), scale, scale
            )
            seed_mxnet(own_seed, *key)
            self.gradient_evaluations += 2 * moments.samples
            return moments

        def locked(item: IndexedBatch) -> object:
            return interval.backward_at(item[0])(item[1])

        moments = self._meter.measure_locked(
            locked, batches, lambda item: interval.gradient_at(item[1], item[0]), scale
        )
        interval.masks.release()
        self.gradient_evaluations += moments.samples
        return moments

    def _coefficient_now(self, assumed: float | str, moments: GradientMoments) -> Coefficients:
        """Return the coefficient in use; while SVRG is off, the one it would use, or `assumed`."""
        if self.interval is not None:
            trainer = require_svrg_trainer(self._run)
            is_number = trainer.optimal_coefficient is None
            return trainer.coefficient if is_number else trainer.coefficients
        coefficient: float | str | OptimalCoefficient = assumed
        is_of_svrg = self.criterion.stage is Stage.OFF or self.criterion.must_measure(
            self._run.position.epoch
        )
        if is_of_svrg and self._coefficient is not None:
            progress = schedule_progress(self._run, extra_batches=1)
            coefficient = coefficient_at(self._coefficient, progress)
        return coefficient if isinstance(coefficient, float) else moments.optimal_coefficients()


def average_if_constant(
    points: Sequence[float], ratios: Sequence[float], at_snapshot: float
) -> float:
    """Return the average ratio from the snapshot to the end of the epoch, if it stays constant.

    The ratio is interpolated linearly between the measurements, and constant after the last one. It
    usually grows with the distance from the snapshot, so this is a lower bound.

    Parameters
    ----------
    points : sequence of float
        The fractions of the epoch at which the ratio was measured: in (0, 1], in increasing order.
    ratios : sequence of float
        The ratio at each point.
    at_snapshot : float
        The ratio at 0, where both gradients are equal: (1 - coefficient) squared.
    """
    x, y = [0.0, *points], [at_snapshot, *ratios]
    trapezoids = sum((x[i] - x[i - 1]) * (y[i] + y[i - 1]) / 2 for i in range(1, len(x)))
    return trapezoids + (1 - x[-1]) * y[-1]


def average_if_growing(fraction_done: float, ratio: float, at_snapshot: float) -> float:
    """Return the average ratio over the epoch, if it grows in proportion to the progress.

    The ratio usually saturates, so this is an upper bound.

    Parameters
    ----------
    fraction_done : float
        The fraction of the epoch at which the ratio was measured, in (0, 1].
    ratio : float
        The ratio at that point.
    at_snapshot : float
        The ratio at the snapshot.
    """
    return at_snapshot + (ratio - at_snapshot) / (2 * fraction_done)


def _random_batches(
    data: TrainingData, number: int, sequence: np.random.SeedSequence, run: Run
) -> Iterator[IndexedBatch]:
    """Yield `number` random batches, or the first ones of data without an index."""
    length = data.num_batches
    if not data.is_indexed or length is None:
        yield from enumerate(data.first_batches(number))
        return
    # A smaller batch varies more than the others.
    is_last_smaller = _num_samples(data.batch(length - 1), run) < _num_samples(data.batch(0), run)
    candidates = length - (is_last_smaller and length > 2)
    order = np.random.Generator(np.random.PCG64(sequence)).permutation(candidates)
    for index in order[:number].tolist():
        yield index, data.batch(index)


def _num_samples(batch: object, run: Run) -> int:
    """Return the number of samples of a batch, on all workers."""
    data = next(iter(tree_leaves(batch)), None)
    samples = data.shape[run.batch_axis] if isinstance(data, (NDArray, np.ndarray)) else 0
    return int(run.workers.all_sum(samples, "samples of a batch"))
