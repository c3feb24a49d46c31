"""A worker of resnet.py: epochs of SVRG, or of plain SGD, in PyTorch.

The network is layer by layer gluoncv's ``cifar_resnet20_v1``. There is no SVRG in PyTorch; this is
the usual one, with a second model for the snapshot, in the settings that were the fastest here.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import resnet
import torch
from torch import nn
from torch.nn import functional

Batches = list[tuple[torch.Tensor, torch.Tensor]]
Gradient = list[torch.Tensor]


def conv(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv(inputs, outputs, 3, stride),
            nn.ReLU(inplace=True),
            *conv(outputs, outputs, 3, 1),
        )
        self.shortcut = (
            nn.Identity() if inputs == outputs else nn.Sequential(*conv(inputs, outputs, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv(3, 16, 3, 1), nn.ReLU(inplace=True))
        stages = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.blocks = nn.Sequential(
            *(
                block
                for inputs, outputs, stride in stages
                for block in (
                    Block(inputs, outputs, stride),
                    Block(outputs, outputs, 1),
                    Block(outputs, outputs, 1),
                )
            )
        )
        self.output = nn.Linear(64, resnet.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.blocks(self.stem(x)).mean((2, 3)))


class Model:
    """A network, its parameters, and its forward pass, which may be compiled."""

    def __init__(self, net: nn.Module, is_compiled: bool) -> None:
        self.net = net
        self.params = list(net.parameters())
        self._forward = torch.compile(net) if is_compiled else net

    def clear_gradient(self) -> None:
        self.net.zero_grad(set_to_none=True)

    def add_gradient(self, x: torch.Tensor, y: torch.Tensor) -> Gradient:
        """Add the gradient of a batch to those there are, and return the sum."""
        functional.cross_entropy(self._forward(x), y).backward()
        return [param.grad for param in self.params]


def random_batches(count: int) -> Batches:
    return [
        (
            torch.randn(resnet.BATCH_SIZE, *resnet.IMAGE).to(memory_format=torch.channels_last),
            torch.randint(resnet.CLASSES, (resnet.BATCH_SIZE,)),
        )
        for _ in range(count)
    ]


def network() -> ResNet20:
    net = ResNet20()
    assert sum(param.numel() for param in net.parameters()) == resnet.PARAMETERS
    return net.to(memory_format=torch.channels_last).train()


def full_gradient(twin: Model, batches: Batches) -> Gradient:
    twin.clear_gradient()
    for x, y in batches:
        gradient = twin.add_gradient(x, y)
    torch._foreach_div_(gradient, len(batches))
    return gradient


def svrg_epoch(
    model: Model, twin: Model, optimizer: torch.optim.Optimizer, batches: Batches
) -> None:
    twin.net.load_state_dict(model.net.state_dict())
    mean = full_gradient(twin, batches)
    for x, y in batches:
        model.clear_gradient()
        twin.clear_gradient()
        gradient = model.add_gradient(x, y)
        torch._foreach_sub_(gradient, twin.add_gradient(x, y))
        torch._foreach_add_(gradient, mean)
        optimizer.step()


def sgd_epoch(model: Model, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    for x, y in batches:
        model.clear_gradient()
        model.add_gradient(x, y)
        optimizer.step()


def epoch_of(mode: str, batches: Batches) -> Callable[[], None]:
    is_compiled = mode == "svrg-compile"
    model = Model(network(), is_compiled)
    rate, momentum = resnet.OPTIMIZER.values()
    optimizer = torch.optim.SGD(model.params, lr=rate, momentum=momentum, fused=True)
    if mode == "sgd":
        return lambda: sgd_epoch(model, optimizer, batches)
    twin = Model(copy.deepcopy(model.net), is_compiled)
    return lambda: svrg_epoch(model, twin, optimizer, batches)


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--batches", type=int, required=True)
    command.add_argument("--mode", choices=list(resnet.TORCH_MODES.values()), required=True)
    options = command.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(resnet.cores())
    resnet.serve(resnet.timed(epoch_of(options.mode, random_batches(options.batches))))


if __name__ == "__main__":
    main()
