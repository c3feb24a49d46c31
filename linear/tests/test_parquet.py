"""Row groups of Parquet files."""

import builtins
import os
import sys
import threading

import numpy as np
import pytest
from provenglm import Chunks, SVRGClassifier, constants
from provenglm.data import disk

N = 3000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = X[:, 0] + RNG.normal(size=N) > 0


@pytest.fixture
def pa():
    pytest.importorskip("pyarrow.parquet")
    import pyarrow

    return pyarrow


@pytest.fixture
def write(pa, tmp_path):
    def write(columns, name="x.parquet", group=700):
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table(columns), tmp_path / name, row_group_size=group)
        return tmp_path / name

    return write


def columns_of(rows):
    return {name: np.ascontiguousarray(rows[:, k]) for k, name in enumerate("abc")}


def test_the_same_as_an_array(write):
    paths = [write(columns_of(X[:1000]), "1.parquet"), write(columns_of(X[1000:]), "2.parquet")]
    data = Chunks.from_parquet(paths)
    assert data.shape == X.shape
    assert data.dtype == np.float32
    assert data.lengths == [700, 300, 700, 700, 600]
    model, peer = SVRGClassifier().fit(data, Y), SVRGClassifier().fit(X, Y)
    assert np.array_equal(model.coef_, peer.coef_)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert np.array_equal(model.predict(data), peer.predict(X))


def test_a_split(write):
    data = Chunks.from_parquet(write(columns_of(X)))
    train, test, y, y_test, rows, _ = data.train_test_split(Y, np.arange(N), random_state=0)
    assert train.columns == ["a", "b", "c"]
    peer = SVRGClassifier().fit(X[rows], Y[rows])
    model = SVRGClassifier().fit(train, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-6)
    assert model.score(test, y_test) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("most", [3000, 0])
def test_many_rows(write, monkeypatch, most):
    monkeypatch.setattr(constants, "LONG_ROWS", 0)
    # With none a Hessian is no matrix.
    monkeypatch.setattr(constants, "MOST_WEIGHTS", most)
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    order = np.argsort(Y, kind="stable")
    data = Chunks.from_parquet(write(columns_of(X[order]), group=100))
    model = SVRGClassifier(random_state=0, tol=1e-8).fit(data, Y[order])
    peer = SVRGClassifier(tol=1e-12).fit(X, Y)
    assert model.objective_ - peer.objective_ < 1e-7
    assert not [thread for thread in threading.enumerate() if "provenglm" in thread.name]


def test_columns_that_are_asked_for(write):
    path = write({**columns_of(X), "label": Y, "name": [str(y) for y in Y]})
    data = Chunks.from_parquet(str(path), columns=["c", "a"])
    assert np.array_equal(disk.DiskRows(data.parts).block(slice(0, N)), X[:, [2, 0]])
    model = SVRGClassifier().fit(data, Y)
    with pytest.raises(
        ValueError, match="column 0 of X is 'a', and SVRGClassifier was fitted with"
    ):
        model.predict(Chunks.from_parquet(path, columns=["a", "c"]))
    with pytest.raises(ValueError, match="has no column 'd', or several of this name: it has 'a'"):
        Chunks.from_parquet(path, columns=["d"])
    with pytest.raises(
        ValueError, match=r"column 'name' of .* is of string, and features are numbers"
    ):
        Chunks.from_parquet(path)


def test_null(write):
    path = write({"a": [1.0, None, 2.0], "b": [0.0, 1.0, 2.0]})
    words = "X has NaN in row 1, column 0 .'a'."
    with pytest.raises(ValueError, match=words):
        SVRGClassifier().fit(Chunks.from_parquet(path), [0, 1, 0])
    path = write({"a": [1, None, 2]}, "whole.parquet")
    with pytest.raises(
        ValueError, match=r"column 'a' has null in row group 0 of .*, and int64 has no"
    ):
        SVRGClassifier().fit(Chunks.from_parquet(path), [0, 1, 0])


def test_types_of_two_files(write):
    one, two = write(columns_of(X)), write({"a": Y, "b": Y, "c": Y}, "two.parquet")
    with pytest.raises(
        ValueError, match=r"are of bool, and those of .* of float32: write them alike"
    ):
        Chunks.from_parquet([one, two])
    assert Chunks.from_parquet(two).dtype == np.bool_


def test_a_file_that_is_none(tmp_path, pa):
    (tmp_path / "x.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot be read as a Parquet file"):
        Chunks.from_parquet(tmp_path / "x.parquet")


def test_a_file_that_is_not_there(tmp_path, pa):
    with pytest.raises(FileNotFoundError, match=r"gone.parquet is not there: give the path"):
        Chunks.from_parquet(tmp_path / "gone.parquet")


@pytest.mark.parametrize("columns", [[], (), "abc", ""])
def test_columns_that_are_no_names(write, columns):
    with pytest.raises(ValueError, match=r"columns is .*, and features need a list of at least"):
        Chunks.from_parquet(write(columns_of(X)), columns=columns)


def test_a_file_that_changes(write):
    path = write(columns_of(X))
    data = Chunks.from_parquet(path)
    os.truncate(path, 500)
    with pytest.raises(OSError, match="has 500 bytes, and had"):
        SVRGClassifier().fit(data, Y)
    os.remove(path)
    with pytest.raises(OSError, match="is gone, and rows are read from it several times"):
        SVRGClassifier().fit(data, Y)


def test_row_groups_that_are_too_large(write, monkeypatch):
    from provenglm.data import chunks

    monkeypatch.setattr(chunks, "LEAST_MEMORY", 0)
    with pytest.raises(
        ValueError, match=r"row group 0 of .* write smaller ones \(row_group_size of"
    ):
        Chunks.from_parquet(write(columns_of(X)), memory_limit=40_000)


def test_without_pyarrow(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "provenglm.data.parquet", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        ImportError, match=r"cannot be imported \(pyarrow.*\): pip install 'provenglm\[parquet\]'"
    ):
        Chunks.from_parquet("x.parquet")
