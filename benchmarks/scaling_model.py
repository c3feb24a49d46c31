"""A model of what a sum over several machines takes: latency, processors, and the busiest link.

    work = latency + bytes * processor's time for one
    wire = bytes on the busiest link / its speed
    seconds = the longer of the two + share * the shorter

Both engines cut a sum into pieces, and send one while they add up another, so part of the shorter
is hidden behind the longer. What share is not, is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

HEADERS = {1500: 1514 / 1448, 9000: 9014 / 8948}
"""Bytes on an Ethernet by bytes of TCP, its own preamble left out, by the size of its packets."""


@dataclass(frozen=True)
class Sum:
    """A sum of float32 over machines with one worker each.

    Attributes
    ----------
    engine : str
        'dist_sync', with a server on each machine; 'dist_sync, any order', the same with
        --no-exact; or 'mpi'.
    workers : int
        How many.
    numbers : int
        How many of them are added up.
    """

    engine: str
    workers: int
    numbers: int

    @property
    def slots(self) -> int:
        """How often a worker of dist_sync sends the bytes, so that sums repeat to the bit."""
        return -(-self.workers // 2) if self.engine == "dist_sync" and self.workers > 2 else 1

    @property
    def payload(self) -> float:
        """Bytes that a worker gives: of float32, once for each slot."""
        return 4.0 * self.numbers * self.slots

    @property
    def link(self) -> float:
        """Bytes through the busiest link, in the direction in which there are more.

        A ring, or halving and doubling, sends 2 (W - 1) / W of the array (R. Thakur et al.,
        "Optimization of Collective Communication Operations in MPICH", 2005). So does a machine
        with a server of its own: its worker's numbers for the other servers, and its server's
        sums for the other workers.
        """
        return 2 * (self.workers - 1) / self.workers * self.payload

    @property
    def rounds(self) -> float:
        """How many times two machines' latency: MPI goes in a tree, a worker to each server."""
        return math.log2(self.workers) if self.engine == "mpi" else self.workers / 2

    def wire(self, rate: float | None, packet: int = 1500) -> float:
        """Return the seconds on the busiest link.

        Parameters
        ----------
        rate : float, optional
            Bits a second; None: no limit.
        packet : int
            Bytes of the packets, 1500 or 9000.
        """
        return 0.0 if rate is None else self.link * HEADERS[packet] * 8 / rate


def joined(work: float, wire: float, share: float) -> float:
    """Return the seconds of both, where so much of the shorter is not hidden by the longer."""
    return max(work, wire) + share * min(work, wire)


def share_fitted(parts: Iterable[tuple[float, float]], seconds: Iterable[float]) -> float:
    """Return the share that fits best, each sum's relative error counting alike.

    Parameters
    ----------
    parts : iterable of tuple of float
        Work and wire of each sum, in seconds.
    seconds : iterable of float
        What it took.
    """
    longer, shorter = np.array([(max(pair), min(pair)) for pair in parts]).T
    found = np.array(list(seconds))
    rest, shorter = (found - longer) / found, shorter / found
    return float(rest @ shorter / (shorter @ shorter))


@dataclass(frozen=True)
class Costs:
    """What an engine takes beside the wire, on machines that share nothing.

    Attributes
    ----------
    latency : float
        Seconds of a sum of next to nothing over two machines.
    byte : float
        Seconds of a processor for a byte that a worker gives, its share of the servers' included:
        it is the same for any number of machines with a server each.
    share : float
        Of the shorter of work and wire, what the longer one does not hide.
    """

    latency: float
    byte: float
    share: float

    @classmethod
    def fitted(cls, sums: Iterable[Sum], seconds: Iterable[float], share: float) -> Costs:
        """Return the costs that fit best, each sum's relative error counting alike."""
        sums, found = list(sums), np.array(list(seconds))
        rows = np.array([(one.rounds, one.payload) for one in sums])
        costs, *_ = np.linalg.lstsq(rows / found[:, None], np.ones(len(sums)), rcond=None)
        return cls(*map(float, costs), share)

    def seconds(self, one: Sum, rate: float | None) -> float:
        """Return the seconds of a sum over links of so many bits a second."""
        work = self.latency * one.rounds + self.byte * one.payload
        return joined(work, one.wire(rate), self.share)
