"""VarianceHandler: measures during training how SVRG changes the variance of the gradient."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import (
    BatchEnd,
    ExceptionRaised,
    GradientReady,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.svrg.coefficient import check_coefficient
from gluon_svrg.svrg.handler import SVRGHandler
from gluon_svrg.svrg.payoff import MeasurementPlan, Payoff, PayoffCriterion, VarianceRecord


class VarianceHandler(
    TrainBegin,
    GradientReady,
    BatchEnd,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    HasExclusiveTasks,
    RequiresRun,
):
    """Measures whether SVRG pays: how the correction changes the variance of the gradient.

    At some points of an epoch it computes the gradients of a few random batches, at the current
    weights and at the snapshot. (With a DataLoader, these are the first batches of a new
    iteration.) From them it computes the variance ratio: the variance of the corrected gradient
    divided by that of the plain one. An epoch with SVRG takes about three gradients per sample, so
    SVRG pays if the ratio is below 1/3 (Defazio & Bottou 2019; the default points are theirs). With
    ``SVRGHandler(max_variance_ratio=...)`` the SVRGHandler switches SVRG on and off by the ratio.

    While SVRG is off, it measures what SVRG *would* do, with a copy of the weights from the
    beginning of the epoch as the snapshot. That needs no full pass: the full gradient is a
    constant, so the variance does not depend on it. So a plain run with a VarianceHandler says
    whether SVRG would pay. After SVRG was switched off, it measures only in recheck epochs. A
    measurement that decides whether to switch SVRG on takes at most 2.5 % of an epoch's batches (at
    least 3 batches), and all these measurements at most 15 %: one or two points in the first third
    of the first epoch, one to four in the next epoch.

    A row of the history gets ``variance_ratio``, the ratio averaged over the epoch, and for each
    point a figure such as ``variance_ratio_at_11``, the ratio when 11 % of the epoch are done.

    Parameters
    ----------
    at : sequence of float
        When to measure: percentages of an epoch's batches, in (0, 100].
    batches : int
        The number of batches of each measurement, at least 2. Each batch takes two gradients, or
        one if SVRG has a gradient table. The default with 4 points takes 64 gradients of a batch
        per epoch: 5 % of the time of an SVRG epoch of 469 batches.
    every_n_epochs : int
        Measure in every n-th epoch, starting with the first.
    coefficient : float or 'auto'
        The coefficient to assume while SVRG is off; 'auto' is the best one for each parameter.
    seed : int
        Seed of the choice of batches.
    priority : float
        By default after the optimizer's step and before the history.

    Attributes
    ----------
    records : list of VarianceRecord
        The measurements of this run, including those before a resume.
    gradient_evaluations : int
        The number of gradients (one per sample) that the measurements took, without those at the
        snapshot, which the SVRGHandler counts.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If a point is not in (0, 100], or another argument is out of its range.

    Notes
    -----
    The gradients are computed on a copy: neither BatchNorm's statistics nor the network's gradients
    change. Both gradients of a batch use the same random numbers. For this MXNet is seeded, so the
    dropout masks of the training differ from those without this handler, unless SVRG seeds MXNet
    anyway.

    References
    ----------
    A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced optimization for deep
    learning", NeurIPS 2019.
    """

    state_key = "variance"

    def __init__(
        self,
        at: Sequence[float] = (2, 11, 33, 100),
        batches: int = 8,
        every_n_epochs: int = 1,
        coefficient: float | str = 1.0,
        *,
        seed: int = 0,
        priority: float = Order.VARIANCE,
    ) -> None:
        self.at = _check_points(at)
        self.batches = check_integer(
            "batches", batches, 2, "the variance is taken over that many batches"
        )
        self.every_n_epochs = check_integer(
            "every_n_epochs", every_n_epochs, 1, "the ratio is measured every every_n_epochs epochs"
        )
        if isinstance(coefficient, str) and coefficient != "auto":
            raise TypeError(
                f"coefficient must be a number in [0, 1] or 'auto', got {coefficient!r}"
            )
        self.coefficient: float | str = (
            coefficient if isinstance(coefficient, str) else check_coefficient(coefficient)
        )
        self.seed = check_integer("seed", seed, 0, "it decides which batches are taken")
        check_number(
            "priority", priority, "it measures after the optimizer's step", least=-2000, above=True
        )
        self.priority = float(priority)
        self._payoff: Payoff | None = None
        self._svrg: SVRGHandler | None = None

    @property
    def records(self) -> list[VarianceRecord]:
        """The measurements of this run, including those before a resume."""
        return [] if self._payoff is None else self._payoff.records

    @property
    def gradient_evaluations(self) -> int:
        """How many gradients (one per sample) the measurements took.

        Gradients at the snapshot are not included: the SVRGHandler counts them.
        """
        return 0 if self._payoff is None else self._payoff.gradient_evaluations

    def exclusive_tasks(self) -> list[str]:
        """Return the task of this handler."""
        return ["measure the variance ratio"]

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Check the data, and look for the SVRGHandler to measure."""
        _check_length(estimator.data)
        self._payoff = None
        found = (handler for handler in estimator.handlers if isinstance(handler, SVRGHandler))
        self._svrg = next(found, None)

    def gradient_ready(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Copy the weights before an epoch's first step, if they serve as a snapshot."""
        if not estimator.position.batch_in_epoch:
            self._payoff_of(estimator).keep_reference(self._measures_epoch(estimator))

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Measure, if this batch is a point of measurement, and let SVRG follow the decision."""
        measures = self._measures_epoch(estimator)
        plan = MeasurementPlan(self.at, self.batches, measures, self.coefficient, self.seed)
        record = self._payoff_of(estimator).measure(plan)
        if record is None:
            return
        points = self._points_of(record.at, estimator.data.num_batches or 1)
        estimator.figures["variance_ratio"] = record.average
        estimator.figures |= {f"variance_ratio_at_{point:g}": record.ratio for point in points}
        if self._svrg is not None:
            self._svrg.follow_payoff()

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Free what belongs to the run; `records` stay."""
        self._svrg = None
        if self._payoff is not None:  # otherwise an exception came before train begin
            self._payoff.release()

    exception_raised = train_end

    def state_dict(self, estimator: Run) -> State:
        """Return the measurements, and the weights that serve as a snapshot."""
        return self._payoff_of(estimator).state_dict()

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue from `state`."""
        self._payoff_of(estimator).load_state_dict(state)

    def _payoff_of(self, estimator: Run) -> Payoff:
        """Return the SVRGHandler's Payoff, which exists after *train begin*, or a new one."""
        if self._payoff is None:
            svrg = self._svrg
            self._payoff = svrg.payoff if svrg else Payoff(estimator, PayoffCriterion(None, None))
        return self._payoff

    def _measures_epoch(self, estimator: Run) -> bool:
        return estimator.position.is_due("epoch_begin", self.every_n_epochs)

    def _points_of(self, at: float, length: int) -> list[float]:
        """Return the points, in percent, that fall on this batch of the epoch."""
        return [p for p in self.at if max(1, round(p / 100 * length)) == round(at * length)]


def _check_points(at: object) -> tuple[float, ...]:
    points = tuple(at) if isinstance(at, (list, tuple)) else (at,)
    if not points:
        raise ValueError(
            "at must hold at least one percentage, got none: (2, 11, 33, 100) is usual"
        )
    for point in points:
        message = f"at must hold percentages of an epoch, above 0 and at most 100, got {point!r}"
        if isinstance(point, bool) or not isinstance(point, numbers.Real):
            raise TypeError(message)
        if not 0 < float(point) <= 100:
            raise ValueError(message)
    return tuple(sorted({float(point) for point in points}))


def _check_length(data: TrainingData) -> None:
    if data.num_batches is None:
        raise ValueError(
            f"VarianceHandler measures at fractions of an epoch, and {data.kind} has no length: "
            "give train_data a __len__"
        )
    if data.num_batches == 1:
        raise ValueError(
            "VarianceHandler needs at least two batches per epoch, got 1: use a smaller batch size"
        )
