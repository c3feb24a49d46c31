"""Proximal gradients in float64, then Newton's method on the support they have found.

Nothing is shared with what is tested, and the conditions of the optimum are looked at last.
"""

import numpy as np
from linear_oracle import half_deviance
from scipy.special import expit, softmax

POWERS = {"tweedie": 1.5, "gamma": 2.0}


def residual(loss, z, y):
    """The derivative of the losses: (n, K)."""
    if loss == "softmax":
        return softmax(z, axis=1) - np.eye(z.shape[1])[y]
    y = np.asarray(y, float)[:, None]
    if loss in POWERS:
        return np.exp((2 - POWERS[loss]) * z) - y * np.exp((1 - POWERS[loss]) * z)
    return {"logistic": expit, "squared": lambda z: z, "poisson": np.exp}[loss](z) - y


def values(loss, z, y):
    """The losses: (n,)."""
    if loss == "softmax":
        top = z.max(axis=1)
        return np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - z[np.arange(len(y)), y]
    z = z[:, 0]
    if loss == "logistic":
        return np.logaddexp(0, z) - y * z
    if loss == "squared":
        return 0.5 * (z - y) ** 2
    if loss in POWERS:
        return half_deviance(POWERS[loss], z, y)
    return np.exp(z) - y * z


def objective(loss, X, y, weight, l1, l2, coef, intercept):
    """F at coefficients (p, K)."""
    mean = np.average(values(loss, X @ coef + intercept, y), weights=weight)
    return mean + l1 * np.abs(coef).sum() + 0.5 * l2 * (coef**2).sum()


def curvature(loss, z, y):
    """Their second derivative: (n, K, K)."""
    if loss == "softmax":
        p = softmax(z, axis=1)
        return np.einsum("ik,kl->ikl", p, np.eye(p.shape[1])) - np.einsum("ik,il->ikl", p, p)
    if loss in POWERS:
        one, two, y = 1 - POWERS[loss], 2 - POWERS[loss], np.asarray(y, float)[:, None]
        return (two * np.exp(two * z) - one * y * np.exp(one * z))[:, :, None]
    flat = {"logistic": lambda z: expit(z) * expit(-z), "squared": np.ones_like, "poisson": np.exp}
    return flat[loss](z)[:, :, None]


def polished(loss, A, y, share, l1s, l2s, t):
    """Newton's method with the signs of t; None where they are not those of the optimum."""
    free = ((t != 0) | (l1s == 0)).ravel() & (np.abs(A).sum(axis=0) > 0).repeat(t.shape[1])
    sign = np.sign(t) * (l1s > 0)
    for _ in range(12):
        z = A @ t
        gradient = A.T @ (residual(loss, z, y) * share[:, None]) + l2s * t
        off = (gradient + l1s * sign).ravel()
        if np.abs(off[free]).max() < 1e-15:
            break
        h = curvature(loss, z, y) * share[:, None, None]
        full = np.einsum("ia,ikl,ib->akbl", A, h, A, optimize=True).reshape(t.size, t.size)
        full = (full + np.diag(np.repeat(l2s, t.shape[1])))[np.ix_(free, free)]
        step = np.zeros(t.size)
        step[free] = np.linalg.lstsq(full, off[free], rcond=1e-14)[0]
        t = t - step.reshape(t.shape)
    beyond = (np.abs(gradient) - l1s).ravel()[~free]
    kept = np.array_equal(np.sign(t) * (l1s > 0), sign)
    is_best = kept and np.abs(off[free]).max() < 1e-13 and beyond.max(initial=-1) <= 1e-13
    return t if is_best else None


def proximal_gradient(loss, X, y, weight, l1, l2, outputs=1, intercept=True, steps=100_000):
    """The optimum (p, K), (K,): accelerated, restarted, its step halved until the bound holds."""
    n, p = X.shape
    share = np.full(n, 1 / n) if weight is None else weight / weight.sum()
    A = np.hstack([X, np.full((n, 1), float(intercept))])
    l1s = np.append(np.full(p, l1), 0.0)[:, None]
    l2s = np.append(np.full(p, l2), 0.0)[:, None]

    def smooth(t):
        z = A @ t
        value = share @ values(loss, z, y) + 0.5 * (l2s * t * t).sum()
        return value, A.T @ (residual(loss, z, y) * share[:, None]) + l2s * t

    t = np.zeros((p + 1, outputs))
    ahead, inertia, length = t, 1.0, 1.0
    for count in range(1, steps):
        if count % 300 == 0:
            best = polished(loss, A, y, share, l1s, l2s, t)
            if best is not None:
                return best[:-1], best[-1]
        value, gradient = smooth(ahead)
        while True:
            new = ahead - length * gradient
            new = np.sign(new) * np.maximum(np.abs(new) - length * l1s, 0)
            change = new - ahead
            bound = value + (gradient * change).sum() + (change**2).sum() / (2 * length)
            if smooth(new)[0] <= bound + 1e-15 * abs(value):
                break
            length /= 2
        if np.abs(change).max() < 1e-14 * max(1, np.abs(new).max()):
            break
        if ((ahead - new) * (new - t)).sum() > 0:
            inertia = 1.0
        larger = 0.5 + np.sqrt(0.25 + inertia**2)
        ahead = new + (inertia - 1) / larger * (new - t)
        t, inertia = new, larger
    return t[:-1], t[-1]
