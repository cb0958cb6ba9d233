"""One process or several: data parallel through torchrun, over gloo.

A step's packed rows are numbered over all processes and dealt out in turn, and
the loss is divided by the rows' count over all of them, so that the same
configuration gives the same curve whatever the number of processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eagle3_core.errors import Eagle3Error


@dataclass(frozen=True)
class Group:
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def any(self, flag: bool) -> bool:
        """The same answer everywhere: some process says so."""
        return bool(self.sum(torch.tensor(float(flag))) > 0) if self.size > 1 else flag

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def join(kind: str) -> Group:
    """Raises Eagle3Error when torchrun started several processes and the configuration names no way to share work."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group()
    if kind == "none":
        raise Eagle3Error("started as several processes without a way to share the work", found=f"WORLD_SIZE={size}",
                          fix="--parallel ddp")
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return Group(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def average_gradients(module: nn.Module, group: Group) -> None:
    """Sum over processes; the loss was divided by the global count already."""
    if group.size == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
