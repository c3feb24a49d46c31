"""Rows in two other processes: one verb is the only door to them."""

import multiprocessing
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from provenglm import Chunks, constants
from provenglm.model.losses import Logistic, Poisson, Softmax, Squared
from provenglm.model.problem import Problem
from provenglm.model.solution import Settings
from provenglm.model.tweedie import Gamma
from provenglm.rows.dense import DenseRows
from provenglm.rows.remote import RemoteRows, RemoteTable
from provenglm.rows.table import Table
from provenglm.solve import solve
from provenglm.workers import Workers

P = 6


class Elsewhere:
    """A chunk that cannot be read in this process."""

    is_whole = False
    dtype = np.dtype(np.float64)

    def __init__(self, n):
        self.shape = n, P

    def read(self, *_):
        raise AssertionError("rows were read in the process of the fit")

    take = read


def serve(connection, tables):
    """Answer calls with what a function of each table returns."""
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            call = connection.recv_bytes()
            if not call:
                return
            function, small = pickle.loads(call)
            try:
                answer = [function(table, *small) for table in tables]
            except Exception as error:
                answer = error
            connection.send_bytes(pickle.dumps(answer))


class Processes:
    """Processes that have some of the tables each, in order."""

    def __init__(self, tables, count):
        context = multiprocessing.get_context("fork")
        self.calls, self.bytes, self._all = 0, 0, []
        for part in np.array_split(np.arange(len(tables)), count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, [tables[k] for k in part]))
            process.start()
            self._all.append((process, ours))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, connection in self._all:
            connection.send_bytes(b"")
            process.join()

    def call(self, function, small):
        # Pickle takes functions of modules alone.
        sent = pickle.dumps((function, small))
        for _, connection in self._all:
            connection.send_bytes(sent)
        found = []
        self.calls += 1
        for _, connection in self._all:
            received = connection.recv_bytes()
            self.bytes += len(received)
            answer = pickle.loads(received)
            if isinstance(answer, Exception):
                raise answer
            found += answer
        return found


class PipedTable(RemoteTable):
    def __init__(self, processes, n, workers, has_offset):
        super().__init__(RemoteRows((n, P), np.dtype(np.float64)), workers, has_offset)
        self.processes = processes

    def run(self, function, *small, reads=True):
        return self.processes.call(function, small)


@dataclass(frozen=True)
class FarProblem(Problem):
    processes: Processes | None = None

    def table(self, workers, *, precise=False):
        n = self.features.shape[0]
        return PipedTable(self.processes, n, workers, self.offset is not None)


def data(loss, n=6000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, P)) @ (np.eye(P) + 0.3)
    X[:, 1] *= 100
    scores = X[:, :3] @ np.array([0.5, 0.01, -0.4])
    if loss.outputs > 1:
        W = rng.normal(size=(P, loss.outputs)) / np.array([[1], [100], [1], [1], [1], [1]])
        return X, (X @ W + rng.gumbel(size=(n, loss.outputs))).argmax(axis=1)
    if loss.has_classes:
        return X, (scores + rng.logistic(size=n) > 1).astype(float)
    if loss.name == "poisson":
        return X, rng.poisson(np.exp(scores / 2)).astype(float)
    if loss.name == "gamma":
        return X, rng.gamma(2, np.exp(scores / 2))
    return X, scores + rng.normal(size=n)


CASES = {
    "two classes": (Logistic(), {"l2": 1e-3}),
    "two classes, no penalty": (Logistic(), {"l2": 0.0}),
    "weights and offsets": (Logistic(), {"l2": 1e-3, "more": True}),
    "three classes": (Softmax(3), {"l2": 1e-3}),
    "Poisson": (Poisson(), {"l2": 1e-3}),
    "gamma, offsets": (Gamma(), {"l2": 1e-3, "more": True}),
    "squared": (Squared(), {"l2": 1e-3}),
    "L1, two classes": (Logistic(), {"l2": 0.0, "l1": 1e-2}),
    "L1, three classes": (Softmax(3), {"l2": 0.0, "l1": 1e-2}),
    "L1, squared": (Squared(), {"l2": 1e-3, "l1": 1e-2}),
    "elastic net, Poisson": (Poisson(), {"l2": 1e-3, "l1": 1e-2}),
}


def problems(loss, settings):
    """Return the problem in this process, and the tables of five parts of its rows."""
    given = dict(settings)
    X, y = data(loss)
    rng = np.random.default_rng(1)
    if given.pop("more", False):
        given["sample_weight"] = rng.integers(0, 4, len(y)).astype(float)
        given["offset"] = rng.normal(size=(len(y), 1)) / 3
    near = Problem(X, y, loss, **given)
    share, tables, start = near.shares(), [], 0
    for stop in (1000, 1700, 3000, 5500, 6000):
        part = slice(start, stop)
        offset = None if near.offset is None else near.offset[part]
        tables.append(Table(DenseRows(X[part]), y[part], share[part], Workers(0), offset, start))
        start = stop
    return near, tables


@pytest.mark.parametrize("case", CASES)
def test_a_fit_on_rows_in_two_processes(monkeypatch, case):
    monkeypatch.setattr(constants, "SMALL_DATA", 0)
    monkeypatch.setattr(constants, "LEAST_ROWS", 300)
    near, tables = problems(*CASES[case])
    far = Chunks(Elsewhere(len(near.target)))
    tol, found, calls = Settings(tol=1e-9, seed=0), [], []
    for count in (1, 2):
        with Processes(tables, count) as processes:
            # No target, weight or offset is in this process.
            hollow = np.broadcast_to(np.nan, len(near.target))
            offset = None if near.offset is None else hollow
            problem = FarProblem(
                far, hollow, near.loss, near.l2, None, True, near.l1, offset, processes
            )
            found.append(solve(problem, tol))
            calls.append(processes.calls)
    one, two = found
    assert np.array_equal(one.coef, two.coef)
    assert np.array_equal(one.intercept, two.intercept)
    assert (one.objective, one.gap) == (two.objective, two.gap)
    assert two.reason.is_success
    peer = solve(near, replace(tol, tol=1e-12))
    assert two.objective - peer.objective <= two.gap + 1e-13
    gained = peer.history[0].objective - peer.objective
    assert two.gap <= 1e-8 * max(gained, 1.0)
    np.testing.assert_allclose(two.coef, peer.coef, rtol=2e-3, atol=1e-4 * np.abs(peer.coef).max())
    assert calls[0] == calls[1]


def test_a_closure_does_not_pass_the_door():
    _, tables = problems(*CASES["squared"])
    with Processes(tables, 2) as processes, pytest.raises((AttributeError, pickle.PicklingError)):
        PipedTable(processes, 6000, Workers(0), False).sum(lambda block: len(block))


class Here(RemoteTable):
    """A table whose parts are in this process."""

    def __init__(self, tables):
        dtype = tables[0].rows.dtype
        rows = RemoteRows((sum(table.n for table in tables), P), dtype)
        super().__init__(rows, Workers(0))
        self.tables = tables

    def run(self, function, *small, reads=True):
        return [function(table, *small) for table in self.tables]


def test_the_sizes_of_blocks_are_those_of_the_dtype(monkeypatch):
    """A proof counts roundings by them."""
    monkeypatch.setattr(constants, "BLOCK_BYTES", 1 << 13)
    X, y = data(Squared())
    share = np.full(len(y), 1 / len(y))
    near = [
        Table(DenseRows(X.astype(np.float32)[k::2]), y[k::2], share, Workers(0)) for k in (0, 1)
    ]
    far = Here(near)
    for _ in range(2):
        assert far.sizes == [size for table in near for size in table.sizes]
        assert far.precise().sizes == [size for table in near for size in table.precise().sizes]
    assert far.sizes != far.precise().sizes
