"""LARS and Signum in naive NumPy float64, one parameter at a time."""

from typing import NamedTuple

import numpy as np


class LARS(NamedTuple):
    """You, Gitman, Ginsburg 2017, algorithm 1; the ratio is 1 where a norm is 0."""

    lr: float
    momentum: float = 0.0
    wd: float = 0.0
    rescale: float = 1.0
    clip: float = np.inf
    eta: float = 0.001
    epsilon: float = 1e-8

    def step(self, weight, grad, mom, exempt=False):
        """Return the new weight and momentum."""
        grad = self.rescale * grad
        weight_norm, grad_norm = np.sqrt((weight**2).sum()), np.sqrt((grad**2).sum())
        ratio = 1.0
        if weight_norm > 0 and grad_norm > 0 and not exempt:
            ratio = self.eta * weight_norm / (grad_norm + self.wd * weight_norm + self.epsilon)
        grad = np.clip(grad, -self.clip, self.clip) + self.wd * weight
        mom = self.momentum * mom - self.lr * ratio * grad
        return weight + mom, mom


class Signum(NamedTuple):
    """Bernstein et al. 2018, with the sign of MXNet's momentum."""

    lr: float
    momentum: float = 0.0
    wd: float = 0.0
    rescale: float = 1.0
    clip: float = np.inf
    wd_lh: float = 0.0

    def step(self, weight, grad, mom, exempt=False):
        """Return the new weight and momentum."""
        if self.momentum == 0:
            decayed = (1 - self.lr * (self.wd + self.wd_lh)) * weight
            return decayed - self.lr * np.sign(grad), mom
        grad = np.clip(self.rescale * grad, -self.clip, self.clip) + self.wd * weight
        mom = self.momentum * mom - (1 - self.momentum) * grad
        return (1 - self.lr * self.wd_lh) * weight + self.lr * np.sign(mom), mom
