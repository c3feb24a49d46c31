"""Whether SVRG is on, by the measured ratios: each decision, in numbers."""

import math

import numpy as np
import pytest
from gluon_svrg.svrg.payoff import (
    Decision,
    PayoffCriterion,
    RatioBounds,
    Stage,
    average_if_constant,
    average_if_growing,
)

NAN = float("nan")


def in_trial(epoch=3, max_ratio=0.5, recheck_every=None):
    criterion = PayoffCriterion(max_ratio, recheck_every)
    criterion.start_trial(epoch)
    return criterion


@pytest.mark.parametrize(
    ("lower", "upper", "is_last", "phase"),
    [
        (0.6, 9.0, False, Stage.OFF),
        (0.6, 9.0, True, Stage.OFF),
        (0.1, 0.3, False, Stage.DUE),
        (0.1, 0.6, False, Stage.TRIAL),
        (0.5, 0.5, False, Stage.DUE),  # the bound itself is not above it
        (0.25, 0.6, True, Stage.DUE),
        (0.26, 0.6, True, Stage.OFF),  # the last measurement needs a clear result
        (0.26, 0.5, True, Stage.DUE),  # which this is: it cannot grow above the bound
        (math.inf, math.inf, False, Stage.OFF),
        (NAN, NAN, False, Stage.TRIAL),
        (NAN, NAN, True, Stage.DUE),  # the full pass will report what is wrong
    ],
)
def test_the_decision_of_the_trial(lower, upper, is_last, phase):
    criterion = in_trial(3)
    assert criterion.is_in_trial(3)
    assert criterion.must_measure(3)
    decision = criterion.update(RatioBounds(3, 0.1, lower, upper, is_last), is_on=False)
    decisions = {Stage.OFF: Decision.NOT_SWITCHED_ON, Stage.DUE: Decision.SWITCHED_ON}
    assert (criterion.stage, decision) == (phase, decisions.get(phase))
    assert criterion.is_in_trial(3) == (phase is Stage.TRIAL)
    assert (criterion.off_since, criterion.times_off) == (
        (3, 1) if phase is Stage.OFF else (None, 0)
    )


def test_the_decisions_after_the_trial():
    criterion = in_trial(0, recheck_every=3)

    def update(epoch, lower, *, is_on=False, is_last=False):
        return criterion.update(RatioBounds(epoch, 0.5, lower, math.inf, is_last), is_on)

    def rechecks(epochs):
        return [epoch for epoch in epochs if criterion.is_recheck(epoch)]

    criterion.snapshot_taken(0.3)
    assert criterion.stage is Stage.SCHEDULED
    assert update(4, 0.5, is_on=True) is None
    assert update(4, 0.51, is_on=True) is Decision.SWITCHED_OFF
    assert (criterion.off_since, criterion.next_recheck()) == (4, 5)
    assert rechecks(range(4, 12)) == [5, 7, 10]  # the first time also in the next epoch
    assert update(5, 0.51) is Decision.STAYS_OFF
    assert not criterion.is_recheck(5)  # it has failed
    assert update(7, 0.1) is None  # not before the end of the epoch
    assert update(8, 0.1, is_last=True) is None  # no epoch of a recheck
    assert update(7, 0.1, is_last=True) is Decision.SWITCHED_ON_AGAIN
    assert (criterion.stage, criterion.off_since) == (Stage.SCHEDULED, None)
    assert update(8, 0.6, is_on=True) is Decision.SWITCHED_OFF
    assert (criterion.times_off, criterion.next_recheck()) == (2, 11)
    assert rechecks(range(9, 15)) == [11, 14]  # the second time not in the next epoch
    assert update(11, 0.3, is_last=True) is Decision.STAYS_OFF
    assert "more than half" in criterion.reason(Decision.STAYS_OFF, 0.3)


def test_no_recheck_when_svrg_could_not_begin_again():
    criterion = PayoffCriterion(0.5, 1, stop_epoch=4)
    criterion.start_trial(0)
    criterion.update(RatioBounds(0, 0.3, 0.9, 0.9, True), is_on=False)
    assert [epoch for epoch in range(6) if criterion.is_recheck(epoch)] == [1, 2]


def test_without_a_bound_nothing_is_decided():
    criterion = PayoffCriterion(None, None)
    assert criterion.stage is Stage.SCHEDULED
    assert criterion.update(RatioBounds(0, 1.0, 9.0, 9.0, True), is_on=True) is None
    assert criterion.state_dict() == {"epoch": None, "times": 0, "failed_look": None}


USUAL = (2.0, 11.0, 33.0, 100.0)


def plans(at, batches, length):
    """Return the plans of the trial's epoch, and of the epoch after it."""
    criterion = in_trial(0, recheck_every=1)
    first = criterion.plan(at, batches, length, 0)
    criterion.update(RatioBounds(0, 0.3, 0.9, 0.9, True), is_on=False)
    return first, criterion.plan(at, batches, length, 1)


@pytest.mark.parametrize(
    ("at", "length", "first", "second"),
    [
        (USUAL, 469, (11.0, 33.0), USUAL),
        (USUAL, 120, (11.0, 33.0), USUAL),
        (USUAL, 119, (11.0, 33.0), (11.0, 33.0, 100.0)),
        (USUAL, 80, (11.0, 33.0), (33.0, 100.0)),
        (USUAL, 79, (33.0,), (33.0, 100.0)),
        (USUAL, 50, (33.0,), (33.0,)),
        (USUAL, 2, (33.0,), (33.0,)),
        ((1.0, 2.0, 3.0, 4.0), 469, (3.0, 4.0), (1.0, 2.0, 3.0, 4.0)),
        ((1.0, 2.0, 3.0, 4.0), 50, (4.0,), (4.0,)),
        ((5.0, 50.0), 469, (5.0,), (5.0, 50.0)),
        ((50.0, 100.0), 469, (50.0,), (50.0, 100.0)),
        ((60.0, 100.0), 50, (60.0,), (60.0,)),
        ((100.0,), 469, (100.0,), (100.0,)),
    ],
)
def test_when_it_measures(at, length, first, second):
    planned = plans(at, 8, length)
    assert [tuple(points) for points, _ in planned] == [first, second]


@pytest.mark.parametrize(
    ("asked", "length", "expected"),
    [(8, 469, 8), (8, 320, 8), (8, 319, 7), (8, 100, 3), (8, 10, 3), (2, 10, 2), (32, 469, 11)],
)
def test_on_how_many_batches(asked, length, expected):
    assert [batches for _, batches in plans(USUAL, asked, length)] == [expected] * 2


def test_an_epoch_without_a_decision_is_measured_as_asked():
    assert in_trial(0).plan(USUAL, 50, 10, 1) == (USUAL, 50)


@pytest.mark.parametrize("batches", [2, 8, 10**6])
@pytest.mark.parametrize("length", [40, 50, 79, 119, 120, 200, 469, 1000, 10_000])
@pytest.mark.parametrize("at", [USUAL, tuple(range(1, 101))])
def test_two_failures_cost_three_percent_of_ten_epochs_at_most(at, length, batches):
    measured = sum(len(points) * number for points, number in plans(at, batches, length))
    assert 2 * measured <= 0.03 * 10 * length  # two gradients per batch


def test_its_state():
    criterion, other = in_trial(2), PayoffCriterion(0.5, None)
    criterion.update(RatioBounds(2, 0.1, 0.1, 0.1, False), is_on=False)
    other.load_state_dict(criterion.state_dict())
    assert vars(other) == vars(criterion)
    assert other.stage is Stage.DUE
    assert [other.is_snapshot_overdue(epoch) for epoch in (2, 3)] == [False, True]
    other.snapshot_taken(0.25)
    assert [other.fraction_before_snapshot(epoch) for epoch in (1, 2, 3)] == [0.0, 0.25, 0.0]
    assert not other.is_snapshot_overdue(3)
    other.reset()
    assert vars(other) == vars(PayoffCriterion(0.5, None))


def test_a_resume_at_any_moment_decides_the_same():
    """Random runs of 8 epochs: what is saved is all that the decisions depend on."""
    random, decisions = np.random.default_rng(0), set()
    for _ in range(200):
        arguments = (0.5, random.choice([None, 1, 2]), random.choice([None, 5]))
        criterion, is_on = PayoffCriterion(*arguments), False
        for epoch in range(8):
            if criterion.stage is Stage.WAITING:
                criterion.start_trial(epoch)
            elif criterion.stage is Stage.SCHEDULED or criterion.is_snapshot_overdue(epoch):
                criterion.snapshot_taken(0.0)
                is_on = True
            for fraction in (0.25, 0.5, 1.0)[: random.integers(1, 4)]:
                ratio = random.choice([0.1, 0.3, 0.7, NAN])
                bounds = RatioBounds(epoch, fraction, ratio, 2 * ratio, fraction == 1)
                resumed = PayoffCriterion(*arguments)
                resumed.load_state_dict(criterion.state_dict())
                assert vars(resumed) == vars(criterion)
                decision = criterion.update(bounds, is_on)
                assert resumed.update(bounds, is_on) is decision
                assert resumed.state_dict() == criterion.state_dict()
                if criterion.stage is Stage.DUE and fraction < 1:
                    criterion.snapshot_taken(fraction)
                    is_on = True
                is_on = is_on and criterion.stage is not Stage.OFF
                decisions.add(decision)
    assert decisions == {None, *Decision}


STATES = {
    Stage.WAITING: {"epoch": None, "is_over": False, "is_due": False, "part": 0.0},
    Stage.TRIAL: {"epoch": 0, "is_over": False, "is_due": False, "part": 0.0},
    Stage.DUE: {"epoch": 0, "is_over": False, "is_due": True, "part": 0.0},
    Stage.SCHEDULED: {"epoch": 0, "is_over": True, "is_due": False, "part": 0.3},
}


@pytest.mark.parametrize("phase", STATES)
def test_a_state_is_saved_by_the_names_of_version_0_4(phase):
    state = {"epoch": None, "times": 1, "failed_look": 2, "trial": STATES[phase]}
    criterion = PayoffCriterion(0.5, None)
    criterion.load_state_dict(state)
    assert criterion.stage is phase
    assert criterion.state_dict() == state


@pytest.mark.parametrize(("epoch", "phase"), [(None, Stage.SCHEDULED), (3, Stage.OFF)])
def test_a_state_of_a_version_without_a_trial(epoch, phase):
    state = {"epoch": epoch, "times": 1, "failed_look": None}
    criterion = PayoffCriterion(0.5, None)
    criterion.load_state_dict(state)
    assert (criterion.stage, criterion.off_since) == (phase, epoch)
    assert criterion.state_dict() == state


@pytest.mark.parametrize("at_snapshot", [0.0, 0.25])
@pytest.mark.parametrize(("at", "ratio"), [(0.11, 0.3), (0.33, 0.8), (1.0, 0.5)])
def test_the_bounds_of_the_average(at, ratio, at_snapshot):
    """Against sums over a fine grid: the ratio stays, or continues to grow."""
    x = (np.arange(100_000) + 0.5) / 100_000
    line = at_snapshot + (ratio - at_snapshot) * x / at
    upper = average_if_growing(at, ratio, at_snapshot)
    assert upper == pytest.approx(line.mean(), rel=1e-9)
    lower = average_if_constant([at], [ratio], at_snapshot)
    assert lower == pytest.approx(np.minimum(line, ratio).mean(), rel=1e-8)
    assert lower <= upper * (1 + 1e-12)
