"""One call for all parameters of a network, where a call each would cost more than the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from mxnet.ndarray import CachedOp, NDArray


class Fused:
    """An elementwise function over many tuples of arrays, in one call.

    A call from Python costs about ten microseconds, for most parameters more than the kernel
    that it starts. Here the function is written down once for each tuple in one symbolic graph.

    Parameters
    ----------
    function : callable
        From symbols to a symbol; elementwise, so that an output may be written over an input.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._operators: dict[tuple[int, int], Callable[..., Any]] = {}

    def __call__(
        self, *columns: Sequence[NDArray], out: Sequence[NDArray] | None = None
    ) -> list[NDArray]:
        """Return the function of the first arrays of all columns, of the second ones, and so on.

        Parameters
        ----------
        columns : sequences of NDArray
            The arguments, one sequence an argument; all arrays on one context.
        out : sequence of NDArray, optional
            Where to write the results, by default into new arrays.

        Returns
        -------
        list of NDArray
        """
        length = len(columns[0])
        if not length:
            return []
        key = length, len(columns)
        if key not in self._operators:
            self._operators[key] = self._build(*key)
        arrays = [array for column in columns for array in column]
        result = self._operators[key](*arrays, out=None if out is None else list(out))
        return [result] if isinstance(result, NDArray) else list(result)

    def _build(self, length: int, arguments: int) -> Callable[..., Any]:
        columns = [
            [mx.sym.var(f"x{argument}_{i}") for i in range(length)] for argument in range(arguments)
        ]
        graph = mx.sym.Group([self._function(*row) for row in zip(*columns, strict=True)])
        # Through JSON, which leaves out the casts that MXNet's AMP puts around each operator.
        graph = mx.sym.load_json(graph.tojson())
        # The operator takes its inputs in the order of the graph, which visits them row by row.
        order = graph.list_inputs()
        names = [symbol.name for column in columns for symbol in column]
        positions = [names.index(name) for name in order]
        # Without static memory, which would be held all the time for a tenth of the call.
        operator = CachedOp(graph)
        return lambda *arrays, out: operator(*(arrays[i] for i in positions), out=out)
