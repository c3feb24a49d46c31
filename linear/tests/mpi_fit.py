"""A program for `mpiexec`: fits on rows that the ranks share out; rank 0 prints the answers."""

import json
import sys
import warnings

import numpy as np
from far_cases import CASES, CUTS, data
from mpi4py import MPI
from provenglm import Chunks, Distributed, GLMClassifier, GLMRegressor, constants
from provenglm.rows import mpi


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
