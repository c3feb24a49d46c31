"""Snapshot: a frozen copy of a network, its gradient on a batch, and its full gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._mxnet.array_mode import check_mode
from gluon_svrg._mxnet.block import (
    BlockState,
    arrays_of,
    full_data,
    has_data,
    has_shape,
    is_fresh,
    list_data,
    mark_fresh,
    override_row_source,
    set_arrays,
    storage_types,
)
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays.batch import samples_of_loss
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.replicas import write_replicas
from gluon_svrg.arrays.row_sparse import set_to_zero, zeros_for
from gluon_svrg.svrg.gradient import BatchGradient, FullGradient
from gluon_svrg.svrg.gradient_sums import GradientSums
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

BackwardFunction = Callable[[Any], object]
"""Runs the forward and the backward pass of a batch, and returns its losses."""


class Snapshot:
    """A frozen copy of a network's weights at which gradients are computed.

    While a gradient is computed here, every Parameter of the network holds the copied weights and
    the copy's gradient buffers; afterwards it holds its own again. So this works with every Block,
    hybridized as it is, on all its contexts; a loss, a batch processor or a forward pass with
    Python control flow sees nothing unusual; and BatchNorm updates the copy's running statistics,
    never the network's. Forward hooks are silent meanwhile.

    It takes two copies of the parameters, three while :meth:`full_gradient` runs. Activations are
    not held twice, but for a Block hybridized with ``static_shape=True``, whose cached operator
    is bound to its arrays: there the copy has its own operator and static memory.

    Parameters
    ----------
    net : gluon.Block
        The network. Its parameters must be initialised when :meth:`take` is called.
    params : iterable of str, optional
        Names of the parameters whose gradient is wanted; by default all of the network's. Those
        without a gradient (``grad_req='null'``) are left out at each :meth:`take`.

    Raises
    ------
    TypeError, ValueError
        If `params` holds something else than names, or one that the network does not have.
    """

    def __init__(self, net: gluon.Block, params: Iterable[str] | None = None) -> None:
        self.net = net
        self._wanted = None if params is None else set(params)
        self._params: dict[str, gluon.Parameter] = {}
        self._collect_params()
        self._data: dict[str, list[NDArray]] = {}
        # Of row_sparse weights: what the forward pass pulls their rows into.
        self._pulled: dict[str, list[NDArray]] = {}
        self._grads: dict[str, list[NDArray]] = {}
        self._fixed_grads: dict[str, list[NDArray]] = {}
        # By name, the grad_req that each wanted parameter had when the snapshot was taken.
        self._grad_reqs: dict[str, str] = {}
        self._was_reached = False
        self._layout: Mapping[str, tuple[object, ...]] = {}
        self._contexts: list[mx.Context] = []
        self._blocks: list[BlockState] = []
        self._add = FusedFunction(lambda total, grad: total + mx.sym.cast(grad, dtype="float64"))

    def take(self) -> None:
        """Copy the network's weights and auxiliary states as they are now.

        Raises
        ------
        RuntimeError
            If a parameter is not initialised, or its shape is not known yet.
        ValueError
            If a parameter or its gradient is neither dense nor row_sparse, or the network was
            initialised outside of MXNet's NumPy mode, which is on now, or the other way around.
        """
        self._collect_params()
        check_mode(self.net)
        for param in self._params.values():
            _check_is_ready(param)
        layout = {
            name: (param.shape, param.dtype, param.list_ctx(), param.grad_req)
            for name, param in self._params.items()
        }
        if layout == self._layout:
            for name, param in self._params.items():
                for copy, data in zip(self._data[name], full_data(param), strict=True):
                    data.copyto(copy)
            return
        self._layout = layout
        self._allocate()

    def release(self) -> None:
        """Free all arrays; :meth:`take` allocates them again."""
        self._data, self._pulled, self._grads, self._fixed_grads = {}, {}, {}, {}
        self._params, self._layout, self._blocks = {}, {}, []

    @property
    def weights(self) -> dict[str, list[NDArray]]:
        """The snapshot's weights and auxiliary states, by name and context."""
        return self._data

    def load(
        self,
        weights: Mapping[str, Sequence[NDArray | NumPyArray]],
        grad_reqs: Mapping[str, str] | None = None,
    ) -> None:
        """Take the snapshot of `weights` instead of the network's.

        Parameters
        ----------
        weights : dict of str to list of NDArray or numpy.ndarray
            For each parameter of the network by name: the array of each context, or one for all.
        grad_reqs : dict of str to str, optional
            What :attr:`grad_reqs` was when these weights were taken; by default that of now.

        Raises
        ------
        RuntimeError, ValueError
            As :meth:`take`.
        """
        self.take()
        if grad_reqs is not None and dict(grad_reqs) != self._grad_reqs:
            self._grad_reqs, self._layout = dict(grad_reqs), {}  # the next snapshot's is its own
            self._grads, self._fixed_grads = {}, {}
        for name, arrays in self._data.items():
            write_replicas(weights[name], arrays)

    @property
    def grad_reqs(self) -> dict[str, str]:
        """The ``grad_req`` of each parameter with a gradient, when the snapshot was taken."""
        return dict(self._grad_reqs)

    @property
    def contexts(self) -> list[mx.Context]:
        """The contexts of the network when the snapshot was taken."""
        return self._contexts

    @property
    def gradient_nbytes(self) -> int:
        """The size of all dense parts of one gradient, on all contexts, in bytes."""
        return sum(
            data.size * np.dtype(data.dtype).itemsize
            for name in self._grad_reqs
            for data in self._data[name]
            if self._grad_stype(name) == "default"
        )

    @property
    def has_row_sparse_gradients(self) -> bool:
        """Whether a gradient at the snapshot is row_sparse."""
        return any(self._grad_stype(name) != "default" for name in self._grad_reqs)

    def gradient(self, backward: BackwardFunction, batch: object) -> BatchGradient:
        """Return the gradient of `batch` at the snapshot.

        Parameters
        ----------
        backward : callable
            ``backward(batch)`` runs the forward and the backward pass of one batch on the
            network and returns the losses, one per sample: an NDArray, or a list of them, one per
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
        if not self._grads:
            self._write_gradients_to(self._new_gradients())
        return self._gradient(backward, batch)

    def full_gradient(
        self,
        backward: BackwardFunction,
        batches: Iterable[object],
        keep: Callable[[Any, BatchGradient], None] | None = None,
    ) -> FullGradient:
        """Return the gradient of all samples at the snapshot, in one pass over `batches`.

        It is a mean over samples, so a last, smaller batch counts by its size. The network's own
        gradients are overwritten, if the optimizer has used them already.

        Parameters
        ----------
        backward : callable
            As for :meth:`gradient`.
        batches : iterable
            All batches; iterated once.
        keep : callable, optional
            ``keep(batch, gradient)`` is called with the :class:`BatchGradient` of each batch, whose
            arrays the next batch overwrites: :meth:`GradientTable.append` copies them.

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
        # Between two steps nothing needs the network's gradient buffers: using them saves a copy.
        self._grads = {}
        self._write_gradients_to(
            {name: self._params[name].list_grad() for name in self._grad_reqs}
            if self._gradients_of_the_network_are_idle()
            else self._new_gradients()
        )
        sums, self._was_reached = GradientSums(self._grads, self._add), False
        try:
            for batch in batches:
                gradient = self._gradient(backward, batch)
                if keep is not None:
                    keep(batch, gradient)
                sums.add(gradient)
        finally:
            self._grads = {}
        if sums.samples and not self._was_reached:
            raise RuntimeError(
                "the full pass gave no parameter a gradient: backward has to call backward() on "
                "the loss, which autograd.record() has recorded"
            )
        return sums.full_gradient({name: self._params[name].dtype for name in self._grad_reqs})

    def _gradient(self, backward: BackwardFunction, batch: object) -> BatchGradient:
        # One call may run several backward passes, which add up. Two batches do not: each
        # correction is added to the network's accumulated gradient separately.
        for name, grads in self._grads.items():
            if self._grad_reqs[name] == "add":
                for grad in grads:
                    set_to_zero(grad)
        with self._in_network():
            losses = backward(batch)
        samples = _count_samples(losses, self._contexts)
        for name, grads in self._grads.items():
            for data, grad, count in zip(self._arrays_of(name), grads, samples, strict=True):
                if is_fresh(data) and count:
                    self._was_reached = True
                else:  # the buffer still holds an earlier batch's
                    set_to_zero(grad)
                mark_fresh(data, False)
        return BatchGradient(self._grads, samples)

    @contextmanager
    def _in_network(self) -> Iterator[None]:
        """Temporarily replace the network's arrays by the snapshot's, as torch's `functional_call`.

        Why not a copy of the network: ``copy.deepcopy`` fails once a network has a trainer with a
        kvstore, and a copy rebuilt from its symbol excludes plain Blocks, Python control flow and
        losses that look at the network.
        """
        own = [(param, *arrays_of(param)) for param in self._params.values()]
        entered, ends = [], []
        try:
            for name, param in self._params.items():
                set_arrays(param, self._arrays_of(name), self._grads.get(name))
                if name in self._pulled:
                    ends.append(override_row_source(param, self._data[name]))
            for state in self._blocks:
                entered.append(state)
                state.enter()
            yield
        finally:
            for state in entered:
                state.leave()
            for end in ends:
                end()
            for param, data, grad in own:
                set_arrays(param, data, grad)

    def _write_gradients_to(self, grads: dict[str, list[NDArray]]) -> None:
        """Let the copy's backward pass write into `grads`."""
        self._grads = grads
        pairs = [
            (data, grad, self._grad_reqs[name])
            for name, arrays in grads.items()
            for data, grad in zip(self._arrays_of(name), arrays, strict=True)
        ]
        if pairs:
            autograd.mark_variables(*map(list, zip(*pairs, strict=True)))

    def _new_gradients(self) -> dict[str, list[NDArray]]:
        if self._fixed_grads:
            return self._fixed_grads
        grads = {
            name: [zeros_for(data, self._grad_stype(name)) for data in self._data[name]]
            for name in self._grad_reqs
        }
        if self._has_own_operator():  # which keeps writing into the first that it saw
            self._fixed_grads = grads
        return grads

    def _arrays_of(self, name: str) -> list[NDArray]:
        return self._pulled.get(name) or self._data[name]

    def _grad_stype(self, name: str) -> str:
        return storage_types(self._params[name])[1]

    def _has_own_operator(self) -> bool:
        return any(state.has_own_operator() for state in self._blocks)

    def _gradients_of_the_network_are_idle(self) -> bool:
        """Return whether the network's gradient buffers hold nothing that a step still needs."""
        return not self._has_own_operator() and all(
            self._params[name].grad_req == "write"
            and not any(map(is_fresh, list_data(self._params[name])))
            for name in self._grad_reqs
        )

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
            name: [data.copy() for data in full_data(param)] for name, param in self._params.items()
        }
        self._pulled = {
            name: [zeros_for(data, "row_sparse") for data in self._data[name]]
            for name, param in self._params.items()
            if storage_types(param)[0] == "row_sparse"
        }
        self._grads, self._fixed_grads = {}, {}
        self._grad_reqs = {
            name: param.grad_req
            for name, param in self._params.items()
            if param.grad_req != "null" and (self._wanted is None or name in self._wanted)
        }
        self._contexts = next(iter(self._params.values())).list_ctx() if self._params else []
        # A Block that is used twice is visited twice, and is one Block all the same.
        blocks: dict[int, gluon.Block] = {}
        self.net.apply(lambda block: blocks.setdefault(id(block), block))
        self._blocks = [BlockState(block) for block in blocks.values()]


def _check_is_ready(param: gluon.Parameter) -> None:
    stype, grad_stype = storage_types(param)
    if "csr" in (stype, grad_stype):
        raise ValueError(
            f"parameter {param.name!r} has stype {stype!r} and grad_stype {grad_stype!r}: SVRG "
            "takes dense and row_sparse weights and gradients; make it with stype='default' and "
            "grad_stype='row_sparse'"
        )
    if not has_data(param):
        state = "is not initialised" if has_shape(param) else "has no shape yet"
        raise RuntimeError(
            f"parameter {param.name!r} {state}: call net.initialize(), and run one batch through "
            "the network if its layers infer their shapes, before a snapshot is taken"
        )


def _count_samples(losses: object, contexts: list[mx.Context]) -> list[int]:
    samples = [0] * len(contexts)
    for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
        if not isinstance(loss, NDArray) or loss.ctx not in contexts:
            where = f"on {loss.ctx}" if isinstance(loss, NDArray) else f"{loss!r}"
            raise ValueError(
                f"backward must return the losses on the contexts of the network, "
                f"{contexts}, got {where}: return the NDArray of losses, one per "
                "sample, or a list of them, one per context"
            )
        samples[contexts.index(loss.ctx)] += samples_of_loss(loss)
    return samples
