"""The problems of the benchmark of sparse and large data, each a function of a folder and a seed.

Real text where the machine has Debian's lists of packages, and a generator of its shape elsewhere;
the shape of rcv1; bytes in a file, sorted by class. Labels of the generated ones are drawn from a
teacher, so that the optimum is finite. Rows are float64 in CSR form, as scikit-learn's vectorizers
return them, and those of the file bytes.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from linear_problems import Array, LinearProblem, _draw_two, covtype

SECTIONS = 20
FIELD = re.compile(r"(Package|Section|Description)(?:-en)?: (.*)")
L1_RATIO = 0.5


class Texts(NamedTuple):
    """What is said in a line or two, and about what."""

    lines: list[str]
    sections: list[str]


def packages(listing: str | None = None) -> Texts:
    """Return name and description of Debian's packages in their 20 largest sections.

    Empty where the machine has no lists of packages.
    """
    if listing is None:
        if shutil.which("apt-cache") is None:
            return Texts([], [])
        command = ["apt-cache", "dumpavail"]
        listing = subprocess.run(command, capture_output=True, check=True).stdout.decode("utf-8")
    lines, sections, seen = [], [], set()
    for paragraph in listing.split("\n\n"):
        found = dict(match.groups() for match in map(FIELD.match, paragraph.splitlines()) if match)
        if len(found) == 3 and found["Package"] not in seen:
            seen.add(found["Package"])
            lines.append(f"{found['Package']} {found['Description']}")
            sections.append(found["Section"].split("/")[-1])
    largest = {name for name, _ in Counter(sections).most_common(SECTIONS)}
    kept = [number for number, name in enumerate(sections) if name in largest]
    return Texts([lines[number] for number in kept], [sections[number] for number in kept])


@functools.lru_cache(maxsize=1)
def _vectors(seed: int) -> tuple[sp.csr_matrix, Array]:
    """Return the rows and the sections 0..19, the largest first."""
    texts = packages()
    if len(texts.lines) < 10_000:
        return made_text(seed)
    from sklearn.feature_extraction.text import TfidfVectorizer

    x = TfidfVectorizer(ngram_range=(1, 2), min_df=2).fit_transform(texts.lines)
    place = {name: rank for rank, (name, _) in enumerate(Counter(texts.sections).most_common())}
    y = np.array([place[name] for name in texts.sections])
    order = np.random.default_rng(seed).permutation(len(y))
    x = sp.csr_matrix(x)[order]
    x.sort_indices()
    return x, y[order]


def made_text(
    seed: int = 0, rows: int = 52_186, columns: int = 67_129, classes: int = SECTIONS
) -> tuple[sp.csr_matrix, Array]:
    """Return the shape of that text: 13.6 words a row, Zipf, each class with its own words."""
    random = np.random.default_rng(seed)
    shares = 1 / np.arange(3, classes + 3)
    y = random.choice(classes, rows, p=shares / shares.sum())
    x = _documents(random, y, columns, words=14.0, own=0.35, flat=3)
    # Some are in an unexpected section.
    wrong = random.random(rows) < 0.06
    y[wrong] = random.integers(0, classes, wrong.sum())
    return x, y


def _documents(
    random: np.random.Generator, topics: Array, columns: int, words: float, own: float, flat: float
) -> sp.csr_matrix:
    """Return tf-idf rows of norm 1; the words are drawn by Zipf's law, a part by the topic's own.

    The k-th word of n has a chance of about 1 / (flat + k).
    """
    chances = np.cumsum(1 / (flat + np.arange(columns)))
    chances /= chances[-1]
    orders = [random.permutation(columns).astype("int32") for _ in range(int(topics.max()) + 1)]
    table = np.stack(orders)
    parts = []
    for begin in range(0, len(topics), 50_000):
        topic = topics[begin : begin + 50_000]
        lengths = np.maximum(np.rint(words * random.gamma(4, 1 / 4, len(topic))), 3).astype("int64")
        row = np.repeat(np.arange(len(topic)), lengths)
        ranks = np.searchsorted(chances, random.random(len(row))).astype("int32")
        is_own = random.random(len(row)) < own
        ranks[is_own] = table[topic[row[is_own]], ranks[is_own]]
        keys, counts = np.unique(row * np.int64(columns) + ranks, return_counts=True)
        places = np.searchsorted(keys, np.arange(len(topic) + 1) * np.int64(columns))
        part = (1 + np.log(counts), (keys % columns).astype("int32"), places)
        parts.append(sp.csr_matrix(part, shape=(len(topic), columns)))
    x = sp.vstack(parts, format="csr")
    x.indices, x.indptr = x.indices.astype("int32"), x.indptr.astype("int32")
    seen = np.bincount(x.indices, minlength=columns)
    x.data *= (np.log((1 + len(topics)) / (1 + seen)) + 1)[x.indices]
    lengths = np.diff(x.indptr)
    norms = np.sqrt(np.add.reduceat(x.data**2, x.indptr[:-1]))
    x.data /= np.repeat(norms, lengths)
    return x


def text(seed: int = 0) -> LinearProblem:
    """Return packages to their sections: 52k x 67k, 20 classes, C = 1."""
    x, y = _vectors(seed)
    return LinearProblem("text", x, y, "softmax", 1 / len(y))


def text_binary(seed: int = 0, strength: float = 10, l1_ratio: float = 0) -> LinearProblem:
    """Return packages to one half of the sections: every second one, by size."""
    x, y = _vectors(seed)
    penalty = 1 / (strength * len(y))
    l2, l1 = penalty * (1 - l1_ratio), penalty * l1_ratio
    name = f"elastic-{strength:g}" if l1_ratio else "text-binary"
    return LinearProblem(name, x, y % 2, "logistic", l2, l1=l1)


def rcv1(seed: int = 0, rows: int = 700_000, columns: int = 47_236) -> LinearProblem:
    """Return the shape of rcv1: 0.16 % of the cells, rows of norm 1, two classes, C = 1.

    A hundred topics have words of their own; the label is drawn by a score of words and topic.
    """
    random = np.random.default_rng(seed)
    topics = random.integers(0, 100, rows)
    x = _documents(random, topics, columns, words=76, own=0.4, flat=60)
    score = x @ (6 * random.standard_normal(columns)) + 1.5 * random.standard_normal(100)[topics]
    return LinearProblem("rcv1", x, _draw_two(random, score - 0.3), "logistic", 1 / rows)


@functools.lru_cache(maxsize=1)
def _counts(seed: int) -> tuple[sp.csr_matrix, Array]:
    """Return how often each word is in 60 lines of Python's own library, and of which folder.

    The ten folders with the most lines are 0..9, all others 10. The data are the Python version's.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    root = Path(sysconfig.get_path("stdlib"))
    pieces, folders = [], []
    for path in sorted(root.rglob("*.py")):
        folder, *_ = path.relative_to(root).parts
        if folder == "site-packages":
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for begin in range(0, len(lines), 60):
            pieces.append("\n".join(lines[begin : begin + 60]))
            folders.append(folder)
    x = sp.csr_matrix(CountVectorizer(min_df=2).fit_transform(pieces), dtype=np.float64)
    largest = [name for name, _ in Counter(folders).most_common(10)]
    y = np.array([largest.index(name) if name in largest else 10 for name in folders])
    order = np.random.default_rng(seed).permutation(len(y))
    x = x[order]
    x.sort_indices()
    return x, y[order]


def words(seed: int = 0, strength: float = 1, binary: bool = True) -> LinearProblem:
    """Return raw counts of words: pieces to eleven folders, or to the largest and the rest."""
    x, y = _counts(seed)
    l2 = 1 / (strength * len(y))
    if binary:
        return LinearProblem(f"words-{strength:g}", x, (y == 0).astype(int), "logistic", l2)
    return LinearProblem("words-11", x, y, "softmax", l2)


def stored_bytes(
    path: Path, seed: int = 0, rows: int = 20_000_000, columns: int = 100
) -> LinearProblem:
    """Write n x 100 bytes in the order of the classes, and return the problem over the file; C = 1.

    Columns of several scales around several means, which ten factors make correlated.
    """
    random = np.random.default_rng(seed)
    factors = random.standard_normal((10, columns)).astype("float32")
    scales = (2 * 16 ** random.random(columns)).astype("float32")
    means = (30 + 180 * random.random(columns)).astype("float32")
    teacher = random.standard_normal(columns) / scales * (1.5 / np.sqrt(columns))
    x = np.lib.format.open_memmap(path, "w+", "uint8", (rows, columns))
    front, back = 0, rows
    for begin in range(0, rows, 250_000):
        count = min(250_000, rows - begin)
        part = random.standard_normal((count, columns), "float32")
        part += random.standard_normal((count, 10), "float32") @ (0.4 * factors)
        part *= scales
        part += means
        bytes_ = np.clip(np.rint(part), 0, 255).astype("uint8")
        positive = _draw_two(random, (bytes_ - means) @ teacher - 0.5).astype(bool)
        low, high = bytes_[~positive], bytes_[positive]
        x[front : front + len(low)] = low
        x[back - len(high) : back] = high
        front, back = front + len(low), back - len(high)
    x.flush()
    y = np.zeros(rows, "uint8")
    y[front:] = 1
    return LinearProblem("bytes", np.load(path, mmap_mode="r"), y, "logistic", 1 / rows)


def path_of_covtype(seed: int = 0, rows: int = 581_012) -> LinearProblem:
    """Return the forest types' shape, raw, for a path of 20 C with 5 folds; the C is the grid's."""
    return covtype(seed, rows=rows)._replace(name="path")


STRENGTHS = {"elastic-0.1": 0.1, "elastic-1": 1.0, "elastic-10": 10.0}
SPARSE: dict[str, Callable[..., LinearProblem]] = {
    "text": text,
    "text-binary": text_binary,
    "rcv1": rcv1,
    **{
        name: functools.partial(text_binary, strength=strength, l1_ratio=L1_RATIO)
        for name, strength in STRENGTHS.items()
    },
    **{
        f"words-{strength}": functools.partial(words, strength=strength)
        for strength in (1, 10, 100)
    },
    "words-11": functools.partial(words, binary=False),
}
PROBLEMS = [*SPARSE, "bytes", "path"]
