from typing import Any

from mxnet.gluon.block import HybridBlock
from mxnet.ndarray import NDArray

class LSTM(HybridBlock):
    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        **kwargs: Any,
    ) -> None: ...
    def begin_state(self, batch_size: int = 0, **kwargs: Any) -> list[NDArray]: ...
