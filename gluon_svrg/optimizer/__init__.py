"""LARS, Signum, and the base class to write an optimizer with: MXNet 2's contract on 1.9.1.

A server of a dist kvstore unpickles an optimizer, and so imports this package, in the middle of
its own ``import mxnet``, which never ends there. The modules therefore name the submodules of
MXNet that they need, and nothing that is only set later in that import.
"""

from gluon_svrg.optimizer.lars import LARS
from gluon_svrg.optimizer.no_decay import exclude_from_decay
from gluon_svrg.optimizer.optimizer import Optimizer, create, create_optimizer, register
from gluon_svrg.optimizer.signum import Signum

__all__ = [
    "LARS",
    "Optimizer",
    "Signum",
    "create",
    "create_optimizer",
    "exclude_from_decay",
    "register",
]
