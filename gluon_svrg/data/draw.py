"""Draw: counter-based random numbers, each a pure function of its purpose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from gluon_svrg._typing import NumPyArray

# The streams of random numbers that belong to a loader's seed, by their purpose.
PARTITION, ORDER, EPOCH, LOCKED, IN_ORDER = range(5)

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


@dataclass(frozen=True)
class Draw:
    """The random numbers of one transform for a batch.

    Each number is a pure function of seed, stream, draw, the transform's position, the sample's
    index and a counter. It does not depend on the batch size or on earlier draws.

    Parameters
    ----------
    seed : int
        Non-negative.
    number : int
        Non-negative. Each number is another draw.
    samples : numpy.ndarray
        The index of each sample of the batch, integers of shape (N,).
    stream : int
        Non-negative. The purpose of the draw; draws of two streams are independent.
    position : int
        Non-negative. The position of the transform in a ``Compose``.
    """

    seed: int
    number: int
    samples: NumPyArray
    stream: int = EPOCH
    position: int = 0

    def at(self, position: int) -> Draw:
        """Return the draw of the same samples for the transform at `position`."""
        return replace(self, position=position)

    def uniform(self, counter: int) -> NumPyArray:
        """Return a number in [0, 1) for each sample, float64 of shape (N,), by `counter`.

        Each sample has a SplitMix64 stream of its own (G. L. Steele, D. Lea, C. H. Flood, "Fast
        splittable pseudorandom number generators", OOPSLA 2014), whose seed is the number at its
        index in the SplitMix64 stream of the transform. `counter`, from 0, is the position in it.
        """
        key = _key(self.seed, self.stream, self.number, self.position)
        seeds = _mix(key + (self.samples.astype(np.uint64) + np.uint64(1)) * _GAMMA)
        step = np.array([counter + 1], np.uint64) * _GAMMA  # an array: it wraps without a warning
        return (_mix(seeds + step) >> np.uint64(11)) * 2.0**-53

    def integers(self, counter: int, stop: int) -> NumPyArray:
        """Return an integer in [0, stop) for each sample, int64 of shape (N,)."""
        return (self.uniform(counter) * stop).astype(np.int64)

    def generator(self) -> np.random.Generator:
        """Return a generator for the batch as a whole, a function of its first sample's index."""
        key = (self.stream, self.number, self.position, int(self.samples[0]))
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key))
        )


@lru_cache(maxsize=256)
def _key(seed: int, *spawn_key: int) -> NumPyArray:
    return np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(1, np.uint64)


def _mix(z: NumPyArray) -> NumPyArray:
    """Return SplitMix64's finaliser (mix64variant13) of unsigned integers of 64 bits."""
    z = (z ^ (z >> _SHIFTS[0])) * _MULTIPLIERS[0]
    z = (z ^ (z >> _SHIFTS[1])) * _MULTIPLIERS[1]
    mixed: NumPyArray = z ^ (z >> _SHIFTS[2])
    return mixed
