"""SnapshotEpochs: in which epochs a snapshot is taken."""

from __future__ import annotations

from typing import NamedTuple

from gluon_svrg.arguments import check_integer


class SnapshotEpochs(NamedTuple):
    """The epochs of a run in which SVRG takes a snapshot.

    Attributes
    ----------
    update_freq : int
        A snapshot every `update_freq` epochs,
    start_epoch : int
        from this one on (the first is 0),
    stop_epoch : int or None
        and before this one.
    """

    update_freq: int
    start_epoch: int
    stop_epoch: int | None

    def checked(self) -> SnapshotEpochs:
        """Return it; raise TypeError or ValueError if a number is none that SVRGHandler takes."""
        update_freq, start_epoch, stop_epoch = self
        check_integer(
            "update_freq", update_freq, 1, "the full gradient is computed every update_freq epochs"
        )
        check_integer("start_epoch", start_epoch, 0, "SVRG is on from epoch start_epoch on")
        if stop_epoch is None:
            return self
        check_integer("stop_epoch", stop_epoch, 0, "SVRG is off from epoch stop_epoch on")
        if stop_epoch <= start_epoch:
            raise ValueError(
                f"stop_epoch must be greater than start_epoch, got {stop_epoch} and "
                f"{start_epoch}: SVRG would never be on; leave the handler out for that"
            )
        return self

    def is_over(self, epoch: int) -> bool:
        """Return whether SVRG has ended by `epoch`."""
        return self.stop_epoch is not None and epoch >= self.stop_epoch

    def has_snapshot(self, epoch: int) -> bool:
        """Return whether a snapshot is taken at the begin of `epoch`."""
        is_on = epoch >= self.start_epoch and not self.is_over(epoch)
        return is_on and (epoch - self.start_epoch) % self.update_freq == 0

    def outlives(self, epoch: int) -> bool:
        """Return whether a snapshot that is there before `epoch` is still used in it."""
        return not (self.has_snapshot(epoch) or self.is_over(epoch))

    def last_snapshot(self, epoch: int) -> int:
        """Return the epoch of the last snapshot by `epoch`."""
        return epoch - (epoch - self.start_epoch) % self.update_freq

    def number_before(self, epoch: int) -> int:
        """Return how many snapshots are taken before `epoch`."""
        end = epoch if self.stop_epoch is None else min(epoch, self.stop_epoch)
        return max(0, -((self.start_epoch - end) // self.update_freq))
