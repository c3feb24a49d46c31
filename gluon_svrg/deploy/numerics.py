"""Numerical checks: how much two results differ, and whether this CPU overflows in int8."""

from __future__ import annotations

import platform
import re
import warnings
from functools import cache
from pathlib import Path

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray

# The allowed difference of two computations of the same graph, relative to the largest output:
# kernels add up in different orders.
_TOLERANCE = {"float16": 2e-2}


def tolerance_of(outputs: NumPyArray) -> float:
    """Return the allowed relative difference of other outputs from these, by the dtype."""
    return _TOLERANCE.get(outputs.dtype.name, 1e-4)


def max_difference(one: NumPyArray, other: NumPyArray) -> float:
    """Return the largest absolute difference of `one` from `other`, over the finite numbers.

    It is infinite if the shapes differ, or if `one` does not have the infinities and NaN of
    `other` in the same places.
    """
    if one.shape != other.shape:
        return float("inf")
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(one[finite]).all():
        return float("inf")
    return float(np.abs(one[finite].astype("float64") - other[finite]).max(initial=0))


def output_scale(outputs: NumPyArray) -> float:
    """Return the largest finite absolute value of `outputs`, but at least 1."""
    return max(1.0, float(np.abs(outputs[np.isfinite(outputs)]).max(initial=0)))


@cache
def processor_name() -> str:
    """Return the name of the processor, or its architecture if the system does not say it."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = ""
    names = re.findall(r"model name\s*: (.*)", text)
    return names[0] if names else platform.machine()


@cache
def int8_overflows() -> bool:
    """Return whether dense layers in int8 give wrong results on this CPU.

    Without VNNI oneDNN adds two products in 16 bits. This multiplies the largest numbers to see.
    """
    most, count = 127, 2
    data, weight = (mx.nd.array(np.full((1, count), most), dtype="int8") for _ in range(2))
    limits = [mx.nd.array([bound]) for bound in (-1, 1, -1, 1)]
    product = mx.nd.contrib.quantized_fully_connected(
        data, weight, *limits, num_hidden=1, no_bias=True
    )[0]
    return bool(product.asscalar() != count * most * most)


def warn_of_overflow(what: str) -> None:
    """Warn if `what`, a model in int8, may give wrong results on this CPU."""
    if int8_overflows():
        warnings.warn(
            f"{what}: on this CPU products of int8 overflow, because it has no VNNI, and dense "
            "layers may be far off: run it on a CPU with VNNI, or take the float32 model",
            UserWarning,
            stacklevel=3,
        )
