"""One number per row, for data with too many rows to copy.

A data set of 2 GB may have 20 million rows: each array of float64 with a number for each of them is
160 MB. So shares that are all the same are one number that looks like an array, and sums go through
such arrays a part at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from provenglm.model.losses import Loss
from provenglm.rows.blocks import parts_of
from provenglm.types import NumPyArray


def equal_shares(n: int) -> NumPyArray:
    """Return 1 / n for each row, (n,), in the memory of one number."""
    return np.broadcast_to(np.float64(1 / n), n)


def are_equal(share: NumPyArray) -> bool:
    """Whether shares are one number."""
    return share.strides == (0,)


def mean(share: NumPyArray, function: Callable[[slice], NumPyArray]) -> float:
    """Return the mean over all samples of what `function` gives for some of them."""
    total = 0.0
    for part in parts_of(len(share)):
        values = np.asarray(function(part), np.float64)
        total += float(np.ascontiguousarray(share[part]) @ values)
    return total


def mean_of(share: NumPyArray, values: NumPyArray) -> float:
    """Return the mean of some values."""
    if are_equal(share):
        return float(values.sum(dtype=np.float64) * share[0])
    return mean(share, lambda part: values[part])


def shares_of_groups(
    share: NumPyArray, groups: Callable[[slice], NumPyArray], count: int
) -> NumPyArray:
    """Return the shares of `count` groups; `groups` gives those of some rows."""
    totals = np.zeros(count)
    for part in parts_of(len(share)):
        weights = None if are_equal(share) else share[part]
        totals += np.bincount(groups(part), weights=weights, minlength=count)
    return totals * share[0] if are_equal(share) else totals


def summary(loss: Loss, target: NumPyArray, share: NumPyArray) -> tuple[NumPyArray, NumPyArray]:
    """Return as few targets and shares as have the same best intercept."""
    if loss.needs_all_targets:
        return target, share
    if loss.has_classes:
        count = loss.group_count
        whole = np.dtype(np.intp)  # labels may be numbers of any dtype
        return np.arange(count), shares_of_groups(
            share, lambda part: target[part].astype(whole, copy=False), count
        )
    return np.array([mean_of(share, target)]), np.ones(1)


def draw(
    loss: Loss,
    target: NumPyArray,
    share: NumPyArray,
    size: int,
    rng: np.random.Generator,
    rare: float,
) -> tuple[NumPyArray, NumPyArray]:
    """Do as `sampling.draw`, of fewer than all rows: a group of a share below `rare` is rare."""
    n = len(target)
    groups, of_group = _groups(loss, target, share)
    present = of_group > 0
    is_rare = len(of_group) > 1 and float(of_group[present].min()) < rare
    if not is_rare and (are_equal(share) or share.min() == share.max()):
        return rng.choice(n, size, replace=False), np.full(size, 1 / size)
    factor = np.ones(len(of_group))
    if is_rare:
        inverse = np.divide(1, of_group, out=np.zeros_like(of_group), where=present)
        factor = 0.5 + 0.5 * inverse / present.sum()

    def probability(part: slice) -> NumPyArray:
        return np.asarray(share[part] * factor[groups(part)])

    # Where the cumulated probabilities pass numbers that are drawn evenly, in ascending order. The
    # sums are good to 1e-9.
    wanted = rng.random(size) * float(of_group @ factor) * (1 - 1e-8)
    order = np.argsort(wanted)
    rows, chosen = np.empty(size, np.intp), np.empty(size)
    first, before = 0, 0.0
    for part in parts_of(n):
        each = probability(part)
        sums = before + np.cumsum(each)
        # The last part has what rounding leaves.
        last = size if part.stop == n else int(np.searchsorted(wanted, sums[-1], sorter=order))
        drawn = order[first:last]
        at = np.searchsorted(sums, wanted[drawn], side="right")
        at = np.minimum(at, np.flatnonzero(each)[-1] if each.any() else 0)
        rows[drawn], chosen[drawn] = part.start + at, each[at]
        first, before = last, float(sums[-1])
    of_sample = share[rows] / chosen
    return rows, of_sample / of_sample.sum()


def _groups(
    loss: Loss, target: NumPyArray, share: NumPyArray
) -> tuple[Callable[[slice], NumPyArray], NumPyArray]:
    """Return the groups of some rows, and the share of each group."""

    def groups(part: slice) -> NumPyArray:
        found = loss.groups(target[part])
        return np.zeros(part.stop - part.start, np.intp) if found is None else found

    if loss.groups(target[:1]) is None:
        return groups, np.ones(1)
    return groups, shares_of_groups(share, groups, loss.group_count)


def are_sorted(target: NumPyArray, classes: int) -> bool:
    """Whether labels come sorted, or nearly so: in runs a hundred times as long as by chance."""
    changes, counts = 0, np.zeros(classes)
    for part in parts_of(len(target)):
        some = target[part]
        changes += int(np.count_nonzero(some[1:] != some[:-1]))
        counts += np.bincount(some, minlength=classes)
    expected = 1 - float(np.square(counts / counts.sum()).sum())
    return 100 * changes < expected * len(target)
