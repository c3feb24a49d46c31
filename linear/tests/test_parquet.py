"""Row groups of Parquet files."""

import builtins
import os
import re
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from provenglm import Chunks, GLMClassifier, constants
from provenglm.rows import disk

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
    model, peer = GLMClassifier().fit(data, Y), GLMClassifier().fit(X, Y)
    assert np.array_equal(model.coef_, peer.coef_)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert np.array_equal(model.predict(data), peer.predict(X))


def test_a_split(write):
    data = Chunks.from_parquet(write(columns_of(X)))
    train, test, y, y_test, rows, _ = data.train_test_split(Y, np.arange(N), random_state=0)
    assert train.columns == ["a", "b", "c"]
    peer = GLMClassifier().fit(X[rows], Y[rows])
    model = GLMClassifier().fit(train, y)
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-6)
    assert model.score(test, y_test) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("most", [3000, 0])
def test_many_rows(write, monkeypatch, most):
    # With none a Hessian is no matrix.
    monkeypatch.setattr(constants, "MOST_WEIGHTS", most)
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    order = np.argsort(Y, kind="stable")
    data = Chunks.from_parquet(write(columns_of(X[order]), group=100))
    model = GLMClassifier(random_state=0, tol=1e-8).fit(data, Y[order])
    peer = GLMClassifier(tol=1e-12).fit(X, Y)
    assert model.objective_ - peer.objective_ < 1e-7
    assert not [thread for thread in threading.enumerate() if "provenglm" in thread.name]


def test_columns_that_are_asked_for(write):
    path = write({**columns_of(X), "label": Y, "name": [str(y) for y in Y]})
    data = Chunks.from_parquet(str(path), columns=["c", "a"])
    assert np.array_equal(disk.DiskRows(data.parts).block(slice(0, N)), X[:, [2, 0]])
    model = GLMClassifier().fit(data, Y)
    with pytest.raises(ValueError, match="column 0 of X is 'a', and GLMClassifier was fitted with"):
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
        GLMClassifier().fit(Chunks.from_parquet(path), [0, 1, 0])
    path = write({"a": [1, None, 2]}, "whole.parquet")
    with pytest.raises(
        ValueError, match=r"column 'a' has null in row group 0 of .*, and int64 has no"
    ):
        GLMClassifier().fit(Chunks.from_parquet(path), [0, 1, 0])


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
        GLMClassifier().fit(data, Y)
    os.remove(path)
    with pytest.raises(OSError, match="is gone, and rows are read from it several times"):
        GLMClassifier().fit(data, Y)


def test_row_groups_that_are_too_large(write, monkeypatch):
    from provenglm.rows import chunks

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

    monkeypatch.delitem(sys.modules, "provenglm.rows.parquet", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        ImportError, match=r"cannot be imported \(pyarrow.*\): pip install 'provenglm\[parquet\]'"
    ):
        Chunks.from_parquet("x.parquet")


# --- What is in a file beside its numbers -------------------------------------------------------

FRAME = pd.DataFrame(X[:60], columns=list("abc"))
FRAMES = {
    "a range": FRAME,
    "shuffled": FRAME.sample(frac=1, random_state=0),
    "an index with a name": FRAME.set_index("b"),
    "an index of two": FRAME.assign(d=1.0).set_index(["a", "d"]),
    "an index of dates": FRAME.set_index(pd.date_range("2024-01-01", periods=60)),
    "an index of text": FRAME.set_index(np.arange(60).astype(str)),
    "columns that are numbers": FRAME.set_axis([0, 1, 2], axis=1),
    "Dask's index": FRAME.rename_axis(index="__null_dask_index__"),
}


@pytest.mark.parametrize("index", [None, True, False])
@pytest.mark.parametrize("kind", FRAMES)
def test_features_are_the_columns_that_pandas_reads(pa, tmp_path, kind, index):
    FRAMES[kind].to_parquet(tmp_path / "x.parquet", index=index)
    seen = pd.read_parquet(tmp_path / "x.parquet")
    data = Chunks.from_parquet(tmp_path / "x.parquet")
    assert data.columns == list(map(str, seen.columns))
    assert np.array_equal(disk.DiskRows(data.parts).block(slice(0, 60)), seen.to_numpy())


def test_an_index_by_its_name_is_a_feature_that_was_asked_for(pa, tmp_path):
    FRAMES["an index with a name"].to_parquet(tmp_path / "x.parquet")
    assert Chunks.from_parquet(tmp_path / "x.parquet", columns=["b", "a"]).columns == ["b", "a"]


@pytest.mark.parametrize("name", ["__index_level_0__", "__null_dask_index__"])
def test_an_index_that_another_program_has_copied(write, name):
    path = write({**columns_of(X), name: np.arange(N)})  # without pandas' metadata, as by Polars
    words = rf"has the column '{name}', which was the index .*: name the features in columns"
    with pytest.raises(ValueError, match=words):
        Chunks.from_parquet(path)
    assert Chunks.from_parquet(path, columns=["a", "c"]).columns == ["a", "c"]


def test_a_file_with_nothing_but_an_index(pa, tmp_path):
    FRAME[[]].set_index(FRAME["a"]).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="has no columns beside an index: name the features"):
        Chunks.from_parquet(tmp_path / "x.parquet")


def test_a_folder_is_its_files(pa, tmp_path):
    folder = tmp_path / "data.parquet"
    folder.mkdir()
    for k in (0, 1, 2, 10):  # as Dask writes them: pandas reads part.10 before part.2
        FRAME[15 * (k % 7) : 15 * (k % 7) + 15].to_parquet(folder / f"part.{k}.parquet")
    for name in ("_SUCCESS", "_metadata", "_common_metadata", ".part.0.parquet.crc"):
        (folder / name).write_bytes(b"nothing with rows")
    (folder / "_temporary").mkdir()
    seen = pd.read_parquet(folder, engine="pyarrow").to_numpy()
    for given in (folder, str(folder), [folder]):
        data = Chunks.from_parquet(given)
        assert np.array_equal(disk.DiskRows(data.parts).block(slice(0, 60)), seen)
    both = Chunks.from_parquet([folder, folder / "part.0.parquet"])
    assert both.shape == (75, 3)


REFUSED_FOLDERS = {
    "partitions": ("year=2020/", r"has the folder 'year=2020' in it, .* give the files"),
    "a folder in it": ("more/", r"has the folder 'more' in it"),
    "a Delta table": ("_delta_log/", r"is a Delta table, whose log says which of its files count"),
    "a Hudi table": (".hoodie/", r"is a Hudi table"),
}


@pytest.mark.parametrize("kind", REFUSED_FOLDERS)
def test_folders_that_are_more_than_files(pa, tmp_path, kind):
    name, words = REFUSED_FOLDERS[kind]
    FRAME.to_parquet(tmp_path / "part-0.parquet")
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=words):
        Chunks.from_parquet(tmp_path)


def test_a_folder_without_files(pa, tmp_path):
    (tmp_path / "data.csv").touch()
    with pytest.raises(ValueError, match=r"is a folder without a file \*\.parquet: give the files"):
        Chunks.from_parquet(tmp_path)


@pytest.mark.parametrize(("read", "end"), [(Chunks.from_parquet, "parquet"), (Chunks, "npy")])
def test_a_pattern(pa, tmp_path, read, end):
    pattern = str(tmp_path / f"*.{end}")
    words = re.escape(f"for a pattern give sorted(glob.glob({pattern!r}))")
    with pytest.raises(FileNotFoundError, match=words):
        read(pattern)


def test_the_names_of_the_columns_are_shown(write):
    data = Chunks.from_parquet(write({**columns_of(X), "label": Y.astype(np.float32)}))
    assert repr(data).endswith("x 4, float32, columns 'a', 'b', 'c', 'label')")
    many = {f"x{k}": X[:, 0] for k in range(20)}
    assert "'x5', ..., 'x14'" in repr(Chunks.from_parquet(write(many)))
