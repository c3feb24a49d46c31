"""Chooses what runs a model: MXNet or onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx
from gluon_svrg._typing import NumPyArray
from gluon_svrg.deploy.inputs import random_inputs
from gluon_svrg.deploy.model_dir import Model, files_digest
from gluon_svrg.deploy.mxnet_engine import MXNetEngine
from gluon_svrg.deploy.numerics import max_difference, output_scale, tolerance_of
from gluon_svrg.deploy.onnx_engine import OnnxEngine, engine_versions

_logger = logging.getLogger(__name__)

Engine: TypeAlias = MXNetEngine | OnnxEngine


def choose(
    name: str, model: Model, ctx: mx.Context, backend: str | None, batch_size: int, finite: bool
) -> tuple[Engine, str]:
    """Return what runs the model, and why, in a sentence.

    Parameters
    ----------
    name : {'auto', 'mxnet', 'onnxruntime'}
        What was asked for.
    model, ctx, backend, batch_size
        As for ``Predictor``.
    finite : bool
        Whether inputs are checked to be finite.

    Raises
    ------
    ImportError
        If 'onnxruntime' was asked for, and is not installed.
    ValueError
        If it was asked for, and cannot run the model or gives other outputs than MXNet.
    """
    if name not in ("auto", "mxnet", "onnxruntime"):
        raise ValueError(
            f"engine must be 'auto', 'mxnet' or 'onnxruntime', got {name!r}: it runs the model"
        )
    if backend is not None and not isinstance(backend, str):
        raise TypeError(f"backend must be 'auto', a backend's name or None, got {backend!r}")
    reason = "engine='mxnet' was given"
    if name != "mxnet":
        reason = _obstacle(model, ctx, backend, finite or name == "onnxruntime")
        try:
            if not reason:
                return _onnx_engine(model, ctx)
        except ImportError:
            if name == "onnxruntime":
                raise
            reason = "onnxruntime is not installed"
        except ValueError as e:
            reason = str(e)
            if name == "auto":
                _logger.warning("MXNet runs the model, and not onnxruntime: %s", reason)
        if name == "onnxruntime":
            raise ValueError(f"engine='onnxruntime' cannot run the model: {reason}")
    return MXNetEngine(model, ctx, backend, batch_size), reason


def _obstacle(model: Model, ctx: mx.Context, backend: str | None, finite: bool) -> str:
    """Return why onnxruntime does not come into question, or ''."""
    if ctx.device_type != "cpu":
        return f"onnxruntime runs on the CPU, and ctx is {ctx}"
    if backend != "auto":
        return f"backend={backend!r} is a way of MXNet"
    if model.onnx is None:
        if model.card["precision"] == "int8":
            return "a model of int8 has no ONNX file"
        why = model.card.get("onnx", {}).get("reason", "it was read without it")
        return f"the model has no ONNX file: {why}"
    if not finite:
        return "with check_finite=False NaN may come, which MXNet and onnxruntime treat differently"
    return ""


def _onnx_engine(model: Model, ctx: mx.Context) -> tuple[OnnxEngine, str]:
    engine = OnnxEngine(model.onnx or b"", model.card)
    about = model.card.get("onnx", {})
    here = {**engine_versions(), "files": files_digest(model.card["files"])}
    if about.get("compared") == here:  # these files by `export`, which would find the same again
        difference = float(about["max_abs_difference"])
    else:
        arrays = random_inputs(model.card, 1)
        expected = MXNetEngine(model, ctx, None, 1)(arrays)
        difference = greatest_difference(engine(arrays), expected)
    return engine, f"the outputs of onnxruntime are within {difference:.2g} of MXNet's"


def greatest_difference(
    outputs: Sequence[NumPyArray], expected: Sequence[NumPyArray], tolerance: float | None = None
) -> float:
    """Return the greatest absolute difference of onnxruntime's outputs from MXNet's.

    Raises ValueError if one is more than `tolerance`, relative to the greatest output or to 1, if
    that is greater; by default that of the dtype.
    """
    greatest = 0.0
    for index, (one, other) in enumerate(zip(outputs, expected, strict=True)):
        accepted = tolerance_of(other) if tolerance is None else tolerance
        difference = max_difference(one, other)
        if not difference <= accepted * output_scale(other):
            raise ValueError(
                f"output {index} of the ONNX file differs from MXNet's by {difference:.3g}, "
                f"more than the tolerance {accepted:g}"
            )
        greatest = max(greatest, difference)
    return greatest
