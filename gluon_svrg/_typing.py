"""Types that stand in many signatures, and the name of the logger."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy

NumPyArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
"""An array of any shape and dtype: NumPy 1 has no defaults for the two."""

State: TypeAlias = "dict[str, Any]"
"""Plain data: None, numbers, strings, NumPy arrays, NDArrays, and lists, tuples, dicts of them."""

Verbose: TypeAlias = Literal["auto", 0, 1, 2]
"""0: nothing; 1: bars and lines; 2: lines; 'auto': lines, and bars if they can be seen."""

LOGGER = "gluon_svrg.estimator"
"""The name of the logger of all runs."""
