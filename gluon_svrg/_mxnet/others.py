"""DataLoader, which keeps what it was made with in private attributes; Estimator; ONNX; errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mxnet as mx
from mxnet.gluon.contrib.estimator.event_handler import EventHandler
from mxnet.gluon.contrib.estimator.utils import (
    _check_handler_metric_ref,
    _suggest_metric_for_loss,
)
from mxnet.gluon.data.dataloader import default_batchify_fn, default_mp_batchify_fn
from mxnet.gluon.loss import Loss
from mxnet.symbol import Symbol


def dataset_of(loader: mx.gluon.data.DataLoader) -> Any:
    """Return the data set of a DataLoader."""
    return loader._dataset


def batch_sampler_of(loader: mx.gluon.data.DataLoader) -> Any:
    """Return what yields the indices of each batch of a DataLoader."""
    return loader._batch_sampler


def batchify_of(loader: mx.gluon.data.DataLoader) -> Callable[[list[Any]], Any]:
    """Return the function that makes a batch of samples."""
    return loader._batchify_fn


def has_workers(loader: mx.gluon.data.DataLoader) -> bool:
    """Return whether a DataLoader has processes or threads that make its batches ahead."""
    return bool(loader._num_workers)


def load_in_this_process(loader: mx.gluon.data.DataLoader) -> None:
    """Let a DataLoader make its batches in this process, without what its workers have ahead."""
    loader._num_workers, loader._iter = 0, None
    if loader._batchify_fn is default_mp_batchify_fn:  # into memory that processes share
        loader._batchify_fn = default_batchify_fn


def carries_samples_over(loader: mx.gluon.data.DataLoader) -> bool:
    """Return whether samples that are left over go into the next epoch: ``'rollover'``."""
    sampler = loader._batch_sampler
    return isinstance(sampler, mx.gluon.data.BatchSampler) and sampler._last_batch == "rollover"


def check_metrics_of_handlers(
    handlers: Sequence[EventHandler], known: set[mx.metric.EvalMetric]
) -> None:
    """Raise ValueError if a handler watches a metric that the Estimator does not have."""
    for handler in handlers:
        _check_handler_metric_ref(handler, known)


def suggested_metric(loss: Loss) -> mx.metric.EvalMetric | None:
    """Return the metric that MXNet's Estimator takes for `loss` if none is given."""
    return _suggest_metric_for_loss(loss)


@contextmanager
def onnx_translator() -> Iterator[Any]:
    """Yield what translates a Symbol into ONNX; raises ImportError if onnx is not installed.

    ``mx.onnx.export_model`` would write the newest opset of the installed onnx into the file, but
    translate the operators as opset 13 has them. MXNet makes a Python number of each number in a
    parameter, which takes 100 seconds for the 100 million of a VGG: here they are written as bytes.
    """
    import onnx.helper  # an optional extra
    import onnx.numpy_helper
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

    of_opset_12 = MXNetGraph.registry_[12]["null"]

    def variable(node: dict[str, Any], **about: Any) -> Any:
        if about["is_input"]:
            return of_opset_12(node, **about)
        name, array = node["name"], about["weights"][node["name"]]
        tensor = onnx.numpy_helper.from_array(array, name)
        about["initializer"].append(tensor)
        value = onnx.helper.make_tensor_value_info(name, tensor.data_type, array.shape)
        return [value], (array.dtype,)

    registry = MXNetGraph.registry_.setdefault(13, {})
    before = registry.get("null")
    registry["null"] = variable
    try:
        yield MXNetGraph()
    finally:
        if before is None:
            del registry["null"]
        else:
            registry["null"] = before


def inferred_shapes(symbol: Symbol, shapes: dict[str, tuple[int, ...]]) -> Any:
    """Return what ``Symbol.infer_shape`` does, which prints the shapes as well if it fails."""
    return symbol._infer_shape_impl(False, **shapes)  # type: ignore[attr-defined]


def inferred_types(symbol: Symbol, dtypes: dict[str, Any]) -> Any:
    """Return what ``Symbol.infer_type`` does, which prints the dtypes as well if it fails."""
    return symbol._infer_type_impl(False, **dtypes)  # type: ignore[attr-defined]


def reason_of(error: BaseException) -> str:
    """Return the last line of an error's message, or its type if it has no message.

    MXNet puts the stack of C++ calls above the reason, and the reason last.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
