"""SVRG, and a training loop to run it in, for Gluon (Apache MXNet 1.9.1); linear models without it.

Nothing here imports MXNet before a name is asked for that needs it.
"""

import sys as _sys

from gluon_svrg import (
    _compat as _compat,  # before MXNet is imported
    _lazy,
)

__version__ = _compat.version()

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__)
_sys.modules[__name__].__class__ = _lazy.PackageWithFunctions
if "mxnet" in _sys.modules:  # else its import does this
    _compat.watch_workers()
