"""Schedules: pure functions from training progress to a value.

Each function here returns a schedule, a callable that takes the fraction `p` of training that is
done, in [0, 1] (a value outside is replaced by the nearer end), and returns the value, a float. It
raises TypeError for an argument that is no number, and ValueError for one that is NaN, infinite or
out of the range that its description gives.

A schedule is the `schedule` of :class:`gluon_svrg.ScheduleHandler` and, if its values are in
[0, 1], may be ``SVRGHandler(coefficient=...)``.

A run of `n` batches asks for the progress 0, 1/n, ..., (n - 1)/n. The value at progress 1 would be
that of the batch after the last.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec

from gluon_svrg.arguments import check_finite, check_number
from mxnet.lr_scheduler import LRScheduler

__all__ = ["constant", "cosine", "linear", "one_cycle", "poly", "step", "warm_up"]

Schedule = Callable[[float], float]

_P = ParamSpec("_P")

# Progress is a rounded number: (2 + 1/3) / 7 need not be the 1/3 that a user has written.
_ROUNDING = 1e-9


class NamedSchedule:
    """A schedule that knows the call that made it: its `repr`, ``cosine(start=0.1, end=0.0)``.

    Attributes
    ----------
    name : str
        The name of the function that was called.
    arguments : dict of str to object
        Its arguments, defaults included.
    """

    def __init__(self, schedule: Schedule, name: str, arguments: Mapping[str, object]) -> None:
        self._schedule = schedule
        self.name = name
        self.arguments = arguments

    def __call__(self, progress: float) -> float:
        """Return the value at `progress`."""
        return self._schedule(progress)

    def __repr__(self) -> str:
        """Return the call."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


def named(make: Callable[_P, Schedule]) -> Callable[_P, Schedule]:
    """Let the schedules that a function makes know the call that made them."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> Schedule:
        schedule = make(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return NamedSchedule(schedule, make.__name__, given.arguments)

    return made


@named
def constant(value: float) -> Schedule:
    """Return a schedule that is always `value`.

    Parameters
    ----------
    value : float
        The value.
    """
    value = check_finite("value", value, "it is the schedule's value")
    return lambda _: value


@named
def linear(start: float, end: float) -> Schedule:
    r"""Return a schedule that goes in a straight line from `start` to `end`.

    .. math:: v(p) = \mathrm{end} + (\mathrm{start} - \mathrm{end})\,(1 - p)

    Parameters
    ----------
    start, end : float
        The values at the beginning and at the end of training.
    """
    start, end = _ends(start, end)
    return lambda progress: _between(start, end, 1 - _clipped(progress))


@named
def step(value: float, milestones: Sequence[float], factor: float = 0.1) -> Schedule:
    r"""Return a schedule that is multiplied by `factor` at each milestone.

    .. math:: v(p) = \mathrm{value} \cdot \mathrm{factor}^{|\{m \in \mathrm{milestones}: m \le p\}|}

    It is MXNet's ``MultiFactorScheduler`` with its steps as fractions of all updates.

    Parameters
    ----------
    value : float
        The value before the first milestone.
    milestones : sequence of float in (0, 1)
        In progress, increasing: (0.5, 0.75) is at half and at three quarters of training.
    factor : float above 0
        What the value is multiplied by.
    """
    value = check_finite("value", value, "it is the schedule's value before the first milestone")
    factor = check_finite("factor", factor, "the value is multiplied by it", least=0, above=True)
    if isinstance(milestones, str) or not isinstance(milestones, Sequence):
        raise TypeError(
            f"milestones must be a sequence of fractions of training, got {milestones!r}: give "
            "(0.5, 0.75) for half and three quarters of it"
        )
    marks = [check_number("each milestone", m, "it is a fraction of training") for m in milestones]
    if not all(0 < mark < 1 for mark in marks):
        raise ValueError(
            f"milestones must be fractions of training, above 0 and below 1, got {milestones!r}: "
            "divide epochs by the number of all epochs"
        )
    if any(after <= before for before, after in itertools.pairwise(marks)):
        raise ValueError(
            f"milestones must increase, got {milestones!r}: give each once, in their order"
        )

    def schedule(progress: float) -> float:
        return value * factor ** sum(mark <= progress + _ROUNDING for mark in marks)

    return schedule


@named
def cosine(start: float, end: float = 0.0) -> Schedule:
    r"""Return a schedule that goes from `start` to `end` along half a wave of a cosine.

    .. math:: v(p) = \mathrm{end} + (\mathrm{start} - \mathrm{end})\,\frac{1 + \cos \pi p}{2}

    Parameters
    ----------
    start, end : float
        The values at the beginning and at the end of training.

    References
    ----------
    I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017,
    equation 5 without restarts. It is MXNet's ``CosineScheduler``.
    """
    start, end = _ends(start, end)
    return lambda progress: _on_cosine(start, end, _clipped(progress))


@named
def poly(start: float, end: float = 0.0, power: float = 2.0) -> Schedule:
    r"""Return a schedule that goes from `start` to `end` as a power of what is left of training.

    .. math:: v(p) = \mathrm{end} + (\mathrm{start} - \mathrm{end})\,(1 - p)^\mathrm{power}

    Parameters
    ----------
    start, end : float
        The values at the beginning and at the end of training.
    power : float above 0
        1 is a straight line; the greater it is, the sooner the value is near `end`.

    References
    ----------
    It is MXNet's ``PolyScheduler``, whose ``pwr`` is `power`.
    """
    start, end = _ends(start, end)
    power = check_finite("power", power, "what is left of training is raised to it", 0, above=True)
    return lambda progress: _between(start, end, (1 - _clipped(progress)) ** power)


@named
def one_cycle(
    peak: float, start: float | None = None, end: float | None = None, warm_up: float = 0.3
) -> Schedule:
    r"""Return a schedule that rises from `start` to `peak` and then falls to `end`.

    Both phases are half a wave of a cosine:

    .. math::

        v(p) = \begin{cases}
            \mathrm{peak} + (\mathrm{start} - \mathrm{peak})\,\frac{1 + \cos(\pi p / w)}{2}
            & p < w = \mathrm{warm\_up} \\
            \mathrm{end} + (\mathrm{peak} - \mathrm{end})\,\frac{1 + \cos(\pi (p - w)/(1 - w))}{2}
            & \text{otherwise}
        \end{cases}

    Parameters
    ----------
    peak : float
        The value when the fraction `warm_up` of training is done.
    start : float, optional
        The value at the beginning; by default peak / 25.
    end : float, optional
        The value at the end; by default peak / 250,000, which is the default start / 10,000.
    warm_up : float in [0, 1)
        The fraction of training in which the value rises.

    Notes
    -----
    For a momentum that falls as the learning rate rises, exchange high and low:
    ``one_cycle(0.85, start=0.95, end=0.95)``.

    References
    ----------
    L. N. Smith, N. Topin, "Super-convergence: very fast training of neural networks using large
    learning rates", arXiv:1708.07120, 2018. Cosines in both phases and the default values are
    those of PyTorch's ``OneCycleLR``, which reaches `peak` and `end` at a batch, not between two
    batches (it divides by the number of batches minus 1).
    """
    peak = check_finite("peak", peak, "it is the schedule's value after the warm-up")
    start, end = _ends(peak / 25 if start is None else start, peak / 2.5e5 if end is None else end)
    warm_up = _fraction("warm_up", warm_up)

    def schedule(progress: float) -> float:
        progress = _clipped(progress)
        if progress < warm_up:
            return _on_cosine(start, peak, progress / warm_up)
        return _on_cosine(peak, end, (progress - warm_up) / (1 - warm_up))

    return schedule


@named
def warm_up(schedule: Schedule, fraction: float, start: float = 0.0) -> Schedule:
    r"""Return a schedule that rises to the beginning of `schedule`, and then runs all of it.

    .. math::

        v(p) = \begin{cases}
            \mathrm{start} + (s(0) - \mathrm{start})\,p / f & p < f = \mathrm{fraction} \\
            s\left((p - f) / (1 - f)\right) & \text{otherwise}
        \end{cases}

    Parameters
    ----------
    schedule : callable
        `s` above. It goes from 0 to 1 in the rest of training.
    fraction : float in [0, 1)
        The fraction of training in which the value goes to ``schedule(0)``; 0 for no warm-up.
    start : float
        The value at the beginning.

    References
    ----------
    P. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour",
    arXiv:1706.02677, 2017, section 2.2. MXNet's schedulers do the same with ``warmup_steps``.
    """
    check_schedule(schedule)
    fraction = _fraction("fraction", fraction)
    start = check_finite("start", start, "it is the value at the beginning of training")

    def warmed_up(progress: float) -> float:
        progress = _clipped(progress)
        if progress < fraction:
            return _between(start, schedule(0.0), 1 - progress / fraction)
        return schedule((progress - fraction) / (1 - fraction))

    return warmed_up


def check_schedule(schedule: object) -> None:
    """Raise TypeError if `schedule` cannot be called, or is MXNet's, of the number of updates."""
    if isinstance(schedule, LRScheduler):
        raise TypeError(
            "schedule must be a function of progress in [0, 1], got MXNet's "
            f"{type(schedule).__name__}, a function of the number of updates: give one of "
            "gluon_svrg.schedules, for example cosine(0.1), or give MXNet's to the trainer's "
            "optimizer as its lr_scheduler"
        )
    if not callable(schedule):
        raise TypeError(
            f"schedule must be a callable from progress in [0, 1] to a number, got {schedule!r}: "
            "give one of gluon_svrg.schedules, for example cosine(0.1)"
        )


def _between(start: float, end: float, weight: float) -> float:
    """Return `start` for a weight of 1 and `end` for 0, both exactly."""
    return start * weight + end * (1 - weight)


def _on_cosine(start: float, end: float, progress: float) -> float:
    return _between(start, end, (1 + math.cos(math.pi * progress)) / 2)


def _clipped(progress: float) -> float:
    return min(1.0, max(0.0, progress))


def _ends(start: float, end: float) -> tuple[float, float]:
    return (
        check_finite("start", start, "it is the value at the beginning of training"),
        check_finite("end", end, "it is the value at the end of training"),
    )


def _fraction(name: str, value: float) -> float:
    number = check_number(name, value, "it is the fraction of training that is the warm-up", 0)
    if not number < 1:
        raise ValueError(
            f"{name} must be below 1, got {value!r}: it is the fraction of training that is the "
            "warm-up; divide its epochs by the number of all epochs"
        )
    return number
