"""AdamW, LARS, MARS, NAG, Signum, and a base class: MXNet 2's contract on MXNet 1.9.1."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gluon_svrg import _lazy
from gluon_svrg.optimizer.adamw import AdamW
from gluon_svrg.optimizer.lars import LARS
from gluon_svrg.optimizer.mars import MARS
from gluon_svrg.optimizer.nag import NAG
from gluon_svrg.optimizer.no_decay import exclude_from_decay
from gluon_svrg.optimizer.optimizer import Optimizer, create, create_optimizer, register
from gluon_svrg.optimizer.signum import Signum

__all__ = [
    "LARS",
    "MARS",
    "NAG",
    "AdamW",
    "Optimizer",
    "Signum",
    "create",
    "create_optimizer",
    "exclude_from_decay",
    "register",
]

if not _TYPE_CHECKING:
    __getattr__, __dir__ = _lazy.attach(__name__)
