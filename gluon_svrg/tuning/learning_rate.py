"""Find a learning rate by a range test and then short trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.trainer import optimizer_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_finite, check_integer, check_number, explains_unknown
from gluon_svrg.events import EventHandlers, Run
from gluon_svrg.reporting.history import new_figure
from gluon_svrg.tuning.dry_run import DryRun, check_arguments, rolled_back
from mxnet.ndarray import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Result = TypeVar("_Result")

# The first losses show how much the loss varies by chance. Fewer steps show no slope.
_MIN_STEPS = 10

# The loss of a trial is the mean over its last fifth, where the rate is small and the loss steady.
_FINAL_PART = 5

# A run has more batches than a trial, and the best rate falls with the number of batches. On 18
# problems (MLPs, CNNs, LSTMs; SGD, NAG, Adam) the best rate of trials of 50 batches was 0.5 to 4.3
# times that of runs of 130 to 880, 1.2 times in the geometric mean; of trials of 25 batches 1.4
# times.
_RUN_TO_TRIAL_RATIO = math.sqrt(0.5)


@dataclass(frozen=True)
class LearningRateTest:
    """The result of :func:`find_learning_rate`.

    Attributes
    ----------
    learning_rates : list of float
        The increasing learning rates of the range test, one per step.
    losses : list of float
        The mean loss of each batch in the range test, before the step.
    smoothed_losses : list of float
        The exponentially weighted mean of `losses`.
    suggestion : float or None
        The suggested learning rate, as the highest one of a decreasing schedule. None if the loss
        did not fall in the range test.
    diverged : bool
        Whether the range test ended before `max_lr` because the loss rose too far, as it usually
        does.
    trials : dict of float to float
        The loss at the end of each trial, by learning rate; infinite if it became NaN or infinite.
    """

    learning_rates: list[float] = field(repr=False)
    losses: list[float] = field(repr=False)
    smoothed_losses: list[float] = field(repr=False)
    suggestion: float | None
    diverged: bool = field(repr=False)
    trials: dict[float, float] = field(default_factory=dict, repr=False)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the losses of the range test and of the trials over the rate, and the suggestion.

        Parameters
        ----------
        path : str or path, optional
            The file to save it in as well: .png, .pdf, .svg. Parent folders are made.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; a notebook shows it.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        figure = new_figure(6.4, 4.4, "LearningRateTest.plot")
        axes = figure.add_subplot()
        label = "rising rate: each batch"
        axes.plot(self.learning_rates, self.losses, color="C0", alpha=0.3, label=label)
        axes.plot(self.learning_rates, self.smoothed_losses, color="C0", label="smoothed")
        tried = sorted(self.trials)
        ends = [self.trials[rate] for rate in tried]
        if tried:
            axes.plot(tried, ends, "o-", color="C2", label="end of a trial with this rate")
        if self.suggestion is not None:
            label = f"suggestion: {self.suggestion:.3g}"
            axes.axvline(self.suggestion, color="C1", linestyle="--", label=label)
        low = min(*self.smoothed_losses, *ends)
        high = max(self.smoothed_losses[:_MIN_STEPS])
        margin = max(high - low, 1e-3 * abs(high))
        axes.set_ylim(low - 0.3 * margin, high + 0.7 * margin)
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150)
        return figure


@explains_unknown(
    start_lr="min_lr",
    end_lr="max_lr",
    num_iter="num_batches",
    num_training="num_batches",
    epochs="num_batches",
    batch_size="give it to gluon_svrg.data.ArrayLoader(x, y, batch_size=32)",
)
def find_learning_rate(
    estimator: Run,
    data: Iterable[object],
    min_lr: float = 1e-6,
    max_lr: float = 100.0,
    num_batches: int = 100,
    *,
    trial_batches: int = 50,
    smoothing: float = 0.9,
    divergence: float = 4.0,
    event_handlers: EventHandlers = None,
    batch_axis: int = 0,
) -> LearningRateTest:
    """Find a learning rate by short trainings with several rates, each from the same weights.

    Each trial trains for `trial_batches` batches, with a learning rate that begins at a power of 2
    and falls linearly to 0. The suggestion is a rate just below the one with the lowest final loss.

    The first trial uses the result of a learning rate range test (Smith), as in fastai, Lightning
    and Keras: one training step per batch, with a rate that rises from `min_lr` to `max_lr`. Then
    the rate is halved and doubled until the loss is higher on both sides of the best trial: three
    to eight trials, usually four.

    Everything is restored afterwards: weights, running statistics, the optimizer's states, counts
    and learning rate, random numbers, and the position of the data. So a later run is bit-identical
    to one without this test. The learning rate is not set: call
    ``estimator.trainer.set_learning_rate``.

    Parameters
    ----------
    estimator : Estimator
        Its network, loss, batch processor and trainer take the steps. Any optimizer works.
    data : iterable of (data, label)
        The training data, as for :meth:`Estimator.fit`. If they have fewer batches than needed,
        several epochs are used.
    min_lr, max_lr : float
        The lowest and the highest learning rate.
    num_batches : int
        The number of steps of the range test.
    trial_batches : int
        The number of batches of a trial. With 0 there are no trials, and the suggestion is the
        result of the range test, which is less exact and takes a third of the time.
    smoothing : float in [0, 1)
        The weight of the previous smoothed loss at each step of the range test.
    divergence : float
        The range test ends when the smoothed loss exceeds this multiple of its lowest value.
    event_handlers : EventHandler or list of EventHandler, optional
        The handlers of the run. Its GradientUpdateHandler (accumulation, clipping) takes the steps;
        the others, including SVRGHandler, are not used.
    batch_axis : int
        The axis of the data that counts the samples.

    Returns
    -------
    LearningRateTest
        With `suggestion`, `trials`, `learning_rates`, `losses` and `plot`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, if the data have no batch, if the optimizer has an
        lr_scheduler, or if there are several workers.
    FloatingPointError
        If the loss of one of the first batches is NaN or infinite.

    Notes
    -----
    The suggestion may be wrong by a factor of three, so look at the plot. It holds for the current
    weights, this batch size and these hyper-parameters of the optimizer, and for a run with a
    decreasing learning rate.

    It is the vertex of the parabola through the best trial and its neighbours, over the logarithm
    of the rate, divided by the square root of 2.

    A DataLoader with workers loads the data in this process during the test. Two things are not
    restored: the order of later epochs of an ImageRecordIter (the log says so), and the internal
    state of a data set. The steps use their own random number generators with a fixed seed.

    References
    ----------
    L. N. Smith, "Cyclical learning rates for training neural networks", WACV 2017.
    """
    _check(estimator, data, min_lr, max_lr, num_batches, trial_batches, smoothing, divergence)
    rates = [float(rate) for rate in np.geomspace(min_lr, max_lr, num_batches)]

    def rolled_back_of(steps: Callable[[DryRun], _Result]) -> _Result:
        return rolled_back(estimator, data, event_handlers, batch_axis, steps)

    result = rolled_back_of(
        lambda dry_run: _range_test(estimator, dry_run, rates, smoothing, divergence)
    )
    if result.suggestion is not None and trial_batches:
        trials = _run_trials(
            _nearest_power_of_2(result.suggestion, min_lr, max_lr),
            min_lr,
            max_lr,
            lambda rate: rolled_back_of(
                lambda dry_run: _trial(estimator, dry_run, rate, trial_batches)
            ),
        )
        result = replace(result, trials=trials, suggestion=_suggestion_from_trials(trials))
    if result.suggestion is None:
        estimator.logger.warning(
            "find_learning_rate has no suggestion: the loss did not fall at any rate from %.3g to "
            "%.3g in %d batches; look at the plot, and give a lower min_lr, a higher max_lr or "
            "more batches",
            rates[0],
            result.learning_rates[-1],
            len(result.losses),
        )
    return result


def _nearest_power_of_2(rate: float, min_lr: float, max_lr: float) -> float:
    """Round a rate, so that the trials depend little on the exact result of the range test."""
    power: float = 2.0 ** round(math.log2(rate))
    return power if min_lr <= power <= max_lr else rate


def _run_trials(
    first: float, min_lr: float, max_lr: float, trial_loss: Callable[[float], float]
) -> dict[float, float]:
    """Halve and double the rate until the loss gets no better; return the losses by rate."""
    trials = {first: trial_loss(first)}
    for factor in (0.5, 2.0):
        rate = first
        while trials[rate] <= min(trials.values()):
            rate *= factor
            if not min_lr <= rate <= max_lr:
                break
            trials[rate] = trial_loss(rate)
    return trials


def _suggestion_from_trials(trials: dict[float, float]) -> float | None:
    """Return the vertex of the parabola through the best trial and its neighbours, reduced.

    Returns None if every loss is infinite.
    """
    best = min(trials, key=lambda rate: trials[rate])
    if not math.isfinite(trials[best]):
        return None
    below, above = (trials.get(factor * best) for factor in (0.5, 2.0))
    vertex = 0.0
    if below is not None and above is not None:
        left, right = below - trials[best], above - trials[best]
        if not math.isfinite(left + right):
            vertex = 0.5 * (math.isinf(left) - math.isinf(right))
        elif left + right > 0:
            vertex = 0.5 * (left - right) / (left + right)
    return best * 2**vertex * _RUN_TO_TRIAL_RATIO


def _suggestion_from_range_test(
    rates: list[float], losses: list[float], smoothed: list[float]
) -> float | None:
    """Return the rate at half of the fall of the loss; None if the loss did not fall."""
    if len(losses) <= _MIN_STEPS:
        return None
    begin, least = float(np.mean(losses[:_MIN_STEPS])), min(smoothed)
    if smoothed.index(least) < _MIN_STEPS or begin - least <= np.std(losses[:_MIN_STEPS]):
        return None
    half = (begin + least) / 2
    return next(
        rate
        for rate, loss in zip(rates[_MIN_STEPS:], smoothed[_MIN_STEPS:], strict=True)
        if loss <= half
    )


def _check(
    estimator: Run,
    data: object,
    min_lr: float,
    max_lr: float,
    num_batches: int,
    trial_batches: int,
    smoothing: float,
    divergence: float,
) -> None:
    check_arguments(estimator, data, "find_learning_rate")
    check_finite("min_lr", min_lr, "the learning rate of the first step", 0, above=True)
    check_finite("max_lr", max_lr, "the learning rate of the last step", 0, above=True)
    if not min_lr < max_lr:
        raise ValueError(
            f"min_lr must be less than max_lr, got {min_lr!r} and {max_lr!r}: the learning rate "
            "rises from the one to the other"
        )
    check_integer("num_batches", num_batches, 1, "that many steps are taken")
    if num_batches < _MIN_STEPS:
        raise ValueError(
            f"num_batches must be at least {_MIN_STEPS}, got {num_batches!r}: fewer losses have no "
            "slope to be seen; 100 are usual"
        )
    check_integer("trial_batches", trial_batches, 0, "that many batches train each rate")
    check_finite("smoothing", smoothing, "the part of the smoothed loss that stays", 0)
    if smoothing >= 1:
        raise ValueError(
            f"smoothing must be less than 1, got {smoothing!r}: with 1 the smoothed loss would "
            "never change"
        )
    check_number("divergence", divergence, "a multiple of the least loss", 1, above=True)
    if optimizer_of(estimator.trainer).lr_scheduler is not None:
        raise ValueError(
            "the optimizer has an lr_scheduler, which would overrule the rates of the test: make "
            "the trainer without it, find the rate, and give it to the scheduler as base_lr, or "
            "to a gluon_svrg.ScheduleHandler"
        )


def _check_enough_steps(losses: list[float], value: float, rates: list[float]) -> None:
    """Raise FloatingPointError if the loss is not finite after too few steps for a result."""
    if not losses:
        raise FloatingPointError(
            f"the loss of the first batch is {value:g}, before any step: look for NaN in the data "
            "and in the weights"
        )
    if len(losses) < _MIN_STEPS:
        raise FloatingPointError(
            f"the loss is {value:g} after {len(losses)} steps with learning rates from "
            f"{rates[0]:.3g} to {rates[len(losses) - 1]:.3g}: give a smaller min_lr"
        )


def _range_test(
    run: Run, dry_run: DryRun, rates: list[float], smoothing: float, divergence: float
) -> LearningRateTest:
    losses: list[float] = []
    smoothed: list[float] = []
    mean, diverged = 0.0, False
    for rate, batch in zip(rates, dry_run.batches(len(rates)), strict=False):
        run.trainer.set_learning_rate(rate)
        loss = dry_run.backward(batch)
        value = _mean(loss)
        mean = smoothing * mean + (1 - smoothing) * value
        # Without the bias of the start at 0, as in Adam.
        current = mean / (1 - smoothing ** (len(losses) + 1))
        if not math.isfinite(value):
            _check_enough_steps(losses, value, rates)
            diverged = True
            break
        losses.append(value)
        smoothed.append(current)
        if current > divergence * min(smoothed) and len(losses) > _MIN_STEPS:
            diverged = True
            break
        dry_run.step(loss)
    rates = rates[: len(losses)]
    suggestion = _suggestion_from_range_test(rates, losses, smoothed)
    return LearningRateTest(rates, losses, smoothed, suggestion, diverged)


def _trial(run: Run, dry_run: DryRun, rate: float, number: int) -> float:
    """Train with a rate that falls to 0; return the final loss, or infinity if it is not finite."""
    losses: list[float] = []
    for step, batch in enumerate(dry_run.batches(number)):
        run.trainer.set_learning_rate(rate * (1 - step / number))
        loss = dry_run.backward(batch)
        losses.append(_mean(loss))
        if not math.isfinite(losses[-1]):
            return math.inf
        dry_run.step(loss)
    return float(np.mean(losses[-max(1, number // _FINAL_PART) :]))


def _mean(losses: list[NDArray]) -> float:
    """Return the mean of the losses of all samples, on all devices."""
    arrays: list[NumPyArray] = [to_nd(loss).asnumpy().ravel() for loss in losses]
    return float(np.mean(np.concatenate(arrays), dtype="float64"))
