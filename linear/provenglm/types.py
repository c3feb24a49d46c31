"""Types that many modules use."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy

NumPyArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
"""An array of any shape and dtype, which NumPy 1 requires to be given."""

Verbose: TypeAlias = Literal["auto", 0, 1, 2]
"""0: nothing; 1: a bar and lines; 2: lines; 'auto': lines, a bar on terminals and in notebooks."""
