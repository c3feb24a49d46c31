"""Shapes that all workers know, and weights that are the first worker's on all of them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence

from gluon_svrg import _mxnet
from gluon_svrg.workers.base import Workers
from mxnet.gluon import Parameter

_logger = logging.getLogger(__name__)


class InitialSync:
    """Gives all workers the first one's values, of each parameter once.

    Parameters
    ----------
    workers : Workers
        Who train together.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._done: dict[int, Parameter] = {}  # which are kept, so that no other gets their ids

    def broadcast(self, params: Iterable[Parameter], *, recheck: bool = False) -> bool:
        """Give the values of those of `params` for which that has not been done yet.

        One whose shape no worker knows is left for the next call.

        Parameters
        ----------
        params : iterable of Parameter
            Initialised; the same on all workers, in one order.
        recheck : bool
            Whether also weights are compared that were given before, and given if they differ: a
            script may have drawn them anew meanwhile. Running statistics stay a worker's own.

        Returns
        -------
        bool
            Whether a worker had other values than the first, or none for want of a shape.
        """
        if not self._workers.is_distributed:
            return False
        chosen = {
            id(param): param
            for param in params
            if id(param) not in self._done or (recheck and _mxnet.is_differentiable(param))
        }
        left = list(chosen.values())
        if not left:
            return False
        waiting = deferred_params(left, self._workers)
        sync_shapes(waiting, self._workers)
        drawn_now = {id(param) for param in waiting}
        ready = [param for param in left if _mxnet.has_data(param)]
        had = [param for param in ready if id(param) not in drawn_now]
        values = b"".join(param.list_data()[0].asnumpy().tobytes() for param in had)
        digest = hashlib.sha256(values).hexdigest()
        digests = self._workers.all_gather_object(digest, "digest of the first weights")
        differ = len(set(digests)) > 1
        new = [param for param in ready if id(param) not in self._done]
        broadcast_parameters(ready if differ else new, self._workers)
        self._done |= {id(param): param for param in ready}
        return differ or any(id(param) in drawn_now for param in ready)

    def broadcast_late(self, params: Iterable[Parameter]) -> None:
        """Do it at the first step, if it has not been done; and warn if that was too late."""
        params = list(params)
        without = [param for param in params if not _mxnet.has_data(param)]
        is_late = self.broadcast(params)
        for param in without:  # no sample here has reached it: its gradient is zero, and counts
            for data in param.list_data() if _mxnet.has_data(param) else ():
                _mxnet.mark_fresh(data, True)
        if is_late:
            _logger.warning(
                "the workers began with different weights, and have the first one's from now on; "
                "their first gradients were those of their own: call trainer.synchronize(net) "
                "before the first forward pass"
            )


def deferred_params(params: Iterable[Parameter], workers: Workers) -> list[Parameter]:
    """Return those of `params` that wait for their shape on any worker."""
    params = list(params)
    own = [number for number, param in enumerate(params) if not _mxnet.has_data(param)]
    waiting = set().union(*workers.all_gather_object(own, "parameters that wait for their shape"))
    return [params[number] for number in sorted(waiting)]


def sync_shapes(params: Sequence[Parameter], workers: Workers) -> None:
    """Initialise parameters that wait for their shape, if another worker knows it.

    A worker that has no sample of a batch runs no forward pass that would infer it.

    Parameters
    ----------
    params : sequence of Parameter
        Those that some worker does not know, the same on all workers, in one order.
    workers : Workers
        Who train together.
    """
    if not params:
        return
    own = [list(param.shape or ()) if _mxnet.has_data(param) else None for param in params]
    known = workers.all_gather_object(own, "shapes")
    for param, shapes in zip(params, zip(*known, strict=True), strict=True):
        shape = next((shape for shape in shapes if shape is not None), None)
        if shape is not None and not _mxnet.has_data(param):
            _mxnet.finish_initialization(param, shape)


def broadcast_parameters(params: Iterable[Parameter], workers: Workers) -> None:
    """Give parameters, on all contexts, the values that the first worker has in its first one."""
    params = [param for param in params if _mxnet.has_data(param)]
    if not params:
        return
    # Copies: an array that a forward pass has left in oneDNN's own layout cannot be sent.
    copies = [param.list_data()[0].copy() for param in params]
    workers.broadcast(copies)
    for param, copy in zip(params, copies, strict=True):
        for data in param.list_data():
            copy.copyto(data)
