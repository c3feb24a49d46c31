"""The run's own forward and backward pass, for others than the loop: SVRG's, at its snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.arrays.nested import leaves_of, mapped
from gluon_svrg.events import State
from gluon_svrg.run.batch_processor import BatchProcessor, clear_idle_gradients, fit_batch
from mxnet import gluon
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from gluon_svrg.events import Run


def is_stateful(processor: object) -> bool:
    """Return whether a batch processor has a `state_dict` of its own."""
    return getattr(type(processor), "state_dict", None) not in (None, BatchProcessor.state_dict)


def needs_epoch_begin(processor: object) -> bool:
    """Return whether it carries a state, or has a `begin_epoch` of its own."""
    begin = getattr(type(processor), "begin_epoch", BatchProcessor.begin_epoch)
    return is_stateful(processor) or begin is not BatchProcessor.begin_epoch


class TrainingBackward:
    """One batch in, its losses out, by the run's batch processor, whose state stays as it is.

    A batch processor may carry a state from one batch to the next. A pass over all batches
    (:meth:`begin_pass`) then carries one of its own, and keeps the one that each batch begins with:
    :meth:`at` begins with it again, in any order, so that a batch has one and the same loss
    function in the full pass and in the corrections.

    Parameters
    ----------
    run : Run
        Whose network, batch processor and batch axis are used.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._processor: Any = run.batch_processor
        self.carries = is_stateful(self._processor)
        self._states: list[Any] = []
        self._is_told = type(self._processor) is BatchProcessor
        self._watched_index = 1

    def __call__(self, batch: object) -> list[NDArray]:
        """Run the batch, beginning with the state of the training."""
        if not self.carries:
            return self._fit(batch)
        with self._from(self._processor.state_dict()):
            return self._fit(batch)

    def begin_pass(self, saved: State | None = None) -> None:
        """Begin a pass over all batches, with the state of the training, or one that was saved."""
        if self.carries:
            state = self._processor.state_dict()
            if saved is not None:
                state = from_plain(saved, self._run.context)
            self._states = [_copied(state)]

    def at(self, index: int) -> Callable[[object], list[NDArray]]:
        """Return the pass of the batch of this index in the full pass."""
        return partial(self._fit_at, index)

    def first_state(self) -> dict[str, object]:
        """Return ``{"carried": state}``, with the state that the last pass began with."""
        return {"carried": to_plain(self._states[0])} if self._states else {}

    def _fit_at(self, index: int, batch: object) -> list[NDArray]:
        if not self.carries:
            if is_empty(batch) and index <= self._watched_index:
                self._watched_index += 1  # the processor has not seen this one
            is_watched = index == self._watched_index and not self._is_told
            return self._watched(batch) if is_watched else self._fit(batch)
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
        """Let the batch processor have `state` inside the block, and its own after it."""
        own = _copied(self._processor.state_dict())
        self._processor.load_state_dict(_copied(state))
        try:
            yield
        finally:
            self._processor.load_state_dict(own)

    def _watched(self, batch: object) -> list[NDArray]:
        """Warn if the batch processor keeps other arrays after the second batch than before it."""
        before = {name: _arrays_in(value) for name, value in vars(self._processor).items()}
        losses = self._fit(batch)
        names = [
            name
            for name, value in vars(self._processor).items()
            if _arrays_in(value) and not _are_same(_arrays_in(value), before.get(name, []))
        ]
        self._is_told = True
        if names:
            kind = type(self._processor).__name__
            self._run.logger.warning(
                "%s keeps arrays from batch to batch (%s), and SVRG's passes at the snapshot "
                "change them: if the loss depends on them, it is another one than without SVRG. "
                "Give %s state_dict() and load_state_dict(state), and SVRG carries a state of its "
                "own",
                kind,
                ", ".join(names),
                kind,
            )
        return losses


def backward_of(run: Run) -> TrainingBackward:
    """Return the run's own forward and backward pass: one batch in, its losses out."""
    return TrainingBackward(run)


def of_own_samples(net: gluon.Block, backward: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the pass for batches of which other workers may have all samples.

    A run's own pass knows of them; a user's function is not called for one, whose gradients are
    zero.
    """
    if isinstance(backward, TrainingBackward):
        return backward

    def of_own(batch: object) -> object:
        if not is_empty(batch):
            return backward(batch)
        for context in {c for p in net.collect_params().values() for c in p.list_ctx()}:
            clear_idle_gradients(net, context)
        return []

    return of_own


def at_batch(backward: Callable[[Any], object], index: int) -> Callable[[Any], object]:
    """Return the pass of the batch of this index; `backward` itself, if it is a user's function."""
    return backward.at(index) if isinstance(backward, TrainingBackward) else backward


def begin_pass(backward: Callable[[Any], object], saved: State | None = None) -> None:
    """Begin a pass over all batches, with the state that :func:`first_state` has saved, if any."""
    if isinstance(backward, TrainingBackward):
        backward.begin_pass(saved)


def first_state(backward: Callable[[Any], object]) -> dict[str, object]:
    """Return ``{"carried": state}``, with the state that the last pass began with, if there is."""
    return backward.first_state() if isinstance(backward, TrainingBackward) else {}


def is_alike(backward: Callable[[Any], object], index: int) -> bool:
    """Return whether this batch, as the first of an epoch, has the state that it has in a pass."""
    return index == 0 or not (isinstance(backward, TrainingBackward) and backward.carries)


def shape_inference_of(run: Run) -> Callable[[object], None]:
    """Return what lets layers that infer their shapes see a batch, outside of training."""

    def infer(batch: object) -> None:
        _infer_shapes(run, batch)

    return infer


def to_plain(state: object) -> State:
    """Return `state` with its contexts, which a checkpoint does not keep."""
    contexts = [
        [leaf.ctx.device_type, leaf.ctx.device_id] if isinstance(leaf, NDArray) else None
        for leaf in leaves_of(state)
    ]
    return {"state": _copied(state), "contexts": contexts}


def from_plain(saved: State, contexts: list[mx.Context]) -> Any:
    """Return the state on its contexts; on the first of `contexts`, if the run has others."""
    places = iter(saved["contexts"])

    def place(leaf: object) -> object:
        context = next(places)
        if context is None or not isinstance(leaf, NDArray):
            return leaf
        own = mx.Context(*context)
        here = own if own in contexts else contexts[0]
        return _mxnet.as_current(_mxnet.as_legacy(leaf).as_in_context(here))

    return mapped(place, saved["state"])


def _copied(state: object) -> Any:
    return mapped(lambda leaf: leaf.copy() if isinstance(leaf, NDArray) else leaf, state)


def _arrays_in(value: object) -> list[NDArray]:
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, NDArray)]


def _are_same(ours: list[NDArray], theirs: list[NDArray]) -> bool:
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))


def infer_shapes(net: gluon.Block, backward: Callable[[Any], object], batch: object) -> None:
    """Let layers that infer their shapes see a batch: in prediction, so that it trains nothing.

    Parameters
    ----------
    net : gluon.Block
        The network.
    backward : callable
        The forward and the backward pass of a batch.
    batch : object
        What it takes.
    """
    params = net.collect_params().values()
    if is_empty(batch) or all(map(_mxnet.has_shape, params)):
        return  # of a batch that other workers have, they tell the shapes
    undo = _mxnet.forward_outside_of_training(net)
    try:
        backward(batch)
    except Exception as error:
        # Nothing was recorded, so backward() raises: by then the shapes are known.
        unknown = [param.name for param in params if not _mxnet.has_shape(param)]
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
    """Infer the shapes by `fit_batch`, and put back the attributes of the batch processor."""
    attributes = vars(run.batch_processor)
    own = dict(attributes)
    try:
        infer_shapes(run.net, backward_of(run), batch)
    finally:
        attributes.clear()
        attributes.update(own)
