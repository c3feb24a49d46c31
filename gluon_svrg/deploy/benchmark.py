"""Times the ways to run a model."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_integer, check_number
from gluon_svrg.deploy.compiled import Compiled
from gluon_svrg.deploy.eager import OperatorByOperator
from gluon_svrg.deploy.inputs import random_inputs
from gluon_svrg.deploy.model_dir import Card, Model, read_card, read_model
from gluon_svrg.deploy.numerics import processor_name
from gluon_svrg.deploy.onnx import export_onnx
from gluon_svrg.deploy.onnx_engine import run, session_of
from gluon_svrg.deploy.predictor import Predictor
from gluon_svrg.deploy.quantize import quantize
from mxnet import autograd
from mxnet.base import MXNetError

# Takes the inputs and returns the outputs, as NumPy arrays.
_Way: TypeAlias = "Callable[[list[NumPyArray]], object]"


class Timing(NamedTuple):
    """How fast one way of running a model is.

    Attributes
    ----------
    name : str
        The name of the way.
    batch : int
        Samples per call.
    calls : int
        The number of calls that were timed; 0 if it did not run.
    p50, p99 : float
        Latency of a call, in seconds: the median and the 99th percentile.
    throughput : float
        Samples per second, over all calls.
    reason : str
        Why it did not run; empty if it did.
    """

    name: str
    batch: int
    calls: int = 0
    p50: float = float("nan")
    p99: float = float("nan")
    throughput: float = float("nan")
    reason: str = ""


def benchmark(
    directory: str | os.PathLike[str],
    batches: Sequence[int] = (1, 64),
    seconds: float = 5.0,
    int8_directory: str | os.PathLike[str] | None = None,
    operators: Collection[str] = (),
) -> list[Timing]:
    """Time the ways to run a model of float32 on the CPU, from NumPy arrays to NumPy arrays.

    The ways take turns, call by call, so that other load on the machine slows each of them by the
    same amount. They are: ``eager`` (operator by operator from Python), ``hybridized`` (the graph,
    as after ``net.hybridize()``), ``static`` (with static memory and shapes), a Predictor of each
    engine (``predictor, mxnet`` is also fused), ``int8``, and ``onnxruntime`` alone, without this
    package.

    Parameters
    ----------
    directory : path
        The model directory, of float32.
    batches : sequence of int, default (1, 64)
        Samples per call.
    seconds : float, default 5
        How long each batch size is measured, for all ways together.
    int8_directory : path, optional
        The int8 model; by default one is made for the benchmark, calibrated on random numbers: it
        is as fast as a real one, but its predictions are worthless.
    operators : collection of str, optional
        As for ``Predictor.load``.

    Returns
    -------
    list of Timing
        By batch size, then by way. If a way cannot run, its `reason` says why.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, a model cannot be read, or the model of `int8_directory` is not of
        int8, or has other inputs, outputs or classes.
    """
    check_number("seconds", seconds, "how long each batch size is measured", least=0, above=True)
    if not isinstance(batches, Sequence) or isinstance(batches, str):
        raise TypeError(f"batches must be a sequence of integers, got {batches!r}: as [1, 64]")
    if not batches:
        raise ValueError("batches is empty: give at least one batch size")
    for batch in batches:
        check_integer("batches", batch, 1, "the number of samples per call")
    model = read_model(directory, operators, with_onnx=True)
    if model.card["precision"] == "int8":
        raise ValueError(
            f"the model {str(directory)!r} is of int8: give the float32 model, and this one as "
            "int8_directory (--int8)"
        )
    if int8_directory is not None:
        _check_int8(int8_directory, model.card)
    timings = []
    with (
        _int8_model(Path(directory), int8_directory, model.card, operators) as int8,
        autograd.pause(),
    ):
        for batch in batches:
            arrays = random_inputs(model.card, batch)
            ways = _ways(model, int8, arrays, operators)
            timings.extend(_measure(ways, arrays, batch, seconds))
    return timings


def format_timings(timings: Sequence[Timing]) -> str:
    """Return the timings as a Markdown table, each median also relative to ``hybridized``."""
    lines = [
        "| batch | way | p50, ms | p99, ms | samples/s | p50 to hybridized |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    plain = {t.batch: t.p50 for t in timings if t.name == "hybridized"}
    for t in timings:
        figures = (
            f"{1e3 * t.p50:.2f} | {1e3 * t.p99:.2f} | {t.throughput:,.0f} | "
            f"{t.p50 / plain[t.batch]:.2f}"
            if t.calls
            else f"{t.reason} | | | "
        )
        lines.append(f"| {t.batch} | {t.name} | {figures} |")
    return "\n".join(lines)


def machine() -> str:
    """Return the machine, its cores and the versions, in one line."""
    versions = [f"Python {platform.python_version()}"]
    for package in ("mxnet", "numpy", "onnxruntime"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    return f"{processor_name()}, {os.cpu_count()} cores, {threads} threads; {', '.join(versions)}"


def _check_int8(directory: str | os.PathLike[str], card: Card) -> None:
    int8 = read_card(directory)
    if int8["precision"] != "int8":
        raise ValueError(
            f"int8_directory {str(directory)!r} has a model of {int8['precision']}: give the "
            "directory that quantize() wrote, or leave it out"
        )
    for what in ("inputs", "outputs", "class_names"):
        if int8[what] != card[what]:
            raise ValueError(
                f"int8_directory {str(directory)!r} has the model of another net, its {what} are "
                f"{int8[what]} and not {card[what]}: give the one that quantize() made of this net"
            )


@contextmanager
def _int8_model(
    directory: Path, given: str | os.PathLike[str] | None, card: Card, operators: Collection[str]
) -> Iterator[Path | str]:
    """Yield the folder of the int8 model, or the sentence that says why there is none."""
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8"
        try:
            quantize(directory, path, random_inputs(card, 64), operators=operators)
        except (MXNetError, OSError, TypeError, ValueError) as e:
            yield reason_of(e)
        else:
            yield path


def _ways(
    model: Model, int8: Path | str, arrays: list[NumPyArray], operators: Collection[str]
) -> dict[str, _Way | str]:
    """Return the ways to run the model, or, for one that cannot run, the reason."""
    inputs, symbol, params = model.card["inputs"], model.symbol, model.params
    batch = len(arrays[0])

    def compiled(**flags: bool) -> _Way:
        graph = Compiled(symbol, params, inputs, batch, ctx=mx.cpu(), **flags)
        return lambda arrays: graph(arrays)

    def by_int8() -> _Way:
        if isinstance(int8, str):
            raise ValueError(int8)
        return _served(Predictor.load(int8, batch_size=batch, operators=operators))

    predictor = Predictor(model, batch_size=batch, engine="mxnet")
    predictor.predict(*arrays)  # it raises if the model does not run: the others do not check it
    return {
        "eager": OperatorByOperator(symbol, params, inputs),
        "hybridized": compiled(),
        "static": compiled(static_alloc=True, static_shape=True),
        "int8": _tried(by_int8, arrays),
        "predictor, mxnet": _served(predictor),
        "predictor, onnxruntime": _tried(
            lambda: _served(Predictor(model, batch_size=batch, engine="onnxruntime")), arrays
        ),
        "onnxruntime": _tried(lambda: _onnxruntime(predictor), arrays),
    }


def _tried(make: Callable[[], _Way], arrays: list[NumPyArray]) -> _Way | str:
    """Return a way that has run once, or, if it cannot be made or cannot run, the reason."""
    try:
        way = make()
        way(arrays)
    except (ImportError, OSError, TypeError, ValueError, MXNetError) as e:
        return reason_of(e)
    return way


def _served(predictor: Predictor) -> _Way:
    return lambda arrays: predictor.predict(*arrays)


def _onnxruntime(predictor: Predictor) -> _Way:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(predictor, path)
        session = session_of(str(path))
    return lambda arrays: run(session, predictor.card, arrays)


def _measure(
    ways: dict[str, _Way | str], arrays: list[NumPyArray], batch: int, seconds: float
) -> list[Timing]:
    running = {name: way for name, way in ways.items() if not isinstance(way, str)}
    taken: dict[str, list[float]] = {name: [] for name in running}
    for way in running.values():
        for _ in range(3):  # the first calls plan memory and reorder the weights
            way(arrays)
    end = time.perf_counter() + seconds
    order = Random(0)
    while time.perf_counter() < end or not all(taken.values()):
        # In another order each time: a call finds in the caches what the one before has left.
        for name, way in order.sample(list(running.items()), len(running)):
            begin = time.perf_counter()
            way(arrays)
            taken[name].append(time.perf_counter() - begin)
    timings = []
    for name, way_or_reason in ways.items():
        if isinstance(way_or_reason, str):
            timings.append(Timing(name, batch, reason=way_or_reason))
            continue
        values = np.asarray(taken[name])
        p50, p99 = (float(value) for value in np.percentile(values, (50, 99)))
        throughput = batch * len(values) / float(values.sum())
        timings.append(Timing(name, batch, len(values), p50, p99, throughput))
    return timings
