"""Rows in blocks: every row once, converted a block at a time, nothing copied whole."""

import tracemalloc

import numpy as np
import pytest
from provenglm.constants import BLOCK_BYTES
from provenglm.rows.dense import DenseRows


@pytest.mark.parametrize(
    ("given", "handed_out"),
    [
        ("float16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("bool", "float32"),
        ("int8", "float32"),
        ("uint8", "float32"),
        ("int16", "float32"),
        ("uint16", "float32"),
        ("int32", "float64"),
        ("int64", "float64"),
        (">f4", "float32"),
        (">f8", "float64"),
    ],
)
def test_types(given, handed_out):
    X = np.arange(12).reshape(6, 2).astype(given)
    rows = DenseRows(X)
    assert rows.dtype == handed_out
    assert rows.block(slice(1, 3)).dtype == handed_out
    # In the machine's order of bytes.
    assert rows.block(slice(1, 3)).dtype.isnative
    assert np.array_equal(rows.block(slice(1, 3)), X[1:3])
    assert np.array_equal(rows.pick(np.array([4, 0])), X[[4, 0]])
    assert rows.pick(np.array([4, 0])).dtype == handed_out


def test_a_type_that_is_asked_for():
    rows = DenseRows(np.ones((3, 2), np.float32), np.dtype(np.float64))
    assert rows.dtype == np.float64
    assert rows.block(slice(0, 3)).dtype == np.float64


@pytest.mark.parametrize("n", [1, 63, 64, 65, 5000])
@pytest.mark.parametrize("p", [1, 7, 30_000])
def test_slices_are_every_row_once(n, p):
    rows = DenseRows(np.lib.stride_tricks.as_strided(np.zeros(1), (n, p), (0, 0)))
    parts = rows.slices()
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == n
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) * p * 8 <= max(BLOCK_BYTES, 64 * p * 8)


def test_no_features():
    assert DenseRows(np.empty((5, 0))).slices() == [slice(0, 5)]


def test_a_block_of_floats_is_a_view():
    X = np.ones((100, 3))
    assert np.shares_memory(DenseRows(X).block(slice(10, 20)), X)


def test_a_gathered_array_is_the_callers_own():
    X = np.ones((100, 3))
    rows = DenseRows(X).pick(np.arange(100))
    assert not np.shares_memory(rows, X)
    rows[:] = 0
    assert X.all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("given", ["float64", "float32", "uint8", ">f8"])
def test_some_columns(given, order):
    X = np.asarray(np.arange(200).reshape(20, 10), given, order=order)
    wanted = np.array([7, 0, 3])
    assert np.array_equal(DenseRows(X).columns(slice(4, 11), wanted), X[4:11, wanted].T)
    assert np.array_equal(DenseRows(X[:, ::2]).columns(slice(0, 20), wanted[1:]), X[:, [0, 6]].T)


def test_a_pass_over_the_blocks_takes_the_memory_of_one():
    X = np.ones((200_000, 20), np.uint8)
    rows = DenseRows(X)
    tracemalloc.start()
    for part in rows.slices():
        rows.block(part).sum()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two blocks: the one that is replaced lives until then. All rows would be 16 MB.
    assert peak < 2.5 * BLOCK_BYTES
