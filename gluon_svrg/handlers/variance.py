"""VarianceHandler: measures in training what SVRG does to the variance of the gradient."""

from __future__ import annotations

import itertools
import math
import numbers
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.arrays.replicas import replicas_of
from gluon_svrg.data.loader import ArrayLoader
from gluon_svrg.events import BatchEnd, GradientReady, Stateful, TrainBegin
from gluon_svrg.handlers.svrg import SVRGHandler
from gluon_svrg.run.batch_processor import length_of
from gluon_svrg.svrg.interval import backward_of
from gluon_svrg.svrg.randomness import seed_mxnet
from gluon_svrg.svrg.rule import check_coefficient
from gluon_svrg.svrg.snapshot import Snapshot
from gluon_svrg.svrg.variance import Coefficients, GradientMoments, VarianceMeter, average_ratio
from gluon_svrg.trainer import SVRGTrainer
from mxnet.ndarray import NDArray


@dataclass(frozen=True)
class VarianceRecord:
    """What was measured at one point of a run.

    Attributes
    ----------
    epoch : int
        The number of the epoch.
    at : float
        The part of the epoch that was done, in (0, 1].
    ratio : float
        The variance of the corrected gradient by that of the plain one.
    svrg_ratio : float
        What it would be with the coefficient 1.
    optimal_ratio : float
        What it would be with the best coefficient for each parameter.
    optimal_coefficient : float
        The best single one.
    variance : float
        That of the plain gradient of a batch: the mean squared distance from its mean.
    average : float
        The ratio, averaged over the epoch so far, with this one for the rest of it.
    """

    epoch: int
    at: float
    ratio: float
    svrg_ratio: float
    optimal_ratio: float
    optimal_coefficient: float
    variance: float
    average: float


class VarianceHandler(TrainBegin, GradientReady, BatchEnd, Stateful):
    """Measures whether SVRG pays: what the correction does to the variance of the gradient.

    At some points of an epoch it computes, for a few batches drawn at random (of a DataLoader, the
    first of a new iteration), the gradient at the
    weights and at the snapshot, and from them the variance ratio: the variance of the corrected
    gradient by that of the plain one. An epoch with SVRG takes about three
    gradients a sample, so the ratio has to be under 1/3 for it to pay (Defazio & Bottou 2019, who
    measured at the points that are the default here). With
    ``SVRGHandler(give_up_above=...)`` it tells the SVRGHandler.

    Where SVRG is off it measures what it *would* do, from a copy of the weights at the beginning of
    the epoch, without a full pass: a plain run with a VarianceHandler says whether SVRG would pay.
    (After an SVRGHandler has given up, only where that looks again.)

    A row of the history gets ``variance_ratio``, the ratio averaged over the epoch, and
    ``variance_ratio_at_11``, the ratio when 11 % of it are done, for each point.

    Parameters
    ----------
    at : sequence of float
        When to measure: percentages of an epoch's batches, in (0, 100].
    batches : int
        How many batches each measurement takes, at least 2. It computes two gradients of each,
        one where SVRG has a gradient table. With the default and 4 points that is 64 batches an
        epoch, 5 % of the time of an epoch of SVRG over 469 batches.
    every_n_epochs : int
        Measure in each `every_n_epochs`-th epoch from the first on.
    coefficient : float or 'auto'
        SVRG's coefficient where SVRG is off; 'auto' is the best one for each parameter.
    seed : int
        Decides which batches are taken.
    priority : float
        After the optimizer's step, before the history.

    Attributes
    ----------
    records : list of VarianceRecord
        What was measured in this run; after a resume also before it.
    gradient_evaluations : int
        How many samples' gradients that took, without those at the snapshot that the SVRGHandler
        counts.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If a point is not in (0, 100], or another argument is out of its range.

    Notes
    -----
    The gradients are a frozen twin's: neither BatchNorm's statistics nor gradients change. Both
    gradients of a batch see the same random numbers. For that MXNet is seeded, so that, where SVRG
    does not seed it anyway, the masks of training are other ones than without this handler.

    References
    ----------
    A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced optimization for deep
    learning", NeurIPS 2019.
    """

    def __init__(
        self,
        at: Sequence[float] = (2, 11, 33, 100),
        batches: int = 8,
        every_n_epochs: int = 1,
        coefficient: float | str = 1.0,
        seed: int = 0,
        priority: float = 500,
    ) -> None:
        self.at = _checked_points(at)
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
        self.coefficient = None if coefficient == "auto" else check_coefficient(coefficient)
        self.seed = check_integer("seed", seed, 0, "it decides which batches are taken")
        check_number(
            "priority", priority, "it measures after the optimizer's step", least=-2000, above=True
        )
        self.priority = priority
        self.records: list[VarianceRecord] = []
        self.gradient_evaluations = 0
        self._svrg: SVRGHandler | None = None
        self._meter: VarianceMeter
        self._reference: Snapshot
        # Whether the weights at the beginning of this epoch stand in for a snapshot.
        self._has_reference = False

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Look for the SVRGHandler, and whether the data can be measured on."""
        # MXNet's Estimator has no such attribute: it does not keep the data that fit was given.
        data = getattr(estimator, "train_data", None)
        if data is None:
            raise ValueError(
                f"VarianceHandler needs gluon_svrg.Estimator, which tells its data and position, "
                f"got {type(estimator).__module__}.{type(estimator).__name__}"
            )
        _check_length(data)
        self.records, self.gradient_evaluations = [], 0
        self._has_reference = False
        names = [param.name for param in estimator.trainer._params]
        self._meter = VarianceMeter(estimator.net, names)
        self._reference = Snapshot(estimator.net, names)
        self._svrg = next((h for h in estimator.handlers if isinstance(h, SVRGHandler)), None)
        if self._svrg is not None:
            self._svrg.giving_up.is_metered = True

    def gradient_ready(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Copy the weights before an epoch's first step, where they stand in for a snapshot."""
        position = estimator.position
        if position.batch_in_epoch:
            return
        self._has_reference = self._measures_in(position.epoch) and not self._svrg_decides(
            estimator, position.epoch
        )
        if self._has_reference:
            self._reference.take()

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Measure, where this is a point for it."""
        epoch, done = estimator.position.epoch, estimator.position.batch_in_epoch + 1
        length = length_of(estimator.train_data)
        if not length or not self._measures_in(epoch):
            return
        numbers = [max(1, round(point / 100 * length)) for point in self.at]
        is_on = self._svrg is not None and self._svrg.is_on(estimator)
        if done not in numbers or not (is_on or self._has_reference):
            return
        self._measure(estimator, epoch, done / length, is_on)

    def state_dict(self, estimator: Any) -> dict[str, Any]:
        """Return what was measured, and the weights that stand in for a snapshot."""
        return {
            "records": [asdict(record) for record in self.records],
            "gradient_evaluations": self.gradient_evaluations,
            "reference": (
                [replicas_of(arrays) for arrays in self._reference.weights.values()]
                if self._has_reference
                else None
            ),
        }

    def load_state_dict(self, estimator: Any, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.records = [VarianceRecord(**record) for record in state["records"]]
        self.gradient_evaluations = state["gradient_evaluations"]
        self._has_reference = state["reference"] is not None
        if state["reference"] is not None:
            names = estimator.net.collect_params().keys()
            self._reference.load(dict(zip(names, state["reference"], strict=True)))

    def _measures_in(self, epoch: int) -> bool:
        if self._svrg is not None and self._svrg.is_looking_again(epoch):
            return True
        return epoch % self.every_n_epochs == 0

    def _svrg_decides(self, estimator: Any, epoch: int) -> bool:
        """Return whether SVRG is on, or has given up and does not look again in this epoch."""
        if self._svrg is None:
            return False
        gave_up = self._svrg.giving_up.epoch is not None
        return self._svrg.is_on(estimator) or (gave_up and not self._svrg.is_looking_again(epoch))

    def _measure(self, estimator: Any, epoch: int, at: float, is_on: bool) -> None:
        moments = self._moments(estimator, epoch, is_on)
        coefficient = self._coefficient_now(estimator, moments, is_on)
        ratio = moments.ratio(coefficient)
        earlier = [r for r in self.records if r.epoch == epoch]
        # At the snapshot both gradients are the same, for which 1 is the best coefficient.
        at_snapshot = (1 - coefficient) ** 2 if isinstance(coefficient, float) else 0.0
        if is_on and self._svrg is not None and not self._svrg.renews_at(epoch):
            # The snapshot is of an earlier epoch: go on from what was measured last.
            at_snapshot = next((r.ratio for r in reversed(self.records) if r.epoch < epoch), ratio)
        average = average_ratio(
            [*(r.at for r in earlier), at], [*(r.ratio for r in earlier), ratio], at_snapshot
        )
        record = VarianceRecord(
            epoch=epoch,
            at=at,
            ratio=ratio,
            svrg_ratio=moments.ratio(1.0),
            optimal_ratio=moments.ratio(moments.optimal_coefficients()),
            optimal_coefficient=moments.optimal_coefficient(),
            variance=moments.variance(),
            average=average,
        )
        self.records.append(record)
        estimator.logger.info(
            "epoch %d, %.3g %%: the variance ratio is %.3g, with the best coefficient (%.2f) %.3g",
            epoch,
            100 * at,
            ratio,
            record.optimal_coefficient,
            record.optimal_ratio,
        )
        points = self._points_of(at, estimator)
        estimator.figures |= {f"variance_ratio_at_{point:g}": ratio for point in points}
        estimator.figures["variance_ratio"] = average
        if self._svrg is not None and not math.isnan(average):
            self._svrg.consider(estimator, average, at, epoch, self.at[-1] in points)
            self._has_reference &= not self._svrg_decides(estimator, epoch)

    def _points_of(self, at: float, estimator: Any) -> list[float]:
        """Return the points, in percent, for which this part of the epoch stands."""
        length = length_of(estimator.train_data) or 1
        return [p for p in self.at if max(1, round(p / 100 * length)) == round(at * length)]

    def _moments(self, estimator: Any, epoch: int, is_on: bool) -> GradientMoments:
        backward = backward_of(estimator)
        trainer = estimator.trainer
        scale = trainer.loss_scale if isinstance(trainer, SVRGTrainer) else 1.0
        batches = self._draw(estimator, epoch)
        if self._svrg is None or not is_on:
            here = epoch, estimator.position.batch_in_epoch

            def masked(item: tuple[int, Any]) -> Any:
                seed_mxnet(self.seed, *here, item[0])  # as SVRG's MaskLock would
                return backward(item[1])

            moments = self._meter.measure(
                masked,
                batches,
                lambda item: self._reference.gradient(masked, item),
                scale,
                scale,
            )
            seed_mxnet(self.seed, *here)
            self.gradient_evaluations += 2 * moments.samples
            return moments
        svrg = self._svrg
        moments = self._meter.measure(
            lambda item: svrg.backward_as_in_training(estimator, *item),
            batches,
            lambda item: svrg.gradient_at_snapshot(estimator, *item),
            scale,
            svrg.snapshot_scale(estimator),
        )
        svrg.release_masks()
        self.gradient_evaluations += moments.samples
        return moments

    def _coefficient_now(
        self, estimator: Any, moments: GradientMoments, is_on: bool
    ) -> Coefficients:
        if is_on:
            trainer = estimator.trainer
            return (
                trainer.coefficient if trainer.optimal_coefficient is None else trainer.coefficients
            )
        coefficient = self.coefficient
        if self._svrg is not None and self._svrg.giving_up.epoch is not None:
            coefficient = self._svrg.coefficient_now(estimator)
        return moments.optimal_coefficients() if coefficient is None else coefficient

    def _draw(self, estimator: Any, epoch: int) -> Iterator[tuple[int, Any]]:
        """Yield the batches to measure on, each with its number in the full pass."""
        data = estimator.train_data
        if not isinstance(data, (list, tuple, ArrayLoader)):
            yield from _first_batches(data, self.batches)
            return
        # A smaller batch varies more than the others.
        is_last_smaller = _size_of(data[-1], estimator) < _size_of(data[0], estimator)
        candidates = len(data) - (is_last_smaller and len(data) > 2)
        key = (epoch, estimator.position.batch_in_epoch)
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        order = np.random.Generator(np.random.PCG64(sequence)).permutation(candidates)
        for index in order[: self.batches].tolist():
            yield index, data[index]


def _checked_points(at: Any) -> tuple[float, ...]:
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


def _check_length(data: Any) -> None:
    length = length_of(data)
    if length is None:
        raise ValueError(
            f"VarianceHandler measures at parts of an epoch, and a {type(data).__name__} does not "
            "tell how many batches it has: give train_data a __len__"
        )
    if length == 1:
        raise ValueError(
            "VarianceHandler needs at least two batches an epoch, got 1: use a smaller batch size"
        )


def _size_of(batch: Any, estimator: Any) -> int:
    """Return the number of samples; of a batch of another shape than (data, label), 0."""
    data = batch[0] if isinstance(batch, (list, tuple)) else None
    return data.shape[estimator.batch_axis] if isinstance(data, (NDArray, np.ndarray)) else 0


def _first_batches(data: Any, count: int) -> Iterator[tuple[int, Any]]:
    """Yield the first batches of a new iteration, which leaves no trace in the order of others."""
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    try:
        batches = list(itertools.islice(data, count))
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
    yield from enumerate(batches)
