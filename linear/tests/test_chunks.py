"""Chunks: what they take, what they refuse and in which words, and files that change."""

import gc
import mmap
import os
import pickle
import re
import threading
from itertools import pairwise

import large_data
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from provenglm import Chunks, GLMClassifier, GLMRegressor, constants
from provenglm.rows import chunks, disk, parts
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

N, P = 400, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, P))
Y = X[:, 0] + RNG.normal(size=N) > 0


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    monkeypatch.setattr(constants, "SMALL", 0)


def test_what_chunks_are():
    data = Chunks(large_data.pieces(X))
    assert data.shape == (N, P)
    assert data.dtype == np.float64
    assert (len(data), data.size, data.nbytes, data.ndim) == (N, N * P, 8 * N * P, 2)
    assert data.lengths == np.diff(large_data.cuts(N)).tolist()
    assert repr(data) == "Chunks(4 chunks, 400 x 3, float64)"
    message = "copy of all rows: .*GLMClassifierCV or GLMRegressorCV"
    with pytest.raises(TypeError, match=message):
        np.asarray(data)
    with pytest.raises(TypeError, match=message):
        cross_val_score(GLMRegressor(), data, np.zeros(len(data)))


def test_a_single_one_and_frames(tmp_path):
    np.save(tmp_path / "x.npy", X)
    expected = GLMClassifier().fit(X, Y).coef_
    frame = pd.DataFrame(X, columns=list("abc"))
    mixed = frame.assign(d=np.arange(N)).convert_dtypes()
    for given in (
        X,
        tmp_path / "x.npy",
        str(tmp_path / "x.npy"),
        frame,
        [frame[:100], frame[100:]],
    ):
        model = GLMClassifier().fit(Chunks(given), Y)
        np.testing.assert_allclose(model.coef_, expected, rtol=1e-12)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert np.array_equal(model.predict(frame), model.predict(Chunks(frame)))
    with pytest.raises(ValueError, match="column 0 of X is 'c', and GLMClassifier was fitted"):
        model.predict(Chunks(frame[list("cba")]))
    assert Chunks(mixed).dtype == np.float64


@pytest.mark.parametrize("size", [0.25, 0.001, 0.999])
def test_a_split_is_a_part_of_the_rows(tmp_path, size):
    place = np.arange(N)
    for name, form in large_data.forms(tmp_path, X).items():
        data = form if isinstance(form, Chunks) else Chunks(form)
        labels = large_data.pieces(Y) if len(data.parts) > 1 else Y
        split = data.train_test_split(place, labels, test_size=size, random_state=3)
        train, test, rows, test_rows, y, y_test = split
        assert sorted([*rows, *test_rows]) == place.tolist()
        assert len(test) == max(1, min(N - 1, round(size * N)))
        for some, of_these in ((train, rows), (test, test_rows)):
            read = disk.DiskRows(some.parts)
            np.testing.assert_array_equal(read.block(slice(0, len(some))), X[of_these], name)
            chosen = np.arange(0, len(some), 3)
            np.testing.assert_array_equal(read.take(chosen), X[of_these[chosen]], name)
        np.testing.assert_array_equal(y, Y[rows])
        np.testing.assert_array_equal(y_test, Y[test_rows])


def test_the_strips_of_a_split_come_from_all_over_the_data():
    data = Chunks(np.arange(200_000.0)[:, None])
    _, test, _, rows = data.train_test_split(np.arange(200_000), random_state=0)
    assert len(rows) == 50_000
    assert len(test.parts) > 50
    # Of a uniform draw of 100 strips the mean is within four of its standard errors.
    assert abs(rows.mean() - 100_000) < 4 * 200_000 / np.sqrt(12 * 100)
    _, _, _, again = data.train_test_split(np.arange(200_000), random_state=0)
    assert np.array_equal(rows, again)


def test_a_split_of_sparse_chunks_and_a_fit():
    sparse = [scipy.sparse.csr_array(piece) for piece in large_data.pieces(X)]
    train, test, y, y_test = Chunks(sparse).train_test_split(Y, random_state=0)
    model = GLMClassifier().fit(train, y)
    _, _, rows, _ = Chunks(X).train_test_split(np.arange(N), random_state=0)
    np.testing.assert_allclose(model.coef_, GLMClassifier().fit(X[rows], Y[rows]).coef_, 1e-9)
    assert model.score(test, y_test) > 0.6


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [
        ((), {"test_size": 1.0}, "test_size must be a number between 0 and 1, got 1"),
        ((), {"test_size": 0}, "test_size must be"),
        ((Y[:-1],), {}, r"array 0 has the shape \(399,\), and there are 400 rows: give one value"),
    ],
)
def test_splits_that_cannot_be(arrays, settings, words):
    with pytest.raises(ValueError, match=words):
        Chunks(X).train_test_split(*arrays, **settings)


def test_files_are_sent_to_another_process(tmp_path):
    np.save(tmp_path / "x.npy", X)
    data = pickle.loads(pickle.dumps(Chunks([tmp_path / "x.npy"])))
    assert np.array_equal(GLMClassifier().fit(data, Y).coef_, GLMClassifier().fit(X, Y).coef_)


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (None, None),
        (10**9, 10**9),
        ("100 MB", 10**8),
        ("1.5GB", 1_500_000_000),
        ("2 gib", 2 << 30),
        ("64000000", 64_000_000),
    ],
)
def test_limits(given, parsed):
    assert chunks.parsed_limit(given) == parsed


@pytest.mark.parametrize("given", ["much", "2 XB", 1.5, True, "-1 GB"])
def test_no_limits(given):
    with pytest.raises(ValueError, match="a number of bytes or a string such as '2 GB'"):
        Chunks([X], memory_limit=given)


def test_a_limit_that_is_too_low(monkeypatch):
    with pytest.raises(ValueError, match=r"memory_limit is '1 MB'.* need 64 MB: give more"):
        Chunks([X], memory_limit="1 MB")
    monkeypatch.setattr(chunks, "LEAST_MEMORY", 1000)
    with pytest.raises(ValueError, match=r"labels and weights of 400 rows need 0: give at least"):
        GLMClassifier().fit(Chunks([X], memory_limit=1000), Y)


REFUSED = {
    "nothing": ([], "has no chunk, and a fit needs rows"),
    "a number": (3, r"Chunks needs arrays, frames or paths, got a int"),
    "one path": ("gone.npy", r"chunk 0 \(gone.npy\) is not there"),
    "other columns": (
        [pd.DataFrame(X), pd.DataFrame(X, columns=list("abc"))],
        "chunk 1 has the columns .*'c'], and one before it has .*'2']: give all frames the same",
    ),
    "text in a frame": (
        pd.DataFrame({"a": [1.0, 2], "b": ["x", "y"]}),
        r"column 1 \('b'\) of X has 'x' in row 0, which is chunk 0, and features are numbers",
    ),
    "another width": ([X, X[:, :2]], "chunk 1 has 2 columns, and chunk 0 has 3"),
    "another dtype": ([X, X.astype("float32")], "chunk 1 is of float32, and chunk 0 of float64"),
    "no rows": ([X, X[:0]], r"chunk 1 has the shape \(0, 3\), and there is nothing to read"),
    "no columns": ([X[:, :0]], r"chunk 0 has the shape \(400, 0\)"),
    "one dimension": ([X, X[0]], "chunk 1 has 1 dimensions, and features have two"),
    "objects": ([X.astype(object)], "chunk 0 is of object, and features are real numbers"),
    "complex": ([X.astype(complex)], "chunk 0 is of complex128"),
    "strings": ([X.astype(str)], "chunk 0 is of <U"),
    "a list": (
        [X.tolist()],
        "chunk 0 is a list, and Chunks takes NumPy arrays, frames, CSR matrices",
    ),
    "no file": (["gone.npy"], r"chunk 0 \(gone.npy\) is not there"),
    "another file": (["x.csv"], r"chunk 0 \(x.csv\) does not end in .npy"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    given, words = REFUSED[case]
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=words) as error:
        Chunks(given)
    # One sentence.
    assert not re.search(r"\n|[.!?]\s", str(error.value))


def test_a_file_that_is_cut_off(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(
        ValueError, match=r"chunk 0 .*x.npy\) cannot be mapped, because it is cut off"
    ):
        Chunks([path])
    path.write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"or no .npy file"):
        Chunks([path])


def test_a_file_that_is_no_array_on_numpy_2_5(tmp_path, monkeypatch):
    """There `numpy.load` takes it for a pickle, and says that it holds objects."""

    def load(*_, **__):
        raise ValueError("This file contains pickled (object) data.")

    (tmp_path / "x.npy").write_bytes(b"a,b,c")
    monkeypatch.setattr(np, "load", load)
    with pytest.raises(ValueError, match=r"it is cut off, or no .npy file"):
        Chunks([tmp_path / "x.npy"])


def test_a_file_with_objects(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(object), allow_pickle=True)
    with pytest.raises(ValueError, match="it has objects, which only pickle could read"):
        Chunks([tmp_path / "x.npy"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite(tmp_path, value):
    wrong = X.copy()
    wrong[150, 1] = value
    data = large_data.forms(tmp_path, wrong)
    name = "NaN" if np.isnan(value) else "inf"
    for form in ("chunks", "files", "both"):
        # Chunk 2 begins with row 133.
        words = rf"X has {name} in row 150, column 1 \(row 17 of chunk 2\), and GLMClassifier needs"
        with pytest.raises(ValueError, match=words):
            GLMClassifier().fit(data[form], Y)
    with pytest.raises(ValueError, match=rf"X has {name} in row 150, column 1, and"):
        GLMRegressor().fit(data["memmap"], Y)


def test_numbers_whose_squares_overflow():
    far = X.copy()
    far[399, 2] = 1e200
    with pytest.raises(ValueError, match=r"1e\+200 in row 399, column 2 \(row 199 of chunk 3\)"):
        GLMClassifier().fit(Chunks(large_data.pieces(far)), Y)


def test_labels_in_a_list():
    data = Chunks(large_data.pieces(X))
    weight = np.arange(N) % 3.0
    model = GLMClassifier().fit(data, large_data.pieces(Y), large_data.pieces(weight))
    assert np.array_equal(model.coef_, GLMClassifier().fit(X, Y, weight).coef_)
    names = np.where(Y, "yes", "no")
    named = GLMClassifier().fit(data, large_data.pieces(names))
    assert named.score(data, names) == GLMClassifier().fit(X, Y).score(X, Y)


def test_a_chunk_with_one_class():
    order = np.argsort(Y, kind="stable")
    data = Chunks(large_data.pieces(X[order]))
    model = GLMClassifier().fit(data, large_data.pieces(Y[order]))
    assert np.array_equal(model.coef_, GLMClassifier().fit(X[order], Y[order]).coef_)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda y: y[:-1], "y has 3 arrays, and X has 4 chunks"),
        (
            lambda y: [*y[:-1], y[-1][:-1]],
            r"y\[3\] has the shape \(199,\), and chunk 3 has 200 rows",
        ),
        (lambda y: np.concatenate(y)[1:], "y has 399 values, and X has 400 rows.*: give one value"),
    ],
)
def test_labels_that_are_no_chunks(wrong, words):
    with pytest.raises(ValueError, match=words):
        GLMClassifier().fit(Chunks(large_data.pieces(X)), wrong(large_data.pieces(Y)))


def test_another_width_in_predict():
    model = GLMClassifier().fit(Chunks([X]), Y)
    with pytest.raises(ValueError, match="X has 2 features, but GLMClassifier is expecting 3"):
        model.predict(Chunks([X[:, :2].copy()]))
    # And an array after chunks.
    assert np.array_equal(model.predict(X), model.predict(Chunks([X])))


CHANGES = {
    "shrinks": (
        lambda path: os.truncate(path, 1000),
        r"x.npy has 1,000 bytes, and had 9,728 since",
    ),
    "grows": (lambda path: os.truncate(path, 99_999), r"x.npy has 99,999 bytes, and had 9,728"),
    "is written to": (
        lambda path: os.utime(path, (1, 1)),
        "was written to or replaced since it was",
    ),
    "is gone": (os.remove, "x.npy is gone, and rows are read from it several times"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes(tmp_path, case):
    change, words = CHANGES[case]
    np.save(tmp_path / "x.npy", X)
    data = Chunks([tmp_path / "x.npy"])
    change(tmp_path / "x.npy")
    with pytest.raises(OSError, match=words):
        GLMClassifier().fit(data, Y)


def test_a_file_that_shrinks_during_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    np.save(tmp_path / "x.npy", X)
    data = Chunks([tmp_path / "x.npy"])
    read = parts.FilePart.read
    calls = []

    def shrinking(self, *rows):
        calls.append(rows)
        if len(calls) == 1:
            os.truncate(tmp_path / "x.npy", 200)
        return read(self, *rows)

    monkeypatch.setattr(parts.FilePart, "read", shrinking)
    with pytest.raises(OSError, match=r"has 200 bytes, and had 9,728 since it was opened: do not"):
        GLMClassifier().fit(data, Y)


def test_a_mapping_whose_file_is_gone_is_read_through_it(tmp_path):
    mapped = large_data.mapped(tmp_path / "x.npy", X)
    os.remove(tmp_path / "x.npy")
    assert large_data.read_as(mapped) == {parts.MappedPart}
    model = GLMClassifier().fit(mapped, Y)
    assert np.array_equal(model.coef_, GLMClassifier().fit(X, Y).coef_)


def test_a_mapping_whose_name_has_another_file(tmp_path):
    mapped = large_data.mapped(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", X + 1)
    os.replace(tmp_path / "y.npy", tmp_path / "x.npy")
    assert large_data.read_as(mapped) == {parts.MappedPart}
    assert np.array_equal(GLMClassifier().fit(mapped, Y).coef_, GLMClassifier().fit(X, Y).coef_)


VIEWS = {
    "all": (lambda m: m, parts.FilePart),
    "rows": (lambda m: m[10:50], parts.FilePart),
    "columns": (lambda m: m[:, 1:3], parts.FilePart),
    "every second": (lambda m: m[::2], parts.FilePart),
    "one row": (lambda m: m[3:4], parts.FilePart),
    "one column": (lambda m: m[:, 2:], parts.FilePart),
    "turned": (lambda m: m[3:90].T, parts.FilePart),
    "reversed": (lambda m: m[::-1], parts.MappedPart),
    "columns apart": (lambda m: m[:, ::2], parts.MappedPart),
    "rows apart": (lambda m: m[::30], parts.MappedPart),
    "as an array": (np.asarray, parts.FilePart),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_views_of_a_memory_map(tmp_path, name, order, mode):
    view, kind = VIEWS[name]
    np.save(tmp_path / "x.npy", np.asarray(X, order=order))
    whole = np.load(tmp_path / "x.npy", mmap_mode=mode)
    given = view(whole)
    wanted = np.array(given)
    part = parts.part_of(given)
    if mode == "c":
        assert isinstance(part, parts.ArrayPart)
    elif order == "C":
        assert isinstance(part, kind)
    if isinstance(part, parts.FilePart):
        del whole, given
        gc.collect()
    n = len(wanted)
    assert part.shape == wanted.shape
    for start, stop in [(0, n), (0, 1), (n // 3, n), (n - 1, n)]:
        assert np.array_equal(part.read(start, stop), wanted[start:stop])
    rows = np.sort(np.random.default_rng(1).integers(0, n, 20))
    assert np.array_equal(part.take(rows), wanted[rows])


def test_changes_of_a_private_copy_are_seen(tmp_path):
    mapped = large_data.mapped(tmp_path / "x.npy", np.zeros_like(X))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped[:] = X
    assert np.array_equal(GLMClassifier().fit(mapped, Y).coef_, GLMClassifier().fit(X, Y).coef_)


def test_pages_of_a_mapping_are_given_back(tmp_path, monkeypatch):
    if not hasattr(mmap.mmap, "madvise"):
        pytest.skip("no madvise here")
    mapped = large_data.mapped(tmp_path / "x.npy", RNG.normal(size=(20_000, P)))[::-1]
    part = parts.part_of(mapped)
    assert np.array_equal(part.read(0, 20_000), mapped)


def test_rows_that_are_far_apart_are_read_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_GAP", 100)
    part = parts.part_of(large_data.mapped(tmp_path / "x.npy", X))
    rows = np.array([0, 1, 7, 7, 8, 100, 399])
    assert np.array_equal(part.take(rows), X[rows])


# --- CSR chunks -------------------------------------------------------------------------------


def sparse_pieces():
    rows = np.where(np.random.default_rng(3).random((N, 30)) < 0.2, X[:, :1], 0)
    matrix = scipy.sparse.csr_matrix(rows)
    at = large_data.cuts(N)
    return matrix, [matrix[start:stop] for start, stop in pairwise(at)]


def test_sparse_chunks():
    matrix, pieces = sparse_pieces()
    data = Chunks(pieces)
    assert data.is_sparse
    assert data.shape == matrix.shape
    model = GLMClassifier().fit(data, large_data.pieces(Y))
    peer = GLMClassifier().fit(matrix, Y)
    assert np.array_equal(model.coef_, peer.coef_)
    assert np.array_equal(model.predict(data), peer.predict(matrix))


def test_sparse_chunks_that_are_refused():
    matrix, pieces = sparse_pieces()
    with pytest.raises(TypeError, match="chunk 1 and chunk 0 are of two kinds"):
        Chunks([matrix, matrix.toarray()])
    with pytest.raises(TypeError, match=r"chunk 0 is a csc_matrix, .* convert it with tocsr\(\)"):
        Chunks([matrix.tocsc()])
    with pytest.raises(ValueError, match="chunk 1 has 2 columns, and chunk 0 has 30"):
        Chunks([matrix, matrix[:, :2]])
    data = Chunks(pieces, memory_limit="64 MB")
    data.memory_limit = 100
    with pytest.raises(ValueError, match="sparse chunks are joined to one matrix"):
        GLMClassifier().fit(data, Y)


# --- The thread ahead -------------------------------------------------------------------------


def others():
    return [thread for thread in threading.enumerate() if "provenglm" in thread.name]


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 40])
def test_ctrl_c_leaves_no_thread(tmp_path, monkeypatch, count):
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    rows = np.random.default_rng(0).normal(size=(60_000, 20))
    y = rows[:, 0] > np.random.default_rng(1).normal(size=60_000)
    np.save(tmp_path / "x.npy", rows)
    data = Chunks([tmp_path / "x.npy"])
    calls = []
    read = parts.FilePart.read

    def interrupting(self, *given):
        calls.append(given)
        if len(calls) == count:
            raise KeyboardInterrupt
        return read(self, *given)

    monkeypatch.setattr(parts.FilePart, "read", interrupting)
    model = GLMClassifier(tol=1e-12, random_state=0)
    try:
        with pytest.warns(match="interrupted"):
            model.fit(data, y)
    except KeyboardInterrupt:
        # Before the first snapshot there is nothing to keep.
        assert not hasattr(model, "coef_")
    assert len(calls) >= count
    assert not others()


class Halves:
    """Rows of float16 times a scale: a chunk of the user's own."""

    is_whole = False

    def __init__(self, rows):
        self.scale = np.abs(rows).max()
        self.numbers = (rows / self.scale).astype(np.float16)
        self.shape, self.dtype = rows.shape, np.dtype(np.float32)

    def read(self, start, stop, ahead=False):
        return self.numbers[start:stop].astype(np.float32) * np.float32(self.scale)

    def take(self, rows):
        return self.numbers[rows].astype(np.float32) * np.float32(self.scale)


def test_a_chunk_of_the_users_own():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(900, 4))
    halves = Chunks([Halves(rows[:500]), Halves(rows[500:])])
    X = np.concatenate([part.read(0, len(part.numbers)) for part in halves.parts])
    y = X[:, 0] + rng.normal(size=900)
    for model, target in (
        (GLMClassifier(tol=1e-10), y > 0),
        (GLMRegressor(tol=1e-10, alpha=0.1), y),
        (GLMRegressor(tol=1e-10, alpha=0.1, l1_ratio=1.0), y),
    ):
        wanted = clone(model).fit(X, target)
        np.testing.assert_allclose(model.fit(halves, target).coef_, wanted.coef_, atol=1e-5)
        np.testing.assert_allclose(model.predict(halves), model.predict(X), rtol=1e-5)
    train, test, y_train, y_test = halves.train_test_split(y, random_state=0)
    assert GLMRegressor(alpha=0.1).fit(train, y_train).score(test, y_test) > 0.3
    assert Chunks(Halves(rows)).shape == (900, 4)
