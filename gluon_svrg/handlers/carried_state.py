"""CarriedStateHandler: what a batch processor carries from one batch to the next."""

from __future__ import annotations

from typing import Any

from gluon_svrg.events import EpochBegin, Order, Run, State, Stateful
from gluon_svrg.run.backward import packed, unpacked


class CarriedStateHandler(EpochBegin, Stateful):
    """Tells the batch processor of each epoch, and lets a checkpoint hold what it carries.

    The Estimator adds it if the batch processor has a `begin_epoch` or a `state_dict` of its own.
    """

    state_key = "batch_processor"
    priority = Order.SCHEDULE - 1000  # before SVRG's full pass, which begins with the state

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let the batch processor begin the epoch."""
        processor: Any = estimator.batch_processor
        if hasattr(processor, "begin_epoch"):
            processor.begin_epoch(estimator)

    def state_dict(self, estimator: Run) -> State:
        """Return what the batch processor carries, and on which contexts."""
        return packed(_state_of(estimator.batch_processor))

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Let the batch processor continue with it."""
        processor: Any = estimator.batch_processor
        if hasattr(processor, "load_state_dict"):
            processor.load_state_dict(unpacked(state, estimator.context))


def _state_of(processor: Any) -> object:
    return processor.state_dict() if hasattr(processor, "state_dict") else None
