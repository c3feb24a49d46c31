"""FullPass: once over all batches at the snapshot, and what can break it off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gluon_svrg.arrays.nested import leaves_of
from gluon_svrg.arrays.waiting import wait_for
from gluon_svrg.events import Interrupted
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.randomness import MaskLock
from gluon_svrg.svrg.snapshot import Backward, Snapshot
from gluon_svrg.svrg.table import GradientTable
from tqdm.auto import tqdm

Numbered = tuple[int, object]
"""A batch with its index."""


class FullPass(NamedTuple):
    """The pass over all batches that gives the full gradient.

    Attributes
    ----------
    snapshot, masks : Snapshot, MaskLock
        Where the gradients are taken, and the random numbers of each batch.
    has_bar : bool
        Whether it shows a bar; only ever on a terminal.
    is_cancelled : callable
        Is asked before each batch: whether to break the pass off.
    """

    snapshot: Snapshot
    masks: MaskLock
    has_bar: bool
    is_cancelled: Callable[[], bool]

    def over(
        self,
        batches: Iterator[Numbered],
        number: int | None,
        backward_at: Callable[[int], Backward],
        table: GradientTable | None,
        scale: float | None,
        watches: bool,
    ) -> FullGradient:
        """Return the full gradient; fill the table if there is one.

        Parameters
        ----------
        batches
            All batches, in the order of their index.
        number
            How many, if that is known.
        backward_at
            From the index of a batch to its pass, as for :meth:`Snapshot.gradient`.
        table
            What keeps the gradients.
        scale
            What the losses are multiplied by.
        watches
            Whether to find out with the first batch if the network draws random numbers.

        Raises
        ------
        Interrupted
            If `is_cancelled` says so.
        """
        last: object = None

        def masked(numbered: Numbered) -> object:
            nonlocal last
            index, batch = numbered
            backward = backward_at(index)
            if index == 0 and watches:
                return self.masks.watch(lambda: backward(batch), self.snapshot.contexts)
            self.masks.lock(index)
            losses = backward(batch)
            # Else all batches are under way before the first is computed.
            wait_for(last)
            last = losses
            return losses

        def keep(numbered: Numbered, gradient: BatchGradient) -> None:
            if table is not None:
                table.append(gradient._replace(loss_scale=scale), leaves_of(numbered[1]))

        with tqdm(
            self._unless_cancelled(batches),
            total=number,
            desc="full gradient",
            unit="batch",
            leave=False,
            disable=None if self.has_bar else True,  # None: unless on a terminal
        ) as shown:
            full_gradient = self.snapshot.full_gradient(masked, shown, keep)
        return full_gradient._replace(loss_scale=scale)

    def _unless_cancelled(self, batches: Iterator[Numbered]) -> Iterator[Numbered]:
        for batch in batches:
            if self.is_cancelled():
                raise Interrupted
            yield batch
