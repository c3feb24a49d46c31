"""Remove shifts that add the same to all classes, which do not change the loss of classes."""

from __future__ import annotations

from provenglm.types import NumPyArray


def centre_unpenalised(step: NumPyArray, penalty: NumPyArray) -> NumPyArray:
    """Return a step without its mean over the classes, for features without a penalty.

    The Hessian is singular along such shifts. Rounding would accumulate to scores of thousands,
    which leave float32 no digits for the rest.
    """
    if step.shape[1] > 1:
        free = penalty == 0
        step[free] -= step[free].mean(axis=1, keepdims=True)
    return step


def centre_classes(theta: NumPyArray) -> NumPyArray:
    """Return theta, or a step, minus its mean over the classes, as a new array.

    The penalty is smallest without the mean. Along the mean the Hessian is the penalty alone, so
    that no diagonal preconditioner would fit.
    """
    return theta if theta.shape[1] == 1 else theta - theta.mean(axis=1, keepdims=True)
