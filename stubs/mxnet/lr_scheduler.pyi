class LRScheduler:
    base_lr: float
    warmup_steps: int
    warmup_begin_lr: float
    warmup_final_lr: float
    warmup_mode: str
    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None: ...
    def get_warmup_lr(self, num_update: int) -> float: ...
    def __call__(self, num_update: int) -> float: ...

class FactorScheduler(LRScheduler):
    def __init__(
        self,
        step: int,
        factor: float = 1,
        stop_factor_lr: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None: ...

class MultiFactorScheduler(LRScheduler):
    def __init__(
        self,
        step: list[int],
        factor: float = 1,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None: ...

class PolyScheduler(LRScheduler):
    base_lr_orig: float
    max_update: int
    power: float
    final_lr: float
    max_steps: int
    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pwr: float = 2,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None: ...

class CosineScheduler(LRScheduler):
    base_lr_orig: float
    max_update: int
    final_lr: float
    max_steps: int
    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None: ...
