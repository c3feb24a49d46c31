"""The problems of the linear solvers' benchmark, each a pure function of a seed.

The rows are float64 in C order, as they are when read from a file: nothing is scaled or centred
unless the problem says so. Real data: Fashion-MNIST, scikit-learn's two sample
images, breast cancer. The others have the shape of well-known data sets, with their kinds of
columns and scales, and labels drawn from a teacher, so that the optimum is finite.

    PROBLEMS["covtype"](seed=0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class LinearProblem(NamedTuple):
    """Rows, target and what is minimised.

    F(W, b) = sum_i s_i loss(x_i W + b, y_i) / sum_i s_i + l2 / 2 ||W||^2 + l1 ||W||_1,
    the intercept b is free; s_i is the sample's weight times that of its class.
    """

    name: str
    x: Array
    """(n, p), float64; those of ``large_problems.py`` are sparse or bytes, too."""
    y: Array
    """(n,): classes 0..K-1 as int64, or numbers as float64."""
    loss: str
    """logistic, softmax, squared, huber or poisson."""
    l2: float
    sample_weight: Array | None = None
    class_weight: str | None = None
    """None, or 'balanced' as in scikit-learn."""
    l1: float = 0.0

    @property
    def is_classification(self) -> bool:
        return self.loss in ("logistic", "softmax")

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1 if self.is_classification else 1

    def weights(self) -> Array:
        """Return s, (n,) in float64."""
        given = self.sample_weight
        weights = np.ones(len(self.y)) if given is None else given.astype("float64")
        if self.class_weight == "balanced":
            # As scikit-learn does: by the number of rows, whatever they weigh.
            of_class = len(self.y) / (self.classes * np.bincount(self.y))
            weights = weights * of_class[self.y]
        return weights

    @property
    def strength(self) -> float:
        """C of a classifier; alpha of a regressor, on the mean loss."""
        return float(1 / (self.l2 * self.weights().sum())) if self.is_classification else self.l2


def fashion(seed: int = 0, l2: float = 1e-4) -> LinearProblem:
    """Return Fashion-MNIST, 60,000 x 784, ten classes: rows scaled to a mean norm of 1.

    They are the rows and the L2 of ``convex.py``. Another seed gives the rows in another order.
    """
    from gluon_svrg.data import load_fashion_mnist

    (pixels, y), _ = load_fashion_mnist()
    pixels = pixels.reshape(len(pixels), -1)
    scale = np.linalg.norm(pixels.astype("float64"), axis=1).mean()
    order = np.random.default_rng(seed).permutation(len(y)) if seed else np.arange(len(y))
    x, y = pixels[order] / scale, y[order].astype("int64")
    name = f"fashion-1e{round(np.log10(l2))}"
    return LinearProblem(name, x, y, "softmax", float(np.float32(l2)))


def covtype(seed: int = 0, classes: int = 2, rows: int = 581_012) -> LinearProblem:
    """Return the forest cover types' shape, n x 54: ten raw columns, one-hots of 4 and 40; C = 1.

    Metres, degrees and 0 to 255 side by side; the shades follow from slope and aspect, as on maps.
    Both one-hots sum to 1, which makes them collinear with the intercept.
    """
    random = np.random.default_rng(seed)
    soil = _zipf(random, rows, 40)
    area = _zipf(random, rows, 4)
    raw = _terrain(random, soil, area)
    x = np.concatenate([raw, _one_hot(area, 4), _one_hot(soil, 40)], axis=1)
    scores = _standard(raw) @ random.normal(size=(10, classes))
    scores += random.normal(size=(40, classes))[soil] + random.normal(size=(4, classes))[area]
    if classes == 2:
        y = _draw_two(random, scores[:, 0] - 0.3)
        return LinearProblem("covtype", x, y, "logistic", 1 / rows)
    # The frequencies of the seven types; their logarithms are the teacher's intercepts.
    frequencies = np.array([0.365, 0.488, 0.062, 0.005, 0.016, 0.030, 0.034])[:classes]
    y = _draw_class(random, 0.7 * scores + np.log(frequencies))
    return LinearProblem(f"covtype-{classes}", x, y, "softmax", 1 / rows)


def _terrain(random: np.random.Generator, soil: Array, area: Array) -> Array:
    """Return elevation, aspect, slope, distances and shades, (n, 10), rounded to whole numbers."""
    rows = len(soil)
    elevation = 2959 + 150 * random.normal(size=40)[soil] + 90 * random.normal(size=4)[area]
    elevation += 220 * random.standard_normal(rows)
    aspect = random.integers(0, 361, rows).astype("float64")
    slope = np.minimum(14.1 * random.gamma(3.5, 1 / 3.5, rows), 66)
    to_water = np.minimum(random.gamma(1.6, 168, rows), 1397)
    above_water = 0.17 * to_water * (1 + random.standard_normal(rows))
    to_roads = np.minimum(random.gamma(2.2, 1068, rows) * elevation / 2959, 7117)
    to_fires = np.minimum(random.gamma(2.2, 900, rows), 7173)
    steep, towards = np.radians(slope), np.radians(aspect)
    shades = []
    for height, azimuth in ((50, 100), (62, 180), (42, 250)):  # the sun at 9, 12 and 15 o'clock
        high, wide = np.radians(height), np.radians(azimuth)
        shade = np.sin(high) * np.cos(steep)
        shade += np.cos(high) * np.sin(steep) * np.cos(wide - towards)
        shades.append(np.clip(255 * shade + 4 * random.standard_normal(rows), 0, 255))
    columns = [elevation, aspect, slope, to_water, above_water, to_roads, *shades, to_fires]
    return np.rint(np.stack(columns, axis=1))


def higgs(seed: int = 0, rows: int = 2_000_000) -> LinearProblem:
    """Return the shape of HIGGS, n x 28: momenta, angles, tags, and seven masses made of them."""
    random = np.random.default_rng(seed)
    x = np.empty((rows, 28))
    momenta = np.array([0, 3, 5, 9, 13, 17])  # of lepton, missing energy and four jets
    x[:, momenta] = np.exp(0.5 * random.standard_normal((rows, 6), "float32") - 0.1)
    angles = np.array([2, 4, 7, 11, 15, 19])
    x[:, angles] = random.random((rows, 6), "float32") * 3.48 - 1.74
    rapidities = np.array([1, 6, 10, 14, 18])
    x[:, rapidities] = random.standard_normal((rows, 5), "float32")
    tags = np.array([8, 12, 16, 20])
    x[:, tags] = np.array([0.0, 1.087, 2.173])[random.integers(0, 3, (rows, 4), "int8")]
    for mass, pair in enumerate(([5, 9], [5, 9, 13], [0, 0], [0, 3], [5, 17], [0, 3, 5], [9, 13])):
        noise = 0.2 * random.standard_normal(rows, "float32")
        x[:, 21 + mass] = x[:, pair].prod(axis=1) ** (1 / len(pair)) * np.exp(noise)
    # Weak, as there: a linear model finds little.
    scores = x @ (0.15 * random.normal(size=28) / x[:10_000].std(axis=0))
    y = _draw_two(random, scores - scores.mean() + 0.12)
    return LinearProblem("higgs", x, y, "logistic", 1 / rows)


def patches(seed: int = 0) -> LinearProblem:
    """Return all patches of 7 x 7 x 3 bytes of two photographs, 533,828 x 147: which? C = 1e4.

    Raw numbers from 0 to 255, whose neighbours are nearly the same. Another seed: another order.
    """
    from sklearn.datasets import load_sample_images

    images = load_sample_images().images
    views = [np.lib.stride_tricks.sliding_window_view(image, (7, 7, 3)) for image in images]
    bytes_ = np.concatenate([view.reshape(-1, 147) for view in views])
    y = np.repeat(np.arange(2), [view.shape[0] * view.shape[1] for view in views])
    order = np.random.default_rng(seed).permutation(len(y))
    x = bytes_[order].astype("float64")
    return LinearProblem("patches", x, y[order], "logistic", 1 / (1e4 * len(y)))


def tiny_l2(seed: int = 0, condition: float = 1e6, rows: int = 50_000) -> LinearProblem:
    """Return n x 300, a covariance with that condition number, and an L2 of 1e-6 / n.

    The eigenvalues fall geometrically, along directions that no scaling of columns finds; the
    teacher's score has as much of each of them.
    """
    random = np.random.default_rng(seed)
    white = random.standard_normal((rows, 300))
    directions = np.linalg.qr(random.standard_normal((300, 300)))[0]
    deviations = np.sqrt(condition) ** -np.linspace(0, 1, 300)
    y = _draw_two(random, white @ random.normal(size=300) * (2 / np.sqrt(300)))
    return LinearProblem("tiny-l2", white * deviations @ directions.T, y, "logistic", 1e-6 / rows)


def imbalanced(
    seed: int = 0, class_weight: str | None = "balanced", rows: int = 500_000
) -> LinearProblem:
    """Return n x 50 with 0.5 % positive; columns of scales 1e-3 to 1e3, with offsets; C = 1e3."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((rows, 50)) @ (np.eye(50) + 0.1 * random.normal(size=(50, 50)))
    score = _standard(mixed) @ random.normal(size=50) * (1.2 / np.sqrt(50))
    y = _draw_two(random, score - 5.9)
    scales = 10.0 ** random.permutation(np.linspace(-3, 3, 50))
    mixed += 10 * random.normal(size=50)
    mixed *= scales
    name = "imbalanced" if class_weight else "imbalanced-plain"
    weights = y.size  # balanced weights add up to the number of rows, too
    return LinearProblem(name, mixed, y, "logistic", 1 / (1e3 * weights), class_weight=class_weight)


def poisson(seed: int = 0, rows: int = 600_000) -> LinearProblem:
    """Return car insurance's shape, n x 75: claims a year, weighted by the years; 95 % zeros.

    One-hots of area, power, brand, region, fuel, and bands of both ages; then ages, bonus, density
    and its logarithm as they are. L2 is 1e-4.
    """
    random = np.random.default_rng(seed)
    levels = {"area": 6, "power": 12, "brand": 11, "region": 22, "fuel": 2}
    groups = {name: _zipf(random, rows, count) for name, count in levels.items()}
    car_age = np.minimum(random.gamma(1.4, 5, rows), 60).astype("int64")
    driver_age = np.clip(18 + random.gamma(3.2, 8.6, rows), 18, 99).astype("int64")
    bonus = np.clip(50 + random.exponential(12, rows), 50, 230).astype("int64")
    logarithm = np.clip(6 + 1.87 * random.standard_normal(rows), 0, 10.2)
    density = np.rint(np.exp(logarithm))
    bands = np.minimum(car_age // 3, 9), np.minimum((driver_age - 18) // 10, 6)
    one_hots = [_one_hot(group, levels[name]) for name, group in groups.items()]
    one_hots += [_one_hot(bands[0], 10), _one_hot(bands[1], 7)]
    raw = np.stack([car_age, driver_age, bonus, density, np.log(density)], axis=1)
    x = np.concatenate([*one_hots, raw], axis=1)
    exposure = np.clip(random.beta(0.9, 0.8, rows), 0.0027, 1)
    effects = 0.25 * random.normal(size=70)
    scores = x[:, :70] @ effects + 0.012 * (bonus - 60) + 0.05 * (logarithm - 6)
    scores += np.log(0.1) - scores.mean()
    claims = random.poisson(exposure * np.exp(scores))
    return LinearProblem("poisson", x, claims / exposure, "poisson", 1e-4, exposure)


def breast_cancer(seed: int = 0) -> LinearProblem:
    """Return breast cancer as it is, 569 x 30, C = 1. Another seed: another order."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    return LinearProblem("breast-cancer", x[order], y[order].astype("int64"), "logistic", 1 / 569)


def wide(seed: int = 0) -> LinearProblem:
    """Return 500 x 5,000, C = 1: twenty factors and noise, as genes' activities are."""
    random = np.random.default_rng(seed)
    factors = random.standard_normal((500, 20))
    x = factors @ random.normal(size=(20, 5000)) * 0.5 + random.standard_normal((500, 5000))
    y = _draw_two(random, factors @ random.normal(size=20) * 0.5)
    return LinearProblem("wide", x, y, "logistic", 1 / 500)


def classes_100(seed: int = 0, rows: int = 20_000, classes: int = 100) -> LinearProblem:
    """Return bytes, n x 300, of thirty factors and noise, with 100 classes of a teacher; C = 1."""
    random = np.random.default_rng(seed)
    factors = random.normal(size=(rows, 30))
    x = factors @ random.normal(size=(30, 300)) + random.normal(size=(rows, 300))
    x = np.clip(np.rint(128 + 127 * x / (2.5 * x.std())), 0, 255)
    y = _draw_class(random, factors @ random.normal(size=(30, classes)) / np.sqrt(30))
    return LinearProblem(
        "classes-100", x, np.unique(y, return_inverse=True)[1], "softmax", 1 / rows
    )


def _zipf(random: np.random.Generator, rows: int, levels: int) -> Array:
    """Draw levels, the k-th with a probability that falls as 1 / k."""
    chances = 1 / np.arange(1, levels + 1)
    shares = np.cumsum(chances / chances.sum())
    return np.minimum(np.searchsorted(shares, random.random(rows)), levels - 1)


def _one_hot(levels: Array, count: int) -> Array:
    result = np.zeros((len(levels), count))
    result[np.arange(len(levels)), levels] = 1
    return result


def _standard(x: Array) -> Array:
    return (x - x.mean(axis=0)) / x.std(axis=0)


def _draw_two(random: np.random.Generator, scores: Array) -> Array:
    return (random.random(len(scores)) < 1 / (1 + np.exp(-scores))).astype("int64")


def _draw_class(random: np.random.Generator, scores: Array) -> Array:
    """Draw a class a row from the softmax of its scores."""
    return np.argmax(scores + random.gumbel(size=scores.shape), axis=1)


PROBLEMS: dict[str, Callable[..., LinearProblem]] = {
    "fashion-1e-4": lambda seed=0: fashion(seed, 1e-4),
    "fashion-1e-5": lambda seed=0: fashion(seed, 1e-5),
    "covtype": covtype,
    "covtype-7": lambda seed=0: covtype(seed, 7),
    "higgs": higgs,
    "patches": patches,
    "tiny-l2": tiny_l2,
    "imbalanced": imbalanced,
    "imbalanced-plain": lambda seed=0: imbalanced(seed, None),
    "poisson": poisson,
    "breast-cancer": breast_cancer,
    "wide": wide,
    "classes-100": classes_100,
}
