"""What a run ran on, in words for a report: versions, processors, devices."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

import mxnet as mx
import numpy
from gluon_svrg import _compat

OPTIONAL = (
    "gluoncv",
    "scikit-learn",
    "scipy",
    "matplotlib",
    "tensorboardX",
    "pillow",
    "onnx",
    "onnxruntime",
    "setuptools",
)
"""The packages that some extras bring, as pip names them."""


def versions() -> dict[str, str]:
    """Return the versions and the machine, in the order in which they are shown.

    Returns
    -------
    dict of str to str
        ``"gluon_svrg"``, ``"Python"``, ``"MXNet"``, ``"NumPy"``, each package of `OPTIONAL`
        (``"not installed"`` without it), ``"platform"``, ``"cores"`` (those that this process may
        use, and those of the machine), ``"OMP_NUM_THREADS"`` (MXNet's threads), ``"devices"`` and
        ``"MXNet features"`` (those that its library was built with and finds here).
    """
    found = {
        "gluon_svrg": _compat.version(),
        "Python": f"{platform.python_version()} ({sys.executable})",
        "MXNet": mx.__version__,
        "NumPy": numpy.__version__,
    }
    found |= {name: _version_of(name) for name in OPTIONAL}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return found | {
        "platform": platform.platform(),
        "cores": f"{cores} of {os.cpu_count()}",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "devices": _devices(),
        "MXNet features": ", ".join(_features()),
    }


def show_versions() -> None:
    """Print :func:`versions`, one on a line: what a report of a defect begins with."""
    found = versions()
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:{width}}  {value}")


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    """Return the devices; a library without CUDA, or a broken driver, has no GPU."""
    try:
        gpus = int(mx.context.num_gpus())
    except mx.MXNetError:
        gpus = 0
    return ", ".join(["cpu", *(f"gpu({number})" for number in range(gpus))])


def _features() -> list[str]:
    return sorted(name for name, feature in mx.runtime.Features().items() if feature.enabled)
