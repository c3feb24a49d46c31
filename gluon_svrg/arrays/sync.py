"""Wait for the device."""

from __future__ import annotations

from mxnet.ndarray import NDArray


def wait_for(values: object) -> None:
    """Wait until the arrays in `values`, an NDArray or a list of them, are computed.

    MXNet computes while Python continues. A loop that must stop soon when asked waits at each batch
    for the batch before it: the device is still busy with the current one.
    """
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if isinstance(value, NDArray):
            value.wait_to_read()
