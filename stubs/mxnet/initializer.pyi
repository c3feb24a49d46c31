from mxnet.ndarray import NDArray

class InitDesc(str):
    attrs: dict[str, str]

class Initializer:
    def __call__(self, desc: InitDesc | str, arr: NDArray) -> None: ...

class Zero(Initializer): ...
class One(Initializer): ...

class Constant(Initializer):
    def __init__(self, value: float) -> None: ...

class Uniform(Initializer):
    def __init__(self, scale: float = 0.07) -> None: ...

class Normal(Initializer):
    def __init__(self, sigma: float = 0.01) -> None: ...

class Xavier(Initializer):
    def __init__(
        self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3
    ) -> None: ...
