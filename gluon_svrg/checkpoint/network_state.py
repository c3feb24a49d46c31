"""The state of a run's network: parameters, auxiliary states, and what is frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.block import (
    finish_initialization,
    full_data,
    has_data,
    has_shape,
    is_differentiable,
    parameters_by_structure,
)
from gluon_svrg._mxnet.trainer import forget_kvstore, has_kvstore_that_updates, parameters_of
from gluon_svrg.arrays.replicas import distinct_replicas, mean_replicas, write_replicas
from gluon_svrg.events import Run, State
from gluon_svrg.optimizer.states import shape_fits
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray


def save_network(run: Run) -> State:
    """Return the arrays of one context, and of all contexts if they differ.

    Parameters that are trained outside of the network (a loss's parameters) are part of it.

    Raises
    ------
    FloatingPointError
        If one is NaN or infinite: a run could not continue from it.
    RuntimeError
        If the shape of one is not known, because no batch has reached its layer.
    """
    params = parameters_by_structure(run.net)
    _check_have_shapes(params)
    # With static_shape MXNet does not order a read after the backward pass that writes running
    # statistics.
    mx.nd.waitall()
    values = {name: distinct_replicas(full_data(param)) for name, param in params.items()}
    for name, copies in values.items():
        if not all(np.isfinite(array).all() for array in copies):
            raise FloatingPointError(f"parameter {params[name].name!r} is NaN or infinite")
    return {
        # For users who load the file: the mean of the contexts' running statistics.
        "weights": {
            name: full_data(param)[0]
            if len(values[name]) == 1
            else mx.nd.array(np.mean(values[name], axis=0, dtype="float64"), dtype=param.dtype)
            for name, param in params.items()
        },
        "contexts": len(run.context),
        # Auxiliary states differ from context to context.
        "replicas": {name: copies for name, copies in values.items() if len(copies) > 1},
        "outside": [distinct_replicas(full_data(param)) for param in _outside(run)],
        "frozen": sorted(frozen_parameters(run)),
        "frozen_at_start": sorted(run.frozen_at_start),
    }


def check_network(run: Run, state: State) -> None:
    """Compare names, shapes and dtypes with the network's."""
    params, weights = parameters_by_structure(run.net), state["weights"]
    if len(params) != len(weights):
        raise ValueError(
            f"it has {len(weights)} parameters and the network has {len(params)}: resume with "
            "the network that it was written with"
        )
    for name, param in params.items():
        if name not in weights:
            raise ValueError(
                f"it has no parameter {name!r}, which the network has: resume with the "
                "network that it was written with"
            )
        _check_parameter(name, param, weights[name])
        if not np.isfinite(weights[name].asnumpy()).all():
            raise ValueError(f"its parameter {name!r} is NaN or infinite")


def load_network(run: Run, state: State) -> None:
    """Write the parameters in place: `Parameter.set_data` would reset the kvstore each time."""
    if state["contexts"] != len(run.context):
        run.logger.warning(
            "resume: a checkpoint of %d devices continues on %d: the results will be close, but "
            "not bitwise equal (order of sums, random numbers, BatchNorm's statistics)",
            state["contexts"],
            len(run.context),
        )
    _renew_kvstore(run)  # first: it may be the only one to have all rows of the weights
    for name, param in parameters_by_structure(run.net).items():
        weight = state["weights"][name]
        if not has_shape(param):
            finish_initialization(param, weight.shape)
        write_replicas(state["replicas"].get(name) or [weight.asnumpy()], full_data(param))
    for param, values in zip(_outside(run), state["outside"], strict=True):
        write_replicas(values, full_data(param))
    if "frozen" in state:  # version 0.8 has none
        _freeze(run, frozenset(state["frozen"]), frozenset(state["frozen_at_start"]))


def merge_network(_run: Run, states: Sequence[State]) -> State:
    """Average what differs between workers: the running statistics."""
    first = states[0]
    weights, replicas = dict(first["weights"]), dict(first["replicas"])
    for name, weight in first["weights"].items():
        copies = [
            state["replicas"].get(name) or [state["weights"][name].asnumpy()] for state in states
        ]
        values = mean_replicas(copies)
        if values is not copies[0]:
            weights[name] = mx.nd.array(values[0], dtype=weight.dtype)
            replicas.pop(name, None)
    outside = zip(*(state["outside"] for state in states), strict=True)
    return {
        **first,
        "weights": weights,
        "replicas": replicas,
        "outside": [mean_replicas(copies) for copies in outside],
    }


def remember_network(run: Run) -> Callable[[], None]:
    """Return a function that writes the current arrays back."""
    params = [*run.net.collect_params().values(), *_outside(run)]
    copies = [
        (data, data.copy()) for param in params if has_data(param) for data in full_data(param)
    ]
    frozen = frozen_parameters(run)

    def put_back() -> None:
        _renew_kvstore(run)
        for data, copy in copies:
            copy.copyto(data)
        _set_frozen(run, frozen)

    return put_back


def frozen_parameters(run: Run) -> frozenset[str]:
    """Return the names, by their place in the network, of the parameters without a gradient."""
    params = parameters_by_structure(run.net).items()
    return frozenset(
        name for name, param in params if is_differentiable(param) and param.grad_req == "null"
    )


def _freeze(run: Run, frozen: frozenset[str], at_start: frozenset[str]) -> None:
    """Freeze what handlers have frozen, and train what they have unfrozen, since the start.

    Unless this run has begun with other frozen parameters: then the user has changed them.
    """
    if at_start == run.frozen_at_start:
        _set_frozen(run, frozen)
    elif frozen != run.frozen_at_start and run.workers.is_first:
        other = min(frozen ^ run.frozen_at_start)
        state, saved = "frozen", "trained"
        if other in frozen:
            state, saved = saved, state
        run.logger.warning(
            "resume: parameter %r is %s (grad_req) as this run was given it, and was %s when "
            "the checkpoint was written",
            other,
            state,
            saved,
        )


def _set_frozen(run: Run, frozen: frozenset[str]) -> None:
    now = frozen_parameters(run)
    for name, param in parameters_by_structure(run.net).items():
        if (name in frozen) != (name in now):
            param.grad_req = "null" if name in frozen else "write"


def _outside(run: Run) -> list[Parameter]:
    """Return the trained parameters that are not in the network."""
    inside = {id(param) for param in run.net.collect_params().values()}
    return [param for param in parameters_of(run.trainer) if id(param) not in inside]


def _renew_kvstore(run: Run) -> None:
    if has_kvstore_that_updates(run.trainer):
        forget_kvstore(run.trainer)  # it holds the weights, too


def _check_have_shapes(params: Mapping[str, Parameter]) -> None:
    for name, param in params.items():
        if not has_data(param):
            raise RuntimeError(
                f"parameter {name!r} ({param.name}) has no shape, so a checkpoint cannot hold it: "
                "no batch has reached its layer; take the layer out of the network, or tell it its "
                "input's length, as in Dense(10, in_units=20)"
            )


def _check_parameter(place: str, param: Parameter, weight: NDArray) -> None:
    if not shape_fits(param, weight.shape):
        raise ValueError(
            f"its parameter {place!r} has shape {weight.shape} and the network's {param.shape}: "
            "resume with the network that it was written with"
        )
    if np.dtype(param.dtype) != weight.dtype:
        raise ValueError(
            f"its parameter {place!r} has dtype {np.dtype(weight.dtype).name} and the network's "
            f"{np.dtype(param.dtype).name}: cast the network as it was"
        )
