"""The problems of the linear solver's oracle, which take every way that it has.

They are those of ``linear_constants.py``, of the pages of benchmarks as far as a fit takes less
than a minute, and small ones of each loss, container and argument. A name that ends in "to 1e-10"
has that `tol`. The estimators have their names of version 0.8 here, in ``linear_constants.py`` and
in ``linear_oracle.py``, so that the same code runs with both versions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import large_problems as large
import linear_constants
import linear_problems as dense
import numpy as np
import provenglm
import scipy.sparse as sp
import wide
from linear_constants import TOL, Make

PRECISE_TOL = 1e-10

Problem = tuple[Any, Any, Any, Any]
"""A model, X, y, and None, weights, or by name what `fit` gets beside them."""


def target(loss: str, random: np.random.Generator, score: np.ndarray) -> np.ndarray:
    """Draw a target of a loss, whose score has a variance of about 1."""
    if loss == "logistic":
        return dense._draw_two(random, score)
    if loss == "softmax":
        return np.digitize(score + 0.7 * random.standard_normal(len(score)), [-1, 0.5])
    if loss in ("squared", "huber"):
        return score + random.standard_t(30 if loss == "squared" else 1.5, len(score))
    mean = np.exp(0.5 * score)
    if loss == "gamma":
        return mean * random.gamma(2, 0.5, len(score)) + 1e-3
    counts = random.poisson(mean)
    return counts * random.gamma(2, 0.5, len(score)) if loss == "tweedie" else counts.astype(float)


def sparse(places: np.ndarray, columns: int, values: np.ndarray) -> sp.csr_matrix:
    """Return rows with numbers at as many places each; those at the same place are added."""
    ends = np.arange(0, places.size + 1, places.shape[1], dtype="int32")
    x = sp.csr_matrix((values, places.ravel().astype("int32"), ends), (len(places), columns))
    x.sum_duplicates()
    return x


def made(
    folder: Path,
    loss: str,
    rows: int,
    columns: int,
    penalty: float = 1e-3,
    density: float = 1.0,
    turn: Callable[[Any, Path], Any] | None = None,
    beside: tuple[str, ...] = (),
    **settings: Any,
) -> Problem:
    """Return a problem of correlated noise, or of sparse noise, and a teacher with ten columns.

    Parameters
    ----------
    penalty : float
        Of the mean loss.
    turn : callable, optional
        From the rows and a folder to what is fitted.
    beside : tuple of str
        What `fit` gets beside X and y: 'sample_weight', 'offset'.
    """
    random = np.random.default_rng(0)
    if density < 1:
        places = random.integers(0, columns, (rows, max(2, round(density * columns))), "int32")
        x = sparse(places, columns, random.random(places.size))
    else:
        x = random.standard_normal((rows, columns))
        x[:, 1:] += 0.5 * x[:, :-1]
    score = x[:, :10] @ random.standard_normal(10)
    offset = 0.5 * random.standard_normal(rows)
    with_offset = score / score.std() + (offset if "offset" in beside else 0)
    y = target(loss, random, with_offset)
    weight = random.integers(0, 4, rows).astype(float)
    extra = {"sample_weight": weight, "offset": offset}
    x = turn(x, folder) if turn else x
    fixed = {"tol": TOL, "random_state": 0, **settings}
    if loss in ("logistic", "softmax"):
        total = weight.sum() if "sample_weight" in beside else rows
        C = 1 / (penalty * total) if penalty else np.inf
        return provenglm.SVRGClassifier(C, **fixed), x, y, {name: extra[name] for name in beside}
    model = provenglm.SVRGRegressor(loss, alpha=penalty, **fixed)
    return model, x, y, {name: extra[name] for name in beside}


def path(folder: Path, loss: str, rows: int, columns: int, **more: Any) -> Problem:
    """Return the path of a made problem: five strengths, three folds."""
    names = ("density", "beside")
    ratios = more.pop("l1_ratios", (0.0,))
    _, x, y, given = made(folder, loss, rows, columns, **{k: more[k] for k in names if k in more})
    fixed = {"l1_ratios": ratios, "cv": 3, "tol": TOL, "random_state": 0}
    if loss in ("logistic", "softmax"):
        return provenglm.SVRGClassifierCV(Cs=np.logspace(-2, 2, 5), **fixed), x, y, given
    return provenglm.SVRGRegressorCV(loss, alphas=np.logspace(0, -3, 5), **fixed), x, y, given


def chunks(x: Any, folder: Path, files: bool = False) -> provenglm.Chunks:
    """Return rows as seven chunks: arrays, or files."""
    size = -(-x.shape[0] // 7)
    parts: list[Any] = [x[begin : begin + size] for begin in range(0, x.shape[0], size)]
    if files:
        paths = [folder / f"part{number}.npy" for number in range(len(parts))]
        for file, part in zip(paths, parts, strict=True):
            np.save(file, part)
        parts = paths
    return provenglm.Chunks(parts)


def of_page(_: Path, make: Callable[..., dense.LinearProblem], **more: Any) -> Problem:
    """Return a problem of the pages bench-linear and bench-large."""
    problem = make(**more)
    if problem.is_classification:
        ratio = problem.l1 / (problem.l1 + problem.l2)
        return linear_constants.classifier(problem, ratio)
    _, x, y, loss, l2, weight, *_ = problem
    return linear_constants.regressor(loss, l2, x, y, weight)


@functools.lru_cache(maxsize=1)
def _text() -> tuple[Any, np.ndarray]:
    return large.made_text()


def text(classes: int, strength: float, l1_ratio: float = 0) -> dense.LinearProblem:
    """Return the problems with text of bench-large, from the generator on every machine."""
    x, y = _text()
    penalty = 1 / (strength * len(y))
    loss, y = ("softmax", y) if classes > 2 else ("logistic", y % 2)
    parts = {"l2": penalty * (1 - l1_ratio), "l1": penalty * l1_ratio}
    return dense.LinearProblem("", x, y, loss, **parts)


def stored_bytes(folder: Path) -> Problem:
    return of_page(folder, large.stored_bytes, path=folder / "bytes.npy", rows=2_000_000)


def path_of_covtype(_: Path) -> Problem:
    problem = large.path_of_covtype(rows=100_000)
    model = provenglm.SVRGClassifierCV(Cs=20, cv=5, tol=TOL, random_state=0)
    return model, problem.x, problem.y, None


def lasso(_: Path, rows: int, columns: int, ratio: float) -> Problem:
    """Return a problem of bench-lasso, whose module needs the peers."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, columns)) + 0.5 * random.normal(size=(rows, 1))
    y = x[:, : columns // 100] @ random.normal(size=columns // 100)
    y += y.std() / 2 * random.normal(size=rows)
    alpha = ratio * float(np.abs(x.T @ (y - y.mean())).max()) / rows
    return linear_constants.regressor("squared", alpha, x, y, l1_ratio=1.0)


def correlated(_: Path, rows: int, columns: int) -> Problem:
    """Return a problem of bench-wide."""
    x, y = wide.problem(rows, columns)
    return provenglm.SVRGClassifier(tol=TOL, random_state=0), x, y, None


def one_hots(_: Path) -> Problem:
    """Return few sparse columns, whose sample has a Hessian."""
    random = np.random.default_rng(0)
    places = np.stack([dense._zipf(random, 200_000, 12) + 12 * k for k in range(4)], axis=1)
    x = sparse(places, 48, np.ones(places.size))
    y = dense._draw_two(random, x @ random.standard_normal(48))
    return linear_constants.classifier(dense.LinearProblem("", x, y, "logistic", 1 / len(y)))


def _float32(x: Any, _: Path) -> Any:
    return x.astype("float32")


def _small_integers(x: Any, _: Path) -> Any:
    return np.clip(np.rint(20 * x), -127, 127).astype("int8")


def _by_columns(x: Any, _: Path) -> Any:
    return np.asfortranarray(x)


LOSSES = ("logistic", "softmax", "squared", "huber", "poisson", "gamma", "tweedie")
WEIGHTED = ("sample_weight",)
SHIFTED = ("offset",)


def _of_each_loss() -> dict[str, Make]:
    """Return the ways that every loss has."""
    ways: dict[str, dict[str, Any]] = {
        "small": {"rows": 3000, "columns": 20},
        "fewer rows than columns": {"rows": 120, "columns": 1500, "penalty": 0.1},
        "tall": {"rows": 100_000, "columns": 90},
        "few sparse columns": {"rows": 150_000, "columns": 60, "density": 0.1},
        "many sparse columns": {"rows": 15_000, "columns": 6000, "density": 2e-3},
        "many columns": {"rows": 5000, "columns": 2600},
        "L1": {"rows": 2000, "columns": 400, "penalty": 1e-2, "l1_ratio": 1.0},
        "L1, tall": {"rows": 60_000, "columns": 150, "penalty": 1e-2, "l1_ratio": 1.0},
        "L1 and L2, sparse": {
            **{"rows": 10_000, "columns": 5000, "density": 2e-3},
            **{"penalty": 5e-4, "l1_ratio": 0.5},
        },
        "chunks": {"rows": 100_000, "columns": 40, "turn": chunks},
    }
    found: dict[str, Make] = {}
    for way, settings in ways.items():
        for loss in LOSSES:
            # Huber has no L1, and a scale of 0 if it fits all; of softmax it takes half a minute.
            if loss == "huber" and way.startswith(("L1", "fewer")):
                continue
            if (loss, way) != ("softmax", "many columns"):
                found[f"{way}, {loss}"] = functools.partial(made, loss=loss, **settings)
    return found


def _of_arguments() -> dict[str, Make]:
    """Return the arguments and containers, on small data and on tall ones."""
    logistic = functools.partial(made, loss="logistic")
    small = {"rows": 3000, "columns": 20}
    tall = {"rows": 100_000, "columns": 90}
    few = {"rows": 120, "columns": 1500, "penalty": 0.1}
    kinds: dict[str, dict[str, Any]] = {
        "no intercept": {"fit_intercept": False},
        "no penalty": {"penalty": 0.0},
        "weights": {"beside": WEIGHTED},
        "balanced classes": {"class_weight": "balanced"},
        "offset": {"beside": SHIFTED},
        "float32": {"turn": _float32},
        "int8": {"turn": _small_integers},
        "by columns": {"turn": _by_columns},
    }
    found: dict[str, Make] = {}
    for name, settings in kinds.items():
        found[f"small, {name}"] = functools.partial(logistic, **small, **settings)
        found[f"tall, {name}"] = functools.partial(logistic, **tall, **settings)
    for loss in ("softmax", "squared", "huber", "poisson"):
        of_loss = functools.partial(made, loss=loss)
        found[f"small, no penalty, {loss}"] = functools.partial(of_loss, **small, penalty=0.0)
        found[f"small, weights, {loss}"] = functools.partial(of_loss, **small, beside=WEIGHTED)
        if loss in ("squared", "poisson"):
            found[f"small, offset, {loss}"] = functools.partial(of_loss, **small, beside=SHIFTED)
            name = f"fewer rows than columns, no penalty, {loss}"
            found[name] = functools.partial(of_loss, **few | {"penalty": 0.0})
    files = functools.partial(chunks, files=True)
    sparse = {"rows": 150_000, "columns": 60, "density": 0.1}
    return found | {
        "fewer rows than columns, no intercept": functools.partial(
            logistic, **few, fit_intercept=False
        ),
        "few sparse columns, no penalty": functools.partial(logistic, **sparse, penalty=0.0),
        "few sparse columns, float32": functools.partial(logistic, **sparse, turn=_float32),
        "many sparse columns, float32": functools.partial(
            logistic, rows=15_000, columns=6000, density=2e-3, turn=_float32
        ),
        "files": functools.partial(logistic, **tall, turn=files),
        "files, weights": functools.partial(logistic, **tall, turn=files, beside=WEIGHTED),
        "files, L1": functools.partial(logistic, **tall, turn=files, penalty=1e-2, l1_ratio=1.0),
        "chunks, sparse": functools.partial(logistic, **sparse, turn=chunks),
        "wide, weak penalty": functools.partial(logistic, rows=520, columns=3000, penalty=1e-7),
        "many columns, softmax": functools.partial(made, loss="softmax", rows=1500, columns=900),
        "huber, a scale near 0": functools.partial(made, loss="huber", **few),
    }


def _of_paths() -> dict[str, Make]:
    """Return paths of all folds."""
    found: dict[str, Make] = {}
    for loss in LOSSES:
        found[f"path, {loss}"] = functools.partial(path, loss=loss, rows=3000, columns=20)
    for loss in ("logistic", "softmax", "squared", "poisson"):
        found[f"path, L1, {loss}"] = functools.partial(
            path, loss=loss, rows=1500, columns=120, l1_ratios=(0.5, 1.0)
        )
    logistic = functools.partial(path, loss="logistic")
    return found | {
        "path, weights": functools.partial(logistic, rows=3000, columns=20, beside=WEIGHTED),
        "path, tall": functools.partial(logistic, rows=100_000, columns=60),
        "path, tall, squared": functools.partial(path, loss="squared", rows=100_000, columns=60),
        "path, sparse": functools.partial(logistic, rows=15_000, columns=6000, density=2e-3),
        "path, fewer rows than columns": functools.partial(logistic, rows=120, columns=1500),
    }


def _of_pages() -> dict[str, Make]:
    """Return the problems of the benchmarks' pages."""
    linear = {
        f"bench-linear, {name}": functools.partial(of_page, make=make)
        for name, make in dense.PROBLEMS.items()
        if name not in ("breast-cancer", "wide")  # are those of linear_constants.py
    }
    texts = {
        "text": {"classes": 20, "strength": 1},
        "text-binary": {"classes": 2, "strength": 10},
        "elastic-0.1": {"classes": 2, "strength": 0.1, "l1_ratio": large.L1_RATIO},
        "elastic-1": {"classes": 2, "strength": 1, "l1_ratio": large.L1_RATIO},
        "elastic-10": {"classes": 2, "strength": 10, "l1_ratio": large.L1_RATIO},
    }
    of_text = {
        f"bench-large, {name}": functools.partial(of_page, make=text, **settings)
        for name, settings in texts.items()
    }
    words = {
        f"bench-large, {name}": functools.partial(of_page, make=large.SPARSE[name])
        for name in ("words-1", "words-10", "words-100", "words-11")
    }
    lassos = {
        f"bench-lasso, {rows:,} x {columns:,}, {ratio:g}": functools.partial(
            lasso, rows=rows, columns=columns, ratio=ratio
        )
        for rows, columns, ratio in ((1000, 5000, 0.1), (1000, 5000, 0.01), (30_000, 300, 0.01))
    }
    wides = {
        f"bench-wide, {rows:,} x {columns:,}": functools.partial(
            correlated, rows=rows, columns=columns
        )
        for rows, columns in ((8000, 5000), (3000, 20_000), (20_000, 3000))
    }
    return {
        **linear,
        **of_text,
        "bench-large, rcv1, 200,000 rows": functools.partial(
            of_page, make=large.rcv1, rows=200_000
        ),
        **words,
        "bench-large, bytes, 2,000,000 rows": stored_bytes,
        "bench-large, path, 100,000 rows": path_of_covtype,
        **lassos,
        **wides,
    }


# Those that are fitted to `PRECISE_TOL` as well begin so.
PRECISE = (
    *("small", "fewer rows", "many sparse", "L1, ", "L1 and", "few sparse columns, logistic"),
    *("tall, logistic", "tall, softmax", "tall, huber", "chunks, logistic", "chunks, softmax"),
    *("text", "one-hots", "path, logistic", "path, softmax", "path, squared", "path, L1, squared"),
)


def problems() -> dict[str, tuple[Make, float]]:
    """Return each problem with its tol."""
    makes = {
        **linear_constants.PROBLEMS,
        "one-hots, few": one_hots,
        **_of_each_loss(),
        **_of_arguments(),
        **_of_paths(),
        **_of_pages(),
    }
    found = {name: (make, TOL) for name, make in makes.items()}
    for name, make in makes.items():
        if name.startswith(PRECISE):
            found[f"{name} to {PRECISE_TOL:g}"] = (make, PRECISE_TOL)
    return found
