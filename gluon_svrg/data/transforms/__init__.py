"""Transforms of whole batches of images, whose random numbers are a function of the draw.

A transform acts on the first array of a batch, the images, N x C x H x W, uint8 or float; `OneHot`
and `MixUp` on the second too, the labels. The rest goes through as it is. Work on uint8 is fast, so
this order suits most nets::

    Compose(
        RandomCrop(pad=4),
        RandomFlipLeftRight(),
        ToFloat(),
        Normalize(mean, std),
        Cutout(16),
        OneHot(classes=10, smoothing=0.1),
        MixUp(classes=10, alpha=0.2),
    )

A sample's random numbers are a pure function of (seed, draw, sample index), so that
:meth:`gluon_svrg.data.ArrayLoader.lock` can hold them from one snapshot of SVRG to the next, as
A. Defazio, L. Bottou, "On the ineffectiveness of variance reduced optimization for deep learning",
NeurIPS 2019, section 3, ask. Only `MixUp` also looks at the other samples of the batch.
"""

from gluon_svrg.data.draw import Draw
from gluon_svrg.data.transforms.base import Compose, RandomTransform, Transform
from gluon_svrg.data.transforms.images import (
    Cutout,
    Normalize,
    RandomColorJitter,
    RandomCrop,
    RandomFlipLeftRight,
    ToFloat,
)
from gluon_svrg.data.transforms.labels import MixUp, OneHot

__all__ = [
    "Compose",
    "Cutout",
    "Draw",
    "MixUp",
    "Normalize",
    "OneHot",
    "RandomColorJitter",
    "RandomCrop",
    "RandomFlipLeftRight",
    "RandomTransform",
    "ToFloat",
    "Transform",
]
