"""A worker of communication.py: the same sums and messages by PyTorch over Gloo.

Gradients go as in DistributedDataParallel: copied into buckets of 25 MB, which are added up while
the next is copied.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import communication_pipes
import torch
from communication_sums import PROBLEMS, medians
from torch import distributed

BUCKET = 25 << 20  # bytes, as DistributedDataParallel's


def buckets(arrays: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    parts: list[list[torch.Tensor]] = [[]]
    size = 0
    for array in reversed(arrays):
        size += array.numel() * array.element_size()
        if size > BUCKET and parts[-1]:
            parts.append([])
            size = array.numel() * array.element_size()
        parts[-1].append(array)
    return parts


def add(parts: list[list[torch.Tensor]]) -> None:
    flat, works = [], []
    for part in parts:
        flat.append(torch.cat([array.view(-1) for array in part]))
        works.append(distributed.all_reduce(flat[-1], async_op=True))
    for part, whole, work in zip(parts, flat, works, strict=True):
        work.wait()
        for array, own in zip(part, whole.split([array.numel() for array in part]), strict=True):
            array.view(-1).copy_(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", action="store_true")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    distributed.barrier()
    if options.start:
        (options.folder / f"met-{rank}").write_text(repr(time.time()))
        return
    arrays = {name: [torch.ones(shape) for shape in shapes()] for name, shapes in PROBLEMS.items()}
    parts = {name: buckets(some) for name, some in arrays.items()}
    vote = torch.zeros(3)
    votes = [torch.zeros(3) for _ in range(size)]

    def begin() -> None:
        for some in arrays.values():
            for array in some:
                array.fill_(1.0)
        distributed.barrier()
        distributed.barrier()  # as in communication_sums.py

    sums = medians(begin, {name: lambda p=part: add(p) for name, part in parts.items()})  # type: ignore[misc]
    messages = medians(
        lambda: None, {"message": lambda: distributed.all_gather(votes, vote) and None}
    )
    communication_pipes.serve(options.folder, rank, lambda: [*sums(), *messages()])


if __name__ == "__main__":
    main()
