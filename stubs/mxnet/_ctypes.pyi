from types import ModuleType

ndarray: ModuleType
symbol: ModuleType
