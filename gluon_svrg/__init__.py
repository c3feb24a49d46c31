"""SVRG, and a training loop to run it in, for Gluon (Apache MXNet 1.9.1); linear models without it.

Nothing here imports MXNet before a name is asked for that needs it.
"""

import sys as _sys

from gluon_svrg import (
    _compat as _compat,  # before MXNet is imported
    _lazy,
)

__version__ = _compat.version()

_OLD_NAMES = {"LogHandler": ("gluon_svrg.handlers.history_file", "HistoryFileHandler")}
"""The module and the new name of each name that has changed."""

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, _OLD_NAMES)
_sys.modules[__name__].__class__ = _lazy.PackageWithFunctions
if "mxnet" in _sys.modules:  # else its import does this
    _compat.watch_workers()
