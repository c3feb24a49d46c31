"""SnapshotSchedule: the epochs in which SVRG takes a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from gluon_svrg.arguments import check_integer


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
