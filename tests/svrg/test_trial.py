import math

import numpy as np
import pytest
from gluon_svrg.svrg.trial import Trial, batches_of_measurement, points_to_ask
from gluon_svrg.svrg.variance import average_ratio, greatest_average

NAN = float("nan")


@pytest.mark.parametrize(
    ("ratio", "greatest", "is_last", "pays"),
    [
        (0.6, 9.0, False, False),
        (0.6, 9.0, True, False),
        (0.1, 0.3, False, True),
        (0.1, 0.6, False, None),
        (0.5, 0.5, False, True),  # the bound itself is not above it
        (0.25, 0.6, True, True),
        (0.26, 0.6, True, False),  # at the last point it has to be clear
        (0.26, 0.5, True, True),  # as it is where it cannot become more
        (math.inf, math.inf, False, False),
        (NAN, NAN, False, None),
        (NAN, NAN, True, True),  # the full pass will say what is the matter
    ],
)
def test_the_decision(ratio, greatest, is_last, pays):
    trial = Trial(True)
    trial.begin(3)
    assert trial.is_under_way(3)
    assert trial.decide(ratio, greatest, 0.5, is_last) is pays
    assert trial.is_under_way(3) == (pays is None)
    assert trial.is_due == (pays is True)
    assert trial.is_over == (pays is False)


USUAL = (2.0, 11.0, 33.0, 100.0)


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
def test_its_points_and_those_of_the_epoch_after_it(at, length, first, second):
    assert points_to_ask(at, 8, length, is_trial=True) == first
    assert points_to_ask(at, 8, length, is_trial=False) == second


@pytest.mark.parametrize(
    ("asked", "length", "expected"),
    [(8, 469, 8), (8, 320, 8), (8, 319, 7), (8, 100, 3), (8, 10, 3), (2, 10, 2), (32, 469, 11)],
)
def test_its_batches(asked, length, expected):
    assert batches_of_measurement(asked, length) == expected


@pytest.mark.parametrize("batches", [2, 8, 10**6])
@pytest.mark.parametrize("length", [40, 50, 79, 119, 120, 200, 469, 1000, 10_000])
@pytest.mark.parametrize("at", [USUAL, tuple(range(1, 101))])
def test_two_failures_cost_three_percent_of_ten_epochs_at_most(at, length, batches):
    points = [points_to_ask(at, batches, length, is_trial=is_trial) for is_trial in (True, False)]
    measured = sum(map(len, points)) * batches_of_measurement(batches, length)
    assert 2 * measured <= 0.03 * 10 * length  # two gradients a batch


@pytest.mark.parametrize("at_snapshot", [0.0, 0.25])
@pytest.mark.parametrize(("at", "ratio"), [(0.11, 0.3), (0.33, 0.8), (1.0, 0.5)])
def test_the_least_and_the_greatest_average(at, ratio, at_snapshot):
    """Against sums over a fine grid: the ratio stays, or grows on."""
    x = (np.arange(100_000) + 0.5) / 100_000
    line = at_snapshot + (ratio - at_snapshot) * x / at
    greatest = greatest_average(at, ratio, at_snapshot)
    assert greatest == pytest.approx(line.mean(), rel=1e-9)
    least = average_ratio([at], [ratio], at_snapshot)
    assert least == pytest.approx(np.minimum(line, ratio).mean(), rel=1e-8)
    assert least <= greatest * (1 + 1e-12)


def test_its_state():
    trial, other = Trial(True), Trial(True)
    trial.begin(2)
    trial.decide(0.1, 0.1, 0.5, False)
    other.load_state_dict(trial.state_dict())
    assert vars(other) == vars(trial)
    assert other.is_due
    other.end(0.25)
    assert [other.part_before_snapshot(epoch) for epoch in (1, 2, 3)] == [0.0, 0.25, 0.0]
    assert not other.is_left_over(3)
    other.reset()
    assert other.state_dict() == Trial(True).state_dict()


def test_a_checkpoint_without_one_goes_on_without():
    trial = Trial(True)
    trial.load_state_dict(None)
    assert trial.is_over
    assert not trial.is_under_way(0)
    assert not trial.is_left_over(1)


def test_without_a_bound_there_is_none():
    assert Trial(False).is_over
