"""A model directory on disk: written whole or not at all, checked before it is used.

``model-symbol.json`` is the graph in MXNet's JSON; ``model-0000.params`` are the arrays in MXNet's
own binary format, which holds numbers, shapes and names and no code; the card, ``model.json``,
describes inputs and outputs, and holds the size and the SHA-256 of the other files and its own
SHA-256. ``model.onnx``, which not every model has, is the same graph with its arrays for
onnxruntime. None of them is a pickle. The first two are what ``HybridBlock.export`` writes, so
``gluon.SymbolBlock.imports`` and MXNet's other languages can read them.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import mxnet as mx
import numpy as np
from gluon_svrg.arrays import params as params_format
from gluon_svrg.deploy import graph
from gluon_svrg.files import (
    DAMAGED,
    DamagedError,
    aside,
    exchange,
    flush_folder,
    is_left_over,
    read_regular,
    write_through,
)
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

FORMAT = 2
"""Of a model with one output for two classes; others have 1."""
CARD = "model.json"
SYMBOL = "model-symbol.json"
PARAMS = "model-0000.params"
ONNX = "model.onnx"
_FILES = frozenset({CARD, SYMBOL, PARAMS, ONNX})
_MAX_CARD = 2**26  # bytes: of a hundred thousand classes it has three million
_FLOATS = ("float16", "float32", "float64")
_DTYPES = frozenset({*_FLOATS, "uint8", "int8", "int32", "int64"})

Card = dict[str, Any]
"""What ``model.json`` says: plain data, see :func:`read_card`."""


class InputRange(TypedDict, total=False):
    """The smallest and the greatest of the export's samples, if they were integers."""

    integers: list[int]


class InputSpec(InputRange):
    """What the card says of an input; its shape is without the batch axis.

    ``integers`` is there if the samples of the export were integers, such as tokens, of any dtype.
    Inputs are drawn from that range to compare an ONNX file.
    """

    name: str
    shape: list[int]
    dtype: str


class Model(NamedTuple):
    """The contents of a model directory, checked.

    Attributes
    ----------
    card : dict
        The contents of ``model.json``.
    symbol : Symbol
        The graph.
    params : dict of str to NDArray
        Its parameters and auxiliary states by name, on ``mx.cpu()``.
    onnx : bytes or None
        The content of ``model.onnx``; None if there is none, or it was not asked for.
    """

    card: Card
    symbol: Symbol
    params: dict[str, NDArray]
    onnx: bytes | None = None


def as_path(directory: str | os.PathLike[str]) -> Path:
    """Return `directory` as a Path; raises TypeError if it is not a path."""
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(
            f"directory must be the path of a model directory, got {directory!r}: give a str or "
            "a Path"
        )
    return Path(directory)


def check_target(directory: str | os.PathLike[str], overwrite: bool) -> Path:
    """Return `directory` as a path to which a model may be written.

    Raises
    ------
    FileExistsError
        If it exists, and is neither an empty folder nor, with `overwrite`, a model directory.
    TypeError
        If `directory` is not a path.
    """
    path = as_path(directory)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return path
    others = (
        sorted(item.name for item in path.iterdir() if item.name not in _FILES)
        if (path.is_dir())
        else [path.name]
    )
    if others or not (path / CARD).is_file():
        raise FileExistsError(
            f"{str(path)!r} exists and holds {', '.join(others) or 'no model card'}: only a model "
            "is replaced by a model, give another directory"
        )
    if not overwrite:
        raise FileExistsError(
            f"the model {str(path)!r} exists already: replace it with overwrite=True, or give "
            "another directory"
        )
    return path


def write_model(
    directory: str | os.PathLike[str],
    card: Card,
    symbol_json: str,
    params: Mapping[str, NDArray],
    overwrite: bool,
    onnx: bytes | None = None,
) -> Path:
    """Write a model directory: under a temporary name beside it, flushed to the disk, then renamed.

    Parameters
    ----------
    directory : path
        Missing parents are created.
    card : dict
        Plain data; format, versions, date and checksums are added.
    symbol_json : str
        The graph.
    params : dict of str to NDArray
        By ``arg:name`` and ``aux:name``.
    overwrite : bool
        Whether an existing model is replaced.
    onnx : bytes, optional
        The content of the ONNX file.

    Raises
    ------
    FileExistsError
        As :func:`check_target`.
    OSError
        If it cannot be written; an existing model is unchanged then.
    """
    path = check_target(directory, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = aside(path)
    try:
        temporary.mkdir()
        contents = {SYMBOL: symbol_json.encode(), PARAMS: params_format.to_bytes(params)}
        if onnx is not None:
            contents[ONNX] = onnx
        for name, content in contents.items():
            write_through(temporary / name, content)
        files = {name: _checksum(content) for name, content in contents.items()}
        is_binary = card["outputs"]["shapes"] == [[1]] and bool(card["class_names"])
        about = {"format": FORMAT if is_binary else 1, **_provenance()}
        if "compared" in card.get("onnx", {}):
            compared = {**card["onnx"]["compared"], "files": files_digest(files)}
            about["onnx"] = {**card["onnx"], "compared": compared}
        text = _sealed({**card, **about, "files": files})
        write_through(temporary / CARD, text.encode())
        flush_folder(temporary)
        _move(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    # Now that there is a model: what an export that was killed has left may be the only other one.
    for item in path.parent.iterdir():
        if item.name.startswith(f".{path.name}.") and is_left_over(item.name):
            shutil.rmtree(item, ignore_errors=True)
    return path


def files_digest(files: Mapping[str, Any]) -> str:
    """Return one checksum of all files of a model, from the card's entry for them."""
    return _digest_of(dict(files))


def read_card(directory: str | os.PathLike[str]) -> Card:
    """Return the card of a model directory.

    Parameters
    ----------
    directory : path
        A directory that :func:`~gluon_svrg.deploy.export` or ``quantize`` wrote.

    Returns
    -------
    dict
        ``format``, ``inputs`` (name, shape without the batch axis, dtype, the range of its samples
        if they were integers), ``outputs`` (structure,
        shapes without the batch axis, dtypes), ``precision``, ``normalization``, ``class_names``,
        ``from_logits``, ``metrics``, ``onnx`` (how far its outputs were from MXNet's, or why there
        is no ONNX file; by which versions and on which processor they were compared),
        ``versions``, ``date`` (UTC), ``files``.

    Raises
    ------
    ValueError
        If there is no model, its card was changed, or a later version of gluon_svrg wrote it.
    """
    path = as_path(directory)
    if not path.is_dir():
        raise ValueError(
            f"there is no model directory {str(path)!r}: give what gluon_svrg.deploy.export wrote"
        )
    content = _read(path, CARD)
    try:
        card = json.loads(content)
        written = card["format"]
    except (ValueError, LookupError, TypeError, RecursionError) as e:
        raise _changed(path / CARD) from e
    if isinstance(written, int) and written > FORMAT:
        raise ValueError(
            f"the model {str(path)!r} has the format {written}, this version reads formats up to "
            f"{FORMAT}: upgrade gluon_svrg, or export the network again"
        )
    seal = card.pop("sha256", None)
    if seal != _digest_of(card) or _sealed(card).encode() != content:
        raise _changed(path / CARD)
    try:
        check_form(card)
    except DAMAGED as e:
        raise DamagedError(f"the card of {str(path)!r} is none that export writes ({e})") from e
    return dict(card)


def read_model(
    directory: str | os.PathLike[str], operators: Collection[str] = (), with_onnx: bool = False
) -> Model:
    """Read a model directory onto the CPU; raises as :func:`read_card`, for all files.

    The graph may have `operators` beside those of :mod:`gluon_svrg.deploy.graph`. The ONNX file is
    read only `with_onnx`, and if the card lists one.
    """
    if (
        isinstance(operators, str)
        or not isinstance(operators, Collection)
        or not all(isinstance(name, str) for name in operators)
    ):
        raise TypeError(
            f"operators must be a sequence of names of operators, got {operators!r}: give [name] "
            "for one, or leave it out"
        )
    path = as_path(directory)
    card = read_card(path)
    names = [SYMBOL, PARAMS, *([ONNX] if with_onnx and ONNX in card["files"] else [])]
    with ThreadPoolExecutor() as threads:  # reading and hashing leave Python to the other file
        read = threads.map(partial(_read_checked, path, card), names)
        contents = dict(zip(names, read, strict=True))
    try:
        symbol = graph.load(contents[SYMBOL].decode(), operators)
        params = params_format.from_bytes(contents[PARAMS])
        named = {name.split(":", 1)[1]: array for name, array in params.items()}
        inputs = {spec["name"] for spec in card["inputs"]}
        unknown = set(symbol.list_inputs()) - inputs - set(named)
        if unknown or inputs - set(symbol.list_inputs()):
            raise DamagedError(f"the card's inputs and the graph's differ: {sorted(unknown)}")
        model = Model(card, symbol, named, contents.get(ONNX))
        check_batch(model, 1)
    except DAMAGED as e:
        raise DamagedError(f"the model {str(path)!r} cannot be loaded: {e}") from e
    return model


def check_batch(model: Model, batch_size: int) -> None:
    """Raise DamagedError if MXNet cannot compute the card's outputs for batches of this size."""
    given = {n: graph.Array(a.shape, np.dtype(a.dtype)) for n, a in model.params.items()}
    for spec in model.card["inputs"]:
        given[spec["name"]] = graph.Array((batch_size, *spec["shape"]), np.dtype(spec["dtype"]))
    outputs = model.card["outputs"]
    wanted = [
        graph.Array((batch_size, *shape), np.dtype(dtype))
        for shape, dtype in zip(outputs["shapes"], outputs["dtypes"], strict=True)
    ]
    found = graph.check_arrays(model.symbol, given)
    if found != wanted:
        raise DamagedError(f"its outputs are {found}, and the card says {wanted}")


def check_form(card: Card) -> None:
    """Raise an exception of `DAMAGED` if a card has not the form that `export` writes."""
    problems = [
        name
        for name, is_right in {
            "format": type(card["format"]) is int and card["format"] > 0,
            "inputs": _are_inputs(card["inputs"]),
            "outputs": _are_outputs(card["outputs"]),
            "precision": card["precision"] in (*_FLOATS, "int8"),
            "normalization": _is_normalization(card["normalization"]),
            "class_names": card["class_names"] is None or _are_texts(card["class_names"]),
            "from_logits": isinstance(card["from_logits"], bool),
            "metrics": isinstance(card["metrics"], dict),
            "onnx": isinstance(card.get("onnx", {}), dict)
            and isinstance(card.get("onnx", {}).get("max_abs_difference", 0), int | float),
            "files": all(
                type(card["files"][name]["bytes"]) is int
                for name in (SYMBOL, PARAMS, *({ONNX} & card["files"].keys()))
            ),
        }.items()
        if not is_right
    ]
    names, shapes = card["class_names"], card["outputs"]["shapes"]
    if names is not None and shapes not in ([[len(names)]], [[1]] if len(names) == 2 else None):
        problems.append("class_names")
    if problems:
        raise DamagedError(f"wrong are {', '.join(problems)}")


def _are_inputs(inputs: Any) -> bool:
    names = [spec["name"] for spec in inputs]
    return (
        bool(names)
        and _are_texts(names)
        and len(set(names)) == len(names)
        and all(_is_shape(spec["shape"]) and spec["dtype"] in _DTYPES for spec in inputs)
        and all(
            len(spec["integers"]) == 2
            and all(type(i) is int for i in spec["integers"])
            and spec["integers"][0] <= spec["integers"][1]
            for spec in inputs
            if "integers" in spec
        )
    )


def _are_outputs(outputs: Any) -> bool:
    shapes, dtypes = outputs["shapes"], outputs["dtypes"]
    return (
        bool(shapes)
        and all(map(_is_shape, shapes))
        and len(dtypes) == len(shapes) == _arrays_in(outputs["structure"])
        and set(dtypes) <= _DTYPES
    )


def _arrays_in(structure: Any) -> int:
    """Return how many arrays a structure has, as :mod:`gluon_svrg.deploy.trace` writes it."""
    if structure is None:
        return 0
    if isinstance(structure, str):
        return int(structure == "array")
    ((kind, items),) = structure.items()
    if kind not in ("tuple", "list"):
        raise ValueError(f"a structure of the kind {kind!r}")
    return sum(map(_arrays_in, items))


def _is_shape(shape: Any) -> bool:
    is_list = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    return is_list and math.prod(shape) < 2**31


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_normalization(value: Any) -> bool:
    return value is None or (
        all(isinstance(x, int | float) for x in (*value["mean"], *value["std"], value["scale"]))
        and len(value["mean"]) == len(value["std"]) in (1, 3)
    )


def _provenance() -> Card:
    versions = {"mxnet": mx.__version__, "numpy": np.__version__}
    try:
        versions["gluon_svrg"] = importlib.metadata.version("gluon-svrg")
    except importlib.metadata.PackageNotFoundError:  # not installed: run from its source folder
        versions["gluon_svrg"] = "unknown"
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"versions": versions, "date": now.isoformat(timespec="seconds")}


def _sealed(card: Card) -> str:
    """Return the text of a card with its own SHA-256 in it."""
    return json.dumps({**card, "sha256": _digest_of(card)}, indent=2, ensure_ascii=False) + "\n"


def _digest_of(card: Card) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()


def _checksum(content: bytes) -> dict[str, int | str]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read_checked(path: Path, card: Card, name: str) -> bytes:
    """Read a file of a model, once: the bytes that are used are those that were checked."""
    content = _read(path, name, card["files"][name]["bytes"])
    if _checksum(content) != card["files"][name]:
        raise _changed(path / name)
    return content


def _read(path: Path, name: str, size: int | None = None) -> bytes:
    try:
        return read_regular(path / name, size, at_most=_MAX_CARD if size is None else None)
    except (FileNotFoundError, IsADirectoryError) as e:
        raise DamagedError(
            f"{name} is missing in the model directory {str(path)!r}: copy the directory again, or "
            "export the network again"
        ) from e
    except DamagedError as e:
        raise DamagedError(
            f"{str(path / name)!r} is not as it was written ({e}): copy the model directory again, "
            "or export the network again"
        ) from e


def _changed(file: Path) -> DamagedError:
    return DamagedError(
        f"{str(file)!r} is not as it was written (its checksum differs): copy the model "
        "directory again, or export the network again"
    )


def _move(new: Path, path: Path) -> None:
    """Rename `new` to `path`; an existing model changes places with it, or is renamed first."""
    try:
        new.rename(path)
    except OSError as e:
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if not exchange(new, path):
            old = aside(path)
            path.rename(old)
            try:
                new.rename(path)
            except OSError:
                old.rename(path)
                raise
            shutil.rmtree(old, ignore_errors=True)
    flush_folder(path.parent)
