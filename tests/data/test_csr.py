"""Batches of sparse rows, against those of the same rows made dense."""

import mxnet as mx
import numpy as np
import pytest
from gluon_svrg.data import ArrayLoader, transforms

scipy_sparse = pytest.importorskip("scipy.sparse")

RNG = np.random.default_rng(0)
X = np.where(RNG.uniform(size=(11, 7)) < 0.3, RNG.normal(size=(11, 7)), 0)
X[4] = X[8:] = 0  # rows, and a last batch, without a number
Y = np.arange(11.0)

KINDS = {
    "csr_array": lambda x: scipy_sparse.csr_array(x),
    "csr_matrix": lambda x: scipy_sparse.csr_matrix(x),
    "int64 indices": lambda x: with_wide_indices(scipy_sparse.csr_array(x)),
    "numbers stored twice": lambda x: twice(x),
    "mxnet": lambda x: mx.nd.sparse.csr_matrix(x, dtype=x.dtype),
}


def with_wide_indices(matrix):
    matrix.indices, matrix.indptr = matrix.indices.astype("int64"), matrix.indptr.astype("int64")
    return matrix


def twice(x):
    matrix = scipy_sparse.csr_array(x)
    columns, values = np.repeat(matrix.indices, 2), np.repeat(matrix.data / 2, 2)
    return scipy_sparse.csr_array((values, columns, 2 * matrix.indptr), shape=x.shape)


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"shuffle": True, "reshuffle": True}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_batches_are_those_of_dense_rows(kind, dtype, arguments):
    matrix = KINDS[kind](X.astype(dtype))
    loader = ArrayLoader(matrix, Y, batch_size=4, seed=2, **arguments)
    dense = ArrayLoader(X.astype(dtype), Y, batch_size=4, seed=2, **arguments)
    for _ in range(2):
        for (rows, label), (expected, same) in zip(loader, dense, strict=True):
            assert rows.stype == "csr"
            assert rows.dtype == expected.dtype == np.dtype(dtype).type
            np.testing.assert_array_equal(rows.asnumpy(), expected.asnumpy())
            np.testing.assert_array_equal(label.asnumpy(), same.asnumpy())


def test_the_users_matrix_is_left_as_it_is():
    matrix = twice(X)
    stored = matrix.nnz
    list(ArrayLoader(matrix, Y, batch_size=4))
    assert matrix.nnz == stored


def test_batches_are_kept_and_nested():
    loader = ArrayLoader({"words": scipy_sparse.csr_array(X), "more": X}, Y, batch_size=4)
    assert loader.keeps_batches
    assert loader.repeats
    first = loader[0]
    assert first is loader[0]
    assert [first[0]["words"].stype, first[0]["more"].stype] == ["csr", "default"]


def test_a_callable_gets_the_sparse_rows():
    def doubled(x, y):
        assert x.stype == "csr"
        return x * 2, y

    loader = ArrayLoader(scipy_sparse.csr_array(X), Y, batch_size=4, transform=doubled)
    rows = np.concatenate([x.asnumpy() for x, _ in loader])
    np.testing.assert_array_equal(rows, 2 * X)
    assert loader.some_rows()[0].shape == X.shape


def test_transforms_of_dense_arrays_are_refused():
    with pytest.raises(TypeError, match="takes dense arrays, and one of the loader's is CSR"):
        ArrayLoader(scipy_sparse.csr_array(X), Y, batch_size=4, transform=transforms.ToFloat())


@pytest.mark.parametrize("column", [7, -1])
def test_a_column_out_of_range(column):
    matrix = scipy_sparse.csr_array(X)
    matrix.indices[1] = column
    with pytest.raises(ValueError, match=rf"array 0 has a number in column {column}, and 7 col"):
        ArrayLoader(matrix, Y, batch_size=4)


def test_other_formats_and_lengths_are_refused():
    with pytest.raises(TypeError, match=r"got a coo_array: .* x.tocsr\(\) if it is sparse"):
        ArrayLoader(scipy_sparse.coo_array(X), Y, batch_size=4)
    with pytest.raises(TypeError, match=r"storage type 'row_sparse', .* x.tostype"):
        ArrayLoader(mx.nd.array(X).tostype("row_sparse"), Y, batch_size=4)
    with pytest.raises(ValueError, match=r"same length along axis 0, got \[11, 10\]"):
        ArrayLoader(scipy_sparse.csr_array(X), Y[:10], batch_size=4)
    with pytest.raises(ValueError, match="must have samples along axis 0, got shape"):
        ArrayLoader(scipy_sparse.csr_array((0, 7)), batch_size=4)
    with pytest.raises(ValueError, match="has dtype complex128, which MXNet does not have"):
        ArrayLoader(scipy_sparse.csr_array(X.astype(complex)), Y, batch_size=4)
