"""Naive NumPy float64 versions of what the package computes: slow, short, obvious.

Gradients are sums over the samples, as Gluon's are. `params` are lists of arrays in the order
weight, bias, weight, bias, ...; weights have Gluon's shape (outputs, inputs).
"""

from typing import NamedTuple

import numpy as np


def linear_gradient(params, x, y):
    """Half the squared error of a linear model with one output."""
    weight, bias = params
    error = x @ weight.T + bias - y[:, None]
    return [error.T @ x, error.sum(axis=0)]


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def softmax_gradient(params, x, y):
    """Cross-entropy of softmax regression."""
    weight, bias = params
    error = softmax(x @ weight.T + bias) - np.eye(len(bias))[y.astype(int)]
    return [error.T @ x, error.sum(axis=0)]


def mlp_gradient(params, x, y):
    """Cross-entropy of a network with one hidden layer of tanh."""
    weight1, bias1, weight2, bias2 = params
    hidden = np.tanh(x @ weight1.T + bias1)
    error = softmax(hidden @ weight2.T + bias2) - np.eye(len(bias2))[y.astype(int)]
    back = (error @ weight2) * (1 - hidden**2)
    return [back.T @ x, back.sum(axis=0), error.T @ hidden, error.sum(axis=0)]


class SGD(NamedTuple):
    """MXNet's SGD. Its kernels take scalars as float32, whatever the arrays are."""

    lr: float
    momentum: float = 0.0
    wd: float = 0.0

    def step(self, params, velocity, gradients, batch_size):
        lr, momentum, wd = (float(np.float32(s)) for s in self)
        rescale = float(np.float32(1 / batch_size))
        for param, v, gradient in zip(params, velocity, gradients, strict=True):
            v[:] = momentum * v - lr * (rescale * gradient + wd * param)
            param += v


def svrg(gradient, params, batches, optimizer, *, epochs, update_freq, coefficient, order=None):
    """Run SVRG; return the parameters after every step.

    `coefficient` is a function of the fraction of epochs that is done, read at each snapshot;
    `order` of the epoch, and gives the numbers of the batches as they are visited.
    """
    params = [param.copy() for param in params]
    velocity = [np.zeros_like(param) for param in params]
    trajectory = []
    for epoch in range(epochs):
        if epoch % update_freq == 0:
            alpha = coefficient(epoch / epochs)
            snapshot = [param.copy() for param in params]
            mean = full_gradient(gradient, snapshot, batches)
        for x, y in batches if order is None else [batches[i] for i in order(epoch)]:
            corrected = [
                g - alpha * (s - len(x) * m)
                for g, s, m in zip(
                    gradient(params, x, y), gradient(snapshot, x, y), mean, strict=True
                )
            ]
            optimizer.step(params, velocity, corrected, len(x))
            trajectory.append([param.copy() for param in params])
    return trajectory


def full_gradient(gradient, params, batches):
    """Return the mean over all samples."""
    sums = [sum(parts) for parts in zip(*(gradient(params, x, y) for x, y in batches), strict=True)]
    return [total / sum(len(x) for x, _ in batches) for total in sums]
