"""What workers do together in a full pass: infer shapes, take means, fail on all if one fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import is_fresh, storage_types
from gluon_svrg.arguments import check_number
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.svrg.gradient import FullGradient
from gluon_svrg.workers import Workers
from gluon_svrg.workers.parameters import broadcast_parameters, deferred_params, sync_shapes
from mxnet.gluon import Block, Parameter
from mxnet.ndarray import NDArray


def infer_shapes_together(
    net: Block, infer_shapes: Callable[[object], None], batch: object, workers: Workers
) -> None:
    """Let layers infer their shapes; new parameters get the first worker's values on all workers.

    Parameters
    ----------
    net : Block
        The network.
    infer_shapes : callable
        Runs a forward pass of a batch.
    batch : object
        The first batch, of which this worker may have no sample.
    workers : Workers
        The processes that share the batch.
    """
    if not workers.is_distributed:
        infer_shapes(batch)
        return
    waiting = deferred_params(net.collect_params().values(), workers)
    if waiting and not is_empty(batch):
        infer_shapes(batch)
    sync_shapes(waiting, workers)
    broadcast_parameters(waiting, workers)


def mean_over_workers(full_gradient: FullGradient, workers: Workers) -> FullGradient:
    """Return the mean over the samples of all workers; summed in float64.

    Parameters
    ----------
    full_gradient : FullGradient
        The mean over this worker's samples, of which there may be none. If it is the mean over all
        workers already, it is returned unchanged.
    workers : Workers
        The processes that share the samples.

    Raises
    ------
    ValueError
        If no worker has any.
    """
    if full_gradient.is_of_all_workers:
        return full_gradient
    total = workers.all_sum(full_gradient.samples, "full gradient")
    if not total:
        raise ValueError(
            "the full gradient needs at least one sample, got none: every batch of the training "
            "data is empty"
        )
    means = full_gradient.means
    if workers.is_distributed:
        sums = {name: m.astype("float64") * full_gradient.samples for name, m in means.items()}
        workers.all_reduce(list(sums.values()))
        means = {name: (sums.pop(name) / total).astype(m.dtype) for name, m in means.items()}
    return full_gradient._replace(means=means, samples=total, is_of_all_workers=True)


def mean_batch_gradient(
    params: Sequence[Parameter], used: Collection[str], samples: int, workers: Workers
) -> dict[str, NDArray]:
    """Return the gradients of one batch over contexts and workers, divided by its samples.

    Parameters
    ----------
    params : sequence of Parameter
        The trained parameters; the same on all workers.
    used : collection of str
        The names of parameters whose gradients always count; the gradient of any other counts as
        zero unless a backward pass has just written it.
    samples : int
        How many samples the batch has, on all workers.
    workers : Workers
        The processes that share the batch.

    Returns
    -------
    dict of str to NDArray
        Dense arrays by name, on the first context, with the gradient's dtype (float32 for float16).

    Raises
    ------
    TypeError, ValueError
        If `samples` is not a positive number.
    """
    check_number(
        "samples", samples, "the number of samples of the batch, on all workers", 0, above=True
    )
    totals = {}
    for param in params:
        datas, grads = param.list_data(), param.list_grad()
        total = mx.nd.zeros(grads[0].shape, grads[0].ctx, "float64")
        for data, grad in zip(datas, grads, strict=True):
            if param.name in used or param.grad_req == "add" or is_fresh(data):
                dense = to_nd(grad).tostype("default")
                total += dense.as_in_context(total.context).astype("float64")
        totals[param.name] = total
    workers.all_reduce(list(totals.values()))
    dtypes = {param.name: np.dtype(param.dtype) for param in params}
    return {
        name: (total / samples).astype("float32" if dtypes[name] == np.float16 else dtypes[name])
        for name, total in totals.items()
    }


def match_storage_types(
    means: Mapping[str, NDArray], params: Sequence[Parameter]
) -> dict[str, NDArray]:
    """Return the means of `params`, each with the storage type of its gradient."""
    converted = {}
    for param in params:
        mean = means[param.name]
        _, stype = storage_types(param)
        converted[param.name] = mean if mean.stype == stype else mean.tostype(stype)
    return converted


def raise_on_all(failure: FloatingPointError | None, workers: Workers) -> None:
    """Raise FloatingPointError on all workers if one has failed, with the message of the first.

    So all workers react alike: all halve the loss scale, or all go back to a checkpoint.
    """
    if not workers.is_distributed:
        if failure is not None:
            raise failure
        return
    message = None if failure is None else str(failure)
    messages = workers.all_gather_object(message, "end of the full pass")
    for rank, message in enumerate(messages):
        if message is not None:
            raise FloatingPointError(f"worker {rank}: {message}")
