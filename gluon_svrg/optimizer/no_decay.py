"""The parameters that large-batch recipes exempt from weight decay and LARS's trust ratio."""

from __future__ import annotations

from mxnet.gluon import Block, nn


def exclude_from_decay(net: Block) -> list[str]:
    """Set ``wd_mult = 0`` on the normalisation and bias parameters of `net`.

    These are all parameters of Gluon's normalisation layers and of classes derived from them, and
    all parameters of other layers whose names end in ``bias``, ``gamma`` or ``beta``. To exempt
    them from the trust ratio, too::

        optimizer = gluon_svrg.LARS(exempt=exclude_from_decay(net), ...)

    Parameters
    ----------
    net : Block
        The network; it need not be initialized.

    Returns
    -------
    list of str
        The names of these parameters, sorted.

    References
    ----------
    P. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017. X. Jia et
    al., "Highly scalable deep learning training system with mixed-precision", 2018.
    """
    normalisations = (nn.BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm)
    names = set()

    def visit(block: Block) -> None:
        for name, param in block.params.items():
            if isinstance(block, normalisations) or name.endswith(("bias", "gamma", "beta")):
                param.wd_mult = 0.0
                names.add(name)

    net.apply(visit)
    return sorted(names)
