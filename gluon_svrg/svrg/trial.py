"""Trial: the plain part of an epoch in which it is measured whether the first snapshot will pay."""

from __future__ import annotations

from collections.abc import Sequence

from gluon_svrg.events import State

# Percent of an epoch: a third of it is enough to decide by, and leaves the most of it.
_LATEST = 100 / 3
# The share of an epoch's batches that one measurement takes at most, and all of them until it is
# known that SVRG does not pay: at two gradients a batch 0.3 epochs, 3 % of ten. So there are six,
# two in the trial and four in the epoch after it, and fewer under 120 batches an epoch.
_SHARE, _SHARE_OF_ALL = 0.025, 0.15
# Of two batches the ratio scatters by a factor of four: 0.06 may look like 0.4.
_LEAST_BATCHES = 3
CLEARLY = 0.5
"""To begin, the ratio is at most the bound times this: three batches say it to a factor of up to
three only, a full pass that is made in vain costs an epoch, and at the bound nothing is gained."""


class Trial:
    r"""Whether a run's first snapshot waits until it is known to pay.

    A full pass costs as many gradients as an epoch, and the variance ratio does not depend on the
    full gradient, which is a constant. So the epoch of the first snapshot begins plain, with a copy
    of the weights in its place, and the ratio :math:`r(p)` is measured when a part *p* of the epoch
    is done. It rises with the distance from the copy, and its average over the epoch decides, of
    which two things are known:

    - it is not less than if the ratio stays from here on
      (:func:`gluon_svrg.svrg.variance.average_ratio`): above the bound, SVRG stays off;
    - it is not more than if the ratio grows on in proportion to the way gone, :math:`r(p) / (2 p)`
      (:func:`gluon_svrg.svrg.variance.greatest_average`), since what grows so first saturates
      later: under the bound, the snapshot is taken now.

    In between the next point decides; at the last one, a third of the epoch, whether the first
    figure is under half the bound (`CLEARLY`). To wait costs nothing: the epoch is plain meanwhile.

    Parameters
    ----------
    is_wanted : bool
        Whether there is a bound; without, the first snapshot waits for nothing.

    Attributes
    ----------
    epoch : int or None
        The epoch of the trial; None before it.
    is_over : bool
        Whether snapshots are taken at the begin of an epoch again, as if there had been no trial.
    is_due : bool
        Whether the ratio is small enough, and the snapshot is still to be taken.
    part : float
        How much of `epoch` was done when it was taken, in [0, 1).
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self.reset()

    def reset(self) -> None:
        """Begin a new run."""
        self.epoch: int | None = None
        self.is_over = not self._is_wanted
        self.is_due = False
        self.part = 0.0

    @property
    def is_there(self) -> bool:
        """Whether this run has had a trial, or will have one."""
        return self.epoch is not None or not self.is_over

    def begin(self, epoch: int) -> None:
        """Begin, with this epoch."""
        self.epoch = epoch

    def is_under_way(self, epoch: int) -> bool:
        """Return whether it is measured in this epoch whether to begin."""
        return self.epoch == epoch and not (self.is_over or self.is_due)

    def is_left_over(self, epoch: int) -> bool:
        """Return whether an earlier epoch has left the snapshot to this one.

        It was cut short before the last point, or that was at its end.
        """
        return self.epoch is not None and self.epoch < epoch and not self.is_over

    def part_before_snapshot(self, epoch: int) -> float:
        """Return how much of the epoch was done when its snapshot was taken: 0 but in the trial."""
        return self.part if epoch == self.epoch else 0.0

    def decide(self, ratio: float, greatest: float, above: float, is_last: bool) -> bool | None:
        """Return whether SVRG pays; None if that is not known yet.

        Parameters
        ----------
        ratio, greatest : float
            The least and the greatest that its average over the epoch may be.
        above : float
            The bound; half of it at the last point.
        is_last : bool
            Whether this is the last point.
        """
        pays: bool | None = None
        if ratio > above:
            pays = False
        elif greatest <= above:
            pays = True
        elif is_last:
            pays = not ratio > CLEARLY * above  # NaN says nothing against it
        self.is_due, self.is_over = pays is True, pays is False
        return pays

    def end(self, part: float) -> None:
        """Note that the snapshot is taken, when that part of the epoch under way is done."""
        self.is_due, self.is_over, self.part = False, True, part

    def state_dict(self) -> State:
        """Return how far it is."""
        return {
            "epoch": self.epoch,
            "is_over": self.is_over,
            "is_due": self.is_due,
            "part": self.part,
        }

    def load_state_dict(self, state: State | None) -> None:
        """Continue from what :meth:`state_dict` returned; None of a version without a trial."""
        self.reset()
        if state is None:
            self.is_over = True
            return
        self.epoch, self.part = state["epoch"], state["part"]
        self.is_over, self.is_due = state["is_over"], state["is_due"]


def points_to_ask(
    at: Sequence[float], batches: int, length: int, *, is_trial: bool
) -> tuple[float, ...]:
    """Return the points at which a plain epoch is measured before it is known that SVRG pays.

    As many as the share of the batches allows that may be measured until then, but one in the trial
    and one in the epoch after it, where it is measured again.

    Parameters
    ----------
    at : sequence of float
        Those of a VarianceHandler, in percent, rising.
    batches, length : int
        As for :func:`batches_of_measurement`.
    is_trial : bool
        Whether the epoch is that of the trial. There they are the last ones in the first third, at
        most two; in the other epoch one in the first half, then the last, which say most.
    """
    number = max(2, int(_SHARE_OF_ALL * length / batches_of_measurement(batches, length)))
    of_trial = min(2, number // 2)
    if is_trial:
        return tuple([point for point in at if point <= _LATEST][-of_trial:] or at[:1])
    first = [point for point in at if point <= 50][-1:] or list(at[:1])
    rest = [point for point in reversed(at) if point not in first]
    return tuple(sorted([*first, *rest][: number - of_trial]))


def batches_of_measurement(batches: int, length: int) -> int:
    """Return on how many batches a plain epoch is measured, before it is known that SVRG pays.

    Parameters
    ----------
    batches : int
        How many were asked for.
    length : int
        How many the epoch has.
    """
    return min(batches, max(_LEAST_BATCHES, int(_SHARE * length)))
