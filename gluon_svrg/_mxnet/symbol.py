"""Symbols: inferred shapes and types, the translation into ONNX, the reason in an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mxnet.symbol import Symbol


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
