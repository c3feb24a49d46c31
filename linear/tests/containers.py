"""Everything that features may come in: the same numbers in each kind of container."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from provenglm import Chunks

NAMES = "abcdefgh"
HALF = 15
"""Rows of the first chunk."""


def polars():
    return pytest.importorskip("polars")


def arrow():
    return pytest.importorskip("pyarrow")


def frame(rows):
    return pd.DataFrame(rows, columns=list(NAMES[: rows.shape[1]]))


def columns_of(rows):
    return {name: np.ascontiguousarray(rows[:, k]) for k, name in enumerate(NAMES[: rows.shape[1]])}


class Containers:
    """Makes containers of rows, with files in a folder of the test's own."""

    def __init__(self, folder):
        self._folder = folder
        self._numbers = itertools.count()

    def _saved(self, rows):
        path = self._folder / f"{next(self._numbers)}.npy"
        np.save(path, rows)
        return path

    def memory_map(self, rows):
        return np.load(self._saved(rows), mmap_mode="r")

    def parquet(self, rows):
        pytest.importorskip("pyarrow.parquet")
        path = self._folder / f"{next(self._numbers)}.parquet"
        frame(rows).to_parquet(path, row_group_size=HALF)
        return Chunks.from_parquet(path)

    def made(self, kind, rows):
        """Return the rows in a container of a kind of `KINDS`."""
        if kind.startswith("chunks of "):
            kind = kind.removeprefix("chunks of ")
            return Chunks([self.made(kind, rows[:HALF]), self.made(kind, rows[HALF:])])
        if kind in SPARSE:
            return getattr(scipy.sparse, kind)(rows)
        return _MAKERS[kind](self, rows)


_MAKERS = {
    "list": lambda _, rows: rows.tolist(),
    "tuple": lambda _, rows: tuple(map(tuple, rows.tolist())),
    "list of arrays": lambda _, rows: list(rows),
    "array": lambda _, rows: np.array(rows),
    "array by columns": lambda _, rows: np.asfortranarray(rows),
    "array of objects": lambda _, rows: rows.astype(object),
    "array with an empty mask": lambda _, rows: np.ma.array(rows),
    "memory map": Containers.memory_map,
    "npy": lambda self, rows: self._saved(rows),
    "pandas": lambda _, rows: frame(rows),
    "pandas, nullable": lambda _, rows: frame(rows).astype("Float64"),
    "pandas, objects": lambda _, rows: frame(rows).astype(object),
    "pandas, categories": lambda _, rows: frame(rows).astype({"b": "category"}),
    "pandas, sparse": lambda _, rows: frame(rows).astype(pd.SparseDtype("float64", 0.0)),
    "pandas, a sparse column": lambda _, rows: frame(rows).astype(
        {"a": pd.SparseDtype("float64", 0.0)}
    ),
    "pandas, Arrow": lambda _, rows: arrow() and frame(rows).astype("double[pyarrow]"),
    "polars": lambda _, rows: polars().DataFrame(columns_of(rows)),
    "Arrow table": lambda _, rows: arrow().table(columns_of(rows)),
    "Arrow batch": lambda _, rows: arrow().record_batch(
        {name: arrow().array(column) for name, column in columns_of(rows).items()}
    ),
    "parquet": Containers.parquet,
}

SPARSE = [
    f"{form}_{kind}"
    for form in ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
    for kind in ("matrix", "array")
]

CHUNKED = ["array", "memory map", "npy", "csr_array", "pandas", "pandas, nullable", "polars"]
CHUNKED += ["Arrow table", "Arrow batch"]

KINDS = [kind for kind in _MAKERS if kind != "npy"] + SPARSE
KINDS += [f"chunks of {kind}" for kind in CHUNKED]

NAMED = [kind for kind in KINDS if kind.startswith(("pandas", "polars", "Arrow", "parquet"))]
NAMED += [f"chunks of {kind}" for kind in CHUNKED if kind.startswith(("pandas", "polars", "Arrow"))]


# --- What there is one of for each row ----------------------------------------------------------


def objects(values):
    """Return an array of objects, whatever NumPy would make of them."""
    return np.array([*values, None], dtype=object)[:-1]


COLUMNS = {
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(values.tolist()),
    "array": lambda values: values,
    "array of objects": lambda values: objects(values.tolist()),
    "array of NumPy's objects": lambda values: objects(list(values)),
    "array with an empty mask": np.ma.array,
    "pandas": pd.Series,
    "pandas, objects": lambda values: pd.Series(objects(values.tolist()), dtype=object),
    "pandas, nullable": lambda values: pd.Series(values).convert_dtypes(convert_floating=False),
    "pandas, categories": lambda values: pd.Series(values, dtype="category"),
    "pandas, index": pd.Index,
    "pandas, Arrow": lambda values: pd.Series(
        values.tolist(), dtype=pd.ArrowDtype(arrow().array(values.tolist()).type)
    ),
    "polars": lambda values: polars().Series(values.tolist()),
    "Arrow": lambda values: arrow().array(values.tolist()),
    "Arrow, chunked": lambda values: arrow().chunked_array(
        [values[:HALF].tolist(), values[HALF:].tolist()]
    ),
    "Arrow, dictionary": lambda values: arrow().array(values.tolist()).dictionary_encode(),
}
