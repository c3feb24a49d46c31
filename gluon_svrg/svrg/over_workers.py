"""The full pass over several workers: shapes, the mean, and a failure that is of all of them."""

from __future__ import annotations

from collections.abc import Callable

from gluon_svrg.data.batch import is_empty
from gluon_svrg.svrg.gradient import FullGradient
from gluon_svrg.workers import Workers
from gluon_svrg.workers.parameters import give_first_values, share_shapes, waiting_params
from mxnet.gluon import Block


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
