from collections.abc import Sequence
from typing import Any

def export_model(
    sym: Any,
    params: Any,
    in_shapes: Sequence[tuple[int, ...]] | None = None,
    in_types: Any = ...,
    onnx_file_path: str = "model.onnx",
    verbose: bool = False,
    dynamic: bool = False,
    dynamic_input_shapes: Any = None,
    run_shape_inference: bool = False,
    input_type: Any = None,
    input_shape: Any = None,
    large_model: bool = False,
) -> str: ...
