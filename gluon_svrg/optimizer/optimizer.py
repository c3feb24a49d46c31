"""The base class of this package's optimizers: MXNet 2's contract on top of MXNet 1.9.1's class."""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import numbers
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np
from gluon_svrg.arguments import check_finite, hint_for
from mxnet import ndarray as nd, optimizer as mxnet_optimizer
from mxnet.lr_scheduler import CosineScheduler, LRScheduler, PolyScheduler
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import BaseSparseNDArray

if TYPE_CHECKING:
    from mxnet.gluon import Parameter
    from mxnet.symbol import Symbol

_logger = logging.getLogger(__name__)

Class = TypeVar("Class", bound=type)

State: TypeAlias = Any
"""What a subclass's `create_state` returns: an NDArray, a tuple of them, None."""

# What PyTorch, optax and Keras call an argument, and what MXNet does.
_ELSEWHERE = {
    "lr": "learning_rate",
    "weight_decay": "wd",
    "eps": "epsilon",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "clipvalue": "clip_gradient",
}

# The arguments of MXNet's classes that are a number, or None by default.
_NUMBERS_OR_NONE = {"learning_rate", "clip_gradient", "clip_weights"}

_Lists: TypeAlias = tuple[list[int], list[NDArray], list[NDArray], list[State]]


class Optimizer(mxnet_optimizer.Optimizer):
    """Base class: a subclass defines :meth:`step`, and :meth:`create_state` if it has a state.

    It follows MXNet 2's contract and works with the `Updater`, `gluon.Trainer` and kvstores of
    MXNet 1.9.1. The whole of SGD with momentum::

        @register
        class Momentum(Optimizer):
            def create_state(self, index, weight):
                return nd.zeros_like(weight)

            def step(self, indices, weights, grads, states):
                lrs, wds = self._get_lrs(indices), self._get_wds(indices)
                for weight, grad, mom, lr, wd in zip(weights, grads, states, lrs, wds):
                    mom[:] = 0.9 * mom - lr * (self.preprocess(grad) + wd * weight)
                    weight += mom

    The learning rate and the weight decay of a parameter are the optimizer's, times the
    parameter's multiplier: ``lr_mult`` and ``wd_mult`` of the Gluon Parameter in `param_dict`,
    read at each step; for an index that is not in it, the multiplier that :meth:`set_lr_mult` and
    :meth:`set_wd_mult` were given for the index, or for its name in `param_idx2name`.

    Parameters
    ----------
    rescale_grad : float, default 1.0
        Each gradient is first multiplied by this. A `gluon.Trainer` sets it to 1 / batch size.
    param_idx2name : dict of int to str, optional
        Names of the parameters, for use without `param_dict`.
    wd : float, default 0.0
        The weight decay.
    clip_gradient : float, optional
        Clip each entry of the rescaled gradient to [-clip_gradient, clip_gradient].
    learning_rate : float, optional
        The learning rate. With an `lr_scheduler` it replaces the scheduler's base; if both are None
        it is 0.01.
    lr_scheduler : LRScheduler, optional
        The learning rate as a function of the number of updates.
    sym : Symbol, optional
        A Symbol whose attributes ``__lr_mult__`` and ``__wd_mult__`` are read, by parameter name.
    begin_num_update : int, default 0
        The first count of updates.
    multi_precision : bool, default False
        Update a float32 copy of float16 weights, which is kept with the state.
    param_dict : dict of int to Parameter, optional
        The Parameters by index. A `gluon.Trainer` sets it.
    aggregate_num : int or `numpy.inf`, default 1
        The number of parameters that one call of :meth:`step` gets; `numpy.inf`: all of them. The
        attribute is `sys.maxsize` then, because 1.9.1's Updater uses it in a slice.
    use_fused_step : bool, default False
        Call :meth:`fused_step` instead of :meth:`step`.

    Raises
    ------
    TypeError, ValueError
        If `aggregate_num` is not a positive integer, `clip_gradient` is not positive, or
        `learning_rate` or `wd` are no numbers, negative or not finite.

    References
    ----------
    The contract: ``python/mxnet/optimizer/optimizer.py`` of MXNet 2.0.0.beta1.
    """

    # Not MXNet's registry: `mx.optimizer.create` still makes MXNet's own LARS and Signum.
    opt_registry: ClassVar[dict[str, type[mxnet_optimizer.Optimizer]]] = {}

    _counted: frozenset[int] = frozenset()  # indices whose updates are already counted in this step

    # The order is MXNet 2's, so all of them may be given by position.
    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: dict[int, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        sym: Symbol | None = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: dict[int, Parameter] | None = None,
        aggregate_num: float | None = None,
        use_fused_step: bool | None = None,
    ) -> None:
        if clip_gradient is not None and not clip_gradient > 0:
            raise ValueError(
                f"clip_gradient must be positive, or None for no clipping, got {clip_gradient!r}"
            )
        if learning_rate is not None:
            check_finite("learning_rate", learning_rate, "a step goes down the gradient", 0)
        check_finite("wd", wd, "below 0 the weights would grow by themselves", 0)
        aggregate_num = _checked_aggregate_num(1 if aggregate_num is None else aggregate_num)
        if lr_scheduler is not None and learning_rate is not None:
            _replace_base_lr(lr_scheduler, learning_rate)
        super().__init__(
            rescale_grad=rescale_grad,
            param_idx2name=param_idx2name,
            wd=wd,
            clip_gradient=clip_gradient,
            learning_rate=learning_rate,
            lr_scheduler=lr_scheduler,
            sym=sym,
            begin_num_update=begin_num_update,
            multi_precision=multi_precision,
            param_dict=param_dict,
        )
        self.aggregate_num = aggregate_num
        self.use_fused_step = bool(use_fused_step)
        self._loaded_update_count: dict[int, int] = {}

    @staticmethod
    def register(klass: Class) -> Class:
        """Register `klass` for :meth:`create_optimizer` by its lower-case name; a decorator."""
        name = klass.__name__.lower()
        if name in Optimizer.opt_registry:
            old = Optimizer.opt_registry[name]
            warnings.warn(
                f"optimizer {klass.__module__}.{klass.__name__} replaces "
                f"{old.__module__}.{old.__name__}, which was registered under the same name",
                UserWarning,
                stacklevel=2,
            )
        Optimizer.opt_registry[name] = klass
        return klass

    @staticmethod
    def create_optimizer(name: str, **kwargs: Any) -> mxnet_optimizer.Optimizer:
        """Return a new optimizer: this package's, if it has one of that name, or else MXNet's.

        Parameters
        ----------
        name : str
            The name of its class, in upper or lower case.
        **kwargs
            The arguments of its constructor.

        Raises
        ------
        ValueError
            If neither has an optimizer of that name.
        TypeError, ValueError
            If it has no such argument, or needs a number and gets none.
        """
        known = {**mxnet_optimizer.Optimizer.opt_registry, **Optimizer.opt_registry}
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known are {sorted(known)}"
            raise ValueError(f"there is no optimizer named {name!r}: {hint}")
        found = known[name.lower()]
        _check_arguments(found, kwargs)
        return found(**kwargs)

    def fused_step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update as :meth:`step` does, with MXNet's fused kernels; here, it calls :meth:`step`."""
        self.step(indices, weights, grads, states)

    def step(
        self, indices: list[int], weights: list[NDArray], grads: list[NDArray], states: list[State]
    ) -> None:
        """Update `weights` and `states` in place: the method that a subclass defines.

        It gets its rates from ``self._get_lrs(indices)`` and ``self._get_wds(indices)``.
        :meth:`update` has counted the updates, which advances the schedule; so
        ``self._update_count(indices)``, with which MXNet's optimizers begin, does nothing then.

        Parameters
        ----------
        indices : list of int
            The indices of the parameters.
        weights, grads : list of NDArray
            Their weights and gradients, of one dtype and on one device.
        states : list
            The return values of :meth:`create_state`.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define step()")

    def update(
        self,
        indices: int | list[int],
        weights: NDArray | list[NDArray],
        grads: NDArray | list[NDArray],
        states: State | list[State],
    ) -> None:
        """Update by :meth:`fused_step` or :meth:`step`, as `use_fused_step` says.

        Parameters
        ----------
        indices, weights, grads, states
            Lists as for :meth:`step`; or one of each, as MXNet 1.9.1 calls it.
        """
        arguments = _as_lists(indices, weights, grads, states)
        # Of these alone: an Updater may call this for each parameter.
        counts = self._index_update_count
        before = {i: counts[i] for i in arguments[0] if i in counts}
        num_update = self.num_update
        self._update_count(arguments[0])
        self._counted = frozenset(arguments[0])
        try:
            if self.use_fused_step:
                self.fused_step(*arguments)
            else:
                self.step(*arguments)
        except BaseException:
            for index in arguments[0]:
                counts.pop(index, None)
            counts.update(before)
            self.num_update = num_update
            raise
        finally:
            del self._counted

    def update_multi_precision(
        self,
        indices: int | list[int],
        weights: NDArray | list[NDArray],
        grads: NDArray | list[NDArray],
        states: State | list[State],
    ) -> None:
        """Update as :meth:`update` does; with `multi_precision`, float16 weights in float32.

        Parameters
        ----------
        indices, weights, grads, states
            Lists as for :meth:`step`, or one of each; the states are those of
            :meth:`create_state_multi_precision`.
        """
        if not self.multi_precision:
            self.update(indices, weights, grads, states)
            return
        indices, weights, grads, states = _as_lists(indices, weights, grads, states)
        halves = [weight.dtype == np.float16 for weight in weights]
        masters, grads32, inner = list(weights), list(grads), list(states)
        for i, is_half in enumerate(halves):
            if is_half:
                masters[i], inner[i] = states[i]
                grads32[i] = grads[i].astype("float32")
        self.update(indices, masters, grads32, inner)
        for weight, master, is_half in zip(weights, masters, halves, strict=True):
            if is_half:
                nd.cast(master, dtype="float16", out=weight)

    def preprocess(self, grad: NDArray) -> NDArray:
        """Return `grad` rescaled and clipped, as a new array."""
        grad = grad * self.rescale_grad
        if self.clip_gradient is None:
            return grad
        # Not nd.clip: it rounds its bounds to float32, whatever the array's dtype.
        return nd.maximum(nd.minimum(grad, self.clip_gradient), -self.clip_gradient)

    def set_wd_mult(self, args_wd_mult: dict[int | str, float]) -> None:
        """Set multipliers of the weight decay, by index or by name.

        As in MXNet 2 no multiplier depends on the name alone: MXNet 1.9.1 sets 0 for names that end
        in neither ``_weight`` nor ``_gamma``. :func:`gluon_svrg.optimizer.exclude_from_decay` sets
        it for a net.
        """
        self.wd_mult = {}
        attributes, names = self.sym_info or ({}, [])
        for name in names:
            if "__wd_mult__" in attributes.get(name, {}):
                self.wd_mult[name] = float(attributes[name]["__wd_mult__"])
        self.wd_mult.update(args_wd_mult)

    def _update_count(self, index: int | Sequence[int]) -> None:
        """Count an update of each of these parameters, unless :meth:`update` has done so."""
        indices = cast(list[int], index if isinstance(index, list | tuple) else [index])
        super()._update_count([i for i in indices if i not in self._counted])

    def _name(self, index: int) -> str:
        """Return the parameter's name in `param_dict`, else in `param_idx2name`, else its index."""
        if index in self.param_dict:
            return self.param_dict[index].name
        return self.idx2name.get(index, str(index))

    def _set_current_context(self, device_id: int) -> None:
        if device_id not in self._all_index_update_counts:
            self._all_index_update_counts[device_id] = dict(self._loaded_update_count)
        super()._set_current_context(device_id)

    def __getstate__(self) -> dict[str, Any]:
        # Without param_dict, whose Parameters hold the arrays. Names and multipliers are copied.
        state = super().__getstate__()
        params = self.param_dict.items()
        state["idx2name"] = {**self.idx2name, **{i: param.name for i, param in params}}
        state["lr_mult"] = {**self.lr_mult, **{i: param.lr_mult for i, param in params}}
        state["wd_mult"] = {**self.wd_mult, **{i: param.wd_mult for i, param in params}}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Updates are counted by device. Loaded onto another device, num_update would not change
        # until the new count had caught up (MXNet issue 17357): every device starts from these.
        self._loaded_update_count = merged_counts(self._all_index_update_counts)
        self._all_index_update_counts: dict[int, dict[int, int]] = {}
        self._set_current_context(0)


def merged_counts(by_device: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
    """Return the number of updates of each parameter, by its index: the highest of all devices."""
    merged: dict[int, int] = {}
    for counts in by_device.values():
        for index, count in counts.items():
            merged[index] = max(count, merged.get(index, 0))
    return merged


def merged_update_count(optimizer: mxnet_optimizer.Optimizer) -> dict[int, int]:
    """Return the number of updates of each parameter of `optimizer`, as :func:`merged_counts`."""
    return merged_counts(optimizer._all_index_update_counts)


def check_momentum(momentum: float) -> float:
    """Return `momentum`; raises ValueError if it is not in [0, 1)."""
    if not 0 <= momentum < 1:
        raise ValueError(
            f"momentum must be in [0, 1), got {momentum!r}: from 1 on, old gradients never fade"
        )
    return momentum


def check_is_dense(optimizer: Optimizer, index: int, grad: NDArray) -> None:
    """Raise ValueError if a gradient is sparse."""
    if isinstance(grad, BaseSparseNDArray):
        can_be_lazy = hasattr(optimizer, "lazy_update")
        other = "give lazy_update=True" if can_be_lazy else "train it with MXNet's 'sgd' or 'adam'"
        raise ValueError(
            f"the gradient of {optimizer._name(index)!r} is {grad.stype}, and this update of "
            f"{type(optimizer).__name__} is dense: create the parameter with "
            f"sparse_grad=False, or {other}"
        )


def check_step(
    optimizer: Optimizer,
    momentum: float,
    indices: Sequence[int],
    weights: Sequence[NDArray],
    grads: Sequence[NDArray],
    states: Sequence[NDArray | None],
) -> None:
    """Raise ValueError if a gradient is sparse, or a state is not the momentum of its weight."""
    for index, weight, grad, state in zip(indices, weights, grads, states, strict=True):
        check_is_dense(optimizer, index, grad)
        shape = None if state is None else state.shape
        needed = weight.shape if momentum else None
        if shape != needed:
            raise ValueError(
                f"the state of {optimizer._name(index)!r} has shape {shape}, but "
                f"momentum={momentum} and a weight of shape {weight.shape} need {needed}: it is "
                "from other parameters or another optimizer, load the states of this run"
            )


def _checked_aggregate_num(aggregate_num: float) -> int:
    if aggregate_num == math.inf:
        return sys.maxsize
    if not isinstance(aggregate_num, numbers.Integral) or aggregate_num < 1:
        raise ValueError(
            f"aggregate_num must be a positive integer, or numpy.inf for all parameters at once, "
            f"got {aggregate_num!r}"
        )
    return int(aggregate_num)


def _replace_base_lr(scheduler: LRScheduler, learning_rate: float) -> None:
    if not isinstance(scheduler, LRScheduler):
        raise ValueError(
            f"learning_rate={learning_rate!r} cannot replace the base of {scheduler!r}, which is "
            "not an LRScheduler: give one of the two"
        )
    if scheduler.base_lr == learning_rate:
        return
    _logger.warning(
        "learning_rate=%s replaces the base_lr=%s of the lr_scheduler",
        learning_rate,
        scheduler.base_lr,
    )
    scheduler.base_lr = scheduler.warmup_final_lr = learning_rate
    # MXNet sets only base_lr, which these two overwrite with base_lr_orig at the first update.
    if isinstance(scheduler, CosineScheduler | PolyScheduler):
        scheduler.base_lr_orig = learning_rate


def _check_arguments(optimizer: type[mxnet_optimizer.Optimizer], given: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument that neither a class nor those it hands on to has.

    Also TypeError or ValueError for one that is no number where the class has a number by default:
    MXNet's classes look at none of them, and a step would fail, or the network become NaN.
    """
    known: dict[str, Any] = {}  # the defaults
    for base in optimizer.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(base).parameters.values())
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        for each in named:
            known.setdefault(each.name, each.default)
        if len(named) == len(parameters):
            break
    for name, value in given.items():
        if name in known:
            default = 0.0 if name in _NUMBERS_OR_NONE else known[name]
            is_number = isinstance(default, numbers.Real) and not isinstance(default, bool)
            if is_number and value is not None:
                _check_is_number(optimizer, name, value)
            continue
        elsewhere = _ELSEWHERE if _ELSEWHERE.get(name) in known else {}
        hint = hint_for(name, known, elsewhere)
        raise TypeError(f"{optimizer.__name__} has no argument {name!r}: {hint}")
    if given.get("learning_rate", 0.0) is None and given.get("lr_scheduler") is None:
        # MXNet would take 0.01, also in the place of another default, such as Adam's 0.001.
        raise ValueError(
            f"learning_rate is None, and {optimizer.__name__} has no lr_scheduler to take it from: "
            "give a number, such as 0.1, or leave learning_rate out"
        )


def _check_is_number(optimizer: type[mxnet_optimizer.Optimizer], name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name} of {optimizer.__name__} must be a number, got {value!r}: give it as a float"
        )
    if math.isnan(value) or (name == "learning_rate" and math.isinf(value)):
        raise ValueError(
            f"{name} of {optimizer.__name__} must be a finite number, got {value!r}: all weights "
            "would be NaN after one step"
        )


def _as_lists(indices: Any, weights: Any, grads: Any, states: Any) -> _Lists:
    if isinstance(indices, list | tuple):
        return cast(_Lists, (indices, weights, grads, states))
    return [indices], [weights], [grads], [states]


register = Optimizer.register
create_optimizer = create = Optimizer.create_optimizer
