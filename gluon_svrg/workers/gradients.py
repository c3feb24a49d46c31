"""The gradients of a trainer, added up over the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import mxnet as mx
from gluon_svrg import _mxnet
from gluon_svrg.arrays.replicas import by_device
from gluon_svrg.arrays.row_sparse import set_to_zero
from gluon_svrg.workers.base import Workers
from gluon_svrg.workers.compression import HalfPrecision, find_nonfinite
from gluon_svrg.workers.process import current, is_custom_kvstore, workers_of_kvstore
from mxnet.gluon import Parameter
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

AllReduce: TypeAlias = "Callable[[Sequence[NDArray]], None]"
"""Replaces each array by its sum over all workers."""


def resolve_kvstore(
    kvstore: str | KVStoreBase | None,
) -> tuple[Workers, AllReduce, str | KVStoreBase | None]:
    """Return the workers of a trainer that is given `kvstore`, their sum, and a local kvstore.

    The local one adds up over the contexts of one worker. It is `kvstore` itself, unless that is
    one of several processes.
    """
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", "")
    if kvstore is None or ("dist" not in kind and not _is_of_several(kvstore)):
        workers = current()
        return workers, workers.all_reduce, kvstore
    workers = workers_of_kvstore(kvstore)
    if is_custom_kvstore(kvstore) and workers.is_distributed:
        return workers, _sum_of(kvstore, workers), "device"
    return workers, workers.all_reduce, "device"


def _sum_of(store: KVStoreBase, workers: Workers) -> AllReduce:
    """Return the sum that a kvstore of the user's own makes, after a trial of it."""

    def add(arrays: Sequence[NDArray]) -> None:
        for key, array in enumerate(arrays):
            store.pushpull(key, array, out=array)

    ones = mx.nd.ones((1,))
    add([ones])
    # On one worker it may be right: what a server leaves to the last, say.
    sums = workers.all_gather_object(float(ones.asscalar()), "the first sum of the kvstore")
    if sums != [workers.size] * workers.size:
        raise ValueError(
            f"the kvstore {type(store).__name__} adds up ones of {workers.size} workers to {sums}: "
            "its pushpull has to leave the sum over all workers, not their mean, in out"
        )
    return add


def _is_of_several(kvstore: str | KVStoreBase) -> bool:
    """Return whether it is none of MXNet's own, and of several processes."""
    with suppress(NotImplementedError):  # by one that knows of one process only
        return is_custom_kvstore(kvstore) and kvstore.num_workers > 1
    return False


def check_distributed_arguments(
    params: Iterable[Parameter],
    update_on_kvstore: bool | None,
    compression_params: dict[str, Any] | None,
) -> None:
    """Raise ValueError if a trainer over several workers cannot have these arguments."""
    if update_on_kvstore:
        raise ValueError(
            f"update_on_kvstore={update_on_kvstore!r} is for one worker: over several, each "
            "worker runs the optimizer on the sum of all gradients; leave it out"
        )
    if compression_params:
        raise ValueError(
            f"compression_params={compression_params!r} is for one worker: over several the "
            "gradients are added up as they are, so that the workers equal one process; leave it "
            "out, or give {'type': 'fp16'}, which sends float16"
        )
    for param in params:
        stype, grad_stype = _mxnet.storage_types(param)
        if stype != "default" or grad_stype != "default":
            raise ValueError(
                f"parameter {param.name!r} has stype {stype!r} and grad_stype {grad_stype!r}: "
                "sparse weights and gradients are not added up over workers; make the layer with "
                "sparse_grad=False"
            )


def all_reduce_gradients(
    params: Sequence[Parameter],
    add: AllReduce,
    half: HalfPrecision | None = None,
    *,
    may_overflow: bool = False,
) -> None:
    """Replace the gradients on all contexts by their sums over the workers.

    Parameters
    ----------
    params : sequence of Parameter
        Whose gradients the contexts of a worker have in common already; the same on all workers.
    add : callable
        What adds up arrays over the workers: `Workers.sum`, or a kvstore's.
    half : HalfPrecision, optional
        What makes the sums, if they are to be of float16.
    may_overflow : bool
        Whether sums may be beyond float16's range: MXNet's AMP sees to that.

    Raises
    ------
    FloatingPointError
        If one is, or is NaN or infinite already: on all workers.
    """
    first, *others = by_device(param.list_grad() for param in params)
    if half is None:
        add(first)
    else:
        half.all_reduce(first, add)
        if not may_overflow and (wrong := find_nonfinite(first)) is not None:
            raise FloatingPointError(
                f"the sum of the gradients of parameter {params[wrong].name!r} over the workers is "
                "not finite: it is beyond float16's 65504, or was NaN or infinite before; make the "
                "trainer without compression_params={'type': 'fp16'}, or lower the learning rate"
            )
    for grads in others:
        for total, grad in zip(first, grads, strict=True):
            total.copyto(grad)


def sync_stale_gradients(params: Sequence[Parameter], workers: Workers) -> list[Parameter]:
    """Let all workers and contexts use the gradients that any of them has computed, and only these.

    If a backward pass has not reached a parameter, its gradient is still that of the last step. It
    becomes zero, which is what these samples add to the others' gradient. So it is in one process
    with one context, whose backward pass goes through all samples.

    Parameters
    ----------
    params : sequence of Parameter
        Those that are trained; the same on all workers.
    workers : Workers
        Those that are about to add up.

    Returns
    -------
    list of Parameter
        Those that no backward pass of any worker has reached.
    """
    copies = [_mxnet.list_data(param) for param in params]
    fresh = [[_mxnet.is_fresh(data) for data in datas] for datas in copies]
    stale = [number for number, flags in enumerate(fresh) if not any(flags)]
    everybody = workers.all_gather_object(stale, "gradients that are stale")
    unused = set(stale).intersection(*everybody)
    for number, (param, flags) in enumerate(zip(params, fresh, strict=True)):
        if all(flags):
            continue
        for data, grad, is_fresh in zip(copies[number], param.list_grad(), flags, strict=True):
            if not is_fresh and param.grad_req == "write":
                set_to_zero(grad)
            _mxnet.mark_fresh(data, number not in unused)
    return [params[number] for number in sorted(unused)]
