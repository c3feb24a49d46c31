import logging
from collections.abc import Sequence
from typing import Any

from mxnet.context import Context
from mxnet.gluon.block import HybridBlock, SymbolBlock

def quantize_net_v2(
    network: HybridBlock,
    quantized_dtype: str = "auto",
    quantize_mode: str = "full",
    quantize_granularity: str = "tensor-wise",
    exclude_layers: Sequence[str] | None = None,
    exclude_layers_match: Sequence[str] | None = None,
    exclude_operators: Sequence[str] | None = None,
    calib_data: Any = None,
    data_shapes: Any = None,
    calib_mode: str = "none",
    num_calib_examples: int | None = None,
    ctx: Context = ...,
    LayerOutputCollector: Any = None,
    logger: logging.Logger | None = None,
) -> SymbolBlock: ...
