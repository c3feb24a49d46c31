"""Calling a Block with arrays of dtypes that it may not accept: they are cast if it raises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, ref

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

_Cast = tuple["np.dtype[Any]", str]

# For each network and loss, by the dtypes of its arguments: the cast that it needs, or None.
_CASTS: WeakKeyDictionary[gluon.Block, dict[tuple[Any, ...], _Cast | None]] = WeakKeyDictionary()


def _dtypes_of(arguments: object) -> tuple[Any, ...]:
    return tuple([leaf.dtype for leaf in tree_leaves(arguments)])


def _find_casts(net: gluon.Block, arguments: tuple[Any, ...], dtypes: tuple[Any, ...]) -> None:
    """Find out which inputs need a cast, in prediction mode so that no random number is drawn.

    A pass in training that fails would have drawn dropout masks, and changed all later ones.
    """
    own = precision_of(net)
    if all(np.dtype(dtype) == own for dtype in dtypes):
        return
    # If no cast helps, the pass itself raises the error.
    with (
        suppress(Exception),
        _mxnet.forgotten_forward(net),
        autograd.pause(train_mode=False),
    ):
        call_with_casts(net, (), arguments, lambda: own)


def call_network_with_casts(net: gluon.Block, arguments: tuple[Any, ...]) -> Any:
    """Return the network's output, with its arguments cast to its precision if need be."""
    dtypes = _dtypes_of(arguments)
    casts = _CASTS.setdefault(net, {})
    if dtypes not in casts and autograd.is_training():
        _find_casts(net, arguments, dtypes)
    output = call_with_casts(net, (), arguments, lambda: precision_of(net))
    casts.setdefault(dtypes, None)
    return output


def call_with_casts(
    block: Callable[..., Any],
    first: tuple[Any, ...],
    arguments: tuple[Any, ...],
    dtype_of: Callable[[], np.dtype[Any]],
) -> Any:
    """Return ``block(*first, *arguments)``, with the arguments cast if it rejects their dtypes."""
    casts = _CASTS.get(block) if isinstance(block, gluon.Block) else None
    known = casts.get(_dtypes_of(arguments)) if casts else None
    if known is not None and known[0] == dtype_of():  # the block may have been cast since
        return block(*first, *_cast(arguments, *known))
    try:
        return block(*first, *arguments)
    except mx.base.MXNetError:
        dtype, dtypes = dtype_of(), _dtypes_of(arguments)
        for kinds in ("f", "fiub"):
            cast = _cast(arguments, dtype, kinds)
            if _dtypes_of(cast) == dtypes:
                continue
            try:
                output = block(*first, *cast)
            except mx.base.MXNetError:
                continue
            if isinstance(block, gluon.Block):
                _CASTS.setdefault(block, {})[dtypes] = dtype, kinds
            return output
        raise


# The first Parameter of each network: `collect_params` goes through all of them. A weak reference,
# since a Parameter's trainer may lead back to the network.
_FIRST: WeakKeyDictionary[gluon.Block, ref[gluon.Parameter]] = WeakKeyDictionary()


def precision_of(net: gluon.Block) -> np.dtype[Any]:
    """Return the network's precision: the dtype of its first Parameter."""
    known = _FIRST.get(net)
    first = known() if known is not None else None
    if first is None:
        first = next(iter(net.collect_params().values()), None)
        if first is None:
            return np.dtype("float32")
        _FIRST[net] = ref(first)
    return np.dtype(first.dtype)


def dtype_in(pred: object) -> np.dtype[Any]:
    """Return the dtype of the first array in an output; float32 without one."""
    return np.dtype(next((leaf.dtype for leaf in tree_leaves(pred)), "float32"))


def _cast(arguments: object, dtype: np.dtype[Any], kinds: str) -> Any:
    def cast(array: NDArray) -> NDArray:
        own = np.dtype(array.dtype)
        is_counting = own.kind in "iu" and own.itemsize > 1 and dtype == np.float16
        return array.astype(dtype) if own.kind in kinds and not is_counting else array

    return tree_map(cast, arguments)
