"""The handlers, one a file: they say *when* something happens.

They import no Estimator (each event brings it along), so the Estimator can import its defaults.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
