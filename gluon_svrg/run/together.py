"""The start of a run over several workers: that all of them do the same, and where they begin."""

from __future__ import annotations

import functools
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import mxnet as mx
import numpy as np
from gluon_svrg import _compat, _mxnet
from gluon_svrg.events import EventHandler, Interrupted, Run
from gluon_svrg.run.backward import shape_inference_of
from gluon_svrg.run.generators import host_states, seed_mxnet, take_host_states_of_first
from gluon_svrg.run.settings import class_of, settings_of
from gluon_svrg.workers import WorkerError, Workers

if TYPE_CHECKING:
    from gluon_svrg.estimator import Estimator
    from gluon_svrg.trainer import SVRGTrainer

_P = ParamSpec("_P")
_R = TypeVar("_R")

_HANDLERS = mx.gluon.contrib.estimator.event_handler
_ALONE: dict[type[EventHandler], str] = {
    _HANDLERS.MetricHandler: "sees the samples of its own worker only",
    _HANDLERS.GradientUpdateHandler: "divides by the samples of its own worker",
    _HANDLERS.CheckpointHandler: "writes the same files on every worker",
}


def failing_together(
    method: Callable[Concatenate[Estimator, _P], _R],
) -> Callable[Concatenate[Estimator, _P], _R]:
    """Let a method tell the other workers of the exception that ends it: they wait for this one.

    Inside of `fit` it is `fit` that tells it, since a handler may know what to do about it.
    """

    @functools.wraps(method)
    def telling(self: Estimator, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        is_outermost = self._loop is None
        try:
            return method(self, *args, **kwargs)
        except (WorkerError, Interrupted):
            raise
        except BaseException as exception:
            if is_outermost:
                self.workers.abort(f"{type(exception).__name__}: {exception}")
            raise

    return telling


def check_handlers(handlers: Iterable[EventHandler]) -> None:
    """Raise ValueError if one of MXNet's own is among them that knows nothing of other workers."""
    for handler in handlers:
        for kind, reason in _ALONE.items():
            if isinstance(handler, kind) and not _is_ours(type(handler), kind.__name__):
                raise ValueError(
                    f"{type(handler).__name__} is MXNet's {kind.__name__}, which {reason}: give "
                    f"gluon_svrg.{kind.__name__}, or a class that inherits from it"
                )


def check_that_all_do_the_same(run: Run, settings: Mapping[str, Any]) -> None:
    """Raise ValueError, on all workers, if they are not about to train the same in the same way.

    Parameters
    ----------
    run : Run
        With network, loss, trainer and handlers.
    settings : mapping
        What else must be the same, as plain data, by what it is called.
    """
    own = {**_versions(), **settings, **_described(run)}
    everybody = run.workers.gather_plain(own, "start of fit")
    first = everybody[0]
    for rank, other in enumerate(everybody):
        for name in (*first, *other):
            ours, theirs = first.get(name), other.get(name)
            if not _are_alike(name, ours, theirs):
                raise ValueError(
                    f"worker {rank} has another {name} than worker 0, {_shown(theirs, ours)}: "
                    "every worker has to run the same script, with the same arguments and versions"
                )


def share_random_numbers(workers: Workers) -> None:
    """Let all have the first worker's generators of NumPy and Python, and MXNet's of their own.

    MXNet's draws within the network, so that each sample of a batch is to have other numbers. The
    first worker's stays as it is.
    """
    take_host_states_of_first(workers, "random numbers")
    if not workers.is_first:
        copy = np.random.RandomState()
        copy.set_state(host_states()["numpy"])
        seed_mxnet(int(copy.randint(2**31 - 1)), workers.rank)


def begin_alike(run: Run, batch: object) -> None:
    """Let all workers have the first one's weights, those too that wait for a batch to be drawn.

    To be called before the forward pass of `batch`, where one process would draw them: MXNet's
    generator is then as it would be there. Who has no row of it is told the shapes. On a resume it
    comes before the weights: afterwards each worker has running statistics of its own.
    """
    shape_inference_of(run)(batch)
    cast("SVRGTrainer", run.trainer).synchronize(run.net)  # `fit` has checked that it is one


def check_weights(run: Run) -> None:
    """Raise RuntimeError, on all workers, if their weights are not the same bits any more.

    They part without a word where something is not the same on all: an optimizer that draws, a
    handler of the user's own. Nobody would see it in the figures, which are of all of them.
    """
    trained = _mxnet.trained_parameters(run.trainer)
    own = [zlib.crc32(param.list_data()[0].asnumpy().tobytes()) for param in trained]
    first, *others = run.workers.gather_plain(own, "weights at the end of an epoch")
    for rank, other in enumerate(others, 1):
        for param, ours, theirs in zip(trained, first, other, strict=True):
            if ours != theirs:
                raise RuntimeError(
                    f"worker {rank} has another {param.name!r} than worker 0 after epoch "
                    f"{run.position.epoch}: every worker has to take the same steps; look for an "
                    "optimizer that draws random numbers (SGLD), and for a handler that changes "
                    "weights or rates by what its own worker sees"
                )


def _versions() -> dict[str, Any]:
    return {
        "version of gluon_svrg": _compat.version(),
        "version of MXNet": mx.__version__,
        "version of NumPy": np.__version__,
        "version of Python": platform.python_version(),
    }


def _described(run: Run) -> dict[str, Any]:
    """Return what of the run must be the same on all workers, by what it is called."""
    described: dict[str, Any] = {"network": class_of(run.net)}
    params = _mxnet.parameters_by_structure(run.net)
    described["list of the network's parameters"] = list(params)
    for place, param in params.items():
        shape = None if param.shape is None else [int(n) for n in param.shape]
        described[f"shape of the parameter {place!r}"] = shape
        described[f"dtype of the parameter {place!r}"] = np.dtype(param.dtype).name
        described[f"grad_req of the parameter {place!r}"] = param.grad_req
    described["trainer"] = class_of(run.trainer)
    described["optimizer"] = class_of(_mxnet.optimizer_of(run.trainer))
    described["list of handlers"] = [type(handler).__name__ for handler in run.handlers]
    for number, handler in enumerate(run.handlers):
        described[f"handler {number} ({type(handler).__name__})"] = class_of(handler)
    for owner, settings in settings_of(run).items():
        described |= {f"{name.lstrip('_')} of the {owner}": v for name, v in settings.items()}
    described["number of metrics"] = [len(run.train_metrics), len(run.val_metrics)]
    return described


def _are_alike(name: str, ours: Any, theirs: Any) -> bool:
    if name.startswith("shape of") and isinstance(ours, list) and isinstance(theirs, list):
        # What is not known yet is 0, or -1.
        return len(ours) == len(theirs) and all(
            a == b or a < 1 or b < 1 for a, b in zip(ours, theirs, strict=True)
        )
    if name.startswith("shape of") and (ours is None or theirs is None):
        return True
    return bool(ours == theirs or (ours != ours and theirs != theirs))


def _shown(theirs: Any, ours: Any) -> str:
    """Return two values in words; of two lists of names what one has and the other has not."""
    if not (isinstance(theirs, list) and theirs and isinstance(theirs[0], str)):
        return f"{theirs} instead of {ours}".replace("None", "none")
    more = ", ".join(str(item) for item in theirs if item not in ours)
    fewer = ", ".join(str(item) for item in ours if item not in theirs)
    told = [f"with {more}"] if more else []
    told += [f"without {fewer}"] if fewer else []
    return " and ".join(told) or f"{theirs} instead of {ours}"


def _is_ours(kind: type, name: str) -> bool:
    """Return whether a class inherits from this package's class of that name."""
    return any(
        base.__name__ == name and base.__module__.startswith("gluon_svrg.") for base in kind.__mro__
    )
