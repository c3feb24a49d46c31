"""A training framework for Gluon (Apache MXNet 1.9.1), with SVRG as one of its handlers.

MXNet is imported when a name that needs it is first used.
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
