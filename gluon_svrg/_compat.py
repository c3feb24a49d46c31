"""Lets MXNet 1.9.1 import on NumPy 1.26 and use every core. Imported before MXNet.

MXNet 1.9.1 was written for NumPy below 1.24 and fails to import on later ones, because it reads
aliases that NumPy has removed (MXNet issue 21165). NumPy 1.26 is what current releases of
matplotlib, scikit-learn and onnxruntime need, so the aliases are put back here. NumPy 2 changed
more than names: it is refused.

MXNet also takes half of the machine's cores (``src/engine/openmp.cc`` halves
``omp_get_num_procs`` on x86, as if every core were a hyper-thread) and reads
``OMP_NUM_THREADS`` once, when its library is loaded.
"""

from __future__ import annotations

import builtins
import os
import sys
import warnings
from collections.abc import MutableMapping
from types import ModuleType
from typing import Any, TypeAlias

import numpy

NumPyArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
"""An array of any shape and dtype: NumPy 1.x has no defaults for the two."""

# The aliases that MXNet 1.9.1 and gluoncv 0.10.5 read. Each was the Python built-in of that name.
_REMOVED_ALIASES = ("bool", "float", "int", "object")


def check_numpy_version(version: str) -> None:
    """Raise ImportError, with the way out, where `version` is one that MXNet 1.9.1 cannot use."""
    if int(version.split(".")[0]) >= 2:
        raise ImportError(
            f"gluon_svrg needs NumPy 1.x, found NumPy {version}: MXNet 1.9.1 does not run on "
            "NumPy 2; install one that it runs on with `pip install numpy==1.26.4`"
        )


def restore_numpy_aliases(module: ModuleType) -> None:
    """Put the removed aliases back into NumPy's `module`; those that are there stay."""
    for name in _REMOVED_ALIASES:
        # vars(), not hasattr(): NumPy warns when a removed alias is asked for.
        if name not in vars(module):
            setattr(module, name, getattr(builtins, name))


def use_every_core(environ: MutableMapping[str, str], mxnet_is_loaded: bool) -> None:
    """Ask for one thread a core through `environ`; a user's own ``OMP_NUM_THREADS`` wins."""
    if "OMP_NUM_THREADS" in environ:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not mxnet_is_loaded:
        environ["OMP_NUM_THREADS"] = str(cores or 1)
    elif cores and cores > 1:
        warnings.warn(
            f"mxnet was imported before gluon_svrg and uses half of the {cores} cores: import "
            f"gluon_svrg first, or set OMP_NUM_THREADS={cores} before Python starts",
            RuntimeWarning,
            stacklevel=2,
        )


check_numpy_version(numpy.__version__)
restore_numpy_aliases(numpy)
use_every_core(os.environ, mxnet_is_loaded="mxnet" in sys.modules)
