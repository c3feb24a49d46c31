"""show_versions: what a report of a defect begins with."""

import importlib.metadata
import os
import platform
import re

import gluon_svrg as gs
import mxnet as mx
import numpy as np
from gluon_svrg.reporting import versions


def test_versions_are_those_of_what_runs():
    found = versions.versions()
    assert list(found)[:4] == ["gluon_svrg", "Python", "MXNet", "NumPy"]
    assert (found["gluon_svrg"], found["MXNet"]) == (gs.__version__, "1.9.1")
    assert found["NumPy"] == np.__version__
    assert found["Python"].startswith(platform.python_version())
    assert found["pillow"] == importlib.metadata.version("pillow")
    cores = int(found["cores"].split(" of ")[0])
    assert cores == len(os.sched_getaffinity(0))
    assert found["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "not set")
    enabled = {feature.name for feature in mx.runtime.feature_list() if feature.enabled}
    assert set(found["MXNet features"].split(", ")) == enabled
    gpus = [str(mx.gpu(number)) for number in range(mx.context.num_gpus())]
    assert found["devices"] == ", ".join(["cpu", *gpus])


def test_what_is_missing_is_said(monkeypatch):
    def version(name):
        if name == "gluoncv":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert versions.versions()["gluoncv"] == "not installed"
    assert versions.versions()["onnx"] == "1.0"


def test_a_broken_driver_is_no_gpu(monkeypatch):
    def num_gpus():
        raise mx.MXNetError("CUDA: Check failed: e == cudaSuccess")

    monkeypatch.setattr(mx.context, "num_gpus", num_gpus)
    assert versions.versions()["devices"] == "cpu"


def test_one_on_a_line(capsys):
    assert gs.show_versions() is None
    lines = capsys.readouterr().out.splitlines()
    assert [re.split("  +", line)[0] for line in lines] == list(versions.versions())
