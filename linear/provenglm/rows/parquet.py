"""Row groups of Parquet files as parts. Only this module imports pyarrow, when it is needed."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from glob import has_magic
from typing import Any

import numpy as np

from provenglm.files import check_regular
from provenglm.rows.chunks import DEFAULT_MEMORY
from provenglm.rows.non_numeric import DATED
from provenglm.rows.parts import Part, Stamp, changed
from provenglm.types import NumPyArray

try:
    import pyarrow.parquet as pq
    import pyarrow.types as types
except ImportError as missing:
    raise ImportError(
        f"Chunks.from_parquet needs pyarrow, which cannot be imported ({missing}): "
        "pip install 'provenglm[parquet]'"
    ) from missing

_INDEX = re.compile(r"__(index_level_\d+|null_dask_index)__")
"""The name that pandas and Dask give an index without a name. Other programs copy it as a
column."""

_KEPT = 3
"""The number of decoded row groups in memory: the current block's, the next block's, and the one
that is read ahead."""


class Decoded:
    """The row groups in memory, and a thread that decodes the next one.

    The thread starts for a group and ends with it, so that no thread is left running.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[NumPyArray]] = OrderedDict()
        self.groups: list[Group] = []

    def get(self, k: int) -> NumPyArray:
        """Return the rows of a group, and start to decode the next one."""
        with self._lock:
            mine = k not in self._kept
            future = self._future(k)
            ahead = k + 1 if k + 1 < len(self.groups) and k + 1 not in self._kept else None
            following = None if ahead is None else self._future(ahead)
        if following is not None and ahead is not None:
            name = "provenglm, ahead"
            threading.Thread(target=self._decode, args=(ahead, following), name=name).start()
        if mine:
            self._decode(k, future)
        return future.result()

    def _future(self, k: int) -> Future[NumPyArray]:
        future = self._kept.setdefault(k, Future())
        self._kept.move_to_end(k)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return future

    def _decode(self, k: int, future: Future[NumPyArray]) -> None:
        try:
            future.set_result(self.groups[k].decode())
        except BaseException as error:
            # The waiting thread raises it. It is not kept, or it would be raised again after a
            # repair.
            with self._lock:
                if self._kept.get(k) is future:
                    del self._kept[k]
            future.set_exception(error)

    def __getstate__(self) -> dict[str, Any]:
        return {"groups": self.groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.groups = state["groups"]


class Group:
    """One row group of a file.

    Parameters
    ----------
    path : str
    k : int
        The index of the row group in the file.
    count : int
        The number of rows.
    columns : list of str
    dtype : numpy.dtype
        The common dtype of the columns.
    stamp : Stamp
        The stamp of the file.
    decoded : Decoded
        The decoded groups, shared by all groups of a data set.
    """

    is_whole = True

    def __init__(
        self,
        path: str,
        k: int,
        count: int,
        columns: list[str],
        dtype: np.dtype[Any],
        stamp: Stamp,
        decoded: Decoded,
    ) -> None:
        self.path, self._k, self._columns = path, k, columns
        self.shape: tuple[int, ...] = (count, len(columns))
        self.dtype = dtype
        self._stamp = stamp
        self._decoded = decoded
        self._place = len(decoded.groups)
        decoded.groups.append(self)

    def read(self, start: int, stop: int, ahead: bool = False) -> NumPyArray:
        """Return some rows. They must not be modified. The next group is always decoded ahead."""
        return self._decoded.get(self._place)[start:stop]

    def take(self, rows: NumPyArray) -> NumPyArray:
        """Return rows by their indices."""
        return np.asarray(self._decoded.get(self._place)[rows])

    def decode(self) -> NumPyArray:
        """Return all rows, read from the file."""
        rows = np.empty(self.shape, self.dtype)
        try:
            with pq.ParquetFile(self.path) as file:
                table = file.read_row_group(self._k, columns=self._columns)
        except Exception as error:
            raise changed(self.path, self._stamp, str(error)) from error
        if Stamp.of(self.path) != self._stamp or table.num_rows != len(rows):
            raise changed(self.path, self._stamp)
        for j, name in enumerate(self._columns):
            column = table.column(name)
            if column.null_count and self.dtype.kind != "f":
                raise ValueError(
                    f"column {name!r} has null in row group {self._k} of {self.path}, and "
                    f"{self.dtype} has no such number: fill it in, or write the column as floats, "
                    "where null is NaN"
                )
            rows[:, j] = column.to_numpy()
        return rows


def groups(
    paths: list[str], columns: Sequence[str] | None, limit: int | None
) -> tuple[list[Part], list[str]]:
    """Return the row groups of files, and the names of their columns."""
    decoded = Decoded()
    parts: list[Part] = []
    names = None if columns is None else _checked_names(columns)
    dtype: np.dtype[Any] | None = None
    for path in [file for given in paths for file in _files_of(given)]:
        try:
            check_regular(path)
            stamp = Stamp.of(path)
            with pq.ParquetFile(path) as file:
                schema, metadata = file.schema_arrow, file.metadata
        except FileNotFoundError:
            way = "give the path of a file or a folder"
            if has_magic(path):
                way = f"for a pattern give sorted(glob.glob({path!r}))"
            raise FileNotFoundError(f"{path} is not there: {way}") from None
        except Exception as error:
            raise ValueError(
                f"{path} cannot be read as a Parquet file ({error}): write it again"
            ) from error
        names = _features_of(path, schema) if names is None else names
        own = _common_dtype(path, schema, names)
        dtype = dtype or own
        if own != dtype:
            raise ValueError(
                f"the columns of {path} are of {own}, and those of {paths[0]} of {dtype}: write "
                "them alike"
            )
        for k in range(metadata.num_row_groups):
            count = metadata.row_group(k).num_rows
            _check_size(path, k, count * len(names) * dtype.itemsize, limit)
            if count:
                parts.append(Group(path, k, count, names, dtype, stamp, decoded))
    return parts, names or []


def _files_of(path: str) -> list[str]:
    """Return a file, or the Parquet files of a folder sorted by name.

    Spark, Dask and pandas write such folders, and pandas reads them in this order.
    """
    if not os.path.isdir(path):
        return [path]
    entries = sorted(os.listdir(path))
    for log, kind in (("_delta_log", "Delta"), (".hoodie", "Hudi")):
        if log in entries:
            raise ValueError(
                f"{path} is a {kind} table, whose log says which of its files count: ask its own "
                "library for these files, and give them as a list"
            )
    # Spark's _SUCCESS, Dask's _metadata and hidden files contain no rows.
    paths = [os.path.join(path, name) for name in entries if name[0] not in "._"]
    folder = next(filter(os.path.isdir, paths), None)
    if folder is not None:
        raise ValueError(
            f"{path} has the folder {os.path.basename(folder)!r} in it, and a column that stands "
            "in the names of folders, such as year=2020, is in none of the files: write it into "
            "them, or give the files without it, as a list"
        )
    files = [file for file in paths if file.endswith(".parquet")]
    if not files:
        raise ValueError(
            f"{path} is a folder without a file *.parquet: give the files that it has, as a list"
        )
    return files


def _features_of(path: str, schema: Any) -> list[str]:
    """Return the names of the columns that pandas shows, without those of a frame's index.

    Raises
    ------
    ValueError
        If there is no such column, or if a column that was an index is a column now.
    """
    metadata = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    # The index of a range of numbers is not a column; it is stored there as a dict.
    index = {name for name in metadata.get("index_columns", ()) if isinstance(name, str)}
    names = [name for name in schema.names if name not in index]
    lost = next((name for name in names if _INDEX.fullmatch(name)), None)
    if lost is not None:
        raise ValueError(
            f"{path} has the column {lost!r}, which was the index of a frame and is no feature: "
            "name the features in columns"
        )
    if not names:
        raise ValueError(f"{path} has no columns beside an index: name the features in columns")
    return names


def _checked_names(columns: Sequence[str]) -> list[str]:
    names = [] if isinstance(columns, str) else list(columns)
    if not names:
        raise ValueError(
            f"columns is {columns!r}, and features need a list of at least one name: such as "
            "['age'], or None for all columns"
        )
    return names


def _common_dtype(path: str, schema: Any, names: list[str]) -> np.dtype[Any]:
    found = []
    for name in names:
        if schema.get_field_index(name) < 0:
            raise ValueError(
                f"{path} has no column {name!r}, or several of this name: it has "
                f"{', '.join(map(repr, schema.names[:10]))}"
            )
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            way = DATED if types.is_temporal(kind) else "leave it out of columns, or encode it"
            raise ValueError(
                f"column {name!r} of {path} is of {kind}, and features are numbers: {way}"
            )
        found.append(kind.to_pandas_dtype())
    return np.result_type(*found)


def _check_size(path: str, k: int, size: int, limit: int | None) -> None:
    largest = (limit or DEFAULT_MEMORY) // (2 * _KEPT)
    if limit is not None and size > largest:
        raise ValueError(
            f"row group {k} of {path} has {size / 1e6:,.0f} MB, and with memory_limit={limit} it "
            f"may have {largest / 1e6:,.0f}: write smaller ones (row_group_size of "
            "pyarrow.parquet.write_table), or give more"
        )
