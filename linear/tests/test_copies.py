"""Copies of rows in coordinates, of each storage and as a part."""

import numpy as np
import pytest
from provenglm import constants
from provenglm.rows import reading
from provenglm.rows.centred import Scaled
from provenglm.rows.copies import ScaledRows, arrays_of, dense_part, write_columns
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.disk import DiskRows
from provenglm.rows.kinds import rows_of, taken
from provenglm.rows.parts import ArrayPart
from provenglm.rows.products import row_products
from provenglm.workers import Workers
from scipy.sparse import csr_array

N, P = 300, 7
STORAGES = {
    "C": DenseRows,
    "F": lambda X: DenseRows(np.asfortranarray(X)),
    "bytes": lambda X: DenseRows(X.astype(np.uint8)),
    "disk": lambda X: DiskRows([ArrayPart(X[:90]), ArrayPart(X[90:])]),
    "sparse": lambda X: CsrRows(csr_array(X)),
}


@pytest.fixture(params=STORAGES)
def made(request, monkeypatch):
    """The rows, their numbers, coordinates, and the numbers in coordinates."""
    monkeypatch.setattr(constants, "BLOCK_BYTES", 2048)
    monkeypatch.setattr(constants, "LEAST_BLOCK_ROWS", 8)
    rng = np.random.default_rng(0)
    X = rng.poisson(1.0, (N, P)).astype(float)
    center = np.zeros(P)
    if request.param == "sparse":
        X[:, 2] += 1  # a column without zeros has a center
        center[2] = 1.5
    else:
        center = rng.normal(size=P)
    coordinates = Scaled(center, rng.random(P))
    return STORAGES[request.param](X), X, coordinates, (X - center) * coordinates.inverse


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_and_copy_are_in_coordinates(made, dtype):
    rows, _, coordinates, expected = made
    scaled = ScaledRows(rows, coordinates, np.dtype(dtype))
    parts = reading.slices(scaled)
    assert len(parts) > 3
    blocks = [reading.block(scaled, part) for part in parts]
    assert {block.dtype for block in blocks} == {np.dtype(dtype)}
    dense = [block.toarray() if rows.is_sparse else block for block in blocks]
    np.testing.assert_allclose(np.concatenate(dense), expected, rtol=1e-6, atol=1e-7)
    copy = scaled.copied(Workers(1))
    assert copy.dtype == dtype
    copy = copy.toarray() if rows.is_sparse else copy
    assert np.array_equal(copy, np.concatenate(dense))
    assert scaled.precise().dtype == np.float64


def test_parts_and_columns(made):
    rows, _, coordinates, expected = made
    part, chosen = slice(13, 120), np.array([5, 0, 3])
    found = dense_part(rows, part, coordinates, beside=2)
    assert found.shape == (107, P + 2)
    np.testing.assert_allclose(found[:, :P], expected[part], atol=1e-14)
    found = dense_part(rows, part, coordinates, chosen=chosen)
    np.testing.assert_allclose(found, expected[part][:, chosen], atol=1e-14)
    if not rows.is_sparse:
        columns = np.empty((3, N))
        write_columns(rows, chosen, coordinates, columns, Workers(1))
        np.testing.assert_allclose(columns, expected[:, chosen].T, atol=1e-14)


@pytest.mark.parametrize("outputs", [1, 3])
def test_products_of_all_rows(made, outputs):
    rows, X, _, _ = made
    weights = np.random.default_rng(1).normal(size=(P, outputs))
    np.testing.assert_allclose(row_products(rows, weights, Workers(1)), X @ weights, atol=1e-12)
    if not rows.is_sparse:
        center = np.arange(P) / 2
        found = row_products(rows, weights, Workers(1), center)
        np.testing.assert_allclose(found, (X - center) @ weights, atol=1e-12)


def test_sparse_rows_without_a_change_are_not_copied():
    matrix = csr_array(np.eye(5))
    same = Scaled(np.zeros(5), np.ones(5))
    copy = ScaledRows(CsrRows(matrix), same, np.dtype(np.float64)).copied(Workers(1))
    assert copy.data is matrix.data
    assert [of.base is not None for of in arrays_of(CsrRows(copy))[1:]] == [True, True]


def test_what_float32_has_no_number_for_is_cut():
    rows = DenseRows(np.array([[1e300, -1e200], [2.0, 3.0]]))
    same = Scaled(np.zeros(2), np.ones(2))
    copy = ScaledRows(rows, same, np.dtype(np.float32)).copied(Workers(1))
    assert np.array_equal(copy, np.array([[1e30, -1e30], [2, 3]], np.float32))


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_features_of_some_rows(kind):
    X = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = taken(kind(X), np.array([2, 0]))
    assert type(found) is type(kind(X))
    assert found.dtype == np.float32
    assert np.array_equal(
        np.asarray(rows_of(found).precise().pick(np.arange(2)).sum()), X[[2, 0]].sum()
    )
    assert taken(kind(X), np.array([1]), np.dtype(np.float64)).dtype == np.float64
