"""Writes a model as an ONNX file, checked by onnxruntime."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gluon_svrg._mxnet.symbol import onnx_translator
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import check_number, require
from gluon_svrg.deploy import onnx_graph
from gluon_svrg.deploy.engine import greatest_difference
from gluon_svrg.deploy.inputs import InputCheck, random_inputs
from gluon_svrg.deploy.model_dir import Card, Model
from gluon_svrg.deploy.onnx_engine import cannot_run, run, session_of
from gluon_svrg.deploy.predictor import Predictor
from gluon_svrg.deploy.trace import flatten
from gluon_svrg.files import write_whole
from mxnet.ndarray import NDArray

# MXNet 1.9.1 translates operators as opset 13 has them; ReduceMean and others changed after it.
if TYPE_CHECKING:
    from onnx.onnx_ml_pb2 import ModelProto

_OPSET = 13


def export_onnx(
    model: str | os.PathLike[str] | Predictor,
    path: str | os.PathLike[str],
    *,
    dynamic: bool = True,
    tolerance: float = 1e-4,
    sample: NumPyArray | NDArray | Sequence[NumPyArray | NDArray] | None = None,
    operators: Collection[str] = (),
) -> float:
    """Write a model as an ONNX file (opset 13), once onnxruntime gives MXNet's outputs for it.

    The file's inputs have the names of the card, but may be in another order. Its metadata has the
    card (``gluon_svrg``) and the difference that was measured (``max_abs_difference``).

    Parameters
    ----------
    model : path or Predictor
        A model directory, not of int8, or the Predictor of one.
    path : path
        The file to write; an existing file is replaced once the new one has passed the check.
    dynamic : bool, default True
        Whether the file takes batches of any size, or single samples only.
    tolerance : float, default 1e-4
        The greatest difference from MXNet's outputs that is accepted, relative to the greatest
        output, or to 1 if that is greater.
    sample : NDArray, numpy.ndarray, or sequence of them, optional
        A batch for each input, as for ``export``, on which the outputs are compared; if not
        `dynamic`, its first sample. By default random numbers: standard normal ones, or, if the
        model was exported with samples of integers (tokens), integers of their range.
    operators : collection of str, optional
        As for ``Predictor.load``, if `model` is a directory.

    Returns
    -------
    float
        The greatest absolute difference between onnxruntime's outputs and MXNet's.

    Raises
    ------
    ImportError
        If onnx or onnxruntime is not installed.
    ValueError
        If `sample` does not fit, the model is of int8, MXNet cannot translate one of its operators,
        onnxruntime cannot run the file, or the outputs differ by more than `tolerance`; nothing is
        written then.
    """
    check_number(
        "tolerance",
        tolerance,
        "how far outputs may differ",
        least=0,
        above=True,
    )
    if isinstance(model, Predictor):
        # One by onnxruntime would be compared with itself.
        predictor = model if model.engine == "mxnet" else Predictor(model.model, engine="mxnet")
    else:
        predictor = Predictor(model, operators=operators, engine="mxnet")
    if predictor.card["precision"] == "int8":
        raise ValueError(
            "the model is of int8, whose operators are oneDNN's own and not part of ONNX: give the "
            "float32 model"
        )
    batches = _batches(predictor.card, sample, dynamic)
    target = Path(path)
    content, difference = _checked_file(predictor, dynamic, batches, tolerance)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)
    return difference


def onnx_of_directory(model: Model, samples: Sequence[NumPyArray]) -> tuple[bytes, float]:
    """Return the ONNX file for a model directory, and its greatest difference from MXNet's outputs.

    Parameters
    ----------
    model : Model
        Of any card, without format and checksums.
    samples : sequence of numpy.ndarray
        A batch for each input. The outputs are compared on them, and on inputs as `Predictor` draws
        them when it chooses its engine.

    Raises
    ------
    ImportError, ValueError
        As :func:`export_onnx`; ValueError if the file has an operator that is not read from a
        model directory, too.
    """
    for module in ("onnx", "onnxruntime"):  # before the work
        require(module, "onnx", "an ONNX file")
    predictor = Predictor(model, engine="mxnet", check_finite=False)
    drawn = [random_inputs(model.card, count) for count in (1, 3)]
    batches = [[array[:1] for array in samples], list(samples), *drawn]
    content, difference = _checked_file(predictor, True, batches, None)
    onnx_graph.check(content)
    return content, difference


def _checked_file(
    predictor: Predictor, dynamic: bool, batches: list[list[NumPyArray]], tolerance: float | None
) -> tuple[bytes, float]:
    """Return the content of an ONNX file, and its greatest difference from the predictor."""
    proto = _translate(predictor.model, dynamic)
    try:
        content = proto.SerializeToString()
    except Exception as e:  # protobuf's own, of more than 2 GiB
        raise ValueError(f"the model does not fit into an ONNX file ({e})") from e
    difference = _compare(content, predictor, batches, tolerance)
    for key, value in (
        ("gluon_svrg", json.dumps(predictor.card)),
        ("max_abs_difference", repr(difference)),
    ):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    return proto.SerializeToString(), difference


def _translate(model: Model, dynamic: bool) -> ModelProto:
    require("onnx", "onnx", "an ONNX file")
    from onnx import checker, helper

    # In the order of the graph: MXNet assigns shapes and dtypes in that order.
    order = model.symbol.list_inputs()
    inputs = sorted(model.card["inputs"], key=lambda spec: order.index(spec["name"]))
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(spec["dtype"])) for spec in inputs]
    # MXNet lets onnx check the graph, as one of the newest opset unless this says otherwise.
    newest = checker.DEFAULT_CONTEXT.opset_imports
    checker.DEFAULT_CONTEXT.opset_imports = {"": _OPSET}
    free = [("batch", *spec["shape"]) for spec in inputs] if dynamic else None
    try:
        with warnings.catch_warnings(), onnx_translator() as translator:
            # MXNet reads tables of onnx 1.14 that are deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            graph = translator.create_onnx_graph_proto(
                model.symbol,
                dict(model.params),
                [(1, *spec["shape"]) for spec in inputs],
                kinds,
                opset_version=_OPSET,
                dynamic=dynamic,
                dynamic_input_shapes=free,
            )
    except Exception as e:  # the translators raise exceptions of any type
        raise ValueError(
            f"MXNet 1.9.1 cannot translate the model into ONNX ({type(e).__name__}: {e}): use the "
            "model directory instead"
        ) from e
    finally:
        checker.DEFAULT_CONTEXT.opset_imports = newest
    # MXNet also lists the parameters as inputs, which keeps onnxruntime from folding constants.
    names = [spec["name"] for spec in inputs]
    kept = [item for item in graph.input if item.name in names]
    del graph.input[:]
    graph.input.extend(kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])


def _batches(card: Card, sample: Any, dynamic: bool) -> list[list[NumPyArray]]:
    """Return inputs to compare on: a batch of one sample and, if `dynamic`, one of several."""
    if sample is None:
        return [random_inputs(card, count) for count in ((1, 3) if dynamic else (1,))]
    several = sample if isinstance(sample, list | tuple) else [sample]
    arrays, _ = InputCheck(card, finite=False)(several)
    first = [array[:1] for array in arrays]
    return [first, arrays] if dynamic else [first]


def _compare(
    content: bytes, predictor: Predictor, batches: list[list[NumPyArray]], tolerance: float | None
) -> float:
    """Return the greatest difference of the outputs for these inputs."""
    way_out = "use the model directory instead"
    try:
        session = session_of(content)
    except ImportError:
        raise
    except Exception as e:  # onnxruntime's exceptions have no common class
        raise ValueError(f"{cannot_run(e)}: {way_out}") from e
    greatest = 0.0
    for arrays in batches:
        expected = flatten(predictor.predict(*arrays))
        try:
            outputs = run(session, predictor.card, arrays)
        except Exception as e:
            raise ValueError(f"{cannot_run(e)}: {way_out}") from e
        try:
            greatest = max(greatest, greatest_difference(outputs, expected, tolerance))
        except ValueError as e:
            raise ValueError(
                f"{e}: {way_out}, or, if the model is not made for such inputs as were drawn, give "
                "some as sample"
            ) from e
    return greatest
