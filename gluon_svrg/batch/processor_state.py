"""BatchProcessorStateHandler: the state that a batch processor carries between batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gluon_svrg.arrays.nested import tree_leaves
from gluon_svrg.batch.backward import from_plain, to_plain
from gluon_svrg.events import EpochBegin, Order, Run, State, Stateful
from mxnet.ndarray import NDArray


class BatchProcessorStateHandler(EpochBegin, Stateful):
    """Calls the batch processor's `begin_epoch`, and saves its state in checkpoints.

    The Estimator adds it if the class of the batch processor defines `begin_epoch` or `state_dict`.
    """

    state_key = "batch_processor"
    priority = Order.BATCH_PROCESSOR  # before SVRG's full pass, which begins with the state

    def epoch_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let the batch processor begin the epoch."""
        processor: Any = estimator.batch_processor
        if hasattr(processor, "begin_epoch"):
            processor.begin_epoch(estimator)

    def state_dict(self, estimator: Run) -> State:
        """Return the state of the batch processor, with its contexts."""
        return to_plain(_state_of(estimator.batch_processor))

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Restore the state of the batch processor."""
        processor: Any = estimator.batch_processor
        if hasattr(processor, "load_state_dict"):
            processor.load_state_dict(from_plain(state, estimator.context))

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Raise ValueError if the state has arrays: they belong to the rows of each worker."""
        leaves = [leaf for state in states for leaf in tree_leaves(state["state"])]
        if any(isinstance(leaf, NDArray | np.ndarray) for leaf in leaves):
            raise ValueError(
                f"it holds what the batch processor carries for the rows of {len(states)} "
                f"{'worker' if len(states) == 1 else 'workers'}, which cannot be cut otherwise: "
                "resume with as many, or from a checkpoint at which nothing is carried"
            )
        return states[0]


def _state_of(processor: Any) -> object:
    return processor.state_dict() if hasattr(processor, "state_dict") else None
