"""Sums whose bits do not depend on which worker comes first.

A server of ps-lite adds in the order of arrival. For two workers that is no matter, since a + b and
b + a have the same bits; for more it is. So more than two share the work by twos: a bucket has a
slot for each two workers, in which the others have zeros, and x + 0 is x. So the server's order has
no say, and every worker adds the slots in the order of the ranks. The price is the zeros: W / 2
times the bytes.
"""

from __future__ import annotations

from gluon_svrg.workers.buckets import ONE_SLOT, Slots


def slots_of(rank: int, size: int, *, exact: bool) -> Slots:
    """Return in which slot the worker `rank` of `size` has its numbers, and of how many."""
    return Slots(-(-size // 2), rank // 2) if exact and size > 2 else ONE_SLOT
