"""From a run to the contents of a checkpoint, and back.

The files of a checkpoint:

``net.params``
    The network's parameters and auxiliary states, in Gluon's own format: `net.load_parameters`
    reads it, too.
``trainer.npz``
    The optimizer's states, counts, rates and schedule, as `SVRGTrainer.save_states` writes them.
``run.npz``
    Where the run stands, its history, metrics, random states, and the states of its handlers.
"""

from __future__ import annotations

import dataclasses
import platform
import reprlib
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import gluon_svrg
import mxnet as mx
import numpy as np
from gluon_svrg.arrays.replicas import replicas_of, write_replicas
from gluon_svrg.checkpoint.encoding import decode, encode, from_bytes, is_data, to_bytes
from gluon_svrg.checkpoint.folder import Checkpoint
from gluon_svrg.checkpoint.metrics import metric_state, metrics_of, set_metric_state
from gluon_svrg.checkpoint.optimizer_states import States, fits, load_states, places_of, states_of
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.training_data import length_of
from gluon_svrg.events import EventHandler, HandlerList, Stateful
from gluon_svrg.handlers.random_state import RandomStateHandler
from gluon_svrg.run.history import History
from gluon_svrg.run.position import Position, StopReason
from mxnet import gluon
from mxnet.gluon.contrib import estimator as mx_estimator
from mxnet.ndarray import NDArray

NET, TRAINER, RUN = "net.params", "trainer.npz", "run.npz"

# What MXNet's own handlers keep from one event to the next, where they have it.
_COUNTERS: dict[type[EventHandler], tuple[str, ...]] = {
    mx_estimator.StoppingHandler: ("current_batch", "current_epoch"),
    mx_estimator.ValidationHandler: ("current_batch", "current_epoch"),
    mx_estimator.LoggingHandler: ("batch_index", "current_epoch", "processed_samples"),
    mx_estimator.EarlyStoppingHandler: (
        "wait",
        "best",
        "stopped_epoch",
        "current_epoch",
        "stop_training",
    ),
    mx_estimator.CheckpointHandler: ("current_batch", "current_epoch", "best", "saved_checkpoints"),
}


def capture(estimator: Any) -> dict[str, bytes]:
    """Return the files of a checkpoint of the run as it stands, at a *safe point*.

    Raises
    ------
    FloatingPointError
        If a parameter is NaN or infinite: to go on from there would be of no use.
    """
    # First: a MetricHandler brings its metrics up to date.
    handlers = [
        [_class_name(handler), _checked_state_of(estimator, handler)]
        for handler in _stateful(estimator.handlers)
    ]
    for row in [estimator.figures, *estimator.history]:
        for name, value in row.items():
            if not is_data(value):
                raise TypeError(
                    f"estimator.figures[{name!r}] is {reprlib.repr(value)}, which cannot be saved: "
                    "put numbers or strings there"
                )
    params = estimator.net._collect_params_with_prefix()
    values = {name: replicas_of(param.list_data()) for name, param in params.items()}
    _check_finite(params, values)
    state = {
        "position": dataclasses.asdict(estimator.position),
        "history": list(estimator.history),
        "figures": estimator.figures,
        "last_evaluation": estimator.last_evaluation,
        "metrics": {metric.name: metric_state(metric) for metric in metrics_of(estimator)},
        "handlers": handlers,
        "data": _description(estimator.train_data),
        "contexts": len(estimator.context),
        # Auxiliary states differ from context to context.
        "replicas": {name: copies for name, copies in values.items() if len(copies) > 1},
        "outside": [replicas_of(param.list_data()) for param in _outside(estimator)],
        "loss_scaler": _loss_scaler_state(estimator.trainer),
        "trained": places_of(estimator.net, estimator.trainer._params),
    }
    arrays: dict[str, np.ndarray] = {}
    return {
        NET: _params_bytes({name: param.list_data()[0] for name, param in params.items()}),
        TRAINER: states_of(estimator.trainer).to_bytes(),
        RUN: to_bytes({"state": encode(state, arrays)}, arrays),
    }


def about(estimator: Any) -> dict[str, Any]:
    """Return what the manifest says of the run, for people to read."""
    return {
        "position": dataclasses.asdict(estimator.position),
        "versions": {
            "gluon_svrg": gluon_svrg.__version__,
            "mxnet": mx.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def restore(estimator: Any, handlers: HandlerList, checkpoint: Checkpoint) -> Iterator[Any] | None:
    """Put the run back to where `checkpoint` was written.

    Returns
    -------
    iterator or None
        The batches that are left of the epoch under way, or None where the next is to begin.

    Raises
    ------
    ValueError
        If the checkpoint is of another network, trainer or data; nothing is changed then.
    """
    where = f"the checkpoint {str(checkpoint.path)!r}"
    with _reading(where, RUN):
        meta, arrays = from_bytes(checkpoint.files[RUN])
        state = decode(meta["state"], arrays, mx.cpu())
        position = Position(**state["position"])
    with _reading(where, NET):
        weights = mx.nd.load_frombuffer(checkpoint.files[NET])
        weights = dict(weights.items())
    with _reading(where, TRAINER):
        states = States.from_bytes(checkpoint.files[TRAINER])
        own = places_of(estimator.net, estimator.trainer._params)
        if sorted(own) == sorted(state["trained"]):
            states = states.reordered([state["trained"].index(place) for place in own])
    try:
        _check_net(estimator.net, weights)
        states.check(estimator.trainer._optimizer, estimator.trainer._params)
        _check_data(estimator.train_data, state["data"])
    except ValueError as e:
        raise ValueError(f"{where} does not fit this run: {e}") from e
    if state["contexts"] != len(estimator.context):
        estimator.logger.warning(
            "%s was written on %d devices and this run has %d: sums over a batch are taken in "
            "another order, random numbers and BatchNorm's statistics are other ones, so the "
            "weights will be close to those of the run on %d, not the same bits",
            where,
            state["contexts"],
            len(estimator.context),
            state["contexts"],
        )
    undo = _undo(estimator)
    try:
        _set_parameters(estimator, weights, state)
        load_states(estimator.trainer, states)
        _set_loss_scaler_state(estimator.trainer, state["loss_scaler"])
        estimator.position = position
        estimator.history = History(state["history"])
        estimator.figures = state["figures"]
        estimator.last_evaluation = state["last_evaluation"]
        for metric in metrics_of(estimator):
            if metric.name in state["metrics"]:
                set_metric_state(metric, state["metrics"][metric.name])
        return _restore_handlers(estimator, handlers, state["handlers"])
    except BaseException:
        undo()
        raise


@contextmanager
def _reading(where: str, name: str) -> Iterator[None]:
    """Say in one sentence which file is not what it should be, though its checksum is right."""
    try:
        yield
    except Exception as e:
        # MXNet's errors are tracebacks of their own: the last line says it.
        reason = (str(e).splitlines() or [""])[-1]
        raise ValueError(
            f"{where} has a {name} that no CheckpointHandler wrote ({type(e).__name__}: {reason}): "
            "resume from another"
        ) from None


def _undo(estimator: Any) -> Callable[[], None]:
    """Return what puts network and trainer back to what they are now."""
    trainer = estimator.trainer
    params = [*estimator.net.collect_params().values(), *_outside(estimator)]
    copies = [
        (data, data.copy())
        for param in params
        if param._data is not None
        for data in param.list_data()
    ]
    # A trainer whose parameters have no shape yet has no states.
    is_fresh = any(param._deferred_init for param in params)
    states = None if is_fresh else states_of(trainer)

    def undo() -> None:
        for data, copy in copies:
            copy.copyto(data)
        if trainer._kv_initialized and trainer._update_on_kvstore:
            trainer._reset_kvstore()
        if states is not None:
            load_states(trainer, states)

    return undo


def _restore_handlers(
    estimator: Any, handlers: HandlerList, saved: list[list[Any]]
) -> Iterator[Any] | None:
    """Give the handlers their states; return the batches that are left of the epoch."""
    position = estimator.position
    waiting = defaultdict(list)
    for name, state in saved:
        waiting[name].append(state)
    random_state = None
    for handler in _stateful(handlers):
        states = waiting[_class_name(handler)]
        if not states:
            estimator.logger.info(
                "%s was not in the run that wrote the checkpoint: it begins now",
                type(handler).__name__,
            )
            continue
        _set_state(estimator, handler, states.pop(0))
        if isinstance(handler, RandomStateHandler):
            random_state = handler
    for name, states in waiting.items():
        if any(states):
            estimator.logger.warning(
                "the run that wrote the checkpoint had a %s and this one has none: it goes on "
                "without",
                name.rpartition(".")[2],
            )
    if position.batch_in_epoch and not position.is_cut:
        rest = _rest_of(estimator.train_data, position)
    if random_state is not None:
        random_state.go_on(estimator)
    if not position.is_in_epoch:
        return None
    if position.is_cut:
        return iter(())
    # Of an epoch without a batch yet the data begins after the generators have been put back.
    return rest if position.batch_in_epoch else _from_the_begin(estimator.train_data, position)


def _from_the_begin(data: Iterable[Any], position: Position) -> Iterator[Any]:
    if isinstance(data, ArrayLoader):
        data.set_epoch(position.epoch)
    yield from data


def _rest_of(data: Iterable[Any], position: Position) -> Iterator[Any]:
    """Return the batches of an epoch after those that are done."""
    done = position.batch_in_epoch
    if isinstance(data, ArrayLoader):
        data.set_epoch(position.epoch, done)
        return iter(data)
    batches = iter(data)
    for index in range(done):
        if next(batches, None) is None:
            raise ValueError(
                f"train_data has {index} batches in this epoch and the checkpoint was written "
                f"after {done} of them: resume with the data that it was written with"
            )
    return batches


def _stateful(handlers: HandlerList) -> list[EventHandler]:
    # Random states last: what comes before may draw.
    found = [h for h in handlers if isinstance(h, (Stateful, *_COUNTERS))]
    return sorted(found, key=lambda handler: isinstance(handler, RandomStateHandler))


def _state_of(estimator: Any, handler: EventHandler) -> dict[str, Any]:
    if isinstance(handler, Stateful):
        return handler.state_dict(estimator)
    return {name: vars(handler)[name] for name in _counters_of(handler) if name in vars(handler)}


def _checked_state_of(estimator: Any, handler: EventHandler) -> dict[str, Any]:
    state = _state_of(estimator, handler)
    if not is_data(state):
        raise TypeError(
            f"the state of {type(handler).__name__} cannot be saved: state_dict() must return "
            "None, numbers, strings, arrays, and lists, tuples, sets and dicts (by strings or "
            f"integers) of them, got {reprlib.repr(state)}"
        )
    return state


def _set_state(estimator: Any, handler: EventHandler, state: dict[str, Any]) -> None:
    if isinstance(handler, Stateful):
        handler.load_state_dict(estimator, state)
        return
    vars(handler).update(state)
    if isinstance(handler, mx_estimator.StoppingHandler):
        handler.stop_training = False  # the run may have a greater number of epochs now
    if isinstance(handler, mx_estimator.LoggingHandler):
        handler.epoch_start = time.time()  # which it asks for at the epoch's end
    if isinstance(handler, mx_estimator.EarlyStoppingHandler) and handler.stop_training:
        estimator.stop(StopReason.HANDLER)  # it had ended the run


def _counters_of(handler: EventHandler) -> tuple[str, ...]:
    return next(names for kind, names in _COUNTERS.items() if isinstance(handler, kind))


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _outside(estimator: Any) -> list[gluon.Parameter]:
    """Return the parameters that are trained and that the network does not have."""
    inside = {id(param) for param in estimator.net.collect_params().values()}
    return [param for param in estimator.trainer._params if id(param) not in inside]


def _check_finite(params: dict[str, Any], values: dict[str, list[np.ndarray]]) -> None:
    for name, arrays in values.items():
        if not all(np.isfinite(array).all() for array in arrays):
            raise FloatingPointError(f"parameter {params[name].name!r} is NaN or infinite")


def _params_bytes(arrays: dict[str, NDArray]) -> bytes:
    """Return what `mx.nd.save` writes into a file.

    That would not notice a full disk. It is the header that MXNet gives to lists of arrays, each
    array as MXNet gives it for pickling, and the names.
    """
    parts = [struct.pack("<QQQ", 0x112, 0, len(arrays))]
    parts += [bytes(a.as_in_context(mx.cpu()).__getstate__()["handle"]) for a in arrays.values()]
    parts.append(struct.pack("<Q", len(arrays)))
    for name in arrays:
        encoded = name.encode()
        parts += [struct.pack("<Q", len(encoded)), encoded]
    return b"".join(parts)


def _check_net(net: gluon.Block, weights: dict[str, NDArray]) -> None:
    params = net._collect_params_with_prefix()
    if len(params) != len(weights):
        raise ValueError(
            f"it has {len(weights)} parameters and the network has {len(params)}: resume with the "
            "network that it was written with"
        )
    for name, param in params.items():
        if name not in weights:
            raise ValueError(
                f"it has no parameter {name!r}, which the network has: resume with the network "
                "that it was written with"
            )
        if not fits(param, weights[name].shape):
            raise ValueError(
                f"its parameter {name!r} has shape {weights[name].shape} and the network's "
                f"{param.shape}: resume with the network that it was written with"
            )
        if np.dtype(param.dtype) != weights[name].dtype:
            raise ValueError(
                f"its parameter {name!r} has dtype {np.dtype(weights[name].dtype).name} and the "
                f"network's {np.dtype(param.dtype).name}: cast the network as it was"
            )


def _set_parameters(estimator: Any, weights: dict[str, NDArray], state: dict[str, Any]) -> None:
    """Write the parameters in place: `Parameter.set_data` would reset the kvstore each time."""
    trainer = estimator.trainer
    for name, param in estimator.net._collect_params_with_prefix().items():
        values = state["replicas"].get(name) or [weights[name].asnumpy()]
        if param._deferred_init:
            param.shape = weights[name].shape
            param._finish_deferred_init()
        write_replicas(values, param.list_data())
    for param, values in zip(_outside(estimator), state["outside"], strict=True):
        write_replicas(values, param.list_data())
    if trainer._kv_initialized and trainer._update_on_kvstore:
        trainer._reset_kvstore()  # it holds the weights, too


def _description(data: Any) -> dict[str, Any]:
    """Return what of the data has to be the same after a resume."""
    if isinstance(data, ArrayLoader):
        return {
            "samples": data.num_samples,
            "batch_size": data.batch_size,
            "shuffle": data.shuffle,
            "seed": data.seed if data.shuffle or data.is_random else None,
        }
    return {"batches": length_of(data)}


def _check_data(data: Any, saved: dict[str, Any]) -> None:
    own = _description(data)
    if set(own) != set(saved):
        kinds = ["an ArrayLoader" if "seed" in d else "no ArrayLoader" for d in (saved, own)]
        raise ValueError(
            f"its train_data was {kinds[0]} and now it is {kinds[1]}: resume with the data that "
            "it was written with"
        )
    for name, value in own.items():
        if value != saved[name]:
            raise ValueError(
                f"its train_data had {name}={saved[name]!r} and now it has {name}={value!r}: "
                "resume with the data that it was written with"
            )


def check_data_can_go_on(data: Any) -> None:
    """Raise ValueError where a run on `data` cannot be resumed."""
    # MXNet keeps the samples that are left over in a private attribute of the sampler.
    sampler = data._batch_sampler if isinstance(data, gluon.data.DataLoader) else None
    if isinstance(sampler, gluon.data.BatchSampler) and sampler._last_batch == "rollover":
        raise ValueError(
            "train_data has last_batch='rollover', which carries samples from epoch to epoch, and "
            "a checkpoint cannot hold them: use last_batch='keep' or 'discard'"
        )


def _loss_scaler_state(trainer: gluon.Trainer) -> dict[str, Any] | None:
    # MXNet's AMP puts this attribute there; MXNet itself asks for it in this way.
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    return None if scaler is None else dict(vars(scaler))


def _set_loss_scaler_state(trainer: gluon.Trainer, state: dict[str, Any] | None) -> None:
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if scaler is not None and state is not None:
        vars(scaler).update(state)
