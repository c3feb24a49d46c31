"""The frozen twin of a network: its gradient on a batch, and its full gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

Backward = Callable[[Any], Any]


class BatchGradient(NamedTuple):
    """The gradient of one batch at the snapshot.

    Attributes
    ----------
    sums : dict of str to list of NDArray
        For each parameter by name, on each of its contexts: the *sum* of the gradients of the
        samples that this context had. The arrays are the snapshot's own buffers, and the next
        batch overwrites them.
    samples : list of int
        The number of samples that each context had.
    """

    sums: dict[str, list[NDArray]]
    samples: list[int]


class FullGradient(NamedTuple):
    """The gradient of all samples at the snapshot.

    Attributes
    ----------
    sums : dict of str to NDArray
        For each parameter by name: the sum over all samples, float64, on its first context.
    samples : int
        The number of samples.
    """

    sums: dict[str, NDArray]
    samples: int

    def means(self) -> dict[str, NDArray]:
        """Return the mean over samples of each parameter's gradient, float64."""
        return {name: total / self.samples for name, total in self.sums.items()}


class Snapshot:
    """A frozen copy of a network's weights at which gradients are computed.

    The twin is the network itself wearing the copied weights: while a gradient is computed here,
    every Parameter holds the copy and the copy's gradient buffers, and every hybridized Block a
    cached operator of its own. So there is a twin of every Block, hybridized where the network is
    and with the same flags, on all its contexts; a loss, a batch processor or a forward pass with
    Python control flow sees nothing unusual; and BatchNorm updates the copy's running statistics,
    never the network's. Forward hooks are silent meanwhile.

    Parameters
    ----------
    net : gluon.Block
        The network. Its parameters must be initialised when :meth:`take` is called.
    params : iterable of str, optional
        Names of the parameters whose gradient is wanted; by default all of the network's. Those
        without a gradient (``grad_req='null'``) are left out at each :meth:`take`.

    Raises
    ------
    TypeError
        If `params` holds something else than names.
    ValueError
        If `params` names a parameter that the network does not have.
    """

    def __init__(self, net: gluon.Block, params: Iterable[str] | None = None) -> None:
        self.net = net
        self._wanted = None if params is None else set(params)
        self._params: dict[str, gluon.Parameter] = {}
        self._collect_params()
        self._data: dict[str, list[NDArray]] = {}
        self._grads: dict[str, list[NDArray]] = {}
        self._accumulating: list[str] = []
        self._was_reached = False
        self._layout: dict[str, tuple] = {}
        self._contexts: list[mx.Context] = []
        self._blocks: list[_TwinState] = []

    def take(self) -> None:
        """Copy the network's weights and auxiliary states as they are now.

        Raises
        ------
        RuntimeError
            If a parameter is not initialised, or its shape is not known yet.
        ValueError
            If a parameter or its gradient is sparse.
        NotImplementedError
            If MXNet is in its NumPy mode.
        """
        self._collect_params()
        for param in self._params.values():
            _check_is_ready(param)
        layout = {
            name: (param.shape, param.dtype, param.list_ctx(), param.grad_req)
            for name, param in self._params.items()
        }
        if layout == self._layout:
            for name, param in self._params.items():
                for copy, data in zip(self._data[name], param.list_data(), strict=True):
                    data.copyto(copy)
            return
        self._layout = layout
        self._allocate()

    def gradient(self, backward: Backward, batch: Any) -> BatchGradient:
        """Return the gradient of `batch` at the snapshot.

        Parameters
        ----------
        backward : callable
            ``backward(batch)`` runs the forward and the backward pass of one batch on the
            network and returns the losses, one a sample: an NDArray, or a list of them, one a
            context. The same function as for the network itself.
        batch : object
            What `backward` takes.

        Returns
        -------
        BatchGradient
            Parameters that this batch did not use have a gradient of zero.

        Raises
        ------
        RuntimeError
            If no snapshot has been taken.
        """
        if not self._data:
            raise RuntimeError("there is no snapshot yet: call take() before gradient()")
        for name in self._accumulating:
            for grad in self._grads[name]:
                grad[:] = 0
        with self._worn():
            losses = backward(batch)
        samples = self._count_samples(losses)
        for name, grads in self._grads.items():
            for data, grad, count in zip(self._data[name], grads, samples, strict=True):
                if data._fresh_grad and count:
                    self._was_reached = True
                else:  # the buffer still holds an earlier batch's
                    grad[:] = 0
                data._fresh_grad = False
        return BatchGradient(self._grads, samples)

    def full_gradient(self, backward: Backward, batches: Iterable[Any]) -> FullGradient:
        """Return the gradient of all samples at the snapshot, in one pass over `batches`.

        The sums are kept in float64, so that 10^5 small batches do not wash out, and a last,
        smaller batch counts by its size.

        Parameters
        ----------
        backward : callable
            As for :meth:`gradient`.
        batches : iterable
            All batches; iterated once.

        Returns
        -------
        FullGradient

        Raises
        ------
        ValueError
            If there is no batch.
        RuntimeError
            If no snapshot has been taken, or no parameter got a gradient.
        FloatingPointError
            If the gradient of a batch is NaN or infinite; names the parameter and the batch.
        """
        if not self._data:
            raise RuntimeError("there is no snapshot yet: call take() before full_gradient()")
        sums = {
            name: [mx.nd.zeros(grad.shape, grad.context, "float64") for grad in grads]
            for name, grads in self._grads.items()
        }
        watch = _FiniteWatch(sums)
        samples = 0
        self._was_reached = False
        for batch in batches:
            gradient = self.gradient(backward, batch)
            for name, totals in sums.items():
                for total, grad in zip(totals, gradient.sums[name], strict=True):
                    total += grad.astype("float64", copy=False)
            watch.see_batch()
            samples += sum(gradient.samples)
        if not samples:
            raise ValueError(
                "the full gradient needs at least one batch, got none: the training data is "
                "empty, or an iterator that is used up"
            )
        if not self._was_reached:
            raise RuntimeError(
                "the full pass gave no parameter a gradient: backward has to call backward() on "
                "the loss, which autograd.record() has recorded"
            )
        reduced = {name: _sum_over_contexts(totals) for name, totals in sums.items()}
        watch.check(reduced)
        return FullGradient(reduced, samples)

    def _collect_params(self) -> None:
        self._params = dict(self.net.collect_params().items())
        for name in sorted(self._wanted or (), key=str):
            if not isinstance(name, str):
                raise TypeError(
                    f"params must hold the names of parameters, got {name!r}: give "
                    "[param.name for param in ...]"
                )
            if name not in self._params:
                raise ValueError(
                    f"parameter {name!r} is not in the network {self.net.name!r}: SVRG needs the "
                    "gradient of every trained parameter at the snapshot; put all trained Blocks "
                    "into one Block and give that one"
                )

    def _allocate(self) -> None:
        self._data = {
            name: [data.copy() for data in param.list_data()]
            for name, param in self._params.items()
        }
        self._grads = {}
        for name, param in self._params.items():
            is_wanted = self._wanted is None or name in self._wanted
            if is_wanted and param.grad_req != "null":
                self._grads[name] = [mx.nd.zeros_like(data) for data in self._data[name]]
                autograd.mark_variables(self._data[name], self._grads[name], param.grad_req)
        # One call of backward may be several backward passes; two batches are never added up:
        # the correction of each is added to the network's accumulated gradient on its own.
        self._accumulating = [name for name in self._grads if self._params[name].grad_req == "add"]
        self._contexts = next(iter(self._params.values())).list_ctx() if self._params else []
        # A Block that is used twice is visited twice, and is one Block all the same.
        blocks: dict[int, gluon.Block] = {}
        self.net.apply(lambda block: blocks.setdefault(id(block), block))
        self._blocks = [_TwinState(block) for block in blocks.values()]

    @contextmanager
    def _worn(self) -> Iterator[None]:
        """Let the network wear the snapshot's weights inside the ``with`` block.

        Parameter.set_data would copy, and reset the kvstore with its momentum: the lists of
        arrays are exchanged instead. A graph recorded inside refers to the arrays themselves and
        stays valid after the exchange back.
        """
        own = [(param, param._data, param._grad) for param in self._params.values()]
        entered = []
        try:
            for name, param in self._params.items():
                param._data, param._grad = self._data[name], self._grads.get(name)
            for state in self._blocks:
                entered.append(state)
                state.enter()
            yield
        finally:
            for state in entered:
                state.leave()
            for param, data, grad in own:
                param._data, param._grad = data, grad

    def _count_samples(self, losses: Any) -> list[int]:
        samples = [0] * len(self._contexts)
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            if not isinstance(loss, NDArray) or loss.context not in self._contexts:
                where = f"on {loss.context}" if isinstance(loss, NDArray) else f"{loss!r}"
                raise ValueError(
                    f"backward must return the losses on the contexts of the network, "
                    f"{self._contexts}, got {where}: return the NDArray of losses, one a "
                    "sample, or a list of them, one a context"
                )
            samples[self._contexts.index(loss.context)] += loss.shape[0]
        return samples


class _TwinState:
    """What one Block puts aside while it plays the twin: its hooks and its cached operator.

    A cached operator with static memory is bound to its arrays, so the twin has one of its own.
    """

    def __init__(self, block: gluon.Block) -> None:
        self._block = block
        # The attributes themselves: Block.__setattr__ takes ten times as long.
        self._attributes = vars(block)
        self._twin: dict[str, Any] = {"_forward_hooks": {}, "_forward_pre_hooks": {}}
        if isinstance(block, gluon.HybridBlock):
            self._twin |= {"_cached_op": None, "_cached_op_args": []}
        self._own: dict[str, Any] = {}
        self._graph: Any = None

    def enter(self) -> None:
        """Put the network's state aside."""
        self._own = {name: self._attributes[name] for name in self._twin}
        if self._attributes.get("_cached_graph") is not self._graph:
            # hybridize() or cast() was called since: another graph, or other flags.
            self._twin |= {"_cached_op": None, "_cached_op_args": []}
        self._attributes.update(self._twin)

    def leave(self) -> None:
        """Put the network's state back, if it was put aside."""
        if not self._own:
            return
        self._graph = self._attributes.get("_cached_graph")
        self._twin = {name: self._attributes[name] for name in self._twin}
        self._attributes.update(self._own)
        self._own = {}


class _FiniteWatch:
    """Finds the first batch that made a sum NaN or infinite, without waiting at each batch."""

    def __init__(self, sums: dict[str, list[NDArray]]) -> None:
        devices = list(zip(*sums.values(), strict=True))
        # One operator takes at most 200 arrays (as MXNet's AMP loss scaler knows, too).
        self._groups = [group[i : i + 200] for group in devices for i in range(0, len(group), 200)]
        self._ok = [mx.nd.ones((1,), group[0].context) for group in self._groups]
        self._good_batches = [mx.nd.zeros((1,), group[0].context) for group in self._groups]

    def see_batch(self) -> None:
        """Look at the sums after one more batch: once NaN or infinite, they stay so."""
        for group, ok, good in zip(self._groups, self._ok, self._good_batches, strict=True):
            mx.nd.multi_all_finite(*group, num_arrays=len(group), out=ok)
            good += ok

    def check(self, sums: dict[str, NDArray]) -> None:
        """Raise FloatingPointError if a sum is not finite."""
        for name, total in sums.items():
            if not np.isfinite(total.asnumpy()).all():
                batch = int(min(good.asscalar() for good in self._good_batches))
                raise FloatingPointError(
                    f"the full gradient of parameter {name!r} is NaN or infinite; batch {batch} "
                    "(the first is 0) is the first that gave such a gradient: look at its data and "
                    "labels, or lower the learning rate if the weights have diverged"
                )


def _check_is_ready(param: gluon.Parameter) -> None:
    if mx.util.is_np_array():
        raise NotImplementedError(
            "SVRG does not support MXNet's NumPy mode yet: call mxnet.npx.reset_np() and train "
            "with NDArrays"
        )
    if param._stype != "default" or param._grad_stype != "default":
        raise ValueError(
            f"parameter {param.name!r} has stype {param._stype!r} and grad_stype "
            f"{param._grad_stype!r}: SVRG does not support sparse weights or gradients yet; make "
            "the layer with sparse_grad=False"
        )
    if param._data is None:
        state = "has no shape yet" if param._deferred_init else "is not initialised"
        raise RuntimeError(
            f"parameter {param.name!r} {state}: call net.initialize(), and run one batch through "
            "the network if its layers infer their shapes, before a snapshot is taken"
        )


def _sum_over_contexts(arrays: list[NDArray]) -> NDArray:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array.as_in_context(total.context)
    return total
