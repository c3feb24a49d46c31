"""Checkpoints on disk: folders, written whole or not at all, read without pickle.

A checkpoint is a folder with files and a ``manifest.json``, which has the size and the SHA-256 of
each file, and its own SHA-256. The folder is named ``epoch-E-batch-B`` after E epochs and B
batches, with ``-begun`` at the end if epoch E has begun and none of its batches is done. It is
written under a hidden name, flushed to the disk and renamed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gluon_svrg.files import (
    DamagedError,
    aside,
    flush_folder,
    is_left_over,
    read_regular,
    write_through,
)

FORMAT = 5
"""The format that this version writes."""

OLDEST_FORMAT = 4
"""The oldest format that this version reads: that of version 0.8."""

MANIFEST = "manifest.json"

# Other errors (no permission, too many open files) do not mean that the file is damaged.
_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)(-begun)?")
_TEMPORARY_NAME = re.compile(r"\.epoch-\d+-batch-\d+(-begun)?\.")
_LONGEST_MANIFEST = 2**24  # bytes; one of a thousand workers has 200 kB


class CheckpointKey(NamedTuple):
    """Identifies a checkpoint by the run's position; a later checkpoint has a greater key.

    Attributes
    ----------
    batch, epoch : int
        The numbers of finished batches and epochs.
    is_begun : bool
        Whether the next epoch has begun, with no batch done yet.
    """

    batch: int
    epoch: int
    is_begun: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"epoch-{self.epoch}-batch-{self.batch}{'-begun' if self.is_begun else ''}"


class Checkpoint(NamedTuple):
    """A checkpoint that has been read, whole and undamaged.

    Attributes
    ----------
    path : Path
        Its folder.
    key : CheckpointKey
        Its key.
    manifest : dict
        The content of ``manifest.json``.
    files : dict of str to bytes
        The contents of its files.
    """

    path: Path
    key: CheckpointKey
    manifest: dict[str, Any]
    files: dict[str, bytes]


def write(
    folder: Path,
    key: CheckpointKey,
    files: Mapping[str, bytes],
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint into `folder`; return its path.

    Parameters
    ----------
    folder : Path
        An existing folder.
    key : CheckpointKey
        The key of the checkpoint.
    files : dict of str to bytes
        The contents, by name.
    about : dict, optional
        Plain data for the manifest; `workers` is the number of workers that wrote the files.

    Raises
    ------
    FileExistsError
        If the checkpoint exists already.
    OSError
        If it cannot be written; no part of it is left then.
    """
    path = folder / key.name
    if path.exists():
        raise FileExistsError(f"the checkpoint {str(path)!r} exists already")
    about = about or {}
    manifest = {
        **about,
        "format": FORMAT,
        "key": key.name,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    temporary = aside(path)
    try:
        temporary.mkdir()
        for name, content in files.items():
            write_through(temporary / name, content)
        write_through(temporary / MANIFEST, _text_of(manifest).encode())
        flush_folder(temporary)
        temporary.rename(path)
        try:
            flush_folder(folder)
        except OSError:
            remove(path)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def list_checkpoints(folder: Path) -> dict[CheckpointKey, Path]:
    """Return the checkpoints in `folder`, damaged ones as well, the earliest first."""
    if not folder.is_dir():
        return {}
    checkpoints = {parse_name(path): path for path in folder.iterdir() if path.is_dir()}
    return dict(sorted((key, path) for key, path in checkpoints.items() if key is not None))


def parse_name(path: Path) -> CheckpointKey | None:
    """Return the key in the name of `path`, or None if it is not the name of a checkpoint."""
    match = _NAME.fullmatch(path.name)
    return CheckpointKey(int(match[2]), int(match[1]), bool(match[3])) if match else None


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of the checkpoint at `path`.

    Raises
    ------
    DamagedError
        If it was changed after it was written.
    ValueError
        If its format is later than this version's, or too old.
    """
    try:
        text = read_regular(path / MANIFEST, at_most=_LONGEST_MANIFEST).decode()
        manifest = json.loads(text)
    except (*_NOT_THERE, ValueError, RecursionError) as e:
        raise DamagedError(f"{MANIFEST} cannot be read ({e})") from e
    if not isinstance(manifest, dict) or text != _text_of(manifest):
        raise DamagedError(f"{MANIFEST} is not as it was written")
    if not _is_well_formed(manifest):
        raise DamagedError(f"{MANIFEST} is not what a CheckpointHandler writes")
    if manifest["format"] > FORMAT:
        raise ValueError(
            f"the checkpoint {str(path)!r} has the format {manifest['format']}, of a later version "
            f"({_version_in(manifest)}), and this version reads up to format {FORMAT}: "
            "install that version"
        )
    if manifest["format"] < OLDEST_FORMAT:
        raise ValueError(
            f"the checkpoint {str(path)!r} has the format {manifest['format']}, of an earlier "
            f"version ({_version_in(manifest)}), and this version reads from format "
            f"{OLDEST_FORMAT} on: install that version"
        )
    return manifest


def read(path: Path) -> Checkpoint:
    """Read the checkpoint at `path` and verify its checksums; nothing in it is executed.

    Raises
    ------
    DamagedError
        If a file is missing, or was changed after it was written.
    ValueError
        If this version does not read its format, or `path` is not the name of a checkpoint.
    """
    key = parse_name(path)
    if key is None:
        raise ValueError(
            f"{str(path)!r} is no checkpoint: one has a name like {CheckpointKey(300, 3).name!r}, "
            "which says how many epochs and batches are done"
        )
    manifest = read_manifest(path)
    if manifest.get("key", key.name) != key.name:
        raise DamagedError(f"its folder was {manifest['key']!r} when it was written")
    files = {}
    for name, expected in manifest["files"].items():
        try:
            content = read_regular(path / name, expected["bytes"])
        except _NOT_THERE as e:
            raise DamagedError(f"{name} is not there ({e})") from e
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise DamagedError(f"{name} is corrupted (SHA-256 mismatch)")
        files[name] = content
    return Checkpoint(path, key, manifest, files)


def read_newest(folder: Path, warn: Callable[[str], object]) -> Checkpoint | None:
    """Read the newest undamaged checkpoint in `folder`; None if there is no checkpoint at all.

    Parameters
    ----------
    folder : Path
        Where to look.
    warn : callable
        Called with a sentence for each damaged checkpoint that is skipped.

    Raises
    ------
    ValueError
        If there are checkpoints, and all of them are damaged.
    """
    checkpoints = list_checkpoints(folder)
    for path in reversed(checkpoints.values()):
        try:
            return read(path)
        except DamagedError as e:
            warn(f"the checkpoint {str(path)!r} is damaged and skipped: {e}")
    if checkpoints:
        raise ValueError(
            f"all checkpoints in {str(folder)!r} are damaged ({len(checkpoints)}, the newest "
            f"{next(reversed(checkpoints.values())).name!r}): start a new run with resume=None and "
            "another folder"
        )
    return None


def set_damaged_aside(path: Path, logger: logging.Logger) -> bool:
    """Rename a damaged checkpoint at `path`; return whether `path` is free now."""
    if not path.exists():
        return True
    try:
        read(path)
    except DamagedError:
        renamed = path.with_name(f"damaged-{path.name}")
        number = 1
        while renamed.exists():
            number += 1
            renamed = path.with_name(f"damaged-{number}-{path.name}")
        path.rename(renamed)
        logger.warning("the damaged checkpoint %r is now %r", path.name, renamed.name)
        return True
    return False


def remove(path: Path) -> None:
    """Remove the checkpoint at `path`; renamed first, so that a crash leaves no half checkpoint."""
    temporary = aside(path)
    path.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_temporary_files(folder: Path) -> None:
    """Remove the half-written or half-removed checkpoints of processes that have died."""
    for path in folder.iterdir():
        if _TEMPORARY_NAME.match(path.name) and is_left_over(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _version_in(manifest: dict[str, Any]) -> str:
    versions = manifest.get("versions", {})
    return str(versions.get("gluon_svrg", "unknown"))


def _is_well_formed(manifest: dict[str, Any]) -> bool:
    files = manifest.get("files")
    return (
        isinstance(manifest.get("format"), int)
        and isinstance(files, dict)
        and all(
            isinstance(entry, dict)
            and {"bytes", "sha256"} <= set(entry)
            and type(entry["bytes"]) is int
            and name not in ("", ".", "..")
            and not set("/\\\0") & set(name)
            for name, entry in files.items()
        )
    )


def _text_of(manifest: dict[str, Any]) -> str:
    """Return the text of the manifest, with its own checksum."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, indent=2, sort_keys=True) + "\n"
