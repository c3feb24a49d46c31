r"""Compiled coordinate descent on columns of rows.

It minimises a quadratic model with an L1 penalty,

.. math:: q(t) = g^T (t - t_0) + \frac12 (t - t_0)^T H (t - t_0) + \sum_j \mu_j |t_j|.

Indices are unsigned, because signed ones cost a test for wrap-around at each access.
"""

from __future__ import annotations

import numpy as np

from provenglm.compiled import njit
from provenglm.types import NumPyArray

_DUPLICATE = 1e-13
"""Relative difference that rounding may cause between the scales of equal columns."""


@njit(nogil=True)
def descend_columns(
    columns: NumPyArray,
    places: NumPyArray,
    t: NumPyArray,
    gradient: NumPyArray,
    l1: NumPyArray,
    l2: NumPyArray,
    curvature: NumPyArray,
    weight: NumPyArray,
    sweeps: int,
    round_: int,
    left: float,
) -> float:
    """Minimise along the coordinates in turn, with dense columns; update `t` in place.

    Parameters
    ----------
    columns : numpy.ndarray, (m, n)
    places : numpy.ndarray
        The columns of the coordinates.
    gradient : numpy.ndarray
        The gradient of the losses at the start.
    curvature : numpy.ndarray
        The diagonal of the Hessian.
    sweeps : int
        The largest number of sweeps.
    round_ : int
        Every `round_`-th sweep visits all coordinates, the others only the nonzero ones.
    left : float
        Stop after a full sweep that lowers q by less than this part of the best sweep's decrease.

    Returns
    -------
    square : float
        The weighted sum of squares of the scores' change.
    """
    # The weights times the change of the scores.
    most, is_near, moved = 0.0, False, np.zeros(len(weight))
    for sweep in range(sweeps):
        is_whole, fell = is_near or sweep % round_ == 0, 0.0
        for k in range(np.uint64(len(places))):
            if (t[k] == 0 and not is_whole) or not curvature[k] > 0:
                continue
            column = columns[places[k]]
            here = gradient[k] + l2[k] * t[k] + np.dot(column, moved)
            wanted = t[k] * curvature[k] - here
            size = max(abs(wanted) - l1[k], 0.0) / curvature[k]
            step = (size if wanted > 0 else -size) - t[k]
            if step != 0:
                fell += 0.5 * curvature[k] * step * step
                t[k] += step
                for row in range(np.uint64(len(moved))):
                    moved[row] += step * column[row] * weight[row]
        most = max(most, fell)
        is_near = fell <= left * most
        if is_whole and is_near and sweep > 0:
            break
    square = 0.0
    for row in range(np.uint64(len(moved))):
        if weight[row] > 0:
            square += moved[row] * moved[row] / weight[row]
    return square


@njit(nogil=True)
def measure(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    rest: NumPyArray,
    weight: NumPyArray,
) -> tuple[NumPyArray, NumPyArray, NumPyArray]:
    """Return the products of some columns with `rest` and `weight`, and of their squares."""
    product, mean = np.zeros(len(chosen)), np.zeros(len(chosen))
    square = np.zeros(len(chosen))
    for k in range(np.uint64(len(chosen))):
        rest_sum, weight_sum, square_sum = 0.0, 0.0, 0.0
        for place in range(indptr[chosen[k]], indptr[chosen[k] + np.uint64(1)]):
            row, number = indices[place], data[place]
            rest_sum += number * rest[row]
            weighted = number * weight[row]
            weight_sum += weighted
            square_sum += number * weighted
        product[k], mean[k], square[k] = rest_sum, weight_sum, square_sum
    return product, mean, square


@njit(nogil=True)
def column_sums(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    share: NumPyArray,
    target: NumPyArray,
    low: NumPyArray,
    high: NumPyArray,
    count: NumPyArray,
    sums: NumPyArray,
) -> None:
    """Add the number of entries and the sums of each column of sparse rows to the totals.

    Parameters
    ----------
    low, high : numpy.ndarray, (n,)
        The smallest and the largest possible residual of each row.
    sums : numpy.ndarray, (p, 4)
        The sums of feature times share and of share times target, and the largest and smallest
        product of the column with possible residuals.
    """
    for row in range(np.uint64(len(share))):
        row_share, target_share = share[row], share[row] * target[row]
        least, most = row_share * low[row], row_share * high[row]
        for place in range(indptr[row], indptr[row + np.uint64(1)]):
            column, number = indices[place], data[place]
            count[column] += np.uint32(1)
            column_sum = sums[column]
            column_sum[0] += number * row_share
            column_sum[1] += number * target_share
            column_sum[2] += max(number * least, number * most)
            column_sum[3] += min(number * least, number * most)


@njit(nogil=True)
def by_columns(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    places: NumPyArray,
    numbers: NumPyArray,
    rows: NumPyArray,
) -> None:
    """Copy some columns of sparse rows to `numbers` and `rows`.

    Parameters
    ----------
    places : numpy.ndarray, (p,)
        The position where each column begins; past the end of `numbers` if it is left out. It is
        modified.
    """
    end = np.uint64(len(numbers))
    for row in range(np.uint64(len(indptr) - 1)):
        number_of_row = np.uint32(row)
        for place in range(indptr[row], indptr[row + np.uint64(1)]):
            column = indices[place]
            to = places[column]
            if to < end:
                numbers[to], rows[to] = data[place], number_of_row
                places[column] = to + np.uint64(1)


@njit(nogil=True)
def products(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    first: int,
    last: int,
    numbers: NumPyArray,
    found: NumPyArray,
) -> None:
    """Write the products of the columns from `first` to `last` with `numbers` to `found`."""
    for k in range(np.uint64(first), np.uint64(last)):
        column_sum = 0.0
        for place in range(indptr[k], indptr[k + np.uint64(1)]):
            column_sum += data[place] * numbers[indices[place]]
        found[k] = column_sum


@njit(nogil=True)
def first_duplicates(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    order: NumPyArray,
    mean: NumPyArray,
    square: NumPyArray,
    l1: NumPyArray,
) -> NumPyArray:
    """Return, for each of some columns, an equal one with the same penalty, or the column itself.

    Parameters
    ----------
    order : numpy.ndarray
        The columns sorted by `mean`, so that equal columns are neighbours.
    mean, square : numpy.ndarray
        Sums over the columns; equal columns have equal sums.
    """
    first = np.arange(len(chosen))
    for place in range(np.uint64(1), np.uint64(len(order))):
        j, k = order[place], order[place - np.uint64(1)]
        k = np.uint64(first[k])
        begin, other = indptr[chosen[j]], indptr[chosen[k]]
        size = indptr[chosen[j] + np.uint64(1)] - begin
        is_duplicate = abs(mean[j] - mean[k]) <= _DUPLICATE * abs(mean[k])
        is_duplicate &= abs(square[j] - square[k]) <= _DUPLICATE * square[k]
        is_duplicate &= abs(l1[j] - l1[k]) <= _DUPLICATE * l1[k]
        is_duplicate &= size == indptr[chosen[k] + np.uint64(1)] - other
        at = np.uint64(0)
        while is_duplicate and at < size:
            is_duplicate = indices[begin + at] == indices[other + at]
            number = data[other + at]
            is_duplicate &= abs(data[begin + at] - number) <= _DUPLICATE * abs(number)
            at += np.uint64(1)
        if is_duplicate:
            first[j] = k
    return first


@njit(nogil=True)
def scores(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    step: NumPyArray,
    along: NumPyArray,
) -> None:
    """Write the products of the rows with `step` to `along`."""
    along[:] = 0
    for k in range(np.uint64(len(chosen))):
        size = step[k]
        if size != 0:
            for place in range(indptr[chosen[k]], indptr[chosen[k] + np.uint64(1)]):
                along[indices[place]] += size * data[place]


@njit(nogil=True)
def sweep_columns(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    is_active: NumPyArray,
    t: NumPyArray,
    gradient: NumPyArray,
    l1: NumPyArray,
    l2: NumPyArray,
    mean: NumPyArray,
    curvature: NumPyArray,
    total: float,
    weight: NumPyArray,
    moved: NumPyArray,
    shift: float,
) -> tuple[float, float]:
    """Minimise along the coordinates in turn, with the intercept at its best value throughout.

    Parameters
    ----------
    is_active : numpy.ndarray, bool
        The coordinates that the sweep visits. Those that end at 0 with a gradient within the
        penalty are removed.
    gradient : numpy.ndarray
        The gradient of the losses at the start, without the intercept's step.
    mean, curvature : numpy.ndarray
        The products of the columns with the weights, and the Hessian's diagonal.
    moved : numpy.ndarray, (n,)
        The weights times the change of the scores, without the intercept's part; updated in place.
    shift : float
        The intercept's step so far.

    Returns
    -------
    fell : float
        A lower bound of the decrease of q.
    shift : float
    """
    fell = 0.0
    for k in range(np.uint64(len(chosen))):
        if not is_active[k]:
            continue
        begin, end = indptr[chosen[k]], indptr[chosen[k] + np.uint64(1)]
        here = gradient[k] + shift * mean[k] + l2[k] * t[k]
        for place in range(begin, end):
            here += data[place] * moved[indices[place]]
        wanted = t[k] * curvature[k] - here
        size = max(abs(wanted) - l1[k], 0.0) / curvature[k]
        new = size if wanted > 0 else -size
        step = new - t[k]
        is_active[k] = new != 0
        if step == 0:
            continue
        is_active[k] = True
        fell += 0.5 * curvature[k] * step * step
        t[k] = new
        shift -= step * mean[k] / total
        for place in range(begin, end):
            row = indices[place]
            moved[row] += step * data[place] * weight[row]
    return fell, shift


@njit(nogil=True)
def product(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    l2: NumPyArray,
    total: float,
    weight: NumPyArray,
    step: NumPyArray,
) -> NumPyArray:
    """Return the Hessian times a step over some columns, with the intercept at its best."""
    along, found = np.empty(len(weight)), np.empty(len(chosen))
    scores(data, indices, indptr, chosen, step, along)
    sum_ = 0.0
    for i in range(np.uint64(len(along))):
        along[i] *= weight[i]
        sum_ += along[i]
    shift = -sum_ / total
    for i in range(np.uint64(len(along))):
        along[i] += shift * weight[i]
    for k in range(np.uint64(len(chosen))):
        column_sum = l2[k] * step[k]
        for place in range(indptr[chosen[k]], indptr[chosen[k] + np.uint64(1)]):
            column_sum += data[place] * along[indices[place]]
        found[k] = column_sum
    return found


@njit(nogil=True)
def squares_of_classes(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    weight: NumPyArray,
) -> NumPyArray:
    """Return the products of some columns' squares with the weights (n, K)."""
    square = np.zeros((len(chosen), weight.shape[1]))
    for j in range(np.uint64(len(chosen))):
        for place in range(indptr[chosen[j]], indptr[chosen[j] + np.uint64(1)]):
            number = data[place] * data[place]
            for k in range(np.uint64(weight.shape[1])):
                square[j, k] += number * weight[indices[place], k]
    return square


@njit(nogil=True)
def sweep_classes(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    is_active: NumPyArray,
    t: NumPyArray,
    gradient: NumPyArray,
    l1: NumPyArray,
    l2: NumPyArray,
    curvature: NumPyArray,
    probability: NumPyArray,
    share: NumPyArray,
    moved: NumPyArray,
) -> float:
    """Lower q along the features in turn, for all classes of a feature at once.

    Parameters
    ----------
    is_active : numpy.ndarray, bool
        The features that the sweep visits. Those that end at 0 are removed.
    gradient : numpy.ndarray, (m, K)
        The gradient of the losses at the start.
    curvature : numpy.ndarray, (m, K)
        A diagonal that is an upper bound of the Hessian of each feature.
    moved : numpy.ndarray, (n, K)
        The change of the residuals by the steps, times the shares; updated in place.

    Returns
    -------
    fell : float
        A lower bound of the decrease of q.
    """
    classes = np.uint64(t.shape[1])
    fell, step = 0.0, np.zeros(classes, moved.dtype)
    here = np.zeros(classes)
    for j in range(np.uint64(len(chosen))):
        if not is_active[j]:
            continue
        begin, end = indptr[chosen[j]], indptr[chosen[j] + np.uint64(1)]
        for k in range(classes):
            here[k] = gradient[j, k] + l2[j] * t[j, k]
        for place in range(begin, end):
            row, number = indices[place], data[place]
            for k in range(classes):
                here[k] += number * moved[row, k]
        moves, is_active[j] = False, False
        for k in range(classes):
            wanted = t[j, k] * curvature[j, k] - here[k]
            size = max(abs(wanted) - l1[j], 0.0) / curvature[j, k]
            new = size if wanted > 0 else -size
            change = new - t[j, k]
            step[k] = change
            if change != 0:
                moves = True
                fell += 0.5 * curvature[j, k] * change * change
            is_active[j] |= new != 0
            t[j, k] = new
        if moves:
            is_active[j] = True
            move_classes(data, indices, begin, end, step, probability, share, moved)
    return fell


@njit(nogil=True)
def move_classes(
    data: NumPyArray,
    indices: NumPyArray,
    begin: int,
    end: int,
    step: NumPyArray,
    probability: NumPyArray,
    share: NumPyArray,
    moved: NumPyArray,
) -> None:
    """Add the change of the residuals by a step along one column to `moved`."""
    classes = np.uint64(len(step))
    for place in range(begin, end):
        row = indices[place]
        mean = np.float64(0.0)
        for k in range(classes):
            mean += probability[row, k] * step[k]
        size = data[place] * share[row]
        for k in range(classes):
            moved[row, k] += size * probability[row, k] * (step[k] - mean)
