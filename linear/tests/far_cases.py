"""Fits on rows that are cut into parts, for MPI and for Dask."""

import os
import signal
import sys
import time

import numpy as np
from provenglm import GLMClassifier, GLMRegressor
from scipy.sparse import csr_array

CUTS = (0, 900, 1000, 1700, 3000, 3000, 5500, 6000)
P = 6

CASES = {
    "two classes": (GLMClassifier(), {}),
    "labels of text, weights, balanced": (
        GLMClassifier(class_weight="balanced"),
        {"weights": True, "text": True},
    ),
    "three classes": (GLMClassifier(), {"classes": 3}),
    "three classes, offsets": (GLMClassifier(), {"classes": 3, "offset": True}),
    "classes, L1": (GLMClassifier(C=0.01, l1_ratio=1.0), {}),
    "float32": (GLMClassifier(), {"dtype": np.float32}),
    "uint8": (GLMClassifier(), {"dtype": np.uint8, "weights": True}),
    "CSR": (GLMClassifier(), {"sparse": True, "weights": True}),
    "CSR, float32, L1": (GLMClassifier(C=0.01, l1_ratio=1), {"sparse": True, "dtype": np.float32}),
    "squared": (GLMRegressor(alpha=1e-3), {}),
    "squared, elastic net, weights": (
        GLMRegressor(alpha=1e-2, l1_ratio=0.5),
        {"weights": True},
    ),
    "poisson, offsets": (GLMRegressor("poisson", alpha=1e-3), {"offset": True}),
    "poisson, L1": (GLMRegressor("poisson", alpha=1e-2, l1_ratio=1.0), {}),
    "gamma": (GLMRegressor("gamma", alpha=1e-3), {"weights": True}),
    "tweedie": (GLMRegressor("tweedie", alpha=1e-3), {}),
}


def data(model, classes=2, weights=False, offset=False, text=False, sparse=False, dtype=float):
    """Return X, y, sample_weight and offset of all rows."""
    rng = np.random.default_rng(0)
    n = CUTS[-1]
    X = rng.normal(size=(n, P)) @ (np.eye(P) + 0.3)
    X[:, 1] *= 100
    scores = X[:, :3] @ np.array([0.5, 0.01, -0.4])
    if dtype == np.uint8:
        X = np.clip(X * 10 + 100, 0, 255)
    if sparse:
        X[rng.random(X.shape) < 0.5] = 0
    X = X.astype(dtype)
    if isinstance(model, GLMRegressor):
        y = {
            "squared": scores + rng.normal(size=n),
            "poisson": rng.poisson(np.exp(scores / 2)).astype(float),
            "gamma": rng.gamma(2, np.exp(scores / 2)),
            "tweedie": rng.poisson(1, size=n) * rng.gamma(2, np.exp(scores / 2)),
        }[model.loss]
    elif classes == 3:
        y = np.digitize(scores + rng.logistic(size=n), [-1, 1])
    else:
        y = (scores + rng.logistic(size=n) > 1).astype(int)
    if text:
        y = np.array(["no", "yes"])[y]
    weight = rng.integers(0, 4, n).astype(float) if weights else None
    given = rng.normal(size=(n, 3) if classes == 3 else n) / 3 if offset else None
    return csr_array(X) if sparse else X, y, weight, given


class Alone:
    """A communicator of one rank."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def bcast(self, value):
        return value

    def gather(self, value):
        return [value]

    allgather = gather


# Functions for the processes of workers, which import this module.


def slow(block):
    time.sleep(0.15)
    return block


def killing(block, block_id=None):
    if block_id[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def pid(dask_worker):
    return os.getpid()


def set_version(version):
    sys.modules["provenglm"].__version__ = version
