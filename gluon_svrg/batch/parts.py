"""Data, label and weights of a batch; calling the network and the loss with them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sized
from itertools import pairwise
from typing import Any, NamedTuple, cast

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import is_mx_np, to_active_mode, to_nd
from gluon_svrg._mxnet.block import inputs_of, names_of_own_parameters
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg.arrays.batch import num_samples, slice_samples
from gluon_svrg.arrays.nested import check_no_mask, describe_value, tree_leaves, tree_map
from gluon_svrg.batch.casting import (
    call_network_with_casts,
    call_with_casts,
    dtype_for,
    dtype_in,
    precision_of,
    without_bool,
)
from mxnet import gluon
from mxnet.ndarray import NDArray

_KEYS = ("data", "label", "sample_weight")
_WAY_OUT = (
    "let the loader yield (data, label) or (data, label, sample_weight), as a tuple or as a dict "
    "with these keys, or give the Estimator a batch_processor that knows this batch"
)
_USE_ARRAY_LOADER = (
    "give whole arrays as gluon_svrg.data.ArrayLoader(data, label, batch_size=32), which makes "
    "batches of them"
)


class CallError(ValueError):
    """The network cannot be called with the data of a batch; the message has the way out."""


class BatchParts(NamedTuple):
    """The parts of a batch: each an array, or arrays in tuples, lists and dicts.

    Attributes
    ----------
    data : NDArray, tuple, list or dict
        The network's arguments: one array, several by position, or a dict by name.
    label : NDArray, tuple, list or dict
        The second argument of the loss.
    weight : NDArray, tuple, list, dict or None
        The weights of the samples.
    """

    data: Any
    label: Any
    weight: Any = None

    def split(self, contexts: list[mx.Context], batch_axis: int) -> list[BatchParts]:
        """Split the samples over the contexts; contexts without a sample are left out."""
        devices = contexts
        if len(contexts) > 1:
            devices = contexts[: num_samples(tree_leaves(self.data)[0], batch_axis)]
        shares = [split_over_contexts(part, devices, batch_axis) for part in self]
        return [BatchParts(*parts) for parts in zip(*shares, strict=True)]


def unpack_batch(
    batch: object, net: gluon.Block, batch_axis: int = 0, contexts: int = 1
) -> BatchParts:
    """Return data, label and weights of a batch, as arrays of MXNet's present mode.

    NumPy arrays are converted to the precision of the network.

    Raises
    ------
    ValueError
        If it is not such a batch, its arrays differ in the number of samples, or it mixes
        ``mx.np.ndarray`` and NDArray.
    """
    items = _items_of(batch)
    if _is_plain_pair(items) and batch_axis == 0:
        data, label = (to_active_mode(cast(NDArray, item)) for item in items[:2])
        return BatchParts(data, _without_bool(label, net))
    _check_are_of_one_kind(items)
    data, label, weight = (_as_ndarrays(item, net) for item in items)
    parts = BatchParts(data, _without_bool(label, net), _without_bool(weight, net))
    for name, part in zip(_KEYS, parts, strict=True):
        _check_arrays(name, part, part is not None or name != "sample_weight")
    _check_lengths(parts, batch_axis, contexts)
    return parts


def unpack_data(batch: object, net: gluon.Block) -> Any:
    """Return the data of a batch that may have no label, as NDArrays."""
    if isinstance(batch, (NDArray, np.ndarray)):
        data: object = batch
    elif isinstance(batch, (list, tuple)) and len(batch) == 1:
        data = batch[0]
    elif isinstance(batch, Mapping) and "label" not in batch:
        data = batch["data"] if set(batch) <= set(_KEYS) else batch
    elif isinstance(batch, (list, tuple, Mapping)) and len(batch) in (2, 3):
        data = _items_of(batch)[0]
    else:
        raise ValueError(
            f"the data to predict must be an array, a dict of arrays, or batches, and a batch of "
            f"them is {describe_value(batch)}: give the array itself, numpy.asarray(data)"
        )
    data = _as_ndarrays(data, net)
    _check_arrays("data", data, is_needed=True)
    return data


def weight_in(batch: object) -> Any:
    """Return the weights of a batch as they are in it; None if it has none."""
    return _items_of(batch)[2]


def split_over_contexts(part: object, devices: list[mx.Context], batch_axis: int) -> list[Any]:
    """Split an array, or each array in `part`, over the devices."""
    if part is None:
        return [None] * len(devices)
    if isinstance(part, NDArray):
        return _split(part, devices, batch_axis)
    shares = [_split(array, devices, batch_axis) for array in tree_leaves(part)]
    return [_with_leaves(part, [share[i] for share in shares]) for i in range(len(devices))]


def _split(array: NDArray, devices: list[mx.Context], batch_axis: int) -> list[NDArray]:
    """Return the samples of each device, in order: the first ones get one more if it is uneven.

    As `gluon.utils.split_and_load`, which calls a deprecated method of an mx.np.ndarray.
    """
    if len(devices) == 1 and array.ctx == devices[0]:
        return [array]
    shares = [to_nd(array)]
    if len(devices) > 1:
        each, extras = divmod(num_samples(array, batch_axis), len(devices))
        begins = [i * each + min(i, extras) for i in range(len(devices) + 1)]
        rows = [slice(begin, end) for begin, end in pairwise(begins)]
        shares = [slice_samples(shares[0], part, batch_axis) for part in rows]
    return [
        to_active_mode(share.as_in_context(device))
        for share, device in zip(shares, devices, strict=True)
    ]


def call_network(net: gluon.Block, data: object) -> Any:
    """Return the network's output.

    Several arrays are its arguments by position; those of a dict by name. Arrays of a dtype that
    the network does not accept are cast to its precision: first floats, then integers and bool,
    too (to float16 only integers of 8 bits).
    """
    arguments = network_arguments(net, data)
    try:
        return call_network_with_casts(net, arguments)
    except mx.base.MXNetError as error:
        widths = [a.shape[1] for a in tree_leaves(arguments) if getattr(a, "stype", "") == "csr"]
        if not widths or "shape" not in str(error):
            raise
        reason = reason_of(error)
        raise CallError(
            f"{type(net).__name__} cannot take CSR data with {widths[0]} columns ({reason}): all "
            "batches need the columns of its weights; give the matrices that width"
        ) from error
    except (TypeError, ValueError) as error:
        inputs = inputs_of(net) if isinstance(net, gluon.SymbolBlock) else arguments
        if len(inputs) != len(arguments):
            raise CallError(
                f"the SymbolBlock has {len(inputs)} inputs ({', '.join(inputs)}), and the data of "
                f"a batch are {len(arguments)}: if an input is the label of an output layer, make "
                "the block of the symbol before that layer, for example "
                "gluon.SymbolBlock(symbol.get_internals()['fc1_output'], mx.sym.var('data'))"
            ) from error
        if len(arguments) == 1 or isinstance(error, ValueError):
            raise
        raise CallError(
            f"{type(net).__name__} cannot be called with {len(arguments)} arrays ({error}): the "
            "data of a batch are the arguments of its forward; give as many arrays as it takes"
        ) from error


def cannot_compute(data: str, batch: object, error: Exception) -> ValueError:
    """Return the error for a batch of `data` with which a forward pass fails."""
    given = " and ".join(map(describe_value, tree_leaves(batch)))
    return ValueError(
        f"network and loss cannot compute a batch of {data}, {given} ({reason_of(error)}): "
        "give data of the shapes that the network was trained with"
    )


def network_arguments(net: gluon.Block, data: object) -> tuple[Any, ...]:
    """Return the network's arguments: several arrays by position, those of a dict by name."""
    if isinstance(data, NDArray):
        return (data,)
    if isinstance(data, Mapping):
        return _by_name(net, data)
    return tuple(data) if isinstance(data, (list, tuple)) else (data,)


def compute_losses(loss: gluon.loss.Loss, parts: BatchParts, pred: object) -> NDArray:
    """Return the losses of the samples, times their weights.

    Weights with one axis belong to the samples and multiply the losses. Others belong to elements:
    the loss gets them as its third argument, as Gluon's losses do. Labels and weights of a dtype
    that the loss does not accept are cast to that of the output.

    Raises
    ------
    ValueError
        If a loss of Gluon's is given several outputs or labels, or weights do not fit the losses.
    """
    label, weight = parts.label, parts.weight
    is_of_samples = isinstance(weight, NDArray) and weight.ndim == 1
    # Cast by itself: if it were refused, the label would be cast with it, and classes be rounded.
    extra = () if weight is None or is_of_samples else (_cast_weights(weight, dtype_in(pred)),)
    try:
        losses: NDArray = call_with_casts(loss, (pred,), (label, *extra), lambda: dtype_in(pred))
    except (AttributeError, TypeError, ValueError, AssertionError, mx.base.MXNetError) as error:
        if type(loss).__module__ != "mxnet.gluon.loss" or (
            isinstance(pred, NDArray) and isinstance(label, NDArray)
        ):
            raise
        raise ValueError(
            f"{type(loss).__name__} takes one output and one label, and the network returned "
            f"{describe_value(pred)} for {describe_value(label)} as label: give the Estimator a "
            "loss of your own, a gluon.loss.Loss that is called with (outputs, labels)"
        ) from error
    if not is_of_samples:
        return losses
    if losses.ndim == 0 or losses.shape[0] != weight.shape[0]:
        raise ValueError(
            f"the sample weights have shape {weight.shape} and the losses {losses.shape}: the loss "
            "must give one value per sample; or leave the weights out of the batch"
        )
    weight = weight.astype(losses.dtype, copy=False).reshape((-1, *(1,) * (losses.ndim - 1)))
    weighted: NDArray = losses * weight
    return weighted


def _cast_weights(weight: object, dtype: np.dtype[Any]) -> Any:
    return tree_map(lambda array: array.astype(dtype, copy=False), weight)


def count_samples(losses: list[NDArray], labels: list[object], batch_axis: int) -> int:
    """Return the number of samples of a batch, also if the loss is one number for all of them."""
    count = 0
    for i, loss in enumerate(losses):
        samples = (*loss.shape, 1)[0]
        count += samples
        if samples == 1 and loss.size == 1 and i < len(labels):
            arrays = [leaf for leaf in tree_leaves(labels[i]) if isinstance(leaf, NDArray)]
            count += num_samples(arrays[0], batch_axis) - 1 if arrays else 0
    return count


def _items_of(batch: object) -> tuple[object, object, object]:
    if not isinstance(batch, (list, tuple)) and isinstance(batch, Mapping):
        if {"data", "label"} <= set(batch) <= set(_KEYS):
            return batch["data"], batch["label"], batch.get("sample_weight")
        raise ValueError(
            f"a batch that is a dict must have the keys 'data' and 'label', and may have "
            f"'sample_weight', got {sorted(map(str, batch))}: {_WAY_OUT}"
        )
    if not isinstance(batch, (list, tuple)) or len(batch) not in (2, 3):
        way_out = _WAY_OUT
        if isinstance(batch, (NDArray, np.ndarray)):
            what, way_out = describe_value(batch), f"{_USE_ARRAY_LOADER}; {_WAY_OUT}"
        elif hasattr(batch, "tocsr"):  # SciPy's, whose len() raises
            what, way_out = f"a {type(batch).__name__}", f"{_USE_ARRAY_LOADER}; {_WAY_OUT}"
        elif isinstance(batch, Sized):
            what = f"a {type(batch).__name__} of {len(batch)}"
        else:
            what = f"a {type(batch).__name__}"
        raise ValueError(f"a batch must be a (data, label) pair, got {what}: {way_out}")
    data, label, *weight = batch
    return data, label, weight[0] if weight else None


def _is_plain_pair(items: tuple[object, object, object]) -> bool:
    """Return whether it is a plain (data, label) pair of arrays that need no conversion."""
    data, label, weight = items
    if weight is not None or not (isinstance(data, NDArray) and isinstance(label, NDArray)):
        return False
    if is_mx_np(data) != is_mx_np(label):
        return False
    shape, other = data.shape, label.shape
    return len(shape) > 0 < len(other) and bool(shape[0] == other[0])


def _check_are_of_one_kind(items: tuple[object, object, object]) -> None:
    kinds = {
        name: {is_mx_np(leaf) for leaf in tree_leaves(item) if isinstance(leaf, NDArray)}
        for name, item in zip(_KEYS, items, strict=True)
    }
    if len(set().union(*kinds.values())) < 2:
        return
    told = [
        f"{name} {' and '.join('mx.np.ndarray' if kind else 'NDArray' for kind in sorted(found))}"
        for name, found in kinds.items()
        if found
    ]
    raise ValueError(
        f"the arrays of a batch are of two kinds ({', '.join(told)}): make all of them with mx.np "
        "or all of them with mx.nd; array.as_np_ndarray() and array.as_nd_ndarray() convert them "
        "without a copy"
    )


def _check_arrays(name: str, part: object, is_needed: bool) -> None:
    if isinstance(part, NDArray) and part.ndim:
        return
    leaves = tree_leaves(part)
    if is_needed and not leaves:
        raise ValueError(f"the {name} of a batch has no array, got {part!r}: {_WAY_OUT}")
    for leaf in leaves:
        if not isinstance(leaf, NDArray) or not leaf.ndim:
            raise ValueError(
                f"the {name} of a batch must be arrays with an axis of samples, got "
                f"{describe_value(leaf)}: {_WAY_OUT}"
            )


def _check_lengths(parts: BatchParts, batch_axis: int, contexts: int) -> None:
    # Along another axis than the first, and of other inputs than the first, equal lengths are
    # needed only to share a batch out.
    data, *others = tree_leaves(parts.data)
    shape = data.shape
    length = shape[batch_axis] if batch_axis < len(shape) else None
    checked = {"data": others} if contexts > 1 else {}
    if batch_axis == 0 or contexts > 1:
        checked |= {"label": tree_leaves(parts.label), "sample_weight": tree_leaves(parts.weight)}
    for name, arrays in checked.items():
        for array in arrays:
            is_equal = num_samples(array, batch_axis) == length
            if is_equal or (name == "sample_weight" and array.ndim > 1 and contexts == 1):
                continue
            raise ValueError(
                f"data and {name} of a batch must have the same length along axis {batch_axis}, "
                f"got shapes {shape} and {array.shape}: look at how the loader pairs them"
            )


def _as_ndarrays(part: object, net: gluon.Block) -> Any:
    """Return `part` with NumPy's arrays, and what can be made one, at the network's precision.

    Whole numbers that it would round keep a dtype that holds them.
    """
    if isinstance(part, NDArray) or all(isinstance(leaf, NDArray) for leaf in tree_leaves(part)):
        return tree_map(to_active_mode, part)
    dtype = precision_of(net)

    def convert(array: object) -> object:
        if isinstance(array, NDArray):
            return to_active_mode(array)
        if not hasattr(array, "__array__"):
            return array
        check_no_mask("an array of a batch", array)
        values = np.asarray(array)
        if values.dtype.kind not in "fiub":
            return array
        return to_active_mode(mx.nd.array(values, dtype=dtype_for(values, dtype)))

    return tree_map(convert, part)


def _without_bool(part: object, net: gluon.Block) -> Any:
    """Return bool arrays as numbers 0 and 1, which losses and metrics take."""
    if isinstance(part, NDArray):
        return without_bool(part, precision_of(net)) if part.dtype is np.bool_ else part
    return tree_map(lambda array: without_bool(array, precision_of(net)), part)


def _with_leaves(part: object, leaves: list[NDArray]) -> Any:
    remaining = iter(leaves)
    return tree_map(lambda _: next(remaining), part)


def _by_name(net: gluon.Block, data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arrays in the order of the arguments: a Block takes none by name."""
    own = isinstance(net, gluon.HybridBlock) and type(net).forward is gluon.HybridBlock.forward
    function = net.hybrid_forward if own else net.forward
    arguments = list(inspect.signature(function).parameters.values())[1 if own else 0 :]
    arguments = [
        argument
        for argument in arguments
        if argument.kind is argument.POSITIONAL_OR_KEYWORD
        and argument.name not in names_of_own_parameters(net)
    ]
    names = [argument.name for argument in arguments]
    needed = {argument.name for argument in arguments if argument.default is argument.empty}
    if not needed <= set(data) <= set(names):
        raise ValueError(
            f"the data of the batch have the names {list(data)} and {type(net).__name__} takes "
            f"{names}: name them alike, or give the arrays in order, as a tuple"
        )
    given = [data.get(argument.name, argument.default) for argument in arguments]
    while given and names[len(given) - 1] not in data:
        given.pop()
    return tuple(given)
