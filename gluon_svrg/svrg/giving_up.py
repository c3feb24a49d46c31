"""GivingUp: when SVRG steps aside, and when it comes back."""

from __future__ import annotations

from typing import Any

from gluon_svrg.arguments import check_integer, check_number


class GivingUp:
    """Decides by the measured variance ratio whether SVRG stays on.

    In its first epoch a run moves far, whatever the network, and the ratio is great. So SVRG is
    given up for good only if the ratio is too great in the epoch after that as well, where it is
    measured without a full pass.

    Parameters
    ----------
    above, look_again_every
        As `give_up_above` and `look_again_every` of :class:`gluon_svrg.SVRGHandler`, and checked
        as that says.

    Attributes
    ----------
    epoch : int or None
        The epoch in which SVRG was given up; None while it was not.
    times : int
        How often it was.
    is_metered : bool
        Whether a VarianceHandler measures in this run.
    """

    def __init__(self, above: float | None, look_again_every: int | None) -> None:
        if above is not None:
            check_number(
                "give_up_above",
                above,
                "SVRG is given up where the variance ratio is greater, and pays under about 1/3",
                least=0,
                above=True,
            )
        if look_again_every is not None:
            check_integer(
                "look_again_every",
                look_again_every,
                1,
                "the ratio is measured again so many epochs on",
            )
            if above is None:
                raise ValueError(
                    f"look_again_every={look_again_every} needs give_up_above: nothing is given up "
                    "without it"
                )
        self.above = above
        self.look_again_every = look_again_every
        self.reset()

    def reset(self) -> None:
        """Begin a new run."""
        self.epoch: int | None = None
        self.times = 0
        self._failed_look: int | None = None
        self.is_metered = False

    def check(self, estimator: Any) -> None:
        """Raise ValueError where nothing measures."""
        if self.above is not None and not self.is_metered:
            raise ValueError(
                f"give_up_above={self.above!r} needs a VarianceHandler, which "
                f"{type(estimator).__module__}.{type(estimator).__name__} does not have: use "
                "gluon_svrg.Estimator"
            )

    def is_looking_again(self, epoch: int) -> bool:
        """Return whether to measure once more in this epoch, which is one after it gave up."""
        if self.epoch is None or epoch <= self.epoch or epoch == self._failed_look:
            return False
        since, every = epoch - self.epoch, self.look_again_every
        return (since == 1 and self.times == 1) or (every is not None and since % every == 0)

    def decide(
        self, estimator: Any, is_on: bool, ratio: float, at: float, epoch: int, is_last: bool
    ) -> bool:
        """Return whether SVRG is on from here on, or may be from the next epoch on.

        Parameters
        ----------
        estimator : Estimator
            Whose logger is told.
        is_on : bool
            Whether SVRG is on.
        ratio : float
            The variance ratio's average over this epoch, as far as it is known.
        at : float
            How much of the epoch is done, in (0, 1].
        epoch : int
            Its number.
        is_last : bool
            Whether nothing more is measured in this epoch.
        """
        if self.above is None:
            return is_on
        measured = (
            f"epoch {epoch} ({100 * at:.3g} % done): the variance of the corrected gradient is "
            f"{ratio:.3g} times the plain one's, averaged over the epoch"
        )
        if is_on and ratio > self.above:
            self.epoch = epoch
            self.times += 1
            every = 1 if self.times == 1 else self.look_again_every
            then = "" if every is None else f"; SVRG looks again in epoch {epoch + every}"
            estimator.logger.info(
                "SVRG gives up in %s, and give_up_above=%.3g. The plain optimizer goes on%s",
                measured,
                self.above,
                then,
            )
            return False
        if not self.is_looking_again(epoch):
            return is_on
        if ratio > self.above:
            self._failed_look = epoch  # no need to measure at the later points
            estimator.logger.info(
                "SVRG stays off after %s, and give_up_above=%.3g", measured, self.above
            )
        elif is_last:
            self.epoch = None
            estimator.logger.info(
                "SVRG begins again, with its next snapshot, after %s, and give_up_above=%.3g",
                measured,
                self.above,
            )
            return True
        return is_on

    def state_dict(self) -> dict[str, Any]:
        """Return what has been decided."""
        return {"epoch": self.epoch, "times": self.times, "failed_look": self._failed_look}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self.epoch, self.times = state["epoch"], state["times"]
        self._failed_look = state["failed_look"]
