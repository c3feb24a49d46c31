"""What a trainer's states are on disk: written whole or not at all, read without pickle.

The .npz file holds the optimizer's states of each parameter, its plain attributes (learning rate,
momentum, counts of updates, ...), those of its lr_scheduler, and what the parameters looked like.
Arrays are entries of the .npz; the rest is the JSON text of its entry ``meta``, which refers to
them by name.
"""

from __future__ import annotations

import io
import json
import logging
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg.optimizer.optimizer import merged_update_count
from mxnet import nd
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray

FORMAT = "gluon_svrg.states/1"

_logger = logging.getLogger(__name__)

# What NumPy, zipfile, zlib and json raise on bytes that somebody has changed.
_DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    RuntimeError,  # NotImplementedError too
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)

# What ties an optimizer to this process, or is written apart.
_NOT_SAVED = frozenset(
    {
        "param_dict",
        "idx2name",
        "sym_info",
        "lr_scheduler",
        "allow_np_array",
        "_index_update_count",
        "_all_index_update_counts",
        "_loaded_update_count",
    }
)


class States:
    """The states of an optimizer, as they are in a file.

    Parameters
    ----------
    meta : dict
        What the JSON text says.
    arrays : dict of str to numpy.ndarray
        The arrays that it refers to.
    """

    def __init__(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self._meta = meta
        self._arrays = arrays

    @classmethod
    def of(
        cls,
        optimizer: mx.optimizer.Optimizer,
        updater_states: dict[int, Any],
        params: Iterable[Parameter],
    ) -> States:
        """Return the states of `optimizer` and of one of its Updaters."""
        arrays: dict[str, np.ndarray] = {}
        attributes = _plain_attributes(optimizer, arrays)
        schedule = optimizer.lr_scheduler
        _warn_of_what_is_left_out(schedule)
        meta = {
            "format": FORMAT,
            "optimizer": _class_name(optimizer),
            "attributes": attributes,
            "update_counts": _encode(merged_update_count(optimizer), arrays),
            "lr_scheduler": None if schedule is None else _class_name(schedule),
            "schedule": {} if schedule is None else _plain_attributes(schedule, arrays),
            "params": [[p.name, list(p.shape), np.dtype(p.dtype).name] for p in params],
            "states": _encode(updater_states, arrays),
        }
        return cls(meta, arrays)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to `path`: its old content stays until the new one is on the disk, whole.

        Raises
        ------
        FileNotFoundError
            If its folder is not there.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"{os.fspath(path)!r} cannot be written: there is no folder "
                f"{os.fspath(path.parent)!r}; make it first"
            )
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        meta = np.frombuffer(json.dumps(self._meta).encode(), dtype=np.uint8)
        try:
            with open(aside, "wb") as file:
                np.savez(file, meta=meta, **self._arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> States:
        """Read the file at `path`; nothing in it is run.

        Raises
        ------
        ValueError
            If it is not such a file, or damaged.
        """
        content = io.BytesIO(Path(path).read_bytes())
        try:
            with np.load(content, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            meta = json.loads(arrays.pop("meta").tobytes())
            if meta["format"] != FORMAT:
                raise ValueError(f"its format is {meta['format']!r}")
        except _DAMAGED as e:
            raise ValueError(
                f"{os.fspath(path)!r} is no states file of SVRGTrainer, or a damaged one ({e}): "
                "MXNet's own .states files are pickles, which can run code and are not read; save "
                "again with SVRGTrainer.save_states"
            ) from e
        return cls(meta, arrays)

    def check(self, optimizer: mx.optimizer.Optimizer, params: list[Parameter]) -> None:
        """Raise ValueError if these are not the states of such an optimizer and parameters."""
        saved, own = self._meta["optimizer"], _class_name(optimizer)
        if saved != own:
            raise ValueError(f"the states are of the optimizer {saved}, and this trainer has {own}")
        scheduler = optimizer.lr_scheduler
        saved, own = self._meta["lr_scheduler"], scheduler and _class_name(scheduler)
        if saved != own:
            raise ValueError(
                f"the states are of the lr_scheduler {saved}, and this trainer has {own}"
            )
        described = self._meta["params"]
        if len(described) != len(params):
            raise ValueError(
                f"the states are of {len(described)} parameters, and this trainer has {len(params)}"
            )
        saved_names, names = [name for name, *_ in described], [param.name for param in params]
        if saved_names != names and sorted(saved_names) == sorted(names):
            raise ValueError(
                f"the states are of the same parameters in another order, {saved_names}, and this "
                f"trainer has {names}: give the trainer its parameters in that order"
            )
        for (name, shape, dtype), param in zip(described, params, strict=True):
            if tuple(shape) != param.shape or np.dtype(dtype) != np.dtype(param.dtype):
                raise ValueError(
                    f"the states of {param.name!r} are of a parameter ({name!r}) of shape "
                    f"{tuple(shape)} and dtype {dtype}, and it has shape {param.shape} and dtype "
                    f"{np.dtype(param.dtype).name}"
                )

    def apply(self, optimizer: mx.optimizer.Optimizer, contexts: Sequence[mx.Context]) -> None:
        """Set the attributes of `optimizer` and of its lr_scheduler, and its counts of updates."""
        for target, name in ((optimizer, "attributes"), (optimizer.lr_scheduler, "schedule")):
            for key, value in self._meta[name].items():
                vars(target)[key] = _decode(value, self._arrays, contexts[0])
        # MXNet counts the updates by device and would begin anew on one that is not in the file,
        # with num_update standing still until the count has caught up (MXNet issue 17357).
        counts = _decode(self._meta["update_counts"], self._arrays, contexts[0])
        devices = {0, *(context.device_id for context in contexts)}
        optimizer._all_index_update_counts = {device: dict(counts) for device in devices}
        optimizer._index_update_count = optimizer._all_index_update_counts[0]

    def updater_states(self) -> dict[int, Any]:
        """Return new states of the parameters, by index; an Updater moves them to its device."""
        return _decode(self._meta["states"], self._arrays, mx.cpu())


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _warn_of_what_is_left_out(schedule: Any) -> None:
    for name, value in vars(schedule).items() if schedule is not None else ():
        is_function = callable(value) and not isinstance(value, mx.lr_scheduler.LRScheduler)
        if not (is_function or _is_data(value)):
            _logger.warning(
                "%s.%s, a %s, is not part of the saved states: set it by hand after loading",
                _class_name(schedule),
                name,
                type(value).__name__,
            )


def _plain_attributes(owner: object, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Encode those attributes of `owner` that are data; functions and objects stay as made."""
    encoded = {}
    for name, value in vars(owner).items():
        if name not in _NOT_SAVED and _is_data(value):
            encoded[name] = _encode(value, arrays)
    return encoded


def _is_data(value: object) -> bool:
    if isinstance(value, dict):
        keys = int | str | np.integer
        return all(isinstance(key, keys) and _is_data(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_data(item) for item in value)
    kinds = bool | int | float | str | np.generic | np.ndarray | NDArray
    return value is None or isinstance(value, kinds)


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Turn data into JSON, and the arrays in it into entries of `arrays`."""
    if isinstance(value, NDArray):
        name = f"array{len(arrays)}"
        arrays[name] = value.asnumpy()
        return {"array": name, "stype": value.stype}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"numpy": name}
    if isinstance(value, dict):
        return {"dict": [[_encode(key, arrays), _encode(i, arrays)] for key, i in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item, arrays) for item in value]}
    return value


def _decode(value: Any, arrays: dict[str, np.ndarray], context: mx.Context) -> Any:
    """Turn what `_encode` made back into data, with new arrays on `context`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = ((k, v) for k, v in value.items() if k != "stype")
    if kind == "array":
        array = nd.array(arrays[content], ctx=context, dtype=arrays[content].dtype)
        return array.tostype(value["stype"])
    if kind == "numpy":
        return arrays[content]
    if kind == "dict":
        return {key: _decode(item, arrays, context) for key, item in content}
    make: Callable[[Any], Any] = tuple if kind == "tuple" else list
    return make(_decode(item, arrays, context) for item in content)
