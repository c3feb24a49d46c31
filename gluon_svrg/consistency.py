"""Several workers: check that they train the same; broadcast the first one's weights."""

from __future__ import annotations

import functools
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import mxnet as mx
import numpy as np
from gluon_svrg import _compat
from gluon_svrg._mxnet.block import parameters_by_structure
from gluon_svrg._mxnet.trainer import trained_parameters
from gluon_svrg.batch.backward import shape_inference_of
from gluon_svrg.class_names import class_path
from gluon_svrg.events import EventHandler, Interrupted, Run
from gluon_svrg.rng import broadcast_rng_states, collect_rng_states, seed_mxnet
from gluon_svrg.settings import PLACES, TRAINING
from gluon_svrg.svrg.trainer import SVRGTrainer
from gluon_svrg.workers import WorkerError, Workers

_P = ParamSpec("_P")
_R = TypeVar("_R")
_AnyRun = TypeVar("_AnyRun", bound=Run)

_HANDLERS = mx.gluon.contrib.estimator.event_handler
_SINGLE_PROCESS_HANDLERS: dict[type[EventHandler], str] = {
    _HANDLERS.MetricHandler: "sees the samples of its own worker only",
    _HANDLERS.GradientUpdateHandler: "divides by the samples of its own worker",
    _HANDLERS.CheckpointHandler: "writes the same files on every worker",
}


# Arguments of handlers in which workers may differ; the shortest time limit counts. A function of
# the user's may know the rank of its worker, as a handler of the user's may.
_OF_EACH_WORKER = {*PLACES, "train_data", "val_data", "export_sample", "seconds", "function"}


def abort_on_error(
    method: Callable[Concatenate[_AnyRun, _P], _R],
) -> Callable[Concatenate[_AnyRun, _P], _R]:
    """Abort the other workers, which would wait forever, if a method raises an exception.

    A method called inside `fit` leaves that to `fit`: a handler may catch the exception.
    """

    @functools.wraps(method)
    def aborting(self: _AnyRun, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        is_outermost = self.state.stops is None
        try:
            return method(self, *args, **kwargs)
        except (WorkerError, Interrupted):
            raise
        except BaseException as exception:
            if is_outermost:
                self.workers.abort(f"{type(exception).__name__}: {exception}")
            raise

    return aborting


def check_handlers_for_workers(handlers: Iterable[EventHandler]) -> None:
    """Raise ValueError for a handler of MXNet's that works in a single process only.

    A class that inherits from it and supports several workers has ``supports_workers = True``.
    """
    for handler in handlers:
        for kind, reason in _SINGLE_PROCESS_HANDLERS.items():
            if isinstance(handler, kind) and not getattr(handler, "supports_workers", False):
                raise ValueError(
                    f"{type(handler).__name__} is MXNet's {kind.__name__}, which {reason}: give "
                    f"gluon_svrg.{kind.__name__}, or a class that inherits from it; or, if yours "
                    "handles several workers itself, set supports_workers = True in it"
                )


def check_same_setup(run: Run, settings: Mapping[str, Any]) -> None:
    """Raise ValueError, on all workers, unless their settings, versions and handlers are equal.

    Parameters
    ----------
    run : Run
        The run, with its network, loss, trainer and handlers.
    settings : mapping
        Other settings that must be equal: plain data by name.
    """
    local = {**_versions(), **settings, **_run_settings(run)}
    all_workers = run.workers.all_gather_object(local, "start of fit")
    first = all_workers[0]
    for rank, other in enumerate(all_workers):
        for name in (*first, *other):
            expected, actual = first.get(name), other.get(name)
            if not _are_equal(name, expected, actual):
                difference = _describe_difference(expected, actual)
                raise ValueError(
                    f"worker {rank} differs from worker 0 in {name}, {difference}: every worker "
                    "has to run the same script, with the same arguments, data and versions"
                )


def broadcast_rng(workers: Workers) -> None:
    """Give all workers the first one's NumPy and Python generators, but different MXNet ones.

    MXNet's generator draws inside the network, where each sample needs its own numbers. The first
    worker's stays the same.
    """
    broadcast_rng_states(workers, "random numbers")
    if not workers.is_first:
        copy = np.random.RandomState()
        copy.set_state(collect_rng_states()["numpy"])
        seed_mxnet(int(copy.randint(2**31 - 1)), workers.rank)


def broadcast_weights(run: Run, batch: object) -> None:
    """Infer shapes from `batch`, and give all workers the first one's weights.

    Call it before the forward pass of `batch`, where a single process would initialise such
    weights: MXNet's generator is then in the same state. A worker without a row of the batch gets
    the shapes from the others. On a resume call it before loading the weights, since each worker
    has its own running statistics afterwards.
    """
    shape_inference_of(run)(batch)
    cast(SVRGTrainer, run.trainer).synchronize(run.net)  # `fit` has checked that it is one


def check_equal_weights(run: Run) -> None:
    """Raise RuntimeError, on all workers, unless their weights are equal bit for bit.

    They may drift apart silently, through an optimizer that draws random numbers or a user's
    handler. The figures, which are averaged over all workers, would not show it.
    """
    trained = trained_parameters(run.trainer)
    checksums = [zlib.crc32(param.list_data()[0].asnumpy().tobytes()) for param in trained]
    first, *others = run.workers.all_gather_object(checksums, "weights at the end of an epoch")
    for rank, other in enumerate(others, 1):
        for param, expected, actual in zip(trained, first, other, strict=True):
            if expected != actual:
                raise RuntimeError(
                    f"weights differ between workers 0 and {rank} after epoch "
                    f"{run.position.epoch}: {param.name!r}; the usual cause is an optimizer that "
                    "draws random numbers (SGLD), or a handler that changes weights or rates by "
                    "the data of its own worker"
                )


def _versions() -> dict[str, Any]:
    return {
        "version of gluon_svrg": _compat.version(),
        "version of MXNet": mx.__version__,
        "version of NumPy": np.__version__,
        "version of Python": platform.python_version(),
    }


def _run_settings(run: Run) -> dict[str, Any]:
    """Return what must be equal on all workers, by name."""
    settings = dict(run.settings)
    described: dict[str, Any] = dict(settings.pop(TRAINING))
    params = parameters_by_structure(run.net)
    described["list of the network's parameters"] = list(params)
    for place, param in params.items():
        shape = None if param.shape is None else [int(n) for n in param.shape]
        described[f"shape of the parameter {place!r}"] = shape
        described[f"dtype of the parameter {place!r}"] = np.dtype(param.dtype).name
        described[f"grad_req of the parameter {place!r}"] = param.grad_req
    described["list of handlers"] = [type(handler).__name__ for handler in run.handlers]
    for number, handler in enumerate(run.handlers):
        described[f"handler {number} ({type(handler).__name__})"] = class_path(handler)
    for owner, values in settings.items():
        described |= {
            f"{name.lstrip('_')} of the {owner}": value
            for name, value in values.items()
            if name not in _OF_EACH_WORKER
        }
    described["number of metrics"] = [len(run.train_metrics), len(run.val_metrics)]
    return described


def _are_equal(name: str, expected: Any, actual: Any) -> bool:
    if name.startswith("shape of") and isinstance(expected, list) and isinstance(actual, list):
        # An unknown length is 0 or -1.
        return len(expected) == len(actual) and all(
            a == b or a < 1 or b < 1 for a, b in zip(expected, actual, strict=True)
        )
    if name.startswith("shape of") and (expected is None or actual is None):
        return True
    return bool(expected == actual or (expected != expected and actual != actual))


def _describe_difference(expected: Any, actual: Any) -> str:
    """Return two values as text; of two lists of names only the differences."""
    if not (isinstance(actual, list) and actual and isinstance(actual[0], str)):
        return f"{actual} instead of {expected}".replace("None", "none")
    more = ", ".join(str(item) for item in actual if item not in expected)
    fewer = ", ".join(str(item) for item in expected if item not in actual)
    differences = [f"with {more}"] if more else []
    differences += [f"without {fewer}"] if fewer else []
    return " and ".join(differences) or f"{actual} instead of {expected}"
