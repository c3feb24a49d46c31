"""Whether optimizer and kvstore of a trainer can take corrected row_sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from gluon_svrg import _mxnet
from gluon_svrg.optimizer import Optimizer
from gluon_svrg.svrg.coefficient import OptimalCoefficient
from gluon_svrg.svrg.giving_up import GivingUp
from mxnet.gluon import Parameter, Trainer

OfTrainer = TypeVar("OfTrainer", bound=Trainer)

_DENSE = "make the layer with sparse_grad=False"


def check_row_sparse(trainer: Trainer, coefficient: object, way: str) -> None:
    """Raise ValueError if a row_sparse gradient of `trainer` cannot be corrected, or used rightly.

    Parameters
    ----------
    trainer : Trainer
        Whose parameters, optimizer and kvstore are meant.
    coefficient
        That of SVRG.
    way : 'exact' or 'sparse'
        See :class:`gluon_svrg.svrg.row_correction.RowCorrection`.
    """
    params = [p for p in _mxnet.trained_parameters(trainer) if _has_sparse_gradient(p)]
    if not params:
        return
    name = params[0].name
    if isinstance(coefficient, OptimalCoefficient):
        raise ValueError(
            f"coefficient='auto' is estimated from dense gradients, and that of {name!r} is "
            f"row_sparse: give a number or a schedule, or {_DENSE}"
        )
    _check_kvstore(trainer, name)
    for param in params:
        _check_optimizer(trainer, param, way)


class Settings(Protocol):
    """What of an SVRGHandler is asked here."""

    coefficient: float | Callable[[float], float] | OptimalCoefficient
    sparse_correction: str
    giving_up: GivingUp


def checked_for_rows(trainer: OfTrainer, settings: Settings) -> OfTrainer:
    """Return `trainer`; raise as :func:`check_row_sparse`, before anything of a run is paid."""
    check_row_sparse(trainer, settings.coefficient, settings.sparse_correction)
    above = settings.giving_up.above
    if settings.sparse_correction == "sparse" and above is not None:
        for param in _mxnet.trained_parameters(trainer):
            if _has_sparse_gradient(param):
                raise ValueError(
                    f"give_up_above={above} is compared with the variance ratio of the exact way, "
                    f"and {param.name!r} is corrected with sparse_correction='sparse': leave one "
                    "of the two out"
                )
    return trainer


def _has_sparse_gradient(param: Parameter) -> bool:
    return _mxnet.storage_types(param)[1] == "row_sparse"


def _check_kvstore(trainer: Trainer, name: str) -> None:
    kvstore, compression = _mxnet.kvstore_arguments(trainer)
    if compression:
        raise ValueError(
            f"the gradient of {name!r} is row_sparse, and the kvstore {kvstore!r} compresses "
            f"dense gradients only: leave out compression_params={compression!r}, or {_DENSE}"
        )
    if not _mxnet.takes_row_sparse(kvstore):
        raise ValueError(
            f"the gradient of {name!r} is row_sparse, and the kvstore "
            f"{type(kvstore).__name__} adds up dense gradients only: give kvstore='device', or "
            f"{_DENSE}"
        )


def _check_optimizer(trainer: Trainer, param: Parameter, way: str) -> None:
    optimizer = _mxnet.optimizer_of(trainer)
    kind = type(optimizer).__name__
    is_lazy = bool(getattr(optimizer, "lazy_update", False))
    if _mxnet.storage_types(param)[0] == "row_sparse" and (
        isinstance(optimizer, Optimizer) or (hasattr(optimizer, "lazy_update") and not is_lazy)
    ):
        raise ValueError(
            f"the weights of {param.name!r} are row_sparse, and {kind} cannot update them so: "
            "give 'sgd' or 'adam' with lazy_update=True, or make the parameter with "
            "stype='default'"
        )
    if isinstance(optimizer, Optimizer) and not is_lazy:
        other = "give lazy_update=True" if hasattr(optimizer, "lazy_update") else "train by 'sgd'"
        raise ValueError(
            f"the gradient of {param.name!r} is row_sparse, and {kind} takes dense gradients "
            f"only: {other}, or {_DENSE}"
        )
    decay = float(optimizer.wd) * float(param.wd_mult)
    if decay and is_lazy:
        rows = "of a batch, so often used ones more" if way == "sparse" else "that ever occur"
        raise ValueError(
            f"{kind}(lazy_update=True) with a weight decay of {decay:g} decays only the rows of "
            f"{param.name!r} {rows}, which is another objective: give lazy_update=False, or set "
            "the parameter's wd_mult to 0"
        )
