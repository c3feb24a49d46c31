"""RandomStateHandler: when the random numbers of a run are seeded and kept."""

from __future__ import annotations

from typing import Any

from gluon_svrg.checkpoint.random_state import HasRandomState, RunRNG
from gluon_svrg.checkpoint.state_keys import RANDOM_STATE
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


class RandomStateHandler(
    TrainBegin, EpochBegin, SafePoint, Stateful, HasRandomState, HasExclusiveTasks, RequiresRun
):
    """Makes the random numbers of a run continue after a resume as if nothing had happened.

    The Estimator adds it to runs with a CheckpointHandler. The states of NumPy's and Python's
    global generators can be read, and are kept. MXNet's cannot, so they are seeded at a *safe
    point* by a function of (seed of the run, epoch, batch). A seed takes about a millisecond: it
    is paid at each begin and end of an epoch, and at each batch only if batches draw random
    numbers, as dropout does (on other devices than the CPU, always: cuDNN draws from generators of
    its own). That is found out after 1, 2, 4, 8, ... batches and at each checkpoint. Over several
    workers the seed of the run is the first one's, and each of the others seeds by its rank, too.

    Parameters
    ----------
    priority : float
        After all others, so that nothing is drawn between it and the data's next batch.
    """

    state_key = RANDOM_STATE

    def __init__(self, priority: float = Order.LAST) -> None:
        self.priority = float(priority)
        self.random_state = RunRNG()

    def exclusive_tasks(self) -> list[str]:
        """Return its task."""
        return ["seed the random numbers"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Draw the seed of the run."""
        self.random_state.begin(estimator.context, estimator.workers)

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Save the generators' states before the data begin the epoch: a DataLoader shuffles."""
        self.random_state.begin_epoch()

    def safe_point(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Seed MXNet for what comes next."""
        self.random_state.seed_at(estimator.position, estimator.context)

    def state_dict(self, estimator: Run) -> State:
        """Return the seed, and the states of the generators, now and at the epoch's begin."""
        return self.random_state.state_dict(estimator.position, estimator.context)

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Take over the seed and the states; they are set once the data have begun."""
        self.random_state.load_state_dict(state)
