"""Sums of a trainer's gradients over the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg._mxnet.block import list_data, mark_fresh, storage_types
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.arrays.row_sparse import set_to_zero
from gluon_svrg.workers.base import Workers
from gluon_svrg.workers.compression import Float16Compression, find_nonfinite
from gluon_svrg.workers.process import current, is_custom_kvstore, workers_of_kvstore
from mxnet.gluon import Parameter
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

AllReduce: TypeAlias = "Callable[[Sequence[NDArray]], None]"
"""A function that replaces each array by its sum over all workers."""


def resolve_kvstore(
    kvstore: str | KVStoreBase | None,
) -> tuple[Workers, AllReduce, str | KVStoreBase | None]:
    """Return the workers, the sum and the local kvstore for a trainer's argument `kvstore`.

    Returns
    -------
    workers : Workers
        The workers that train together.
    all_reduce : callable
        Sums arrays over the workers.
    kvstore : str, KVStoreBase or None
        The kvstore for the contexts of one worker: `kvstore` itself, unless it is for several
        processes.
    """
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
    if kvstore is None or ("dist" not in kind and not _is_custom_and_distributed(kvstore)):
        workers = current()
        return workers, workers.all_reduce, kvstore
    workers = workers_of_kvstore(kvstore)
    if is_custom_kvstore(kvstore) and workers.is_distributed:
        return workers, _all_reduce_of(kvstore, workers), "device"
    return workers, workers.all_reduce, "device"


def _all_reduce_of(store: KVStoreBase, workers: Workers) -> AllReduce:
    """Return a function that sums arrays with a custom kvstore, after a test of it."""

    def all_reduce(arrays: Sequence[NDArray]) -> None:
        for key, array in enumerate(arrays):
            store.pushpull(key, array, out=array)

    ones = mx.nd.ones((1,))
    all_reduce([ones])
    # The result may be wrong on some workers only, so all of them compare.
    sums = workers.all_gather_object(float(ones.asscalar()), "the first sum of the kvstore")
    if sums != [workers.size] * workers.size:
        raise ValueError(
            f"the kvstore {type(store).__name__} sums ones of {workers.size} workers to {sums}: "
            "its pushpull must write the sum over all workers, not their mean, into out"
        )
    return all_reduce


def _is_custom_and_distributed(kvstore: str | KVStoreBase) -> bool:
    with suppress(NotImplementedError):  # raised by a kvstore for a single process
        return is_custom_kvstore(kvstore) and kvstore.num_workers > 1
    return False


def check_distributed_arguments(
    params: Iterable[Parameter],
    update_on_kvstore: bool | None,
    compression_params: dict[str, Any] | None,
) -> None:
    """Raise ValueError if a trainer with several workers does not support these arguments."""
    if update_on_kvstore:
        raise ValueError(
            f"update_on_kvstore={update_on_kvstore!r} is for one worker: with several, each "
            "worker runs the optimizer on the sum of all gradients; leave it out"
        )
    if compression_params:
        raise ValueError(
            f"compression_params={compression_params!r} is for one worker: with several, "
            "gradients are sent without loss, so that the result equals that of one process; leave "
            "it out, or pass {'type': 'fp16'}, which sends float16"
        )
    for param in params:
        stype, grad_stype = storage_types(param)
        if stype != "default" or grad_stype != "default":
            raise ValueError(
                f"parameter {param.name!r} has stype {stype!r} and grad_stype {grad_stype!r}: "
                "workers sum dense gradients only; make the layer with sparse_grad=False"
            )


def all_reduce_gradients(
    params: Sequence[Parameter],
    all_reduce: AllReduce,
    compression: Float16Compression | None = None,
    *,
    may_overflow: bool = False,
) -> None:
    """Replace the gradients on all contexts by their sums over the workers.

    Parameters
    ----------
    params : sequence of Parameter
        The same on all workers. Their gradients must be summed over the contexts already.
    all_reduce : callable
        Sums arrays over the workers: `Workers.all_reduce`, or a kvstore's function.
    compression : Float16Compression, optional
        Sends float32 gradients as float16.
    may_overflow : bool
        Whether sums may exceed float16's range, because MXNet's AMP checks for it.

    Raises
    ------
    FloatingPointError
        If a compressed sum is NaN or infinite; raised on all workers.
    """
    first, *others = by_device(param.list_grad() for param in params)
    if compression is None:
        all_reduce(first)
    else:
        compression.all_reduce(first, all_reduce)
        if not may_overflow and (index := find_nonfinite(first)) is not None:
            raise FloatingPointError(
                f"the sum of the gradients of parameter {params[index].name!r} over the workers is "
                "not finite: it exceeds float16's 65504, or was NaN or infinite before; make the "
                "trainer without compression_params={'type': 'fp16'}, or lower the learning rate"
            )
    for grads in others:
        for total, grad in zip(first, grads, strict=True):
            total.copyto(grad)


def sync_stale_gradients(params: Sequence[Parameter], workers: Workers) -> list[Parameter]:
    """Set stale gradients to zero, unless they are stale on all contexts of all workers.

    If a backward pass does not reach a parameter, its gradient is still that of the last step. It
    becomes zero here, which is what these samples add to the gradient of the whole batch. So the
    result equals that of one process with one context.

    Parameters
    ----------
    params : sequence of Parameter
        The trained parameters; the same on all workers.
    workers : Workers
        The workers that will sum the gradients.

    Returns
    -------
    list of Parameter
        The parameters that no backward pass on any worker has reached.
    """
    copies = [list_data(param) for param in params]
    fresh = [[_mxnet.block.is_fresh(data) for data in datas] for datas in copies]
    stale = [number for number, flags in enumerate(fresh) if not any(flags)]
    stale_on_workers = workers.all_gather_object(stale, "gradients that are stale")
    unused = set(stale).intersection(*stale_on_workers)
    for number, (param, flags) in enumerate(zip(params, fresh, strict=True)):
        if all(flags):
            continue
        for data, grad, is_fresh in zip(copies[number], param.list_grad(), flags, strict=True):
            if not is_fresh and param.grad_req == "write":
                set_to_zero(grad)
            mark_fresh(data, number not in unused)
    return [params[number] for number in sorted(unused)]
