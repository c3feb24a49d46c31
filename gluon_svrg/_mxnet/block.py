"""Block, Parameter, NDArray, and the losses."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._typing import NumPyArray
from mxnet import autograd
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock
from mxnet.ndarray import NDArray


def has_shape(param: Parameter) -> bool:
    """Return whether the shape is known; if not, the first forward pass infers it."""
    return not param._deferred_init


def has_data(param: Parameter) -> bool:
    """Return whether `param` is initialised and its shape is known."""
    return param._data is not None


def has_gradient(param: Parameter) -> bool:
    """Return whether there are gradient arrays; in a snapshot's pass, whether it needs them."""
    return param._grad is not None


def finish_initialization(param: Parameter, shape: Sequence[int]) -> None:
    """Give a Parameter that waits for its shape this one."""
    param.shape = shape
    param._finish_deferred_init()


def storage_types(param: Parameter) -> tuple[str, str]:
    """Return the storage types of the weights and of the gradient: 'default' is dense."""
    return param._stype, param._grad_stype


def is_differentiable(param: Parameter) -> bool:
    """Return whether `param` can have a gradient: running statistics cannot."""
    return param._differentiable


def arrays_of(param: Parameter) -> tuple[list[NDArray] | None, list[NDArray] | None]:
    """Return the lists of weights and gradients themselves, one array for each context."""
    return param._data, param._grad


def list_data(param: Parameter) -> list[NDArray]:
    """Return the weights on all contexts; of a row_sparse parameter the rows of the last pull."""
    return list(param._check_and_get(param._data, list))


def full_data(param: Parameter) -> list[NDArray]:
    """Return the weights on all contexts; those of a row_sparse parameter get all rows first.

    The kvstore holds them, once it has been given them; the parameter has what was pulled last.
    """
    arrays, trainer = list_data(param), param._trainer
    if (
        param._stype == "row_sparse"
        and trainer is not None
        and trainer._kv_initialized
        and not any(other is param for other in trainer._params_to_init)
    ):
        for array in arrays:
            rows = mx.nd.arange(0, array.shape[0], dtype="int64", ctx=array.ctx)
            trainer._row_sparse_pull(param, array, rows, full_idx=True)
    return arrays


class _RowSource:
    """Stands in for the trainer of a row_sparse parameter: its rows come from other weights."""

    def __init__(self, whole: Sequence[NDArray]) -> None:
        self._whole = {array.ctx: array for array in whole}

    def _row_sparse_pull(
        self, parameter: Parameter, out: Any, row_id: Any, full_idx: bool = False
    ) -> None:
        outs = out if isinstance(out, list) else [out]
        ids = row_id if isinstance(row_id, list) else [row_id] * len(outs)
        for array, rows in zip(outs, ids, strict=True):
            numbers = np.unique(rows.asnumpy().astype("int64"))
            with autograd.pause():
                on_device = mx.nd.array(numbers, array.ctx, "int64")
                mx.nd.sparse.retain(self._whole[array.ctx], on_device).copyto(array)


def override_row_source(param: Parameter, whole: Sequence[NDArray]) -> Callable[[], None]:
    """Let `row_sparse_data` take its rows from these arrays; return what ends that."""
    trainer = param._trainer
    param._trainer = _RowSource(whole)  # type: ignore[assignment]  # the one method that is called

    def end() -> None:
        param._trainer = trainer

    return end


def set_arrays(param: Parameter, data: list[NDArray] | None, grads: list[NDArray] | None) -> None:
    """Exchange the lists of weights and gradients.

    `Parameter.set_data` would copy, and reset the kvstore with its momentum. A graph that was
    recorded refers to the arrays themselves, so it stays valid after an exchange back.
    """
    param._data, param._grad = data, grads


def is_fresh(data: NDArray) -> bool:
    """Return whether a backward pass has written the gradient of `data` since its last use."""
    return data._fresh_grad


def mark_fresh(data: NDArray, is_fresh: bool) -> None:
    """Say whether the gradient of `data` is to be used by the next step."""
    data._fresh_grad = is_fresh


def children_of(block: Block) -> dict[str, Block]:
    """Return the Blocks in `block`, by the names that `save_parameters` uses."""
    return dict(block._children.items())


def own_parameters_of(block: Block) -> list[Parameter]:
    """Return the parameters that are the Block's, not those of Blocks in it."""
    params = [*block._reg_params.values(), *block.params.values()]
    return list({id(param): param for param in params}.values())


def names_of_own_parameters(block: Block) -> set[str]:
    """Return the names by which a HybridBlock hands its parameters to `hybrid_forward`."""
    return set(block._reg_params)


def parameters_by_structure(net: Block) -> dict[str, Parameter]:
    """Return the parameters by their place in `net`, as `save_parameters` names them.

    A network that is created again in the same process has other names, but the same places.
    """
    return net._collect_params_with_prefix()


def inputs_of(block: SymbolBlock) -> list[str]:
    """Return the names of the inputs of a SymbolBlock."""
    return [symbol.name for symbol in block._cached_graph[0]]


def auxiliary_states_of(block: Block) -> set[str]:
    """Return the auxiliary states of an imported graph, whose parameters do not say it."""
    if not isinstance(block, SymbolBlock):
        return set()
    return set(block._cached_graph[1].list_auxiliary_states())


def has_static_shape(net: Block) -> bool:
    """Return whether a Block in `net` is hybridized with a static shape.

    MXNet does not order a read of its running statistics after the backward pass that writes them.
    """
    is_static = (
        isinstance(net, HybridBlock) and net._active and dict(net._flags).get("static_shape", False)
    )
    return bool(is_static) or any(has_static_shape(child) for child in children_of(net).values())


def forget_graph(block: HybridBlock) -> None:
    """Make a hybridized Block trace its graph again, with the same flags."""
    block._clear_cached_op()


def arguments_of(block: Block) -> dict[str, Any]:
    """Return the arguments that a layer of ``gluon.nn`` calls its operator with."""
    return block._kwargs


def call_by_itself(block: HybridBlock) -> Callable[[], None]:
    """Let a hybridized Block run operator by operator; return what puts its graph back.

    `hybridize(False)` would throw the graph away.
    """
    attributes = vars(block)
    before = {name: attributes[name] for name in ("_active", "_cached_graph", "_cached_op")}
    block._active = False
    return lambda: attributes.update(before)


def forward_outside_of_training(net: Block) -> Callable[[], None]:
    """Let each Block of `net` run in prediction, recording nothing; return what ends that.

    On the objects themselves, since a batch processor may call any of them.
    """
    blocks = {id(block): block for block in (net, *net._children.values())}
    forwards = {key: vars(block).get("forward") for key, block in blocks.items()}

    def outside(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with autograd.pause(train_mode=False):
                return forward(*args)

        return run

    for block in blocks.values():
        vars(block)["forward"] = outside(block.forward)

    def undo() -> None:
        for key, block in blocks.items():
            vars(block).pop("forward")
            if forwards[key] is not None:
                vars(block)["forward"] = forwards[key]

    return undo


@contextmanager
def forgotten_forward(net: Block) -> Iterator[None]:
    """Let `net` run inside the block, operator by operator, and forget it afterwards.

    Hooks are silent. A Parameter that waits for its shape gets one, with values that draw no random
    numbers, and waits again afterwards: its own initializer has yet to draw what it would have.
    """
    blocks: dict[int, Block] = {}
    net.apply(lambda block: blocks.setdefault(id(block), block))
    waiting = [param for param in net.collect_params().values() if param._deferred_init]
    saved = [(vars(item), dict(vars(item))) for item in (*blocks.values(), *waiting)]
    for block in blocks.values():
        vars(block).update(_forward_hooks=OrderedDict(), _forward_pre_hooks=OrderedDict())
        if isinstance(block, HybridBlock) and not isinstance(block, SymbolBlock):
            vars(block).update(_active=False)
    for param in waiting:
        init, contexts, default, data = param._deferred_init
        if not (init in ("zeros", "ones") or isinstance(init, mx.init.Constant)):
            init = _Sines()
        param._deferred_init = (init, contexts, default, data)
    try:
        yield
    finally:
        for attributes, before in saved:
            attributes.clear()
            attributes.update(before)


@contextmanager
def own_graphs(*roots: Block) -> Iterator[None]:
    """Let hybridized Blocks trace graphs of their own inside the block, and forget these.

    A graph with static memory keeps the random number generators of the thread in which it first
    ran. Other attributes of the Blocks are put back, too, and a Parameter that waits for its shape
    waits again.
    """
    blocks: dict[int, Block] = {}
    for root in roots:
        root.apply(lambda block: blocks.setdefault(id(block), block))
    waiting = [p for root in roots for p in root.collect_params().values() if p._deferred_init]
    saved = [(vars(item), dict(vars(item))) for item in (*blocks.values(), *waiting)]
    for block in blocks.values():
        if isinstance(block, HybridBlock):
            block._clear_cached_op()
    try:
        yield
    finally:
        mx.nd.waitall()  # what these graphs still compute
        for attributes, before in saved:
            attributes.clear()
            attributes.update(before)


class _Sines(mx.init.Initializer):
    """Small numbers of both signs, all different, the same each time."""

    def _init_weight(self, _: str, arr: NDArray) -> None:
        numbers = mx.nd.arange(1, arr.size + 1, dtype="float32", ctx=arr.ctx)
        to_nd(arr)[:] = 0.1 * mx.nd.sin(numbers).reshape(arr.shape)


class BlockState:
    """What one Block puts aside while its network wears a snapshot: hooks, cached operator.

    A cached operator takes the weights as inputs, so network and twin share it, with its memory.
    One with a static shape is bound to its arrays: then a snapshot has its own.
    """

    def __init__(self, block: Block) -> None:
        # The attributes themselves: Block.__setattr__ takes ten times as long.
        self._attributes = vars(block)
        self._is_hybrid = isinstance(block, HybridBlock)
        self._twin: dict[str, Any] = {"_forward_hooks": {}, "_forward_pre_hooks": {}}
        self._own: dict[str, Any] = {}
        self._graph: Any = None

    def has_own_operator(self) -> bool:
        """Return whether the Block is hybridized with a static shape."""
        return bool(
            self._is_hybrid
            and self._attributes["_active"]
            and dict(self._attributes["_flags"]).get("static_shape", False)
        )

    def enter(self) -> None:
        """Put the network's state aside."""
        if not self.has_own_operator():
            self._twin = {"_forward_hooks": {}, "_forward_pre_hooks": {}}
        elif (
            "_cached_op" not in self._twin
            # hybridize() or cast() was called since: another graph, or other flags.
            or self._attributes["_cached_graph"] is not self._graph
        ):
            self._twin |= {"_cached_op": None, "_cached_op_args": []}
        self._own = {name: self._attributes[name] for name in self._twin}
        self._attributes.update(self._twin)

    def leave(self) -> None:
        """Put the network's state back, if it was put aside."""
        if not self._own:
            return
        self._graph = self._attributes.get("_cached_graph")
        self._twin = {name: self._attributes[name] for name in self._twin}
        self._attributes.update(self._own)
        self._own = {}


def axis_of_classes(loss: Block) -> int | None:
    """Return the axis of the classes of a SoftmaxCrossEntropyLoss whose labels are their numbers.

    None for any other loss.
    """
    is_sparse = type(loss) is mx.gluon.loss.SoftmaxCrossEntropyLoss and loss._sparse_label
    return loss._axis if is_sparse else None


class ExpectedOutput(NamedTuple):
    """What a loss of Gluon's takes the outputs of the network for.

    Attributes
    ----------
    kind : str
        'scores' of classes, to which the loss applies softmax; 'log-probabilities' of classes;
        'score', to which it applies sigmoid; or 'probability'.
    axis : int
        That of the classes.
    """

    kind: str
    axis: int = -1


def expected_output(loss: Block) -> ExpectedOutput | None:
    """Return what a loss of Gluon's takes outputs for; None if it has no scale that can be seen."""
    losses = mx.gluon.loss
    if type(loss) in (losses.SoftmaxCrossEntropyLoss, losses.KLDivLoss):
        kind = "log-probabilities" if loss._from_logits else "scores"
        return ExpectedOutput(kind, loss._axis)
    if type(loss) is losses.CTCLoss:
        return ExpectedOutput("scores")
    if type(loss) is losses.SigmoidBinaryCrossEntropyLoss:
        return ExpectedOutput("probability" if loss._from_sigmoid else "score")
    return ExpectedOutput("score") if type(loss) is losses.LogisticLoss else None


def labels_are_probabilities(loss: Block) -> bool:
    """Return whether labels of a loss of Gluon's with one output are from 0 to 1."""
    losses = mx.gluon.loss
    if type(loss) is losses.LogisticLoss:
        return loss._label_format == "binary"
    return type(loss) is losses.SigmoidBinaryCrossEntropyLoss


def labels_are_signed(loss: Block) -> bool:
    """Return whether a loss of Gluon's takes -1 and 1 for its two classes."""
    losses = mx.gluon.loss
    if type(loss) is losses.LogisticLoss:
        return loss._label_format == "signed"
    return type(loss) in (losses.HingeLoss, losses.SquaredHingeLoss)


def last_operator(output: NDArray) -> dict[str, Any]:
    """Return the node of the recorded graph that made an output, before changes of shape.

    Raises
    ------
    MXNetError
        If the graph is not recorded, or has a part that is no operator.
    """
    graph = json.loads(autograd.get_symbol(output).tojson())
    node: dict[str, Any] = graph["nodes"][graph["heads"][0][0]]
    while node["op"] in _SAME_NUMBERS:
        node = graph["nodes"][node["inputs"][0][0]]
    return node


_SAME_NUMBERS = {
    *("Flatten", "Reshape", "_copy", "expand_dims", "squeeze", "amp_cast"),
    *("_np_copy", "_np_reshape", "_npx_reshape", "_np_squeeze"),
}
"""The operators of a graph that give the same numbers in another shape or precision."""


def copy_from_numpy(array: NDArray, values: NumPyArray) -> None:
    """Copy `values` into `array` and wait: ``array[:] = values`` at a quarter of its time.

    An array that shares NumPy's memory (`from_numpy`) would crash where Python ends before it is
    freed.
    """
    array._sync_copyfrom(values)


def array_from_numpy(values: NumPyArray, ctx: mx.Context) -> NDArray:
    """Return a new array of these values: `mx.nd.array` copies them twice."""
    if not (values.shape and values.size):
        return mx.nd.array(values, ctx=ctx, dtype=values.dtype)
    array = mx.nd.empty(values.shape, ctx, values.dtype)
    copy_from_numpy(array, values)
    return array
