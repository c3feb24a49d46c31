"""Types that stand in many signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy

NumPyArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
"""An array of any shape and dtype: NumPy 1 has no defaults for the two."""

State: TypeAlias = "dict[str, Any]"
"""Plain data: None, numbers, strings, NumPy arrays, NDArrays, and lists, tuples, dicts of them."""
