"""SVRGHandler: takes the snapshot and the full gradient, and has every batch corrected."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from gluon_svrg.batches import check_data, length_of
from gluon_svrg.events import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    ExceptionRaised,
    GradientReady,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.svrg.randomness import MaskLock
from gluon_svrg.svrg.rule import Coefficient, check_coefficient, coefficient_at
from gluon_svrg.svrg.snapshot import FullGradient, Snapshot
from gluon_svrg.trainer import SVRGTrainer
from mxnet.ndarray import NDArray
from tqdm.auto import tqdm


class SVRGHandler(
    TrainBegin, EpochBegin, BatchBegin, GradientReady, BatchEnd, TrainEnd, ExceptionRaised
):
    """Runs SVRG: snapshot and full gradient at an epoch's begin, then a correction a batch.

    It works in :class:`gluon_svrg.Estimator` and in MXNet's own, with a
    :class:`gluon_svrg.SVRGTrainer`. An epoch with a snapshot costs three gradients a sample: one
    in the full pass, and two (at the weights and at the snapshot) in training.

    Parameters
    ----------
    update_freq : int
        A snapshot every `update_freq` epochs. Johnson & Zhang (2013) took one every 2 epochs for
        convex problems, every 5 for others.
    coefficient : float in [0, 1] or callable
        1 is SVRG, 0 the plain optimizer (no snapshot is taken then). A callable gets the fraction
        of training that is done, in [0, 1], at each snapshot; its value holds until the next.
    gradient_table : 'auto' or False
        Whether the gradients of the full pass are kept, so that an epoch need not compute them
        again. There is no table yet: 'auto' computes them again, as False does.
    start_epoch : int
        The first epoch (from 0) with SVRG; those before are a warm start by the plain optimizer.
    stop_epoch : int, optional
        The first epoch without SVRG again.
    train_data : iterable of batches, optional
        The training data, needed in MXNet's Estimator only.
    progress_bar : bool
        Whether the full pass shows a bar; only ever on a terminal.
    priority : float
        Before the optimizer's step, which in MXNet's Estimator has -2000.

    Attributes
    ----------
    gradient_evaluations : int
        How many samples' gradients SVRG has computed, in addition to the network's own.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If an argument is out of its range.

    References
    ----------
    R. Johnson, T. Zhang, "Accelerating stochastic gradient descent using predictive variance
    reduction", NeurIPS 2013. Y. Yin et al., "A coefficient makes SVRG effective", ICLR 2025.
    """

    def __init__(
        self,
        update_freq: int = 1,
        coefficient: Coefficient = 1.0,
        gradient_table: str | bool = "auto",
        start_epoch: int = 0,
        stop_epoch: int | None = None,
        train_data: Iterable | None = None,
        progress_bar: bool = True,
        priority: float = -3000,
    ) -> None:
        _check_integer(
            "update_freq", update_freq, 1, "the full gradient is computed every update_freq epochs"
        )
        _check_integer("start_epoch", start_epoch, 0, "SVRG is on from epoch start_epoch on")
        if stop_epoch is not None:
            _check_integer("stop_epoch", stop_epoch, 0, "SVRG is off from epoch stop_epoch on")
            if stop_epoch <= start_epoch:
                raise ValueError(
                    f"stop_epoch must be greater than start_epoch, got {stop_epoch} and "
                    f"{start_epoch}: SVRG would never be on; leave the handler out for that"
                )
        if gradient_table is True:
            raise NotImplementedError(
                "gradient_table=True is not there yet: with 'auto' or False the gradients at the "
                "snapshot are computed again for each batch"
            )
        if gradient_table not in ("auto", False):
            raise ValueError(f"gradient_table must be 'auto' or a bool, got {gradient_table!r}")
        self.update_freq = update_freq
        self.coefficient = coefficient if callable(coefficient) else check_coefficient(coefficient)
        self.gradient_table = gradient_table
        self.start_epoch = start_epoch
        self.stop_epoch = stop_epoch
        self.train_data = train_data
        self.progress_bar = progress_bar
        self.priority = priority
        self.gradient_evaluations = 0
        self._snapshot: Snapshot
        self._lock: MaskLock
        self._epoch = 0
        self._batch = 0
        self._total_batches = 0
        self._is_corrected = False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Check what the estimator brings, and start to count anew."""
        trainer = estimator.trainer
        if not isinstance(trainer, SVRGTrainer):
            raise ValueError(
                f"SVRGHandler needs an SVRGTrainer, got {type(trainer).__name__}: make it with "
                "gluon_svrg.SVRGTrainer, which takes the same arguments as gluon.Trainer"
            )
        check_data(self._data_of(estimator), "train_data")
        trainer.clear_control_variate()
        self._snapshot = Snapshot(estimator.net, [param.name for param in trainer._params])
        self._lock = MaskLock()
        self._epoch = self._batch = self._total_batches = 0
        self.gradient_evaluations = 0

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Take the snapshot and the full gradient, where this epoch is one for it."""
        self._batch = 0
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self.stop_epoch is not None and epoch >= self.stop_epoch:
            estimator.trainer.clear_control_variate()
        elif epoch >= self.start_epoch and (epoch - self.start_epoch) % self.update_freq == 0:
            self._begin_interval(estimator, epoch)

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Let the network draw the random numbers that its twin will draw."""
        self._is_corrected = False
        if self._is_on(estimator):
            self._lock.lock(self._batch)

    def gradient_ready(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient of the batch."""
        if self._is_on(estimator):
            self._lock.lock(self._batch)
            gradient = self._snapshot.gradient(_backward_of(estimator), kwargs["batch"])
            self.gradient_evaluations += sum(gradient.samples)
            self._lock.release()
            estimator.trainer.correct(gradient)
        self._is_corrected = True

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient, where the event *gradient ready* is not known."""
        # MXNet's Estimator fires no gradient_ready: there this is the last event before the step.
        if not self._is_corrected:
            self.gradient_ready(estimator, *args, **kwargs)
        self._batch += 1
        self._total_batches += 1

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again."""
        estimator.trainer.clear_control_variate()

    def exception_raised(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again."""
        if isinstance(estimator.trainer, SVRGTrainer):
            estimator.trainer.clear_control_variate()

    @staticmethod
    def _is_on(estimator: Any) -> bool:
        return estimator.trainer.full_gradient is not None

    def _begin_interval(self, estimator: Any, epoch: int) -> None:
        """Start the interval from this snapshot to the next."""
        progress = (
            epoch / estimator.max_epoch
            if estimator.max_epoch
            else self._total_batches / estimator.max_batch
        )
        coefficient = coefficient_at(self.coefficient, progress)
        if coefficient == 0:
            # The plain optimizer, bit for bit: no pass, no random number drawn.
            estimator.trainer.clear_control_variate()
            return
        full_gradient = self._full_gradient(estimator)
        estimator.trainer.set_control_variate(full_gradient, coefficient)

    def _full_gradient(self, estimator: Any) -> FullGradient:
        batches = iter(self._data_of(estimator))
        first = next(batches, None)
        if first is None:
            raise ValueError(
                "the full gradient needs at least one batch, got none: train_data is empty, or "
                "can be iterated only once"
            )
        _finish_initialization(estimator, first)
        self._snapshot.take()
        self._lock.next_snapshot()
        backward = _backward_of(estimator)
        indices = itertools.count()

        def locked_backward(batch: Any) -> Any:
            index = next(indices)
            if index == 0:
                return self._lock.watch(lambda: backward(batch), estimator.context)
            self._lock.lock(index)
            return backward(batch)

        with tqdm(
            itertools.chain([first], batches),
            total=length_of(self._data_of(estimator)),
            desc="full gradient",
            unit="batch",
            leave=False,
            # None: off where the output is no terminal.
            disable=None if self.progress_bar else True,
        ) as bar:
            full_gradient = self._snapshot.full_gradient(locked_backward, bar)
        self._lock.release()
        self.gradient_evaluations += full_gradient.samples
        return full_gradient

    def _data_of(self, estimator: Any) -> Iterable:
        # MXNet's Estimator has no such attribute: it does not keep the data that fit was given.
        data = self.train_data
        if data is None:
            data = getattr(estimator, "train_data", None)
        if data is None:
            raise ValueError(
                f"SVRGHandler does not know the training data: {type(estimator).__module__}."
                f"{type(estimator).__name__} does not tell it; give SVRGHandler(train_data=...)"
            )
        return data


def _backward_of(estimator: Any) -> Callable[[Any], list[NDArray]]:
    """Return the estimator's own forward and backward pass: one batch in, its losses out."""

    def backward(batch: Any) -> list[NDArray]:
        return estimator.batch_processor.fit_batch(estimator, batch, estimator.batch_axis)[3]

    return backward


def _finish_initialization(estimator: Any, batch: Any) -> None:
    """Let layers that infer their shapes see a batch, outside of training, before the snapshot."""
    if any(param._deferred_init for param in estimator.net.collect_params().values()):
        estimator.batch_processor.evaluate_batch(estimator, batch, estimator.batch_axis)


def _check_integer(name: str, value: Any, least: int, meaning: str) -> None:
    kind = "a positive integer" if least == 1 else "a non-negative integer"
    message = f"{name} must be {kind}, got {value!r}: {meaning}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(message)
    if value < least:
        raise ValueError(message)
