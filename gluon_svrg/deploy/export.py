"""Writes a trained network into a model directory."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import check_mode, to_active_mode, to_nd
from gluon_svrg._mxnet.block import has_shape
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.replicas import distinct_replicas
from gluon_svrg.deploy import trace
from gluon_svrg.deploy.compiled import Compiled
from gluon_svrg.deploy.graph import REFUSED, Array, check_arrays, unlisted_in
from gluon_svrg.deploy.images import Normalization, check_normalization
from gluon_svrg.deploy.inputs import random_inputs
from gluon_svrg.deploy.model_dir import (
    Card,
    InputRange,
    InputSpec,
    Model,
    check_target,
    write_model,
)
from gluon_svrg.deploy.numerics import max_difference, output_scale, tolerance_of
from gluon_svrg.deploy.onnx import onnx_of_directory
from gluon_svrg.deploy.onnx_engine import engine_versions
from gluon_svrg.files import DamagedError
from mxnet import autograd
from mxnet.base import MXNetError
from mxnet.gluon import HybridBlock, Parameter
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol

# Under AMP the network computes in bfloat16 or float16, the graph in the dtype of the parameters.
_AMP_TOLERANCE = 0.1

Sample: TypeAlias = "NDArray | NumPyArray"


def export(
    net: HybridBlock,
    directory: str | os.PathLike[str],
    sample: Sample | Sequence[Sample],
    *,
    input_names: Sequence[str] | None = None,
    normalization: Normalization | tuple[object, ...] | dict[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    from_logits: bool = True,
    metrics: Mapping[str, float] | None = None,
    overwrite: bool = False,
    onnx: bool | Literal["auto"] = "auto",
) -> Path:
    """Write `net` into a model directory, for :class:`~gluon_svrg.deploy.Predictor`.

    The directory has ``model-symbol.json``, ``model-0000.params``, the card ``model.json`` and, if
    MXNet can translate the network, ``model.onnx``, by which onnxruntime predicts faster.
    It is written whole or not at all. The network is not changed: neither parameters, contexts,
    nor the flags of ``hybridize``; if it is trained further, it reaches the same bits. Parameters
    whose shape is not known yet get it from `sample`. The graph is checked before it is written:
    run on `sample`, it has to return the outputs of `net`, also if the samples come in other
    batches. It has the dtype of the parameters, without the casts of MXNet's AMP.

    Parameters
    ----------
    net : HybridBlock
        Initialized, hybridized or not, on one context or several (if their parameters differ, as
        running means do, the mean is written, and the outputs are not compared).
    directory : path
        The directory to write; missing parents are created.
    sample : NDArray, numpy.ndarray, or sequence of them
        A batch for each input, batch axis first; the model takes its shape (without the batch axis)
        and its dtype. NumPy's float64 is cast to the dtype of the parameters. If it is of
        integers, such as tokens, the card has their range: `export_onnx` draws from it.
    input_names : sequence of str, optional
        One for each input; by default ``data``, or ``data0``, ``data1``, ... for several.
    normalization : Normalization, tuple or dict, optional
        ``(mean, std)`` or ``(mean, std, scale)``, or a dict of them, for image files: see
        :class:`~gluon_svrg.deploy.Normalization`.
    class_names : sequence of str, optional
        One for each number of the output, in its order. Two for an output of one number: it is the
        score or the probability of the second. By default the attribute ``class_names`` of `net`,
        which the layer that `to_gluon` of a linear classifier returns has.
    from_logits : bool, default True
        Whether the outputs are scores before a softmax, as those of gluoncv's classifiers, or, with
        one number and two classes, before a logistic function; False if they are probabilities.
    metrics : dict of str to float, optional
        Written into the card, for example ``{"accuracy": 0.92}``.
    overwrite : bool, default False
        Whether an existing model is replaced.
    onnx : bool or 'auto', default 'auto'
        Whether the directory has an ONNX file, which has the parameters once more. ``'auto'``: if
        the extra ``onnx`` is installed, the network can be translated for batches of any size,
        and onnxruntime gives MXNet's outputs for `sample`, for its first sample alone, and for
        random numbers; if not, the card says why.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, `net` is not initialized, has NaN in its parameters or cannot be
        hybridized (the message names the layer), an output has no batch axis, the outputs of
        the graph differ from those of `net`, or those of one sample depend on the others; with
        ``onnx=True``, if there can be no ONNX file.
    ImportError
        With ``onnx=True``, if its extra is not installed.
    FileExistsError
        If `directory` exists and may not be replaced.
    OSError
        If it cannot be written.
    """
    if onnx not in (True, False, "auto"):
        raise ValueError(
            f"onnx must be True, False or 'auto', got {onnx!r}: whether there is an ONNX file"
        )
    check_target(directory, overwrite)
    if isinstance(net, HybridBlock):  # else it is refused later, by its class
        check_mode(net)
    arrays = [_as_array(x, index) for index, x in enumerate(_as_sequence(sample))]
    names = _check_names(input_names, len(arrays))
    _infer_shapes(net, arrays)
    graph = _graph_of(net, names)
    params = _params_of(net, graph.symbol, names)
    arrays = [_in_dtype_of(array, params) for array in arrays]
    inputs: list[InputSpec] = [
        {"name": name, "shape": list(array.shape[1:]), "dtype": array.dtype.name, **_range(array)}
        for name, array in zip(names, arrays, strict=True)
    ]
    shapes = _output_shapes(graph.symbol, inputs, params, len(arrays[0]))
    # The sample may be all zeros, from which nothing follows.
    drawn = random_inputs({"inputs": inputs}, len(arrays[0]))
    _check_outputs(net, graph, params, inputs, drawn)
    outputs = _check_outputs(net, graph, params, inputs, arrays)
    for index, output in enumerate(outputs):
        if np.isnan(output).any():
            raise ValueError(
                f"output {index} of net has NaN for sample: give samples like those that it was "
                "trained with"
            )
    if class_names is None:
        class_names = getattr(net, "class_names", None)
    card: Card = {
        "inputs": inputs,
        "outputs": {
            "structure": graph.structure,
            "shapes": shapes,
            "dtypes": [output.dtype.name for output in outputs],
        },
        "precision": _precision(arrays, params),
        "normalization": None
        if normalization is None
        else check_normalization(normalization, [spec["shape"] for spec in inputs]),
        "class_names": _check_class_names(class_names, shapes),
        "from_logits": _check_from_logits(from_logits, outputs),
        "metrics": _check_metrics(metrics),
    }
    content = _onnx_file(Model(card, graph.symbol, params), arrays, onnx)
    auxiliary = set(graph.symbol.list_auxiliary_states())
    stored = {f"{'aux' if n in auxiliary else 'arg'}:{n}": array for n, array in params.items()}
    return write_model(directory, card, graph.symbol.tojson(), stored, overwrite, content)


def _onnx_file(
    model: Model, arrays: Sequence[NumPyArray], onnx: bool | Literal["auto"]
) -> bytes | None:
    """Return the ONNX file, or None; what became of it is written into the card."""
    if not onnx:
        model.card["onnx"] = {"reason": "onnx=False was given to export"}
        return None
    try:
        content, difference = onnx_of_directory(model, arrays)
    except (ImportError, ValueError) as e:
        if onnx is True:
            raise
        model.card["onnx"] = {"reason": str(e)}
        return None
    model.card["onnx"] = {"max_abs_difference": difference, "compared": engine_versions()}
    return content


def _graph_of(net: HybridBlock, names: Sequence[str]) -> trace.Graph:
    try:
        graph = trace.trace(net, names)
    except ValueError:
        if len(names) > 1 and _takes_one_input(net):
            raise ValueError(
                f"sample is a sequence of {len(names)} arrays, one for each input, and net takes "
                "one input: give one batch, for example numpy.stack(sample)"
            ) from None
        raise
    # As it is written: without the casts of AMP.
    symbol = mx.sym.load_json(graph.symbol.tojson())
    operators = unlisted_in(symbol)
    if operators & REFUSED:
        raise ValueError(
            f"net has operators that can run code ({', '.join(sorted(operators & REFUSED))}), "
            "which no model directory may have: write the layer with other operators"
        )
    if operators:
        warnings.warn(
            f"net has operators that are not known to check what they are given: load the model "
            f"with operators={sorted(operators)}",
            UserWarning,
            stacklevel=4,
        )
    return graph._replace(symbol=symbol)


def _infer_shapes(net: HybridBlock, arrays: Sequence[NumPyArray]) -> None:
    """Let the parameters whose shape is not known yet take it from the samples."""
    if not isinstance(net, HybridBlock):
        return  # refused later, by its class
    params = net.collect_params().values()
    if all(has_shape(param) for param in params):
        return
    kind = _float_of({p.name: p for p in params})
    arrays = [x.astype(kind) if x.dtype == np.float64 else x for x in arrays]
    try:
        with autograd.pause(train_mode=False):
            net(*_as_inputs(arrays, net))
    except MXNetError as e:
        raise _cannot_run(e) from e


def _as_inputs(arrays: Sequence[NumPyArray], net: HybridBlock) -> list[NDArray]:
    context = _context_of(net)
    return [to_active_mode(mx.nd.array(x, ctx=context, dtype=x.dtype)) for x in arrays]


def _context_of(net: HybridBlock) -> mx.Context:
    return next((param.list_ctx()[0] for param in net.collect_params().values()), mx.cpu())


def _cannot_run(e: MXNetError) -> ValueError:
    return ValueError(
        f"net fails on sample ({reason_of(e)}): give a batch of the shape and dtype that it was "
        "trained with"
    )


def _takes_one_input(net: HybridBlock) -> bool:
    try:
        trace.trace(net, ["data"])
    except ValueError:
        return False
    return True


def _as_sequence(sample: Any) -> Sequence[Sample]:
    several: Sequence[Sample] = sample if isinstance(sample, list | tuple) else [sample]
    if not several:
        raise ValueError("sample is empty: give a batch for each input of the network")
    return several


def _as_array(x: object, index: int) -> NumPyArray:
    if not isinstance(x, NDArray | np.ndarray):
        raise TypeError(
            f"sample {index} must be an NDArray or a NumPy array, got a {type(x).__name__}: give a "
            "batch for each input of the network"
        )
    if len(x.shape) < 1 or 0 in x.shape:
        raise ValueError(
            f"sample {index} must be a batch of at least one sample, got the shape {x.shape}: its "
            "first axis is the batch axis"
        )
    return x.asnumpy() if isinstance(x, NDArray) else x


def _check_names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        # The names that HybridBlock.export gives them.
        return ["data"] if count == 1 else [f"data{index}" for index in range(count)]
    if not _are_strings(names) or "" in names or len(set(names)) != count or len(names) != count:
        raise ValueError(
            f"input_names must be {count} different names, got {names!r}: one for each input"
        )
    return list(names)


def _are_strings(names: object) -> TypeGuard[Sequence[str]]:
    """Return whether `names` is a sequence of strings, and not a string itself."""
    return (
        isinstance(names, Sequence | np.ndarray)
        and not isinstance(names, str)
        and all(isinstance(name, str) for name in names)
    )


def _params_of(net: HybridBlock, symbol: Symbol, names: Sequence[str]) -> dict[str, NDArray]:
    """Return copies of the parameters that the graph uses, on the CPU."""
    params = net.collect_params()
    wanted = symbol.list_inputs()
    for name in names:
        if name in params:
            raise ValueError(
                f"input_names has {name!r}, which is a parameter of net: give another name"
            )
        if name not in wanted:
            raise ValueError(f"no layer of net uses the input {name!r}: leave it out of sample")
    return {name: _value_of(params[name]) for name in wanted if name not in names}


def _value_of(param: Parameter) -> NDArray:
    try:
        replicas = distinct_replicas(param.list_data())
    except (RuntimeError, MXNetError) as e:  # MXNet's DeferredInitializationError is an MXNetError
        raise ValueError(
            f"net is not initialized: its parameter {param.name!r} has no value; call "
            "net.initialize(), or load its parameters"
        ) from e
    value = replicas[0]
    if any(np.isnan(replica).any() for replica in replicas):
        raise ValueError(
            f"net's parameter {param.name!r} has NaN: its training has diverged, load the "
            "parameters of an earlier epoch"
        )
    if len(replicas) > 1:
        value = np.mean(replicas, axis=0, dtype="float64").astype(value.dtype)
    return mx.nd.array(value, ctx=mx.cpu(), dtype=value.dtype)


def _float_of(params: Mapping[str, NDArray | Parameter]) -> np.dtype[Any]:
    """Return the dtype of the first parameter with a float dtype; float32 if there is none."""
    kinds = [np.dtype(param.dtype) for param in params.values()]
    return next((kind for kind in kinds if kind.kind == "f"), np.dtype("float32"))


def _in_dtype_of(array: NumPyArray, params: Mapping[str, NDArray]) -> NumPyArray:
    """Return a float64 array, NumPy's default, in the dtype of the parameters; others as is."""
    return array if array.dtype != np.float64 else array.astype(_float_of(params))


def _precision(arrays: Sequence[NumPyArray], params: Mapping[str, NDArray]) -> str:
    """Return the dtype in which the network computes: the input's, or, of integers, the params'."""
    return (arrays[0].dtype if arrays[0].dtype.kind == "f" else _float_of(params)).name


def _range(array: NumPyArray) -> InputRange:
    """Return the range of a sample of integers; nothing if it is constant, and so tells nothing."""
    low, high = array.min(), array.max()
    if not low < high or not (np.isfinite(array).all() and (array == np.rint(array)).all()):
        return {}
    return {"integers": [int(low), int(high)]}


def _output_shapes(
    symbol: Symbol,
    inputs: Sequence[InputSpec],
    params: Mapping[str, NDArray],
    batch_size: int,
) -> list[list[int]]:
    """Return the shapes of the outputs, without the batch axis that each has to have."""
    found = []
    for size in (batch_size, batch_size + 1):
        try:
            given = {name: Array(a.shape, np.dtype(a.dtype)) for name, a in params.items()}
            for spec in inputs:
                given[spec["name"]] = Array((size, *spec["shape"]), np.dtype(spec["dtype"]))
            shapes = [output.shape for output in check_arrays(symbol, given)]
        except DamagedError as e:
            raise ValueError(
                f"net takes no batch of {size} samples of shapes "
                f"{[tuple(spec['shape']) for spec in inputs]} and dtypes "
                f"{[spec['dtype'] for spec in inputs]} ({e}): give a batch like those that it was "
                "trained with; all inputs need the same batch axis, first, and no layer may fix "
                "its size"
            ) from e
        found.append(shapes)
    for index, (one, other) in enumerate(zip(*found, strict=True)):
        if not one or one[0] != batch_size or other[0] != batch_size + 1:
            raise ValueError(
                f"output {index} of net has the shape {tuple(one)} for a batch of {batch_size}: a "
                "model returns one row per sample, batch axis first; export a net that does"
            )
    return [list(shape[1:]) for shape in found[0]]


def _check_outputs(
    net: HybridBlock,
    graph: trace.Graph,
    params: Mapping[str, NDArray],
    inputs: Sequence[InputSpec],
    arrays: Sequence[NumPyArray],
) -> list[NumPyArray]:
    """Return the outputs of the graph for `arrays`; they have to be the same as those of `net`."""
    try:
        with autograd.pause(train_mode=False):
            results = trace.flatten(net(*_as_inputs(arrays, net)))
        expected = [_as_numpy(array) for array in results]
        compiled = Compiled(graph.symbol, params, inputs, len(arrays[0]), ctx=mx.cpu())
        outputs = compiled(arrays)
    except MXNetError as e:
        raise _cannot_run(e) from e
    _check_independence(graph, params, inputs, arrays, outputs)
    if not _has_equal_replicas(net):
        return outputs  # no replica computes the same as their mean
    for index, (one, other) in enumerate(zip(outputs, expected, strict=True)):
        tolerance = _AMP_TOLERANCE if graph.has_casts else tolerance_of(one)
        difference = max_difference(one, other)
        if not difference <= tolerance * output_scale(other):
            raise ValueError(
                f"output {index} of the graph differs from the net's by {difference:.3g}: the net "
                "does not compute the same with symbols as with arrays, or draws random numbers"
            )
    return outputs


def _as_numpy(array: NDArray) -> NumPyArray:
    """Return `array` in NumPy, of bfloat16, which NumPy does not have, in float32."""
    has_fields = np.dtype(array.dtype).fields is not None
    return (to_nd(array).astype("float32") if has_fields else array).asnumpy()


def _check_independence(
    graph: trace.Graph,
    params: Mapping[str, NDArray],
    inputs: Sequence[InputSpec],
    arrays: Sequence[NumPyArray],
    outputs: Sequence[NumPyArray],
) -> None:
    """Raise ValueError if a row of the outputs depends on the other samples, or on their order.

    A Predictor splits batches, and pads them with zeros: here the last sample comes first once
    more, and zeros at the end.
    """
    count = len(arrays[0])
    compiled = Compiled(graph.symbol, params, inputs, count + 2, ctx=mx.cpu())
    again = compiled([np.concatenate([array[-1:], array]) for array in arrays])
    for index, (one, other) in enumerate(zip(again, outputs, strict=True)):
        expected = np.concatenate([other[-1:], other])
        difference = max_difference(one, expected)
        if not difference <= tolerance_of(one) * output_scale(expected):
            raise ValueError(
                f"output {index} of net for a sample depends on the other samples of the batch (it "
                f"differs by {difference:.3g} in another batch), and a Predictor splits and pads "
                "batches: the first axis must be that of the samples (layout 'NTC' of a recurrent "
                "layer, not 'TNC'), and no layer may mix them"
            )


def _has_equal_replicas(net: HybridBlock) -> bool:
    return all(len(distinct_replicas(p.list_data())) == 1 for p in net.collect_params().values())


def _check_class_names(names: object, shapes: Sequence[Sequence[int]]) -> list[str] | None:
    if names is None:
        return None
    if not _are_strings(names):
        raise TypeError(f"class_names must be a sequence of names, got {names!r}: one per class")
    is_binary = len(names) == 2 and [list(shape) for shape in shapes] == [[1]]
    if not is_binary and (len(shapes) != 1 or list(shapes[0]) != [len(names)]):
        raise ValueError(
            f"class_names has {len(names)} names, net has outputs of the shapes "
            f"{[tuple(shape) for shape in shapes]}: they need one output, with one number per "
            "class, or one number for two classes"
        )
    if len(names) == 1:
        raise ValueError(
            f"class_names has one name, {names[0]!r}, which no sample could miss: give the names "
            "of two classes, or leave it out"
        )
    return [str(name) for name in names]


def _check_from_logits(value: object, outputs: Sequence[NumPyArray]) -> bool:
    if not isinstance(value, bool):
        raise TypeError(
            f"from_logits must be a bool, got {value!r}: it says whether the outputs are scores "
            "before a softmax"
        )
    if not value and not all(((x >= -1e-6) & (x <= 1 + 1e-6)).all() for x in outputs):
        low, high = min(x.min() for x in outputs), max(x.max() for x in outputs)
        raise ValueError(
            f"from_logits is False, and the outputs for sample are from {low:.3g} to {high:.3g}, "
            "which are not probabilities: leave it out if they are scores"
        )
    return value


def _check_metrics(metrics: object) -> dict[str, float]:
    metrics = {} if metrics is None else metrics
    if not isinstance(metrics, Mapping) or not all(
        isinstance(name, str) and isinstance(value, numbers.Real) for name, value in metrics.items()
    ):
        raise TypeError(f"metrics must be a dict of names to numbers, got {metrics!r}")
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(
                f"metrics has {name!r} as {value!r}, which the card's JSON cannot express: leave "
                "it out"
            )
    return {name: float(value) for name, value in metrics.items()}
