"""Writes a model as an ONNX file, checked by onnxruntime."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._compat import NumPyArray
from gluon_svrg.arguments import check_number
from gluon_svrg.deploy.card import Card, Model
from gluon_svrg.deploy.difference import difference_of, scale_of
from gluon_svrg.deploy.predictor import Predictor, checked_inputs, random_inputs
from gluon_svrg.deploy.trace import flatten
from gluon_svrg.files import write_whole
from mxnet.ndarray import NDArray

# MXNet 1.9.1 translates operators as opset 13 has them; ReduceMean and others changed after it.
if TYPE_CHECKING:
    from onnx.onnx_ml_pb2 import ModelProto
    from onnxruntime import InferenceSession  # type: ignore[import-untyped]

_OPSET = 13
_INSTALL = "ONNX needs its extra: install it with `pip install 'gluon-svrg[onnx]'`"


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
    predictor = model if isinstance(model, Predictor) else Predictor(model, operators=operators)
    if predictor.card["precision"] == "int8":
        raise ValueError(
            "the model is of int8, whose operators are oneDNN's own and not part of ONNX: give the "
            "float32 model"
        )
    batches = _batches(predictor.card, sample, dynamic)
    target = Path(path)
    proto = _translate(predictor.model, dynamic)
    difference = _compare(proto.SerializeToString(), predictor, batches, tolerance)
    for key, value in (
        ("gluon_svrg", json.dumps(predictor.card)),
        ("max_abs_difference", repr(difference)),
    ):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, proto.SerializeToString())
    return difference


def session_of(content: bytes | str, threads: int = 0) -> InferenceSession:
    """Return an onnxruntime session on the CPU for a file or its content; raises ImportError."""
    try:
        import onnxruntime
    except ImportError as e:
        raise ImportError(_INSTALL) from e
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _translate(model: Model, dynamic: bool) -> ModelProto:
    try:
        from onnx import checker, helper

        translator = _mxnet.onnx_translator()
    except ImportError as e:
        raise ImportError(_INSTALL) from e
    # In the order of the graph: MXNet assigns shapes and dtypes in that order.
    order = model.symbol.list_inputs()
    inputs = sorted(model.card["inputs"], key=lambda spec: order.index(spec["name"]))
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(spec["dtype"])) for spec in inputs]
    # MXNet lets onnx check the graph, as one of the newest opset unless this says otherwise.
    newest = checker.DEFAULT_CONTEXT.opset_imports
    checker.DEFAULT_CONTEXT.opset_imports = {"": _OPSET}
    free = [("batch", *spec["shape"]) for spec in inputs] if dynamic else None
    try:
        with warnings.catch_warnings():
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
    arrays, _ = checked_inputs(card, several)
    first = [array[:1] for array in arrays]
    return [first, arrays] if dynamic else [first]


def _compare(
    content: bytes, predictor: Predictor, batches: list[list[NumPyArray]], tolerance: float
) -> float:
    """Return the greatest difference of the outputs for these inputs."""
    try:
        session = session_of(content)
    except ImportError:
        raise
    except Exception as e:  # onnxruntime's exceptions have no common class
        raise _cannot_run(e) from e
    greatest = 0.0
    for arrays in batches:
        expected = flatten(predictor.predict(*arrays))
        try:
            outputs = run(session, predictor.card, arrays)
        except Exception as e:
            raise _cannot_run(e) from e
        for index, (one, other) in enumerate(zip(outputs, expected, strict=True)):
            difference = difference_of(one, other)
            if difference > tolerance * scale_of(other):
                raise ValueError(
                    f"output {index} of the ONNX file differs from MXNet's by {difference:.3g}, "
                    f"more than the tolerance {tolerance:g}: use the model directory instead, or, "
                    "if the model is not made for such inputs as were drawn, give some as sample"
                )
            greatest = max(greatest, difference)
    return greatest


def run(session: InferenceSession, card: Card, arrays: Sequence[NumPyArray]) -> list[NumPyArray]:
    """Return the outputs of an onnxruntime session for one array per input, in the card's order."""
    names = [spec["name"] for spec in card["inputs"]]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))


def _cannot_run(e: Exception) -> ValueError:
    return ValueError(
        f"onnxruntime cannot run the model's ONNX file ({str(e).strip().splitlines()[0]}): use the "
        "model directory instead"
    )
