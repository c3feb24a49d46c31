"""EMAHandler: an exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import mxnet as mx
from gluon_svrg._mxnet.array_mode import to_nd
from gluon_svrg._mxnet.block import has_static_shape, is_differentiable
from gluon_svrg._mxnet.trainer import optimizer_of
from gluon_svrg.arguments import check_integer, check_number, explains_unknown
from gluon_svrg.arrays.batch import with_axis
from gluon_svrg.arrays.fused import FusedFunction
from gluon_svrg.arrays.replicas import by_device, distinct_replicas, mean_replicas, write_replicas
from gluon_svrg.events import (
    BatchEnd,
    ExceptionRaised,
    HasExclusiveTasks,
    Order,
    RequiresRun,
    Run,
    State,
    Stateful,
    TakesDueSteps,
    TrainBegin,
    TrainEnd,
)
from gluon_svrg.optimizer.optimizer import merged_update_count
from gluon_svrg.optimizer.states import refresh_kvstore
from gluon_svrg.workers import Workers
from gluon_svrg.workers.batch_norm import average_copies, is_float
from mxnet import gluon
from mxnet.ndarray import NDArray


class EMAHandler(
    TrainBegin,
    BatchEnd,
    TakesDueSteps,
    TrainEnd,
    ExceptionRaised,
    Stateful,
    HasExclusiveTasks,
    RequiresRun,
):
    r"""Averages the weights exponentially over the steps, to evaluate and to keep the average.

    .. math:: \bar w \leftarrow d\,\bar w + (1 - d)\,w

    after each step of the optimizer. The average begins with the weights after the first step. The
    auxiliary states (the running statistics of BatchNorm) are averaged, too. By default the run
    evaluates the average, and `fit` leaves it in the network, so that the figures of the history
    are those of the trained network. It costs the memory of one copy of the parameters, and of a
    second one during an evaluation.

    ``net.params`` of a checkpoint has the weights that are evaluated; the optimizer's own weights,
    from which a resume continues, are in ``training.params``.

    Parameters
    ----------
    decay : float in (0, 1)
        d above.
    every_n_steps : int
        The number of steps of the optimizer between two updates of the average. With
        ``GradientUpdateHandler(accumulate=n)`` a step has n batches.
    warm_up : bool
        Whether the n-th update takes min(decay, (1 + n) / (10 + n)) for d, as TensorFlow's
        ExponentialMovingAverage does, so that the first weights are soon forgotten.
    evaluate : bool, optional
        Whether the run evaluates the average. By default it does, unless ``keep=False`` is given.
    keep : bool, optional
        Whether the network has the average when `fit` ends. By default it does if the average is
        evaluated. With ``evaluate=True, keep=False`` the log says that the figures are those of the
        average and not of the weights that `fit` leaves; :meth:`applied` gives the average.
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
        every_n_batches="every_n_steps",
        update_every="every_n_steps",
        update_freq="every_n_steps",
    )
    def __init__(
        self,
        decay: float = 0.999,
        every_n_steps: int = 1,
        warm_up: bool = True,
        evaluate: bool | None = None,
        *,
        keep: bool | None = None,
        priority: float = Order.AVERAGE,
    ) -> None:
        check_number("decay", decay, "what the average keeps of itself at a step", 0, above=True)
        if decay >= 1:
            raise ValueError(
                f"decay must be less than 1, got {decay!r}: the average would not move"
            )
        check_integer("every_n_steps", every_n_steps, 1, "the number of steps between two updates")
        self.decay = decay
        self.every_n_steps = every_n_steps
        self.warm_up = warm_up
        self.evaluate = keep is not False if evaluate is None else evaluate
        self.keep = self.evaluate if keep is None else keep
        self.priority = float(priority)
        self._averages: dict[str, list[NDArray]] = {}
        self._count = self._steps = 0
        self._updates: dict[int, int] = {}  # of each parameter, when the average was last moved
        self._move = FusedFunction(_moved)
        self._params: dict[str, gluon.Parameter] = {}
        self._waits = False

    def exclusive_tasks(self) -> list[str]:
        """Return its tasks: which weights of the network it replaces."""
        tasks = ["give the evaluations their weights"] if self.evaluate else []
        if self.keep:
            tasks.append("leave an average in the network when the run ends")
            # An EarlyStoppingHandler restores the weights that were evaluated: an average, too.
            tasks += [] if self.evaluate else ["set the network's weights when the run ends"]
        return tasks

    def train_begin(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Forget earlier runs."""
        self._params = dict(estimator.net.collect_params().items())
        self._averages, self._count, self._steps = {}, 0, 0
        self._updates = merged_update_count(optimizer_of(estimator.trainer))
        self._waits = has_static_shape(estimator.net)
        if self.evaluate:
            estimator.evaluation_weights = self._applied_if_there
            if not self.keep and estimator.workers.is_first:
                estimator.logger.info(
                    "EMAHandler(evaluate=True, keep=False): the figures of evaluations are those "
                    "of the averaged weights; after fit the network has the last weights"
                )

    def batch_end(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Move the average towards the weights, if the optimizer has made a step."""
        self._follow(estimator)

    def steps_due(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Move the average towards the weights, if the last step was taken at the epoch's end."""
        self._follow(estimator)

    def _follow(self, estimator: Run) -> None:
        # `num_update` is the greatest count of any parameter; a step may leave that one alone.
        updates = merged_update_count(optimizer_of(estimator.trainer))
        if updates == self._updates:
            return
        self._updates = updates
        self._steps += 1
        if self._steps % self.every_n_steps == 0:
            self._update()

    def _update(self) -> None:
        if self._waits:  # the backward pass may still be writing running statistics
            mx.nd.waitall()
        if not self._averages:
            self._averages = {
                name: [to_nd(data).copy() for data in param.list_data()]
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
        """Write the average into the network, with ``keep=True``."""
        estimator.evaluation_weights = nullcontext
        if self.keep and self._averages:
            _write(self._averages, self._params)
            refresh_kvstore(estimator.trainer)

    def exception_raised(self, estimator: Run, *args: Any, **kwargs: Any) -> None:
        """Let evaluations use the network's own weights again."""
        estimator.evaluation_weights = nullcontext

    def state_dict(self, estimator: Run) -> State:
        """Return the average, and the numbers of updates and of steps."""
        return {
            "count": self._count,
            "steps": self._steps,
            # In their order, without names: a network that is made again may have other names.
            "averages": [distinct_replicas(arrays) for arrays in self._averages.values()],
        }

    def load_state_dict(self, estimator: Run, state: State) -> None:
        """Continue with the average."""
        self._count, self._steps = state["count"], state["steps"]
        self._updates = merged_update_count(optimizer_of(estimator.trainer))
        self._averages = {}
        for name, values in zip(self._params, state["averages"], strict=False):
            self._averages[name] = [
                mx.nd.zeros_like(to_nd(data)) for data in self._params[name].list_data()
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

    def applied(self) -> AbstractContextManager[None]:
        """Give the network the average inside a ``with`` block.

        After `fit`, or in a handler::

            with ema.applied():
                net.export("model")

        Raises
        ------
        RuntimeError
            If there is no average, because no step has been made.
        """
        if not self._averages:
            raise RuntimeError(
                "this EMAHandler has no average yet: give it to fit, which makes one at its "
                f"{'first step' if self.every_n_steps == 1 else f'step {self.every_n_steps}'}"
            )
        return self._applied_if_there()

    @contextmanager
    def _applied_if_there(self) -> Iterator[None]:
        weights = {
            name: [to_nd(data).copy() for data in self._params[name].list_data()]
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
            value.copyto(to_nd(data))
