"""The private names of MXNet 1.9.1 that this package reads or writes, each with its reason.

Nothing outside this module names one, but the subclasses that override MXNet's own hooks
(`SVRGTrainer`, `BatchProcessor`, and those in `optimizer/`, which a kvstore's server loads before
there is a Gluon to import). The functions are in the order of their owners.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import mxnet as mx
import numpy
from gluon_svrg import text
from gluon_svrg._compat import NumPyArray
from mxnet import autograd
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock, Trainer
from mxnet.gluon.contrib.estimator.event_handler import EventHandler
from mxnet.gluon.contrib.estimator.utils import (
    _check_handler_metric_ref,
    _suggest_metric_for_loss,
)
from mxnet.gluon.loss import Loss
from mxnet.ndarray import NDArray

# --- Trainer -----------------------------------------------------------------------------------


def parameters_of(trainer: Trainer) -> list[Parameter]:
    """Return all parameters of `trainer`, in its order, which sorts a dict's by their names."""
    return trainer._params


def trained_parameters(trainer: Trainer) -> list[Parameter]:
    """Return those of them that have a gradient."""
    return [param for param in trainer._params if param.grad_req != "null"]


def has_fresh_gradient(trainer: Trainer) -> bool:
    """Return whether a backward pass has written a gradient since the last step."""
    return any(
        data._fresh_grad for param in trained_parameters(trainer) for data in param.list_data()
    )


def optimizer_of(trainer: Trainer) -> mx.optimizer.Optimizer:
    """Return the optimizer, also where `Trainer.optimizer` would first make its Updaters."""
    return trainer._optimizer


def contexts_of(trainer: Trainer) -> list[mx.Context]:
    """Return the contexts of the parameters of `trainer`."""
    return trainer._contexts


def step_scale(trainer: Trainer) -> float:
    """Return what `Trainer.step` divides by the batch size: 1, or a user's rescale_grad."""
    return trainer._scale


def is_distributed(trainer: Trainer) -> bool:
    """Return whether the kvstore of `trainer` has several workers; known once it is initialised."""
    return bool(trainer._distributed)


def kvstore_type(trainer: Trainer) -> str:
    """Return the kind of the kvstore, for a message."""
    return trainer._kvstore.type


def has_kvstore_that_updates(trainer: Trainer) -> bool:
    """Return whether a kvstore runs the optimizer already; initialises nothing."""
    return bool(trainer._kv_initialized and trainer._update_on_kvstore)


def updates_on_kvstore(trainer: Trainer) -> bool:
    """Return whether the kvstore of `trainer` runs the optimizer; initialises the kvstore.

    MXNet gives the first device's arrays to all then, BatchNorm's running statistics too, so that
    they would depend on the moment: here they stay as they are.
    """
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        replicas = [
            [(data, data.copy()) for data in param.list_data()[1:]]
            for param in trainer._params_to_init
            if not param._deferred_init
        ]
        trainer._init_params()
        for data, copy in itertools.chain.from_iterable(replicas):
            copy.copyto(data)
    return bool(trainer._kvstore and trainer._update_on_kvstore)


def updaters_in_use(trainer: Trainer) -> list[mx.optimizer.Updater]:
    """Return what holds the optimizer's states: one for each device, or the kvstore's.

    Raises
    ------
    RuntimeError
        If the servers of a dist kvstore run the optimizer, because they hold its states.
    """
    if not updates_on_kvstore(trainer):
        return trainer._updaters
    if trainer._distributed:
        raise RuntimeError(
            f"with the kvstore {trainer._kvstore.type!r} the servers hold the optimizer's states: "
            "to save or load them, make the trainer with update_on_kvstore=False"
        )
    return [trainer._kvstore._updater]


def forget_kvstore(trainer: Trainer) -> None:
    """Let `trainer` make its kvstore anew: one that updates holds a copy of the weights."""
    trainer._reset_kvstore()


def update_counts(optimizer: mx.optimizer.Optimizer) -> dict[int, dict[int, int]]:
    """Return how often each parameter was updated, by device and index."""
    return optimizer._all_index_update_counts


def set_update_counts(
    optimizer: mx.optimizer.Optimizer, counts: dict[int, int], devices: Iterable[int]
) -> None:
    """Set the counts of updates, by index, the same for each device.

    MXNet counts by device and would begin anew on one that it does not know, with num_update
    standing still until the count has caught up (MXNet issue 17357).
    """
    optimizer._all_index_update_counts = {device: dict(counts) for device in {0, *devices}}
    optimizer._index_update_count = optimizer._all_index_update_counts[0]


UPDATE_COUNTS = ("_index_update_count", "_all_index_update_counts")
"""The attributes of an optimizer that :func:`set_update_counts` sets."""


# --- AMP: MXNet puts the loss scaler on the Trainer, and asks for it in this way itself --------


def loss_scale_of(trainer: Trainer) -> float:
    """Return what MXNet's AMP multiplies the losses by at the moment; 1.0 without it."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    return 1.0 if scaler is None else float(scaler.loss_scale)


def scales_losses(trainer: Trainer) -> bool:
    """Return whether MXNet's AMP scales the losses."""
    return getattr(trainer, "_amp_loss_scaler", None) is not None


def halve_loss_scale(trainer: Trainer) -> bool:
    """Halve the loss scale, as AMP does after an overflow; return whether there is one to halve."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if scaler is None or scaler.loss_scale <= 1:
        return False
    scaler._loss_scale = scaler._next_loss_scale = scaler.loss_scale / 2
    scaler._unskipped = 0
    return True


def loss_scaler_state(trainer: Trainer) -> dict[str, Any] | None:
    """Return all attributes of AMP's loss scaler, which are numbers; None without one."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    return None if scaler is None else dict(vars(scaler))


def set_loss_scaler_state(trainer: Trainer, state: dict[str, Any] | None) -> None:
    """Put back what :func:`loss_scaler_state` returned, if there is a loss scaler."""
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    if scaler is not None and state is not None:
        vars(scaler).update(state)


# --- Parameter ---------------------------------------------------------------------------------


def has_shape(param: Parameter) -> bool:
    """Return whether the shape is known; if not, the first forward pass infers it."""
    return not param._deferred_init


def has_data(param: Parameter) -> bool:
    """Return whether `param` is initialised and its shape is known."""
    return param._data is not None


def has_gradient(param: Parameter) -> bool:
    """Return whether there are gradient arrays; while a snapshot is worn, whether it wants them."""
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


# --- Block -------------------------------------------------------------------------------------


def children_of(block: Block) -> dict[str, Block]:
    """Return the Blocks in `block`, by the names that `save_parameters` uses."""
    return dict(block._children.items())


def own_parameters_of(block: Block) -> list[Parameter]:
    """Return the parameters that are the Block's, not those of Blocks in it."""
    own = [*block._reg_params.values(), *block.params.values()]
    return list({id(param): param for param in own}.values())


def names_of_own_parameters(block: Block) -> set[str]:
    """Return the names by which a HybridBlock hands its parameters to `hybrid_forward`."""
    return set(block._reg_params)


def parameters_by_place(net: Block) -> dict[str, Parameter]:
    """Return the parameters by their place in `net`, as `save_parameters` names them.

    A network that is made anew in the same process has other names; the places stay.
    """
    return net._collect_params_with_prefix()


def auxiliary_states_of(block: Block) -> set[str]:
    """Return the auxiliary states of an imported graph, whose parameters do not say it."""
    if not isinstance(block, SymbolBlock):
        return set()
    return set(block._cached_graph[1].list_auxiliary_states())


def forget_graph(block: HybridBlock) -> None:
    """Let a hybridized Block trace its graph anew, with the same flags."""
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
    own = {key: vars(block).get("forward") for key, block in blocks.items()}

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
            if own[key] is not None:
                vars(block)["forward"] = own[key]

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
    own = [(vars(item), dict(vars(item))) for item in (*blocks.values(), *waiting)]
    for block in blocks.values():
        vars(block).update(_forward_hooks={}, _forward_pre_hooks={})
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
        for attributes, before in own:
            attributes.clear()
            attributes.update(before)


class _Sines(mx.init.Initializer):
    """Small numbers of both signs, all different, the same each time."""

    def _init_weight(self, _: str, arr: NDArray) -> None:
        numbers = mx.nd.arange(1, arr.size + 1, dtype="float32", ctx=arr.context)
        arr[:] = 0.1 * mx.nd.sin(numbers).reshape(arr.shape)


class BlockState:
    """What one Block puts aside while its network wears a snapshot: hooks, cached operator.

    A cached operator takes the weights as inputs, so network and twin share it, with its memory.
    One with a static shape is bound to its arrays: then the twin has one of its own.
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


# --- Loss --------------------------------------------------------------------------------------


def axis_of_classes(loss: Block) -> int | None:
    """Return the axis of the classes of a SoftmaxCrossEntropyLoss whose labels are their numbers.

    None for any other loss.
    """
    is_sparse = type(loss) is mx.gluon.loss.SoftmaxCrossEntropyLoss and loss._sparse_label
    return loss._axis if is_sparse else None


# --- Data loader: it keeps what it was made with in private attributes -------------------------


def dataset_of(loader: mx.gluon.data.DataLoader) -> Any:
    """Return the data set of a DataLoader."""
    return loader._dataset


def batch_sampler_of(loader: mx.gluon.data.DataLoader) -> Any:
    """Return what yields the indices of each batch of a DataLoader."""
    return loader._batch_sampler


def batchify_of(loader: mx.gluon.data.DataLoader) -> Callable[[list[Any]], Any]:
    """Return the function that makes a batch of samples."""
    return loader._batchify_fn


def has_workers(loader: mx.gluon.data.DataLoader) -> bool:
    """Return whether a DataLoader has processes or threads that make its batches ahead."""
    return bool(loader._num_workers)


def carries_samples_over(loader: mx.gluon.data.DataLoader) -> bool:
    """Return whether samples that are left over go into the next epoch: ``'rollover'``."""
    sampler = loader._batch_sampler
    return isinstance(sampler, mx.gluon.data.BatchSampler) and sampler._last_batch == "rollover"


# --- NDArray -----------------------------------------------------------------------------------


def copy_from_numpy(array: NDArray, values: NumPyArray) -> None:
    """Copy `values` into `array` and wait: ``array[:] = values`` at a quarter of its time.

    An array that shares NumPy's memory (`from_numpy`) would crash where Python ends before it is
    freed.
    """
    array._sync_copyfrom(values)


# --- Estimator ---------------------------------------------------------------------------------


def check_metrics_of_handlers(
    handlers: Sequence[EventHandler], known: set[mx.metric.EvalMetric]
) -> None:
    """Raise ValueError if a handler watches a metric that the Estimator does not have."""
    for handler in handlers:
        _check_handler_metric_ref(handler, known)


def suggested_metric(loss: Loss) -> mx.metric.EvalMetric | None:
    """Return the metric that MXNet's Estimator takes for `loss` if none is given."""
    return _suggest_metric_for_loss(loss)


# --- Text of parameters ------------------------------------------------------------------------
def _in_words(metric: mx.metric.EvalMetric) -> str:
    return f"EvalMetric: {text.text_of(dict(metric.get_name_value()))}"


def print_scalars_as_numpy_1() -> None:
    """Let the modules of MXNet that make text of parameters use ``text_of`` for ``str``.

    There is no function to exchange: each has a loop of ``str(value)`` in its middle. A module's
    own name ``str`` goes before the built-in and touches nothing outside the module;
    ``numpy.set_printoptions(legacy="1.25")`` would change what users see.
    """
    for module in (mx._ctypes.ndarray, mx._ctypes.symbol, mx.io.io):
        vars(module)["str"] = text.text_of
    vars(mx.symbol.symbol)["str"] = text.Text
    mx.metric.EvalMetric.__str__ = _in_words  # type: ignore[method-assign,assignment]


class _Bytes(numpy.ndarray):  # type: ignore[type-arg]
    """An array with the method `tostring`, which NumPy 2.3 removed, under its old name."""

    def tostring(self) -> bytes:
        return self.tobytes()


class _OpenCV(ModuleType):
    """OpenCV for `mx.recordio`, which packs an image as ``imencode(...)[1].tostring()``."""

    def __init__(self, cv2: ModuleType) -> None:
        super().__init__(cv2.__name__)
        self._cv2 = cv2

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cv2, name)

    def imencode(self, *args: Any) -> tuple[bool, NumPyArray]:
        is_done, encoded = self._cv2.imencode(*args)
        return is_done, encoded.view(_Bytes)


def c_array_of_numbers(ctype: type, values: Iterable[Any]) -> Any:
    """Return MXNet's `c_array` of `values`, of which some are arrays with one number.

    Thresholds of quantization are; NumPy 2.5 makes no number of them.
    """
    numbers = [value.item() if isinstance(value, numpy.ndarray) else value for value in values]
    return mx.base.c_array(ctype, numbers)


def do_as_with_numpy_1() -> None:
    """Let MXNet do what NumPy 2.3 and 2.5 no longer do for it: pack images, quantize."""
    if getattr(mx.recordio, "cv2", None) is not None:
        vars(mx.recordio)["cv2"] = _OpenCV(mx.recordio.cv2)
    vars(mx.contrib.quantization)["c_array"] = c_array_of_numbers


if repr(numpy.int64(2)) != "2":
    print_scalars_as_numpy_1()
    do_as_with_numpy_1()


# --- ONNX --------------------------------------------------------------------------------------


def onnx_translator() -> Any:
    """Return what translates a Symbol into ONNX; raises ImportError if onnx is not installed.

    ``mx.onnx.export_model`` would write the newest opset of the installed onnx into the file, but
    translate the operators as opset 13 has them.
    """
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph  # onnx is an optional extra

    return MXNetGraph()
