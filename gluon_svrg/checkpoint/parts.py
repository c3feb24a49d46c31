"""The parts of a run in a checkpoint, each of which is saved, checked and restored by itself."""

from __future__ import annotations

import logging
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import (
    finish_initialization,
    forget_kvstore,
    full_data,
    has_data,
    has_kvstore_that_updates,
    has_shape,
    is_differentiable,
    loss_scaler_state,
    optimizer_of,
    parameters_by_structure,
    parameters_of,
    set_loss_scaler_state,
)
from gluon_svrg.arrays.encoding import is_data
from gluon_svrg.arrays.replicas import distinct_replicas, mean_replicas, write_replicas
from gluon_svrg.events import Run, State
from gluon_svrg.metrics.state import all_metrics, metric_state, set_metric_state
from gluon_svrg.optimizer.states import (
    TrainerStates,
    load_states,
    shape_fits,
    structural_names,
    trainer_states,
)
from gluon_svrg.run import Position
from gluon_svrg.settings import (
    NOT_MEASURED,
    OPTIMIZER,
    PLACES,
    SCHEDULE,
    differences,
    scheduled_attributes,
    scheduled_in,
)
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray


class Part(ABC):
    """A part of a run's state.

    The state is plain data, as :mod:`gluon_svrg.arrays.encoding` takes it.
    """

    @abstractmethod
    def state_dict(self) -> Any:
        """Return the state, at a *safe point*."""

    def check(self, state: Any) -> None:  # noqa: B027  # most parts take any state
        """Raise ValueError if `state` does not fit this run; changes nothing."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`, which was checked."""

    def merged(self, states: Sequence[Any], is_first: bool) -> Any:
        """Merge the states of another number of workers into the state for this worker.

        As for :meth:`gluon_svrg.events.Stateful.merged`; by default worker 0's state.
        """
        return states[0]

    def undo(self) -> Callable[[], None]:
        """Return a function that puts the part back to its current state, if a restore fails.

        By default it does nothing, because each call of `fit` starts with a new state.
        """
        return lambda: None


def frozen_parameters(run: Run) -> frozenset[str]:
    """Return the names, by their place in the network, of the parameters without a gradient."""
    params = parameters_by_structure(run.net).items()
    return frozenset(
        name for name, param in params if is_differentiable(param) and param.grad_req == "null"
    )


def _set_frozen(run: Run, frozen: frozenset[str]) -> None:
    now = frozen_parameters(run)
    for name, param in parameters_by_structure(run.net).items():
        if (name in frozen) != (name in now):
            param.grad_req = "null" if name in frozen else "write"


class NetworkPart(Part):
    """Parameters and auxiliary states, also those that are trained outside (a loss's parameters).

    Parameters
    ----------
    run : Run
        Whose network, trainer and contexts it is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the arrays of one context, and of all contexts if they differ.

        Raises
        ------
        FloatingPointError
            If one is NaN or infinite: a run could not continue from it.
        RuntimeError
            If the shape of one is not known, because no batch has reached its layer.
        """
        params = parameters_by_structure(self._run.net)
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
            "contexts": len(self._run.context),
            # Auxiliary states differ from context to context.
            "replicas": {name: copies for name, copies in values.items() if len(copies) > 1},
            "outside": [distinct_replicas(full_data(param)) for param in self._outside()],
            "frozen": sorted(frozen_parameters(self._run)),
            "frozen_at_start": sorted(self._run.frozen_at_start),
        }

    def check(self, state: State) -> None:
        """Compare names, shapes and dtypes with the network's."""
        params, weights = parameters_by_structure(self._run.net), state["weights"]
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

    def load_state_dict(self, state: State) -> None:
        """Write the parameters in place: `Parameter.set_data` would reset the kvstore each time."""
        if state["contexts"] != len(self._run.context):
            self._warn_of_devices(state["contexts"])
        self._renew_kvstore()  # first: it may be the only one to have all rows of the weights
        for name, param in parameters_by_structure(self._run.net).items():
            weight = state["weights"][name]
            if not has_shape(param):
                finish_initialization(param, weight.shape)
            write_replicas(state["replicas"].get(name) or [weight.asnumpy()], full_data(param))
        for param, values in zip(self._outside(), state["outside"], strict=True):
            write_replicas(values, full_data(param))
        if "frozen" in state:  # version 0.8 has none
            self._freeze(frozenset(state["frozen"]), frozenset(state["frozen_at_start"]))

    def _freeze(self, frozen: frozenset[str], at_start: frozenset[str]) -> None:
        """Freeze what handlers have frozen, and train what they have unfrozen, since the start.

        Unless this run has begun with other frozen parameters: then the user has changed them.
        """
        run = self._run
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

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Average what differs between workers: the running statistics."""
        first = states[0]
        weights, replicas = dict(first["weights"]), dict(first["replicas"])
        for name, weight in first["weights"].items():
            copies = [
                state["replicas"].get(name) or [state["weights"][name].asnumpy()]
                for state in states
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

    def undo(self) -> Callable[[], None]:
        """Return a function that writes the current arrays back."""
        params = [*self._run.net.collect_params().values(), *self._outside()]
        copies = [
            (data, data.copy()) for param in params if has_data(param) for data in full_data(param)
        ]

        frozen = frozen_parameters(self._run)

        def put_back() -> None:
            self._renew_kvstore()
            for data, copy in copies:
                copy.copyto(data)
            _set_frozen(self._run, frozen)

        return put_back

    def _outside(self) -> list[Parameter]:
        """Return the trained parameters that are not in the network."""
        inside = {id(param) for param in self._run.net.collect_params().values()}
        return [param for param in parameters_of(self._run.trainer) if id(param) not in inside]

    def _renew_kvstore(self) -> None:
        if has_kvstore_that_updates(self._run.trainer):
            forget_kvstore(self._run.trainer)  # it holds the weights, too

    def _warn_of_devices(self, saved: int) -> None:
        self._run.logger.warning(
            "resume: a checkpoint of %d devices continues on %d: the results will be close, but "
            "not bitwise equal (order of sums, random numbers, BatchNorm's statistics)",
            saved,
            len(self._run.context),
        )


class TrainerPart(Part):
    """The optimizer's states, counts, rates and schedule.

    Parameters
    ----------
    run : Run
        Whose trainer it is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the states, and the structural name of each parameter."""
        return {
            "states": trainer_states(self._run.trainer),
            "places": self._places(),
            "settings": self._run.settings,
        }

    def check(self, state: State) -> None:
        """Compare optimizer, schedule and parameters with the trainer's."""
        trainer = self._run.trainer
        states = self._in_own_order(state)
        states.check(optimizer_of(trainer), parameters_of(trainer))
        changed = self._changed(state).get(OPTIMIZER)
        if changed and not states.have_the_form_of(optimizer_of(trainer), parameters_of(trainer)):
            raise ValueError(
                f"its optimizer has {_told(changed, 0)} and this trainer's {_told(changed, 1)}, "
                "which needs states of another form: give the same, or begin a new run from its "
                "net.params"
            )

    def load_state_dict(self, state: State) -> None:
        """Restore the trainer, but keep the settings that were given to this run only."""
        changed = self._changed(state)
        load_states(
            self._run.trainer,
            self._in_own_order(state),
            keep=frozenset(changed.get(OPTIMIZER, ())) - scheduled_attributes(self._run.settings),
            keeps_schedule=SCHEDULE in changed,
        )
        self._tell(changed, state)
        own, saved = (s.get(OPTIMIZER, {}) for s in (self._run.settings, state["settings"]))
        if own.get("lr") == NOT_MEASURED and isinstance(saved.get("lr"), str):
            own["lr"] = saved["lr"]  # which was measured before the checkpoint

    def _changed(self, state: State) -> dict[str, dict[str, tuple[Any, Any]]]:
        """Return the settings that differ between the checkpoint's run and this run."""
        return differences(state["settings"], self._run.settings)

    def _tell(self, changed: dict[str, dict[str, tuple[Any, Any]]], state: State) -> None:
        if not self._run.workers.is_first:
            return
        scheduled = scheduled_in(self._run.settings).values()
        for owner, name in scheduled_in(state["settings"]).items():
            if name not in scheduled:
                self._run.logger.warning(
                    "resume: the checkpoint's run had a%s %s for %s and this one has none: it "
                    "stays at %.4g, as that has left it",
                    "n" if owner[0] == "A" else "",
                    owner,
                    name,
                    self._value_of(name),
                )
        if changed:
            changes = [f"{owner}: {_told(values, 1, 0)}" for owner, values in changed.items()]
            changed_names = {name for values in changed.values() for name in values}
            self._run.logger.log(
                logging.INFO if changed_names <= PLACES else logging.WARNING,
                "resume: this run was given other settings than the checkpoint's, and goes on with "
                "its own: %s",
                "; ".join(changes),
            )

    def _value_of(self, hyperparameter: str) -> float:
        trainer = self._run.trainer
        if hyperparameter == "learning_rate":
            return float(trainer.learning_rate)
        return float(getattr(optimizer_of(trainer), hyperparameter))

    def undo(self) -> Callable[[], None]:
        """Return a function that loads the current states."""
        trainer = self._run.trainer
        params = [*self._run.net.collect_params().values(), *parameters_of(trainer)]
        if not all(has_shape(param) for param in params):
            return lambda: None  # it has no states yet
        states = trainer_states(trainer)
        return lambda: load_states(trainer, states)

    def _in_own_order(self, state: State) -> TrainerStates:
        """Return the states in the trainer's order, which depends on the parameters' names."""
        states = cast(TrainerStates, state["states"])
        saved, current = state["places"], self._places()
        if sorted(current) != sorted(saved):
            return states
        return states.reordered([saved.index(name) for name in current])

    def _places(self) -> list[str]:
        return structural_names(self._run.net, parameters_of(self._run.trainer))


class LossScalePart(Part):
    """The loss scaler of MXNet's AMP, if there is one.

    Parameters
    ----------
    run : Run
        Whose trainer has it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State | None:
        """Return its attributes."""
        return loss_scaler_state(self._run.trainer)

    def load_state_dict(self, state: State | None) -> None:
        """Restore its attributes."""
        set_loss_scaler_state(self._run.trainer, state)

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the current attributes."""
        state = self.state_dict()
        return lambda: self.load_state_dict(state)


class PositionPart(Part):
    """The position of the run.

    Parameters
    ----------
    run : Run
        The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the position."""
        return self._run.position.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Set the position of the run."""
        self._run.position = Position.from_state(state)


class HistoryPart(Part):
    """The rows of the finished epochs, and the figures so far of the current one.

    Parameters
    ----------
    run : Run
        Whose history it is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the rows; raises TypeError if something in them is no plain data."""
        for row in [self._run.figures, *self._run.history]:
            for name, value in row.items():
                if not is_data(value):
                    raise TypeError(
                        f"estimator.figures[{name!r}] is {reprlib.repr(value)}, which cannot be "
                        "saved: put numbers or strings there"
                    )
        return {
            "history": list(self._run.history),
            "figures": self._run.figures,
            "last_evaluation": self._run.last_evaluation,
            "evaluated_at": self._run.state.evaluated_at,
            "evaluated_at_batch": self._run.state.evaluated_at_batch,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the rows."""
        self._run.history[:] = state["history"]
        self._run.figures = state["figures"]
        self._run.last_evaluation = state["last_evaluation"]
        self._run.state.evaluated_at = state["evaluated_at"]
        self._run.state.evaluated_at_batch = state["evaluated_at_batch"]


class MetricsPart(Part):
    """The states of the metrics of training and evaluation, by name.

    Parameters
    ----------
    run : Run
        Whose metrics they are.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the states of the metrics."""
        return {metric.name: metric_state(metric) for metric in all_metrics(self._run)}

    def load_state_dict(self, state: State) -> None:
        """Restore the metrics that both runs have; reset the others."""
        for metric in all_metrics(self._run):
            if metric.name in state:
                set_metric_state(metric, state[metric.name])
            else:
                metric.reset()
                if self._run.position.batch_in_epoch and metric in self._run.train_metrics:
                    self._run.logger.warning(
                        "resume: the checkpoint has no value of the metric %r: in epoch %d it "
                        "covers only the batches after the resume",
                        metric.name,
                        self._run.position.epoch,
                    )


class DataPart(Part):
    """A description of the training data, which must be the same; the position gives the order.

    Parameters
    ----------
    run : Run
        Whose data they are.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return a description of the data."""
        return self._run.data.description()

    def check(self, state: State) -> None:
        """Compare it with the description of this run's data."""
        self._run.data.check_description(state)

    def load_state_dict(self, state: State) -> None:
        """Do nothing: the loop reads the remaining batches of the epoch from the data."""


def _told(changed: dict[str, tuple[Any, Any]], which: int, instead_of: int | None = None) -> str:
    """Return settings in words: one of their two values, and perhaps the other."""
    return ", ".join(
        f"{name} {values[which]}" + ("" if instead_of is None else f" (not {values[instead_of]})")
        for name, values in changed.items()
    )


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
