"""Runs a model by MXNet."""

from __future__ import annotations

import logging
import os
import threading
import weakref

import mxnet as mx
from gluon_svrg._mxnet.symbol import reason_of
from gluon_svrg._typing import NumPyArray
from gluon_svrg.deploy.compiled import Compiled
from gluon_svrg.deploy.inputs import random_inputs
from gluon_svrg.deploy.model_dir import Model, check_batch
from gluon_svrg.deploy.numerics import max_difference, output_scale
from mxnet import autograd
from mxnet.base import MXNetError
from mxnet.symbol import Symbol

_logger = logging.getLogger(__name__)

_STATIC = {"static_alloc": True, "static_shape": True}


class MXNetEngine:
    """Runs a graph on batches of up to `batch_size` samples, padded to 1, 4, 16, ...

    Each of these sizes is planned when it is first needed. Calls from several threads run one after
    another.

    Parameters
    ----------
    model : Model
    ctx : Context
        The context on which it runs.
    backend : str or None
        As for ``Predictor.load``; afterwards the backend that fused the graph, or None.
    batch_size : int
        The greatest number of samples of a call.
    """

    def __init__(self, model: Model, ctx: mx.Context, backend: str | None, batch_size: int) -> None:
        self.model = model
        self.ctx = ctx
        self.batch_size = batch_size
        # cpu(0) and cpu(1) are the same memory, but a graph needs all its arrays on one context.
        self._params = {n: array.as_in_context(ctx) for n, array in model.params.items()}
        self.backend, self._symbol = self._fused(backend)
        self._compiled: dict[int, Compiled] = {}
        self._lock = threading.Lock()
        _ENGINES.add(self)

    def __call__(self, arrays: list[NumPyArray]) -> list[NumPyArray]:
        """Return the outputs for a batch; raises ValueError if MXNet cannot run the graph."""
        with self._lock, autograd.pause(train_mode=False):
            try:
                return self._graph_for(len(arrays[0]))(arrays)
            except MXNetError as e:
                is_int8 = self.model.card["precision"] == "int8"
                raise ValueError(
                    f"MXNet cannot run the model ({reason_of(e)}): "
                    f"{'quantize the float32 model' if is_int8 else 'export the network'} again"
                ) from e

    def _graph_for(self, count: int) -> Compiled:
        """Return the graph of the smallest planned batch that holds `count` samples."""
        size = 1
        while size < count:
            size *= 4
        size = min(size, self.batch_size)
        if size not in self._compiled:
            check_batch(self.model, size)
            self._compiled[size] = self._compile(self._symbol, size)
        return self._compiled[size]

    def _compile(self, symbol: Symbol, size: int) -> Compiled:
        inputs = self.model.card["inputs"]
        return Compiled(symbol, self._params, inputs, size, ctx=self.ctx, **_STATIC)

    def _fused(self, backend: str | None) -> tuple[str | None, Symbol]:
        """Return the backend that fused the graph, and the graph."""
        plain, precision = self.model.symbol, self.model.card["precision"]
        if backend is None or precision == "int8":  # int8 was fused when it was made
            return None, plain
        if backend != "auto":
            return backend, _fused_by(backend, plain)
        if self.ctx.device_type != "cpu" or precision != "float32":
            return None, plain
        try:
            fused = plain.optimize_for("MKLDNN")
            if fused.tojson() == plain.tojson():
                return None, plain
            difference = self._difference(plain, fused)
        except MXNetError as e:
            _logger.warning("MKLDNN fusion failed, using the unfused graph: %s", reason_of(e))
            return None, plain
        if not difference <= 1e-4:
            _logger.warning(
                "using the unfused graph: the outputs of the one fused by MKLDNN differ by %.2g",
                difference,
            )
            return None, plain
        return "MKLDNN", fused

    def _difference(self, plain: Symbol, fused: Symbol) -> float:
        """Return how far the outputs of two graphs are apart, relative to the greatest."""
        arrays = random_inputs(self.model.card, 1)
        with autograd.pause(train_mode=False):
            one, other = (self._compile(symbol, 1)(arrays) for symbol in (plain, fused))
        return max(max_difference(b, a) / output_scale(a) for a, b in zip(one, other, strict=True))


_ENGINES: weakref.WeakSet[MXNetEngine] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked process: a thread that has a lock there is not there to give it back."""
    for engine in list(_ENGINES):
        engine._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def _fused_by(backend: str, plain: Symbol) -> Symbol:
    try:
        fused = plain.optimize_for(backend)
    except MXNetError as e:
        raise ValueError(
            f"backend {backend!r} cannot be used ({reason_of(e)}): leave it out, or give "
            "None for the plain graph"
        ) from e
    # MXNet only prints a line if it does not know the backend.
    if fused.tojson() == plain.tojson():
        raise ValueError(
            f"backend {backend!r} changes nothing in the graph: MXNet has none of that name, or "
            "none for these operators; leave it out, or give None for the plain graph"
        )
    return fused
