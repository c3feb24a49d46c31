"""What of SVRG goes into a checkpoint, and how a run continues from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import mxnet as mx
from gluon_svrg.arrays.rows import is_row_sparse, row_sparse, rows_of, values_of
from gluon_svrg.data.training_data import TrainingData
from gluon_svrg.events import State
from gluon_svrg.svrg.coefficient import Coefficient, OptimalCoefficient, resumed_coefficient
from gluon_svrg.svrg.control_variate import ControlVariate
from gluon_svrg.svrg.giving_up import GivingUp
from gluon_svrg.svrg.gradient import FullGradient
from gluon_svrg.svrg.interval import Interval
from mxnet.ndarray import NDArray


class CorrectingTrainer(Protocol):
    """What is asked of an SVRGTrainer here."""

    is_corrected: bool
    control_variate: ControlVariate

    @property
    def full_gradient(self) -> dict[str, list[NDArray]] | None:
        """The full gradient, by parameter name and context."""

    @property
    def coefficient(self) -> float:
        """The coefficient."""

    @property
    def optimal_coefficient(self) -> OptimalCoefficient | None:
        """What estimates it."""

    def set_control_variate(
        self,
        full_gradient: FullGradient,
        coefficient: float | OptimalCoefficient,
        sparse_correction: str,
    ) -> None:
        """Correct from now on."""

    def clear_control_variate(self) -> None:
        """Correct nothing from now on."""


class Parts(NamedTuple):
    """What SVRG is made of in a run.

    Attributes
    ----------
    trainer, interval, giving_up
        Whose state is saved.
    names : dict of str to str
        The name of each of the trainer's parameters by its place in the network, which is the same
        in a network that is made anew.
    sparse_correction : str
        As for :meth:`gluon_svrg.SVRGTrainer.set_control_variate`.
    """

    trainer: CorrectingTrainer
    interval: Interval
    giving_up: GivingUp
    names: Mapping[str, str]
    sparse_correction: str = "exact"


def state_of(parts: Parts) -> State:
    """Return snapshot, full gradient and counts as plain data, but not the table."""
    trainer, interval, giving_up, names, _ = parts
    full_gradient, optimal = trainer.full_gradient, trainer.optimal_coefficient
    shares = trainer.control_variate.row_shares
    return {
        "giving_up": giving_up.state_dict(),
        "pass": interval.state_dict(),
        "coefficient": trainer.coefficient if optimal is None else optimal.state_dict(),
        # With accumulation over batches, gradients that are corrected may wait for the step.
        "is_corrected": trainer.is_corrected,
        "full_gradient": None
        if full_gradient is None
        else {
            place: _saved(full_gradient[name][0], shares.get(name))
            for place, name in names.items()
            if name in full_gradient
        },
    }


def load_state(
    state: State,
    parts: Parts,
    data: TrainingData,
    coefficient: Coefficient | OptimalCoefficient,
    contexts: Sequence[mx.Context],
    is_used: bool,
) -> None:
    """Continue from `state`.

    Parameters
    ----------
    state
        What :func:`state_of` returned.
    parts
        Whose state it becomes.
    data, is_used
        As for :meth:`Interval.load_state_dict`.
    coefficient
        That of the run, as it was made.
    contexts
        The devices of the trainer.

    Raises
    ------
    ValueError
        If the data give another full gradient, or the coefficient is of another kind.
    """
    trainer, interval, giving_up, names, sparse_correction = parts
    trainer.clear_control_variate()
    giving_up.load_state_dict(state["giving_up"])
    full_gradient = None
    if state["full_gradient"] is not None:
        saved = {names[place]: mean for place, mean in state["full_gradient"].items()}
        means = {name: _loaded(mean, contexts[0]) for name, mean in saved.items()}
        shares = {
            name: mx.nd.array(mean["shares"], dtype="float64")
            for name, mean in saved.items()
            if isinstance(mean, dict)
        }
        # The scale has been taken out, and all workers have the one mean: nothing is added up.
        full_gradient = FullGradient(
            means, 1, loss_scale=1.0, is_of_all_workers=True, row_shares=shares
        )
    interval.load_state_dict(state["pass"], data, full_gradient, is_used)
    if full_gradient is None:
        return
    resumed = resumed_coefficient(coefficient, state["coefficient"])
    trainer.set_control_variate(full_gradient, resumed, sparse_correction)
    if isinstance(resumed, OptimalCoefficient):
        resumed.load_state_dict(state["coefficient"], contexts)
    trainer.is_corrected = state["is_corrected"]


def _saved(mean: NDArray, shares: NDArray | None) -> Any:
    """Return a full gradient's array as data; of a row_sparse one the rows."""
    if not is_row_sparse(mean) or shares is None:
        return mean
    return {
        "rows": rows_of(mean),
        "values": values_of(mean),
        "shares": shares.asnumpy(),
        "shape": list(mean.shape),
    }


def _loaded(saved: Any, context: mx.Context) -> NDArray:
    if isinstance(saved, NDArray):
        return saved
    return row_sparse(saved["values"], saved["rows"], tuple(saved["shape"]), context)
