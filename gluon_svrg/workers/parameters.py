"""Copy shapes and initial values of parameters from worker to worker."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence

from gluon_svrg._mxnet.block import finish_initialization, has_data, is_differentiable, mark_fresh
from gluon_svrg.workers.base import Workers
from mxnet.gluon import Parameter

_logger = logging.getLogger(__name__)


class InitialSync:
    """Copies the initial parameters of worker 0 to all workers, each parameter once.

    Parameters
    ----------
    workers : Workers
        The workers that train together.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._done: dict[int, Parameter] = {}  # kept, so that their ids stay valid

    def broadcast(self, params: Iterable[Parameter], *, recheck: bool = False) -> bool:
        """Copy those of `params` that have not been copied yet.

        A parameter whose shape is unknown on all workers is left for the next call.

        Parameters
        ----------
        params : iterable of Parameter
            Initialised parameters; the same on all workers, in the same order.
        recheck : bool
            Whether to compare weights that were copied before, and to copy them again if they
            differ, because a script may have initialised them again. Running statistics are not
            compared: they may differ between workers.

        Returns
        -------
        bool
            Whether a worker had other values than worker 0, or did not know a shape.
        """
        if not self._workers.is_distributed:
            return False
        chosen = {
            id(param): param
            for param in params
            if id(param) not in self._done or (recheck and is_differentiable(param))
        }
        params = list(chosen.values())
        if not params:
            return False
        deferred = deferred_params(params, self._workers)
        sync_shapes(deferred, self._workers)
        deferred_ids = {id(param) for param in deferred}
        ready = [param for param in params if has_data(param)]
        known = [param for param in ready if id(param) not in deferred_ids]
        values = b"".join(param.list_data()[0].asnumpy().tobytes() for param in known)
        digest = hashlib.sha256(values).hexdigest()
        digests = self._workers.all_gather_object(digest, "digest of the first weights")
        differ = len(set(digests)) > 1
        new = [param for param in ready if id(param) not in self._done]
        broadcast_parameters(ready if differ else new, self._workers)
        self._done |= {id(param): param for param in ready}
        return differ or any(id(param) in deferred_ids for param in ready)

    def broadcast_late(self, params: Iterable[Parameter]) -> None:
        """Copy the parameters at the first step, and warn if it comes too late.

        It is too late if the first gradients were computed with different weights.
        """
        params = list(params)
        without_data = [param for param in params if not has_data(param)]
        is_late = self.broadcast(params)
        for param in without_data:  # no sample here has reached it, so its gradient is zero
            for data in param.list_data() if has_data(param) else ():
                mark_fresh(data, True)
        if is_late:
            _logger.warning(
                "the workers had different initial weights, so their first gradients do not fit "
                "together; from now on all use the weights of worker 0. Call "
                "trainer.synchronize(net) before the first forward pass"
            )


def deferred_params(params: Iterable[Parameter], workers: Workers) -> list[Parameter]:
    """Return the parameters whose initialisation is deferred on any worker (unknown shape)."""
    params = list(params)
    local = [number for number, param in enumerate(params) if not has_data(param)]
    numbers = set().union(*workers.all_gather_object(local, "parameters without a shape"))
    return [params[number] for number in sorted(numbers)]


def sync_shapes(params: Sequence[Parameter], workers: Workers) -> None:
    """Initialise parameters without a shape, if another worker knows the shape.

    A worker without a sample of a batch runs no forward pass that would infer it.

    Parameters
    ----------
    params : sequence of Parameter
        The parameters whose shape is unknown on some worker, in the same order on all workers.
    workers : Workers
        The workers that train together.
    """
    if not params:
        return
    local = [list(param.shape or ()) if has_data(param) else None for param in params]
    all_workers = workers.all_gather_object(local, "shapes")
    for param, shapes in zip(params, zip(*all_workers, strict=True), strict=True):
        shape = next((shape for shape in shapes if shape is not None), None)
        if shape is not None and not has_data(param):
            finish_initialization(param, shape)


def broadcast_parameters(params: Iterable[Parameter], workers: Workers) -> None:
    """Copy parameters from the first context of worker 0 to all contexts of all workers."""
    params = [param for param in params if has_data(param)]
    if not params:
        return
    # Copies, because an array that a forward pass has left in oneDNN's layout cannot be sent.
    copies = [param.list_data()[0].copy() for param in params]
    workers.broadcast(copies)
    for param, copy in zip(params, copies, strict=True):
        for data in param.list_data():
            copy.copyto(data)
