"""Replaces layers that MXNet computes slowly on CPU by faster ones that compute the same."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from gluon_svrg._mxnet.array_mode import to_active_mode, to_nd
from gluon_svrg._mxnet.block import arguments_of, children_of, forget_graph
from mxnet.gluon import Block, HybridBlock, nn
from mxnet.ndarray import NDArray
from mxnet.symbol import Symbol


def tune_for_cpu(net: Block) -> list[str]:
    """Make the ``GlobalAvgPool2D`` layers of `net` fast to train on CPU.

    Behind fewer than 128 channels, MXNet runs the backward pass of ``GlobalAvgPool2D`` on oneDNN's
    reference kernel. The gradient that it returns has an unusual order in memory, so the BatchNorm
    layers before it run their backward pass on the reference kernel, too: together up to half of
    a training step of gluoncv's ``cifar_resnet20_v1``. Here these layers compute the same by
    ``AdaptiveAvgPooling2D`` with one output; a step of that network is then 1.6 to 3.6 times as
    fast, depending on the machine. Networks with more channels at their end, such as
    ``resnet18_v1``, take as long as before. Outputs and gradients differ by rounding alone
    (gradients by 1e-4 relative in float32, at most).

    The network keeps its parameters, names, hooks and files; it may be hybridized before or after
    (graphs that MXNet has cached are traced again, with the same flags). Only layers that are known
    to compute the same are changed: a layer of a derived class or of another layout, a network in
    float16 and an imported graph (``SymbolBlock``) stay as they are.

    Parameters
    ----------
    net : Block
        The network; it need not be initialized. Give the whole network: a hybridized Block around
        `net` would still use the graph that it has cached.

    Returns
    -------
    list of str
        The names of the Blocks that were changed, sorted; empty if `net` has no such layer, or was
        tuned before.

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

    An instance is made by changing the class of a layer in place: a new layer would have to take
    over the prefix and the hooks of the old one, and its place in every Block that refers to it, as
    an attribute or as a child. Unlike a function put on the instance, a class is visible in a
    debugger and survives a copy and a pickle.
    """

    def hybrid_forward(self, F: ModuleType, x: NDArray | Symbol) -> NDArray | Symbol:  # noqa: N803
        # The name of the node is what the layer would give it: users find a graph's internal
        # outputs by name. F.mean over the axes is as fast backwards, but five times as slow
        # forwards; it also accepts inputs with too many axes, and is exported as a ReduceMean that
        # ONNX opset 18 refuses.
        pooled: NDArray | Symbol = F.contrib.AdaptiveAvgPooling2D(
            to_nd(x), output_size=1, name="fwd"
        )
        return to_active_mode(pooled)

    def cast(self, dtype: object) -> None:
        """Cast the layer; in float16, whose sums would overflow, make it an ordinary one again."""
        super().cast(dtype)
        if _is_half(dtype):
            self.__class__ = nn.GlobalAvgPool2D  # type: ignore[assignment]


# repr(net) and net.summary() print the same as before; pickle goes by __qualname__.
_AdaptiveAvgPool2D.__name__ = nn.GlobalAvgPool2D.__name__


def _tune(block: Block, changed: list[str], seen: dict[int, bool]) -> bool:
    """Tune `block` and all Blocks in it, each once; return whether any of them was changed."""
    if id(block) in seen:
        return seen[id(block)]
    below = [_tune(child, changed, seen) for child in children_of(block).values()]
    is_slow = _is_slow(block)
    if is_slow:
        block.__class__ = _AdaptiveAvgPool2D
        changed.append(block.name)
    seen[id(block)] = is_slow or any(below)
    if seen[id(block)] and isinstance(block, HybridBlock):
        # The cached graph of a Block contains the layers in it; its flags are kept elsewhere.
        forget_graph(block)
    return seen[id(block)]


def _is_slow(block: Block) -> bool:
    if type(block) is not nn.GlobalAvgPool2D or "hybrid_forward" in vars(block):
        return False
    # The empty prefix keeps Gluon's name counter, and so the names of the user's layers, as it is.
    plain = nn.GlobalAvgPool2D(prefix="")
    return arguments_of(block) == arguments_of(plain)


def _is_half(dtype: object) -> bool:
    return dtype in ("float16", np.float16)  # np.dtype() does not know all of MXNet's types
