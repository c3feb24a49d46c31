"""One call for all parameters of a network: one call each would cost more than the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mxnet as mx
from mxnet.ndarray import CachedOp, NDArray
from mxnet.symbol import Symbol

# Takes the arrays of all columns and `out`; returns an array, or a list of several.
_Operator = Callable[..., NDArray | list[NDArray]]


class FusedFunction:
    """An elementwise function over many tuples of arrays, in one call.

    A call from Python costs about ten microseconds, for most parameters more than the kernel
    that it starts. Here one symbolic graph holds the function once for each tuple.

    Parameters
    ----------
    function : callable
        Takes Symbols and returns a Symbol; elementwise, so that an output may replace an input.
    """

    def __init__(self, function: Callable[..., Symbol]) -> None:
        self._function = function
        self._operators: dict[tuple[int, int], _Operator] = {}

    def __call__(
        self, *columns: Sequence[NDArray], out: Sequence[NDArray] | None = None
    ) -> list[NDArray]:
        """Return the function of the first arrays of all columns, of the second ones, and so on.

        Parameters
        ----------
        columns : sequences of NDArray
            One sequence for each argument of the function; all arrays on one context.
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

    def _build(self, length: int, arguments: int) -> _Operator:
        columns = [
            [mx.sym.var(f"x{argument}_{i}") for i in range(length)] for argument in range(arguments)
        ]
        graph = mx.sym.Group([self._function(*row) for row in zip(*columns, strict=True)])
        # JSON leaves out the casts that MXNet's AMP puts around each operator.
        graph = mx.sym.load_json(graph.tojson())
        # The operator takes its inputs in the order of the graph, which visits them row by row.
        order = graph.list_inputs()
        names = [symbol.name for column in columns for symbol in column]
        positions = [names.index(name) for name in order]
        # No static memory: it would be held all the time, and saves a tenth of the call only.
        operator = CachedOp(graph)
        return lambda *arrays, out: operator(*(arrays[i] for i in positions), out=out)
