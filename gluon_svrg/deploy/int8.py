"""Whether this CPU computes what a model in int8 asks for."""

from __future__ import annotations

import warnings
from functools import cache

import mxnet as mx
import numpy as np


@cache
def int8_overflows() -> bool:
    """Return whether dense layers in int8 come out wrong on this CPU.

    oneDNN adds two products in 16 bits where the CPU has no VNNI: that is measured, at the
    greatest numbers.
    """
    most, count = 127, 2
    data, weight = (mx.nd.array(np.full((1, count), most), dtype="int8") for _ in range(2))
    limits = [mx.nd.array([bound]) for bound in (-1, 1, -1, 1)]
    product = mx.nd.contrib.quantized_fully_connected(
        data, weight, *limits, num_hidden=1, no_bias=True
    )[0]
    return bool(product.asscalar() != count * most * most)


def warn_of_overflow(what: str) -> None:
    """Warn where `what`, a model in int8, may be far off on this CPU."""
    if int8_overflows():
        warnings.warn(
            f"{what}: on this CPU products of int8 overflow, because it has no VNNI, and dense "
            "layers may be far off: run it on a CPU with VNNI, or take the float32 model",
            UserWarning,
            stacklevel=3,
        )
