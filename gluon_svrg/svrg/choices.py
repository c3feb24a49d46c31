"""What an Interval does about table and data lock: as asked, or by what the data promise."""

from __future__ import annotations

import logging
import math
import numbers

from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.svrg.row_correction import check_sparse_correction
from gluon_svrg.svrg.table import GradientTable

_NO_TABLE = "SVRG recomputes the snapshot gradient of each batch (no table)"


class TableChoice:
    """Whether the gradients of the full pass are kept.

    Parameters
    ----------
    gradient_table, table_memory
        As for :class:`gluon_svrg.svrg.Interval`.
    is_locked : bool
        Whether the data are locked, if they can be: else they do not repeat.
    logger : logging.Logger
        Is told what was decided, once.

    Attributes
    ----------
    said : str
        What was said last.
    """

    def __init__(
        self,
        gradient_table: str | bool,
        table_memory: float,
        is_locked: bool,
        logger: logging.Logger,
    ) -> None:
        self.said = ""
        self._has_overflowed = False
        self._gradient_table = gradient_table
        self._table_memory = table_memory
        self._is_locked = is_locked
        self._logger = logger

    def new_table(
        self, data: TrainingData, nbytes: int, has_rows: bool = False
    ) -> GradientTable | None:
        """Return an empty table for `data`, or None; say why if that has not been said.

        Parameters
        ----------
        data : TrainingData
            The batches.
        nbytes : int
            The size of one gradient, on all devices.
        has_rows : bool
            Whether row_sparse gradients come on top, whose sizes the full pass will show.

        Raises
        ------
        ValueError
            If a table is required, and the batches may not repeat.
        """
        if self._has_overflowed:
            return None
        is_made, reason = self._decide(data, nbytes)
        if has_rows and is_made:
            reason += " without the rows of row_sparse gradients"
        self._say(
            f"SVRG keeps the gradients of the full pass: {reason}"
            if is_made
            else f"{_NO_TABLE}: {reason}"
        )
        is_limited = has_rows and self._gradient_table == "auto"
        memory = self._table_memory if is_limited else math.inf
        return GradientTable(not data.keeps_batches, memory) if is_made else None

    def kept(self, table: GradientTable | None) -> GradientTable | None:
        """Return the table after the full pass; None, and say so, if it took too much memory."""
        if table is None or not table.has_overflowed:
            return table
        self._has_overflowed = True
        limit = self._table_memory / 2**20
        self._say(f"{_NO_TABLE}: with their rows they take more than table_memory={limit:.1f} MiB")
        return None

    def _say(self, decision: str) -> None:
        if decision != self.said:
            self.said = decision
            self._logger.info(decision)

    def _decide(self, data: TrainingData, nbytes: int) -> tuple[bool, str]:
        if self._gradient_table is False:
            return False, "gradient_table=False"
        why_not = data.why_it_may_not_repeat() if self._is_locked else "lock='off'"
        if why_not and self._gradient_table is True:
            raise ValueError(
                f"gradient_table=True needs batches that repeat exactly, but {why_not}: give a "
                "list of batches or a gluon_svrg.data.ArrayLoader, or gradient_table='auto'"
            )
        if why_not or data.num_batches is None:
            return False, why_not or "the number of batches is not known"
        total = nbytes * data.num_batches
        size = f"those of {data.num_batches} batches take {total / 2**20:.1f} MiB"
        if self._gradient_table == "auto" and total > self._table_memory:
            return False, f"{size}, more than table_memory={self._table_memory / 2**20:.1f} MiB"
        return True, size


class DataLock:
    """Whether each sample has one augmentation from one full pass to the next.

    Parameters
    ----------
    policy : 'auto', 'require' or 'off'
        As `lock` of :class:`gluon_svrg.SVRGHandler`; with 'off' nothing is locked but for the full
        pass itself.
    logger : logging.Logger
        Is told if the data cannot be locked.
    """

    def __init__(self, policy: str, logger: logging.Logger) -> None:
        self._policy = policy
        self._logger = logger
        self._told_of: TrainingData | None = None

    def lock(self, data: TrainingData, draw: int) -> None:
        """Lock `data` to this draw, or say, once, that it cannot be locked.

        Raises
        ------
        ValueError
            If the lock is required.
        """
        is_told, self._told_of = data is self._told_of, data
        if data.can_lock:
            data.lock(draw)
            return
        reason = "" if self._policy == "off" or is_told else data.why_not_locked()
        if reason and self._policy == "require":
            raise ValueError(
                f"lock='require', but train_data is not locked: {reason}; or give lock='auto'"
            )
        if reason:
            self._logger.warning(
                "SVRG's train_data is not locked: %s. If a sample is augmented anew each time, the "
                "full gradient belongs to other samples than the batches do, so the corrected "
                "gradient is biased and a gradient table would raise its variance",
                reason,
            )

    def expect(self, data: TrainingData, draw: int) -> None:
        """Lock `data` already before the full pass.

        Raises
        ------
        ValueError
            As :meth:`lock`.
        """
        if self._policy != "off":
            self.lock(data, draw)

    def after_pass(self, data: TrainingData) -> None:
        """Let `data` draw anew after the full pass, if nothing is to be locked."""
        if self._policy == "off":
            data.unlock()


def check_choices(
    gradient_table: object, table_memory: object, lock: object, sparse_correction: object = "exact"
) -> None:
    """Raise TypeError or ValueError if one of these arguments is none that SVRG takes."""
    check_sparse_correction(sparse_correction)
    if gradient_table not in ("auto", False, True):
        raise ValueError(f"gradient_table must be 'auto' or a bool, got {gradient_table!r}")
    message = (
        f"table_memory must be a number of bytes, got {table_memory!r}: the largest gradient table "
        "that 'auto' makes"
    )
    if isinstance(table_memory, bool) or not isinstance(table_memory, numbers.Real):
        raise TypeError(message)
    if not float(table_memory) >= 0:
        raise ValueError(message)
    if lock not in ("auto", "require", "off"):
        raise ValueError(f"lock must be 'auto', 'require' or 'off', got {lock!r}")
