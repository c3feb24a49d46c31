"""Schedules against MXNet's schedulers and naive formulas."""

import math
from itertools import pairwise

import gluon_svrg as gs
import mxnet as mx
import numpy as np
import problems
import pytest
from gluon_svrg import schedules

UPDATES = 40
PROGRESS = [update / UPDATES for update in range(UPDATES + 1)]


def values_of(schedule):
    return [schedule(progress) for progress in PROGRESS]


MXNET = {
    "cosine": (
        schedules.cosine(0.3, 0.02),
        mx.lr_scheduler.CosineScheduler(UPDATES, base_lr=0.3, final_lr=0.02),
    ),
    "cosine to 0": (schedules.cosine(0.3), mx.lr_scheduler.CosineScheduler(UPDATES, base_lr=0.3)),
    "poly": (schedules.poly(0.3), mx.lr_scheduler.PolyScheduler(UPDATES, base_lr=0.3)),
    "poly 0.9": (
        schedules.poly(0.3, 0.02, power=0.9),
        mx.lr_scheduler.PolyScheduler(UPDATES, base_lr=0.3, pwr=0.9, final_lr=0.02),
    ),
    "linear": (
        schedules.linear(0.3, 0.02),
        mx.lr_scheduler.PolyScheduler(UPDATES, base_lr=0.3, pwr=1, final_lr=0.02),
    ),
    "warm-up and cosine": (
        schedules.warm_up(schedules.cosine(0.3, 0.02), 8 / UPDATES, start=0.1),
        mx.lr_scheduler.CosineScheduler(
            UPDATES, base_lr=0.3, final_lr=0.02, warmup_steps=8, warmup_begin_lr=0.1
        ),
    ),
    "warm-up and poly": (
        schedules.warm_up(schedules.poly(0.3), 8 / UPDATES),
        mx.lr_scheduler.PolyScheduler(UPDATES, base_lr=0.3, warmup_steps=8),
    ),
}


@pytest.mark.parametrize("name", MXNET)
def test_a_schedule_is_mxnets_scheduler(name):
    ours, theirs = MXNET[name]
    expected = [theirs(update) for update in range(UPDATES + 1)]
    assert values_of(ours) == pytest.approx(expected, rel=1e-14, abs=1e-16)


def test_step_is_mxnets_scheduler():
    """MXNet counts an update before it asks for its rate: the first asks for that of 1."""
    scheduler = mx.lr_scheduler.MultiFactorScheduler([10, 28, 30], factor=0.5, base_lr=0.3)
    expected = [scheduler(update + 1) for update in range(UPDATES)]
    ours = schedules.step(0.3, [10 / UPDATES, 28 / UPDATES, 30 / UPDATES], factor=0.5)
    assert values_of(ours)[:-1] == pytest.approx(expected, rel=1e-15)
    assert len(set(expected)) == 4


@pytest.mark.parametrize(("epochs", "batches"), [(3, 7), (7, 3), (30, 1), (9, 11)])
def test_a_step_is_at_its_batch_whatever_the_rounding(epochs, batches):
    """Progress is computed from epochs and batches, a milestone from a user's division."""
    total = epochs * batches
    for mark in range(1, total):
        schedule = schedules.step(1.0, (mark / total,), factor=0.0625)
        values = [
            schedule((epoch + batch / batches) / epochs)
            for epoch in range(epochs)
            for batch in range(batches)
        ]
        assert values == [1.0] * mark + [0.0625] * (total - mark)


def test_one_cycle_is_pytorchs_formula():
    def annealing(start, end, part):  # torch.optim.lr_scheduler.OneCycleLR._annealing_cos
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)

    def expected(progress, peak=0.5, share=0.3):
        start, end = peak / 25, peak / 25 / 1e4
        if progress < share:
            return annealing(start, peak, progress / share)
        return annealing(peak, end, (progress - share) / (1 - share))

    values = values_of(schedules.one_cycle(0.5))
    assert values == pytest.approx([expected(p) for p in PROGRESS], rel=1e-12)
    assert values[0] == 0.5 / 25
    assert max(values) == values[12] == 0.5
    assert values[-1] == 0.5 / 2.5e5


def test_one_cycle_of_momentum_is_low_where_the_rate_is_high():
    values = values_of(schedules.one_cycle(0.85, start=0.95, end=0.9, warm_up=0.5))
    assert (values[0], values[20], values[-1]) == (0.95, 0.85, 0.9)
    assert all(after < before for before, after in pairwise(values[:21]))
    assert all(after > before for before, after in pairwise(values[20:]))


def test_a_warm_up_runs_all_of_the_schedule_in_the_rest():
    inner = schedules.step(0.4, (0.5,), factor=0.5)
    schedule = schedules.warm_up(inner, 0.2, start=0.1)
    for progress, value in [(0, 0.1), (0.1, 0.25), (0.2, 0.4), (0.59, 0.4), (0.6, 0.2), (1, 0.2)]:
        assert schedule(progress) == pytest.approx(value, rel=1e-14), progress
    assert schedules.warm_up(inner, 0)(0.0) == 0.4


EXACT_ENDS = {
    "constant": (schedules.constant(0.3), 0.3, 0.3),
    "linear": (schedules.linear(0.3, 0.1), 0.3, 0.1),
    "cosine": (schedules.cosine(0.3, 0.1), 0.3, 0.1),
    "poly": (schedules.poly(0.3, 0.1, 3), 0.3, 0.1),
    "one_cycle": (schedules.one_cycle(0.7, 0.3, 0.1), 0.3, 0.1),
    "one_cycle without warm-up": (schedules.one_cycle(0.7, end=0.1, warm_up=0), 0.7, 0.1),
    "warm_up": (schedules.warm_up(schedules.linear(0.7, 0.1), 0.3, 0.3), 0.3, 0.1),
}


@pytest.mark.parametrize("name", EXACT_ENDS)
def test_the_ends_are_exact_and_progress_outside_is_an_end(name):
    schedule, start, end = EXACT_ENDS[name]
    assert schedule(0.0) == schedule(-0.5) == start
    assert schedule(1.0) == schedule(1.5) == end


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.constant(1.0),
        schedules.linear(1.0, 0.1),
        schedules.cosine(1.0, 0.1),
        schedules.poly(1.0, 0.1, 3),
        schedules.one_cycle(1.0, 0.1, 0.0),
        schedules.warm_up(schedules.step(1.0, (0.3,)), 0.2),
    ],
)
def test_values_never_leave_the_range_of_a_coefficient(schedule):
    values = [schedule(float(p)) for p in np.linspace(0, 1, 10_001)]
    assert min(values) >= 0
    assert max(values) == 1


def test_a_schedule_serves_as_svrgs_coefficient():
    seen = []

    class Look(gs.events.BatchEnd):
        def batch_end(self, estimator, *args, **kwargs):
            seen.append(estimator.trainer.coefficient)

    problem = problems.make("softmax", samples=16)
    trainer = gs.SVRGTrainer(problem.net.collect_params(), "sgd", {"learning_rate": 0.1})
    schedule = schedules.cosine(0.75)
    gs.Estimator(problem.net, problem.loss, trainer=trainer).fit(
        problem.ndarrays(),
        epochs=4,
        event_handlers=[gs.SVRGHandler(coefficient=schedule), Look()],
    )
    assert seen == [schedule(epoch / 4) for epoch in range(4) for _ in range(2)]


ERRORS = [
    (lambda: schedules.constant("1"), TypeError, r"value must be a number, got '1'"),
    (lambda: schedules.constant(True), TypeError, r"value must be a number, got True"),
    (lambda: schedules.constant(math.nan), ValueError, r"value must be a finite number, got nan"),
    (lambda: schedules.linear(0, math.inf), ValueError, r"end must be a finite number, got inf"),
    (lambda: schedules.cosine(None), TypeError, r"start must be a number, got None"),
    (lambda: schedules.poly(1, power=0), ValueError, r"power must be a number above 0, got 0"),
    (lambda: schedules.step(1, 0.5), TypeError, r"milestones must be a sequence .* got 0\.5"),
    (lambda: schedules.step(1, "ab"), TypeError, r"milestones must be a sequence .* got 'ab'"),
    (lambda: schedules.step(1, ["a"]), TypeError, r"each milestone must be a number, got 'a'"),
    (lambda: schedules.step(1, (30, 60)), ValueError, r"got \(30, 60\): divide epochs by"),
    (lambda: schedules.step(1, (0.0, 0.5)), ValueError, r"above 0 and below 1, got \(0\.0, 0\.5\)"),
    (lambda: schedules.step(1, (0.5, 0.5)), ValueError, r"must increase, got \(0\.5, 0\.5\)"),
    (lambda: schedules.step(1, (0.5,), 0), ValueError, r"factor must be a number above 0, got 0"),
    (lambda: schedules.one_cycle("1"), TypeError, r"peak must be a number, got '1'"),
    (lambda: schedules.one_cycle(1, warm_up=1), ValueError, r"warm_up must be below 1, got 1"),
    (
        lambda: schedules.one_cycle(1, warm_up=-0.1),
        ValueError,
        r"warm_up must be a number of at least 0, got -0\.1",
    ),
    (lambda: schedules.warm_up(0.1, 0.1), TypeError, r"schedule must be a callable .* got 0\.1"),
    (
        lambda: schedules.warm_up(schedules.constant(1), 5),
        ValueError,
        r"fraction must be below 1, got 5: .* divide its epochs by the number of all epochs",
    ),
    (
        lambda: schedules.warm_up(schedules.constant(1), 0.1, "0"),
        TypeError,
        r"start must be a number, got '0'",
    ),
]


@pytest.mark.parametrize(("make", "error", "message"), ERRORS)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
