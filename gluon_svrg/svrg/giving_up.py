"""GivingUp: when SVRG switches itself off, and when it comes back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.events import State
from gluon_svrg.svrg.trial import CLEARLY, Trial

if TYPE_CHECKING:
    from gluon_svrg.events import Run


class GivingUp:
    """Decides by the measured variance ratio whether SVRG stays on.

    Decided by the average over the epoch, not by a point of it, with the last value for what is to
    come, so that the decision comes as early as it is certain. In its first epoch a run moves far,
    whatever the network, and the ratio is great (0.65 for a softmax regression that stands at 0.05
    from the second epoch on). So SVRG is switched off for good only if the ratio is too great in
    the epoch after that as well, in which it is measured without a full pass. Nor is there one
    before the first decision: see :class:`gluon_svrg.svrg.trial.Trial`. To be switched on, the
    ratio has to be at most half the bound; what is on stays on up to the bound.

    Parameters
    ----------
    above, look_again_every
        As `give_up_above` and `look_again_every` of :class:`gluon_svrg.SVRGHandler`, and checked
        as that says.
    stop_epoch : int, optional
        The first epoch without SVRG, whatever is measured.

    Attributes
    ----------
    epoch : int or None
        The epoch in which SVRG was switched off; None while it was not.
    times : int
        How often it was.
    is_metered : bool
        Whether a VarianceHandler measures in this run.
    trial : Trial
        What is measured before the first snapshot.
    """

    def __init__(
        self, above: float | None, look_again_every: int | None, stop_epoch: int | None = None
    ) -> None:
        if above is not None:
            check_number(
                "give_up_above",
                above,
                "SVRG is switched off if the variance ratio is greater, and pays under about 1/3",
                least=0,
                above=True,
            )
        if look_again_every is not None:
            check_integer(
                "look_again_every",
                look_again_every,
                1,
                "the ratio is measured again every that many epochs",
            )
            if above is None:
                raise ValueError(
                    f"look_again_every={look_again_every} needs give_up_above: nothing is switched "
                    "off without it"
                )
        self.above = above
        self.look_again_every = look_again_every
        self._stop_epoch = stop_epoch
        self.trial = Trial(above is not None)
        self.reset()

    def reset(self) -> None:
        """Begin a new run."""
        self.epoch: int | None = None
        self.times = 0
        self._failed_look: int | None = None
        self.is_metered = False
        self.trial.reset()

    def check(self, estimator: object) -> None:
        """Raise ValueError if nothing measures."""
        if self.above is not None and not self.is_metered:
            raise ValueError(
                f"give_up_above={self.above!r} needs a VarianceHandler, which "
                f"{type(estimator).__module__}.{type(estimator).__name__} does not have: use "
                "gluon_svrg.Estimator"
            )

    def is_looking_again(self, epoch: int) -> bool:
        """Return whether to measure once more in this epoch, which is one without SVRG."""
        if self.epoch is None or epoch <= self.epoch or epoch == self._failed_look:
            return False
        # From the last epoch before stop_epoch on, nothing could come of it.
        if self._stop_epoch is not None and epoch + 1 >= self._stop_epoch:
            return False
        since, every = epoch - self.epoch, self.look_again_every
        return (since == 1 and self.times == 1) or (every is not None and since % every == 0)

    def is_asking(self, epoch: int) -> bool:
        """Return whether it is measured in this epoch, a plain one, whether to begin."""
        return self.trial.is_under_way(epoch) or self.is_looking_again(epoch)

    def decide(
        self,
        estimator: Run,
        is_on: bool,
        ratio: float,
        at: float,
        epoch: int,
        is_last: bool,
        greatest: float = math.inf,
    ) -> bool:
        """Return whether SVRG is on from here on, or may be from the next epoch on.

        Where the trial ends well, the snapshot is due: ``trial.is_due``.

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
        greatest : float
            The most that this average may still become.
        """
        if self.above is None:
            return is_on
        measured = (
            f"epoch {epoch} ({100 * at:.3g} % done): the variance of the corrected gradient is "
            f"{ratio:.3g} times the plain one's, averaged over the epoch"
        )
        if self.trial.is_under_way(epoch):
            pays = self.trial.decide(ratio, greatest, self.above, is_last)
            if pays:
                estimator.logger.info(
                    "SVRG is switched on after %s, under give_up_above=%.3g", measured, self.above
                )
            elif pays is False:
                self._give_up(estimator, epoch, f"is not switched on in {measured}", ratio)
            return pays is True
        if is_on and ratio > self.above:
            self._give_up(estimator, epoch, f"is switched off in {measured}", ratio)
            return False
        if not self.is_looking_again(epoch):
            return is_on
        if ratio > (CLEARLY if is_last else 1) * self.above:
            self._failed_look = epoch  # no need to measure at the later points
            estimator.logger.info("SVRG stays off after %s, %s", measured, self._against(ratio))
        elif is_last:
            self.epoch = None
            estimator.logger.info(
                "SVRG is switched on again, with its next snapshot, after %s, under "
                "give_up_above=%.3g",
                measured,
                self.above,
            )
            return True
        return is_on

    def _give_up(self, estimator: Run, epoch: int, what: str, ratio: float) -> None:
        self.epoch = epoch
        self.times += 1
        every = 1 if self.times == 1 else self.look_again_every
        then = "" if every is None else f"; it is measured again in epoch {epoch + every}"
        estimator.logger.info(
            "SVRG %s, %s. The plain optimizer continues%s", what, self._against(ratio), then
        )

    def _against(self, ratio: float) -> str:
        """Return what speaks against being on."""
        assert self.above is not None
        if ratio > self.above:
            return f"above give_up_above={self.above:.3g}"
        return f"not clearly under give_up_above={self.above:.3g}: it is more than half of it"

    def state_dict(self) -> State:
        """Return what has been decided; without a trial, as before there were any."""
        trial = {"trial": self.trial.state_dict()} if self.trial.is_there else {}
        return {
            "epoch": self.epoch,
            "times": self.times,
            "failed_look": self._failed_look,
            **trial,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.epoch, self.times = state["epoch"], state["times"]
        self._failed_look = state["failed_look"]
        self.trial.load_state_dict(state.get("trial"))
