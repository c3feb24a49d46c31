"""One seed for every generator that a run draws from."""

from __future__ import annotations

import random

import mxnet as mx
import numpy as np


def seed_everything(seed: int) -> None:
    """Seed MXNet on every device, NumPy's global generator and Python's.

    NumPy's is the one that `gluon.data.DataLoader` shuffles with, also with worker processes. What
    a data set draws in such a process itself is not reached.

    Parameters
    ----------
    seed : int
        From 0 to 2^31 - 1.

    Raises
    ------
    ValueError
        If `seed` is not such an integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ValueError(f"seed must be an integer from 0 to 2**31 - 1, got {seed!r}")
    mx.random.seed(seed)
    np.random.seed(seed)
    random.seed(seed)
