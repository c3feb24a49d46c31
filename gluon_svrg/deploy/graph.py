"""Checks a graph in MXNet's JSON before MXNet's C++ reads it, which takes everything for right.

MXNet does not check the indices in a graph: one that is out of range lets it read beyond its
memory. And it has operators whose attributes are addresses of functions (``_NDArray``,
``_Native``), or that run code (``Custom``). Only the operators below are loaded. They work on
arrays alone, and what they do not check of their attributes and shapes is checked here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import numpy_shapes
from gluon_svrg._mxnet.symbol import inferred_shapes, inferred_types, reason_of
from gluon_svrg.files import DamagedError
from mxnet.base import MXNetError
from mxnet.symbol import Symbol

# What Gluon's layers, the model zoos of Gluon and gluoncv, and the functions of F of that kind
# make, what int8 makes of them, and what the ONNX importer makes. `null` is a variable.
OPERATORS = frozenset(
    """
    null Activation BatchNorm BlockGrad Cast Concat Convolution Deconvolution Dropout Embedding
    Flatten FullyConnected GroupNorm InstanceNorm L2Normalization LRN LayerNorm LeakyReLU Pad
    Pooling RNN Reshape SliceChannel SoftmaxActivation
    SoftmaxOutput SwapAxis _rnn_param_concat UpSampling add_n abs arccos
    arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees erf erfinv exp expm1 fix
    floor gamma gammaln hard_sigmoid identity log log10 log1p log2 log_softmax logical_not
    make_loss mish negative ones_like radians rcbrt reciprocal relu rint round rsqrt sigmoid
    sign sin sinh size_array smooth_l1 softmax softmin softplus softsign sqrt square tan tanh
    trunc zeros_like _copy shape_array clip argmax argmax_channel argmin argsort cumsum max mean
    min nanprod nansum norm prod sort sum topk batch_dot broadcast_axis broadcast_like
    broadcast_to depth_to_space diag dot expand_dims one_hot repeat reshape_like reverse slice
    slice_axis slice_like space_to_depth squeeze stack take tile transpose where moments _arange
    _full _ones _zeros _linspace _eye broadcast_add broadcast_div broadcast_equal
    broadcast_greater broadcast_greater_equal broadcast_hypot broadcast_lesser
    broadcast_lesser_equal broadcast_logical_and broadcast_logical_or broadcast_logical_xor
    broadcast_maximum broadcast_minimum broadcast_mod broadcast_mul broadcast_not_equal
    broadcast_power broadcast_sub elemwise_add elemwise_div elemwise_mul elemwise_sub _grad_add
    _equal _greater _greater_equal _hypot _lesser _lesser_equal _logical_and _logical_or
    _logical_xor _maximum _minimum _mod _not_equal _power _div_scalar _equal_scalar
    _greater_equal_scalar _greater_scalar _hypot_scalar _lesser_equal_scalar _lesser_scalar
    _logical_and_scalar _logical_or_scalar _logical_xor_scalar _maximum_scalar _minimum_scalar
    _minus_scalar _mod_scalar _mul_scalar _not_equal_scalar _plus_scalar _power_scalar
    _rdiv_scalar _rminus_scalar _rmod_scalar _rpower_scalar _contrib_AdaptiveAvgPooling2D
    _contrib_BilinearResize2D _contrib_SyncBatchNorm _contrib_arange_like _contrib_box_decode
    _contrib_box_nms _contrib_div_sqrt_dim _contrib_interleaved_matmul_selfatt_qk
    _contrib_interleaved_matmul_selfatt_valatt _contrib_dequantize _contrib_quantize
    _contrib_quantize_v2 _contrib_quantized_act _contrib_quantized_batch_norm
    _contrib_quantized_concat _contrib_quantized_conv _contrib_quantized_elemwise_add
    _contrib_quantized_elemwise_mul _contrib_quantized_embedding _contrib_quantized_flatten
    _contrib_quantized_fully_connected _contrib_quantized_pooling _contrib_requantize
    _linalg_gemm2 _random_normal _random_uniform _sg_mkldnn_conv _sg_mkldnn_fully_connected
    """.split()  # noqa: SIM905  # a line for each is three pages
) | frozenset(
    # What Gluon's layers and the functions of F.np and F.npx make in MXNet's NumPy mode. Many have
    # one of the names above there. All work on arrays alone. Those that take indices from an array
    # (advanced indexing, pick, gather_nd, insert, delete) are not among them.
    """
    _np_all _np_any _np_copy _np_cumsum _np_dot _np_max _np_min _np_moveaxis _np_prod
    _np_reshape _np_squeeze _np_sum _np_transpose _npi_absolute _npi_add _npi_add_scalar
    _npi_arange _npi_arccos _npi_arccosh _npi_arcsin _npi_arcsinh _npi_arctan _npi_arctan2
    _npi_arctan2_scalar _npi_arctanh _npi_argmax _npi_argmin _npi_around _npi_broadcast_to
    _npi_cbrt _npi_ceil _npi_clip _npi_concatenate _npi_copysign _npi_copysign_scalar _npi_cos
    _npi_cosh _npi_degrees _npi_equal _npi_equal_scalar _npi_exp _npi_expm1 _npi_fix _npi_floor
    _npi_full_like _npi_greater _npi_greater_equal _npi_greater_equal_scalar _npi_greater_scalar
    _npi_hstack _npi_hypot _npi_hypot_scalar _npi_isfinite _npi_isinf _npi_isnan _npi_less
    _npi_less_equal _npi_less_equal_scalar _npi_less_scalar _npi_log _npi_log10 _npi_log1p
    _npi_log2 _npi_logical_not _npi_matmul _npi_maximum _npi_maximum_scalar _npi_mean
    _npi_minimum _npi_minimum_scalar _npi_mod _npi_mod_scalar _npi_multiply _npi_multiply_scalar
    _npi_nan_to_num _npi_negative _npi_not_equal _npi_not_equal_scalar _npi_ones _npi_power
    _npi_power_scalar _npi_radians _npi_rarctan2_scalar _npi_rcopysign_scalar _npi_reciprocal
    _npi_rint _npi_rmod_scalar _npi_rpower_scalar _npi_rsubtract_scalar _npi_rtrue_divide_scalar
    _npi_sign _npi_sin _npi_sinh _npi_slice _npi_split _npi_sqrt _npi_square _npi_stack _npi_std
    _npi_subtract _npi_subtract_scalar _npi_swapaxes _npi_tan _npi_tanh _npi_tile
    _npi_true_divide _npi_true_divide_scalar _npi_trunc _npi_var _npi_vstack _npi_where
    _npi_zeros _npx_relu _npx_reshape _npx_reshape_like _npx_sigmoid
    """.split()  # noqa: SIM905
)
# These may run code, or call it at an address that the graph names.
REFUSED = frozenset(
    # The second line has other names of the same.
    """
    _NDArray _Native Custom _CachedOp _cvimread _cvimdecode
    _npi_Custom _npi_cvimread _npi_cvimdecode
    """.split()  # noqa: SIM905  # as above
)
# The range of integers by which MXNet divides, or of which it makes as many things, unchecked. It
# takes a time for outputs that grows with the square of their number: a second for 4,000.
_SIZES = (1, 2**20)
_RANGES = {
    **dict.fromkeys(("num_group", "num_groups", "heads", "repeat", "block_size"), _SIZES),
    **dict.fromkeys(("kernel", "stride", "dilate"), _SIZES),
    **dict.fromkeys(("pad", "adj"), (0, 2**20)),
    "num_outputs": (1, 1024),
}
_RESHAPES = frozenset(
    "Reshape reshape_like _np_reshape _npx_reshape _npx_reshape_like".split()  # noqa: SIM905
)
# With these, numbers in an array are indices that MXNet does not check.
_LENGTHS = frozenset({"use_length", "use_sequence_length"})
_FALSE = frozenset({"False", "false", "0"})
# More numbers than this in one array: MXNet counts in 32 bits.
_MAX_SIZE = 2**31
_KEYS = frozenset({"op", "name", "attrs", "inputs", "subgraphs"})
_GRAPH_KEYS = frozenset({"nodes", "arg_nodes", "node_row_ptr", "heads", "attrs"})
_MAX_DEPTH = 2  # a subgraph of int8 has none in it


class Array(NamedTuple):
    """The shape and the dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def load(text: str, more: Collection[str] = ()) -> Symbol:
    """Return the Symbol of a graph, checked.

    Parameters
    ----------
    text : str
        The JSON.
    more : collection of str
        Operators beside those that are known to be safe; their attributes are not checked.

    Raises
    ------
    DamagedError
        If it is no graph, has an index or an attribute out of range, or an operator that is not
        loaded.
    """
    try:
        checked = _checked_graph(json.loads(text), frozenset(more) - REFUSED, depth=0)
    except DamagedError:
        raise
    except (ValueError, LookupError, TypeError, RecursionError) as e:
        raise DamagedError(f"its graph is not as MXNet writes it ({e})") from e
    try:
        return mx.sym.load_json(json.dumps(checked))
    except MXNetError as e:
        raise DamagedError(f"MXNet does not take its graph ({reason_of(e)})") from e


def unlisted_in(symbol: Symbol) -> set[str]:
    """Return the operators of a graph that `load` takes only if they are named."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return {node["op"] for node in nodes if node["op"] not in OPERATORS or _problem_of(node)}


def check_arrays(symbol: Symbol, given: Mapping[str, Array]) -> list[Array]:
    """Return what the outputs of a graph are for arrays that are `given` by name.

    Raises
    ------
    DamagedError
        If MXNet does not take the arrays, needs others, or would go beyond their memory.
    """
    with numpy_shapes(is_numpy_graph(symbol)):
        return _check_arrays(symbol, given)


def _check_arrays(symbol: Symbol, given: Mapping[str, Array]) -> list[Array]:
    """See check_arrays; within NumPy's shapes an array may have no axes."""
    everything = mx.sym.Group([symbol, symbol.get_internals()])
    names = [*everything.list_arguments(), *everything.list_auxiliary_states()]
    try:
        shapes = inferred_shapes(everything, {name: given[name].shape for name in names})
        dtypes = inferred_types(symbol, {name: given[name].dtype for name in names})
    except MXNetError as e:
        raise DamagedError(f"its arrays do not fit ({reason_of(e)})") from e
    if None in (*shapes, *dtypes):
        raise DamagedError("its arrays do not fit: not all of them can be inferred")
    # Some operators replace what they are given by what they need.
    needed = zip((*shapes[0], *shapes[2]), (*dtypes[0], *dtypes[2]), strict=True)
    for name, (shape, dtype) in zip(names, needed, strict=True):
        if given[name] != (shape, np.dtype(dtype)):
            raise DamagedError(
                f"its arrays do not fit: {name!r} is {given[name]}, not {Array(shape, dtype)}"
            )
    outputs = shapes[1]
    for shape in outputs:
        if min(shape, default=1) < 1 or math.prod(shape) >= _MAX_SIZE:
            raise DamagedError(f"one of its arrays has the shape {shape}, which is not computed")
    nodes = json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]
    count = len(symbol.list_outputs())
    inner = iter(outputs[count:])
    known: list[list[tuple[int, ...]]] = []
    for node in nodes:
        known.append([next(inner) for _ in range(_outputs_of(node))])
        arguments = [known[entry[0]][entry[1]] for entry in node["inputs"]]
        if not _fit(node, arguments, known[-1][0]):
            raise DamagedError(f"its arrays do not fit: {node['name']!r} is given {arguments}")
    return [Array(shape, np.dtype(dtype)) for shape, dtype in zip(outputs, dtypes[1], strict=False)]


def _fit(
    node: Mapping[str, Any], inputs: Sequence[tuple[int, ...]], output: tuple[int, ...]
) -> bool:
    """Return whether inputs fit to each other, for operators of which MXNet does not check it."""
    if node["op"] in _RESHAPES:
        return math.prod(inputs[0]) == math.prod(output)
    if node["op"] == "where":
        return inputs[0] in (output, output[:1])
    if node["op"] == "_contrib_interleaved_matmul_selfatt_valatt":
        return inputs[1][0] == int(node["attrs"]["heads"]) * inputs[0][1]
    return True


def is_numpy_graph(symbol: Symbol) -> bool:
    """Return whether a graph has operators of MXNet's NumPy mode.

    It is to run with `numpy_shapes`: an array in the middle of it may have no axes.
    """
    return any(node["op"].startswith("_np") for node in json.loads(symbol.tojson())["nodes"])


def _checked_graph(graph: Any, more: frozenset[str], depth: int) -> dict[str, Any]:
    """Return a copy of the graph with its checked parts; raises ValueError."""
    if depth > _MAX_DEPTH or not isinstance(graph, dict) or set(graph) - _GRAPH_KEYS:
        raise ValueError("it has other parts than a graph")
    _check_operators({node["op"] for node in graph["nodes"]} - OPERATORS - more)
    nodes: list[dict[str, Any]] = []
    counts: list[int] = []
    for node in graph["nodes"]:
        nodes.append(_checked_node(node, counts, more, depth))
        counts.append(_outputs_of(nodes[-1]))
    names = [node["name"] for node in nodes if node["op"] == "null"]
    if len(set(names)) != len(names):
        raise ValueError("two of its variables have the same name")
    heads = [_checked_entry(entry, counts) for entry in graph["heads"]]
    if not heads:
        raise ValueError("it has no output")
    return {
        "nodes": nodes,
        "arg_nodes": [i for i, node in enumerate(nodes) if node["op"] == "null"],
        "heads": heads,
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def _checked_node(
    node: Any, counts: Sequence[int], more: frozenset[str], depth: int
) -> dict[str, Any]:
    if not isinstance(node, dict) or set(node) - _KEYS:
        raise ValueError("a node has other parts than a node")
    op, name, attrs = node["op"], node["name"], node.get("attrs", {})
    if not isinstance(name, str) or not isinstance(attrs, dict):
        raise ValueError(f"a node of {op!r} has no name, or no attributes")
    if not all(isinstance(item, str) for pair in attrs.items() for item in pair):
        raise ValueError(f"the node {name!r} has an attribute that is no text")
    inputs = [_checked_entry(entry, counts) for entry in node["inputs"]]
    if op == "null" and inputs:
        raise ValueError(f"the variable {name!r} has inputs")
    made = {"op": op, "name": name, "attrs": attrs, "inputs": inputs}
    problem = "" if op in more else _problem_of(made)
    if problem:
        raise DamagedError(
            f"its node {name!r} of {op} has {problem}, which is not loaded from strangers: if you "
            f"trust those who made the model, load it with operators={[op]}"
        )
    graphs = node.get("subgraphs", [])
    if len(graphs) != (1 if op.startswith("_sg_") else 0):
        raise ValueError(f"the node {name!r} of {op!r} has {len(graphs)} subgraphs")
    if graphs:
        made["subgraphs"] = [_checked_graph(graphs[0], more, depth + 1)]
    return made


def _check_operators(unlisted: set[str]) -> None:
    if unlisted & REFUSED:
        raise DamagedError(
            f"its operators {sorted(unlisted & REFUSED)} are never loaded, because they can run "
            "code"
        )
    if unlisted:
        raise DamagedError(
            f"its operators {sorted(unlisted)} are not known to check what they are given: if you "
            f"trust those who made the model, load it with operators={sorted(unlisted)}"
        )


def _problem_of(node: Mapping[str, Any]) -> str:
    """Return which attribute of a node is out of the range that MXNet does not check, or ''."""
    for name, value in node.get("attrs", {}).items():
        least, greatest = _RANGES.get(name, (0, None))
        if name == "num_args":  # UpSampling may have a weight beside them
            least, greatest = 1, len(node["inputs"])
        elif name in _LENGTHS and value not in _FALSE:
            return f"{name}={value}"
        if greatest is None:
            continue
        numbers = [int(number) for number in re.findall("-?[0-9]+", value)]
        if not all(least <= number <= greatest for number in numbers):
            return f"{name}={value}"
    return ""


def _checked_entry(entry: Any, counts: Sequence[int]) -> list[int]:
    """Return an entry [node, output, version]: the node must come before, and have the output."""
    is_entry = isinstance(entry, list) and len(entry) in (2, 3)
    if not is_entry or any(type(number) is not int for number in entry):
        raise ValueError(f"{entry!r} is no entry of a node")
    node, output = entry[:2]
    if not 0 <= node < len(counts) or not 0 <= output < counts[node]:
        raise ValueError(f"an entry names output {output} of node {node}, which is not there")
    return [node, output, 0]


def _outputs_of(node: Mapping[str, Any]) -> int:
    """Return how many outputs MXNet gives to a node; raises ValueError if it does not take it."""
    size = len(node["inputs"])
    made = {**node, "name": "node", "inputs": [[i, 0, 0] for i in range(size)]}
    try:
        return 1 if node["op"] == "null" else _outputs_of_json(json.dumps(made), size)
    except MXNetError as e:
        raise ValueError(f"the node {node['name']!r}: {reason_of(e)}") from e


@lru_cache(maxsize=1024)
def _outputs_of_json(node: str, size: int) -> int:
    graph = {
        "nodes": [
            *({"op": "null", "name": f"in{i}", "inputs": []} for i in range(size)),
            json.loads(node),
        ],
        "arg_nodes": list(range(size)),
        "heads": [[size, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return len(mx.sym.load_json(json.dumps(graph)).get_internals().list_outputs()) - size
