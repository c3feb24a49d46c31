"""RandomStateHandler: saves and seeds the random generators of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import index
from typing import Any

import mxnet as mx
from gluon_svrg.events import (
    EpochBegin,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    SafePoint,
    State,
    Stateful,
    TrainBegin,
)
from gluon_svrg.rng import (
    collect_rng_states,
    has_drawn_since,
    seed_mxnet,
    set_rng_states,
    worker_seed,
)
from gluon_svrg.run import Phase, Position
from gluon_svrg.workers import SingleProcess, Workers

_EPOCH, _BATCH = 0, 1  # what a seed is for

_CPU = ("cpu", "cpu_pinned")


class RandomStateHandler(
    TrainBegin, EpochBegin, SafePoint, Stateful, HasExclusiveTasks, RequiresRun
):
    """After a resume, draw the random numbers that a run without interruption would draw.

    The Estimator adds it to runs with a CheckpointHandler. The states of NumPy's and Python's
    global generators can be read, and are saved. MXNet's cannot be read, so they are seeded at
    *safe points* by a function of (seed of the run, epoch, batch). Seeding takes about a
    millisecond. It is done at the begin and end of each epoch, and at each batch only if batches
    draw random numbers, as dropout does. Whether they do is tested after 1, 2, 4, 8, ... batches
    and at each checkpoint. On a GPU every batch is seeded, because cuDNN has generators of its own,
    which cannot be tested.

    All workers use worker 0's seed of the run. The others add their rank when they seed MXNet, so
    that each worker's rows of a batch have dropout masks of their own.

    Parameters
    ----------
    priority : float
        After all others, so that no number is drawn between this handler and the next batch.
    """

    state_key = "random_state"
    may_request = False

    def __init__(self, priority: float = Order.LAST) -> None:
        self.priority = float(priority)
        self._workers: Workers = SingleProcess()
        self._seed = 0
        self._is_needed = False  # whether batches draw, as far as is known
        self._at_epoch_begin: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        self._is_loaded = False  # whether a checkpoint's state was loaded in this run

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return ["seed the random numbers"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Draw the seed of the run, the same on all workers."""
        self._is_loaded = False
        self._workers = estimator.workers
        drawn = int(mx.nd.random.randint(0, 2**31 - 1).asscalar())
        self._seed = self._workers.broadcast_object(drawn, "the seed of a run")
        self._is_needed = any(context.device_type not in _CPU for context in estimator.context)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Save the generators' states before the data begin the epoch: a DataLoader shuffles."""
        self._at_epoch_begin = collect_rng_states()

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Seed MXNet for the next batch, or for what is between two epochs."""
        position = estimator.position
        is_batch, done = position.batch_in_epoch > 0, position.batch
        is_power_of_two = done & (done - 1) == 0
        if is_batch and is_power_of_two and not self._is_needed:
            have_drawn = self._have_drawn(position, estimator.context)
            self._is_needed = self._workers.all_any(have_drawn, "a look at random numbers")
        if self._is_needed or not is_batch:
            self._seed_mxnet(position)

    def state_dict(self, estimator: Run) -> State:
        """Return the seed, and the states of the generators, now and at the epoch's begin."""
        is_needed = self._is_needed
        if estimator.position.batch_in_epoch and not is_needed:
            is_needed = self._have_drawn(estimator.position, estimator.context)
        return {
            "seed": self._seed,
            "is_needed": self._workers.reduction(is_needed, self._set_needed),
            "at_epoch_begin": self._at_epoch_begin,
            "now": collect_rng_states(),
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Load the seed and the states; :func:`replaying` sets the generators."""
        self._seed, self._is_needed = index(state["seed"]), state["is_needed"]
        before = collect_rng_states()
        try:  # NumPy and Python raise here if the states are invalid
            for states in (state["at_epoch_begin"], state["now"]):
                if states:  # empty if no epoch has begun
                    set_rng_states(states)
        finally:
            set_rng_states(before)
        self._at_epoch_begin, self._now = state["at_epoch_begin"], state["now"]
        self._is_loaded = True

    @contextmanager
    def replaying(self, position: Position) -> Iterator[None]:
        """Let the data draw the epoch's numbers again in the block; then continue from `position`.

        Without a state from a checkpoint, do nothing.
        """
        if not self._is_loaded:
            yield
            return
        if position.is_in_epoch:
            set_rng_states(self._at_epoch_begin)
        yield
        is_untouched = position.batch_in_epoch > 0 and not self._is_needed
        self._seed_mxnet(_begin_of_epoch(position) if is_untouched else position)
        set_rng_states(self._now)

    def _set_needed(self, on_workers: list[bool]) -> bool:
        self._is_needed = any(on_workers)
        return self._is_needed

    def _have_drawn(self, position: Position, contexts: list[mx.Context]) -> bool:
        """Return whether the batches of this epoch have drawn random numbers on this worker."""
        return has_drawn_since(partial(self._seed_mxnet, _begin_of_epoch(position)), contexts)

    def _seed_mxnet(self, position: Position) -> None:
        kind = _BATCH if position.is_in_epoch else _EPOCH
        seed = worker_seed(self._workers.rank, self._seed)
        seed_mxnet(seed, kind, position.epoch, position.batch)


def replaying(run: Run) -> AbstractContextManager[None]:
    """Let the data draw the same numbers again in the block; then continue from the safe point.

    Data that can only be iterated repeat the batches that are done, which are skipped.
    """
    handlers = (h for h in run.handlers if isinstance(h, RandomStateHandler))
    handler = next(handlers, None)  # one at most: its task is exclusive
    return nullcontext() if handler is None else handler.replaying(run.position)


def _begin_of_epoch(position: Position) -> Position:
    begin = position.batch - position.batch_in_epoch
    return Position(position.epoch, begin, 0, Phase.TRAINING)
