"""Find the checkpoint from which a run continues."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path

from gluon_svrg.checkpoint import storage
from gluon_svrg.checkpoint.first_worker import read_on_first
from gluon_svrg.checkpoint.storage import Checkpoint
from gluon_svrg.files import DamagedError
from gluon_svrg.workers import SingleProcess, Workers

_ONE = SingleProcess()


def find_checkpoint(
    resume: object,
    folders: Sequence[Path],
    logger: logging.Logger,
    workers: Workers = _ONE,
) -> Checkpoint | None:
    """Return the checkpoint for ``fit(resume=...)``, or None to start a new run.

    Worker 0 looks for it on its own disk and sends it to the others, so all workers get the same
    checkpoint or the same error.

    Parameters
    ----------
    resume : None, 'auto' or path
        As `fit` was given it.
    folders : sequence of Path
        The folders of the run's checkpoints, for 'auto'.
    logger : Logger
        Is told what is found, and what is damaged.
    workers : Workers
        Those of the run; by default this process is one alone.

    Raises
    ------
    TypeError
        If `resume` is neither None, nor 'auto', nor a path.
    ValueError
        If 'auto' has no folder to look at, or what it finds is damaged or of a later version.
    FileNotFoundError
        If there is no checkpoint at the path.
    """
    if resume is None:
        return None
    return read_on_first(workers, lambda: _find_checkpoint(resume, folders, logger), "a resume")


def _find_checkpoint(
    resume: object, folders: Sequence[Path], logger: logging.Logger
) -> Checkpoint | None:
    if not isinstance(resume, str | PathLike):
        raise TypeError(f"resume must be None, 'auto' or the path of a checkpoint, got {resume!r}")
    if resume == "auto":
        if not folders:
            raise ValueError(
                "resume='auto' needs a CheckpointHandler in event_handlers, whose directory has "
                "the checkpoints: give one, or the path of a checkpoint"
            )
        checkpoint = _read_newest(folders, logger)
        if checkpoint is None:
            logger.info("no checkpoint in %s yet: the run begins", folders[0])
        return checkpoint
    return _checkpoint_at(Path(resume).expanduser().absolute(), logger)


def find_rollback_checkpoint(
    folders: Sequence[Path], reason: str, logger: logging.Logger, workers: Workers = _ONE
) -> Checkpoint:
    """Return the newest checkpoint of the run, on all workers; RuntimeError if there is none."""
    checkpoint = read_on_first(
        workers, lambda: _find_rollback_checkpoint(folders, reason, logger), "a roll back"
    )
    assert checkpoint is not None
    return checkpoint


def _find_rollback_checkpoint(
    folders: Sequence[Path], reason: str, logger: logging.Logger
) -> Checkpoint:
    checkpoint = _read_newest(folders, logger)
    if checkpoint is None:
        why = "a checkpoint that is written already" if folders else "a CheckpointHandler"
        raise RuntimeError(f"{reason}; to go back needs {why}")
    logger.warning("%s: the run goes back to the checkpoint %s", reason, checkpoint.path)
    return checkpoint


def is_inside(checkpoint: Checkpoint, folders: Iterable[Path]) -> bool:
    """Return whether `checkpoint` is in one of the folders."""
    folder = checkpoint.path.parent.resolve()
    return folder in [path.resolve() for path in folders]


def _read_newest(folders: Iterable[Path], logger: logging.Logger) -> Checkpoint | None:
    """Return the newest undamaged checkpoint in all the folders."""
    found = [storage.read_newest(folder, logger.warning) for folder in folders]
    known = [checkpoint for checkpoint in found if checkpoint is not None]
    return max(known, key=lambda checkpoint: checkpoint.key, default=None)


def _checkpoint_at(path: Path, logger: logging.Logger) -> Checkpoint:
    if not path.exists():
        raise FileNotFoundError(
            f"there is no checkpoint at resume={fspath(path)!r}: give the path of one, or of the "
            "folder that has them"
        )
    if storage.parse_name(path) is None:
        checkpoint = storage.read_newest(path, logger.warning)
        if checkpoint is None:
            raise FileNotFoundError(
                f"there is no checkpoint in {fspath(path)!r}: give the folder of a checkpoint, "
                "such as epoch-2-batch-40, or the folder that has them"
            )
        return checkpoint
    try:
        return storage.read(path)
    except DamagedError as e:
        raise ValueError(
            f"the checkpoint {fspath(path)!r} is damaged ({e}): resume from another, or from the "
            "newest undamaged one by the path of the folder"
        ) from e
