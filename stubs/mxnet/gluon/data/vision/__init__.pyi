from typing import Any

from mxnet.gluon.data.dataset import Dataset

class CIFAR10(Dataset):
    def __init__(self, root: str = ..., train: bool = True, transform: Any = None) -> None: ...

class MNIST(Dataset):
    def __init__(self, root: str = ..., train: bool = True, transform: Any = None) -> None: ...

class FashionMNIST(MNIST): ...
