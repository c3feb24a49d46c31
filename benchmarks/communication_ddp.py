"""A worker of communication_steps.py: PyTorch's DistributedDataParallel over Gloo.

The network is that of resnet_torch.py, the optimizer PyTorch's fused SGD.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import communication_pipes
import resnet
import torch
from resnet_torch import network
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(rank)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    net = network()
    if size > 1:
        distributed.init_process_group("gloo")
        net = DistributedDataParallel(net, gradient_as_bucket_view=True)
    rate, momentum = resnet.OPTIMIZER.values()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum, fused=True)
    samples = options.batch_size // size
    batches = [
        (
            torch.randn(samples, *resnet.IMAGE).to(memory_format=torch.channels_last),
            torch.randint(resnet.CLASSES, (samples,)),
        )
        for _ in range(options.batches)
    ]

    def epoch() -> list[float]:
        begin = time.perf_counter()
        for x, y in batches:
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return [time.perf_counter() - begin]

    communication_pipes.serve(options.folder, rank, epoch)


if __name__ == "__main__":
    main()
