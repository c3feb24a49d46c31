"""Checks a graph in MXNet's JSON before MXNet's C++ reads it, which takes everything for right.

MXNet does not check the indices in a graph: one that is out of range lets it read beyond its
memory. And it has operators whose attributes are addresses of functions (``_NDArray``,
``_Native``), or that run code (``Custom``). Only the operators below are loaded, all of which
work on arrays alone and check their indices.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet import reason_of
from gluon_svrg.files import DamagedError
from mxnet.base import MXNetError
from mxnet.symbol import Symbol

# What Gluon's layers, the model zoos of Gluon and gluoncv, and the functions of F of that kind
# make, what int8 makes of them, and what the ONNX importer makes. `null` is a variable.
OPERATORS = frozenset(
    """
    null Activation BatchNorm BlockGrad Cast Concat Convolution Deconvolution Dropout Embedding
    Flatten FullyConnected GroupNorm InstanceNorm L2Normalization LRN LayerNorm LeakyReLU Pad
    Pooling RNN Reshape SequenceLast SequenceMask SequenceReverse SliceChannel SoftmaxActivation
    SoftmaxOutput SwapAxis _rnn_param_concat UpSampling add_n amp_cast amp_multicast abs arccos
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
_KEYS = frozenset({"op", "name", "attrs", "inputs", "subgraphs"})
_GRAPH_KEYS = frozenset({"nodes", "arg_nodes", "node_row_ptr", "heads", "attrs"})
_MAX_DEPTH = 2  # a subgraph of int8 has none in it


def load(text: str, more: Collection[str] = ()) -> Symbol:
    """Return the Symbol of a graph, checked.

    Parameters
    ----------
    text : str
        The JSON.
    more : collection of str
        Operators beside those that are known to be safe.

    Raises
    ------
    DamagedError
        If it is no graph, or has an index out of range or an operator that is not loaded.
    """
    try:
        graph = json.loads(text)
        checked = _checked(graph, frozenset(more) - REFUSED, depth=0)
    except (ValueError, LookupError, TypeError, RecursionError) as e:
        raise DamagedError(f"its graph is not as MXNet writes it ({e})") from e
    try:
        return mx.sym.load_json(json.dumps(checked))
    except MXNetError as e:
        raise DamagedError(f"MXNet does not take its graph ({reason_of(e)})") from e


def operators_in(symbol: Symbol) -> set[str]:
    """Return the names of the operators of a graph."""
    return {node["op"] for node in json.loads(symbol.tojson())["nodes"]}


def is_of_numpy(symbol: Symbol) -> bool:
    """Return whether a graph has operators of MXNet's NumPy mode.

    It is to run with `numpy_shapes`: an array in the middle of it may have no axes.
    """
    return any(name.startswith("_np") for name in operators_in(symbol))


def _checked(graph: Any, more: frozenset[str], depth: int) -> dict[str, Any]:
    """Return the graph, made anew of what was checked; raises ValueError."""
    if depth > _MAX_DEPTH or not isinstance(graph, dict) or set(graph) - _GRAPH_KEYS:
        raise ValueError("it has other parts than a graph")
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
    if not isinstance(op, str) or (op not in OPERATORS and op not in more):
        raise ValueError(
            f"its operator {op!r} is none of those that are loaded"
            + (", because it can run code" if op in REFUSED else "")
        )
    if not isinstance(name, str) or not isinstance(attrs, dict):
        raise ValueError(f"a node of {op!r} has no name, or no attributes")
    if not all(isinstance(item, str) for pair in attrs.items() for item in pair):
        raise ValueError(f"the node {name!r} has an attribute that is no text")
    inputs = [_checked_entry(entry, counts) for entry in node["inputs"]]
    if op == "null" and inputs:
        raise ValueError(f"the variable {name!r} has inputs")
    made = {"op": op, "name": name, "attrs": attrs, "inputs": inputs}
    if "subgraphs" in node:
        if not op.startswith("_sg_"):
            raise ValueError(f"the node {name!r} of {op!r} has a subgraph")
        made["subgraphs"] = [_checked(graph, more, depth + 1) for graph in node["subgraphs"]]
    return made


def _checked_entry(entry: Any, counts: Sequence[int]) -> list[int]:
    """Return an entry [node, output, version]: the node must come before, and have the output."""
    is_entry = isinstance(entry, list) and len(entry) in (2, 3)
    if not is_entry or any(type(number) is not int for number in entry):
        raise ValueError(f"{entry!r} is no entry of a node")
    node, output = entry[:2]
    if not 0 <= node < len(counts) or not 0 <= output < counts[node]:
        raise ValueError(f"an entry names output {output} of node {node}, which is not there")
    return [node, output, 0]


def _outputs_of(node: dict[str, Any]) -> int:
    """Return how many outputs MXNet gives to a node; raises ValueError if it does not take it."""
    if node["op"] == "null":
        return 1
    variables = [{"op": "null", "name": f"in{i}", "inputs": []} for i in range(len(node["inputs"]))]
    size = len(variables)
    graph = {
        "nodes": [*variables, {**node, "inputs": [[i, 0, 0] for i in range(size)]}],
        "arg_nodes": list(range(size)),
        "heads": [[size, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    try:
        internals = mx.sym.load_json(json.dumps(graph)).get_internals()
    except MXNetError as e:
        raise ValueError(f"the node {node['name']!r}: {reason_of(e)}") from e
    return len(internals.list_outputs()) - size
