"""Runs a model by onnxruntime."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mxnet as mx
import numpy as np
from gluon_svrg._typing import NumPyArray
from gluon_svrg.arguments import require
from gluon_svrg.deploy import onnx_graph
from gluon_svrg.deploy.model_dir import Card
from gluon_svrg.deploy.numerics import processor_name
from gluon_svrg.files import DamagedError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession  # type: ignore[import-untyped]


def session_of(content: bytes | str) -> InferenceSession:
    """Return an onnxruntime session on the CPU for a file or its content; raises ImportError.

    It has as many threads as MXNet: those of ``OMP_NUM_THREADS``, or one per core.
    """
    onnxruntime = require("onnxruntime", "onnx", "an ONNX model")
    options = onnxruntime.SessionOptions()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = int(threads) if threads.isdecimal() else 0
    # Threads that wait for work sleep. By default they spin, and take the cores from whatever else
    # runs: on two busy cores the 99th percentile of a ResNet-20 was then 8.8 ms instead of 1.5 ms,
    # and a batch of 64 took 1.2 to 1.6 times as long. Spinning saves 3 to 10 % of a single sample.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # what is wrong is an exception, too
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(session: InferenceSession, card: Card, arrays: Sequence[NumPyArray]) -> list[NumPyArray]:
    """Return the outputs of an onnxruntime session for one array per input, in the card's order."""
    names = [spec["name"] for spec in card["inputs"]]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))


def engine_versions() -> dict[str, str]:
    """Return what the outputs of onnxruntime and MXNet depend on, beside the model."""
    import onnxruntime

    return {
        "mxnet": mx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "processor": processor_name(),
    }


class OnnxEngine:
    """Runs an ONNX file on batches of any size; calls from several threads run at the same time.

    Parameters
    ----------
    content : bytes
        The ONNX file.
    card : dict
        The card of the model.

    Raises
    ------
    ImportError
        If onnxruntime is not installed.
    ValueError
        If the file is not one that `export` writes, or onnxruntime cannot run it.
    """

    def __init__(self, content: bytes, card: Card) -> None:
        try:
            onnx_graph.check(content)
        except DamagedError as e:
            raise DamagedError(f"the ONNX file is none that export writes: {e}") from e
        self._content = content
        self._inputs = [(spec["name"], np.dtype(spec["dtype"])) for spec in card["inputs"]]
        about = card["outputs"]
        dtypes = map(np.dtype, about["dtypes"])
        self._outputs = list(zip(map(tuple, about["shapes"]), dtypes, strict=True))
        self._session: InferenceSession | None = self._open()
        _ENGINES.add(self)

    def __call__(self, arrays: Sequence[NumPyArray]) -> list[NumPyArray]:
        """Return the outputs for a batch; raises ValueError if onnxruntime cannot run it."""
        if self._session is None:  # in a forked process
            self._session = self._open()
        named = {
            name: np.ascontiguousarray(array, dtype)
            for array, (name, dtype) in zip(arrays, self._inputs, strict=True)
        }
        try:
            outputs = list(self._session.run(None, named))
        except Exception as e:  # onnxruntime's exceptions have no common class
            raise cannot_run(e) from e
        count = len(arrays[0])
        if len(outputs) != len(self._outputs):
            raise ValueError(f"the model's ONNX file gives {len(outputs)} outputs")
        for output, (shape, dtype) in zip(outputs, self._outputs, strict=True):
            if output.shape != (count, *shape) or output.dtype != dtype:
                raise ValueError(
                    f"the model's ONNX file gives {output.dtype} of the shape {output.shape}, and "
                    f"its card says {dtype} of {(count, *shape)}: load it with engine='mxnet'"
                )
        return outputs

    def _open(self) -> InferenceSession:
        try:
            return session_of(self._content)
        except ImportError:
            raise
        except Exception as e:  # as above
            raise cannot_run(e) from e


def cannot_run(e: Exception) -> ValueError:
    """Return the error for what onnxruntime raised."""
    lines = str(e).strip().splitlines() or [type(e).__name__]
    return ValueError(f"onnxruntime cannot run the model's ONNX file ({lines[0]})")


_ENGINES: weakref.WeakSet[OnnxEngine] = weakref.WeakSet()
_LEFT: list[InferenceSession | None] = []


def _leave_sessions() -> None:
    """In a forked process: the threads of a session are not there, and its end waits for them."""
    for engine in list(_ENGINES):
        _LEFT.append(engine._session)
        engine._session = None


os.register_at_fork(after_in_child=_leave_sessions)
