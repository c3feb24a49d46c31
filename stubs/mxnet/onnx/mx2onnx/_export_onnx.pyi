from collections.abc import Callable
from typing import Any

class MXNetGraph:
    registry_: dict[int, dict[str, Callable[..., Any]]]
    @staticmethod
    def register(op_name: str, opset_version: int = 12) -> Callable[..., Any]: ...
    def __getattr__(self, name: str) -> Any: ...
