"""A program for `mpiexec`: fits on rows that the ranks share out; rank 0 prints the answers."""

import json
import sys
import warnings

import numpy as np
from mpi4py import MPI
from provenglm import Chunks, Distributed, GLMClassifier, GLMRegressor, constants
from provenglm.rows import mpi
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


def of_rank(comm, X, y, weight, offset):
    """Return the rows of this rank: some of the parts, whole."""
    count = len(CUTS) - 1
    bounds = np.linspace(0, count, comm.Get_size() + 1).astype(int)
    own = range(bounds[comm.Get_rank()], bounds[comm.Get_rank() + 1])
    parts = [slice(CUTS[k], CUTS[k + 1]) for k in own if CUTS[k] < CUTS[k + 1]]
    if not parts:
        return X[:0], y[:0], None if weight is None else weight[:0], None
    rows = np.concatenate([np.arange(part.start, part.stop) for part in parts])
    beside = [None if one is None else one[rows] for one in (y, weight, offset)]
    return Chunks([X[part] for part in parts]), *beside


def fits(comm):
    """Return the bits of each case's answer, and how far it is from that in memory."""
    found = {}
    for name, (model, settings) in CASES.items():
        given = data(model, **settings)
        X, *beside = of_rank(comm, *given)
        rounds, run = [], mpi._Ranks.run
        mpi._Ranks.run = lambda *args, run=run, rounds=rounds, **keywords: (
            rounds.append(0) or run(*args, **keywords)
        )
        model.set_params(tol=1e-9).fit(Distributed(X, comm), *beside)
        mpi._Ranks.run = run
        answer = model.coef_.tobytes().hex() + np.asarray(model.intercept_).tobytes().hex()
        assert set(comm.allgather((answer, model.gap_))) == {(answer, model.gap_)}
        peer = type(model)(**model.get_params()).set_params(tol=1e-12)
        peer.fit(*given)
        X, y, weight, offset = given
        score = model.score(X, y, weight, offset)
        gained = peer.history_[0]["objective"] - peer.objective_
        found[name] = {
            "bits": answer,
            "rounds": len(rounds),
            "gap": model.gap_ / max(gained, 1.0),
            "above": model.objective_ - peer.objective_ - model.gap_,
            "apart": float(np.abs(model.coef_ - peer.coef_).max() / np.abs(peer.coef_).max()),
            "score": score - peer.score(X, y, weight, offset),
        }
    return found


class Breaking:
    """Rows that can be read twice."""

    is_whole = False

    def __init__(self, array):
        self.array, self.left = array, 2
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, start, stop, ahead=False):
        """Return rows."""
        self.left -= 1
        if self.left < 0:
            raise OSError("the disk is gone")
        return self.array[start:stop]

    def take(self, rows):
        """Return rows by their indices."""
        return self.array[rows]


def faults(comm):
    """Return the message of each fault on the last rank; it is the same on all ranks."""
    last = comm.Get_rank() == comm.Get_size() - 1
    X, y, _, _ = data(GLMClassifier())
    own = np.array_split(np.arange(len(y)), comm.Get_size())[comm.Get_rank()]
    X, y = X[own], y[own]
    narrow, nan, odd = X[:, :-1], X.copy(), y.astype(float)
    nan[5, 2], odd[7] = np.nan, np.nan
    classifier, regressor = GLMClassifier(), GLMRegressor("poisson")
    cases = {
        "NaN in X": (classifier, nan if last else X, y, None),
        "NaN in y": (classifier, X, odd if last else y, None),
        "width": (classifier, narrow if last else X, y, None),
        "dtype": (classifier, X.astype(np.float32) if last else X, y, None),
        "length": (classifier, X, y[:-1] if last else y, None),
        "labels": (classifier, X, y.astype(str) if last else y, None),
        "one class": (classifier, X, np.zeros(len(y), int), None),
        "weights": (classifier, X, y, -np.ones(len(y)) if last else None),
        "no weights": (classifier, X, y, np.zeros(len(y))),
        "negative": (regressor, X, -np.ones(len(y)) if last else y, None),
        "all zero": (regressor, X, np.zeros(len(y)), None),
        "huber": (GLMRegressor("huber"), X, y, None),
        "a later read": (classifier, Chunks(Breaking(X)) if last else X, y, None),
        "no rows": (classifier, X[:0], y[:0], None),
    }
    found = {}
    for name, (model, X, y, weight) in cases.items():
        message = "nothing was raised"
        try:
            model.fit(Distributed(X, comm), y, weight)
        except (TypeError, ValueError, RuntimeError) as error:
            message = str(error)
        assert set(comm.allgather(message)) == {message}
        found[name] = message
    return found


def main(what):
    """Run what was asked for."""
    comm = MPI.COMM_WORLD
    warnings.simplefilter("error")
    if what == "small":
        model, settings = CASES["two classes"]
        given = data(model, **settings)
        X, *beside = of_rank(comm, *given)
        found = {"solver": model.fit(Distributed(X, comm), *beside).solver_}
    else:
        constants.SMALL_DATA, constants.LEAST_ROWS = 0, 300
        found = {"fits": fits, "faults": faults}[what](comm)
    if comm.Get_rank() == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
