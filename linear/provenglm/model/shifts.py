"""What adds the same to all classes: the loss of classes does not see it."""

from __future__ import annotations

from provenglm.types import NumPyArray


def centre_unpenalised(step: NumPyArray, penalty: NumPyArray) -> NumPyArray:
    """Return a step without what adds the same to all classes, where there is no penalty.

    The Hessian is singular along it: rounding would add up to scores of thousands, which leave
    float32 no digits for the rest.
    """
    if step.ndim == 2:
        free = penalty == 0
        step[free] -= step[free].mean(axis=1, keepdims=True)
    return step


def centre_classes(theta: NumPyArray) -> NumPyArray:
    """Return theta, or a step, without what is the same for all classes: a new array of classes.

    The penalty is least without it. A Hessian has the penalty alone there: no preconditioner that
    is a diagonal would fit.
    """
    return theta if theta.ndim == 1 else theta - theta.mean(axis=1, keepdims=True)
