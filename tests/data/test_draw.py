"""Draw: uniform, independent in every direction, and a function of nothing but its arguments."""

import itertools

import numpy as np
import pytest
from gluon_svrg.data.draw import EPOCH, IN_ORDER, LOCKED, ORDER, PARTITION
from gluon_svrg.data.transforms import Draw

N = 50_000
SAMPLES = np.arange(N)


def splitmix64(seed, n):
    """The n-th number, from 0, of the reference implementation, in Python's integers."""
    mask = 2**64 - 1
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_the_reference_is_the_published_one():
    # The first outputs for the seed 1234567, as in the tests of the Java and C implementations.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64(1234567, n) for n in range(3)] == expected


@pytest.mark.parametrize("counter", [0, 1, 7])
def test_against_splitmix64_in_pythons_integers(counter):
    samples = np.array([0, 1, 59_999, 2**40])
    key = np.random.SeedSequence(3, spawn_key=(LOCKED, 2, 4)).generate_state(1, np.uint64)[0]
    expected = [
        (splitmix64(splitmix64(int(key), sample), counter) >> 11) / 2**53
        for sample in samples.tolist()
    ]
    assert Draw(3, 2, samples, LOCKED, 4).uniform(counter).tolist() == expected


# What differs from Draw(0, 0, SAMPLES).uniform(0), one thing at a time.
OTHERS = {
    "seed": lambda: Draw(1, 0, SAMPLES).uniform(0),
    "draw": lambda: Draw(0, 1, SAMPLES).uniform(0),
    "stream": lambda: Draw(0, 0, SAMPLES, LOCKED).uniform(0),
    "in order": lambda: Draw(0, 0, SAMPLES, IN_ORDER).uniform(0),
    "position": lambda: Draw(0, 0, SAMPLES).at(1).uniform(0),
    "counter": lambda: Draw(0, 0, SAMPLES).uniform(1),
    "neighbour": lambda: Draw(0, 0, SAMPLES + 1).uniform(0),
    "sample and counter": lambda: Draw(0, 0, SAMPLES + 1).uniform(1),
    "far": lambda: Draw(0, 0, SAMPLES + 10**9).uniform(0),
}


@pytest.mark.parametrize("values", [lambda: Draw(0, 0, SAMPLES).uniform(0), *OTHERS.values()])
def test_uniform(values):
    values = values()
    assert values.dtype == np.float64
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.bincount((values * 100).astype(int), minlength=100)
    chi_square = ((counts - N / 100) ** 2 / (N / 100)).sum()
    assert 40 < chi_square < 180  # 99 degrees of freedom: mean 99, standard deviation 14


@pytest.mark.parametrize("other", OTHERS)
def test_independent(other):
    ours, theirs = Draw(0, 0, SAMPLES).uniform(0), OTHERS[other]()
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 5 / np.sqrt(N)
    joint = np.histogram2d(ours, theirs, bins=10, range=[[0, 1], [0, 1]])[0]
    chi_square = ((joint - N / 100) ** 2 / (N / 100)).sum()
    assert 40 < chi_square < 180


def test_nothing_is_drawn_twice():
    draws = [
        Draw(seed, number, np.arange(50), stream, position).uniform(counter)
        for seed, number, stream, position, counter in itertools.product(range(3), repeat=5)
    ]
    assert len(np.unique(draws)) == 3**5 * 50


def test_streams_are_apart():
    assert len({PARTITION, ORDER, EPOCH, LOCKED, IN_ORDER}) == 5


@pytest.mark.parametrize("stop", [1, 2, 9, 1000])
def test_integers(stop):
    values = Draw(0, 0, SAMPLES).integers(0, stop)
    assert values.dtype == np.int64
    counts = np.bincount(values, minlength=stop)
    assert len(counts) == stop
    assert abs(counts / (N / stop) - 1).max() < 6 / np.sqrt(N / stop)


def test_the_samples_decide_alone():
    whole = Draw(5, 3, SAMPLES).uniform(0)
    some = np.array([7, 3, 40_000])
    assert np.array_equal(Draw(5, 3, some).uniform(0), whole[some])
    assert np.array_equal(Draw(5, 3, some.astype(np.int32)).uniform(0), whole[some])


def test_the_generator_of_a_batch():
    def numbers(*arguments):
        return Draw(*arguments).generator().random(4).tolist()

    first = np.arange(8)
    assert numbers(0, 0, first) == numbers(0, 0, first)
    others = [
        numbers(1, 0, first),
        numbers(0, 1, first),
        numbers(0, 0, first + 8),
        numbers(0, 0, first, LOCKED),
        numbers(0, 0, first, EPOCH, 1),
    ]
    assert len({tuple(row) for row in [numbers(0, 0, first), *others]}) == 6
