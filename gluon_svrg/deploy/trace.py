"""The graph of a network, made without changing it; or the layer that cannot be hybridized."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import mxnet as mx
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._mxnet.block import children_of
from mxnet import autograd
from mxnet.gluon import Block, HybridBlock, nn
from mxnet.symbol import Symbol

_T = TypeVar("_T")

Structure: TypeAlias = "str | dict[str, list[Structure]] | None"
"""How outputs nest: ``"array"``, None, ``{"tuple": [...]}`` or ``{"list": [...]}``."""

Nested: TypeAlias = "_T | list[Nested[_T]] | tuple[Nested[_T], ...] | None"
"""An array, or nested lists and tuples of arrays and None."""


class Graph(NamedTuple):
    """The graph of a network.

    Attributes
    ----------
    symbol : Symbol
        All outputs, flat.
    structure : Structure
        How they nest.
    has_casts : bool
        Whether MXNet's AMP has put casts into it.
    """

    symbol: Symbol
    structure: Structure
    has_casts: bool


def trace(net: HybridBlock, input_names: Sequence[str]) -> Graph:
    """Return the graph that `net` makes of symbols of these names.

    The network is called with symbols, as hybridizing does, but it does not keep the result: its
    own graphs, flags and parameters stay as they are.

    Raises
    ------
    TypeError
        If `net` is not a Block.
    ValueError
        If it cannot be hybridized; the message names the layer.
    """
    _check_blocks(net)
    try:
        with autograd.pause(train_mode=False):
            outputs = net(*(to_active_mode(mx.sym.var(name)) for name in input_names))
        flat, structure = _flatten(outputs)
    except Exception as e:  # the hybrid_forward of a user raises exceptions of any type
        layer = _layer_in(e.__traceback__) or net
        raise ValueError(
            f"net cannot be hybridized: its layer {_describe(net, layer)} fails with symbols "
            f"({type(e).__name__}: {_summary_of(e)}); write its hybrid_forward with operators of F "
            "alone, without .asnumpy(), .shape or Python's if on values"
        ) from e
    symbol = mx.sym.Group(flat)
    _check_custom(symbol)
    nodes = json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]
    has_casts = any(node["op"] in ("amp_cast", "amp_multicast") for node in nodes)
    return Graph(symbol, structure, has_casts)


def flatten(outputs: Nested[_T]) -> list[_T]:
    """Return the arrays of nested outputs in order, without None."""
    if isinstance(outputs, list | tuple):
        return [array for item in outputs for array in flatten(item)]
    return [] if outputs is None else [outputs]


def rebuild(structure: Structure, arrays: Iterator[_T]) -> Nested[_T]:
    """Return `arrays` nested as `structure` says."""
    if structure is None:
        return None
    if isinstance(structure, str):  # "array"
        return next(arrays)
    ((kind, items),) = structure.items()
    nested = [rebuild(item, arrays) for item in items]
    return tuple(nested) if kind == "tuple" else nested


def _flatten(outputs: object) -> tuple[list[Symbol], Structure]:
    if isinstance(outputs, Symbol):
        outputs = to_nd(outputs)
        # Called with arrays, an operator with several outputs returns a list.
        several = len(outputs.list_outputs())
        return list(outputs), "array" if several == 1 else {"list": ["array"] * several}
    if outputs is None:
        return [], None
    if not isinstance(outputs, list | tuple):
        raise TypeError(f"an output is a {type(outputs).__name__}, not an array, list or tuple")
    flat: list[Symbol] = []
    structure: list[Structure] = []
    for item in outputs:
        symbols, shape = _flatten(item)
        flat.extend(symbols)
        structure.append(shape)
    return flat, {"list" if isinstance(outputs, list) else "tuple": structure}


def _check_blocks(net: Block) -> None:
    if not isinstance(net, Block):
        raise TypeError(f"net must be a gluon HybridBlock, got {net!r}: give the network itself")
    plain = [block for _, block in _walk(net, "") if not isinstance(block, HybridBlock)]
    if plain:
        # The innermost: a Sequential around it is often plain only because of what it contains.
        layer = plain[-1]
        raise ValueError(
            f"net cannot be hybridized: its layer {_describe(net, layer)} is a gluon.Block: make "
            f"it {_hybrid_of(layer)}; the trained weights stay: net.save_parameters('net.params'), "
            "then load_parameters('net.params') of the new network"
        )


def _hybrid_of(layer: Block) -> str:
    if isinstance(layer, nn.Sequential):
        return "an nn.HybridSequential of the same layers"
    return "a HybridBlock with a hybrid_forward"


def _check_custom(symbol: Symbol) -> None:
    for node in symbol.get_internals():
        if node.attr("op_type") is not None:
            raise ValueError(
                f"net cannot be exported: its operator {node.name!r} is the custom operator "
                f"{node.attr('op_type')!r}, whose Python code is not part of a graph; write it "
                "with operators of F"
            )


def _walk(block: Block, path: str) -> Iterator[tuple[str, Block]]:
    """Yield `block` and all Blocks in it, with their paths, outer before inner."""
    yield path, block
    for name, child in children_of(block).items():
        yield from _walk(child, f"{path}.{name}" if path else name)


def _describe(net: Block, layer: Block) -> str:
    path = next((path for path, block in _walk(net, "") if block is layer), "")
    return f"{path or 'net'!r} ({type(layer).__name__} {layer.name!r})"


def _layer_in(traceback: types.TracebackType | None) -> Block | None:
    """Return the innermost Block that was being called when the exception was raised."""
    layer = None
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is Block.__call__.__code__:
            layer = frame.f_locals["self"]
        traceback = traceback.tb_next
    return layer


def _summary_of(error: Exception) -> str:
    """Return the first line of a Python error, which says what went wrong, cut to 200 letters."""
    return (str(error).strip().splitlines() or [""])[0][:200]
