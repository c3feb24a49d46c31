"""Gradients in fewer bytes, on the way between the workers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg.arrays.finite import sums_of_squares
from gluon_svrg.arrays.fused import FusedFunction
from mxnet.ndarray import NDArray

_MOST_PARTS = 8
"""Of arrays that are rounded by one call."""
_to_half = FusedFunction(lambda x: mx.sym.cast(x, dtype="float16"))
_to_single = FusedFunction(lambda x: mx.sym.cast(x, dtype="float32"))


def parse_compression(
    compression_params: dict[str, Any] | None,
) -> tuple[HalfPrecision | None, dict[str, Any] | None]:
    """Return what ``{'type': 'fp16'}`` asks for, and what is left for the kvstore of one worker.

    Raises
    ------
    ValueError
        If it is no dict, if its type is not known, or if ``'fp16'`` has anything beside it.
    """
    if compression_params is not None and not isinstance(compression_params, Mapping):
        raise ValueError(
            f"compression_params must be a dict, as {{'type': 'fp16'}}, or None, got "
            f"{compression_params!r}"
        )
    if not compression_params:
        return None, None
    # MXNet asks for the type only where a kvstore adds up: a slip would show on other machines.
    if (kind := compression_params.get("type")) not in ("fp16", "2bit"):
        raise ValueError(
            f"compression_params={compression_params!r}: the type must be 'fp16', for float16 "
            f"between workers, or '2bit', MXNet's own for one worker, got {kind!r}"
        )
    if kind != "fp16":
        return None, compression_params
    if more := sorted(compression_params.keys() - {"type"}):
        raise ValueError(
            f"compression_params={compression_params!r}: 'fp16' has no {more[0]!r}; leave it out"
        )
    return HalfPrecision(), None


class HalfPrecision:
    """Sums of float32 arrays that are float16 on the way: half of the bytes, and fewer digits.

    Each summand is rounded to float16, and so is each sum of two: to 11 bits, and below 6e-5 to a
    multiple of 6e-8. From 65520 on it is infinite. Arrays of other dtypes are added up as they are.
    """

    def __init__(self) -> None:
        self._copies: list[NDArray] = []

    def all_reduce(
        self, arrays: Sequence[NDArray], add: Callable[[Sequence[NDArray]], None]
    ) -> None:
        """As `add`, which adds up arrays over the workers."""
        numbers = _numbers_of_singles(arrays)
        singles = [arrays[i] for i in numbers]
        copies = self._copies_for(singles)
        # Several calls, so that the last layers' gradients go first, as in any sum.
        parts = _parts(singles)
        for part in reversed(parts):
            _to_half(singles[part], out=copies[part])
        sent = list(arrays)
        for i, copy in zip(numbers, copies, strict=True):
            sent[i] = copy
        add(sent)
        for part in parts:
            _to_single(copies[part], out=singles[part])

    def _copies_for(self, arrays: Sequence[NDArray]) -> list[NDArray]:
        """Return the same arrays each time: their sum is planned once."""
        wanted = [(array.shape, array.ctx) for array in arrays]
        if wanted != [(copy.shape, copy.ctx) for copy in self._copies]:
            self._copies = [mx.nd.empty(*one, dtype="float16") for one in wanted]
        return self._copies


def find_nonfinite(arrays: Sequence[NDArray]) -> int | None:
    """Wait for float32 sums, and return the first that is NaN or infinite; others are not read."""
    numbers = _numbers_of_singles(arrays)
    squares = sums_of_squares([arrays[i] for i in numbers])
    found = np.flatnonzero([not np.isfinite(n) for some in squares for n in some.asnumpy()])
    return numbers[found[0]] if len(found) else None


def _numbers_of_singles(arrays: Sequence[NDArray]) -> list[int]:
    return [i for i, array in enumerate(arrays) if array.dtype == np.float32]


def _parts(arrays: Sequence[NDArray]) -> list[slice]:
    """Return parts of about the same size, in their order."""
    ends = [*accumulate(array.size for array in arrays)]
    limits = [ends[-1] * (n + 1) / _MOST_PARTS for n in range(_MOST_PARTS)] if ends else []
    bounds = sorted({0, *(bisect_right(ends, limit) for limit in limits)})
    return [slice(begin, end) for begin, end in pairwise(bounds)]
