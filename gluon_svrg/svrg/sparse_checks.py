"""Checks that a trainer's optimizer and kvstore accept corrected row_sparse gradients."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import mxnet as mx
from gluon_svrg._mxnet.block import storage_types
from gluon_svrg._mxnet.trainer import (
    kvstore_arguments,
    optimizer_of,
    takes_row_sparse,
    trained_parameters,
)
from gluon_svrg.arrays.row_sparse import is_row_sparse
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.optimizer import NAG, Optimizer
from gluon_svrg.svrg.coefficient import OptimalCoefficient
from mxnet.gluon import Parameter, Trainer
from mxnet.ndarray import NDArray

_DENSE = "make the layer with sparse_grad=False"


def check_row_sparse(trainer: Trainer, coefficient: object, mode: str) -> None:
    """Raise ValueError if `trainer` has a row_sparse gradient that it cannot correct or apply.

    Parameters
    ----------
    trainer : Trainer
        The trainer, with its parameters, optimizer and kvstore.
    coefficient : float, callable or OptimalCoefficient
        SVRG's coefficient.
    mode : 'exact' or 'sparse'
        See :class:`gluon_svrg.svrg.row_correction.RowCorrection`.
    """
    params = [p for p in trained_parameters(trainer) if _has_sparse_gradient(p)]
    if not params:
        return
    name = params[0].name
    for param in params:
        if param.grad_req == "add":
            raise ValueError(
                f"the gradient of {param.name!r} is row_sparse, and MXNet adds up dense gradients "
                f"only: set its grad_req to 'write', or {_DENSE}"
            )
    if isinstance(coefficient, OptimalCoefficient):
        raise ValueError(
            f"coefficient='auto' is estimated from dense gradients, and that of {name!r} is "
            f"row_sparse: give a number or a schedule, or {_DENSE}"
        )
    _check_kvstore(trainer, name)
    for param in params:
        _check_optimizer(trainer, param, mode)


def check_has_shares(
    mode: str, means: Mapping[str, NDArray], row_shares: Mapping[str, NDArray]
) -> None:
    """Raise ValueError if 'sparse' does not know which share of the batches has a row.

    Parameters
    ----------
    mode : 'exact' or 'sparse'
        As for :func:`check_row_sparse`.
    means, row_shares : mappings of str to NDArray
        The fields of a :class:`gluon_svrg.svrg.gradient.FullGradient`.
    """
    for name, mean in means.items():
        if mode == "sparse" and is_row_sparse(mean) and name not in row_shares:
            raise ValueError(
                f"sparse_correction='sparse' divides each row of {name!r} by the share of the "
                "batches that have it, which this full gradient does not tell: take that of "
                "Snapshot.full_gradient(), or sparse_correction='exact'"
            )


def check_run_with_rows(
    trainer: Trainer, coefficient: object, mode: str, max_variance_ratio: float | None
) -> None:
    """Raise ValueError as :func:`check_row_sparse`, before a run begins.

    Parameters
    ----------
    trainer, coefficient, mode
        As for :func:`check_row_sparse`.
    max_variance_ratio : float or None
        As for :class:`gluon_svrg.SVRGHandler`.
    """
    if coefficient == 0:  # the plain optimizer
        return
    check_row_sparse(trainer, coefficient, mode)
    if mode == "exact" or max_variance_ratio is None:
        return
    for param in trained_parameters(trainer):
        if _has_sparse_gradient(param):
            raise ValueError(
                f"max_variance_ratio={max_variance_ratio} is compared with the variance ratio of "
                f"sparse_correction='exact', and {param.name!r} is corrected with 'sparse': leave "
                "one of the two out"
            )


def warn_of_other_batches(
    trainer: Trainer, update_freq: int, data: TrainingData, logger: logging.Logger
) -> None:
    """Warn if 'sparse' may get other batches than those whose rows were counted.

    Parameters
    ----------
    trainer : Trainer
        The trainer.
    update_freq : int
        The number of epochs between two snapshots.
    data : TrainingData
        The batches.
    logger : logging.Logger
        Logs the warning.
    """
    why_not = data.reason_not_repeatable()
    # A full pass over indexed batches uses those of its own epoch.
    is_of_its_epoch = update_freq == 1 and data.is_indexed
    has_rows = any(map(_has_sparse_gradient, trained_parameters(trainer)))
    if has_rows and why_not and not is_of_its_epoch:
        logger.warning(
            "sparse_correction='sparse' divides by the share of the batches that have a row, "
            "counted in the full pass, and %s. With other batches the corrected gradient is "
            "biased, by a part of the full gradient: give batches that repeat, or "
            "sparse_correction='exact'",
            why_not,
        )


def _has_sparse_gradient(param: Parameter) -> bool:
    return storage_types(param)[1] == "row_sparse"


def _check_kvstore(trainer: Trainer, name: str) -> None:
    kvstore, compression = kvstore_arguments(trainer)
    if compression:
        raise ValueError(
            f"the gradient of {name!r} is row_sparse, and the kvstore {kvstore!r} compresses "
            f"dense gradients only: leave out compression_params={compression!r}, or {_DENSE}"
        )
    if not takes_row_sparse(kvstore):
        raise ValueError(
            f"the gradient of {name!r} is row_sparse, and the kvstore "
            f"{type(kvstore).__name__} adds up dense gradients only: give kvstore='device', or "
            f"{_DENSE}"
        )


def _check_optimizer(trainer: Trainer, param: Parameter, mode: str) -> None:
    optimizer = optimizer_of(trainer)
    kind = type(optimizer).__name__
    is_lazy = bool(getattr(optimizer, "lazy_update", False))
    # MXNet's other optimizers raise in the kvstore's callback, where the error is lost, or they
    # touch all rows.
    are_updated = isinstance(optimizer, mx.optimizer.SGD | mx.optimizer.Adam) and is_lazy
    if storage_types(param)[0] == "row_sparse" and not are_updated:
        raise ValueError(
            f"the weights of {param.name!r} are row_sparse, and {kind} cannot update them: "
            "give 'sgd' or 'adam' with lazy_update=True, or make the parameter with "
            "stype='default'"
        )
    if isinstance(optimizer, Optimizer) and not (is_lazy or isinstance(optimizer, NAG)):
        other = "give lazy_update=True" if hasattr(optimizer, "lazy_update") else "train by 'sgd'"
        raise ValueError(
            f"the gradient of {param.name!r} is row_sparse, and {kind} takes dense gradients "
            f"only: {other}, or {_DENSE}"
        )
    decay = float(optimizer.wd) * float(param.wd_mult)
    if decay and isinstance(optimizer, mx.optimizer.AdaGrad):
        raise ValueError(
            f"{kind} with a weight decay of {decay:g} cannot take the row_sparse gradient of "
            f"{param.name!r}: set the parameter's wd_mult to 0, or {_DENSE}"
        )
    if decay and is_lazy:
        rows = "of a batch, so often used ones more" if mode == "sparse" else "that ever occur"
        raise ValueError(
            f"{kind}(lazy_update=True) with a weight decay of {decay:g} decays only the rows of "
            f"{param.name!r} {rows}, which is another objective: give lazy_update=False, or set "
            "the parameter's wd_mult to 0"
        )
