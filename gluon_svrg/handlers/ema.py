"""EMAHandler: an exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet import as_legacy, has_static_shape, is_differentiable
from gluon_svrg.arguments import check_integer, check_number, explains_unknown
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.replicas import by_device, distinct_replicas, mean_replicas, write_replicas
from gluon_svrg.arrays.samples import with_axis
from gluon_svrg.events import (
    BatchEnd,
    ExceptionRaised,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.optimizer.states import refresh_kvstore
from gluon_svrg.workers import Workers
from gluon_svrg.workers.batch_norm import average_copies, is_float
from mxnet import gluon
from mxnet.ndarray import NDArray


class EMAHandler(
    TrainBegin, BatchEnd, TrainEnd, ExceptionRaised, Stateful, HasExclusiveTasks, RequiresRun
):
    r"""Keeps an exponential moving average of the weights, to evaluate and to export.

    .. math:: \bar w \leftarrow d\,\bar w + (1 - d)\,w

    after each step. The auxiliary states (the running statistics of BatchNorm) are averaged, too.
    It costs the memory of one copy of the parameters, and of a second one while the network has
    the average.

    Parameters
    ----------
    decay : float in (0, 1)
        d above.
    every_n_batches : int
        The number of batches between two updates of the average.
    warm_up : bool
        Whether the n-th update takes min(decay, (1 + n) / (10 + n)) for d, as TensorFlow's
        ExponentialMovingAverage does, so that the first weights are soon forgotten.
    evaluate : bool
        Whether `Estimator.evaluate` uses the average while `fit` runs.
    keep : bool
        Whether the network has the average when `fit` ends.
    priority : float
        After the optimizer's step, before an evaluation.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type, or out of its range.

    References
    ----------
    B. T. Polyak, A. B. Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J.
    Control Optim. 1992, with an exponential instead of the plain mean.
    """

    state_key = "average"

    @explains_unknown(
        momentum="decay",
        beta="decay",
        update_every="every_n_batches",
        update_freq="every_n_batches",
    )
    def __init__(
        self,
        decay: float = 0.999,
        every_n_batches: int = 1,
        warm_up: bool = True,
        evaluate: bool = True,
        *,
        keep: bool = False,
        priority: float = Order.AVERAGE,
    ) -> None:
        check_number("decay", decay, "what the average keeps of itself at a step", 0, above=True)
        if decay >= 1:
            raise ValueError(
                f"decay must be less than 1, got {decay!r}: the average would not move"
            )
        check_integer(
            "every_n_batches",
            every_n_batches,
            1,
            "the average is updated every that many batches",
        )
        self.decay = decay
        self.every_n_batches = every_n_batches
        self.warm_up = warm_up
        self.evaluate = evaluate
        self.keep = keep
        self.priority = float(priority)
        self._averages: dict[str, list[NDArray]] = {}
        self._count = 0
        self._move = FusedFunction(_moved)
        self._params: dict[str, gluon.Parameter] = {}
        self._waits = False

    def exclusive_tasks(self) -> list[str]:
        """Return which weights of the network it exchanges."""
        tasks = ["give the evaluations their weights"] if self.evaluate else []
        if self.keep:
            tasks.append("leave an average in the network when the run ends")
            # An EarlyStoppingHandler restores the weights that were evaluated: an average, too.
            tasks += [] if self.evaluate else ["set the network's weights when the run ends"]
        return tasks

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Forget earlier runs."""
        self._params = dict(estimator.net.collect_params().items())
        self._averages, self._count = {}, 0
        self._waits = has_static_shape(estimator.net)
        if self.evaluate:
            estimator.evaluation_weights = self.applied

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Move the average towards the weights."""
        if (estimator.position.batch + 1) % self.every_n_batches:
            return
        if self._waits:  # the backward pass may still be writing running statistics
            mx.nd.waitall()
        if not self._averages:
            self._averages = {
                name: [as_legacy(data).copy() for data in param.list_data()]
                for name, param in self._params.items()
            }
            return
        self._count += 1
        decay = self.decay
        if self.warm_up:
            decay = min(decay, (1 + self._count) / (10 + self._count))
        weights_of = [self._params[name].list_data() for name in self._averages]
        for averages, weights in zip(
            by_device(self._averages.values()), by_device(weights_of), strict=True
        ):
            rests = {
                dtype: mx.nd.full((1,), 1 - decay, averages[0].ctx, dtype)
                for dtype in {array.dtype for array in averages}
            }
            rest = [rests[array.dtype] for array in averages]
            averages, weights = (list(map(with_axis, arrays)) for arrays in (averages, weights))
            self._move(averages, weights, rest, out=averages)

    def train_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Give the network the average, if it is to keep it."""
        estimator.evaluation_weights = nullcontext
        if self.keep and self._averages:
            _write(self._averages, self._params)
            refresh_kvstore(estimator.trainer)

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let evaluations use the network's own weights again."""
        estimator.evaluation_weights = nullcontext

    def state_dict(self, estimator: Run) -> State:
        """Return the average and the number of updates."""
        return {
            "count": self._count,
            # In their order, without names: a network that is made again may have other names.
            "averages": [distinct_replicas(arrays) for arrays in self._averages.values()],
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue with the average."""
        self._count = state["count"]
        self._averages = {}
        for name, values in zip(self._params, state["averages"], strict=False):
            self._averages[name] = [
                mx.nd.zeros_like(as_legacy(data)) for data in self._params[name].list_data()
            ]
            write_replicas(values, self._averages[name])

    def merged(self, states: Sequence[State], is_first: bool) -> State:
        """Average what differs between workers: the averages of running statistics."""
        averages = zip(*(state["averages"] for state in states), strict=True)
        return states[0] | {"averages": [list(mean_replicas(copies)) for copies in averages]}

    def average_running_statistics(self, workers: Workers) -> None:
        """Replace averages of running statistics by their mean over all copies of all workers."""
        average_copies(
            [
                averages
                for name, averages in self._averages.items()
                if not is_differentiable(self._params[name]) and is_float(averages[0])
            ],
            workers,
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the network the average inside the ``with`` block, if there is one yet.

        For an evaluation or an export after `fit`::

            with ema.applied():
                net.export("model")
        """
        weights = {
            name: [as_legacy(data).copy() for data in self._params[name].list_data()]
            for name in self._averages
        }
        try:
            _write(self._averages, self._params)
            yield
        finally:
            _write(weights, self._params)


def _moved(average: mx.sym.Symbol, weight: mx.sym.Symbol, rest: mx.sym.Symbol) -> mx.sym.Symbol:
    # Not d * average + (1 - d) * weight: equal numbers stay equal, bit for bit.
    return average + mx.sym.broadcast_mul(weight - average, rest)


def _write(arrays: dict[str, list[NDArray]], params: dict[str, gluon.Parameter]) -> None:
    """Write in place: `Parameter.set_data` would reset the kvstore."""
    for name, values in arrays.items():
        for value, data in zip(values, params[name].list_data(), strict=True):
            value.copyto(as_legacy(data))
