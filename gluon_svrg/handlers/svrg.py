"""SVRGHandler: takes the snapshot and the full gradient, and has every batch corrected."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

from gluon_svrg.arguments import check_integer
from gluon_svrg.checkpoint.optimizer_states import places_of
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.events import (
    BatchBegin,
    BatchEnd,
    EpochBegin,
    EpochEnd,
    ExceptionRaised,
    GradientReady,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.run.batch_processor import check_data
from gluon_svrg.svrg.coefficient import OptimalCoefficient
from gluon_svrg.svrg.giving_up import GivingUp
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.interval import (
    FullPass,
    arrays_of,
    backward_of,
    check_against_network,
)
from gluon_svrg.svrg.rule import Coefficient, check_coefficient, coefficient_at
from gluon_svrg.svrg.table import GradientTable
from gluon_svrg.trainer import SVRGTrainer


class SVRGHandler(
    TrainBegin,
    EpochBegin,
    BatchBegin,
    GradientReady,
    BatchEnd,
    EpochEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
):
    """Runs SVRG: snapshot and full gradient at an epoch's begin, then a correction a batch.

    It works in :class:`gluon_svrg.Estimator` and in MXNet's own, with a
    :class:`gluon_svrg.SVRGTrainer`. An epoch with a snapshot costs three gradients a sample: one
    in the full pass, and two (at the weights and at the snapshot) in training. With a gradient
    table it costs two: the full pass keeps the gradients at the snapshot.

    Parameters
    ----------
    update_freq : int
        A snapshot every `update_freq` epochs. Johnson & Zhang (2013) took one every 2 epochs for
        convex problems, every 5 for others.
    coefficient : float in [0, 1], callable, 'auto' or OptimalCoefficient
        1 is SVRG, 0 the plain optimizer (no snapshot is taken then). A callable gets the fraction
        of training that is done, in [0, 1], at each snapshot; its value holds until the next.
        'auto' is ``OptimalCoefficient()``: estimated in training, for each parameter.
    gradient_table : bool or 'auto'
        Whether the gradient of each batch at the snapshot is kept from the full pass on, instead
        of computed again at each step. That needs batches that repeat exactly, in any order: a
        list of batches, or a :class:`gluon_svrg.data.ArrayLoader`. 'auto' keeps them where the
        batches repeat and the table fits into `table_memory`; the log says what was decided.
    table_memory : float
        The largest table that 'auto' makes, in bytes, on all devices together. A table takes one
        copy of the gradients a batch and device.
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
    lock : 'auto', 'require' or 'off'
        Whether a sample has the same random augmentation, and a batch the same dropout masks, in
        the full pass and in the epochs until the next. A :class:`gluon_svrg.data.ArrayLoader` with
        transforms of :mod:`gluon_svrg.data.transforms` is locked; where the data cannot be,
        'auto' warns and 'require' is an error. 'off' locks nothing, to see what it is worth.
    give_up_above : float, optional
        Gives up where the variance of the corrected gradient, averaged over the epoch, is more than
        this part of the plain one's: the plain optimizer goes on. An epoch with SVRG takes about
        three gradients a sample, so it pays under 1/3 (Defazio & Bottou 2019). In the next epoch
        it is measured once more, without a full pass, and SVRG goes on after it where the ratio is
        small enough: the first epoch of a run moves far, whatever the network.
        A :class:`gluon_svrg.VarianceHandler` measures it; the Estimator adds one where none is
        given. In this package's Estimator only.
    look_again_every : int, optional
        It is also measured every so many epochs after it gave up.

    Attributes
    ----------
    gradient_evaluations : int
        How many samples' gradients SVRG has computed, in addition to the network's own.
    table : GradientTable or None
        The table in use; None where gradients at the snapshot are computed again.
    giving_up : GivingUp
        Whether, and when, it gave up: ``giving_up.epoch``.

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
    A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced optimization for deep
    learning", NeurIPS 2019.
    """

    def __init__(
        self,
        update_freq: int = 1,
        coefficient: Coefficient | str | OptimalCoefficient = 1.0,
        gradient_table: str | bool = "auto",
        start_epoch: int = 0,
        stop_epoch: int | None = None,
        train_data: Iterable | None = None,
        progress_bar: bool = True,
        priority: float = -3000,
        table_memory: float = 2**30,
        lock: str = "auto",
        give_up_above: float | None = None,
        look_again_every: int | None = None,
    ) -> None:
        check_integer(
            "update_freq", update_freq, 1, "the full gradient is computed every update_freq epochs"
        )
        check_integer("start_epoch", start_epoch, 0, "SVRG is on from epoch start_epoch on")
        if stop_epoch is not None:
            check_integer("stop_epoch", stop_epoch, 0, "SVRG is off from epoch stop_epoch on")
            if stop_epoch <= start_epoch:
                raise ValueError(
                    f"stop_epoch must be greater than start_epoch, got {stop_epoch} and "
                    f"{start_epoch}: SVRG would never be on; leave the handler out for that"
                )
        if gradient_table not in ("auto", False, True):
            raise ValueError(f"gradient_table must be 'auto' or a bool, got {gradient_table!r}")
        _check_bytes(table_memory)
        if lock not in ("auto", "require", "off"):
            raise ValueError(f"lock must be 'auto', 'require' or 'off', got {lock!r}")
        self.update_freq = update_freq
        self.coefficient = _checked_coefficient(coefficient)
        self.gradient_table = gradient_table
        self.table_memory = table_memory
        self.start_epoch = start_epoch
        self.stop_epoch = stop_epoch
        self.train_data = train_data
        self.progress_bar = progress_bar
        self.priority = priority
        self.lock = lock
        self.giving_up = GivingUp(give_up_above, look_again_every)
        self.gradient_evaluations = 0
        self._pass: FullPass
        self._epoch = 0
        self._batch = 0
        self._total_batches = 0
        self._is_corrected = False
        self._is_at_snapshot = False
        self._is_loader = False

    @property
    def table(self) -> GradientTable | None:
        """The table in use; None where gradients at the snapshot are computed again."""
        return self._pass.table if "_pass" in vars(self) else None

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Check what the estimator brings, and start to count anew."""
        trainer = estimator.trainer
        if not isinstance(trainer, SVRGTrainer):
            raise ValueError(
                f"SVRGHandler needs an SVRGTrainer, got {type(trainer).__name__}: make it with "
                "gluon_svrg.SVRGTrainer, which takes the same arguments as gluon.Trainer"
            )
        check_data(self._data_of(estimator), "train_data")
        self._pass = FullPass(
            estimator, self.gradient_table, self.table_memory, self.progress_bar, self.lock
        )
        self._end_interval(estimator)
        self.giving_up.reset()
        self._epoch = self._batch = self._total_batches = 0
        self.gradient_evaluations = 0

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Take the snapshot and the full gradient, where this epoch is one for it."""
        self.giving_up.check(estimator)
        self._batch = 0
        epoch, self._epoch = self._epoch, self._epoch + 1
        if self.giving_up.epoch is not None or (
            self.stop_epoch is not None and epoch >= self.stop_epoch
        ):
            self._end_interval(estimator)
        elif self.renews_at(epoch):
            self._begin_interval(estimator)

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Let the network draw the random numbers that its twin draws."""
        self._is_corrected = False
        if self.is_on(estimator):
            self._pass.lock.lock(self._index_of(kwargs["batch"]))

    def gradient_ready(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient of the batch."""
        if self.is_on(estimator):
            batch = kwargs["batch"]
            index = self._index_of(batch)
            gradient = self.gradient_at_snapshot(estimator, index, batch)
            if self.table is not None and self._is_at_snapshot:
                check_against_network(gradient, estimator.net, index)
            self._pass.lock.release()
            estimator.trainer.correct(
                gradient, self._pass.table_scale if self.table is not None else None
            )
        self._is_corrected = True
        self._is_at_snapshot = False

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Correct the gradient, where the event *gradient ready* is not known."""
        # MXNet's Estimator fires no gradient_ready: there this is the last event before the step.
        if not self._is_corrected:
            self.gradient_ready(estimator, *args, **kwargs)
        self._batch += 1
        self._total_batches += 1

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Raise where the batches of the epoch were others than those of the full pass."""
        if self.table is not None:
            self.table.check()

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again."""
        self._end_interval(estimator)

    def exception_raised(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Leave a trainer that steps by itself again."""
        if isinstance(estimator.trainer, SVRGTrainer) and "_pass" in vars(self):
            self._end_interval(estimator)

    def is_on(self, estimator: Any) -> bool:
        """Return whether the batches are corrected at present."""
        return estimator.trainer.full_gradient is not None

    def consider(self, estimator: Any, ratio: float, at: float, epoch: int, is_last: bool) -> None:
        """Step aside, or begin again after that, as the measured variance ratio says.

        Parameters
        ----------
        estimator, ratio, at, epoch, is_last
            As for :meth:`gluon_svrg.handlers.giving_up.GivingUp.decide`.
        """
        is_on = self.is_on(estimator)
        stays_on = self.giving_up.decide(estimator, is_on, ratio, at, epoch, is_last)
        if is_on and not stays_on:
            # The data stays locked to the end of the epoch, whose batches are under way.
            if self.table is not None:
                self.table.check()
            if estimator.trainer.optimal_coefficient is not None:
                estimator.figures["coefficient"] = estimator.trainer.coefficient
            estimator.trainer.clear_control_variate()
            self._pass.table = None

    def backward_as_in_training(self, estimator: Any, index: int, batch: Any) -> Any:
        """Run the forward and backward pass of a batch with the masks that it has in training."""
        self._pass.lock.lock(index)
        return backward_of(estimator)(batch)

    def gradient_at_snapshot(self, estimator: Any, index: int, batch: Any) -> BatchGradient:
        """Return the gradient of a batch at the snapshot, from the table where there is one.

        `index` is the number of the batch in the full pass. An ArrayLoader's knows its own.
        """
        if self.table is not None:
            return self.table.gradient(index, arrays_of(batch))
        self._pass.lock.lock(index)
        gradient = self._pass.snapshot.gradient(backward_of(estimator), batch)
        self.gradient_evaluations += sum(gradient.samples)
        return gradient

    def release_masks(self) -> None:
        """Let the network draw as it comes again."""
        self._pass.lock.release()

    def snapshot_scale(self, estimator: Any) -> float:
        """Return what the losses of :meth:`gradient_at_snapshot` are multiplied by."""
        return self._pass.table_scale if self.table is not None else estimator.trainer.loss_scale

    def state_dict(self, estimator: Any) -> dict[str, Any]:
        """Return the snapshot, the full gradient and the counts, but not the table."""
        trainer = estimator.trainer
        state: dict[str, Any] = {
            "epoch": self._epoch,
            "batch": self._batch,
            "total_batches": self._total_batches,
            "gradient_evaluations": self.gradient_evaluations,
            "is_loader": self._is_loader,
            "is_at_snapshot": self._is_at_snapshot,
            "giving_up": self.giving_up.state_dict(),
            "coefficient": (
                trainer.coefficient
                if trainer.optimal_coefficient is None
                else trainer.optimal_coefficient.state_dict()
            ),
            # With accumulation over batches, gradients that are corrected may wait for the step.
            "is_corrected": trainer._is_corrected,
            "pass": self._pass.state_dict(estimator, self._data_of(estimator)),
            "full_gradient": None,
        }
        if self.is_on(estimator):
            places = places_of(estimator.net, trainer._params)
            state["full_gradient"] = {
                place: trainer.full_gradient[param.name][0]
                for place, param in zip(places, trainer._params, strict=True)
                if param.name in trainer.full_gradient
            }
        return state

    def load_state_dict(self, estimator: Any, state: dict[str, Any]) -> None:
        """Go on from `state`; computes a table again, where the epoch under way needs it."""
        trainer = estimator.trainer
        trainer.clear_control_variate()
        self._epoch, self._batch = state["epoch"], state["batch"]
        self._total_batches = state["total_batches"]
        self.gradient_evaluations = state["gradient_evaluations"]
        self._is_loader = state["is_loader"]
        self._is_at_snapshot = state["is_at_snapshot"]
        self.giving_up.load_state_dict(state["giving_up"])
        full_gradient = None
        if state["full_gradient"] is not None:
            names = dict(
                zip(
                    places_of(estimator.net, trainer._params),
                    (param.name for param in trainer._params),
                    strict=True,
                )
            )
            # Without a loss scale: the trainer has taken it out.
            full_gradient = FullGradient(
                {names[place]: mean for place, mean in state["full_gradient"].items()}, 1
            )
        is_used = estimator.position.is_in_epoch or not self.renews_at(self._epoch)
        data = self._data_of(estimator)
        self._pass.load_state_dict(estimator, state["pass"], data, full_gradient, is_used)
        if full_gradient is not None:
            self._set_control_variate(estimator, full_gradient, state["coefficient"])
            trainer._is_corrected = state["is_corrected"]

    def _set_control_variate(self, estimator: Any, full_gradient: FullGradient, saved: Any) -> None:
        """Put a saved full gradient back, which is without a loss scale, and its coefficient."""
        is_optimal = isinstance(self.coefficient, OptimalCoefficient)
        if is_optimal != isinstance(saved, dict):
            raise ValueError(
                f"the checkpoint was written with the coefficient {saved!r:.40} and this run's is "
                f"{self.coefficient!r}: a number cannot go on from an estimate, nor the other way"
            )
        coefficient = self.coefficient if is_optimal else saved
        estimator.trainer.set_control_variate(full_gradient, coefficient, loss_scale=1.0)
        if isinstance(self.coefficient, OptimalCoefficient):
            self.coefficient.load_state_dict(saved, estimator.context)

    def is_looking_again(self, epoch: int) -> bool:
        """Return whether to measure in this epoch, which is one after it gave up."""
        # From the last epoch before stop_epoch on, nothing could come of it.
        is_over = self.stop_epoch is not None and epoch + 1 >= self.stop_epoch
        return self.giving_up.is_looking_again(epoch) and not is_over

    def renews_at(self, epoch: int) -> bool:
        """Return whether a snapshot is taken, or SVRG ends, at the begin of `epoch`."""
        if self.stop_epoch is not None and epoch >= self.stop_epoch:
            return True
        return epoch >= self.start_epoch and (epoch - self.start_epoch) % self.update_freq == 0

    def coefficient_now(self, estimator: Any) -> float | None:
        """Return the coefficient that a snapshot now would have; None where it is estimated."""
        if isinstance(self.coefficient, OptimalCoefficient):
            return None
        progress = (
            max(0, self._epoch - 1) / estimator.max_epoch
            if estimator.max_epoch
            else self._total_batches / estimator.max_batch
        )
        return coefficient_at(self.coefficient, progress)

    def _begin_interval(self, estimator: Any) -> None:
        """Start the interval from this snapshot to the next."""
        value = self.coefficient_now(estimator)
        coefficient: Any = self.coefficient if value is None else value
        if value == 0:
            # The plain optimizer, bit for bit: no pass, no random number drawn.
            self._end_interval(estimator)
            return
        data = self._data_of(estimator)
        self._is_loader = isinstance(data, ArrayLoader)
        full_gradient = self._pass.run(estimator, data)
        self.gradient_evaluations += full_gradient.samples
        self._is_at_snapshot = True
        estimator.trainer.set_control_variate(full_gradient, coefficient)
        if self.giving_up.above is not None and estimator.trainer._distributed:
            raise ValueError(
                f"give_up_above={self.giving_up.above!r} is for one worker, and the kvstore is "
                f"{estimator.trainer._kvstore.type!r}: each worker would decide for itself, and "
                "the others would wait for it; leave it out"
            )

    def _end_interval(self, estimator: Any) -> None:
        """Go on with the plain optimizer, and with an augmentation of each epoch's own."""
        estimator.trainer.clear_control_variate()
        # Asked for as in _data_of, which raises where there is none.
        data = self.train_data
        self._pass.unlock_data(getattr(estimator, "train_data", None) if data is None else data)

    def _index_of(self, batch: Any) -> int:
        """Return the number of the batch in the full pass."""
        return batch.index if self._is_loader else self._batch

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


def _checked_coefficient(value: Any) -> Coefficient | OptimalCoefficient:
    if isinstance(value, str):
        if value == "auto":
            return OptimalCoefficient()
        raise TypeError(
            f"coefficient must be a number in [0, 1], got {value!r}: 1 is SVRG, 0 the plain "
            "optimizer, and 'auto' estimates the best one"
        )
    if callable(value) or isinstance(value, OptimalCoefficient):
        return value
    return check_coefficient(value)


def _check_bytes(value: object) -> None:
    message = (
        f"table_memory must be a number of bytes, got {value!r}: the largest gradient table that "
        "'auto' makes"
    )
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    if not float(value) >= 0:
        raise ValueError(message)
