"""Fit softmax regression with another library, in a process of its own, and print the times.

    python benchmarks/convex_peers.py NAME L2 --problem FILE --optimum VALUE

``convex.py`` calls it so. It prints a line of JSON that says what runs, and then one a fit:
the solver's budget (its `max_iter`), seconds, and how far above the optimum the fit ended. Most
solvers have no callback, so each budget is a fit of its own, from zero: the least budget that
reaches the target is searched, and the time to the target is that of its fit alone. That favours
the peer, which would have to know the budget beforehand. The data are in memory in the library's
own type before the clock starts, and a fit with the budget 1 goes before the first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CLASSES = 10
WARM_UP = 60  # seconds that a library may take to compile, besides the cap of a fit
Weights = tuple[np.ndarray, np.ndarray]
Fit = Callable[[int], Weights]
Settings = dict[str, Any]


class Problem(NamedTuple):
    """The rows in float64, their classes, and the penalty of the weights (not of the biases)."""

    x: np.ndarray
    y: np.ndarray
    l2: float
    optimum: float

    def gap(self, weight: np.ndarray, bias: np.ndarray) -> float:
        """Return how far the objective at the weights (classes x features) is above the optimum."""
        weight, bias = np.asarray(weight, "float64"), np.asarray(bias, "float64")
        scores = self.x @ weight.T + bias
        scores -= scores.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(scores).sum(axis=1))
        cross_entropy = (log_sums - scores[np.arange(len(self.y)), self.y]).mean()
        return float(cross_entropy + self.l2 / 2 * (weight**2).sum() - self.optimum)


def load(path: Path, l2: float, optimum: float) -> Problem:
    """Read the pixels that `save` wrote; scale the rows to a mean norm of 1."""
    with np.load(path) as arrays:
        pixels, y = arrays["pixels"], arrays["y"]
    scale = np.linalg.norm(pixels.astype("float64"), axis=1).mean()
    # MXNet takes the weight decay as float32: all sides get that number.
    return Problem(pixels / scale, y.astype("int64"), float(np.float32(l2)), optimum)


def save(path: Path, pixels: np.ndarray, y: np.ndarray) -> None:
    """Write the pixels as they are: bytes, rows of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, pixels=pixels.reshape(len(pixels), -1), y=y)


def scikit_learn(problem: Problem, dtype: str, **settings: Any) -> Fit:
    from sklearn.linear_model import LogisticRegression

    x = np.ascontiguousarray(problem.x, dtype)
    strength = 1 / (problem.l2 * len(x))

    def fit(budget: int) -> Weights:
        model = LogisticRegression(
            C=strength, tol=1e-14, max_iter=budget, random_state=0, **settings
        ).fit(x, problem.y)
        return model.coef_, model.intercept_

    return fit


def cyanure(problem: Problem, dtype: str, blas_threads: int, **settings: Any) -> Fit:
    # It brings an OpenBLAS of its own, which reads this when it is loaded.
    os.environ["OPENBLAS_NUM_THREADS"] = str(blas_threads)
    from cyanure.estimators import Classifier

    # Cyanure wants the samples in columns: of rows in C order that is a view.
    x, y = np.ascontiguousarray(problem.x, dtype), problem.y.astype("int32")

    def fit(budget: int) -> Weights:
        model = Classifier(
            loss="multiclass-logistic",
            penalty="l2",
            fit_intercept=True,
            lambda_1=problem.l2,
            # Its own test of the gap, a pass over the data each time, as seldom as it goes.
            tol=1e-14,
            duality_gap_interval=budget,
            max_iter=budget,
            verbose=False,
            **settings,
        ).fit(x, y)
        return model.coef_.T, np.ravel(model.intercept_)

    return fit


def nemos(problem: Problem, dtype: str, **settings: Any) -> Fit:
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    # Each fit compiles: with a cache on disk, the second one of a budget would not.
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    import jax.numpy as jnp
    from nemos.glm import ClassifierGLM

    x, y = jnp.asarray(problem.x.astype(dtype)), jnp.asarray(problem.y)
    start = jnp.zeros((x.shape[1], CLASSES), x.dtype), jnp.zeros(CLASSES, x.dtype)
    solver_name = settings.pop("solver")

    def fit(budget: int) -> Weights:
        model = ClassifierGLM(
            n_classes=CLASSES,
            regularizer="Ridge",
            regularizer_strength=problem.l2,
            solver_name=solver_name,
            solver_kwargs={"maxiter": budget, "tol": 1e-14, **settings},
        ).fit(x, y, init_params=start)
        return np.asarray(model.coef_).T, np.asarray(model.intercept_)

    return fit


def torch_lbfgs(problem: Problem, dtype: str, history_size: int) -> Fit:
    import torch

    x = torch.from_numpy(problem.x).to(getattr(torch, dtype))
    y = torch.from_numpy(problem.y)

    def fit(budget: int) -> Weights:
        weight = torch.zeros(CLASSES, x.shape[1], dtype=x.dtype, requires_grad=True)
        bias = torch.zeros(CLASSES, dtype=x.dtype, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=budget,
            max_eval=10 * budget,
            tolerance_grad=0,
            tolerance_change=0,
            history_size=history_size,
            line_search_fn="strong_wolfe",
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            scores = torch.nn.functional.linear(x, weight, bias)
            loss = torch.nn.functional.cross_entropy(scores, y)
            loss = loss + problem.l2 / 2 * weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return weight.detach().numpy(), bias.detach().numpy()

    return fit


def scipy_lbfgs(problem: Problem, dtype: str, maxcor: int) -> Fit:
    from scipy.optimize import minimize

    x, rows = np.ascontiguousarray(problem.x, dtype), np.arange(len(problem.x))
    features = x.shape[1]

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = flat.reshape(CLASSES, features + 1)
        weight, bias = parameters[:, :-1], parameters[:, -1]
        scores = x @ weight.T.astype(dtype) + bias.astype(dtype)
        scores -= scores.max(axis=1, keepdims=True)
        of_class = scores[rows, problem.y]
        error = np.exp(scores, out=scores)
        sums = error.sum(axis=1)
        loss = (np.log(sums) - of_class).mean(dtype="float64")
        error /= sums[:, None]
        error[rows, problem.y] -= 1
        gradient = np.empty_like(parameters)
        gradient[:, :-1] = error.T @ x / len(x) + problem.l2 * weight
        gradient[:, -1] = error.mean(axis=0)
        return loss + problem.l2 / 2 * (weight**2).sum(), gradient.ravel()

    def fit(budget: int) -> Weights:
        options = {"maxiter": budget, "maxfun": 10 * budget, "maxcor": maxcor}
        options |= {"ftol": 0.0, "gtol": 0.0}
        start = np.zeros(CLASSES * (features + 1))
        flat = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x
        parameters = flat.reshape(CLASSES, features + 1)
        return parameters[:, :-1], parameters[:, -1]

    return fit


class Peer(NamedTuple):
    """A solver of another library and the settings that a search found best for it."""

    title: str
    package: str
    make: Callable[..., Fit]
    settings: Settings
    by_l2: dict[float, Settings] = {}  # noqa: RUF012  (read only)
    rehearse: bool = False
    """Whether each fit runs once before the clock starts, so that it is compiled."""

    def settings_for(self, l2: float) -> Settings:
        return {**self.settings, **self.by_l2.get(l2, {})}


PEERS = {
    "sklearn-lbfgs": Peer(
        "scikit-learn lbfgs", "scikit-learn", scikit_learn, {"solver": "lbfgs", "dtype": "float64"}
    ),
    "sklearn-saga": Peer(
        "scikit-learn saga", "scikit-learn", scikit_learn, {"solver": "saga", "dtype": "float64"}
    ),
    "sklearn-sag": Peer(
        "scikit-learn sag", "scikit-learn", scikit_learn, {"solver": "sag", "dtype": "float64"}
    ),
    "sklearn-newton-cg": Peer(
        "scikit-learn newton-cg",
        "scikit-learn",
        scikit_learn,
        {"solver": "newton-cg", "dtype": "float64"},
    ),
    "cyanure-svrg": Peer(
        "Cyanure svrg",
        "cyanure",
        cyanure,
        {"solver": "svrg", "n_threads": 1, "blas_threads": 1, "dtype": "float32"},
    ),
    "cyanure-acc-svrg": Peer(
        "Cyanure acc-svrg",
        "cyanure",
        cyanure,
        {"solver": "acc-svrg", "n_threads": 1, "blas_threads": 1, "dtype": "float32"},
    ),
    "cyanure-qning-svrg": Peer(
        "Cyanure qning-svrg",
        "cyanure",
        cyanure,
        {"solver": "qning-svrg", "n_threads": 1, "blas_threads": 1, "dtype": "float32"},
    ),
    "nemos-svrg": Peer(
        "NeMoS SVRG",
        "nemos",
        nemos,
        {"solver": "SVRG", "batch_size": 128, "stepsize": 4.0, "dtype": "float32"},
        rehearse=True,
    ),
    "nemos-lbfgs": Peer(
        "NeMoS LBFGS",
        "nemos",
        nemos,
        {"solver": "LBFGS", "dtype": "float32"},
        rehearse=True,
    ),
    "torch-lbfgs": Peer(
        "PyTorch LBFGS, strong Wolfe",
        "torch",
        torch_lbfgs,
        {"history_size": 50, "dtype": "float64"},
    ),
    "scipy-lbfgs": Peer(
        "SciPy L-BFGS-B on NumPy", "scipy", scipy_lbfgs, {"maxcor": 50, "dtype": "float32"}
    ),
}


class Point(NamedTuple):
    """Where a fit with a budget ended, and after how many seconds."""

    budget: int
    seconds: float
    gap: float


def next_budgets(target: float) -> Iterator[int]:
    """Yield budgets for the least that reaches the target: doubled up to it, then bisected.

    Each `yield` is sent the gap that the budget gave. Ends early where more does not help.
    """
    reached, missed, stalls, best = 0, 0, 0, math.inf
    budget = 1
    while not reached and stalls < 2:
        gap = yield budget
        # The first few iterations may stand still, for a line search to find its scale.
        stalls = stalls + 1 if budget > 4 and not gap < 0.9 * best else 0
        best = min(best, gap)
        if gap <= target:
            reached = budget
        else:
            missed, budget = budget, 2 * budget
    while reached and reached - missed > max(1, 0.04 * reached):
        budget = (reached + missed) // 2
        if (yield budget) <= target:
            reached = budget
        else:
            missed = budget


def confirmed_budgets(budget: int, target: float) -> Iterator[int]:
    """Yield a budget that reached the target before, and a little more where it no longer does."""
    for _ in range(5):
        if (yield budget) <= target:
            return
        budget += math.ceil(0.03 * budget)


def timed_fit(fit: Fit, budget: int, problem: Problem, cap: int) -> Point:
    """Fit and time it. The alarm ends the process: native code lets no exception through."""
    signal.alarm(cap)
    begin = time.perf_counter()
    weight, bias = fit(budget)
    seconds = time.perf_counter() - begin
    signal.alarm(0)
    return Point(budget, seconds, problem.gap(weight, bias))


def run(fit: Fit, budgets: Any, problem: Problem, cap: int, rehearse: bool) -> None:
    """Fit with each budget that the generator asks for; print the points."""
    signal.alarm(WARM_UP + cap)
    fit(1)
    budget = next(budgets, None)
    while budget is not None:
        if rehearse:
            signal.alarm(WARM_UP + cap)
            fit(budget)
        point = timed_fit(fit, budget, problem, cap)
        emit(point._asdict())
        try:
            budget = budgets.send(point.gap)
        except StopIteration:
            return


def emit(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def describe(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name != "solver")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the part of the command line that ``convex.py --ours`` has, too."""
    command.add_argument("l2", type=float)
    command.add_argument("--problem", type=Path, required=True, help="the file of pixels")
    command.add_argument("--optimum", type=float, required=True)
    command.add_argument("--target", type=float, default=1e-8)
    command.add_argument("--cap", type=int, default=40, help="seconds that a fit may take")
    command.add_argument("--settings", type=json.loads, default={}, help="JSON, over the table's")


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("name", choices=PEERS)
    add_arguments(command)
    command.add_argument("--budget", type=int, help="one that reached the target before")
    options = command.parse_args()
    warnings.simplefilter("ignore")  # of fits that did not converge: they are not meant to
    peer = PEERS[options.name]
    settings = {**peer.settings_for(options.l2), **options.settings}
    problem = load(options.problem, options.l2, options.optimum)
    try:
        fit = peer.make(problem, **settings)
    except ModuleNotFoundError as error:
        emit({"missing": str(error.name)})
        return
    emit({"version": importlib.metadata.version(peer.package), "settings": describe(settings)})
    if options.budget:
        budgets = confirmed_budgets(options.budget, options.target)
    else:
        budgets = next_budgets(options.target)
    run(fit, budgets, problem, options.cap, peer.rehearse)


if __name__ == "__main__":
    # All cores for everyone: some of these libraries take a half of them, or one.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(os.cpu_count()))
    main()
