"""Trainer and optimizer; AMP, whose loss scaler MXNet itself puts on the Trainer."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import mxnet as mx
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import full_data, list_data
from mxnet.gluon import Parameter, ParameterDict, Trainer


def parameters_of(trainer: Trainer) -> list[Parameter]:
    """Return all parameters of `trainer`, in its order, which sorts a dict's by their names."""
    return trainer._params


def listed_parameters(params: Any) -> list[Parameter]:
    """Return what a Trainer is made of, in its order; empty if it will refuse them."""
    if isinstance(params, (dict, ParameterDict)):
        return [params[name] for name in sorted(params.keys())]
    return list(params) if isinstance(params, (list, tuple)) else []


def undo_step_scale(optimizer: mx.optimizer.Optimizer, params: list[Parameter]) -> None:
    """Undo what the last step of a former trainer of these parameters has left in `optimizer`.

    A step divides ``rescale_grad`` by the batch size, and a new Trainer would divide it again.
    """
    former = params[0]._trainer if params else None
    if isinstance(former, Trainer) and former._optimizer is optimizer:
        optimizer.rescale_grad = former._scale


def trained_parameters(trainer: Trainer) -> list[Parameter]:
    """Return those of them that have a gradient."""
    return [param for param in trainer._params if param.grad_req != "null"]


def has_fresh_gradient(trainer: Trainer) -> bool:
    """Return whether a backward pass has written a gradient since the last step."""
    return any(
        data._fresh_grad for param in trained_parameters(trainer) for data in list_data(param)
    )


def optimizer_of(trainer: Trainer) -> mx.optimizer.Optimizer:
    """Return the optimizer, also where `Trainer.optimizer` would first make its Updaters."""
    return trainer._optimizer


def contexts_of(trainer: Trainer) -> list[mx.Context]:
    """Return the contexts of the parameters of `trainer`."""
    return trainer._contexts


def step_scale(trainer: Trainer) -> float:
    """Return what `Trainer.step` divides by the batch size: 1, or a user's rescale_grad."""
    return trainer._scale


def kvstore_arguments(trainer: Trainer) -> tuple[object, dict[str, Any] | None]:
    """Return what `trainer` was given as kvstore and as compression_params."""
    return trainer._kvstore_params["kvstore"], trainer._compression_params


def takes_row_sparse(kvstore: object) -> bool:
    """Return whether a kvstore adds up row_sparse gradients: MXNet's own, by name or object."""
    return kvstore is None or isinstance(kvstore, (str, mx.kvstore.KVStore))


def has_kvstore(trainer: Trainer) -> bool:
    """Return whether the kvstore of `trainer` is initialised, or that it has none is known."""
    return bool(trainer._kv_initialized)


def has_kvstore_that_updates(trainer: Trainer) -> bool:
    """Return whether a kvstore runs the optimizer already; initialises nothing."""
    return bool(trainer._kv_initialized and trainer._update_on_kvstore)


def updates_on_kvstore(trainer: Trainer) -> bool:
    """Return whether the kvstore of `trainer` runs the optimizer; initialises the kvstore.

    MXNet gives the first device's arrays to all then, BatchNorm's running statistics too, so that
    they would depend on the moment: here they stay as they are.
    """
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        if len(trainer._contexts) > 1:
            # With static_shape MXNet does not order these reads after the backward pass, which may
            # still be writing running statistics.
            mx.nd.waitall()
        replicas = [
            [(data, data.copy()) for data in param.list_data()[1:]]
            for param in trainer._params_to_init
            if not param._deferred_init and param._stype == "default"
        ]
        trainer._init_params()
        for data, copy in itertools.chain.from_iterable(replicas):
            copy.copyto(data)
    return bool(trainer._kvstore and trainer._update_on_kvstore)


def updaters_in_use(trainer: Trainer) -> list[mx.optimizer.Updater]:
    """Return what holds the optimizer's states: one for each device, or the kvstore's."""
    return [trainer._kvstore._updater] if updates_on_kvstore(trainer) else trainer._updaters


def forget_kvstore(trainer: Trainer) -> None:
    """Make `trainer` create its kvstore again: one that updates holds a copy of the weights."""
    for param in trainer._params:
        if param._stype != "default" and param._data is not None:
            full_data(param)  # which the kvstore alone has
    given = trainer._kvstore_params["kvstore"]
    if isinstance(given, mx.kvstore.KVStore) and trainer._kv_initialized:
        # It knows its keys already, and takes none of them a second time.
        trainer._kvstore_params["kvstore"] = mx.kv.create(given.type)
    trainer._reset_kvstore()


def forget_states(trainer: Trainer) -> None:
    """Drop the optimizer's states: the next step creates new ones."""
    for updater in trainer._updaters:
        updater.states, updater.states_synced = {}, {}


def update_counts(optimizer: mx.optimizer.Optimizer) -> dict[int, dict[int, int]]:
    """Return how often each parameter was updated, by device and index."""
    return optimizer._all_index_update_counts


def set_update_counts(
    optimizer: mx.optimizer.Optimizer, counts: dict[int, int], devices: Iterable[int]
) -> None:
    """Set the counts of updates, by index, the same for each device.

    MXNet counts by device and would start from zero on a device that is new to it; num_update
    would not change until that count has caught up (MXNet issue 17357).
    """
    optimizer._all_index_update_counts = {device: dict(counts) for device in {0, *devices}}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]


UPDATE_COUNTS = ("_index_update_count", "_all_index_update_counts")
"""The attributes of an optimizer that :func:`set_update_counts` sets."""


def loss_scale_of(trainer: Trainer) -> float:
    """Return what MXNet's AMP multiplies the losses by at the moment; 1.0 without it."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    return 1.0 if scaler is None else float(scaler.loss_scale)


def scales_losses(trainer: Trainer) -> bool:
    """Return whether MXNet's AMP scales the losses."""
    return getattr(trainer, "_amp_loss_scaler", None) is not None


def halve_loss_scale(trainer: Trainer) -> bool:
    """Halve the loss scale, as AMP does after an overflow; return whether there is one to halve."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if scaler is None or scaler.loss_scale <= 1:
        return False
    scaler._loss_scale = scaler._next_loss_scale = scaler.loss_scale / 2
    scaler._unskipped = 0
    return True


@contextmanager
def legacy_gradients(trainer: Trainer) -> Iterator[None]:
    """Let the gradients be NDArrays inside the ``with`` block: AMP's scaler takes no others."""
    gradients = [(param, param._grad) for param in trainer._params if param._grad is not None]
    for param, grads in gradients:
        param._grad = [to_nd(grad) for grad in grads]
    try:
        yield
    finally:
        for param, grads in gradients:
            param._grad = grads


def loss_scaler_state(trainer: Trainer) -> dict[str, Any] | None:
    """Return all attributes of AMP's loss scaler, which are numbers; None without one."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    return None if scaler is None else dict(vars(scaler))


def set_loss_scaler_state(trainer: Trainer, state: dict[str, Any] | None) -> None:
    """Put back what :func:`loss_scaler_state` returned, if there is a loss scaler."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if scaler is not None and state is not None:
        vars(scaler).update(state)


_NOT_TRAINED = SimpleNamespace(grad_req="null", _grad=None)


@contextmanager
def left_out(trainer: Trainer, params: Iterable[Parameter]) -> Iterator[None]:
    """Let a step leave `params` alone inside the ``with`` block; the others keep their index."""
    own, names = trainer._params, {param.name for param in params}
    trainer._params = [
        cast(Parameter, _NOT_TRAINED) if param.name in names else param for param in own
    ]
    try:
        yield
    finally:
        trainer._params = own


def name_of_stale(warning: UserWarning) -> str | None:
    """Return the parameter without a gradient that ended a step; None if it was something else."""
    found = re.match("Gradient of Parameter `(.*?)` .*has not been updated", str(warning))
    return None if found is None else found[1]


def watch_plain_trainers(is_made: Callable[[], None], has_stepped: Callable[[], None]) -> None:
    """Call `is_made` when the first `gluon.Trainer` is made, and `has_stepped` after each step.

    Of no other class, and with none of its own kvstores, which may be of several processes. MXNet
    has no place to ask for it, so constructor and update are other ones.
    """
    constructor, update = Trainer.__init__, Trainer._update

    @functools.wraps(constructor)
    def watched(self: Trainer, *args: Any, **kwargs: Any) -> None:
        if type(self) is Trainer:
            Trainer.__init__ = constructor  # type: ignore[method-assign]
            is_made()
        constructor(self, *args, **kwargs)

    @functools.wraps(update)
    def counted(self: Trainer, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        if type(self) is Trainer and takes_row_sparse(self._kvstore):
            has_stepped()

    Trainer.__init__ = watched  # type: ignore[method-assign]
    Trainer._update = counted  # type: ignore[method-assign]
