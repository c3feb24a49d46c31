"""The private names of MXNet 1.9.1 that this package reads or writes, each with its reason.

Nothing outside this package names one, but the subclasses that override MXNet's own hooks
(`SVRGTrainer`, `BatchProcessor`, and those in `optimizer/`). The functions are in the files of
their owners. Two files mend MXNet when they are imported.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy
from gluon_svrg._mxnet import (
    lazy_scipy as lazy_scipy,
    numpy_2 as numpy_2,
)

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
