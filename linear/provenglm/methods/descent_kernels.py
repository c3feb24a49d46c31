r"""Coordinate descent, compiled: on a Hessian that is a matrix, and on columns of rows.

Both lower a quadratic model with a penalty on sizes,

.. math:: q(t) = g^T (t - t_0) + \frac12 (t - t_0)^T H (t - t_0) + \sum_j \mu_j |t_j|.

Indices are unsigned: signed ones cost a test for wrap-around at each access.
"""

from __future__ import annotations

import numpy as np

from provenglm.compiled import njit
from provenglm.methods import matrix_descent
from provenglm.types import NumPyArray

_TWIN = 1e-13
"""What the scales of equal columns may differ by, from rounding."""


descend_matrix = njit(nogil=True)(matrix_descent.descend_matrix)


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
    """Minimise over one coordinate after the other by dense columns; `t` follows, in place.

    Parameters
    ----------
    columns : numpy.ndarray, (m, n)
    places : numpy.ndarray
        Of the coordinates' columns.
    gradient : numpy.ndarray
        Of the losses, at the start.
    curvature : numpy.ndarray
        The Hessian's diagonal.
    sweeps : int
        At most.
    round_ : int
        Every `round_`-th sweep is over all coordinates, the others over those that are not 0.
    left : float
        It ends with a sweep over all that lowers q by this part of what the best one did.

    Returns
    -------
    square : float
        The weighted sum of the squares of what the scores have moved by.
    """
    # The weights times what the scores have moved by.
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
    """Return products of some columns with `rest` and `weight`, and of their squares with that."""
    product, mean = np.zeros(len(chosen)), np.zeros(len(chosen))
    square = np.zeros(len(chosen))
    for k in range(np.uint64(len(chosen))):
        of_rest, of_weight, of_square = 0.0, 0.0, 0.0
        for place in range(indptr[chosen[k]], indptr[chosen[k] + np.uint64(1)]):
            row, number = indices[place], data[place]
            of_rest += number * rest[row]
            weighted = number * weight[row]
            of_weight += weighted
            of_square += number * weighted
        product[k], mean[k], square[k] = of_rest, of_weight, of_square
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
    """Add to `count` and `sums` what sparse rows have in each column.

    Parameters
    ----------
    low, high : numpy.ndarray, (n,)
        The least and the greatest residual.
    sums : numpy.ndarray, (p, 4)
        Of the features times share and share times target; the greatest and the least of what
        residuals can make of them.
    """
    for row in range(np.uint64(len(share))):
        of_row, of_target = share[row], share[row] * target[row]
        least, most = of_row * low[row], of_row * high[row]
        for place in range(indptr[row], indptr[row + np.uint64(1)]):
            column, number = indices[place], data[place]
            count[column] += np.uint32(1)
            of_column = sums[column]
            of_column[0] += number * of_row
            of_column[1] += number * of_target
            of_column[2] += max(number * least, number * most)
            of_column[3] += min(number * least, number * most)


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
        Where each begins; beyond the end of `numbers`, if it is left out. Changed.
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
    """Set a part of `found` to the products of the columns from `first` to `last` with numbers."""
    for k in range(np.uint64(first), np.uint64(last)):
        of_column = 0.0
        for place in range(indptr[k], indptr[k + np.uint64(1)]):
            of_column += data[place] * numbers[indices[place]]
        found[k] = of_column


@njit(nogil=True)
def first_twins(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    order: NumPyArray,
    mean: NumPyArray,
    square: NumPyArray,
    l1: NumPyArray,
) -> NumPyArray:
    """Return for each of some columns an equal one with the same penalty: itself, if none is.

    Parameters
    ----------
    order : numpy.ndarray
        Of the columns, by `mean`, so that equal ones are neighbours.
    mean, square : numpy.ndarray
        Sums over the columns: equal columns have equal ones.
    """
    first = np.arange(len(chosen))
    for place in range(np.uint64(1), np.uint64(len(order))):
        j, k = order[place], order[place - np.uint64(1)]
        k = np.uint64(first[k])
        begin, other = indptr[chosen[j]], indptr[chosen[k]]
        size = indptr[chosen[j] + np.uint64(1)] - begin
        is_twin = abs(mean[j] - mean[k]) <= _TWIN * abs(mean[k])
        is_twin &= abs(square[j] - square[k]) <= _TWIN * square[k]
        is_twin &= abs(l1[j] - l1[k]) <= _TWIN * l1[k]
        is_twin &= size == indptr[chosen[k] + np.uint64(1)] - other
        at = np.uint64(0)
        while is_twin and at < size:
            is_twin = indices[begin + at] == indices[other + at]
            number = data[other + at]
            is_twin &= abs(data[begin + at] - number) <= _TWIN * abs(number)
            at += np.uint64(1)
        if is_twin:
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
    """Set `along` to the products of the rows with `step`."""
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
    """Minimise over one coordinate after the other, the intercept at its best all along.

    Parameters
    ----------
    is_active : numpy.ndarray, bool
        Coordinates that the sweep goes over; those that are 0 afterwards and inside the penalty
        are taken off.
    gradient : numpy.ndarray
        Of the losses, at the start, the intercept's step not included.
    mean, curvature : numpy.ndarray
        Products of the columns with the weights, and the Hessian's diagonal.
    moved : numpy.ndarray, (n,)
        The weights times what the scores have moved by, but for the intercept: in place.
    shift : float
        The intercept's step so far.

    Returns
    -------
    fell : float
        What q fell by, at least.
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
    """Return the Hessian times a step over some columns, the intercept at its best."""
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
        of_column = l2[k] * step[k]
        for place in range(indptr[chosen[k]], indptr[chosen[k] + np.uint64(1)]):
            of_column += data[place] * along[indices[place]]
        found[k] = of_column
    return found


@njit(nogil=True)
def squares_of_classes(
    data: NumPyArray,
    indices: NumPyArray,
    indptr: NumPyArray,
    chosen: NumPyArray,
    weight: NumPyArray,
) -> NumPyArray:
    """Return the products of some columns' squares with weights (n, K)."""
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
    """Lower q over one feature after the other, over all of its classes at once.

    Parameters
    ----------
    is_active : numpy.ndarray, bool
        Features that the sweep goes over; those that are 0 afterwards are taken off.
    gradient : numpy.ndarray, (m, K)
        Of the losses, at the start.
    curvature : numpy.ndarray, (m, K)
        A diagonal above the Hessian of each feature.
    moved : numpy.ndarray, (n, K)
        What the steps make of the residuals, times the shares: in place.

    Returns
    -------
    fell : float
        What q fell by, at least.
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
    """Add to `moved` what a step along one column makes of the residuals."""
    classes = np.uint64(len(step))
    for place in range(begin, end):
        row = indices[place]
        mean = np.float64(0.0)
        for k in range(classes):
            mean += probability[row, k] * step[k]
        size = data[place] * share[row]
        for k in range(classes):
            moved[row, k] += size * probability[row, k] * (step[k] - mean)
