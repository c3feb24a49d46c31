"""The optimizers in naive NumPy float64, one parameter at a time."""

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


class NAG(NamedTuple):
    """Sutskever et al. 2013 at the point where the gradient is taken; decay by the old weight."""

    lr: float
    momentum: float = 0.0
    wd: float = 0.0
    rescale: float = 1.0
    clip: float = np.inf

    def step(self, weight, grad, mom, exempt=False):
        """Return the new weight and momentum."""
        grad = np.clip(self.rescale * grad, -self.clip, self.clip) + self.wd * weight
        mom = self.momentum * mom - self.lr * grad
        return weight + self.momentum * mom - self.lr * grad, mom


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


class AdamState:
    """Mean, variance, last gradient and count of one parameter."""

    def __init__(self, shape):
        self.mean, self.var, self.last = np.zeros(shape), np.zeros(shape), None
        self.t = 0


class MARS(NamedTuple):
    """Yuan et al. 2025, algorithm 2 with the last gradient; gamma 0 and no max_norm: AdamW."""

    lr: float
    beta1: float = 0.95
    beta2: float = 0.99
    epsilon: float = 1e-8
    gamma: float = 0.0
    max_norm: float = np.inf
    wd: float = 0.0
    rescale: float = 1.0
    clip: float = np.inf

    def step(self, weight, grad, state, exempt=False):
        """Return the new weight; changes `state`."""
        grad = np.clip(self.rescale * grad, -self.clip, self.clip)
        c = grad
        if not exempt:
            if state.last is not None:
                c = grad + self.gamma * self.beta1 / (1 - self.beta1) * (grad - state.last)
            c = c / max(1.0, np.sqrt((c**2).sum()) / self.max_norm)
        state.last = grad
        state.t += 1
        state.mean = self.beta1 * state.mean + (1 - self.beta1) * c
        state.var = self.beta2 * state.var + (1 - self.beta2) * c**2
        mean = state.mean / (1 - self.beta1**state.t)
        var = state.var / (1 - self.beta2**state.t)
        step = mean / (np.sqrt(var) + self.epsilon)
        return weight - self.lr * self.wd * weight - self.lr * step
