"""RunRNG: makes the random numbers of a run the same after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import index
from typing import Any

import mxnet as mx
from gluon_svrg.events import EventHandler, Run, State
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


class RunRNG:
    """Saves and seeds the random generators of a run, so that a resume draws the same numbers.

    The states of NumPy's and Python's global generators can be read, and are saved. MXNet's cannot
    be read, so they are seeded at a *safe point* by a function of (seed of the run, epoch, batch).
    Seeding takes about a millisecond. It is done at the begin and end of each epoch, and at each
    batch only if batches draw random numbers, as dropout does.

    All workers use worker 0's seed of the run. The others add their rank when they seed MXNet, so
    that each worker's rows of a batch have dropout masks of their own.

    Attributes
    ----------
    is_loaded : bool
        Whether a checkpoint's state was loaded since :meth:`begin`.
    """

    def __init__(self) -> None:
        self._workers: Workers = SingleProcess()
        self._seed = 0
        self._is_needed = False
        self._at_epoch_begin: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        self.is_loaded = False

    def begin(self, contexts: list[mx.Context], workers: Workers) -> None:
        """Draw the seed of the run, that of all `workers`."""
        self.is_loaded = False
        self._workers = workers
        drawn = int(mx.nd.random.randint(0, 2**31 - 1).asscalar())
        self._seed = workers.broadcast_object(drawn, "the seed of a run")
        # On other devices cuDNN draws from generators of its own, which no look finds out.
        self._is_needed = any(context.device_type not in _CPU for context in contexts)

    def begin_epoch(self) -> None:
        """Save the generators' states before the data begin the epoch: a DataLoader shuffles."""
        self._at_epoch_begin = collect_rng_states()

    def seed_at(self, position: Position, contexts: list[mx.Context]) -> None:
        """Seed MXNet for what comes next."""
        is_batch, done = position.batch_in_epoch > 0, position.batch
        is_power_of_two = done & (done - 1) == 0
        if is_batch and is_power_of_two and not self._is_needed:
            have_drawn = self._have_drawn(position, contexts)
            self._is_needed = self._workers.all_any(have_drawn, "a look at random numbers")
        if self._is_needed or not is_batch:
            self._seed_mxnet(position)

    def state_dict(self, position: Position, contexts: list[mx.Context]) -> dict[str, Any]:
        """Return the seed, and the states of the generators, now and at the epoch's begin."""
        is_needed = self._is_needed
        if position.batch_in_epoch and not is_needed:
            is_needed = self._have_drawn(position, contexts)
        return {
            "seed": self._seed,
            "is_needed": self._workers.reduction(is_needed, self._set_needed),
            "at_epoch_begin": self._at_epoch_begin,
            "now": collect_rng_states(),
        }

    def load_state_dict(self, state: State) -> None:
        """Take over what :meth:`state_dict` returned; :func:`replaying` sets the generators."""
        self._seed, self._is_needed = index(state["seed"]), state["is_needed"]
        before = collect_rng_states()
        try:  # it raises here, where a checkpoint is read
            self._at_epoch_begin, self._now = (
                _updated_states(state["at_epoch_begin"]),
                _updated_states(state["now"]),
            )
        finally:
            set_rng_states(before)
        self.is_loaded = True

    def rewind_to_epoch_begin(self, position: Position) -> None:
        """Set the host's generators to their states at the begin of the epoch."""
        if position.is_in_epoch:
            set_rng_states(self._at_epoch_begin)

    def restore(self, position: Position) -> None:
        """Let all generators continue from the *safe point* of the checkpoint."""
        is_untouched = position.batch_in_epoch > 0 and not self._is_needed
        self._seed_mxnet(_begin_of_epoch(position) if is_untouched else position)
        set_rng_states(self._now)

    def _set_needed(self, on_workers: list[bool]) -> bool:
        self._is_needed = any(on_workers)
        return self._is_needed

    def _have_drawn(self, position: Position, contexts: list[mx.Context]) -> bool:
        """Return whether the batches of this epoch have drawn random numbers on this worker.

        If not, the generators still give the same numbers as after the epoch's first seed.
        """
        begin = _begin_of_epoch(position)
        return has_drawn_since(partial(self._seed_mxnet, begin), contexts)

    def _seed_mxnet(self, position: Position) -> None:
        kind = _BATCH if position.is_in_epoch else _EPOCH
        seed = worker_seed(self._workers.rank, self._seed)
        seed_mxnet(seed, kind, position.epoch, position.batch)


class HasRandomState(EventHandler):
    """Keeps the random numbers of the run.

    Attributes
    ----------
    random_state : RunRNG
        They continue from there after a resume.
    """

    random_state: RunRNG


@contextmanager
def replaying(run: Run) -> Iterator[None]:
    """Let the data draw the same numbers again inside the block; then continue from the safe point.

    Data that can only be iterated repeat the batches that are done, which are skipped.
    """
    rngs = [h.random_state for h in run.handlers if isinstance(h, HasRandomState)]
    # A checkpoint may hold none for a handler: its random numbers begin now.
    loaded = [rng for rng in rngs if rng.is_loaded]
    for rng in loaded:
        rng.rewind_to_epoch_begin(run.position)
    yield
    for rng in loaded:
        rng.restore(run.position)


def _updated_states(states: State) -> dict[str, Any]:
    """Set the host's generators to `states`; return their states in this version's format."""
    if not states:  # no epoch has begun
        return {}
    set_rng_states(states)
    return collect_rng_states()


def _begin_of_epoch(position: Position) -> Position:
    begin = position.batch - position.batch_in_epoch
    return Position(position.epoch, begin, 0, Phase.TRAINING)
