"""Save a run as the files of a checkpoint, and restore it.

The state of a run has parts (:data:`gluon_svrg.checkpoint.parts.PARTS`). The files of a checkpoint
hold their states:

``net.params``
    The parameters and auxiliary states that the run evaluates, in Gluon's own format:
    `net.load_parameters` reads it, too. They are the network's, or an EMAHandler's average.
``training.params``
    The network's parameters and auxiliary states, if ``net.params`` has an average. A run
    continues from these.
``trainer.npz``
    The optimizer's states, counts, rates and schedule, as `SVRGTrainer.save_states` writes them.
``run.npz``
    The rest: where the run stands, its history, the states of its handlers, ...
``worker-1.npz``, ``worker-2.npz``, ...
    How the states of another worker differ from those of worker 0, which are in the files above:
    :mod:`gluon_svrg.checkpoint.worker_files`. One process writes none.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import mxnet as mx
import numpy as np
from gluon_svrg._compat import version
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arrays import params
from gluon_svrg.arrays.encoding import decode, encode, from_bytes, to_bytes
from gluon_svrg.checkpoint import version_0_8
from gluon_svrg.checkpoint.network_state import save_network
from gluon_svrg.checkpoint.parts import PARTS
from gluon_svrg.checkpoint.random_state import replaying
from gluon_svrg.checkpoint.storage import Checkpoint
from gluon_svrg.checkpoint.trainer_state import as_data
from gluon_svrg.checkpoint.worker_files import (
    apply_worker_file,
    exchange_states,
    gather_worker_files,
    worker_file_name,
)
from gluon_svrg.events import Run, State, Stateful
from gluon_svrg.files import DAMAGED
from gluon_svrg.optimizer.states import TrainerStates
from gluon_svrg.run import Position

NET, TRAINER, RUN = "net.params", "trainer.npz", "run.npz"
TRAINING = "training.params"

LACKS = "lacks"
"""The entry of the manifest that says what the checkpoint does not hold."""


def save_run(run: Run, note: Any = None) -> tuple[dict[str, bytes], Any]:
    """Return the files of a checkpoint of the run, by name; call it at a *safe point*.

    All workers call it together. Worker 0 gets the files, and the others get an empty dict.

    Parameters
    ----------
    run : Run
        The run.
    note : object
        Plain data that goes with the workers' messages.

    Returns
    -------
    files : dict of str to bytes
        The contents, by name.
    note : object
        That of worker 0.

    Raises
    ------
    FloatingPointError
        If a parameter is NaN or infinite, on any worker: to continue from there would be of no use.
    TypeError
        If a handler's state, or a figure, is no plain data.
    """
    if not run.workers.is_distributed:
        return _with_average(run, _files_of(_save_parts(run))), note
    try:
        local = _save_parts(run)
    except FloatingPointError as e:
        exchange_states(run.workers, None, str(e))  # raises on all workers
        raise
    exchange = exchange_states(run.workers, local, None, note)
    others = gather_worker_files(run.workers, exchange.states, exchange.digests, exchange.first)
    files = _with_average(run, _files_of(exchange.states) | others)
    return files if run.workers.is_first else {}, exchange.note


def _save_parts(run: Run) -> State:
    return {name: part.save(run) for name, part in PARTS.items()}


@contextmanager
def restore_run(run: Run, checkpoint: Checkpoint) -> Iterator[None]:
    """Restore the run from `checkpoint`; iterate the data inside the block.

    Inside the block the data draw the random numbers that they drew before the checkpoint was
    written. After it, all random numbers continue from the checkpoint. If an exception is raised
    during the restore or inside the block, network and trainer are as before.

    Raises
    ------
    ValueError
        If the checkpoint is of another network, trainer or data; nothing is changed then.
    """
    states = _load_and_check(run, checkpoint)
    undo = [part.remember(run) for part in PARTS.values()]
    try:
        for name, part in PARTS.items():
            with _loading(checkpoint, name):
                part.load(run, states[name])
        with replaying(run):
            yield
    except BaseException:
        for put_back in undo:
            put_back()
        raise


def manifest_info(run: Run) -> dict[str, Any]:
    """Return the entries of the manifest that describe the run: position, versions, workers."""
    several = {"workers": run.workers.size} if run.workers.is_distributed else {}
    lacks = {LACKS: "the control variate of a handler"} if _lacks_control_variate(run) else {}
    return {
        **several,
        **lacks,
        "position": run.position.state_dict(),
        "versions": {
            "gluon_svrg": version(),
            "mxnet": mx.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _lacks_control_variate(run: Run) -> bool:
    """Return whether the trainer has a control variate, and no handler saves it."""
    if getattr(run.trainer, "full_gradient", None) is None:  # a gluon.Trainer has none
        return False
    stateful = [handler for handler in run.handlers if isinstance(handler, Stateful)]
    return not any(handler.saves_control_variate for handler in stateful)


def _load_and_check(run: Run, checkpoint: Checkpoint) -> State:
    """Load this worker's states from the checkpoint and check them."""
    first = _read_states(checkpoint)
    number, workers = checkpoint.manifest.get("workers", 1), run.workers
    ranks = [workers.rank] if number == workers.size else range(number)
    states, *others = (_worker_states(rank, checkpoint, first) for rank in ranks)
    try:
        if number != workers.size:
            states = {
                name: part.merge(run, [states[name], *(o[name] for o in others)])
                for name, part in PARTS.items()
            }
        for name, part in PARTS.items():
            part.check(run, states[name])
    except ValueError as e:
        raise ValueError(
            f"the checkpoint {str(checkpoint.path)!r} does not fit this run: {e}"
        ) from e
    except DAMAGED as e:  # MXNet's errors are RuntimeErrors
        raise _not_written_by_us(checkpoint, "its states", e) from None
    if number != workers.size and workers.is_first:
        run.logger.warning(
            "resume: a checkpoint of %d %s continues on %d: the results will be close, but not "
            "bitwise equal (order of sums, random numbers, BatchNorm's statistics)",
            number,
            "worker" if number == 1 else "workers",
            workers.size,
        )
    return states


def _files_of(states: State) -> dict[str, bytes]:
    """Return the files that hold the states of all parts."""
    net, trainer = dict(states["net"]), dict(states["trainer"])
    weights, optimizer_states = net.pop("weights"), trainer.pop("states")
    arrays: dict[str, NumPyArray] = {}
    state = encode({**states, "net": net, "trainer": trainer}, arrays)
    return {
        NET: params.to_bytes(weights),
        TRAINER: to_bytes(**optimizer_states),
        RUN: to_bytes({"state": state}, arrays),
    }


def _with_average(run: Run, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with the weights that the run evaluates, if they are an average.

    If they are not finite, the files are as they were: the run can continue from the network's
    weights.
    """
    if run.evaluation_weights is nullcontext:
        return files
    with run.evaluation_weights():
        try:
            average = params.to_bytes(save_network(run)["weights"])
        except FloatingPointError as e:
            if run.workers.is_first:
                run.logger.warning(
                    "averaged weights: %s; %s of this checkpoint has the last weights instead",
                    e,
                    NET,
                )
            return files
    return {**files, NET: average, TRAINING: files[NET]}


def _read_states(checkpoint: Checkpoint) -> State:
    """Return the states of all parts of worker 0, as the version that wrote them has them."""
    with _reading(checkpoint, RUN):
        meta, arrays = from_bytes(checkpoint.files[RUN])
        states: State = decode(meta["state"], arrays, mx.cpu())
    name = TRAINING if TRAINING in checkpoint.files else NET
    with _reading(checkpoint, name):
        states["net"]["weights"] = params.from_bytes(checkpoint.files[name])
    with _reading(checkpoint, TRAINER):
        optimizer_states = TrainerStates.from_bytes(checkpoint.files[TRAINER])
    states["trainer"]["states"] = as_data(optimizer_states)
    return states


def _worker_states(rank: int, checkpoint: Checkpoint, first: State) -> State:
    """Return the states of the worker with this rank; `first` are those of worker 0."""
    name = worker_file_name(rank)
    has_file = name in checkpoint.files
    with _reading(checkpoint, name if has_file else RUN):
        states: State = apply_worker_file(checkpoint.files[name], first) if has_file else first
        if checkpoint.manifest["format"] == version_0_8.FORMAT:
            states = version_0_8.translated(states)
        Position.from_state(states["position"])
    return states


@contextmanager
def _loading(checkpoint: Checkpoint, part: str) -> Iterator[None]:
    """Raise ValueError in one sentence if the state of a part cannot be loaded."""
    try:
        yield
    except (ValueError, OSError):
        raise
    except DAMAGED as e:  # MXNet's errors are RuntimeErrors
        raise _not_written_by_us(checkpoint, f"its state of {part!r}", e) from e


def _not_written_by_us(checkpoint: Checkpoint, what: str, e: Exception) -> ValueError:
    reason = (str(e).splitlines() or [""])[-1]
    return ValueError(
        f"the checkpoint {str(checkpoint.path)!r} cannot be continued from: {what} is not what a "
        f"CheckpointHandler writes, or a handler does not take it ({type(e).__name__}: {reason}); "
        "resume from another"
    )


@contextmanager
def _reading(checkpoint: Checkpoint, name: str) -> Iterator[None]:
    """Raise ValueError in one sentence if a file cannot be read, though its checksum is right."""
    try:
        yield
    except Exception as e:
        # MXNet's errors are tracebacks of their own: the last line says it.
        reason = (str(e).splitlines() or [""])[-1]
        raise ValueError(
            f"the checkpoint {str(checkpoint.path)!r} has a {name} that no CheckpointHandler wrote "
            f"({type(e).__name__}: {reason}): resume from another"
        ) from None
