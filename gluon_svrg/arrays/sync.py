"""Waiting for the device, a little behind it."""

from __future__ import annotations

from mxnet.ndarray import NDArray


def wait_for(values: object) -> None:
    """Wait until the arrays in `values`, an NDArray or a list of them, are computed.

    MXNet computes while Python goes on. A loop that is to end soon after it is told so waits at
    each batch for the one before: the device still has the next to go on with.
    """
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if isinstance(value, NDArray):
            value.wait_to_read()
