"""CheckpointHandler: writes checkpoints, and keeps the last and the best of them."""

from __future__ import annotations

import logging
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet import has_shape
from gluon_svrg.arguments import check_integer, check_periods
from gluon_svrg.checkpoint import folder as disk
from gluon_svrg.checkpoint.contents import about, capture
from gluon_svrg.checkpoint.first_worker import by_first
from gluon_svrg.checkpoint.folder import Checkpoint, Key
from gluon_svrg.checkpoint.folder_lock import FolderLock
from gluon_svrg.checkpoint.locate import HasCheckpoints, checkpoint_folders, is_in
from gluon_svrg.checkpoint.metrics import warn_of_what_is_left_out
from gluon_svrg.events import (
    BatchBegin,
    EvaluationEnd,
    EventHandler,
    ExceptionRaised,
    Order,
    RequiresHandlers,
    Run,
    SafePoint,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.files import make_folder
from gluon_svrg.handlers.random_state import RandomStateHandler
from gluon_svrg.handlers.signals import SignalHandler
from gluon_svrg.run.monitor import Monitor
from gluon_svrg.run.position import Position, require_estimator
from gluon_svrg.workers import Workers
from mxnet.gluon.contrib import estimator as mx_estimator


class CheckpointHandler(
    TrainBegin,
    BatchBegin,
    EvaluationEnd,
    SafePoint,
    TrainEnd,
    ExceptionRaised,
    RequiresHandlers,
    HasCheckpoints,
):
    """Writes checkpoints from which ``fit(..., resume='auto')`` continues, exact to the batch.

    A checkpoint holds all that the run depends on: parameters and auxiliary states, the
    optimizer's states and counts, SVRG's snapshot and full gradient, random states, the position
    in the data, metrics, history, and the states of all handlers that are
    :class:`gluon_svrg.events.Stateful`. It is written aside, flushed and renamed, so that there is
    never half a checkpoint; what is there is only removed when a newer one is. If it cannot be
    written (a full disk), the older ones stay, the log says so, and the run continues.

    Over several workers it is one checkpoint, which the first of them writes: nobody else needs the
    directory. It has what differs from worker to worker for each of them, so as many continue
    exactly; another number may go on from it, to rounding.

    Runs with this handler have a :class:`RandomStateHandler` and a :class:`SignalHandler`, too,
    unless they are given.

    Parameters
    ----------
    directory : str or path
        The folder of this run's checkpoints; made if it is not there.
    every_n_epochs : int or None
        A checkpoint every that many epochs.
    every_n_batches : int or None
        A checkpoint every that many batches, counted from the beginning of the run.
    monitor : str or EvalMetric, optional
        The figure by which the best checkpoints are chosen, as in the history:
        ``'validation accuracy'``. A checkpoint has a validation figure if its weights are those
        that were evaluated: if no batch was trained on in between.
    mode : 'auto', 'min' or 'max'
        Which value of it is better; 'auto' infers it from the name, or raises.
    keep_last : int or None
        How many of the newest checkpoints are kept; None: all.
    keep_best : int
        How many of the best are kept besides, if there is a `monitor`.
    priority : float
        Last, so that it writes what all handlers have become.

    Attributes
    ----------
    directory : Path
        As given.
    best : Path or None
        The best checkpoint that is there; of several workers, on the first one's disk.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of its range, or neither period is given.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        every_n_epochs: int | None = 1,
        every_n_batches: int | None = None,
        monitor: str | mx.metric.EvalMetric | None = None,
        *,
        mode: str = "auto",
        keep_last: int | None = 3,
        keep_best: int = 1,
        priority: float = Order.LAST,
    ) -> None:
        check_periods(every_n_epochs, every_n_batches, "a checkpoint")
        if keep_last is not None:
            check_integer("keep_last", keep_last, 1, "that many of the newest checkpoints are kept")
        check_integer("keep_best", keep_best, 0, "that many of the best are kept")
        if not isinstance(directory, str | PathLike):
            raise TypeError(
                f"directory must be a str or a path, got {directory!r}: the folder of the run's "
                "checkpoints"
            )
        self.directory = Path(directory).expanduser().absolute()
        self.every_n_epochs = every_n_epochs
        self.every_n_batches = every_n_batches
        self.monitor = None if monitor is None else Monitor(monitor, mode)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.priority = float(priority)
        self._failed: str | None = None
        self._is_evaluated = False  # whether no batch came after the last evaluation
        self._has_told = False
        self._lock = FolderLock(self.directory)
        self._gone_on_from: Checkpoint | None = None
        # The monitored values of what is in the directory.
        self._values: dict[Key, float | None] = {}

    @property
    def best(self) -> Path | None:
        """The best checkpoint that is there, by the monitored figure."""
        best = self._best_keys()
        return self.directory / best[0].name if best else None

    def required_handlers(self) -> list[type[EventHandler]]:
        """Return what lets a run be ended at a safe point, and its random numbers continue."""
        return [SignalHandler, RandomStateHandler]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Make sure that checkpoints can be written, and that none of another run is in the way."""
        require_estimator(self, estimator)
        if self.monitor is not None:
            self.monitor.check(estimator)
            self._check_can_be_evaluated(estimator)
        self._is_evaluated = self._has_told = False
        estimator.data.check_can_resume()
        if estimator.workers.is_first:
            warn_of_what_is_left_out(estimator)
        self._gone_on_from, self._failed = estimator.resumed_from, None
        known = by_first(
            estimator.workers, lambda: self._open(estimator), "the checkpoints' directory"
        )
        self._values = {Key(*key): value for key, value in known}

    def batch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Note that the weights will not be those of the last evaluation."""
        self._is_evaluated = False

    def evaluation_end(self, estimator: Run) -> None:
        """Note that the weights are evaluated."""
        self._is_evaluated = True

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint, if it is time for one or the run is to end."""
        position = estimator.position
        if estimator.stop_reason is None and not self._is_due(position):
            return
        is_begun = position.is_in_epoch and position.batch_in_epoch == 0
        key, workers = Key(position.batch, position.epoch, is_begun), estimator.workers
        if not all(has_shape(param) for param in estimator.net.collect_params().values()):
            if workers.is_first:
                estimator.logger.warning(
                    "no checkpoint %s is written: the network has not inferred its shapes yet",
                    key.name,
                )
            return
        self._forget_later_ones(estimator.resumed_from)
        if key in self._values:  # it is there already
            return
        value = None
        if self.monitor is not None and (self._is_evaluated or not self._is_of_evaluations()):
            value = self.monitor.read(estimator)
        elif self.monitor is not None and not position.is_in_epoch:
            self._tell_once(key, estimator)
        description = about(estimator)
        if self.monitor is not None:
            description["monitor"] = {"name": self.monitor.name, "value": value}
        try:
            files = capture(estimator)
        except FloatingPointError as e:
            if workers.is_first:
                estimator.logger.warning("no checkpoint %s is written: %s", key.name, e)
            return
        if workers.is_first and self._write(key, files, description, estimator.logger):
            self._values[key] = value
            self._remove_old(estimator.logger)
        self._share_values(workers)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Say once more that the last checkpoint could not be written."""
        self._lock.give_back()
        if self._failed:
            estimator.logger.warning(
                "the run has ended without its last checkpoint, %s", self._failed
            )

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let others write into the directory."""
        self._lock.give_back()

    def _is_of_evaluations(self) -> bool:
        return self.monitor is not None and self.monitor.name.startswith("validation ")

    def _tell_once(self, key: Key, estimator: Run) -> None:
        if estimator.workers.is_first and not self._has_told:
            assert self.monitor is not None
            estimator.logger.warning(
                "the checkpoint %s has no %r, because batches came after the last evaluation: it "
                "and others like it do not count for keep_best and best; evaluate at the end of "
                "each epoch that has a checkpoint",
                key.name,
                self.monitor.name,
            )
            self._has_told = True

    def _check_can_be_evaluated(self, estimator: Run) -> None:
        """Raise ValueError if no checkpoint can have the weights of an evaluation."""
        given = [h for h in estimator.handlers if isinstance(h, mx_estimator.ValidationHandler)]
        if (
            self._is_of_evaluations()
            and self.every_n_epochs is None
            and not any(handler.batch_period for handler in given)
        ):
            assert self.monitor is not None
            raise ValueError(
                f"monitor={self.monitor.name!r} is known at the end of an epoch, and all "
                f"checkpoints (every_n_batches={self.every_n_batches}) are written before: give "
                "every_n_epochs=1 as well, or evaluate every so many batches by a ValidationHandler"
            )

    def _open(self, estimator: Run) -> list[tuple[Key, float | None]]:
        """Let no other run write into the directory; return its checkpoints and their values."""
        self._make_directory()
        self._lock.take()
        disk.remove_leftovers(self.directory)
        resumed_from = estimator.resumed_from
        if resumed_from and not is_in(resumed_from, checkpoint_folders(estimator.handlers)):
            resumed_from = None  # its folder is another: here there must be none
        values = []
        for key, path in disk.found_in(self.directory).items():
            if resumed_from is None:
                raise FileExistsError(
                    f"directory {fspath(self.directory)!r} has checkpoints of a run already "
                    f"({path.name!r}): continue it by fit(..., resume='auto'), or give a new "
                    "directory"
                )
            if key > resumed_from.key:
                self._put_aside(path, resumed_from, estimator.logger)
            else:
                values.append((key, self._value_in(path)))
        return values

    def _forget_later_ones(self, resumed_from: Checkpoint | None) -> None:
        """Forget the checkpoints after `resumed_from`, if the run has gone back to it."""
        if resumed_from is not None and resumed_from is not self._gone_on_from:
            self._values = {k: v for k, v in self._values.items() if k <= resumed_from.key}
            self._gone_on_from = resumed_from

    def _write(
        self, key: Key, files: dict[str, bytes], about: dict[str, Any], logger: logging.Logger
    ) -> bool:
        """Write a checkpoint; return whether that was possible."""
        try:
            disk.make_room(self.directory / key.name, logger)
            disk.write(self.directory, key, files, about)
        except OSError as e:
            self._failed = f"{key.name}: {e}"
            logger.warning(
                "the checkpoint %s cannot be written into %r (%s): the older ones stay, and the "
                "run continues",
                key.name,
                fspath(self.directory),
                e,
            )
            return False
        self._failed = None
        return True

    def _share_values(self, workers: Workers) -> None:
        """Let all workers know what is in the first one's directory: `best` is the same on all."""
        if workers.are_several:
            own = [[list(key), value] for key, value in self._values.items()]
            known = workers.of_first(own, "the checkpoints that are there")
            self._values = {Key(*key): value for key, value in known}

    def _is_due(self, position: Position) -> bool:
        if not position.is_in_epoch:
            period, done = self.every_n_epochs, position.epoch
        else:
            period, done = self.every_n_batches, position.batch
            if position.batch_in_epoch == 0:  # the end of the epoch before
                return False
        return period is not None and done % period == 0

    def _make_directory(self) -> None:
        name = fspath(self.directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(
                f"directory {name!r} is a file: give a folder for the checkpoints"
            )
        try:
            make_folder(self.directory)
        except OSError as e:
            raise PermissionError(
                f"directory {name!r} cannot be written ({e}): give a folder in which checkpoints "
                "can be made"
            ) from e

    def _put_aside(self, path: Path, resumed_from: Checkpoint, logger: logging.Logger) -> None:
        """Make room if a checkpoint later than the one resumed from is damaged."""
        if not disk.make_room(path, logger):
            raise FileExistsError(
                f"directory {fspath(self.directory)!r} has a later checkpoint ({path.name!r}) than "
                f"the one to resume from ({resumed_from.path.name!r}): give a new directory, or "
                "resume from the newest by resume='auto'"
            )

    def _remove_old(self, logger: logging.Logger) -> None:
        if self.keep_last is None:
            return
        kept = {*sorted(self._values)[-self.keep_last :], *self._best_keys()}
        for key in sorted(set(self._values) - kept):
            try:
                disk.remove(self.directory / key.name)
            except FileNotFoundError:  # somebody else has
                pass
            except OSError as e:
                logger.warning("the old checkpoint %s cannot be removed (%s)", key.name, e)
                continue
            del self._values[key]

    def _best_keys(self) -> list[Key]:
        known = {key: value for key, value in sorted(self._values.items()) if value is not None}
        return self.monitor.best_first(known)[: self.keep_best] if self.monitor else []

    def _value_in(self, path: Path) -> float | None:
        """Return the monitored value in the manifest at `path`, None if it has none."""
        try:
            monitored = disk.manifest_of(path).get("monitor", {})
        except ValueError:
            return None
        is_ours = self.monitor is not None and monitored.get("name") == self.monitor.name
        return monitored.get("value") if is_ours else None
