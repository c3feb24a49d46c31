"""Calling a Block with arrays of dtypes that it may not accept: they are cast if it raises."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, ref

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.block import forgotten_forward
from gluon_svrg._typing import LOGGER, NumPyArray
from gluon_svrg.arrays.nested import tree_leaves, tree_map
from mxnet import autograd, gluon

_Cast = tuple["np.dtype[Any]", Collection[int]]

# For each network and loss, by the dtypes of its arguments: the cast that it needs, or None.
# A cast is the dtype, and which of the arrays get it.
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
        forgotten_forward(net),
        autograd.pause(train_mode=False),
    ):
        call_with_casts(net, (), arguments, lambda: own)


def call_network_with_casts(net: gluon.Block, arguments: tuple[Any, ...]) -> Any:
    """Return the network's output, with its arguments cast to its precision if need be."""
    dtypes = _dtypes_of(arguments)
    if np.bool_ in dtypes and not mx.util.is_np_array():
        # MXNet has hardly an operator for them, and tells it late.
        arguments = tree_map(lambda array: without_bool(array, precision_of(net)), arguments)
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
        for chosen in _choices(dtypes, dtype):
            try:
                output = block(*first, *_cast(arguments, dtype, chosen))
            except mx.base.MXNetError:
                continue
            if isinstance(block, gluon.Block):
                _CASTS.setdefault(block, {})[dtypes] = dtype, chosen
                _warn_if_rounded(block, arguments, dtype, chosen)
            return output
        raise


# Up to this many integer arrays every combination is tried (16 of 4 arrays); of more, all at once.
_MAX_CHOICES = 4

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


def dtype_for(values: NumPyArray, precision: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which NumPy's `values` are given to a network of this precision.

    It is the precision, unless whole numbers would be rounded by it, which may be ids or classes:
    these keep a dtype that holds them. Integers are never float16, which counts to 2,048 only.

    Raises
    ------
    ValueError
        If a number is greater than MXNet's integers.
    """
    is_wide = values.dtype.kind in "iu" and values.dtype.itemsize > 1
    if precision.kind != "f" or (precision == np.float16 and is_wide):
        precision = np.dtype("float32")
    if holds_integers(precision, values):
        return precision
    if values.dtype.kind == "f":
        return values.dtype if values.dtype.itemsize <= 8 else np.dtype("float64")
    if values.max() > np.iinfo("int64").max:
        raise ValueError(
            f"an array of dtype {values.dtype} has {values.max()}, and MXNet's integers end at "
            f"{np.iinfo('int64').max}: give smaller numbers"
        )
    return np.dtype("int64")


def holds_integers(dtype: np.dtype[Any], values: NumPyArray) -> bool:
    """Return whether `dtype`, one of floats, keeps the whole numbers in `values` as they are.

    Floats are taken for whole numbers if the first sample has no others.
    """
    kind, size = values.dtype.kind, values.dtype.itemsize
    digits = np.finfo(dtype).nmant + 1
    if kind == "b" or not values.size or (kind in "iu" and 8 * size <= digits):
        return True
    if kind == "f":
        first = values[:1]
        if size <= dtype.itemsize or not (first == np.floor(first)).all():
            return True
    return bool(values.min() >= -(2**digits) and values.max() <= 2**digits)


def without_bool(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return an NDArray of bool as 0 and 1 of `dtype`, anything else as it is."""
    return array.astype(dtype) if getattr(array, "dtype", None) is np.bool_ else array


def _choices(dtypes: tuple[Any, ...], dtype: np.dtype[Any]) -> Iterator[tuple[int, ...]]:
    """Yield which of the arrays to cast: all floats, then as few of the integers as possible.

    Integers may be ids, which stay what they are if the block takes them.
    """
    known = [np.dtype(other) for other in dtypes]
    floats = [i for i, other in enumerate(known) if other.kind == "f" and other != dtype]
    integers = [
        i
        for i, other in enumerate(known)
        if other.kind in "iub" and not (dtype == np.float16 and other.itemsize > 1)
    ]
    sizes = range(len(integers) + 1) if len(integers) <= _MAX_CHOICES else (0, len(integers))
    for size in sizes:
        for some in itertools.combinations(integers, size):
            if floats or some:
                yield (*floats, *some)


def _cast(arguments: object, dtype: np.dtype[Any], chosen: Collection[int]) -> Any:
    places = itertools.count()
    return tree_map(
        lambda array: array.astype(dtype) if next(places) in chosen else array, arguments
    )


def _warn_if_rounded(
    block: gluon.Block, arguments: object, dtype: np.dtype[Any], chosen: Collection[int]
) -> None:
    """Warn if a cast rounds whole numbers: the first time for these dtypes."""
    for place, array in enumerate(tree_leaves(arguments)):
        is_looked_at = np.dtype(array.dtype).kind in "iu" or dtype == np.float16
        if place in chosen and is_looked_at and array.stype == "default":
            values = array.asnumpy()
            if not holds_integers(dtype, values):
                logging.getLogger(LOGGER).warning(
                    "whole numbers up to %s are rounded to %s, which %s takes: if they are ids or "
                    "classes, give them as an array of their own, of dtype int64",
                    f"{values.max():.0f}",
                    dtype.name,
                    type(block).__name__,
                )
