"""The full pass over several workers: shapes, means, and a failure that is of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import mxnet as mx
import numpy as np
from gluon_svrg import _mxnet
from gluon_svrg.arguments import check_number
from gluon_svrg.arrays.batch import is_empty
from gluon_svrg.svrg.gradient import FullGradient
from gluon_svrg.workers import Workers
from gluon_svrg.workers.parameters import give_first_values, share_shapes, waiting_params
from mxnet.gluon import Block, Parameter
from mxnet.ndarray import NDArray


def find_shapes(
    net: Block, infer_shapes: Callable[[object], None], batch: object, workers: Workers
) -> None:
    """Let layers infer their shapes; what is initialised by that is the first worker's on all.

    Parameters
    ----------
    net : Block
        The network.
    infer_shapes : callable
        Runs a forward pass of a batch.
    batch : object
        The first one, of which this worker may have no sample.
    workers : Workers
        Who share the batch out.
    """
    if not workers.are_several:
        infer_shapes(batch)
        return
    waiting = waiting_params(net.collect_params().values(), workers)
    if waiting and not is_empty(batch):
        infer_shapes(batch)
    share_shapes(waiting, workers)
    give_first_values(waiting, workers)


def mean_over_workers(full_gradient: FullGradient, workers: Workers) -> FullGradient:
    """Return the gradient of the samples of all workers; added up in float64.

    Parameters
    ----------
    full_gradient : FullGradient
        That of this worker's samples, of which there may be none; or of all workers' already, and
        returned as it is then.
    workers : Workers
        Who has the samples.

    Raises
    ------
    ValueError
        If no worker has any.
    """
    if full_gradient.is_of_all_workers:
        return full_gradient
    total = workers.total(full_gradient.samples, "full gradient")
    if not total:
        raise ValueError(
            "the full gradient needs at least one sample, got none: every batch of the training "
            "data is empty"
        )
    means = full_gradient.means
    if workers.are_several:
        sums = {name: m.astype("float64") * full_gradient.samples for name, m in means.items()}
        workers.sum(list(sums.values()))
        means = {name: (sums.pop(name) / total).astype(m.dtype) for name, m in means.items()}
    return full_gradient._replace(means=means, samples=total, is_of_all_workers=True)


def mean_of_batch(
    params: Sequence[Parameter], used: Collection[str], samples: int, workers: Workers
) -> dict[str, NDArray]:
    """Return the gradients of one batch over contexts and workers, divided by its samples.

    Parameters
    ----------
    params : sequence of Parameter
        Those that are trained; the same on all workers.
    used : collection of str
        The names of those whose gradients count whether or not a backward pass has just written
        them; of the others, what an earlier batch has left there is zero.
    samples : int
        How many samples the batch has, on all workers.
    workers : Workers
        Who have parts of it.

    Returns
    -------
    dict of str to NDArray
        By name, on the first context; dense; of the gradient's dtype, for float16 float32.

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
            if param.name in used or param.grad_req == "add" or _mxnet.is_fresh(data):
                dense = _mxnet.as_legacy(grad).tostype("default")
                total += dense.as_in_context(total.context).astype("float64")
        totals[param.name] = total
    workers.sum(list(totals.values()))
    dtypes = {param.name: np.dtype(param.dtype) for param in params}
    return {
        name: (total / samples).astype("float32" if dtypes[name] == np.float16 else dtypes[name])
        for name, total in totals.items()
    }


def stored_as_gradients(
    means: Mapping[str, NDArray], params: Sequence[Parameter]
) -> dict[str, NDArray]:
    """Return the means of `params`, those of row_sparse gradients as row_sparse arrays."""
    stored = {}
    for param in params:
        mean = means[param.name]
        _, of_gradient = _mxnet.storage_types(param)
        stored[param.name] = mean if mean.stype == of_gradient else mean.tostype(of_gradient)
    return stored


def fail_together(failure: FloatingPointError | None, workers: Workers) -> None:
    """Raise FloatingPointError on all workers if one has failed; with the first one's message.

    Who does something about it (halves a loss scale, goes back to a checkpoint) does so everywhere.
    """
    if not workers.are_several:
        if failure is not None:
            raise failure
        return
    own = None if failure is None else str(failure)
    messages = workers.gather_plain(own, "end of the full pass")
    for rank, message in enumerate(messages):
        if message is not None:
            raise FloatingPointError(f"worker {rank}: {message}")
