"""Chunks: data in several arrays, `.npy` files or row groups of Parquet files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from copy import copy
from glob import has_magic
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
from numpy.random import RandomState
from scipy.sparse import csr_array, issparse, vstack

from provenglm.arguments import NO_NUMBERS
from provenglm.files import DAMAGED, check_regular
from provenglm.rows.non_numeric import collected, first_column, with_nan, without_mask
from provenglm.rows.parts import CsrPart, Part, part_of
from provenglm.types import NumPyArray

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)

LEAST_MEMORY = 64_000_000
"""The smallest memory limit in bytes, which blocks and a sample need."""

DEFAULT_MEMORY = 1_000_000_000

_PATHS = (str, os.PathLike)


class Chunks:
    """The rows of several chunks, one after the other, to be used as X.

    Nothing is read before `fit`. The estimators of `provenglm` read the rows in blocks. Only up to
    eight million numbers are read at once, if `memory_limit` has room for a fit on them in memory.
    The optimum is that of the same rows in one array.

    Parameters
    ----------
    parts : array of shape (n, p), frame, Arrow table or path of a ``.npy`` file; or several of them
        Chunks of the same width p and the same dtype, which may be numbers or booleans. Arrays may
        be memory-mapped. Files are read without pickle, and must not change until the fit ends.
        Either all chunks are CSR matrices, or none; CSR matrices are joined to one matrix in
        memory. Frames are converted to arrays, and their columns' names are kept. A chunk may also
        be an object of your own: see Notes.
    memory_limit : int or str, optional
        The resident memory that `fit` may use in addition to its arguments and to the memory that
        the process has before: a number of bytes, or a text such as '500 MB', '2 GB' or '1 GiB'.
        It includes the arrays with numbers for each row: 1 to 8 bytes per label or target, 16 for
        weights, 8 for the offset of each score, 8 for each fold of a cross-validation, and 100 for
        Huber's loss with its scale. The default is 1 GB, or twice the size of these arrays if that
        is more.

    Attributes
    ----------
    shape : tuple of int
        (n, p).
    dtype : numpy.dtype
    memory_limit : int or None

    Raises
    ------
    TypeError, ValueError
        If there is no chunk, if a chunk is empty, has another width or dtype than the first, or
        does not contain numbers, if a file is truncated, or if the limit is invalid.

    Notes
    -----
    Rows that are stored in another way, or computed, can be given as an object with these
    attributes and methods:

    - ``shape`` and ``dtype``;
    - ``is_whole``: whether reading a few rows takes as long as reading all of them;
    - ``read(start, stop, ahead)``, which returns consecutive rows;
    - ``take(rows)``, which returns rows by their ascending indices, as a new array.

    Both methods are called from several threads.

    Examples
    --------
    >>> import numpy as np
    >>> from provenglm import Chunks, GLMClassifier
    >>> rng = np.random.default_rng(0)
    >>> parts = [rng.normal(size=(500, 3)) for _ in range(4)]
    >>> labels = [part[:, 0] + rng.normal(size=500) > 0 for part in parts]
    >>> GLMClassifier().fit(Chunks(parts), labels).gap_ < 1e-6
    True
    """

    def __init__(
        self,
        parts: Any,
        *,
        memory_limit: int | str | None = None,
    ) -> None:
        parts = collected("parts", parts)
        is_one = isinstance(parts, (*_PATHS, np.ndarray, Part))
        is_one = is_one or issparse(parts) or _is_frame(parts)
        if not is_one and not isinstance(parts, Iterable):
            raise TypeError(f"Chunks needs arrays, frames or paths, got {_short(parts)}")
        given = [parts] if is_one else list(parts)
        columns = _columns(given)
        self._set([_checked_part(k, one) for k, one in enumerate(given)], columns, memory_limit)

    @classmethod
    def from_parquet(
        cls,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        memory_limit: int | str | None = None,
    ) -> Chunks:
        """Return the row groups of Parquet files as chunks.

        This needs pyarrow: ``pip install provenglm[parquet]``. A row group is always decoded as a
        whole, and up to four of them are in memory at the same time. Therefore write files with
        row groups of at most about 100 MB.

        Parameters
        ----------
        paths : path, or sequence of paths
            The files, in this order. A folder stands for its ``*.parquet`` files, sorted by name.
        columns : sequence of str, optional
            The names of the columns to use, in this order. By default all columns of the first file
            are used, except the index of a frame. **This includes the label**, if it is in the
            file. Columns must contain numbers or booleans; X has their common dtype. Null becomes
            NaN in a column of floats, and is an error in any other column.
        memory_limit : int or str, optional
            As in `Chunks`.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        ValueError
            If a column is missing or does not contain numbers, if a folder contains folders, or if
            the row groups are too large for the limit.
        """
        limit = parsed_limit(memory_limit)
        # pyarrow is imported by this module alone, and only now.
        module = import_module("provenglm.rows.parquet")
        given = [paths] if isinstance(paths, _PATHS) else list(paths)
        parts, names = module.groups([os.fspath(path) for path in given], columns, limit)
        chunks = cls.__new__(cls)
        chunks._set(parts, names, limit)
        return chunks

    def train_test_split(
        self,
        *arrays: object,
        test_size: float = 0.25,
        random_state: int | RandomState | None = None,
    ) -> list[Any]:
        """Split the rows into a training set and a test set, without reading them.

        In contrast to :func:`sklearn.model_selection.train_test_split`, strips of consecutive rows
        are drawn, each with about a 400th of all rows. The test rows thus come from all parts of
        the data, and they are read fast. The order of the rows does not change.

        Parameters
        ----------
        *arrays : array-like of shape (n,), or list of arrays, one for each chunk
            Arrays to split in the same way, such as labels and weights.
        test_size : float, default 0.25
            The share of rows in the test set, between 0 and 1.
        random_state : int, RandomState or None
            The seed for drawing the strips.

        Returns
        -------
        list
            The Chunks of the training set and of the test set, followed by the two parts of each of
            `arrays`.

        Raises
        ------
        ValueError
            If `test_size` is not between 0 and 1, or if the length of an array is not the number of
            rows.

        Examples
        --------
        >>> import numpy as np
        >>> from provenglm import Chunks
        >>> X = np.arange(800.0).reshape(400, 2)
        >>> train, test, y, y_test = Chunks(X).train_test_split(X[:, 0] > 400, random_state=0)
        >>> train.shape, test.shape, y.shape, y_test.shape
        ((300, 2), (100, 2), (300,), (100,))
        """
        module = import_module("provenglm.rows.hold_out")
        split: list[Any] = module.split(self, arrays, test_size, random_state)
        return split

    def made_of(self, parts: list[Part]) -> Chunks:
        """Return Chunks of other parts, with the same column names and limit."""
        chunks = Chunks.__new__(Chunks)
        chunks._set(parts, self.columns, self.memory_limit)
        return chunks

    def _set(
        self, parts: list[Part], columns: list[str] | None, memory_limit: int | str | None
    ) -> None:
        self.memory_limit = parsed_limit(memory_limit)
        if not parts:
            raise ValueError("Chunks has no chunk, and a fit needs rows: give at least one")
        first = parts[0]
        for k, part in enumerate(parts):
            if part.shape[1] != first.shape[1]:
                raise ValueError(
                    f"chunk {k} has {part.shape[1]} columns, and chunk 0 has {first.shape[1]}: "
                    "give all of them the same features, in the same order"
                )
            if isinstance(part, CsrPart) != isinstance(first, CsrPart):
                raise TypeError(
                    f"chunk {k} and chunk 0 are of two kinds, one a sparse matrix and one an "
                    "array: give all of them as CSR matrices, or none"
                )
            if part.dtype != first.dtype:
                raise ValueError(
                    f"chunk {k} is of {part.dtype}, and chunk 0 of {first.dtype}: convert the one "
                    "or the other, for instance with astype"
                )
        self.parts = parts
        self.columns = columns
        self.dtype: np.dtype[Any] = first.dtype
        self.shape = (sum(part.shape[0] for part in parts), first.shape[1])
        self.ndim = 2

    @property
    def is_sparse(self) -> bool:
        """Whether the chunks are CSR matrices."""
        return isinstance(self.parts[0], CsrPart)

    def stacked(self) -> csr_array:
        """Return a copy of all CSR chunks as one CSR matrix.

        Raises
        ------
        ValueError
            If it does not fit into `memory_limit`.
        """
        matrices = [part.matrix for part in self.parts if isinstance(part, CsrPart)]
        count = sum(m.data.nbytes + m.indices.nbytes + m.indptr.nbytes for m in matrices)
        if self.memory_limit is not None and count > self.memory_limit:
            raise ValueError(
                f"memory_limit is {self.memory_limit / 1e6:,.0f} MB, and sparse chunks are joined "
                f"to one matrix of {count / 1e6:,.0f}: give more"
            )
        return csr_array(vstack(matrices, format="csr"))

    def limited_to(self, memory_limit: int) -> Chunks:
        """Return the same chunks with another memory limit."""
        chunks = copy(self)
        chunks.memory_limit = memory_limit
        return chunks

    @property
    def size(self) -> int:
        """The number of numbers, n p."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """The size of all rows in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def lengths(self) -> list[int]:
        """The number of rows of each chunk."""
        return [part.shape[0] for part in self.parts]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        n, p = self.shape
        names = "" if self.columns is None else f", columns {_shortened(self.columns)}"
        return f"Chunks({len(self.parts)} chunks, {n:,} x {p:,}, {self.dtype}{names})"

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            f"{self!r} is not turned into one array, which would be a copy of all rows: give it to "
            "an estimator of provenglm, for a cross-validation to GLMClassifierCV or "
            "GLMRegressorCV; split it by its train_test_split, or give its chunks to "
            "numpy.concatenate"
        )


def parsed_limit(given: int | str | None) -> int | None:
    """Return a memory limit in bytes; raise an error if it is below `LEAST_MEMORY`."""
    if given is None:
        return None
    found = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if isinstance(given, (int, np.integer)) and not isinstance(given, NO_NUMBERS):
        count = int(given)
    elif found:
        number, unit, binary = found.groups()
        count = int(float(number) * (_BINARY if binary else _UNITS)[unit.lower()])
    else:
        raise ValueError(
            f"memory_limit must be a number of bytes or a string such as '2 GB', got {given!r}"
        )
    if count < LEAST_MEMORY:
        raise ValueError(
            f"memory_limit is {given!r}, and blocks of rows and a sample of them need "
            f"{LEAST_MEMORY // 10**6} MB: give more"
        )
    return count


def _checked_part(k: int, given: Any) -> Part:
    """Return a chunk that the user gave as a part, after checking it."""
    name = f"chunk {k}"
    if isinstance(given, _PATHS):
        name = f"chunk {k} ({os.fspath(given)})"
        given = _mapped(name, os.fspath(given))
    given = without_mask(name, collected(name, given))
    if _is_frame(given):
        given = _numbers(name, given)
    is_csr = issparse(given) and given.format == "csr"
    if not isinstance(given, (np.ndarray, Part)) and not is_csr:
        way = "tocsr()" if issparse(given) else "numpy.asarray, or save it with numpy.save"
        raise TypeError(
            f"{name} is {_short(given)}, and Chunks takes NumPy arrays, frames, CSR matrices and "
            f"paths of .npy files: convert it with {way}"
        )
    if len(given.shape) != 2:
        raise ValueError(
            f"{name} has {len(given.shape)} dimensions, and features have two, (rows, columns): "
            "reshape it"
        )
    if given.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} is of {given.dtype}, and features are real numbers or booleans: convert it"
        )
    if 0 in given.shape:
        raise ValueError(
            f"{name} has the shape {given.shape}, and there is nothing to read: leave it out"
        )
    if isinstance(given, Part):
        return given
    return CsrPart(given) if is_csr else part_of(given)


def _is_frame(given: object) -> bool:
    """Return whether an object is a data frame or an Arrow table."""
    return _names_of(given) is not None and hasattr(given, "__array__")


def _names_of(given: Any) -> list[str] | None:
    names = getattr(given, "column_names", getattr(given, "columns", None))
    return None if names is None else list(map(str, names))


def _columns(given: Sequence[Any]) -> list[str] | None:
    """Return the column names of the frames among the chunks, or None if there is no frame."""
    names: list[str] | None = None
    for k, one in enumerate(given):
        if not _is_frame(one):
            continue
        own = _names_of(one)
        if names is not None and own != names:
            raise ValueError(
                f"chunk {k} has the columns {own}, and one before it has {names}: give all frames "
                "the same columns, in the same order"
            )
        names = own
    return names


def _numbers(name: str, frame: Any) -> NumPyArray:
    """Return the numbers of a frame as an array."""
    found = first_column(frame, dates_alone=True)
    if found is None:
        numbers = np.asarray(frame)
        if numbers.dtype.kind != "O":
            return numbers
        found = first_column(frame)
        if found is None:
            return with_nan(numbers)
    raise ValueError(f"{found[0]}, which is {name}, and features are numbers: {found[1]}")


def _mapped(name: str, path: str) -> NumPyArray:
    """Return the memory-mapped array of a file, without reading it."""
    if not path.endswith(".npy"):
        raise ValueError(
            f"{name} does not end in .npy: save arrays with numpy.save; for Parquet files there is "
            "Chunks.from_parquet"
        )
    is_array = False
    try:
        check_regular(path)
        with open(path, "rb") as file:
            is_array = file.read(6) == np.lib.format.MAGIC_PREFIX
        array: NumPyArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        way = "give the path of a file"
        if has_magic(path):
            way = f"for a pattern give sorted(glob.glob({path!r}))"
        raise FileNotFoundError(f"{name} is not there: {way}") from None
    except DAMAGED as error:
        if isinstance(error, OSError):
            raise
        what = "it is cut off, or no .npy file"
        # If a file is no array, NumPy 2.5 says that it may be a pickle, which contains objects.
        if is_array and "object" in str(error).lower():
            what = "it has objects, which only pickle could read"
        raise ValueError(
            f"{name} cannot be mapped, because {what} ({error}): save it again with numpy.save, as "
            "an array of numbers"
        ) from error
    return array


def _shortened(names: list[str]) -> str:
    """Return the names as text; only the first and last if there are many: a label may be there."""
    shown = list(map(repr, names))
    return ", ".join(shown if len(shown) <= 12 else [*shown[:6], "...", *shown[-6:]])


def _short(given: object) -> str:
    """Describe an object in a few words."""
    if isinstance(given, str):
        return repr(given)
    return f"a {type(given).__name__}"
