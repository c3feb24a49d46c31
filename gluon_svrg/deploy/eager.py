"""Runs a graph operator by operator from Python, as a network that is not hybridized runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.array_mode import numpy_shapes
from gluon_svrg._typing import NumPyArray
from gluon_svrg.deploy.graph import is_numpy_graph
from gluon_svrg.deploy.model_dir import InputSpec
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol


class OperatorByOperator:
    """Runs each node of a graph by itself: one call from Python per node.

    A graph that was read from a file has no Python code and cannot run without being hybridized (a
    ``SymbolBlock`` always runs its whole graph). This comes nearest, for comparison.
    """

    def __init__(
        self,
        symbol: Symbol,
        params: Mapping[str, NDArray],
        inputs: Sequence[InputSpec],
    ) -> None:
        graph = json.loads(symbol.tojson())
        self._names = [spec["name"] for spec in inputs]
        self._heads = [(head[0], head[1]) for head in graph["heads"]]
        nodes = graph["nodes"]
        self._known = {
            (index, 0): params[node["name"]]
            for index, node in enumerate(nodes)
            if node["op"] == "null" and node["name"] in params
        }
        self._inputs = {
            node["name"]: (index, 0) for index, node in enumerate(nodes) if node["op"] == "null"
        }
        used = self._heads + [(i[0], i[1]) for node in nodes for i in node["inputs"]]
        self._is_of_numpy = is_numpy_graph(symbol)
        self._steps = []
        for index, node in enumerate(nodes):
            if node["op"] == "null":
                continue
            sources = [(source[0], source[1]) for source in node["inputs"]]
            count = 1 + max(output for source, output in used if source == index)
            self._steps.append((_operator(node, count, graph["attrs"]), sources, index))

    def __call__(self, arrays: Sequence[NumPyArray]) -> list[NumPyArray]:
        """Return the outputs for a batch."""
        values = dict(self._known)
        for name, array in zip(self._names, arrays, strict=True):
            values[self._inputs[name]] = mx.nd.array(array, dtype=array.dtype)
        for operator, sources, index in self._steps:
            with numpy_shapes(self._is_of_numpy):
                result = operator(*(values[source] for source in sources))
            for number, output in enumerate([result] if isinstance(result, NDArray) else result):
                values[index, number] = output
        return [values[head].asnumpy() for head in self._heads]


# A node of a graph, or its attributes, as in MXNet's JSON.
_Json = dict[str, Any]


def _operator(node: _Json, count: int, attrs: _Json) -> Callable[..., NDArray | list[NDArray]]:
    """Return a node as a graph of its own, whose inputs are variables."""
    size = len(node["inputs"])
    variables: list[_Json] = [{"op": "null", "name": f"in{i}", "inputs": []} for i in range(size)]
    graph = {
        "nodes": [*variables, {**node, "inputs": [[i, 0, 0] for i in range(size)]}],
        "arg_nodes": list(range(size)),
        "heads": [[size, output, 0] for output in range(count)],
        "attrs": attrs,
    }
    symbol = mx.sym.load_json(json.dumps(graph))
    indices = list(range(size))
    return mx.nd.CachedOp(symbol, [("data_indices", indices), ("param_indices", [])])
