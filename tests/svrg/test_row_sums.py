"""The sums of row_sparse gradients, against dense ones in NumPy."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.arrays import row_sparse as sparse
from gluon_svrg.svrg.gradient_sums import RowSums


@pytest.mark.parametrize("width", [(), (3,), (2, 4)], ids=str)
def test_the_sums_are_those_of_dense_arrays(width):
    rng = np.random.default_rng(0)
    sums, dense, seen = RowSums(50, width), np.zeros((50, *width)), np.zeros(50, bool)
    assert len(sums.rows()) == len(sums.values()) == 0
    for size in (0, 1, 7, 30, 12):
        some = np.sort(rng.choice(45, size, replace=False))
        values = rng.normal(size=(size, *width))
        sums.add(some, values)
        dense[some] += values
        seen[some] = True
        np.testing.assert_array_equal(sums.rows(), np.flatnonzero(seen))
        np.testing.assert_array_equal(sums.values(), dense[seen])


def test_one_number_for_all_rows():
    sums = RowSums(5)
    sums.add(np.array([3, 1]), 2.0)
    sums.add(np.array([3]), 0.5)
    assert sums.rows().tolist() == [1, 3]
    assert sums.values().tolist() == [2.0, 2.5]


def test_an_array_and_its_rows():
    values, numbers = np.ones((2, 3), "float32"), np.array([1, 4])
    array = sparse.row_sparse(values, numbers, (6, 3), mx.cpu(1))
    assert array.stype == "row_sparse"
    assert array.context == mx.cpu(1)
    assert array.dtype == np.float32
    assert sparse.row_indices(array).tolist() == [1, 4]
    assert sparse.stored_nbytes(array) == 2 * (8 + 3 * 4)
    assert sparse.stored_nbytes(mx.nd.zeros((6, 3))) == 6 * 3 * 4
    sparse.set_to_zero(array)
    assert sparse.row_indices(array).size == 0  # and not six rows of zeros
    assert not sparse.row_sparse(values[:0], numbers[:0], (6, 3), mx.cpu()).asnumpy().any()


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_how_far_two_arrays_are_apart(stype):
    first, second = (mx.nd.array(a).tostype(stype) for a in ([[0, 0], [4, 1]], [[0, 0], [4, 3]]))
    assert sparse.max_abs_values(first, second) == (4, 2)
    assert sparse.are_close(first, first, 0)
    assert sparse.are_close(first, second, 0.6)
    assert not sparse.are_close(first, second, 0.1)


def test_arrays_with_other_rows_are_not_close():
    first, second = (mx.nd.array(a).tostype("row_sparse") for a in ([[0], [1]], [[1e-9], [1]]))
    assert not sparse.are_close(first, second, 0.1)
