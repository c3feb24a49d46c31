"""The forward and backward passes that SVRG runs at its snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._mxnet.block import forward_outside_of_training, has_shape
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from gluon_svrg.batch.processor import BatchProcessor, clear_idle_gradients, fit_batch
from gluon_svrg.events import State
from gluon_svrg.run import Run
from mxnet import gluon
from mxnet.ndarray import NDArray


def is_stateful(processor: object) -> bool:
    """Return whether the class of a batch processor defines `state_dict`."""
    return getattr(type(processor), "state_dict", None) not in (None, BatchProcessor.state_dict)


def needs_epoch_begin(processor: object) -> bool:
    """Return whether the class of a batch processor defines `begin_epoch` or `state_dict`."""
    begin = getattr(type(processor), "begin_epoch", BatchProcessor.begin_epoch)
    return is_stateful(processor) or begin is not BatchProcessor.begin_epoch


class TrainingBackward:
    """Runs forward and backward for one batch without changing the batch processor's state.

    A batch processor may carry a state from one batch to the next, such as the hidden state of a
    recurrent network. A pass over all batches (:meth:`begin_pass`) then carries its own state, and
    keeps a copy from the beginning of each batch. :meth:`at` begins with that copy, in any order,
    so that a batch has the same loss function in the full pass and in the corrections.

    Parameters
    ----------
    run : Run
        The run, with its network, batch processor and batch axis.

    Attributes
    ----------
    is_stateful : bool
        Whether the batch processor carries a state.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._processor: Any = run.batch_processor
        self.is_stateful = is_stateful(self._processor)
        self._states: list[Any] = []
        self._is_checked = type(self._processor) is BatchProcessor
        self._checked_index = 1

    def __call__(self, batch: object) -> list[NDArray]:
        """Run the batch, beginning with the training's present state."""
        if not self.is_stateful:
            return self._fit(batch)
        with self._from(self._processor.state_dict()):
            return self._fit(batch)

    def begin_pass(self, saved: State | None = None) -> None:
        """Begin a pass over all batches, with the training's state or a saved one."""
        if self.is_stateful:
            state = self._processor.state_dict()
            if saved is not None:
                state = from_plain(saved, self._run.context)
            self._states = [_copied(state)]

    def at(self, index: int) -> Callable[[object], list[NDArray]]:
        """Return the pass of the batch of this index in the full pass."""
        return partial(self._fit_at, index)

    def state_dict(self) -> dict[str, object]:
        """Return ``{"carried": state}``, the state at the beginning of the last pass, if any."""
        return {"carried": to_plain(self._states[0])} if self._states else {}

    def _fit_at(self, index: int, batch: object) -> list[NDArray]:
        if not self.is_stateful:
            if is_empty(batch) and index <= self._checked_index:
                self._checked_index += 1  # the processor has not seen this one
            is_to_check = index == self._checked_index and not self._is_checked
            return self._check_keeps_no_arrays(batch) if is_to_check else self._fit(batch)
        if not self._states:
            self.begin_pass()
        with self._from(self._states[min(index, len(self._states) - 1)]):
            losses = self._fit(batch)
            if index == len(self._states) - 1:
                self._states.append(_copied(self._processor.state_dict()))
        return losses

    def _fit(self, batch: object) -> list[NDArray]:
        return fit_batch(self._run, batch)[3]

    @contextmanager
    def _from(self, state: State | None) -> Iterator[None]:
        """Give the batch processor `state` inside the ``with`` block; then restore its own."""
        own = _copied(self._processor.state_dict())
        self._processor.load_state_dict(_copied(state))
        try:
            yield
        finally:
            self._processor.load_state_dict(own)

    def _check_keeps_no_arrays(self, batch: object) -> list[NDArray]:
        """Run the second batch; warn if the batch processor keeps other arrays than before."""
        before = {name: _arrays_in(value) for name, value in vars(self._processor).items()}
        losses = self._fit(batch)
        names = [
            name
            for name, value in vars(self._processor).items()
            if _arrays_in(value) and not _are_same(_arrays_in(value), before.get(name, []))
        ]
        self._is_checked = True
        if names:
            kind = type(self._processor).__name__
            self._run.logger.warning(
                "%s keeps arrays from batch to batch (%s), and SVRG's passes at the snapshot "
                "overwrite them: if the loss depends on them, it differs from that without SVRG. "
                "Add state_dict() and load_state_dict(state) to %s, and SVRG will keep a separate "
                "state",
                kind,
                ", ".join(names),
                kind,
            )
        return losses


def backward_of(run: Run) -> TrainingBackward:
    """Return the run's own forward and backward pass."""
    return TrainingBackward(run)


class UserBackward:
    """A user's function as a backward pass, for batches of which a worker may have no sample.

    It is not called for such a batch, whose gradients are zero. It has the methods of
    :class:`TrainingBackward`, but no state.

    Parameters
    ----------
    net : gluon.Block
        The network.
    function : callable
        Runs the forward and the backward pass of a batch, and returns its losses.
    """

    is_stateful = False

    def __init__(self, net: gluon.Block, function: Callable[[Any], object]) -> None:
        self._net = net
        self._function = function

    def __call__(self, batch: object) -> object:
        """Run the batch."""
        if not is_empty(batch):
            return self._function(batch)
        for context in {c for p in self._net.collect_params().values() for c in p.list_ctx()}:
            clear_idle_gradients(self._net, context)
        return []

    def begin_pass(self, saved: State | None = None) -> None:
        """Begin a pass over all batches."""

    def at(self, index: int) -> Callable[[object], object]:
        """Return the pass of the batch of this index: the same for all."""
        return self

    def state_dict(self) -> dict[str, object]:
        """Return an empty state."""
        return {}


def as_backward(
    net: gluon.Block, function: Callable[[Any], object]
) -> TrainingBackward | UserBackward:
    """Return the run's own backward pass unchanged, and a user's function as a UserBackward."""
    return function if isinstance(function, TrainingBackward) else UserBackward(net, function)


def shape_inference_of(run: Run) -> Callable[[object], None]:
    """Return a function that infers missing shapes from a batch, outside of training."""

    def infer(batch: object) -> None:
        _infer_shapes(run, batch)

    return infer


def to_plain(state: object) -> State:
    """Return a copy of `state` with its contexts, which a checkpoint does not keep."""
    contexts = [
        [leaf.ctx.device_type, leaf.ctx.device_id] if isinstance(leaf, NDArray) else None
        for leaf in tree_leaves(state)
    ]
    return {"state": _copied(state), "contexts": contexts}


def from_plain(saved: State, contexts: list[mx.Context]) -> Any:
    """Return the state on its saved contexts, or on the first of `contexts` instead of others."""
    saved_contexts = iter(saved["contexts"])

    def place(leaf: object) -> object:
        context = next(saved_contexts)
        if context is None or not isinstance(leaf, NDArray):
            return leaf
        saved_context = mx.Context(*context)
        target = saved_context if saved_context in contexts else contexts[0]
        return to_active_mode(to_nd(leaf).as_in_context(target))

    return tree_map(place, saved["state"])


def _copied(state: object) -> Any:
    return tree_map(lambda leaf: leaf.copy() if isinstance(leaf, NDArray) else leaf, state)


def _arrays_in(value: object) -> list[NDArray]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, NDArray)]


def _are_same(ours: list[NDArray], theirs: list[NDArray]) -> bool:
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def infer_shapes(net: gluon.Block, backward: Callable[[Any], object], batch: object) -> None:
    """Infer missing shapes from a batch, in prediction mode so that nothing is trained.

    Parameters
    ----------
    net : gluon.Block
        The network.
    backward : callable
        Runs the forward and the backward pass of a batch.
    batch : object
        The argument of `backward`.
    """
    params = net.collect_params().values()
    if is_empty(batch) or all(map(has_shape, params)):
        return  # other workers have the samples, and broadcast the shapes
    undo = forward_outside_of_training(net)
    try:
        backward(batch)
    except Exception as error:
        # Nothing was recorded, so backward() raises, but the shapes are known by then.
        unknown = [param.name for param in params if not has_shape(param)]
        if unknown and "is not in a computational graph" in str(error):
            raise RuntimeError(
                f"parameter {unknown[0]!r} has no shape yet, because no batch reaches its layer: "
                "take the layer out of the network, or tell it its input's length, as in "
                "Dense(10, in_units=20)"
            ) from error
        if unknown:
            raise
    finally:
        undo()


def _infer_shapes(run: Run, batch: object) -> None:
    """Infer the shapes by `fit_batch`, and restore the attributes of the batch processor."""
    attributes = vars(run.batch_processor)
    own = dict(attributes)
    try:
        infer_shapes(run.net, backward_of(run), batch)
    finally:
        attributes.clear()
        attributes.update(own)
