"""CheckpointHandler: writes checkpoints, and keeps the last and the best of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from os import PathLike, fspath
from os.path import realpath
from pathlib import Path
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.block import has_shape
from gluon_svrg.arguments import check_integer, check_path, check_periods, explains_unknown
from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.directory_lock import DirectoryLock
from gluon_svrg.checkpoint.first_worker import run_on_first
from gluon_svrg.checkpoint.resume import is_inside
from gluon_svrg.checkpoint.run_state import LACKS, manifest_info, save_run
from gluon_svrg.checkpoint.storage import Checkpoint, CheckpointKey
from gluon_svrg.events import (
    EventHandler,
    ExceptionRaised,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    SafePoint,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.files import make_folder
from gluon_svrg.metrics.monitor import Monitor
from gluon_svrg.metrics.state import warn_unsaved_attributes
from gluon_svrg.optimizer.states import warn_unsaved_schedule
from gluon_svrg.workers import Workers
from mxnet.gluon.contrib import estimator as mx_estimator


class CheckpointHandler(
    TrainBegin,
    SafePoint,
    TrainEnd,
    ExceptionRaised,
    HasExclusiveTasks,
    RequiresRun,
):
    """Writes checkpoints from which ``fit(..., resume='auto')`` continues, exact to the batch.

    A checkpoint holds all that the run depends on: parameters and auxiliary states, the
    optimizer's states and counts, SVRG's snapshot and full gradient, random states, the position
    in the data, metrics, history, and the states of all handlers that are
    :class:`gluon_svrg.events.Stateful`. It is written under a temporary name, flushed and renamed,
    so there is never half a checkpoint; an old checkpoint is removed only after a newer one was
    written. If a checkpoint cannot be written (a full disk), the older ones stay, the log says so,
    and the run continues. A directory that is removed during the run is made again. On a file
    system without locks, the log says that two runs in one directory are not told apart.

    Over several workers there is one checkpoint, written by worker 0; the others do not need the
    directory. It also holds the states in which the other workers differ, so the same number of
    workers continues exactly. Another number of workers continues with rounding differences.

    The Estimator adds a :class:`RandomStateHandler` and a :class:`SignalHandler` to runs with this
    handler, unless they are given.

    Parameters
    ----------
    directory : str or path
        The folder of this run's checkpoints; created if it does not exist.
    every_n_epochs : int or None
        Write a checkpoint every `every_n_epochs` epochs.
    every_n_batches : int or None
        Write a checkpoint every `every_n_batches` batches, counted from the beginning of the run.
    monitor : str or EvalMetric, optional
        The figure by which the best checkpoints are chosen, as in the history:
        ``'validation accuracy'``. A checkpoint has a validation figure only if no batch was trained
        between the evaluation and the checkpoint.
    mode : 'auto', 'min' or 'max'
        Which value of it is better; 'auto' infers it from the name, or raises.
    keep_last : int or None
        The number of newest checkpoints that are kept; None keeps all.
    keep_best : int
        The number of best checkpoints that are kept in addition, if there is a `monitor`.
    priority : float
        Last, so that it saves the final states of all handlers.

    Attributes
    ----------
    directory : Path
        As given.
    best : Path or None
        The best checkpoint in the directory; with several workers, on worker 0's disk. If worker 0
        could not write one, the others know it from the next checkpoint, or the end of the run, on.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of its range, or neither period is given.
    """

    may_request = False

    @explains_unknown(
        dirpath="directory",
        dirname="directory",
        filepath="directory",
        model_dir="directory",
        epoch_period="every_n_epochs",
        batch_period="every_n_batches",
        every_n_train_steps="every_n_batches",
        max_checkpoints="keep_last",
        save_top_k="keep_best",
        save_best="keep_best",
        save_best_only="give monitor='validation loss': the best checkpoint is kept, too",
        resume_from_checkpoint="give resume='auto' to fit",
    )
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
        self.directory = check_path("directory", directory, "the folder of the run's checkpoints")
        self.every_n_epochs = every_n_epochs
        self.every_n_batches = every_n_batches
        self.monitor = None if monitor is None else Monitor(monitor, mode)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.priority = float(priority)
        self._failed: str | None = None
        self._has_warned = self._has_warned_of_lack = False
        self._lock = DirectoryLock(self.directory)
        self._resumed_from: Checkpoint | None = None
        self._last_key: CheckpointKey | None = None  # of the last one that was to be written
        # The monitored values of what is in the directory.
        self._values: dict[CheckpointKey, float | None] = {}

    @property
    def best(self) -> Path | None:
        """The best checkpoint that is there, by the monitored figure."""
        best = self._best_keys()
        return self.directory / best[0].name if best else None

    def exclusive_tasks(self) -> list[str]:
        """Return that it writes into its directory."""
        return [f"write checkpoints into {realpath(self.directory)!r}"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check that checkpoints can be written, and that the directory has none of another run."""
        if self.monitor is not None:
            self.monitor.check(estimator)
            self._check_monitor(estimator)
        self._has_warned = self._has_warned_of_lack = False
        estimator.data.check_can_resume()
        if estimator.workers.is_first:
            warn_unsaved_attributes(estimator)
            warn_unsaved_schedule(estimator.trainer)
        self._resumed_from, self._failed = estimator.resumed_from, None
        self._last_key = None
        known = run_on_first(
            estimator.workers, lambda: self._open_directory(estimator), "the checkpoints' directory"
        )
        self._values = _by_key(known)

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint, if one is due or the run ends."""
        position = estimator.position
        is_due = position.is_due("safe_point", self.every_n_epochs, self.every_n_batches)
        if estimator.stop_reason is None and not is_due:
            return
        is_begun = position.is_in_epoch and position.batch_in_epoch == 0
        key, workers = CheckpointKey(position.batch, position.epoch, is_begun), estimator.workers
        if not all(has_shape(param) for param in estimator.net.collect_params().values()):
            if workers.is_first:
                estimator.logger.warning(
                    "no checkpoint %s is written: the network has not inferred its shapes yet",
                    key.name,
                )
            return
        self._forget_later_checkpoints(estimator.resumed_from)
        # Not whether it could be written, which the first worker alone knows.
        if key in self._values or key == self._last_key:
            return
        value = None
        if self.monitor is not None and self._is_known(estimator):
            value = self.monitor.read(estimator)
            if value is not None and math.isnan(value):  # no number in JSON, and never the best
                value = None
        elif self.monitor is not None and not position.is_in_epoch:
            self._warn_once(key, estimator)
        description = manifest_info(estimator)
        if self.monitor is not None:
            description["monitor"] = {"name": self.monitor.name, "value": value}
        try:
            files, (known, value) = save_run(estimator, [list(self._values.items()), value])
        except FloatingPointError as e:
            if workers.is_first:
                estimator.logger.warning("no checkpoint %s is written: %s", key.name, e)
            return
        if LACKS in description and workers.is_first and not self._has_warned_of_lack:
            self._has_warned_of_lack = True
            estimator.logger.warning(
                "the control variate is not part of the checkpoints, because the handler that sets "
                "it does not save it: a run that continues from one may give other weights; let "
                "the handler inherit from gluon_svrg.events.Stateful, save it and set "
                "saves_control_variate = True, or use gluon_svrg.SVRGHandler"
            )
        self._last_key = key
        self._values = _by_key(known)
        if workers.is_first and not self._write(key, files, description, estimator.logger):
            return
        self._values[key] = value
        self._remove_old(workers, estimator.logger)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Warn again if the last checkpoint could not be written."""
        self._lock.release()
        known = estimator.workers.broadcast_object(
            list(self._values.items()), "the checkpoints that are there"
        )
        self._values = _by_key(known)
        if self._failed:
            estimator.logger.warning("the last checkpoint could not be written: %s", self._failed)

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let other runs write into the directory."""
        self._lock.release()

    def _monitors_evaluation(self, estimator: Run) -> bool:
        """Return whether the figure is one of an evaluation."""
        given = (h for h in estimator.handlers if isinstance(h, mx_estimator.ValidationHandler))
        splits = [getattr(handler, "name", "validation") for handler in given]
        return self.monitor is not None and self._split() in splits

    def _is_known(self, estimator: Run) -> bool:
        """Return whether the figure is that of these weights, or one of the training."""
        return estimator.has_evaluated(self._split()) or not self._monitors_evaluation(estimator)

    def _split(self) -> str:
        assert self.monitor is not None
        return self.monitor.name.partition(" ")[0]

    def _warn_once(self, key: CheckpointKey, estimator: Run) -> None:
        if estimator.workers.is_first and not self._has_warned:
            assert self.monitor is not None
            estimator.logger.warning(
                "the checkpoint %s has no %r, because batches came after the last evaluation: such "
                "checkpoints do not count for keep_best and best; evaluate at the end of each "
                "epoch that has a checkpoint",
                key.name,
                self.monitor.name,
            )
            self._has_warned = True

    def _check_monitor(self, estimator: Run) -> None:
        """Raise ValueError if no checkpoint can have the weights of an evaluation."""
        given = [h for h in estimator.handlers if isinstance(h, mx_estimator.ValidationHandler)]
        if (
            self._monitors_evaluation(estimator)
            and self.every_n_epochs is None
            and not any(handler.batch_period for handler in given)
        ):
            assert self.monitor is not None
            raise ValueError(
                f"monitor={self.monitor.name!r} is known at the end of an epoch, and all "
                f"checkpoints (every_n_batches={self.every_n_batches}) are written before: give "
                "every_n_epochs=1 as well, or give a ValidationHandler with every_n_batches"
            )

    def _open_directory(self, estimator: Run) -> list[tuple[CheckpointKey, float | None]]:
        """Lock the directory; return its checkpoints and their values of the monitored figure."""
        self._make_directory()
        if (why_not := self._lock.acquire()) is not None:
            estimator.logger.warning(
                "directory %r cannot be locked (%s): two runs that write into it at the same time "
                "are not told apart; give each run a directory of its own",
                fspath(self.directory),
                why_not,
            )
        storage.remove_temporary_files(self.directory)
        resumed_from = estimator.resumed_from
        if resumed_from and not is_inside(resumed_from, checkpoint_directories(estimator.handlers)):
            resumed_from = None  # from another folder: here there must be no checkpoint
        values = []
        for key, path in storage.list_checkpoints(self.directory).items():
            if resumed_from is None:
                raise FileExistsError(
                    f"directory {fspath(self.directory)!r} has checkpoints of a run already "
                    f"({path.name!r}): continue it by fit(..., resume='auto'), or give a new "
                    "directory"
                )
            if key > resumed_from.key:
                self._refuse_or_set_aside(path, resumed_from, estimator.logger)
            else:
                values.append((key, self._read_value(path)))
        return values

    def _forget_later_checkpoints(self, resumed_from: Checkpoint | None) -> None:
        """Forget the checkpoints after `resumed_from`, if the run has gone back to it."""
        if resumed_from is not None and resumed_from is not self._resumed_from:
            self._values = {k: v for k, v in self._values.items() if k <= resumed_from.key}
            self._resumed_from, self._last_key = resumed_from, None

    def _write(
        self,
        key: CheckpointKey,
        files: dict[str, bytes],
        about: dict[str, Any],
        logger: logging.Logger,
    ) -> bool:
        """Write a checkpoint; return whether that was possible."""
        try:
            if not self._lock.is_of_folder():
                self._make_directory_again(logger)
            storage.set_damaged_aside(self.directory / key.name, logger)
            storage.write(self.directory, key, files, about)
        except OSError as e:
            self._failed = f"{key.name}: {e}"
            logger.warning(
                "the checkpoint %s cannot be written into %r (%s): %s, and the run continues",
                key.name,
                fspath(self.directory),
                e,
                "the older ones stay" if self._has_checkpoints() else "no older one is there",
            )
            return False
        self._failed = None
        return True

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

    def _make_directory_again(self, logger: logging.Logger) -> None:
        """Make and lock the directory, which was removed or renamed during the run."""
        self._make_directory()
        self._lock.acquire()
        if self._has_checkpoints():
            self._lock.release()
            raise FileExistsError(
                f"directory {fspath(self.directory)!r} was exchanged for one with checkpoints of "
                "another run"
            )
        self._values = {}
        logger.warning(
            "directory %r was removed or renamed during the run: it is made again, without the "
            "older checkpoints",
            fspath(self.directory),
        )

    def _has_checkpoints(self) -> bool:
        try:
            return bool(storage.list_checkpoints(self.directory))
        except OSError:
            return False

    def _refuse_or_set_aside(
        self, path: Path, resumed_from: Checkpoint, logger: logging.Logger
    ) -> None:
        """Make room if a checkpoint later than the one resumed from is damaged."""
        if not storage.set_damaged_aside(path, logger):
            raise FileExistsError(
                f"directory {fspath(self.directory)!r} has a later checkpoint ({path.name!r}) than "
                f"the one to resume from ({resumed_from.path.name!r}): give a new directory, or "
                "resume from the newest by resume='auto'"
            )

    def _remove_old(self, workers: Workers, logger: logging.Logger) -> None:
        """Remove the checkpoints that are not kept; the first worker does, from the disk."""
        if self.keep_last is None:
            return
        kept = {*sorted(self._values)[-self.keep_last :], *self._best_keys()}
        for key in sorted(set(self._values) - kept):
            try:
                if workers.is_first:
                    storage.remove(self.directory / key.name)
            except FileNotFoundError:  # something else has removed it
                pass
            except OSError as e:
                logger.warning("the old checkpoint %s cannot be removed (%s)", key.name, e)
                continue
            del self._values[key]

    def _best_keys(self) -> list[CheckpointKey]:
        known = {key: value for key, value in sorted(self._values.items()) if value is not None}
        return self.monitor.best_first(known)[: self.keep_best] if self.monitor else []

    def _read_value(self, path: Path) -> float | None:
        """Return the monitored value in the manifest at `path`, None if it has none."""
        try:
            monitored = storage.read_manifest(path).get("monitor", {})
        except ValueError:
            return None
        is_ours = self.monitor is not None and monitored.get("name") == self.monitor.name
        return monitored.get("value") if is_ours else None


def checkpoint_directories(handlers: Iterable[EventHandler]) -> list[Path]:
    """Return the folders into which `handlers` write checkpoints."""
    return [handler.directory for handler in handlers if isinstance(handler, CheckpointHandler)]


def _by_key(values: list[Any]) -> dict[CheckpointKey, float | None]:
    """Return the values by their keys, which a message has made lists."""
    return {CheckpointKey(*key): value for key, value in values}
