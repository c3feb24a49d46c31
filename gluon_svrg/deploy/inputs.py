"""The arrays that a model is called with: checked, or drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.deploy.model_dir import Card, InputSpec
from mxnet.ndarray import NDArray


class InputCheck:
    """Takes what a model is called with, and returns a batch for each input.

    Parameters
    ----------
    card : dict
        The card of the model.
    finite : bool
        Whether NaN and infinities are an error, also those that a number becomes in the dtype of
        the model.
    """

    def __init__(self, card: Card, finite: bool) -> None:
        self.finite = finite
        self._specs = [
            (spec["name"], tuple(spec["shape"]), np.dtype(spec["dtype"])) for spec in card["inputs"]
        ]

    def __call__(self, inputs: Sequence[NumPyArray | NDArray]) -> tuple[list[NumPyArray], bool]:
        """Return the batches, and whether `inputs` are a single sample.

        Raises
        ------
        TypeError, ValueError
            If an input has the wrong type, dtype or shape, or numbers that are not finite.
        """
        arrays, is_sample = self._batches(inputs)
        if self.finite:
            for array, (name, _, dtype) in zip(arrays, self._specs, strict=True):
                _check_finite(array, name, dtype, is_sample)
        return arrays, is_sample

    def _batches(self, inputs: Sequence[NumPyArray | NDArray]) -> tuple[list[NumPyArray], bool]:
        specs = self._specs
        if len(specs) == 1 == len(inputs) and _is_batch(inputs[0], *specs[0]):
            return [inputs[0]], False  # the usual case: the checks below take longer
        if len(inputs) != len(specs):
            raise TypeError(
                f"the model takes {len(specs)} inputs ({', '.join(name for name, _, _ in specs)}), "
                f"got {len(inputs)}: give one array for each"
            )
        arrays = [_as_array(x, *spec) for x, spec in zip(inputs, specs, strict=True)]
        is_sample = arrays[0].ndim == len(specs[0][1])
        if is_sample:
            arrays = [array[None] for array in arrays]
        count = len(arrays[0])
        for array, (_, shape, _) in zip(arrays, specs, strict=True):
            if len(array) != count or array.ndim != len(shape) + 1:
                raise ValueError(
                    "all inputs need the same batch axis, got the shapes "
                    f"{[x.shape for x in inputs]}: give the same number of samples for each input"
                )
        return arrays, is_sample


def random_inputs(card: Card, count: int) -> list[NumPyArray]:
    """Return `count` samples for each input.

    If those of the export were integers, whatever the dtype, they are integers of their range:
    such as tokens. Others are standard normal, or zeros for an integer dtype.
    """
    random = np.random.default_rng(0)

    def values(spec: InputSpec) -> NumPyArray:
        shape = (count, *spec["shape"])
        if "integers" in spec:
            low, high = spec["integers"]
            return random.integers(low, high, shape, endpoint=True).astype(spec["dtype"])
        if np.dtype(spec["dtype"]).kind == "f":
            return random.standard_normal(shape).astype(spec["dtype"])
        return np.zeros(shape, spec["dtype"])

    return [values(spec) for spec in card["inputs"]]


def _is_batch(
    x: object, _: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> TypeGuard[NumPyArray]:
    """Return whether `x` is what the model takes, and needs no conversion."""
    return type(x) is np.ndarray and x.dtype == dtype and x.shape[1:] == shape and len(x) > 0


def _as_array(x: object, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NumPyArray:
    """Return `x` as a NumPy array; raises if it does not have this shape and kind of dtype."""
    if isinstance(x, NDArray):
        x = x.asnumpy()
    if not isinstance(x, np.ndarray):
        way_out = f"make one of the numbers by numpy.asarray(data, dtype='{dtype}')"
        if hasattr(x, "to_numpy"):
            way_out = "give data.to_numpy()"
        elif not isinstance(x, list | tuple | int | float):
            way_out = "give images and image files to predict_images()"
        raise TypeError(
            f"{name} must be a NumPy array or an NDArray, got a {type(x).__name__}: {way_out}"
        )
    if x.dtype != dtype and x.dtype.kind != dtype.kind and x.dtype.kind + dtype.kind != "ui":
        raise TypeError(
            f"{name} must be {dtype}, got {x.dtype}: convert it as the training data was, or give "
            "pixels to predict_images(), which normalises them"
        )
    if x.shape[1:] != shape and x.shape != shape:
        batch = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
        raise ValueError(
            f"{name} must have the shape {batch} or {shape}, got {x.shape}: give it in the shape "
            "of the training data"
        )
    if x.shape[:1] == (0,):
        raise ValueError(f"{name} has no sample, its shape is {x.shape}: give at least one")
    if dtype.kind in "ui" and x.dtype != dtype:
        least, greatest = np.iinfo(dtype).min, np.iinfo(dtype).max
        if x.size and (x.min() < least or x.max() > greatest):
            raise ValueError(
                f"{name} has numbers from {x.min()} to {x.max()}, {dtype} holds {least} to "
                f"{greatest}: give numbers like those of the training data"
            )
    return x


def _check_finite(array: NumPyArray, name: str, dtype: np.dtype[Any], is_sample: bool) -> None:
    """Raise ValueError if an input has NaN or infinities in the dtype of the model."""
    if dtype.kind != "f":
        return
    if array.dtype == dtype:
        # No NaN or infinity is lost in a sum of squares, which is faster than isfinite().all(); if
        # the sum itself overflows, the check below decides.
        flat = array.reshape(-1)
        if math.isfinite(flat.dot(flat)):
            return
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    if np.isfinite(cast).all():
        return
    position = tuple(int(i[0]) for i in np.nonzero(~np.isfinite(cast)))
    value, shown = array[position], position[1:] if is_sample else position
    too_large = f", which {dtype} cannot hold" if np.isfinite(value) else ""
    raise ValueError(
        f"{name} has {value} at {shown}{too_large}: replace such numbers as in training, or load "
        "the model with check_finite=False"
    )
