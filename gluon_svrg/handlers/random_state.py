"""RandomStateHandler: every random number of a run is a function of where the run stands."""

from __future__ import annotations

import random
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg.events import EpochBegin, SafePoint, Stateful, TrainBegin
from gluon_svrg.run.position import Position
from gluon_svrg.svrg.randomness import next_random_numbers, seed_mxnet

_EPOCH, _BATCH = 0, 1  # what a seed is for


class RandomStateHandler(TrainBegin, EpochBegin, SafePoint, Stateful):
    """Makes the random numbers of a run go on after a resume as if nothing had happened.

    The Estimator adds it to runs with a CheckpointHandler. The states of NumPy's and Python's
    global generators can be read, and are kept. MXNet's cannot, so they are seeded at a *safe
    point* by a function of (seed of the run, epoch, batch). A seed takes about a millisecond: it
    is paid at each begin and end of an epoch, and at each batch only where batches draw random
    numbers, as dropout does (on other devices than the CPU, always: cuDNN draws from generators of
    its own). That is found out after 1, 2, 4, 8, ... batches and at each checkpoint.

    Parameters
    ----------
    priority : float
        After all others, so that nothing is drawn between it and the data's next batch.
    """

    def __init__(self, priority: float = float("inf")) -> None:
        self.priority = priority
        self._seed = 0
        self._is_needed = False
        self._at_epoch_begin: dict[str, Any] = {}
        self._now: dict[str, Any] = {}

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Draw the seed of the run."""
        self._seed = int(mx.nd.random.randint(0, 2**31 - 1).asscalar())
        self._is_needed = any(
            context.device_type not in ("cpu", "cpu_pinned") for context in estimator.context
        )

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Remember with what the data begins the epoch: a DataLoader shuffles then."""
        self._at_epoch_begin = _host_states()

    def safe_point(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Seed MXNet for what comes next."""
        position = estimator.position
        is_batch = position.batch_in_epoch > 0
        if is_batch and position.batch & (position.batch - 1) == 0:  # a power of two
            self._look(estimator)
        if self._is_needed or not is_batch:
            self._seed_mxnet(position)

    def state_dict(self, estimator: Any) -> dict[str, Any]:
        """Return the seed, and the states of the generators, now and at the epoch's begin."""
        if estimator.position.batch_in_epoch:
            self._look(estimator)
        return {
            "seed": self._seed,
            "is_needed": self._is_needed,
            "at_epoch_begin": self._at_epoch_begin,
            "now": _host_states(),
        }

    def load_state_dict(self, estimator: Any, state: dict[str, Any]) -> None:
        """Go back to the epoch's begin: :meth:`go_on` is to follow when the data is in place."""
        self._seed = state["seed"]
        self._is_needed = state["is_needed"]
        self._now = state["now"]
        self._at_epoch_begin = state["at_epoch_begin"]
        if estimator.position.is_in_epoch:
            _set_host_states(self._at_epoch_begin)

    def go_on(self, estimator: Any) -> None:
        """Let all generators go on from the *safe point* of the checkpoint."""
        position = estimator.position
        is_untouched = position.batch_in_epoch > 0 and not self._is_needed
        self._seed_mxnet(_begin_of_epoch(position) if is_untouched else position)
        _set_host_states(self._now)

    def _look(self, estimator: Any) -> None:
        """Find out whether the batches of this epoch have drawn random numbers.

        The generators give the same numbers as after the seed of the epoch's begin, or not.
        """
        if self._is_needed:
            return
        begin = _begin_of_epoch(estimator.position)
        now = next_random_numbers(estimator.context)
        self._seed_mxnet(begin)
        self._is_needed = not np.array_equal(now, next_random_numbers(estimator.context))
        self._seed_mxnet(begin)

    def _seed_mxnet(self, position: Position) -> None:
        kind = _BATCH if position.is_in_epoch else _EPOCH
        seed_mxnet(self._seed, kind, position.epoch, position.batch)


def _begin_of_epoch(position: Position) -> Position:
    return Position(position.epoch, position.batch - position.batch_in_epoch, 0, True)


def _host_states() -> dict[str, Any]:
    """Return the states of NumPy's and Python's global generators."""
    return {"numpy": np.random.get_state(), "python": random.getstate()}


def _set_host_states(states: dict[str, Any]) -> None:
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
