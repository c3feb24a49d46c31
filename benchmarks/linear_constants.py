"""Halve and double each constant of the linear solver, on problems that take every way it has.

Iterations, passes, the gap and warnings are the same in each run, so one run measures them. CPU
seconds are measured only if these change, or if the constant is the size of a block: in turns with
the unchanged value, the least of several. A constant is varied only on problems that read it, or
that read a constant which is derived from it; those are computed again from the new value.

``make bench-constants`` measures all and puts the table into docs/benchmarks/constants.md. To
decide on one constant, without a page:

    python benchmarks/linear_constants.py --only MEMORY --problems text lasso --rounds 0
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import large_problems as large
import linear_problems as dense
import numpy as np
import provenglm
import report
import scipy.sparse as sp
from provenglm import constants
from sklearn.exceptions import ConvergenceWarning

TOL = 1e-6
ROUNDS = 3
NOTICED = 1.1
PACKAGES = ("provenglm", "numpy", "scipy", "numba")
SIZES = "Blocks of rows."
"""The constants below this comment change no count."""

Make = Callable[[Path], tuple[Any, Any, Any, Any]]


class Fit(NamedTuple):
    """What a fit counts, and its CPU seconds."""

    solver: str
    iterations: int
    passes: float
    is_proven: bool
    warns: bool
    coef: bytes
    seconds: float


class Case(NamedTuple):
    """A model and what it is fitted to."""

    model: Any
    x: Any
    y: Any
    weight: Any
    """None, the weights of the rows, or by name what `fit` gets beside X and y."""
    null: float
    """The objective of the best constant."""

    def fit(self) -> Fit:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            began = time.process_time()
            model = self.model.fit(self.x, self.y, **beside(self.weight))
            seconds = time.process_time() - began
        warns = any(issubclass(one.category, ConvergenceWarning) for one in caught)
        coef = np.ascontiguousarray(np.asarray(model.coef_)).tobytes()
        if hasattr(model, "gaps_"):
            iterations = int(np.sum(model.n_iter_))
            return Fit("path", iterations, float(iterations), True, warns, coef, seconds)
        is_proven = model.gap_ <= TOL * (self.null - model.objective_)
        passes = float(model.history_[-1]["passes"])
        return Fit(model.solver_, model.n_iter_, passes, is_proven, warns, coef, seconds)


def beside(weight: Any) -> dict[str, Any]:
    """Return what `fit` gets beside X and y: a case's weights, or a dict as it is."""
    if weight is None or isinstance(weight, dict):
        return weight or {}
    return {"sample_weight": weight}


def classifier(problem: dense.LinearProblem, l1_ratio: float = 0.0) -> tuple[Any, Any, Any, Any]:
    """Return the model of a problem with classes, with the L1 penalty as a part of its own."""
    C = 1 / (problem.weights().sum() * (problem.l1 + problem.l2))
    model = provenglm.SVRGClassifier(
        C, l1_ratio=l1_ratio, tol=TOL, random_state=0, class_weight=problem.class_weight
    )
    return model, problem.x, problem.y, problem.sample_weight


def _labels(random: np.random.Generator, x: Any, scale: float = 1.5) -> np.ndarray:
    score = x @ random.standard_normal(x.shape[1]) * (scale / np.sqrt(x.shape[1]))
    return dense._draw_two(random, score)


def _noise(rows: int, columns: int) -> tuple[np.random.Generator, np.ndarray]:
    random = np.random.default_rng(0)
    return random, random.standard_normal((rows, columns))


def balanced(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(30_000, 190)
    y = _labels(random, x)
    return classifier(dense.LinearProblem("", x, y, "logistic", 1 / len(y)))


def imbalanced(_: Path) -> tuple[Any, Any, Any, Any]:
    """One row of a hundred is positive; columns of scales 1e-3 to 1e3, with offsets."""
    random, x = _noise(30_000, 190)
    score = x @ random.standard_normal(190) * (1.2 / np.sqrt(190))
    y = dense._draw_two(random, score - 5)
    x = (x + 10 * random.standard_normal(190)) * 10.0 ** random.uniform(-3, 3, 190)
    problem = dense.LinearProblem("", x, y, "logistic", 1e-3 / len(y), class_weight="balanced")
    return classifier(problem)


def hundred_classes(
    _: Path, of_each: int = 60, l2: float = 1e-3, classes: int = 100
) -> tuple[Any, Any, Any, Any]:
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), of_each)
    x = random.standard_normal((classes, 40))[y] + 1.5 * random.standard_normal((len(y), 40))
    order = random.permutation(len(y))
    return classifier(dense.LinearProblem("", x[order], y[order], "softmax", l2))


def fashion(_: Path, l2: float = 1e-5) -> tuple[Any, Any, Any, Any]:
    problem = dense.fashion(l2=l2)
    return classifier(problem._replace(x=problem.x[:8000, ::2], y=problem.y[:8000]))


@functools.lru_cache
def _text(classes: int) -> tuple[Any, np.ndarray]:
    return large.made_text(rows=12_000, columns=15_000, classes=classes)


def text(_: Path, classes: int = 2, strength: float = 10) -> tuple[Any, Any, Any, Any]:
    x, y = _text(classes)
    loss = "softmax" if classes > 2 else "logistic"
    return classifier(dense.LinearProblem("", x, y, loss, 1 / (strength * len(y))))


def l1_text(_: Path, classes: int = 2, ratio: float = 1.0) -> tuple[Any, Any, Any, Any]:
    x, y = _text(classes)
    x, y = (x, y) if classes == 2 else (x[:4000], y[:4000])
    penalty = 1 / (2 * len(y))
    loss = "softmax" if classes > 2 else "logistic"
    parts = {"l2": penalty * (1 - ratio), "l1": penalty * ratio}
    return classifier(dense.LinearProblem("", x, y, loss, **parts), ratio)


def counts(_: Path, strength: float = 1e4) -> tuple[Any, Any, Any, Any]:
    """Raw counts of words, and a time in seconds beside them."""
    random = np.random.default_rng(0)
    x, y = _text(2)
    x = sp.csr_matrix((np.rint(4 * random.gamma(0.3, 4, x.nnz)) + 1, x.indices, x.indptr), x.shape)
    score = x @ random.standard_normal(x.shape[1])
    y = dense._draw_two(random, score / score.std())
    seconds = 1.7e9 + 1e7 * random.standard_normal((len(y), 1))
    x = sp.csr_matrix(sp.hstack([x, seconds]), dtype=float)
    x.indices, x.indptr = x.indices.astype("int32"), x.indptr.astype("int32")
    return classifier(dense.LinearProblem("", x, y, "logistic", 1 / (strength * len(y))))


def one_hots(_: Path, values: int = 100) -> tuple[Any, Any, Any, Any]:
    random = np.random.default_rng(0)
    places = [dense._zipf(random, 50_000, values) + values * k for k in range(8)]
    indices = np.stack(places, axis=1)
    rows = np.arange(0, indices.size + 1, 8)
    x = sp.csr_matrix((np.ones(indices.size), indices.ravel(), rows), (len(indices), 8 * values))
    y = dense._draw_two(random, x @ random.standard_normal(8 * values) * 0.7)
    return classifier(dense.LinearProblem("", x, y, "logistic", 1 / len(y)))


def regressor(
    loss: str, alpha: float, x: Any, y: Any, weight: Any = None, **more: Any
) -> tuple[Any, Any, Any, Any]:
    model = provenglm.SVRGRegressor(loss, alpha=alpha, tol=TOL, random_state=0, **more)
    return model, x, y, weight


def lasso(_: Path, rows: int, columns: int) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(rows, columns)
    x[:, 1:] += 0.7 * x[:, :-1]
    y = x[:, :60] @ random.standard_normal(60) + 3 * random.standard_normal(rows)
    alpha = 0.03 * float(np.abs(x.T @ (y - y.mean())).max()) / rows
    return regressor("squared", alpha, x, y, l1_ratio=1.0)


def tall_l1(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(30_000, 190)
    y = _labels(random, x[:, :40], 3.0)
    parts = {"l2": 0.0, "l1": 1e-3}
    return classifier(dense.LinearProblem("", x, y, "logistic", **parts), 1.0)


def many_columns(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(1500, 2600)
    x[:, 1:] += x[:, :-1]
    return classifier(dense.LinearProblem("", x, _labels(random, x), "logistic", 1 / 1500))


def poisson(_: Path) -> tuple[Any, Any, Any, Any]:
    problem = dense.poisson(rows=180_000)
    return regressor("poisson", problem.l2, problem.x, problem.y, problem.sample_weight)


def huber(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(10_000, 40)
    y = x @ random.standard_normal(40) + random.standard_t(1.5, 10_000)
    return regressor("huber", 1e-4, x, y)


def stored(folder: Path, dtype: str, rows: int, columns: int) -> tuple[Any, Any, Any, Any]:
    """Rows in a file, sorted by class."""
    random, x = _noise(rows, columns)
    y = _labels(random, x)
    order = np.argsort(y, kind="stable")
    path = folder / f"{dtype}.npy"
    np.save(path, np.clip(40 * x[order] + 128, 0, 255).astype(dtype))
    problem = dense.LinearProblem("", np.load(path, mmap_mode="r"), y[order], "logistic", 1 / rows)
    return classifier(problem)


def stored_classes(folder: Path) -> tuple[Any, Any, Any, Any]:
    problem = dense.covtype(classes=7, rows=60_000)
    path = folder / "classes.npy"
    np.save(path, problem.x.astype("float32"))
    return classifier(problem._replace(x=np.load(path, mmap_mode="r")))


def folds(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(20_000, 40)
    model = provenglm.SVRGClassifierCV(Cs=6, cv=4, tol=TOL, random_state=0)
    return model, x, _labels(random, x), None


def terrain(_: Path) -> tuple[Any, Any, Any, Any]:
    return classifier(dense.covtype(classes=7, rows=40_000))


def few_digits(_: Path) -> tuple[Any, Any, Any, Any]:
    """Dense rows whose singular values span a thousand."""
    random, x = _noise(3000, 1000)
    left, _sizes, right = np.linalg.svd(x, full_matrices=False)
    x = left * np.logspace(0, -3, 1000) @ right * np.sqrt(len(x))
    y = dense._draw_two(random, x @ random.standard_normal(1000) * 3)
    return classifier(dense.LinearProblem("", x, y, "logistic", 1e-6))


def sparse_counts(_: Path) -> tuple[Any, Any, Any, Any]:
    """A Poisson regression on sparse columns: the first steps are too long."""
    random = np.random.default_rng(0)
    places = random.integers(0, 6000, (15_000, 12), "int32")
    ends = np.arange(0, places.size + 1, 12, dtype="int32")
    x = sp.csr_matrix((random.random(places.size), places.ravel(), ends), (len(places), 6000))
    x.sum_duplicates()
    score = x @ random.standard_normal(6000)
    y = random.poisson(np.exp(score / score.std())).astype(float)
    return regressor("poisson", 1e-4, x, y)


def without_penalty(_: Path) -> tuple[Any, Any, Any, Any]:
    """Dense rows that only a Newton step on many of them can prove."""
    random, x = _noise(20_000, 900)
    return classifier(dense.LinearProblem("", x, _labels(random, x), "logistic", 1e-9))


def raw_counts(_: Path, curvature: float) -> tuple[Any, Any, Any, Any]:
    """Raw counts of words, with a mean of |x|^2 / n l2."""
    random = np.random.default_rng(0)
    x, _y = _text(2)
    x = sp.csr_matrix((np.rint(4 * random.gamma(0.3, 4, x.nnz)) + 1, x.indices, x.indptr), x.shape)
    score = x @ random.standard_normal(x.shape[1])
    y = dense._draw_two(random, score / score.std())
    l2 = float(x.data @ x.data) / len(y) ** 2 / curvature
    return classifier(dense.LinearProblem("", x, y, "logistic", l2))


def ten_classes(_: Path, curvature: float) -> tuple[Any, Any, Any, Any]:
    """Classes of dense rows, with a mean of |x|^2 / n l2."""
    random, x = _noise(4000, 300)
    x *= np.logspace(0, -1, 300)
    score = 0.5 * x @ random.standard_normal((300, 10)) + random.gumbel(size=(4000, 10))
    l2 = float(np.square(x).sum()) / len(x) ** 2 / curvature
    return classifier(dense.LinearProblem("", x, score.argmax(axis=1), "softmax", l2))


def seven_classes(_: Path, rows: int) -> tuple[Any, Any, Any, Any]:
    """Classes of dense rows, about 100 for each effective dimension."""
    random, x = _noise(rows, 400)
    score = 0.5 * x[:, :20] @ random.standard_normal((20, 7)) + random.gumbel(size=(rows, 7))
    return classifier(dense.LinearProblem("", x, score.argmax(axis=1), "softmax", 1e-5))


def lasso_folds(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(4000, 120)
    x[:, 1:] += 0.7 * x[:, :-1]
    y = x[:, :20] @ random.standard_normal(20) + 3 * random.standard_normal(4000)
    model = provenglm.SVRGRegressorCV(l1_ratios=(1.0,), alphas=20, cv=4, tol=TOL, random_state=0)
    return model, x, y, None


def classes_with_l1(_: Path) -> tuple[Any, Any, Any, Any]:
    random, x = _noise(4000, 300)
    score = x[:, :10] @ random.standard_normal((10, 4)) + random.gumbel(size=(4000, 4))
    parts = {"l2": 0.0, "l1": 3e-3}
    return classifier(dense.LinearProblem("", x, score.argmax(axis=1), "softmax", **parts), 1.0)


PROBLEMS: dict[str, Make] = {
    "dense": balanced,
    "dense, imbalanced, raw scales": imbalanced,
    "dense, collinear": lambda _: classifier(dense.tiny_l2(rows=12_000)),
    "Poisson": poisson,
    "Huber": huber,
    "small": lambda _: classifier(dense.breast_cancer()),
    "wide": lambda _: classifier(dense.wide()),
    "dense, 2,600 columns": many_columns,
    "7 classes, raw": terrain,
    "Fashion": fashion,
    "Fashion, more L2": functools.partial(fashion, l2=1e-3),
    "100 classes": hundred_classes,
    "100 classes of 20 rows": functools.partial(hundred_classes, of_each=20),
    "text": text,
    "text, 20 classes": functools.partial(text, classes=20, strength=1),
    "counts of words": counts,
    "one-hots": one_hots,
    "one-hots, 2,000 columns": functools.partial(one_hots, values=250),
    "L1, text": l1_text,
    "L1 and L2, text": functools.partial(l1_text, ratio=0.5),
    "L1, text, 5 classes": functools.partial(l1_text, classes=5),
    "L1, tall": tall_l1,
    "lasso": functools.partial(lasso, rows=1500, columns=3000),
    "lasso, tall": functools.partial(lasso, rows=10_000, columns=350),
    "file of bytes": functools.partial(stored, dtype="uint8", rows=1_100_000, columns=8),
    "file": functools.partial(stored, dtype="float32", rows=50_000, columns=160),
    "file, 7 classes": stored_classes,
    "cross validation": folds,
    "cross validation, lasso": lasso_folds,
    "singular values over 1e3": few_digits,
    "counts, sparse": sparse_counts,
    "dense, 900 columns, no penalty": without_penalty,
    "raw counts, a curvature of 7,000": functools.partial(raw_counts, curvature=7e3),
    "raw counts, a curvature of 15,000": functools.partial(raw_counts, curvature=1.5e4),
    "10 classes, a curvature of 3": functools.partial(ten_classes, curvature=3),
    "10 classes, a curvature of 6": functools.partial(ten_classes, curvature=6),
    "7 classes, 30,000 rows": functools.partial(seven_classes, rows=30_000),
    "7 classes, 50,000 rows": functools.partial(seven_classes, rows=50_000),
    "counts of words, more L2": functools.partial(counts, strength=10),
    "counts of words, some L2": functools.partial(counts, strength=100),
    "L1, 4 dense classes": classes_with_l1,
}


def case(make: Make, folder: Path) -> Case:
    model, x, y, weight = make(folder)
    if hasattr(model, "cv"):
        return Case(model, x, y, weight, 0.0)
    much = {"C": 1e-9} if hasattr(model, "C") else {"alpha": 1e9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        null = type(model)(**{**model.get_params(), **much, "tol": 1e-4})
        null.fit(x, y, **beside(weight))
    return Case(model, x, y, weight, null.objective_)


class _Watched(types.ModuleType):
    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        _Watched.read.add(name)
        return super().__getattribute__(name)


@contextmanager
def reads() -> Iterator[set[str]]:
    """Collect the names of the constants that are read while the block runs."""
    _Watched.read = set()
    constants.__class__ = _Watched
    try:
        yield _Watched.read
    finally:
        constants.__class__ = types.ModuleType


@contextmanager
def changed(name: str, value: float) -> Iterator[None]:
    """Let a constant, and those that are derived from it, have another value in the block."""
    formulas = derived()
    before = {each: getattr(constants, each) for each in (name, *formulas)}
    setattr(constants, name, value)
    for each, formula in formulas.items():
        setattr(constants, each, eval(formula, vars(constants)))
    try:
        yield
    finally:
        for each, old in before.items():
            setattr(constants, each, old)


def _assigned() -> tuple[str, list[ast.Assign]]:
    """Return the text of the constants, and their assignments."""
    text = Path(constants.__file__).read_text(encoding="utf-8")
    return text, [one for one in ast.parse(text).body if isinstance(one, ast.Assign)]


def _uses(value: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}


def derived() -> dict[str, str]:
    """Return the formulas of the constants that are derived from others, in their order."""
    _, found = _assigned()
    return {
        one.targets[0].id: ast.unparse(one.value)  # type: ignore[attr-defined]
        for one in found
        if _uses(one.value)
    }


def names() -> dict[str, bool]:
    """Return the constants that are not derived, in their order, and which is a block's size."""
    text, found = _assigned()
    begin = text[: text.index(SIZES)].count("\n") if SIZES in text else 10**9
    return {
        one.targets[0].id: one.lineno > begin  # type: ignore[attr-defined]
        for one in found
        if not _uses(one.value)
    }


def with_bases(read: set[str]) -> set[str]:
    """Return constants that were read, with those from which they are derived."""
    found = set(read)
    for name, formula in reversed(derived().items()):
        if name in found:
            found |= _uses(ast.parse(formula, mode="eval").body)
    return found


def others(value: float) -> tuple[float, float]:
    """Return half and twice of a constant; of a part of one, half of what is left, too."""
    if isinstance(value, int):
        return max(1, value // 2), 2 * value
    return value / 2, 2 * value if value < 0.5 or value > 1 else (1 + value) / 2


def measure(
    name: str, one: Case, value: float, plain: Fit, is_size: bool, rounds: int
) -> dict[str, Any]:
    """Return what another value changes on a problem: ratios, and a proof or a warning."""
    with changed(name, value):
        new = one.fit()
        if new.solver != plain.solver:
            new = one.fit()  # the first fit by a method may load compiled code
    is_same = new.coef == plain.coef and new.passes == plain.passes
    cpu = 1.0
    if not is_same or is_size:
        seconds: list[list[float]] = [[plain.seconds], [new.seconds]]
        for _ in range(rounds if max(plain.seconds, new.seconds) < 3 else 0):
            seconds[0].append(one.fit().seconds)
            with changed(name, value):
                seconds[1].append(one.fit().seconds)
        if len(seconds[0]) > 1:
            seconds[0] = seconds[0][1:]
        cpu = min(seconds[1]) / min(seconds[0])
    return {
        "same": is_same,
        "passes": new.passes / max(plain.passes, 1e-9),
        "iterations": new.iterations / plain.iterations,
        "cpu": cpu,
        "unproven": plain.is_proven and not new.is_proven,
        "proven": new.is_proven and not plain.is_proven,
        "warns": new.warns and not plain.warns,
        "solver": new.solver if new.solver != plain.solver else "",
    }


def run(store: Path, chosen: list[str], problems: list[str], rounds: int) -> None:
    """Measure what is not in the store yet, a line for each problem and value of a constant."""
    done = {(r["name"], r["problem"], r["way"]) for r in read(store)}
    sizes = names()
    with tempfile.TemporaryDirectory() as folder, store.open("a") as file:
        for problem in problems:
            one = case(PROBLEMS[problem], Path(folder))
            one.fit()
            with reads() as found:
                plain = one.fit()
            found = with_bases(found)
            again = one.fit()
            assert again.coef == plain.coef, problem
            plain = again
            note = {"name": "", "problem": problem, "way": "", **plain._asdict(), "coef": ""}
            file.write(json.dumps(note) + "\n")
            for name in chosen or sizes:
                for way, value in zip("-+", others(getattr(constants, name)), strict=True):
                    if name in found and (name, problem, way) not in done:
                        result = measure(name, one, value, plain, sizes[name], rounds)
                        result.update(name=name, problem=problem, way=way)
                        file.write(json.dumps(result) + "\n")
                        file.flush()


def read(store: Path) -> list[dict[str, Any]]:
    if not store.exists():
        return []
    return [json.loads(line) for line in store.read_text().splitlines()]


class Effect(NamedTuple):
    """What another value of a constant does, on all problems that read it."""

    problems: int
    noticed: int
    worst: str
    median: str


def effect(results: list[dict[str, Any]]) -> Effect:
    """Tell the problem that gets most worse, or else the one that gets most better."""
    if not results:
        return Effect(0, 0, "not read", "")
    seen = [one for one in results if is_noticed(one)]
    median = report.median(one["passes"] for one in results)
    if not seen:
        return Effect(len(results), 0, "nothing", f"{median:.2f}")
    worst = max(seen, key=lambda one: (one["unproven"] or one["warns"], max(_ratios(one))))
    passes, cpu = _ratios(worst)
    text = f"{worst['problem']}: {passes:.2f} of the passes, {cpu:.2f} of the time"
    text += f", by {worst['solver']}" if worst["solver"] else ""
    text += ", not proven" if worst["unproven"] else ""
    text += ", a warning" if worst["warns"] else ""
    return Effect(len(results), len(seen), text, f"{median:.2f}")


def is_noticed(one: dict[str, Any]) -> bool:
    """Whether passes differ by more than a tenth, or time by a third, or a proof is lost."""
    passes, cpu = _ratios(one)
    of_passes = not 1 / NOTICED <= passes <= NOTICED
    of_time = not 0.75 <= cpu <= 1.33
    return bool(of_passes or of_time or one["unproven"] or one["warns"])


def _ratios(one: dict[str, Any]) -> tuple[float, float]:
    return one["passes"], one["cpu"]


def page(store: Path) -> str:
    """Return the tables of what the store has."""
    results = read(store)
    rows, seen = [], 0
    for name in names():
        effects = [
            effect([one for one in results if (one["name"], one["way"]) == (name, way)])
            for way in "-+"
        ]
        seen += any(one.noticed for one in effects)
        value = f"{getattr(constants, name):,g}"
        rows.append((name, value, effects[0].problems, *(one.worst for one in effects)))
    plain = list({one["problem"]: one for one in results if not one["name"]}.values())
    problems = [
        (one["problem"], one["solver"], f"{one['passes']:.1f}", "yes" if one["is_proven"] else "no")
        for one in plain
    ]
    counts = [(len(rows), seen, len(rows) - seen, len(plain))]
    summary = ("constants", "noticed on a problem", "not noticed", "problems")
    table = ("constant", "value", "problems that read it", "halved", "doubled")
    return "\n\n".join(
        [
            "Each constant of `linear/provenglm/constants.py`, halved and doubled. Of the problems"
            " that read it the one that gets most worse is named, or the one that gets most better:"
            " its passes over the rows (for a path, iterations) and CPU time relative to those with"
            " the value as it is. *Nothing*: on no problem do passes differ by more than a tenth or"
            " time by a third, and no proof is lost. Passes are counted, and repeat themselves; the"
            f" time is the least of up to {ROUNDS}. "
            + report.provenance("bench-constants", PACKAGES),
            report.markdown_table(summary, counts),
            report.markdown_table(table, rows),
            "The problems, with the values as they are; `tol` is 1e-6:",
            report.markdown_table(("problem", "way", "passes", "proven"), problems),
        ]
    )


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--out", type=Path, help="the page; without it, lines are printed")
    command.add_argument("--store", type=Path, help="earlier measurements, to continue from")
    command.add_argument("--only", nargs="*", default=[], help="these constants")
    command.add_argument("--problems", nargs="*", default=list(PROBLEMS), help="only these")
    command.add_argument("--rounds", type=int, default=ROUNDS, help="timings of each; 0 for none")
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or Path(folder) / "constants.jsonl"
        run(store, options.only, options.problems, options.rounds)
        if options.out:
            report.write_section(options.out, "bench-constants", page(store))
            return
        for name in options.only or names():
            for way in "-+":
                results = [r for r in read(store) if (r["name"], r["way"]) == (name, way)]
                found = effect(results)
                print(f"{name}{way} | {found.problems} | {found.noticed} | {found.worst}")


if __name__ == "__main__":
    main()
