"""Gradients that are sent between workers as float16."""

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

_MAX_CALLS = 8
"""Calls that convert all arrays to float16. With several calls, the sum of the last layers'
gradients begins before the first layers' are converted."""
_to_float16 = FusedFunction(lambda x: mx.sym.cast(x, dtype="float16"))
_to_float32 = FusedFunction(lambda x: mx.sym.cast(x, dtype="float32"))


def parse_compression(
    compression_params: dict[str, Any] | None,
) -> tuple[Float16Compression | None, dict[str, Any] | None]:
    """Return the compression between workers, and the compression_params for a local kvstore.

    ``{'type': 'fp16'}`` is for the workers; anything else is passed on to the kvstore.

    Raises
    ------
    ValueError
        If `compression_params` is not a dict, has an unknown type, or has an option in addition to
        ``'fp16'``.
    """
    if compression_params is not None and not isinstance(compression_params, Mapping):
        raise ValueError(
            f"compression_params must be a dict, as {{'type': 'fp16'}}, or None, got "
            f"{compression_params!r}"
        )
    if not compression_params:
        return None, None
    # MXNet checks the type only if it uses a kvstore, so a typo might appear only on some machines.
    if (kind := compression_params.get("type")) not in ("fp16", "2bit"):
        raise ValueError(
            f"compression_params={compression_params!r}: the type must be 'fp16', for float16 "
            f"between workers, or '2bit', MXNet's own for one worker, got {kind!r}"
        )
    if kind != "fp16":
        return None, compression_params
    if options := sorted(compression_params.keys() - {"type"}):
        raise ValueError(
            f"compression_params={compression_params!r}: 'fp16' has no {options[0]!r}; leave it out"
        )
    return Float16Compression(), None


class Float16Compression:
    """Sums float32 arrays over workers as float16, which halves the bytes that are sent.

    Each array is rounded to float16, and so is each sum of two arrays: to 11 bits, and below 6e-5
    to a multiple of 6e-8. Values from 65520 on become infinite. Arrays of other dtypes are summed
    without conversion.
    """

    def __init__(self) -> None:
        self._copies: list[NDArray] = []

    def all_reduce(
        self, arrays: Sequence[NDArray], all_reduce: Callable[[Sequence[NDArray]], None]
    ) -> None:
        """Replace arrays by their sums over all workers.

        Parameters
        ----------
        arrays : sequence of NDArray
            The arrays.
        all_reduce : callable
            Replaces arrays by their sums over all workers, without compression.
        """
        indices = _float32_indices(arrays)
        originals = [arrays[i] for i in indices]
        copies = self._copies_for(originals)
        slices = _equal_slices(originals)
        for part in reversed(slices):
            _to_float16(originals[part], out=copies[part])
        sent = list(arrays)
        for i, copy in zip(indices, copies, strict=True):
            sent[i] = copy
        all_reduce(sent)
        for part in slices:
            _to_float32(copies[part], out=originals[part])

    def _copies_for(self, arrays: Sequence[NDArray]) -> list[NDArray]:
        """Return the same copies in each step, so that their sum is planned once."""
        wanted = [(array.shape, array.ctx) for array in arrays]
        if wanted != [(copy.shape, copy.ctx) for copy in self._copies]:
            self._copies = [
                mx.nd.empty(*shape_and_ctx, dtype="float16") for shape_and_ctx in wanted
            ]
        return self._copies


def find_nonfinite(arrays: Sequence[NDArray]) -> int | None:
    """Return the index of the first float32 array with a NaN or an infinity; None if there is none.

    Waits for the arrays. Arrays of other dtypes are not checked.
    """
    indices = _float32_indices(arrays)
    squares = sums_of_squares([arrays[i] for i in indices])
    found = np.flatnonzero([not np.isfinite(n) for group in squares for n in group.asnumpy()])
    return indices[found[0]] if len(found) else None


def _float32_indices(arrays: Sequence[NDArray]) -> list[int]:
    return [i for i, array in enumerate(arrays) if array.dtype == np.float32]


def _equal_slices(arrays: Sequence[NDArray]) -> list[slice]:
    """Divide a sequence of arrays into slices of about the same number of elements."""
    ends = [*accumulate(array.size for array in arrays)]
    limits = [ends[-1] * (n + 1) / _MAX_CALLS for n in range(_MAX_CALLS)] if ends else []
    bounds = sorted({0, *(bisect_right(ends, limit) for limit in limits)})
    return [slice(begin, end) for begin, end in pairwise(bounds)]
