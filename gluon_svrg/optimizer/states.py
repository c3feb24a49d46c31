"""TrainerStates: an optimizer's states as a file, written whole or not at all, read without pickle.

The file has the optimizer's state of each parameter, its plain attributes (learning rate, momentum,
counts of updates, ...), those of its lr_scheduler, and the parameters' shapes and dtypes, encoded
by :mod:`gluon_svrg.arrays.encoding`.
"""

from __future__ import annotations

import logging
import numbers
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import has_data, list_data, parameters_by_structure
from gluon_svrg._mxnet.trainer import (
    UPDATE_COUNTS,
    contexts_of,
    forget_kvstore,
    has_kvstore_that_updates,
    optimizer_of,
    parameters_of,
    set_update_counts,
    updaters_in_use,
    updates_on_kvstore as updates_on_kvstore,
)
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.encoding import (
    decode,
    encode,
    from_bytes,
    is_data,
    plain_attributes,
    to_bytes,
)
from gluon_svrg.class_names import class_key
from gluon_svrg.files import DAMAGED, DamagedError, write_whole
from gluon_svrg.optimizer.nested_schedules import has_only_functions, nested_schedules
from gluon_svrg.optimizer.optimizer import merged_update_count
from mxnet.gluon import Block, Parameter, Trainer

FORMAT = "gluon_svrg.states/2"

_A_FORMAT = re.compile(r"gluon_svrg\.states/[1-9]\d*")

_logger = logging.getLogger(__name__)

# What ties an optimizer to this process, or is written apart.
_NOT_SAVED = frozenset(
    {
        "param_dict",
        "idx2name",
        "sym_info",
        "lr_scheduler",
        "allow_np_array",
        "_loaded_update_count",
        "_unchecked_exempt",
        *UPDATE_COUNTS,
    }
)


class TrainerStates:
    """The states of an optimizer, as they are in a file.

    Parameters
    ----------
    meta : dict
        The content of the JSON text.
    arrays : dict of str to numpy.ndarray
        The arrays that it refers to.

    Attributes
    ----------
    meta, arrays : dict
        As given: together they are plain data.
    """

    def __init__(self, meta: dict[str, Any], arrays: dict[str, NumPyArray]) -> None:
        self.meta = meta
        self.arrays = arrays

    @classmethod
    def of(
        cls,
        optimizer: mx.optimizer.Optimizer,
        updater_states: dict[int, Any],
        params: Iterable[Parameter],
    ) -> TrainerStates:
        """Return the states of `optimizer` and of one of its Updaters."""
        arrays: dict[str, NumPyArray] = {}
        attributes = plain_attributes(optimizer, arrays, _NOT_SAVED)
        schedule = optimizer.lr_scheduler
        meta = {
            "format": FORMAT,
            "optimizer": class_key(optimizer),
            "attributes": attributes,
            "update_counts": encode(merged_update_count(optimizer), arrays),
            "lr_scheduler": None if schedule is None else class_key(schedule),
            "schedule": {} if schedule is None else plain_attributes(schedule, arrays, _NOT_SAVED),
            "nested_schedules": {
                place: plain_attributes(inner, arrays, _NOT_SAVED)
                for place, inner in nested_schedules(schedule).items()
            },
            "params": [[p.name, list(p.shape), np.dtype(p.dtype).name] for p in params],
            "states": encode(updater_states, arrays),
        }
        return cls(meta, arrays)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to `path`; an old file is replaced only when the new one is complete.

        Raises
        ------
        FileNotFoundError
            If its folder does not exist.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"{os.fspath(path)!r} cannot be written: there is no folder "
                f"{os.fspath(path.parent)!r}; make it first"
            )
        write_whole(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return to_bytes(self.meta, self.arrays)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> TrainerStates:
        """Read the file at `path`; nothing in it is run.

        Raises
        ------
        ValueError
            If it is not such a file, damaged, or of another version.
        """
        content = Path(path).read_bytes()
        try:
            return cls.from_bytes(content)
        except DamagedError as e:
            raise ValueError(
                f"{os.fspath(path)!r} is no states file of SVRGTrainer, or a damaged one ({e}): "
                "MXNet's own .states files are pickles, which can run code and are not read; save "
                "again with SVRGTrainer.save_states"
            ) from e

    @classmethod
    def from_bytes(cls, content: bytes) -> TrainerStates:
        """Return what :meth:`to_bytes` wrote.

        Raises
        ------
        DamagedError
            If `content` is not that.
        ValueError
            If it is of another version.
        """
        meta, arrays = from_bytes(content)
        saved = meta.get("format")
        if saved != FORMAT:
            if isinstance(saved, str) and _A_FORMAT.fullmatch(saved):
                raise ValueError(
                    f"the states have the format {saved!r}, and this version of gluon_svrg reads "
                    f"{FORMAT!r} only: install the version that wrote them"
                )
            raise DamagedError(f"its format is {saved!r}")
        return cls(meta, arrays)

    def reordered(self, order: Sequence[int]) -> TrainerStates:
        """Return the states with the parameters in this order: first the one at ``order[0]``."""
        new = {old: index for index, old in enumerate(order)}

        def renumbered(encoded: dict[str, Any]) -> dict[str, Any]:
            return {"dict": [[new.get(key, key), value] for key, value in encoded["dict"]]}

        meta = {
            **self.meta,
            "params": [self.meta["params"][old] for old in order],
            "states": renumbered(self.meta["states"]),
            "update_counts": renumbered(self.meta["update_counts"]),
        }
        return TrainerStates(meta, self.arrays)

    def check(self, optimizer: mx.optimizer.Optimizer, params: list[Parameter]) -> None:
        """Raise ValueError if these are not the states of such an optimizer and parameters."""
        saved, own = self.meta["optimizer"], class_key(optimizer)
        if saved != own:
            raise ValueError(
                f"the states are of the optimizer {saved}, and this trainer has {own}: make the "
                "trainer with that optimizer, or load only the weights by net.load_parameters"
            )
        scheduler = optimizer.lr_scheduler
        saved, own_schedule = self.meta["lr_scheduler"], scheduler and class_key(scheduler)
        if saved != own_schedule:
            raise ValueError(
                f"the states are of the lr_scheduler {saved}, and this trainer has {own_schedule}: "
                f"make the trainer {'with such a schedule' if saved else 'without one'}, or "
                "load only the weights by net.load_parameters"
            )
        described = self.meta["params"]
        if len(described) != len(params):
            raise ValueError(
                f"the states are of {len(described)} parameters, and this trainer has "
                f"{len(params)}: give the trainer those that it had"
            )
        saved_names, names = [name for name, *_ in described], [param.name for param in params]
        if saved_names != names and sorted(saved_names) == sorted(names):
            raise ValueError(
                f"the states are of the same parameters in another order, {saved_names}, and this "
                f"trainer has {names}: give the trainer its parameters in that order"
            )
        for (name, shape, dtype), param in zip(described, params, strict=True):
            if not shape_fits(param, shape) or np.dtype(dtype) != np.dtype(param.dtype):
                raise ValueError(
                    f"the states of {param.name!r} are of a parameter ({name!r}) of shape "
                    f"{tuple(shape)} and dtype {dtype}, and it has shape {param.shape} and dtype "
                    f"{np.dtype(param.dtype).name}"
                )

    def have_the_form_of(
        self, optimizer: mx.optimizer.Optimizer, params: Sequence[Parameter]
    ) -> bool:
        """Return whether `optimizer` would make such states, nested so and of these shapes."""
        for index, encoded in self.meta["states"]["dict"]:
            if has_data(params[index]):
                weight = to_nd(list_data(params[index])[0])
                new = optimizer.create_state_multi_precision(index, weight)
                if _form_of(new) != _form_of_encoded(encoded, self.arrays):
                    return False
        return True

    def apply(
        self,
        optimizer: mx.optimizer.Optimizer,
        contexts: Sequence[mx.Context],
        keep: frozenset[str] = frozenset(),
        keeps_schedule: bool = False,
    ) -> None:
        """Set the attributes of `optimizer` and of its lr_scheduler, and its counts of updates.

        The attributes in `keep` stay and, with `keeps_schedule`, those of the lr_scheduler.

        Raises
        ------
        DamagedError
            If a saved value is not valid for its attribute; nothing is changed then.
        """
        attributes = self._attributes(self.meta["attributes"], optimizer, contexts[0])
        schedules = [(optimizer.lr_scheduler, self.meta["schedule"])]
        saved = self.meta.get("nested_schedules", {})  # version 0.8 has none
        own = nested_schedules(optimizer.lr_scheduler)
        schedules += [(own[place], saved[place]) for place in own if place in saved]
        values = [self._attributes(value, owner, contexts[0]) for owner, value in schedules]
        counts = decode(self.meta["update_counts"], self.arrays, contexts[0])
        if not all(isinstance(n, numbers.Integral) for pair in dict(counts).items() for n in pair):
            raise DamagedError(f"its counts of updates are {reprlib.repr(counts)}")
        vars(optimizer).update({k: v for k, v in attributes.items() if k not in keep})
        for (owner, _), value in zip(schedules, values, strict=True):
            if value and not keeps_schedule:
                vars(owner).update(value)
        devices = {context.device_id for context in contexts}
        set_update_counts(optimizer, counts, devices)

    def _attributes(
        self, saved: Mapping[str, Any], owner: object, context: mx.Context
    ) -> dict[str, Any]:
        """Return the saved attributes of `owner`: data, and a number where it has a number."""
        values = {k: decode(v, self.arrays, context) for k, v in saved.items()}
        for key, value in values.items():
            # None stands for no number, as clip_gradient.
            is_number = isinstance(vars(owner).get(key, ""), numbers.Number | None)
            if callable(getattr(type(owner), key, None)) or (
                is_number and isinstance(value, str | dict | list | tuple | set)
            ):
                raise DamagedError(
                    f"{key} of {class_key(owner)} cannot be {reprlib.repr(value)}, which it says"
                )
        return values

    def updater_states(self) -> dict[int, Any]:
        """Return new states of the parameters, by index; an Updater moves them to its device."""
        states: dict[int, Any] = decode(self.meta["states"], self.arrays, mx.cpu())
        return states


def _form_of(state: Any) -> Any:
    """Return how a parameter's state nests, and the shapes of its arrays."""
    if isinstance(state, list | tuple):
        return [_form_of(item) for item in state]
    return state.shape if isinstance(state, mx.nd.NDArray) else type(state)


def _form_of_encoded(encoded: Any, arrays: dict[str, NumPyArray]) -> Any:
    """Return :func:`_form_of` of what is encoded, without a copy of its arrays."""
    if not isinstance(encoded, dict):
        return type(encoded)
    ((kind, content),) = ((k, v) for k, v in encoded.items() if k != "stype")
    if kind in ("list", "tuple"):
        return [_form_of_encoded(item, arrays) for item in content]
    if kind == "array":
        return arrays[content].shape
    return {"dict": dict, "set": set, "numpy": np.ndarray}.get(kind) or type(arrays[content][()])


def shape_fits(param: Parameter, shape: Sequence[int]) -> bool:
    """Return whether `param` has this shape, or may get it: an unknown dimension is 0."""
    if not param.shape:
        return True
    return len(param.shape) == len(shape) and all(
        size in (0, -1, saved_size) for size, saved_size in zip(param.shape, shape, strict=True)
    )


def warn_unsaved_schedule(trainer: Trainer) -> None:
    """Log the attributes of the lr_scheduler that no checkpoint and no file can hold."""
    schedule: Any = optimizer_of(trainer).lr_scheduler
    for owner in [schedule, *nested_schedules(schedule).values()] if schedule is not None else []:
        for name, value in getattr(owner, "__dict__", {}).items():
            if not (is_data(value) or has_only_functions(value)):
                _logger.warning(
                    "%s.%s (a %s) cannot be saved: after a resume or load_states() it is as the "
                    "script has made it",
                    class_key(owner),
                    name,
                    type(value).__name__,
                )


def structural_names(net: Block, params: Iterable[Parameter]) -> list[str]:
    """Return the structural name of each Parameter (``'0.weight'``), as `save_parameters` uses it.

    A Parameter that is not in `net` keeps its own name. A second network in the same process has
    other parameter names, and a trainer sorts by them (``dense10`` comes before ``dense9``);
    structural names stay the same.
    """
    places = {id(param): name for name, param in parameters_by_structure(net).items()}
    return [places.get(id(param), param.name) for param in params]


def names_by_structure(net: Block, params: Iterable[Parameter]) -> dict[str, str]:
    """Return the name of each Parameter, by its structural name."""
    params = list(params)
    return {p: param.name for p, param in zip(structural_names(net, params), params, strict=True)}


def trainer_states(trainer: Trainer) -> TrainerStates:
    """Return the states of `trainer`, any `gluon.Trainer`."""
    updater, *_ = updaters_in_use(trainer)
    params = parameters_of(trainer)
    return TrainerStates.of(optimizer_of(trainer), updater.states, params)


def load_states(
    trainer: Trainer,
    states: TrainerStates,
    keep: frozenset[str] = frozenset(),
    keeps_schedule: bool = False,
) -> None:
    """Let `trainer` continue from `states`.

    Its optimizer keeps the attributes in `keep` and, with `keeps_schedule`, its lr_scheduler's.
    Raises as :meth:`TrainerStates.check` and :func:`trainer_states` do; nothing is changed then.
    """
    updaters = updaters_in_use(trainer)
    optimizer = optimizer_of(trainer)
    params = parameters_of(trainer)
    try:
        states.check(optimizer, params)
        if not states.have_the_form_of(optimizer, params):
            raise DamagedError("its states are not of the form that this optimizer gives them")
        new = [states.updater_states() for _ in updaters]
        states.apply(optimizer, contexts_of(trainer), keep, keeps_schedule)
    except (ValueError, OSError):
        raise
    except DAMAGED as e:  # the file was edited
        raise DamagedError(
            f"the states are none that SVRGTrainer saves ({type(e).__name__}: {e})"
        ) from e
    for updater, updater_states in zip(updaters, new, strict=True):
        updater.states = updater_states
        updater.states_synced = dict.fromkeys(updater_states, False)


def refresh_kvstore(trainer: Trainer) -> None:
    """Give the current weights to a kvstore that runs the optimizer; the states stay."""
    if not has_kvstore_that_updates(trainer):
        return
    states = trainer_states(trainer)
    forget_kvstore(trainer)
    load_states(trainer, states)
