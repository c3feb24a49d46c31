"""The first batches of some data."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable
from typing import Any

from gluon_svrg.data.loader import ArrayLoader


def first_batches(data: Iterable[Any], number: int) -> list[Any]:
    """Return the first batches as a list: for a dry run, or to see whether a net can overfit them.

    ::

        estimator.fit(first_batches(train_data, 3), first_batches(val_data, 3), epochs=1)
        estimator.fit(first_batches(train_data, 1), epochs=200)

    Parameters
    ----------
    data : iterable
        Training or validation data. Of an ArrayLoader, the first batches of its epoch 0.
    number : int
        How many; fewer are returned where there are fewer.

    Raises
    ------
    TypeError, ValueError
        If `number` is no positive integer.
    """
    message = f"number must be a positive integer, got {number!r}: as many batches are taken"
    if isinstance(number, bool) or not isinstance(number, numbers.Integral):
        raise TypeError(message)
    if number < 1:
        raise ValueError(message)
    if isinstance(data, ArrayLoader):
        return [data[index] for index in data.order(0)[:number]]
    return list(itertools.islice(data, number))
