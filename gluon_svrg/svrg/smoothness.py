"""Smoothness: the learning rate of SVRG from the largest curvatures of the objective."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gluon_svrg._typing import NumPyArray


class Smoothness(NamedTuple):
    r"""The largest curvatures of an objective, which decide the learning rate.

    The objective is the mean of n functions, one per sample. The mean of a batch of b of them,
    drawn without replacement, has the expected smoothness

    .. math::

        L(b) = D + N, \quad D = \frac{n (b - 1)}{b (n - 1)} L, \quad
        N = \frac{n - b}{b (n - 1)} L_{max}

    (N. Gazagnadou, R. Gower, J. Salmon, "Optimal mini-batch and step sizes for SAGA", ICML 2019): D
    is what all batches have in common, N what differs from batch to batch.

    Attributes
    ----------
    mean : float
        L, the largest curvature of the mean.
    sample : float
        L_max, the largest curvature of one sample's function.
    samples : int or None
        n; None if it is not known, which counts as infinite.
    """

    mean: float
    sample: float
    samples: int | None = None

    def common(self, batch_size: int) -> float:
        """Return D, of batches of this size."""
        size, rest = self._size_and_rest(batch_size)
        return (1 - rest / size) * self.mean

    def noise(self, batch_size: int) -> float:
        """Return N, of batches of this size."""
        size, rest = self._size_and_rest(batch_size)
        return rest / size * self.sample

    def expected(self, batch_size: int) -> float:
        """Return the expected smoothness L(b) of batches of this size."""
        return self.common(batch_size) + self.noise(batch_size)

    def of_a_batch(self, batch_size: int) -> float:
        """Return what :meth:`expected` returns; the old name."""
        warnings.warn(
            "Smoothness.of_a_batch is now called expected: the old name will be removed",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.expected(batch_size)

    def learning_rate(self, batch_size: int, momentum: float = 0.0) -> float:
        r"""Return the learning rate of SVRG by SGD or NAG.

        .. math:: \eta = 1 / (D + 2 N / (1 - \mu))

        Parameters
        ----------
        batch_size : int
            How many samples a step has.
        momentum : float in [0, 1)
            That of the optimizer.

        Raises
        ------
        ValueError
            If the momentum is not in [0, 1).

        Notes
        -----
        Along an eigenvector with curvature h <= D, on a quadratic, momentum is stable if
        eta h < 2 (1 + mu) (SGD's, Polyak) or 2 (1 + mu) / (1 + 2 mu) (NAG's, Nesterov): the common
        part bears 1 / D with any momentum, NAG's by a margin of at least 4/3. The part that differs
        is noise that is proportional to the distance from the optimum. Its variance in the
        weights is that of an autoregressive process, which for small eta h is the one of a step
        without momentum of eta / (1 - mu): the mean square falls if eta / (1 - mu) < 2 / N. SVRG
        has that noise twice, from the weights and from the snapshot. With k = eta N / (2 (1 - mu))
        the mean square distance settles at k / (1 - k) times the snapshot's, at most a third of it
        for the rate above. At a momentum of 0 the rate is between 1 / (2 L(b)) and 1 / L(b).
        """
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum must be in [0, 1), got {momentum!r}: with a greater one no learning "
                "rate is stable; give the optimizer 0.9"
            )
        bound = self.common(batch_size) + 2 * self.noise(batch_size) / (1 - momentum)
        return 1 / bound

    def _size_and_rest(self, batch_size: int) -> tuple[int, float]:
        """Return b, at most n, and (n - b) / (n - 1)."""
        if self.samples is None:
            return batch_size, 1.0
        size = min(batch_size, self.samples)
        return size, (self.samples - size) / max(1, self.samples - 1)


def largest_eigenvalue(
    times: Callable[[NumPyArray], NumPyArray], size: int, tolerance: float = 0.02, most: int = 20
) -> tuple[float, int]:
    """Return the largest eigenvalue of a symmetric matrix, from its products with vectors.

    By Lanczos' recurrence: a power iteration that uses all of its products, with two vectors of
    memory. It ends when the residual of the eigenvector is at most `tolerance` times the
    eigenvalue; the result is then that close to an eigenvalue, and never above the largest. The
    first vector is random, with a fixed seed.

    Parameters
    ----------
    times : callable
        From a vector, float64 of shape (size,), to its product with the matrix.
    size : int
        How many rows the matrix has.
    tolerance : float
        The relative residual at which it ends.
    most : int
        The number of products after which it ends at the latest.

    Returns
    -------
    value, products : float, int
        The eigenvalue, and how many products it took. The value is NaN if a product is not finite.

    References
    ----------
    G. H. Golub, C. F. Van Loan, "Matrix computations", section 10.1.
    """
    vector = np.random.default_rng(0).standard_normal(size)
    vector /= np.linalg.norm(vector)
    before, beta = np.zeros(size), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    value = 0.0
    for _ in range(min(most, size)):
        product = times(vector) - beta * before
        diagonal.append(float(vector @ product))
        product -= diagonal[-1] * vector
        beta = float(np.linalg.norm(product))
        if not np.isfinite(beta):
            return math.nan, len(diagonal)
        values, vectors = np.linalg.eigh(
            np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        )
        value = float(values[-1])
        # A vector that is near to another eigenvector by chance is not so for three products.
        is_near = beta * abs(vectors[-1, -1]) <= tolerance * abs(value)
        if beta <= 1e-9 * abs(value) or (is_near and len(diagonal) >= 3):
            break
        before, vector = vector, product / beta
        beside.append(beta)
    return value, len(diagonal)
