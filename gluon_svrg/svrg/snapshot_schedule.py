"""SnapshotSchedule and PayoffCriterion: when SVRG takes snapshots, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.events import State

# To switch SVRG on, the ratio must be at most this part of the bound. Three batches give the ratio
# to a factor of three only, a full pass that turns out to be useless costs an epoch, and at the
# bound itself nothing is gained.
_SAFETY_FACTOR = 0.5
# The trial is over when this percentage of the epoch is done: late enough to decide, and most of
# the epoch is left.
_TRIAL_END_PERCENT = 100 / 3
# The part of an epoch's batches that one measurement uses, and that all measurements use until the
# decision: at two gradients per batch 0.3 epochs, 3 % of a run of ten. That is six measurements,
# two in the trial and four in the epoch after it, and fewer if an epoch has under 120 batches.
_MAX_COST_PER_MEASUREMENT, _MAX_TRIAL_COST = 0.025, 0.15
# From two batches the ratio scatters by a factor of four: 0.06 may look like 0.4.
_MIN_BATCHES = 3


@dataclass(frozen=True)
class SnapshotSchedule:
    """The epochs in which SVRG takes a snapshot.

    Parameters
    ----------
    update_freq, start_epoch, stop_epoch
        As for :class:`gluon_svrg.SVRGHandler`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of its range.
    """

    update_freq: int
    start_epoch: int = 0
    stop_epoch: int | None = None

    def __post_init__(self) -> None:
        check_integer(
            "update_freq",
            self.update_freq,
            1,
            "the full gradient is computed every update_freq epochs",
        )
        check_integer("start_epoch", self.start_epoch, 0, "SVRG is on from epoch start_epoch on")
        if self.stop_epoch is None:
            return
        check_integer("stop_epoch", self.stop_epoch, 0, "SVRG is off from epoch stop_epoch on")
        if self.stop_epoch <= self.start_epoch:
            raise ValueError(
                f"stop_epoch must be greater than start_epoch, got {self.stop_epoch} and "
                f"{self.start_epoch}: SVRG would never be on; leave the handler out for that"
            )

    def is_over(self, epoch: int) -> bool:
        """Return whether SVRG has ended before `epoch`."""
        return self.stop_epoch is not None and epoch >= self.stop_epoch

    def is_snapshot_epoch(self, epoch: int) -> bool:
        """Return whether `epoch` begins with a snapshot."""
        is_on = epoch >= self.start_epoch and not self.is_over(epoch)
        return is_on and (epoch - self.start_epoch) % self.update_freq == 0

    def keeps_snapshot(self, epoch: int) -> bool:
        """Return whether `epoch` uses the snapshot of an earlier epoch."""
        return not (self.is_snapshot_epoch(epoch) or self.is_over(epoch))

    def last_snapshot_epoch(self, epoch: int) -> int:
        """Return the epoch of the last snapshot up to `epoch`."""
        return epoch - (epoch - self.start_epoch) % self.update_freq

    def num_snapshots_before(self, epoch: int) -> int:
        """Return how many snapshots are taken before `epoch`."""
        end = epoch if self.stop_epoch is None else min(epoch, self.stop_epoch)
        return max(0, -((self.start_epoch - end) // self.update_freq))


class Phase(Enum):
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
        The average if the ratio stays as it is (:func:`average_if_constant`).
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
    """What follows from a measurement; the value is its text in the log."""

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

    - a lower one, if the ratio stays as it is from here on: if that is above `max_ratio`, SVRG is
      not switched on;
    - an upper one, if the ratio continues to grow in proportion to the progress,
      :math:`r(p) / (2 p)`, since it saturates later: if that is not above `max_ratio`, the snapshot
      is taken now.

    In between, the next measurement decides. At the last one, after a third of the epoch, the lower
    bound must be at most half of `max_ratio`. The wait costs nothing: the epoch is plain meanwhile.

    *While SVRG is on* it is switched off as soon as the lower bound is above `max_ratio`.

    *After it was switched off* it is measured once more in the next epoch, without a full pass, and
    then every `recheck_every` epochs. The first epoch moves the weights far, whatever the network,
    and its ratio is large (0.65 for a softmax regression whose ratio is 0.05 from the second epoch
    on). To be switched on again, the ratio must be at most half of `max_ratio`.

    Parameters
    ----------
    max_ratio, recheck_every
        `max_variance_ratio` and `recheck_every_n_epochs` of :class:`gluon_svrg.SVRGHandler`; error
        messages use those names.
    stop_epoch : int, optional
        The first epoch without SVRG, whatever is measured.

    Attributes
    ----------
    phase : Phase
        What SVRG does at present.
    off_since : int or None
        The epoch in which SVRG was switched off; None unless it is off.
    times_off : int
        How often it was switched off.
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
        self.phase = Phase.SCHEDULED if self.max_ratio is None else Phase.WAITING
        self.off_since: int | None = None
        self.times_off = 0
        self.trial_epoch: int | None = None
        self.snapshot_fraction = 0.0
        self._failed_recheck: int | None = None

    def start_trial(self, epoch: int) -> None:
        """Measure in this plain epoch whether the first snapshot will pay."""
        self.phase, self.trial_epoch = Phase.TRIAL, epoch

    def is_in_trial(self, epoch: int) -> bool:
        """Return whether the trial is in this epoch, and has not decided yet."""
        return self.phase is Phase.TRIAL and self.trial_epoch == epoch

    def is_snapshot_overdue(self, epoch: int) -> bool:
        """Return whether the trial's epoch has ended without its snapshot, before `epoch`.

        It was cut short, or the last measurement was at its end.
        """
        is_open = self.phase in (Phase.TRIAL, Phase.DUE)
        return is_open and self.trial_epoch is not None and self.trial_epoch < epoch

    def is_recheck(self, epoch: int) -> bool:
        """Return whether this epoch, without SVRG, is measured to switch SVRG on again."""
        if self.off_since is None or epoch <= self.off_since or epoch == self._failed_recheck:
            return False
        # From the last epoch before stop_epoch on, SVRG could not begin again.
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
        """Return at which percentages of `epoch` to measure, and on how many batches.

        A plain epoch that is measured for a decision must be cheap. The trial has at most two
        measurements, the last ones in the first third of the epoch. The epoch after it has one in
        the first half and then the last ones, which say most. Each has one at least.

        Parameters
        ----------
        at : sequence of float
            The percentages of a VarianceHandler, in increasing order.
        batches : int
            The number of batches of one measurement that was asked for.
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

        A ratio that is NaN never speaks against SVRG: the full pass will report what is wrong.

        Parameters
        ----------
        ratio : RatioBounds
            What was measured.
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
                self.phase = Phase.DUE
                return Decision.SWITCHED_ON
        elif is_on and is_above:
            self._switch_off(ratio.epoch)
            return Decision.SWITCHED_OFF
        elif self.is_recheck(ratio.epoch):
            if is_above or is_unclear:
                self._failed_recheck = ratio.epoch  # later measurements are not needed
                return Decision.STAYS_OFF
            if ratio.is_last:
                self.phase, self.off_since = Phase.SCHEDULED, None
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
        if self.phase in (Phase.TRIAL, Phase.DUE):
            self.phase, self.snapshot_fraction = Phase.SCHEDULED, fraction_done

    def fraction_before_snapshot(self, epoch: int) -> float:
        """Return how much of `epoch` was done when its snapshot was taken, in the trial; else 0."""
        return self.snapshot_fraction if epoch == self.trial_epoch else 0.0

    def _switch_off(self, epoch: int) -> None:
        self.phase, self.off_since = Phase.OFF, epoch
        self.times_off += 1

    def state_dict(self) -> State:
        """Return the decisions so far."""
        state: State = {
            "epoch": self.off_since,
            "times": self.times_off,
            "failed_look": self._failed_recheck,
        }
        if self.trial_epoch is not None or self.phase is Phase.WAITING:
            state["trial"] = {
                "epoch": self.trial_epoch,
                "is_over": self.phase in (Phase.SCHEDULED, Phase.OFF),
                "is_due": self.phase is Phase.DUE,
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
            self.phase = Phase.OFF
        elif trial["is_over"]:
            self.phase = Phase.SCHEDULED
        elif trial["is_due"]:
            self.phase = Phase.DUE
        else:
            self.phase = Phase.WAITING if self.trial_epoch is None else Phase.TRIAL


def average_if_constant(
    points: Sequence[float], ratios: Sequence[float], at_snapshot: float
) -> float:
    """Return the average ratio from the snapshot to the end of the epoch, if it stays constant.

    Straight lines connect the measurements, and the last ratio holds from there on. The ratio grows
    with the distance from the snapshot as a rule, so this is a lower bound.

    Parameters
    ----------
    points : sequence of float
        The fractions of the epoch at which it was measured: in (0, 1], in increasing order.
    ratios : sequence of float
        The ratio at each.
    at_snapshot : float
        The ratio at 0, where both gradients are the same: (1 - coefficient) squared.
    """
    x, y = [0.0, *points], [at_snapshot, *ratios]
    trapezoids = sum((x[i] - x[i - 1]) * (y[i] + y[i - 1]) / 2 for i in range(1, len(x)))
    return trapezoids + (1 - x[-1]) * y[-1]


def average_if_growing(fraction_done: float, ratio: float, at_snapshot: float) -> float:
    """Return the average ratio over the epoch, if it grows in proportion to the progress.

    It saturates as a rule, so this is an upper bound.

    Parameters
    ----------
    fraction_done : float
        The fraction of the epoch at which it was measured, in (0, 1].
    ratio : float
        The ratio there.
    at_snapshot : float
        The ratio at the snapshot.
    """
    return at_snapshot + (ratio - at_snapshot) / (2 * fraction_done)
