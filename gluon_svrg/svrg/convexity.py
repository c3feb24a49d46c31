"""LinearModel: a network that is linear in its weights, with a loss that is convex in its output.

Its objective is convex, and it is known where its curvature is largest, or nearly so.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg._typing import NumPyArray
from gluon_svrg.batch.parts import BatchParts
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

_SUPPORTED_LOSSES = (
    "supported losses are SoftmaxCrossEntropyLoss, SigmoidBinaryCrossEntropyLoss and LogisticLoss "
    "(of outputs that are not probabilities), L2Loss and HuberLoss"
)


class UnsupportedProblemError(Exception):
    """Raised if convexity or curvature of an objective cannot be determined.

    The message is the reason, as a clause for the log.
    """


class LinearModel(NamedTuple):
    """A linear network and its convex loss.

    Attributes
    ----------
    weight : str
        The name of the layer's weight, of shape (outputs, inputs).
    bias : str or None
        The name of its bias.
    flattens : bool
        Whether the layer flattens each sample to a row.
    loss : KnownLoss
        The loss.
    """

    weight: str
    bias: str | None
    flattens: bool
    loss: _mxnet.KnownLoss

    @classmethod
    def of(
        cls, net: gluon.Block, loss: gluon.loss.Loss, trained: Sequence[gluon.Parameter]
    ) -> LinearModel:
        """Return the model of `net`, whose parameters `trained` are trained.

        It reads the network's graph, so any class will do: the graph must be one fully connected
        layer, with nothing before and after it that changes a number.

        Raises
        ------
        UnsupportedProblemError
            If it is another network or another loss; the message says which.
        """
        known = _mxnet.known_loss(loss)
        if known is None:
            raise UnsupportedProblemError(
                f"its loss is {type(loss).__name__}, and {_SUPPORTED_LOSSES}"
            )
        nodes, head = _read_graph(net)
        layer = nodes[_skip_reshapes(nodes, head)]
        if layer["op"] != "FullyConnected":
            raise UnsupportedProblemError(_describe_node(layer))
        inputs = [nodes[_skip_reshapes(nodes, index)] for index, *_ in layer["inputs"]]
        for node, name in zip(inputs, ("data", None, None), strict=False):
            if node["op"] != "null" or (node["name"] == "data") != (name == "data"):
                raise UnsupportedProblemError(_describe_node(node))
        names = [node["name"] for node in inputs[1:]]
        others = [param.name for param in trained if param.name not in names]
        if others:
            raise UnsupportedProblemError(
                f"the trainer trains {others[0]!r}, which is not in its fully connected layer"
            )
        flattens = layer.get("attrs", {}).get("flatten", "True") in ("True", "1")
        return cls(names[0], names[1] if len(names) > 1 else None, flattens, known)

    def check_batch(self, parts: BatchParts) -> None:
        """Raise UnsupportedProblemError unless the data are a dense array with a row per sample."""
        data = parts.data
        if not isinstance(data, NDArray) or data.stype != "default" or data.ndim < 2:
            raise UnsupportedProblemError(
                "the data of a batch are not one dense array with a row per sample"
            )
        if data.ndim > 2 and not self.flattens:
            raise UnsupportedProblemError(
                f"its layer has flatten=False and the data have {data.ndim} axes, so that a sample "
                "has several rows"
            )

    def squared_norms(self, parts: BatchParts) -> NumPyArray:
        """Return the squared norm of each sample's row, times its weight: float64, (samples,).

        With a bias a row has a 1 at its end.
        """
        rows = _mxnet.as_legacy(parts.data)
        rows = rows.reshape((rows.shape[0], -1)).astype("float32", copy=False)
        norms = mx.nd.sum(mx.nd.square(rows), axis=1).asnumpy().astype("float64")
        return (norms + (self.bias is not None)) * _weights_of(parts)

    def measurement_batch(self, parts: BatchParts) -> BatchParts:
        """Return the batch to measure the curvature with.

        For the squared loss and Huber's the labels are replaced by 0. The outputs at the point of
        measurement are 0, so the residuals are 0, where the curvature is largest and differences of
        gradients lose no digits.
        """
        if self.loss.kind not in ("squared", "huber"):
            return parts
        zeros = mx.nd.zeros_like(_mxnet.as_legacy(parts.label))
        return parts._replace(label=_mxnet.as_current(zeros))

    def measurement_point(
        self, weights: Mapping[str, NumPyArray], batches: Collection[BatchParts]
    ) -> dict[str, NumPyArray]:
        """Return the point at which to measure: weights of 0.

        Outputs of 0 have the largest curvature of the logistic loss. That of softmax depends on
        the probabilities: with biases equal to the logarithm of the classes' frequencies in
        `batches` they are these frequencies, where the curvature is seldom smaller than later.

        Parameters
        ----------
        weights : dict of str to numpy.ndarray
            The network's, by name; only their shapes matter.
        batches : collection of BatchParts
            Batches with labels.
        """
        point = {name: np.zeros(array.shape) for name, array in weights.items()}
        if self.loss.kind == "softmax" and self.bias is not None:
            point[self.bias] = np.log(self._frequencies(batches, len(point[self.bias])))
        return point

    def _frequencies(self, batches: Collection[BatchParts], classes: int) -> NumPyArray:
        """Return the weighted frequencies of the classes: above 0, with a sum of 1."""
        total = np.zeros(classes)
        for parts in batches:
            labels = parts.label.asnumpy().astype("float64")
            weights = _weights_of(parts)
            if self.loss.is_sparse:
                numbers = np.clip(np.nan_to_num(labels.reshape(len(weights), -1)[:, 0]), 0, None)
                numbers = np.minimum(numbers, classes - 1).astype(int)
                total += np.bincount(numbers, weights, minlength=classes)
            else:
                total += weights @ labels.reshape(len(weights), -1)[:, :classes]
        total = np.maximum(total, 0) / max(total.mean(), 1e-300)
        total += classes / max(1, sum(len(parts.label) for parts in batches))
        return np.asarray(total / total.sum())


def _weights_of(parts: BatchParts) -> NumPyArray:
    """Return a weight per sample, the mean of those of its elements: float64, (samples,)."""
    samples = parts.data.shape[0]
    if not isinstance(parts.weight, NDArray):
        return np.ones(samples)
    weights = parts.weight.asnumpy().astype("float64")
    return np.asarray(weights.reshape(samples, -1).mean(axis=1))


class _Node(dict):  # type: ignore[type-arg]
    """A node of MXNet's JSON."""


def _read_graph(net: gluon.Block) -> tuple[list[_Node], int]:
    """Return the nodes of the network's graph, and the index of its output."""
    try:
        # It is called as hybridizing calls it; it keeps nothing, and hooks are silent.
        with _mxnet.forgotten_forward(net), autograd.pause(train_mode=True):
            output = net(_mxnet.as_current(mx.sym.var("data")))
        graph = json.loads(output.tojson())
    except Exception as error:  # the forward pass of a user raises exceptions of any type
        raise UnsupportedProblemError(
            f"its graph cannot be read ({type(error).__name__}: {_mxnet.reason_of(error)})"
        ) from error
    if len(graph["heads"]) != 1:
        raise UnsupportedProblemError(f"it has {len(graph['heads'])} outputs")
    return graph["nodes"], graph["heads"][0][0]


def _skip_reshapes(nodes: list[_Node], index: int) -> int:
    """Return the node before those that only reshape its numbers, from `index` backwards."""
    while nodes[index]["op"] in _mxnet.SAME_NUMBERS:
        index = nodes[index]["inputs"][0][0]
    return index


def _describe_node(node: _Node) -> str:
    what = "no layer" if node["op"] == "null" else f"the operator {node['op']} ({node['name']})"
    return f"its graph has {what} where only one fully connected layer would be linear"
