"""summary: the layers of a network, with its shapes and parameters."""

from __future__ import annotations

import math
import reprlib
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._mxnet.block import (
    auxiliary_states_of,
    call_by_itself,
    children_of,
    has_data,
    has_shape,
    is_differentiable,
    own_parameters_of,
)
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.batch.parts import call_network, network_arguments
from gluon_svrg.data.training_data import training_data
from gluon_svrg.reporting.text_table import terminal_width
from mxnet import autograd
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock
from mxnet.ndarray import NDArray

_HEADER = ("name", "type", "output shape", "parameters")
_SHAPE = _HEADER.index("output shape")
_GAP = "  "


def summary(net: Block, data: object) -> str:
    """Return a table of the layers of a network.

    The table has a row for each Block that contains no other Blocks or has parameters of its own:
    name (as in the keys of `net.save_parameters`), type, the shape of its output (with the batch
    axis; of the first call, if there are several), and its parameters. A shared Block or Parameter
    is counted once, in its first row. Below are the totals: trainable parameters (``grad_req`` is
    not 'null'), frozen ones, and auxiliary ones (such as running statistics, which never have a
    gradient), and the size of all of them on one device; and which layer, if any, keeps the network
    from being hybridized and exported.

    To learn the shapes, one forward pass runs in prediction mode, on the first context of the
    network. It changes neither parameters nor running statistics nor hybridized graphs, and it
    draws no random numbers, unless the network itself does so in prediction. If layers still wait
    for the shape of their input, it finishes their initialisation, as any first forward pass does;
    that draws random numbers, and the text then says so.

    Parameters
    ----------
    net : Block
        The network, initialised; it may be hybridized.
    data : NDArray, numpy.ndarray, tuple of int, or iterable of batches
        The data of a batch (without labels), its shape (the pass then runs on zeros), or training
        data, whose first batch is used, with one input or several (of an ``mx.io.DataIter``, this
        ends a pass that has begun).

    Returns
    -------
    str
        The text, of several lines.

    Raises
    ------
    TypeError
        If `net` is not a Block, or `data` is none of the above.
    ValueError
        If the network is not initialised, or cannot compute `data`.
    """
    if not isinstance(net, Block):
        raise TypeError(f"net must be a gluon Block, got {net!r}: give the network itself")
    _check_initialised(net)
    deferred = [param for param in net.collect_params().values() if not has_shape(param)]
    blocks = _blocks_of(net)
    outputs = _outputs_of(net, blocks, _inputs_of(data, net))
    layers, params = _layers_of(blocks, outputs)
    width = terminal_width()
    table = _table_of(layers, width)
    lines = [*table, "", *_totals_of(params)]
    finished = [param for param in deferred if has_shape(param)]
    if finished:
        lines.append(
            "This summary has initialised the layers whose input shape was not known "
            f"({len(finished)} arrays of parameters)."
        )
    plain = [name for name, block in blocks.items() if not isinstance(block, HybridBlock)]
    if plain:
        layer = blocks[plain[-1]]  # the innermost, which the others contain
        lines.append(
            f"The network cannot be hybridized, nor exported by gs.deploy.export, because "
            f"{plain[-1] or 'net'!r} ({type(layer).__name__}) is no HybridBlock."
        )
    return "\n".join(line if line in table else _wrapped(line, width) for line in lines)


@dataclass
class _Output:
    """What the calls of a Block returned.

    Attributes
    ----------
    shape : str
        The shape of what the first call returned.
    calls : int
        The number of calls.
    """

    shape: str
    calls: int = 1


class _Layer(NamedTuple):
    """A row of the table."""

    name: str
    kind: str
    shape: str
    parameters: str


class _Params(NamedTuple):
    """The parameters of a network, each once."""

    trainable: list[Parameter]
    frozen: list[Parameter]
    auxiliary: list[Parameter]


def _check_initialised(net: Block) -> None:
    for param in net.collect_params().values():
        if has_shape(param) and not has_data(param):
            raise ValueError(
                f"parameter {param.name!r} of the network is not initialised: call "
                "net.initialize() first"
            )


def _blocks_of(net: Block) -> dict[str, Block]:
    """Return each Block once, by the first name under which it is found."""
    found: dict[str, Block] = {}
    seen: set[int] = set()

    def visit(name: str, block: Block) -> None:
        if id(block) in seen:
            return
        seen.add(id(block))
        found[name] = block
        for child_name, child in children_of(block).items():
            visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", net)
    return found


def _inputs_of(data: object, net: Block) -> list[NDArray]:
    """Return the arrays with which the network is called."""
    params = list(net.collect_params().values())
    context = params[0].list_ctx()[0] if params else mx.current_context()
    dtype = np.dtype(params[0].dtype if params else "float32")
    if isinstance(data, tuple) and data and all(_is_integer(item) for item in data):
        if min(data) < 1:
            raise ValueError(f"data must be a shape of positive integers, got {data}")
        return [to_active_mode(mx.nd.zeros(data, ctx=context, dtype=dtype))]
    arrays = [data] if isinstance(data, NDArray | np.ndarray) else _arrays_of_first_batch(data, net)
    return [
        to_active_mode(
            to_nd(array).as_in_context(context)
            if isinstance(array, NDArray)
            else mx.nd.array(array, ctx=context, dtype=dtype)
        )
        for array in arrays
    ]


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _arrays_of_first_batch(data: object, net: Block) -> Sequence[NDArray | NumPyArray]:
    message = (
        f"data must be a batch as an NDArray or a NumPy array, its shape as a tuple, or training "
        f"data, got {reprlib.repr(data)}"
    )
    if (
        not isinstance(data, Iterable)
        or isinstance(data, str | bytes | dict)
        or (isinstance(data, Iterator) and not isinstance(data, mx.io.DataIter))
        or (isinstance(data, list | tuple) and not data)
    ):
        raise TypeError(f"{message}: give (32, 3, 32, 32), for example")
    first = _first_batch_of(data)
    batch = first[0] if isinstance(first, list | tuple) and first else first
    batch = batch["data"] if isinstance(batch, dict) and "data" in batch else batch
    arrays = list(network_arguments(net, batch))
    if not all(isinstance(array, (NDArray, np.ndarray)) for array in arrays):
        raise TypeError(
            f"{message}, whose first batch is {reprlib.repr(first)}: give the data of a batch "
            "alone, or its shape"
        )
    return arrays


def _first_batch_of(data: Iterable[object]) -> object:
    return next(iter(training_data(data, "data").first_batches(1)), None)


def _outputs_of(net: Block, blocks: dict[str, Block], inputs: list[NDArray]) -> dict[int, _Output]:
    """Run a forward pass; return the output of each Block that was called, by its id."""
    outputs: dict[int, _Output] = {}

    def note(block: Block, _: tuple[object, ...], result: object) -> None:
        if not _arrays_in(result):
            return  # Symbols: MXNet is inferring the shapes of parameters
        if id(block) in outputs:
            outputs[id(block)].calls += 1
        else:
            outputs[id(block)] = _Output(_shape_of(result))

    hooks = [block.register_forward_hook(note) for block in blocks.values()]
    try:
        with _called_by_themselves(blocks), autograd.pause(train_mode=False):
            for array in _arrays_in(call_network(net, inputs)):
                array.wait_to_read()  # here MXNet raises what went wrong
    except (mx.base.MXNetError, ValueError, TypeError, AssertionError) as e:
        shapes = ", ".join(str(array.shape) for array in inputs)
        raise ValueError(
            f"the network cannot compute data of shape {shapes} ({reason_of(e)}): give a "
            "batch as it is trained on, without the label"
        ) from e
    finally:
        for hook in hooks:
            hook.detach()
    return outputs


@contextmanager
def _called_by_themselves(blocks: dict[str, Block]) -> Iterator[None]:
    """Let each Block be called by itself: inside a hybridized one there are only operators."""
    undo = [
        call_by_itself(block)
        for block in blocks.values()
        # A SymbolBlock has nothing but its graph.
        if isinstance(block, HybridBlock) and not isinstance(block, SymbolBlock)
    ]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _arrays_in(result: object) -> list[NDArray]:
    if isinstance(result, (list, tuple)):
        return [array for item in result for array in _arrays_in(item)]
    return [result] if isinstance(result, NDArray) else []


def _shape_of(result: object) -> str:
    if isinstance(result, NDArray):
        return str(result.shape)
    if isinstance(result, (list, tuple)):
        return f"[{', '.join(_shape_of(item) for item in result)}]"
    return type(result).__name__


def _layers_of(
    blocks: dict[str, Block], outputs: dict[int, _Output]
) -> tuple[list[_Layer], _Params]:
    layers, params, seen = [], _Params([], [], []), set()
    for name, block in blocks.items():
        own = own_parameters_of(block)
        if children_of(block) and not own:
            continue
        new = [param for param in own if id(param) not in seen]
        seen |= {id(param) for param in new}
        auxiliary = auxiliary_states_of(block)
        for param in new:
            if not is_differentiable(param) or param.name in auxiliary:
                params.auxiliary.append(param)
            else:
                (params.frozen if param.grad_req == "null" else params.trainable).append(param)
        output = outputs.get(id(block), _Output("not called", 0))
        calls = f", {output.calls} calls" if output.calls > 1 else ""
        shared = " (shared)" if len(new) < len(own) else ""
        layers.append(
            _Layer(
                name or block.name,
                type(block).__name__,
                output.shape + calls,
                f"{_count(new):,}{shared}",
            )
        )
    return layers, params


def _size_of(param: Parameter) -> int:
    """Return the number of elements; 0 if the shape is not known."""
    return math.prod(param.shape) if has_shape(param) else 0


def _count(params: list[Parameter]) -> int:
    return sum(_size_of(param) for param in params)


def _table_of(layers: list[_Layer], width: int) -> list[str]:
    """Return the lines of the table; a shape that is too long continues on the next line."""
    rows = [_HEADER, *layers]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    rest = sum(widths) - widths[_SHAPE] + len(_GAP) * (len(widths) - 1)
    room = max(width - rest, len(_HEADER[_SHAPE]))
    lines = []
    for row in rows:
        first, *more = textwrap.wrap(row[_SHAPE], room, break_long_words=False)
        lines.append([*row[:_SHAPE], first, *row[_SHAPE + 1 :]])
        lines += [["", "", line, ""] for line in more]
    widths[_SHAPE] = max(len(line[_SHAPE]) for line in lines)
    text = [
        _GAP.join(
            text.rjust(width) if column == len(line) - 1 else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return [text[0], "-" * len(text[0]), *text[1:]]


def _totals_of(params: _Params) -> list[str]:
    everything = [param for kind in params for param in kind]
    nbytes = sum(_size_of(param) * np.dtype(param.dtype).itemsize for param in everything)
    contexts = len(everything[0].list_ctx()) if everything else 1
    copies = f", on each of {contexts} contexts" if contexts > 1 else ""
    counts = ", ".join(
        f"{_count(kind):,} {name}" for name, kind in zip(_Params._fields, params, strict=True)
    )
    lines = [f"{_count(everything):,} parameters ({counts}), {_size_text(nbytes)}{copies}"]
    unknown = sum(not has_shape(param) for param in everything)
    if unknown:
        lines.append(
            "Not counted: layers that were not called, whose shapes are not known (arrays of "
            f"parameters: {unknown})."
        )
    return lines


def _size_text(nbytes: int) -> str:
    mebibytes = nbytes / 2**20
    return f"{mebibytes:.2f} MiB" if mebibytes >= 0.01 or not nbytes else "less than 0.01 MiB"


def _wrapped(line: str, width: int) -> str:
    return textwrap.fill(line, width, subsequent_indent="    ") if line else line
