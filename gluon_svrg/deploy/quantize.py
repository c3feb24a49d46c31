"""Writes a model in int8, by MXNet's quantization for oneDNN on the CPU."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import nd_mode
from gluon_svrg._mxnet.callbacks import callback_errors
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays import params as params_format
from gluon_svrg.deploy.model_dir import Card, Model, as_path, check_target, read_model, write_model
from gluon_svrg.deploy.numerics import warn_of_overflow
from gluon_svrg.deploy.predictor import Predictor, probabilities_of
from gluon_svrg.files import write_through
from mxnet import gluon
from mxnet.base import MXNetError
from mxnet.contrib import quantization
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

Samples: TypeAlias = "NumPyArray | NDArray | Sequence[NumPyArray | NDArray]"
"""One array for each input, or the array of the only input."""

_BATCH = 32

_logger = logging.getLogger(__name__)


def quantize(
    directory: str | os.PathLike[str],
    out_directory: str | os.PathLike[str],
    calibration_data: Samples,
    *,
    mode: str = "naive",
    exclude_layers: Sequence[str] = (),
    evaluation_data: tuple[Samples, Sequence[float] | NumPyArray | NDArray] | None = None,
    overwrite: bool = False,
    operators: Collection[str] = (),
) -> dict[str, Any]:
    """Write a float32 model in int8, for the CPU; ``Predictor.load`` reads it like any model.

    Parameters
    ----------
    directory : path
        A model directory of float32.
    out_directory : path
        The model directory to write.
    calibration_data : numpy.ndarray, NDArray, or sequence of them
        A few hundred samples, one array per input, normalised as for ``Predictor.predict``: they
        give the ranges of the layers' outputs.
    mode : {'naive', 'entropy'}, default 'naive'
        How a range is taken: ``'naive'`` from the least to the greatest output; ``'entropy'`` the
        range that keeps the most information of the histogram (slow, for outputs with a few very
        large values).
    exclude_layers : sequence of str, optional
        Nodes that stay in float32, by their names in the graph that oneDNN has fused for int8, for
        example ``sg_mkldnn_conv_bn_act_0``.
    evaluation_data : (x, labels), optional
        Labelled samples that are not among those of the calibration; the accuracy of both models on
        them is returned, and written into the card. `x` is like `calibration_data`.
    overwrite : bool, default False
        Whether an existing model is replaced.
    operators : collection of str, optional
        As for ``Predictor.load``, which needs them for the model in int8 as well.

    Returns
    -------
    dict
        The entry ``quantization`` of the card: ``mode``, ``calibration_samples``, and with
        `evaluation_data` ``samples`` and, as fractions, ``accuracy_float32``, ``accuracy_int8`` and
        ``agreement`` (the samples to which both models give the same class).

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, the model is not of float32, `out_directory` is `directory`, the
        calibration data has NaN or only zeros, or MXNet cannot quantize the model.
    FileExistsError
        As :func:`~gluon_svrg.deploy.export`.

    Warns
    -----
    UserWarning
        On a CPU without VNNI, on which products of int8 overflow in dense layers: what is reported
        here is then not what a CPU with VNNI gives.
    """
    if mode not in ("naive", "entropy"):
        raise ValueError(f"mode must be 'naive' or 'entropy', got {mode!r}: how ranges are taken")
    if as_path(directory).resolve() == as_path(out_directory).resolve():
        raise ValueError(
            f"out_directory is the model directory {str(directory)!r} itself, whose float32 model "
            "would be lost: give another"
        )
    check_target(out_directory, overwrite)
    model = read_model(directory, operators)
    _check_dtypes(model, str(directory))
    _check_graph(model.symbol)
    _check_excluded(exclude_layers, model.symbol)
    predictor = Predictor(model, engine="mxnet")
    arrays = _check_samples("calibration_data", calibration_data, predictor)
    _check_ranges(arrays, [spec["name"] for spec in model.card["inputs"]])
    warn_of_overflow("quantize")
    card = {
        **{key: model.card[key] for key in ("inputs", "outputs", "normalization")},
        **{key: model.card[key] for key in ("class_names", "from_logits")},
        "precision": "int8",
        # Those of the float32 model are not those of this one.
        "metrics": {},
    }
    symbol, params, int8 = _quantized_that_runs(model, card, arrays, mode, exclude_layers)
    report: dict[str, Any] = {"mode": mode, "calibration_samples": len(arrays[0])}
    if evaluation_data is not None:
        report |= _evaluate(predictor, int8, evaluation_data)
        card["metrics"] = {"accuracy": report["accuracy_int8"]}
    card["quantization"] = {**report, "metrics_float32": model.card["metrics"]}
    write_model(out_directory, card, symbol, params, overwrite)
    return report


def _check_dtypes(model: Model, directory: str) -> None:
    if model.card["precision"] != "float32":
        raise ValueError(
            f"the model {directory!r} is of {model.card['precision']}, only float32 can be "
            "quantized: give the float32 model"
        )
    kinds = [spec["dtype"] for spec in model.card["inputs"]]
    if set(kinds) != {"float32"}:
        raise ValueError(
            f"the model {directory!r} has inputs of {', '.join(kinds)}, and int8 takes only "
            "float32: use the float32 model"
        )


def _check_samples(name: str, data: Samples, predictor: Predictor) -> list[NumPyArray]:
    """Return `data` as one array per input, checked as the predictor checks it."""
    several: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    arrays: list[NumPyArray] = [x.asnumpy() if isinstance(x, mx.nd.NDArray) else x for x in several]
    shapes = [tuple(spec["shape"]) for spec in predictor.card["inputs"]]
    if [np.shape(x) for x in arrays] == shapes:
        raise ValueError(f"{name} must be batches, batch axis first, got a single sample")
    # It raises if they do not fit the model.
    predictor.predict(*(x[:1] if isinstance(x, np.ndarray) else x for x in arrays))
    if len({len(x) for x in arrays}) > 1:
        counts = " and ".join(str(len(x)) for x in arrays)
        raise ValueError(f"{name}: inputs have {counts} samples, give each the same number")
    return arrays


def _check_ranges(arrays: Sequence[NumPyArray], names: Sequence[str]) -> None:
    """Refuse samples that have no range."""
    for name, array in zip(names, arrays, strict=True):
        if not np.isfinite(array).all():
            raise ValueError(
                f"calibration_data of {name!r} has NaN or infinities, which give no range: leave "
                "these samples out"
            )
        if not array.any():
            raise ValueError(
                f"calibration_data of {name!r} is all zeros, which give no range: give samples "
                "like those that the model will be used for"
            )


def _check_excluded(names: Sequence[str], symbol: Symbol) -> None:
    """Check that `names` are nodes of the graph as oneDNN fuses it for int8."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"exclude_layers must be a sequence of names, got {names!r}: give [name] for one"
        )
    known = _fused_nodes(symbol)
    for name in names:
        if name not in known:
            raise ValueError(
                f"exclude_layers has {name!r}, which is no node of the fused graph: it has "
                f"{', '.join(list(known)[:5])}{', ...' if len(known) > 5 else ''}"
            )


def _fused_nodes(symbol: Symbol) -> dict[str, str]:
    """Return the operator of each node of the graph as oneDNN fuses it for int8, by name."""
    nodes = json.loads(symbol.get_backend_symbol("MKLDNN_QUANTIZE").tojson())["nodes"]
    return {node["name"]: node["op"] for node in nodes if node["op"] != "null"}


def _quantized_that_runs(
    model: Model,
    card: Card,
    arrays: Sequence[NumPyArray],
    mode: str,
    exclude_layers: Sequence[str],
) -> tuple[str, dict[str, Any], Predictor]:
    """Return the int8 graph as JSON, its parameters, and a predictor that has run it.

    After residual blocks MXNet 1.9.1 runs int8 pooling of a single pixel once, and fails at the
    second call (ResNet-18 on images of 32 x 32). Poolings then stay in float32.
    """
    excluded = list(exclude_layers)
    while True:
        symbol, params = _quantized(model, arrays, mode, excluded)
        plain = {name.split(":", 1)[1]: array for name, array in params.items()}
        int8 = Predictor(Model(card, mx.sym.load_json(symbol), plain), engine="mxnet")
        try:
            for _ in range(2):  # the first call plans the memory that the second one uses again
                int8.predict(*(array[:1] for array in arrays))
            return symbol, params, int8
        except ValueError as e:
            nodes = _fused_nodes(model.symbol).items()
            poolings = [name for name, op in nodes if op == "Pooling" and name not in excluded]
            if not poolings:
                raise
            _logger.warning(
                "quantize: poolings stay in float32 (%s), because one fails at the second call in "
                "int8: %s",
                ", ".join(poolings),
                reason_of(e.__cause__ or e),
            )
            excluded += poolings


def _quantized(
    model: Model, arrays: Sequence[NumPyArray], mode: str, exclude_layers: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return the int8 graph as JSON and its parameters by ``arg:name`` and ``aux:name``."""
    names = [spec["name"] for spec in model.card["inputs"]]
    auxiliary = set(model.symbol.list_auxiliary_states())
    # MXNet's quantization takes NDArrays.
    with nd_mode(), tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "float32")
        write_through(Path(f"{prefix}-symbol.json"), model.symbol.tojson().encode())
        stored = {f"{'aux' if n in auxiliary else 'arg'}:{n}": a for n, a in model.params.items()}
        write_through(Path(f"{prefix}-0000.params"), params_format.to_bytes(stored))
        data = {n: x.astype("float32") for n, x in zip(names, arrays, strict=True)}
        batches = mx.io.NDArrayIter(data, batch_size=min(_BATCH, len(arrays[0])))
        # It sorts the inputs by name, and MXNet calls the network with them in that order.
        batches.data.sort(key=lambda item: names.index(item[0]))
        try:
            with warnings.catch_warnings():
                # MXNet warns that the graph is imported without its types; it takes float32.
                warnings.filterwarnings("ignore", "Cannot decide type", UserWarning)
                warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, in its histograms
                net = gluon.SymbolBlock.imports(
                    f"{prefix}-symbol.json", names, f"{prefix}-0000.params"
                )
                with callback_errors():  # of what collects the ranges of the layers
                    int8 = quantization.quantize_net_v2(
                        net,
                        calib_data=batches,
                        calib_mode=mode,
                        exclude_layers=list(exclude_layers),
                        ctx=mx.cpu(),
                    )
            int8.hybridize()
            int8(*(mx.nd.array(data[name][:1]) for name in names))
        except (MXNetError, ValueError, TypeError) as e:
            raise ValueError(
                f"MXNet cannot quantize the model ({reason_of(e)}): leave out layers with "
                "exclude_layers, or use the float32 model"
            ) from e
        prefix = str(Path(folder) / "int8")
        int8.export(prefix)
        symbol = Path(f"{prefix}-symbol.json").read_text(encoding="utf-8")
        return symbol, mx.nd.load(f"{prefix}-0000.params")


def _check_graph(symbol: Symbol) -> None:
    """Refuse the graphs whose int8 form crashes the process in MXNet 1.9.1.

    These are graphs in which an operator with several outputs, such as split, reads an array that
    other operators read, too.
    """
    graph = json.loads(symbol.tojson())
    nodes = graph["nodes"]
    reads = [(entry[0], entry[1]) for entry in graph["heads"]]
    reads += [(entry[0], entry[1]) for node in nodes for entry in node["inputs"]]
    several = {node for node, output in reads if output > 0}
    for number in several:
        if any(reads.count((entry[0], entry[1])) > 1 for entry in nodes[number]["inputs"]):
            raise ValueError(
                f"MXNet cannot quantize the model: its operator {nodes[number]['name']!r} has "
                "several outputs and reads an array that others read, too; use the float32 model"
            )


def _evaluate(
    predictor: Predictor,
    int8: Predictor,
    evaluation_data: tuple[Samples, Sequence[float] | NumPyArray | NDArray],
) -> dict[str, float]:
    try:
        x, labels = evaluation_data
    except (TypeError, ValueError) as e:
        raise TypeError("evaluation_data must be (x, labels): samples and their classes") from e
    arrays = _check_samples("evaluation_data", x, predictor)
    labels = labels.asnumpy() if isinstance(labels, mx.nd.NDArray) else np.asarray(labels)
    if labels.dtype.kind not in "iuf":
        raise TypeError(
            f"evaluation_data has labels of {labels.dtype}: give the index of its class for each "
            "sample"
        )
    if labels.shape != (len(arrays[0]),):
        raise ValueError(
            f"evaluation_data has labels of shape {labels.shape} for {len(arrays[0])} samples: "
            "give one class index per sample"
        )
    if predictor.card["outputs"]["structure"] != "array":
        raise ValueError("evaluation_data needs a model with one output: leave it out")
    of_float32, of_int8 = (
        probabilities_of(predictor.card, model.predict(*arrays)).argmax(axis=1)
        for model in (predictor, int8)
    )
    return {
        "samples": len(labels),
        "accuracy_float32": float((of_float32 == labels).mean()),
        "accuracy_int8": float((of_int8 == labels).mean()),
        "agreement": float((of_float32 == of_int8).mean()),
    }
