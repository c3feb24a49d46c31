"""Weighted products of the columns against sums in long double, and how often they are rounded."""

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from provenglm import constants
from provenglm.rows import gram
from provenglm.rows.csr import CsrRows
from provenglm.rows.dense import DenseRows
from provenglm.rows.disk import DiskRows
from provenglm.rows.parts import part_of
from provenglm.workers import Workers
from scipy.sparse import csr_array

UNIT = {np.float64: 2.0**-53, np.float32: 2.0**-24}


class Coordinates(NamedTuple):
    center: np.ndarray
    inverse: np.ndarray


def as_dense(X):
    return DenseRows(X)


def as_columns(X):
    """Return rows of an array whose columns lie together."""
    return DenseRows(np.asfortranarray(X))


def as_parts(X):
    """Return rows of two arrays that are read as from a disk."""
    half = len(X) // 2
    return DiskRows([part_of(X[:half]), part_of(X[half:])])


def as_csr(X):
    return CsrRows(csr_array(X))


STORAGES = [as_dense, as_columns, as_parts, as_csr]


def weights_of(kind, n, rng):
    weights = rng.random(n)
    if kind == "zero":
        weights[rng.random(n) < 0.5] = 0
    elif kind == "negative":
        weights = -weights
    elif kind == "both":
        weights -= 0.5
    elif kind == "equal":
        weights[:] = 0.3
    elif kind == "classes":
        probability = rng.dirichlet(np.full(3, 0.3), size=n)
        return gram.ClassWeights(probability, weights)
    return weights


KINDS = ["positive", "zero", "negative", "both", "equal", "classes"]


def exact(X, weights, coordinates, ones):
    """Return the products in long double, and those of the sizes: what rounding is relative to."""
    X = X.astype(np.longdouble)
    size = np.abs(X)
    if coordinates is not None:
        center, inverse = (part.astype(np.longdouble) for part in coordinates)
        X, size = (X - center) * inverse, (size + np.abs(center)) * inverse
    if ones:
        X, size = (np.column_stack([each, np.ones(len(X))]) for each in (X, size))
    if not isinstance(weights, gram.ClassWeights):
        return (X.T * weights) @ X, np.abs(X), size, np.abs(weights)[:, None, None]
    p, share = (part.astype(np.longdouble) for part in weights)
    matrix = share[:, None, None] * (p[:, :, None] * (np.eye(p.shape[1]) - p[:, None]))
    width = X.shape[1] * p.shape[1]
    found = np.einsum("ij,ikl,im->jkml", X, matrix, X).reshape(width, width)
    return found, np.abs(X), size, np.abs(matrix)


def sizes_of(size, weight):
    if weight.shape[1] == 1:
        return (size.T * weight[:, 0, 0]) @ size
    width = size.shape[1] * weight.shape[1]
    return np.einsum("ij,ikl,im->jkml", size, weight, size).reshape(width, width)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(constants, "BLOCK_BYTES", 2048)
    monkeypatch.setattr(constants, "LEAST_BLOCK_ROWS", 8)
    monkeypatch.setattr(constants, "BLOCK_ROWS", 64)


def columns_of(n, p, rng, offset, dtype):
    X = rng.normal(size=(n, p)) * (rng.random((n, p)) < 0.7) + offset
    X[:, 1] = 0  # an empty column
    X[:, 2] = 7  # and one that is constant
    return X.astype(dtype)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_the_columns(storage, kind, small_blocks):
    rng = np.random.default_rng(0)
    n, p = 301, 6
    choices = [(0.0, 1e5), (np.float64, np.float32), (True, False), (True, False), (None, 150)]
    for offset, dtype, ones, centred, drawn in product(*choices):
        X = columns_of(n, p, rng, offset, dtype)
        some = None if drawn is None else rng.integers(0, n, size=drawn)
        chosen = X if some is None else X[some]
        weights = weights_of(kind, len(chosen), rng)
        coordinates = Coordinates(X.mean(axis=0, dtype=float), 1 / (1 + np.arange(p)))
        coordinates.inverse[4] = 0  # left out
        coordinates = coordinates if centred else None
        for columns in (None, np.array([5, 0, 3])):
            found = gram.gram(
                storage(X),
                weights,
                Workers(1),
                coordinates=coordinates,
                columns=columns,
                chosen=some,
                ones=ones,
            )
            used = chosen if columns is None else chosen[:, columns]
            here = coordinates
            if columns is not None and centred:
                here = Coordinates(*(part[columns] for part in coordinates))
            expected, of_arrays, of_csr, weight = exact(used, weights, here, ones)
            size = sizes_of(of_csr if storage is as_csr else of_arrays, weight)
            assert found.dtype == np.float64
            assert found.flags.c_contiguous
            assert np.array_equal(found, found.T)
            # As many roundings as there are rows at most, of both signs: about the root of them.
            assert (np.abs(found - expected) <= 60 * UNIT[np.float64] * size).all()


@pytest.mark.parametrize("storage", STORAGES[:3])
def test_products_in_float32(storage, small_blocks):
    rng = np.random.default_rng(1)
    X = columns_of(500, 6, rng, 0.0, np.float32)
    weights = rng.random(500)
    coordinates = Coordinates(np.full(6, 0.25), np.full(6, 0.5))
    found = gram.gram(
        storage(X), weights, Workers(1), coordinates=coordinates, ones=True, dtype=np.float32
    )
    expected, size, _, weight = exact(X, weights, coordinates, True)
    assert found.dtype == np.float32
    error = np.abs(found - expected)
    assert (error <= 60 * UNIT[np.float32] * sizes_of(size, weight)).all()
    assert error.max() > 1e3 * UNIT[np.float64]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", ["both", "classes"])
def test_a_block_is_as_good_as_all_rows(storage, kind, small_blocks):
    rng = np.random.default_rng(2)
    X = columns_of(200, 5, rng, 1.0, np.float64)
    weights = weights_of(kind, 200, rng)
    block = storage(X).block(slice(0, 200))
    for ones in (True, False):
        expected, *_ = exact(X, weights, None, ones)
        np.testing.assert_allclose(
            gram.gram_of_block(block, weights, ones=ones), expected.astype(float), atol=1e-12
        )


def test_a_block_of_a_larger_array_is_not_copied_or_changed(small_blocks):
    rng = np.random.default_rng(3)
    whole = rng.normal(size=(100, 8))
    before, weights = whole.copy(), rng.random(100)
    for block in (whole[:, :5], whole[::2, 1:4], whole[:, ::2], whole.T[:, :50]):
        some = rng.random(len(block))
        np.testing.assert_allclose(
            gram.gram_of_block(block, some), (block.T * some) @ block, atol=1e-12
        )
    assert np.array_equal(whole, before)
    assert gram.gram_of_block(whole[:0], weights[:0]).shape == (8, 8)
    assert gram.gram_of_block(whole[:, :0], weights, ones=True) == pytest.approx(weights.sum())


def test_threads_give_the_same_bits(small_blocks):
    rng = np.random.default_rng(4)
    X, weights = rng.normal(size=(2000, 20)), rng.random(2000)
    expected = gram.gram(DenseRows(X), weights, Workers(1))
    workers = Workers(constants.SMALL, threads=4)
    with workers.running():
        for _ in range(5):
            assert np.array_equal(gram.gram(DenseRows(X), weights, workers), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("storage", [as_dense, as_csr])
def test_the_count_of_roundings_bounds_the_error(storage, dtype, small_blocks):
    """In random cases of which some have all terms of one sign, sizes that differ, or offsets."""
    rng = np.random.default_rng(5)
    most = 0.0
    for case in range(1000):
        n, p = int(rng.integers(1, 300)), int(rng.integers(1, 5))
        X = rng.normal(size=(n, p)) * np.exp(rng.normal(size=(n, p)) * rng.choice([0, 3]))
        X += rng.choice([0.0, 10.0, 1e5])
        X *= rng.random((n, p)) < rng.choice([0.2, 1.0])
        X = X.astype(dtype)
        weights = weights_of(KINDS[case % len(KINDS)], n, rng)
        coordinates = None
        if rng.random() < 0.7:
            center = X.mean(axis=0, dtype=float).astype(dtype).astype(float)
            coordinates = Coordinates(center, np.full(p, 0.75))
        rows, ones = storage(X), bool(rng.random() < 0.5)
        expected, of_arrays, of_csr, weight = exact(X, weights, coordinates, ones)
        is_sparse = storage is as_csr
        found = gram.gram(
            rows, weights, Workers(1), coordinates=coordinates, ones=ones, dtype=dtype
        )
        sizes = [group[-1].stop - group[0].start for group in gram.groups(rows, p)]
        unit = UNIT[np.float64 if is_sparse else dtype]
        bound = (
            1.01
            * gram.roundings(sizes)
            * unit
            * sizes_of(of_csr if is_sparse else of_arrays, weight)
        )
        error = np.abs(found - expected)
        assert (error <= bound + np.finfo(dtype).tiny).all()
        whole = gram.gram_of_block(rows.block(slice(0, n)), weights, ones=ones)
        expected, size, _, weight = exact(X, weights, None, ones)
        bound = 1.01 * gram.roundings([n]) * unit * sizes_of(size, weight)
        assert (np.abs(whole - expected) <= bound + np.finfo(dtype).tiny).all()
        most = max(most, float(np.max(error[bound > 0] / bound[bound > 0], initial=0)))
    # Not so large that it would hide an error.
    assert most > 0.05
