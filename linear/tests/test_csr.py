"""CSR rows: blocks that share the values, moments, the full pass, and the certificate on them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from linear_oracle import LOSSES, NAMES, Dense, prepared, problem_of, residuals
from provenglm import constants
from provenglm.proof.duality import duality_gap
from provenglm.rows import csr, reading
from provenglm.rows.csr import CsrRows
from provenglm.rows.csr_checks import as_float, canonical
from provenglm.rows.kinds import rows_of
from provenglm.rows.products import column_moments, column_products
from provenglm.solve import Settings, solve
from scipy.sparse import csr_array, csr_matrix, random as random_matrix

MANY = pytest.mark.parametrize("loss", LOSSES, ids=NAMES)


def sparse(n=500, p=30, density=0.1, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(n, p)) * (rng.random((n, p)) < density)
    return csr_array(dense.astype(dtype))


@pytest.fixture(params=[64, 1 << 18])
def block_numbers(request, monkeypatch):
    """Many blocks, or one."""
    monkeypatch.setattr(constants, "BLOCK_BYTES", 8 * request.param)
    return request.param


# --- Rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 64, 129, 2000])
def test_slices_are_every_row_once(block_numbers, n):
    for matrix in (sparse(n), sparse(n, density=0.9), csr_array((n, 30))):
        rows = CsrRows(matrix)
        parts = rows.slices()
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == n
        blocks = [rows.block(part).toarray() for part in parts]
        np.testing.assert_array_equal(np.concatenate(blocks), matrix.toarray())
    assert (len(CsrRows(sparse(2000)).slices()) > 20) == (block_numbers == 64)


def test_a_row_longer_than_a_block(monkeypatch):
    monkeypatch.setattr(constants, "BLOCK_BYTES", 80)
    monkeypatch.setattr(constants, "LEAST_BLOCK_ROWS", 1)
    matrix = csr_array(np.vstack([np.ones((3, 30)), np.eye(30), np.zeros((40, 30))]))
    rows = CsrRows(matrix)
    blocks = [rows.block(part).toarray() for part in rows.slices()]
    np.testing.assert_array_equal(np.concatenate(blocks), matrix.toarray())


def test_blocks_share_the_values_and_are_made_once(block_numbers):
    matrix = sparse()
    rows = CsrRows(matrix)
    for part in rows.slices():
        block = rows.block(part)
        assert np.shares_memory(csr.transposed(block).data, matrix.data)
        assert csr.transposed(block) is csr.transposed(block)
        np.testing.assert_array_equal(csr.transposed(block).toarray(), block.toarray().T)
        assert np.shares_memory(block.data, matrix.data)
        assert np.shares_memory(block.indices, matrix.indices)
        assert block.indptr.dtype == block.indices.dtype
        assert rows.block(part) is block


@pytest.mark.parametrize("part", [slice(0, 0), slice(3, 4), slice(490, 600), slice(None)])
def test_any_slice(part):
    matrix = sparse()
    np.testing.assert_array_equal(CsrRows(matrix).block(part).toarray(), matrix.toarray()[part])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_types(dtype):
    matrix = sparse(dtype=dtype)
    rows = rows_of(matrix)
    assert isinstance(rows, CsrRows)
    assert rows.dtype == dtype
    assert rows.block(slice(3, 9)).dtype == dtype
    precise = rows.precise()
    assert precise.dtype == np.float64
    picked = np.array([7, 3, 3, 499])
    for handed_out in (
        precise.block(slice(3, 9)),
        precise.pick(picked),
        reading.gather(precise, picked),
    ):
        assert handed_out.dtype == np.float64
    np.testing.assert_array_equal(reading.gather(rows, picked), matrix.toarray()[picked])
    np.testing.assert_array_equal(rows.pick(picked).toarray(), matrix.toarray()[picked])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outputs", [None, 1, 3, 10])
def test_products(dtype, outputs):
    matrix = sparse(dtype=dtype)
    residual = np.random.default_rng(2).normal(size=(500,) if outputs is None else (500, outputs))
    residual = residual.astype(dtype)
    found = column_products(matrix, residual)
    assert found.dtype == np.float64
    expected = matrix.toarray().astype(np.float64).T @ residual
    tol = 100 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found, expected, rtol=tol, atol=tol)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments(offset):
    matrix = sparse(dtype="float64")
    matrix.data += offset
    rng = np.random.default_rng(3)
    share = rng.exponential(size=500)
    share /= share.sum()
    dense = matrix.toarray()
    center = rng.normal(size=30) + offset * (rng.random(30) < 0.5)
    mean, square = column_moments(matrix, share, center, slice(None))
    np.testing.assert_allclose(mean, share @ (dense - center), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(square, share @ np.square(dense - center), rtol=1e-12)
    # Of a column with a number in each row nothing cancels, wherever it is.
    full = csr_array(rng.normal(size=(500, 2)) + 1e9)
    center = full.toarray().mean(axis=0)
    _, square = column_moments(full, share, center, slice(None))
    np.testing.assert_allclose(square, share @ np.square(full.toarray() - center), rtol=1e-12)


# --- The one form ------------------------------------------------------------------------------


def test_what_is_canonical_is_shared():
    for matrix in (sparse(), sparse(dtype="float32"), csr_matrix(sparse())):
        rows = canonical("", matrix)
        assert isinstance(rows, csr_array)
        for part in ("data", "indices", "indptr"):
            assert np.shares_memory(getattr(rows, part), getattr(matrix, part))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("bool", "float32"),
        ("int8", "float32"),
        ("uint16", "float32"),
        ("int32", "float32"),
        ("uint64", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("longdouble", "float64"),
    ],
)
def test_types_of_numbers(given, expected):
    assert as_float(np.arange(5).astype(given)).dtype == expected


def test_whole_numbers_keep_their_digits():
    for most, expected in ((1 << 24, "float32"), ((1 << 24) + 1, "float64")):
        for sign in (1, -1):
            found = as_float(np.array([0, sign * most]))
            assert found.dtype == expected
            assert found[1] == sign * most
    assert as_float(np.array([], np.int64)).dtype == np.float32


def test_unused_ends_are_cut():
    matrix = sparse()
    longer = csr_array(matrix.shape)
    longer.data, longer.indices = (np.append(part, part) for part in (matrix.data, matrix.indices))
    longer.indptr = matrix.indptr
    assert len(canonical("", longer).data) == matrix.nnz
    np.testing.assert_array_equal(canonical("", longer).toarray(), matrix.toarray())


# --- Objective ---------------------------------------------------------------------------------


def sparse_problem(loss, seed=0, n=300, p=4, dtype="float64", **arguments):
    """A random problem, two thirds of whose numbers are 0, and the same with dense features."""
    problem = problem_of(loss, seed, n=n, p=p, **arguments)
    kept = np.random.default_rng(seed).random((n, p)) < 0.35
    kept[:2] = True
    dense = (problem.features * kept).astype(dtype)
    return replace(problem, features=csr_array(dense)), replace(problem, features=dense)


@pytest.mark.parametrize("size", [0, 150])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@MANY
def test_full_pass(block_numbers, loss, dtype, intercept, size):
    problem, dense = sparse_problem(loss, dtype=dtype, weights=True, intercept=intercept, l2=1e-2)
    objective, _, sample = prepared(problem, size=size)
    assert isinstance(objective.rows, CsrRows)
    assert objective.rows.dtype == dtype
    assert len(sample.rows) == size
    rng = np.random.default_rng(1)
    theta = objective.null()[0] + 0.5 * rng.normal(size=objective.null()[0].shape)
    theta[-1] *= intercept
    for _ in range(2):  # with the moments, and without
        snapshot = objective.snapshot(theta)
        oracle = Dense.of(dense, objective.scaling.center, objective.scaling.inverse)
        tol = 100 * float(np.finfo(dtype).eps)
        assert snapshot.objective == pytest.approx(oracle.value(theta), rel=tol)
        scores = oracle.scores(theta)
        np.testing.assert_allclose(snapshot.scores, scores, rtol=tol, atol=tol)
        r = residuals(loss, scores, problem.target)
        terms = np.abs(oracle.X).T @ np.abs(r * oracle.share[:, None]) + 1
        error = snapshot.gradient - oracle.gradient(theta)
        assert (np.abs(error) / terms).max() < tol
    mean, of_target = objective.moments
    np.testing.assert_allclose(mean, oracle.share @ oracle.X[:, :-1], atol=tol)
    target = np.eye(loss.outputs)[problem.target] if loss.outputs > 1 else problem.target[:, None]
    expected = (oracle.X[:, :-1].T * oracle.share) @ target
    np.testing.assert_allclose(of_target, expected, atol=10 * tol)


def test_coordinates_of_a_sample_are_those_of_dense_rows():
    for loss in LOSSES:
        problem, dense = sparse_problem(loss)
        (one, _, sample), (other, _, peer) = (prepared(q, size=200) for q in (problem, dense))
        np.testing.assert_allclose(one.scaling.center, other.scaling.center, rtol=1e-12)
        np.testing.assert_allclose(one.scaling.inverse, other.scaling.inverse, rtol=1e-12)
        theta = 0.1 * np.random.default_rng(0).normal(size=one.null()[0].shape)
        np.testing.assert_allclose(sample.rows @ theta, peer.rows @ theta, atol=1e-12)


def test_rare_columns_are_measured():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    X[:, 1] *= rng.random(3000) < 2e-3
    problem = problem_of(LOSSES[0], n=3000)
    (one, _, _), (other, _, _) = (
        prepared(replace(problem, features=made(X)), size=500) for made in (csr_array, np.asarray)
    )
    assert one.rare[1]
    assert not one.rare[0]
    np.testing.assert_allclose(one.scaling.inverse, other.scaling.inverse, rtol=1e-12)
    np.testing.assert_allclose(one.scaling.center, other.scaling.center, rtol=1e-9, atol=1e-12)


def test_coordinates_of_the_user():
    problem, _ = sparse_problem(LOSSES[0], l2=0.25, p=20)
    objective, _, sample = prepared(problem, size=0)
    np.testing.assert_array_equal(objective.scaling.center, np.zeros(20))
    # A column of zeros keeps its weight of 0 by the penalty.
    np.testing.assert_array_equal(objective.scaling.inverse, np.ones(20))
    np.testing.assert_array_equal(objective.penalty, [0.25] * 20 + [0])
    assert len(sample.rows) == 0


def test_float64_where_float32_has_too_few_digits():
    problem, _ = sparse_problem(LOSSES[0], dtype="float32")
    features = problem.features.toarray()
    for offset, dtype in ((10, np.float32), (1e3, np.float64)):
        shifted = features.copy()
        shifted[:, 0] = np.random.default_rng(0).normal(size=300) + offset
        objective, _, _ = prepared(replace(problem, features=csr_array(shifted)), size=150)
        assert objective.rows.dtype == dtype
        assert not objective.centered


# --- Certificate -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 0.5])
@MANY
def test_gap_bounds_the_distance(loss, size):
    tight = 0
    for seed in range(9):
        rng = np.random.default_rng(seed)
        n, p = int(rng.integers(8, 60)), int(rng.integers(1, 8))
        problem, dense = sparse_problem(
            loss,
            seed,
            n=n,
            p=p,
            l2=10 ** rng.uniform(-8, 1),
            weights=seed % 2 == 0,
            intercept=seed % 3 > 0,
        )
        objective, null, _ = prepared(problem, size=int(size * n))
        oracle = Dense.of(dense, objective.scaling.center, objective.scaling.inverse)
        best, least = oracle.minimum(np.zeros((p + 1, loss.outputs)))
        for far in (0.0, 1e-6, 1e-3, 1.0):
            away = rng.normal(size=best.shape)
            away[-1] *= objective.intercept
            theta = best + far * away
            snapshot = objective.snapshot(theta)
            gap = duality_gap(objective, snapshot)
            rounding = 1e-13 * (1 + abs(snapshot.objective) + abs(least))
            assert gap >= snapshot.objective - least - rounding, (seed, far)
            assert np.isfinite(gap)
            tight += gap <= 100 * (snapshot.objective - least) + rounding
        assert duality_gap(objective, null) >= null.objective - least - 1e-13
    assert tight > 5


@pytest.mark.parametrize("most_weights", [1, 2500])
@MANY
def test_every_point_of_a_run(monkeypatch, loss, most_weights):
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    monkeypatch.setattr(constants, "MOST_WEIGHTS", most_weights)
    for seed in range(2):
        problem, dense = sparse_problem(loss, seed, n=60, l2=10.0 ** -(seed + 1), weights=True)
        oracle = Dense.of(dense)
        _, least = oracle.minimum(np.zeros((5, loss.outputs)))
        seen = []
        solution = solve(problem, Settings(tol=1e-9, max_iter=300, watch=seen.append))
        for record in seen:
            assert record.gap >= record.objective - least - 1e-12 * (1 + abs(least))
        assert solution.reason.is_success
        assert solution.objective - least <= 1e-8 * (1 + abs(least))
        objectives = [record.objective for record in seen]
        assert all(new <= old + 1e-9 for old, new in itertools.pairwise(objectives))


def test_a_random_matrix_of_scipy():
    # Of another making than those above: SciPy's own.
    matrix = random_matrix(200, 50, density=0.05, format="csr", random_state=0)
    share = np.full(200, 1 / 200)
    mean, _ = column_moments(canonical("", matrix), share, np.zeros(50), slice(None))
    np.testing.assert_allclose(mean, matrix.toarray().mean(axis=0), atol=1e-15)
