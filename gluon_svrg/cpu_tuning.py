"""Layers that MXNet computes slowly on CPU, replaced by an exact equal that is fast."""

from __future__ import annotations

from typing import Any

import numpy as np
from mxnet.gluon import Block, HybridBlock, nn
from mxnet.util import is_np_array


def tune_for_cpu(net: Block) -> list[str]:
    """Make the ``GlobalAvgPool2D`` layers of `net` fast to train on CPU.

    Behind fewer than 128 channels, MXNet runs the backward pass of ``GlobalAvgPool2D`` on oneDNN's
    reference kernel. The gradient that it returns has an unusual order in memory, so the BatchNorm
    layers before it run their backward pass on the reference kernel, too: together up to half of
    a training step of gluoncv's ``cifar_resnet20_v1``. Here these layers compute the same by
    ``AdaptiveAvgPooling2D`` with one output; a step of that network is then 1.6 to 3.6 times as
    fast, by machine. Networks with more channels at their end, as ``resnet18_v1``, take as long
    as before. Outputs and gradients differ by rounding alone (gradients by 1e-4 relative in
    float32, at most).

    The network keeps its parameters, names, hooks and files; it may be hybridized before or after
    (what MXNet has cached is made again, with the same flags). Only what is known to be the same
    is changed: a layer of a derived class, one of another layout, a network in float16, and a
    graph that was imported (``SymbolBlock``) stay as they are, and so does MXNet's NumPy mode.

    Parameters
    ----------
    net : Block
        The network; it need not be initialized. Give the whole: a hybridized Block around `net`
        would go on with the graph that it has cached.

    Returns
    -------
    list of str
        The names of the Blocks that were changed, sorted; none where `net` has no such layer, or
        was tuned before.

    Raises
    ------
    TypeError
        If `net` is not a Block.
    """
    if not isinstance(net, Block):
        raise TypeError(
            f"net must be a gluon Block, got {net!r}: give the network itself, before it is "
            "exported"
        )
    if any(_is_half(param.dtype) for param in net.collect_params().values()):
        return []
    changed: list[str] = []
    _tune(net, changed, {})
    return sorted(changed)


class _AdaptiveAvgPool2D(nn.GlobalAvgPool2D):
    """A ``GlobalAvgPool2D`` that MXNet computes by its adaptive pooling.

    An instance is made by changing the class of a layer in place: a new layer would need the
    prefix, the hooks and the place of the old one in every Block that refers to it, by attribute
    or as a child. Unlike a function put on the instance, a class is seen by a debugger and
    survives a copy and a pickle.
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803  # Gluon's name
        if is_np_array():
            return super().hybrid_forward(F, x)
        # The name of the node is the layer's own: a graph's internal outputs are found by it.
        # F.mean over the axes is as good for the gradient, but five times as slow forwards, takes
        # inputs with too many axes, and is exported as a ReduceMean that ONNX opset 18 refuses.
        return F.contrib.AdaptiveAvgPooling2D(x, output_size=1, name="fwd")

    def cast(self, dtype: Any) -> None:
        """Cast the layer, and be an ordinary one in float16, whose sums would overflow."""
        super().cast(dtype)
        if _is_half(dtype):
            self.__class__ = nn.GlobalAvgPool2D


# What is printed for a network, and its summary(), stay as they are; pickle goes by __qualname__.
_AdaptiveAvgPool2D.__name__ = nn.GlobalAvgPool2D.__name__


def _tune(block: Block, changed: list[str], seen: dict[int, bool]) -> bool:
    """Tune `block` and all below it, each once, and return whether any of them was changed."""
    if id(block) in seen:
        return seen[id(block)]
    below = [_tune(child, changed, seen) for child in block._children.values()]
    is_slow = _is_slow(block)
    if is_slow:
        block.__class__ = _AdaptiveAvgPool2D
        changed.append(block.name)
    seen[id(block)] = is_slow or any(below)
    if seen[id(block)] and isinstance(block, HybridBlock):
        # The graph of a Block holds the layers below it; its flags are kept elsewhere.
        block._clear_cached_op()
    return seen[id(block)]


def _is_slow(block: Block) -> bool:
    if type(block) is not nn.GlobalAvgPool2D or "hybrid_forward" in vars(block):
        return False
    # With an empty prefix, the name counter of the user's own layers does not move.
    return bool(block._kwargs == nn.GlobalAvgPool2D(prefix="")._kwargs)


def _is_half(dtype: Any) -> bool:
    return dtype in ("float16", np.float16)  # np.dtype() does not know all of MXNet's types
