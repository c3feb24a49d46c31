"""The parts of a run that a checkpoint holds: each is saved, checked and put back by itself."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet import (
    finish_initialization,
    forget_kvstore,
    has_data,
    has_kvstore_that_updates,
    has_shape,
    loss_scaler_state,
    optimizer_of,
    parameters_by_place,
    parameters_of,
    set_loss_scaler_state,
    whole_data,
)
from gluon_svrg.arrays.replicas import mean_replicas, replicas_of, write_replicas
from gluon_svrg.checkpoint.encoding import is_data
from gluon_svrg.checkpoint.metrics import metric_state, metrics_of, set_metric_state
from gluon_svrg.checkpoint.optimizer_states import States, fits, load_states, places_of, states_of
from gluon_svrg.events import Run, State
from gluon_svrg.run.history import History
from gluon_svrg.run.metrics import renamed_metrics
from gluon_svrg.run.position import Position
from gluon_svrg.run.settings import OPTIMIZER, SCHEDULE, differences, scheduled_in
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray


class Part(ABC):
    """One of the things that a run depends on.

    Its state is plain data, as :mod:`gluon_svrg.checkpoint.encoding` takes it.
    """

    @abstractmethod
    def state_dict(self) -> Any:
        """Return the state, at a *safe point*."""

    def check(self, state: Any) -> None:  # noqa: B027  # most parts take any state
        """Raise ValueError if `state` is not of such a run; changes nothing."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`, which was checked."""

    def merged(self, states: Sequence[Any], is_first: bool) -> Any:
        """Return the state with which a worker goes on from those of another number of workers.

        As for :meth:`gluon_svrg.events.Stateful.merged`: the first worker's by default.
        """
        return states[0]

    def undo(self) -> Callable[[], None]:
        """Return what puts the part back to what it is now, for a restore that fails.

        Nothing by default: what belongs to one call of `fit` begins anew with the next.
        """
        return lambda: None


class Network(Part):
    """Parameters and auxiliary states, and what is trained besides (a loss's parameters).

    Parameters
    ----------
    run : Run
        Whose network, trainer and contexts it is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the arrays of one context, and of all if they differ.

        Raises
        ------
        FloatingPointError
            If one is NaN or infinite: to continue from there would be of no use.
        RuntimeError
            If the shape of one is not known, since no batch has reached its layer.
        """
        params = parameters_by_place(self._run.net)
        _check_have_shapes(params)
        # With static_shape MXNet does not order a read after the backward pass that writes running
        # statistics.
        mx.nd.waitall()
        values = {place: replicas_of(whole_data(param)) for place, param in params.items()}
        for place, copies in values.items():
            if not all(np.isfinite(array).all() for array in copies):
                raise FloatingPointError(f"parameter {params[place].name!r} is NaN or infinite")
        return {
            # For those who read the file by themselves: of running statistics the mean.
            "weights": {
                place: whole_data(param)[0]
                if len(values[place]) == 1
                else mx.nd.array(np.mean(values[place], axis=0, dtype="float64"), dtype=param.dtype)
                for place, param in params.items()
            },
            "contexts": len(self._run.context),
            # Auxiliary states differ from context to context.
            "replicas": {place: copies for place, copies in values.items() if len(copies) > 1},
            "outside": [replicas_of(whole_data(param)) for param in self._outside()],
        }

    def check(self, state: State) -> None:
        """Compare names, shapes and dtypes with the network's."""
        params, weights = parameters_by_place(self._run.net), state["weights"]
        if len(params) != len(weights):
            raise ValueError(
                f"it has {len(weights)} parameters and the network has {len(params)}: resume with "
                "the network that it was written with"
            )
        for place, param in params.items():
            if place not in weights:
                raise ValueError(
                    f"it has no parameter {place!r}, which the network has: resume with the "
                    "network that it was written with"
                )
            _check_parameter(place, param, weights[place])
            if not np.isfinite(weights[place].asnumpy()).all():
                raise ValueError(f"its parameter {place!r} is NaN or infinite")

    def load_state_dict(self, state: State) -> None:
        """Write the parameters in place: `Parameter.set_data` would reset the kvstore each time."""
        if state["contexts"] != len(self._run.context):
            self._warn_of_devices(state["contexts"])
        self._renew_kvstore()  # first: it may be the only one to have all rows of the weights
        for place, param in parameters_by_place(self._run.net).items():
            weight = state["weights"][place]
            if not has_shape(param):
                finish_initialization(param, weight.shape)
            write_replicas(state["replicas"].get(place) or [weight.asnumpy()], whole_data(param))
        for param, values in zip(self._outside(), state["outside"], strict=True):
            write_replicas(values, whole_data(param))

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Take the mean of what differs from worker to worker: the running statistics."""
        first = states[0]
        weights, replicas = dict(first["weights"]), dict(first["replicas"])
        for place, weight in first["weights"].items():
            copies = [
                state["replicas"].get(place) or [state["weights"][place].asnumpy()]
                for state in states
            ]
            values = mean_replicas(copies)
            if values is not copies[0]:
                weights[place] = mx.nd.array(values[0], dtype=weight.dtype)
                replicas.pop(place, None)
        outside = zip(*(state["outside"] for state in states), strict=True)
        return {
            **first,
            "weights": weights,
            "replicas": replicas,
            "outside": [mean_replicas(copies) for copies in outside],
        }

    def undo(self) -> Callable[[], None]:
        """Return what writes the arrays back as they are now."""
        params = [*self._run.net.collect_params().values(), *self._outside()]
        copies = [
            (data, data.copy()) for param in params if has_data(param) for data in whole_data(param)
        ]

        def put_back() -> None:
            self._renew_kvstore()
            for data, copy in copies:
                copy.copyto(data)

        return put_back

    def _outside(self) -> list[Parameter]:
        """Return the parameters that are trained and that the network does not have."""
        inside = {id(param) for param in self._run.net.collect_params().values()}
        return [param for param in parameters_of(self._run.trainer) if id(param) not in inside]

    def _renew_kvstore(self) -> None:
        if has_kvstore_that_updates(self._run.trainer):
            forget_kvstore(self._run.trainer)  # it holds the weights, too

    def _warn_of_devices(self, saved: int) -> None:
        self._run.logger.warning(
            "the checkpoint was written on %d devices and this run has %d: sums over a batch are "
            "taken in another order, random numbers and BatchNorm's statistics are different, so "
            "the weights will be close to those of the run on %d, not the same bits",
            saved,
            len(self._run.context),
            saved,
        )


class TrainerStates(Part):
    """The optimizer's states, counts, rates and schedule.

    Parameters
    ----------
    run : Run
        Whose trainer it is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the states, and the place in the network of each parameter."""
        return {
            "states": states_of(self._run.trainer),
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
        """Let the trainer continue; what this run was given and that one was not stays."""
        changed = self._changed(state)
        load_states(
            self._run.trainer,
            self._in_own_order(state),
            keep=frozenset(changed.get(OPTIMIZER, ())),
            keeps_schedule=SCHEDULE in changed,
        )
        self._tell(changed, state)

    def _changed(self, state: State) -> dict[str, dict[str, tuple[Any, Any]]]:
        """Return the settings of this run that differ from those the checkpoint's run was given."""
        return differences(state.get("settings") or {}, self._run.settings)

    def _tell(self, changed: dict[str, dict[str, tuple[Any, Any]]], state: State) -> None:
        if not self._run.workers.is_first:
            return
        own = scheduled_in(self._run.settings).values()
        for name in scheduled_in(state.get("settings") or {}).values():
            if name not in own:
                self._run.logger.warning(
                    "resume: the checkpoint's run had a ScheduleHandler for %s and this one has "
                    "none: it stays at %.4g, as that has left it",
                    name,
                    self._value_of(name),
                )
        if changed:
            told = [f"{owner}: {_told(values, 1, 0)}" for owner, values in changed.items()]
            self._run.logger.warning(
                "resume: this run was given other settings than the checkpoint's, and goes on with "
                "its own: %s",
                "; ".join(told),
            )
        elif not state.get("settings"):  # of an earlier version, which did not note them
            settings = self._run.settings
            overruled = state["states"].overruled(settings[OPTIMIZER], settings.get(SCHEDULE, {}))
            if overruled:
                self._run.logger.warning(
                    "resume: the checkpoint is of an earlier version, and its settings of the "
                    "optimizer replace those of this run: %s; change them after the resume, by a "
                    "ScheduleHandler",
                    _told(overruled, 0, 1),
                )

    def _value_of(self, hyperparameter: str) -> float:
        trainer = self._run.trainer
        if hyperparameter == "learning_rate":
            return float(trainer.learning_rate)
        return float(getattr(optimizer_of(trainer), hyperparameter))

    def undo(self) -> Callable[[], None]:
        """Return what loads the states as they are now."""
        trainer = self._run.trainer
        params = [*self._run.net.collect_params().values(), *parameters_of(trainer)]
        if not all(has_shape(param) for param in params):
            return lambda: None  # it has no states yet
        states = states_of(trainer)
        return lambda: load_states(trainer, states)

    def _in_own_order(self, state: State) -> States:
        """Return the states in the trainer's order, which depends on the parameters' names."""
        states = cast(States, state["states"]).for_optimizer(optimizer_of(self._run.trainer))
        saved, own = state["places"], self._places()
        if sorted(own) != sorted(saved):
            return states
        return states.reordered([saved.index(place) for place in own])

    def _places(self) -> list[str]:
        return places_of(self._run.net, parameters_of(self._run.trainer))


class LossScale(Part):
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
        """Put them back."""
        set_loss_scaler_state(self._run.trainer, state)

    def undo(self) -> Callable[[], None]:
        """Return what puts them back as they are now."""
        state = self.state_dict()
        return lambda: self.load_state_dict(state)


class PositionOfRun(Part):
    """Where the run stands.

    Parameters
    ----------
    run : Run
        Whose position it is.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the position."""
        return self._run.position.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Put it back."""
        self._run.position = Position(**state)


class HistoryOfRun(Part):
    """The rows of the epochs that are done, and what is known of the next.

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
        }

    def load_state_dict(self, state: State) -> None:
        """Put the rows back."""
        names = renamed_metrics(self._run)
        # Up to version 0.7 rows did not say it, and a checkpoint had those of whole epochs.
        rows = ({**row, "complete": row.get("complete", True)} for row in state["history"])
        self._run.history = History(_renamed(row, names) for row in rows)
        self._run.figures = state["figures"]
        self._run.last_evaluation = _renamed(state["last_evaluation"], names)


class Metrics(Part):
    """What the metrics of training and evaluation have counted, by their names.

    Parameters
    ----------
    run : Run
        Whose metrics they are.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def state_dict(self) -> State:
        """Return the states of the metrics."""
        return {metric.name: metric_state(metric) for metric in metrics_of(self._run)}

    def load_state_dict(self, state: State) -> None:
        """Put back the states of those that both runs have; the others count from here on."""
        saved = _renamed(state, renamed_metrics(self._run))
        for metric in metrics_of(self._run):
            if metric.name in saved:
                set_metric_state(metric, saved[metric.name])
            else:
                metric.reset()
                if self._run.position.batch_in_epoch and metric in self._run.train_metrics:
                    self._run.logger.warning(
                        "the checkpoint has nothing of %r: in the row of epoch %d it is that of "
                        "the batches after the resume",
                        metric.name,
                        self._run.position.epoch,
                    )


class Data(Part):
    """What of the training data has to be the same; their order follows from the position.

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
        """Compare it with that of this run's data."""
        self._run.data.check_description(state)

    def load_state_dict(self, state: State) -> None:
        """Do nothing: the loop asks the data for the batches that are left of the epoch."""


def _told(changed: dict[str, tuple[Any, Any]], which: int, instead_of: int | None = None) -> str:
    """Return settings in words: one of their two values, and perhaps the other."""
    return ", ".join(
        f"{name} {values[which]}" + ("" if instead_of is None else f" (not {values[instead_of]})")
        for name, values in changed.items()
    )


def _renamed(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return `values` in their order, those of old names by the new ones."""
    return {names.get(name, name): value for name, value in values.items()}


def _check_have_shapes(params: Mapping[str, Parameter]) -> None:
    for place, param in params.items():
        if not has_data(param):
            raise RuntimeError(
                f"parameter {place!r} ({param.name}) has no shape, so a checkpoint cannot hold it: "
                "no batch has reached its layer; take the layer out of the network, or tell it its "
                "input's length, as in Dense(10, in_units=20)"
            )


def _check_parameter(place: str, param: Parameter, weight: NDArray) -> None:
    if not fits(param, weight.shape):
        raise ValueError(
            f"its parameter {place!r} has shape {weight.shape} and the network's {param.shape}: "
            "resume with the network that it was written with"
        )
    if np.dtype(param.dtype) != weight.dtype:
        raise ValueError(
            f"its parameter {place!r} has dtype {np.dtype(weight.dtype).name} and the network's "
            f"{np.dtype(param.dtype).name}: cast the network as it was"
        )
