"""A graph that is ready to run on batches of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import numpy_shapes
from gluon_svrg._mxnet.block import copy_from_numpy
from gluon_svrg._typing import NumPyArray
from gluon_svrg.deploy.graph import is_numpy_graph
from gluon_svrg.deploy.model_dir import InputSpec
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol


class Compiled:
    """Runs a graph on NumPy arrays; memory and shapes are planned once.

    When Gluon calls a hybridized network, it goes over hooks, formats and parameters in Python;
    here the list of arrays is made once, and only the contents of the inputs change.

    Parameters
    ----------
    symbol : Symbol
        The graph.
    params : dict of str to NDArray
        On `ctx`.
    inputs : sequence of dict
        The inputs as in the card: name, shape without the batch axis, dtype.
    batch_size : int
        The size of each batch.
    ctx : Context
        The context on which it runs.
    **flags
        Flags of ``mx.nd.CachedOp``: ``static_alloc``, ``static_shape``.
    """

    def __init__(
        self,
        symbol: Symbol,
        params: Mapping[str, NDArray],
        inputs: Sequence[InputSpec],
        batch_size: int,
        *,
        ctx: mx.Context,
        **flags: bool,
    ) -> None:
        self.batch_size = batch_size
        self._staging: list[NumPyArray] = []
        self._buffers: list[NDArray] = []
        for spec in inputs:
            array = np.zeros((batch_size, *spec["shape"]), spec["dtype"])
            self._staging.append(array)
            self._buffers.append(mx.nd.array(array, ctx=ctx, dtype=array.dtype))
        names = [spec["name"] for spec in inputs]
        values = dict(zip(names, self._buffers, strict=True))
        wanted = symbol.list_inputs()
        indices = [
            ("data_indices", [i for i, name in enumerate(wanted) if name in values]),
            ("param_indices", [i for i, name in enumerate(wanted) if name not in values]),
        ]
        self._op = mx.nd.CachedOp(symbol, [*indices, *flags.items()])
        self._is_of_numpy = is_numpy_graph(symbol)
        self._arguments = [values[name] if name in values else params[name] for name in wanted]

    def __call__(self, arrays: Sequence[NumPyArray]) -> list[NumPyArray]:
        """Return the outputs for `batch_size` samples or fewer, as new arrays."""
        count = len(arrays[0])
        for staging, array in zip(self._staging, arrays, strict=True):
            if count == self.batch_size:
                staging[...] = array
            else:
                staging[:count] = array
                staging[count:] = 0
        for buffer, staging in zip(self._buffers, self._staging, strict=True):
            copy_from_numpy(buffer, staging)
        with numpy_shapes(self._is_of_numpy):
            outputs = self._op(*self._arguments)
        # asnumpy waits, so no operator still reads the inputs when the next call changes them.
        if isinstance(outputs, NDArray):
            return [outputs.asnumpy()[:count]]
        return [output.asnumpy()[:count] for output in outputs]
