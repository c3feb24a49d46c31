"""FullPass: the snapshot and what one pass over the data at it leaves behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from gluon_svrg.arrays.replicas import replicas_of
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.data.locking import why_not_locked
from gluon_svrg.run.batch_processor import length_of
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.randomness import MaskLock
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.table import GradientTable
from mxnet.ndarray import NDArray
from tqdm.auto import tqdm


class FullPass:
    """The snapshot, the random numbers of its batches, their full gradient and their table.

    Parameters
    ----------
    estimator : Estimator
        Whose network and trainer are used.
    gradient_table, table_memory, progress_bar, lock
        As for :class:`gluon_svrg.SVRGHandler`.
    """

    def __init__(
        self,
        estimator: Any,
        gradient_table: str | bool,
        table_memory: float,
        progress_bar: bool,
        lock: str = "auto",
    ) -> None:
        names = [param.name for param in estimator.trainer._params]
        self.snapshot = Snapshot(estimator.net, names)
        self.lock = MaskLock(is_on=lock != "off")
        self.table: GradientTable | None = None
        # What the losses were multiplied by when the table was made.
        self.table_scale = 1.0
        self._gradient_table = gradient_table
        self._table_memory = table_memory
        self._progress_bar = progress_bar
        self._decision = ""
        self._data_lock = lock
        self._is_data_checked = False

    def run(self, estimator: Any, data: Any) -> FullGradient:
        """Take the snapshot of the network, and return its full gradient over `data`."""
        self._lock_data(estimator, data)
        batches = _batches_of(data)
        first = next(batches, None)
        if first is None:
            raise ValueError(
                "the full gradient needs at least one batch, got none: train_data is empty, or "
                "can be iterated only once"
            )
        _finish_initialization(estimator, first)
        # What the last interval held goes before the pass takes its own.
        estimator.trainer.clear_control_variate()
        self.snapshot.take()
        self.lock.next_snapshot()
        batches = itertools.chain([first], batches)
        while True:
            self._make_table(data, estimator)
            try:
                full_gradient = self._pass_over(estimator, data, batches, watches=True)
                break
            except FloatingPointError:
                if not estimator.trainer.lower_loss_scale():
                    raise
                batches = _batches_of(data)
        self.lock.release()
        if self._data_lock == "off":
            self.unlock_data(data)
        return full_gradient

    def unlock_data(self, data: Any) -> None:
        """Let each epoch draw its own augmentation again."""
        if isinstance(data, ArrayLoader):
            data.unlock()

    def _lock_data(self, estimator: Any, data: Any) -> None:
        """Let a sample have one augmentation from this pass to the next, where that is possible."""
        if isinstance(data, ArrayLoader) and data.can_lock:
            data.lock(self.lock.snapshot + 1)
            return
        if self._data_lock == "off" or self._is_data_checked:
            return
        self._is_data_checked = True
        reason = why_not_locked(data)
        if not reason:
            return
        if self._data_lock == "require":
            raise ValueError(
                f"lock='require', but train_data is not locked: {reason}; or give lock='auto'"
            )
        estimator.logger.warning(
            "SVRG's train_data is not locked: %s. Where a sample is augmented anew each time, the "
            "full gradient belongs to other samples than the batches do, so the corrected gradient "
            "is biased and a gradient table would raise its variance",
            reason,
        )

    def state_dict(self, estimator: Any, data: Any) -> dict[str, Any]:
        """Return the snapshot and what a table can be made of again, not the table.

        A table is as large as the gradients of all batches.
        """
        # By their order: a network that is made anew may have other names.
        return {
            "weights": [replicas_of(arrays) for arrays in self.snapshot.weights.values()],
            "lock": self.lock.state_dict(),
            "draw": data.locked_draw if isinstance(data, ArrayLoader) else None,
            "has_table": self.table is not None,
            "decision": self._decision,
        }

    def load_state_dict(
        self,
        estimator: Any,
        state: dict[str, Any],
        data: Any,
        full_gradient: FullGradient | None,
        is_used: bool,
    ) -> None:
        """Go on from `state`.

        Parameters
        ----------
        estimator, state, data
            The estimator, what :meth:`state_dict` returned, and the training data.
        full_gradient : FullGradient or None
            The one at the snapshot, without a loss scale; None where SVRG is off.
        is_used : bool
            Whether there is still a batch to come whose gradient at the snapshot is wanted.

        Raises
        ------
        ValueError
            If `data` gives another full gradient.
        """
        self.table, self._decision = None, state["decision"]
        self.unlock_data(data)
        if isinstance(data, ArrayLoader) and state["draw"] is not None:
            data.lock(state["draw"])
        if full_gradient is not None:
            names = estimator.net.collect_params().keys()
            self.snapshot.load(dict(zip(names, state["weights"], strict=True)))
        self.lock.load_state_dict(state["lock"])
        if full_gradient is not None and state["has_table"] and is_used:
            self._compute_table_again(estimator, data, full_gradient)
            self.lock.load_state_dict(state["lock"])

    def _compute_table_again(self, estimator: Any, data: Any, known: FullGradient) -> None:
        """Make the full pass over the same batches once more, with the same random numbers."""
        estimator.logger.info("SVRG computes the gradients of its table again")
        self._make_table(data, estimator)
        full_gradient = self._pass_over(estimator, data, _batches_of(data), watches=False)
        for name, mean in full_gradient.means.items():
            ours, theirs = mean.asnumpy() / self.table_scale, known.means[name].asnumpy()
            # Kernels may add up in another order, above all on another machine.
            if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max()):
                raise ValueError(
                    f"the full gradient of parameter {name!r} at the snapshot is not the one that "
                    "the checkpoint holds: train_data has other samples than it had; resume with "
                    "the data that the checkpoint was written with"
                )

    def _pass_over(
        self, estimator: Any, data: Any, batches: Iterable, watches: bool
    ) -> FullGradient:
        """Return the full gradient; fill the table where there is one."""
        backward = backward_of(estimator)
        indices = itertools.count()

        def locked_backward(batch: Any) -> Any:
            index = next(indices)
            if index == 0 and watches:
                return self.lock.watch(lambda: backward(batch), estimator.context)
            self.lock.lock(index)
            return backward(batch)

        with tqdm(
            batches,
            total=length_of(data),
            desc="full gradient",
            unit="batch",
            leave=False,
            # None: off where the output is no terminal.
            disable=None if self._progress_bar else True,
        ) as bar:
            return self.snapshot.full_gradient(
                locked_backward, bar, None if self.table is None else self._keep
            )

    def _make_table(self, data: Any, estimator: Any) -> None:
        """Make an empty table, or none; say why where that has not been said."""
        is_made, reason = self._decide_on_table(data)
        self.table = GradientTable(by_content=_are_made_anew(data)) if is_made else None
        self.table_scale = estimator.trainer.loss_scale
        decision = (
            f"SVRG keeps the gradients of the full pass: {reason}"
            if is_made
            else f"SVRG computes gradients at the snapshot again: {reason}"
        )
        if decision != self._decision:
            self._decision = decision
            estimator.logger.info(decision)

    def _decide_on_table(self, data: Any) -> tuple[bool, str]:
        if self._gradient_table is False:
            return False, "gradient_table=False"
        is_off = self._data_lock == "off"
        why_not = "lock='off'" if is_off else _why_batches_may_not_repeat(data)
        if why_not and self._gradient_table is True:
            raise ValueError(
                f"gradient_table=True needs batches that repeat exactly, but {why_not}: give a "
                "list of batches or a gluon_svrg.data.ArrayLoader, or gradient_table='auto'"
            )
        if why_not:
            return False, why_not
        nbytes = self.snapshot.gradient_nbytes * len(data)
        size = f"those of {len(data)} batches take {nbytes / 2**20:.1f} MiB"
        if self._gradient_table == "auto" and nbytes > self._table_memory:
            return False, f"{size}, more than table_memory={self._table_memory / 2**20:.1f} MiB"
        return True, size

    def _keep(self, batch: Any, gradient: BatchGradient) -> None:
        if self.table is not None:
            self.table.append(gradient, arrays_of(batch))


def arrays_of(batch: Any) -> tuple:
    """Return what the table recognises the batch by."""
    return tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)


def _batches_of(data: Any) -> Iterator:
    """Return an iterator over the batches, by index where the data has an order for itself."""
    return data.in_order() if isinstance(data, ArrayLoader) else iter(data)


def _are_made_anew(data: Any) -> bool:
    return isinstance(data, ArrayLoader) and not data.keeps_batches


def _why_batches_may_not_repeat(data: Any) -> str:
    """Return the reason, or nothing where `data` promises to give the same batches each time."""
    if isinstance(data, ArrayLoader):
        return "" if data.repeats else "the loader's transform gives something else each time"
    if isinstance(data, (list, tuple)):
        return ""
    return f"a {type(data).__name__} does not promise that"


def backward_of(estimator: Any) -> Callable[[Any], list[NDArray]]:
    """Return the estimator's own forward and backward pass: one batch in, its losses out."""

    def backward(batch: Any) -> list[NDArray]:
        return estimator.batch_processor.fit_batch(estimator, batch, estimator.batch_axis)[3]

    return backward


def _finish_initialization(estimator: Any, batch: Any) -> None:
    """Let layers that infer their shapes see a batch, outside of training, before the snapshot."""
    if any(param._deferred_init for param in estimator.net.collect_params().values()):
        own = estimator.val_net, estimator.val_loss
        # Labels of training may be soft where those of the evaluation are not.
        estimator.val_net, estimator.val_loss = estimator.net, estimator.loss
        try:
            estimator.batch_processor.evaluate_batch(estimator, batch, estimator.batch_axis)
        finally:
            estimator.val_net, estimator.val_loss = own


def check_against_network(gradient: BatchGradient, net: Any, index: int) -> None:
    """Raise ValueError where the first step's gradient is not the one in the table.

    The weights are still the snapshot's there, so the two are the same, but for the rounding of
    kernels whose order of addition is free, unless the batches do not repeat.
    """
    params = net.collect_params()
    difference = scale = 0.0
    for name, grads in gradient.sums.items():
        own = params[name]
        if own.grad_req != "write":  # it may hold other batches' too
            continue
        for kept, grad, data in zip(grads, own.list_grad(), own.list_data(), strict=True):
            if data._fresh_grad:
                kept_values = kept.asnumpy()
                scale = max(scale, np.abs(kept_values).max())
                difference = max(difference, np.abs(grad.asnumpy() - kept_values).max())
    if difference > 0.01 * scale:
        raise ValueError(
            f"the gradient of batch {index} is not the one that the table holds, though the "
            f"weights are the same (largest difference {difference:.2g}, largest value "
            f"{scale:.2g}): the batches do not repeat, because of random augmentation or arrays "
            "that were changed in place; give batches that do, or gradient_table=False"
        )
