"""One process or several: data parallel through torchrun, over gloo.

    ddp     whole weights, gradients and moments in every process; gradients are summed after the last row
    fsdp    each process keeps its share of them (FSDP2); weights are gathered for the time of one forward and backward

A step's packed rows are numbered over all processes and dealt out in turn, and
the loss is divided by the rows' count over all of them, so that the same
configuration gives the same curve whatever the number of processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

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
                          fix="--parallel ddp or fsdp")
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return Group(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def share_out(module: nn.Module) -> None:
    """Leave each process its share of the parameters, as DTensors; gradients arrive summed over processes."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    assert isinstance(module, FSDPModule)
    # The loss is divided by the count over all processes already.
    module.set_gradient_divide_factor(1.0)
    # gloo knows no reduction that multiplies first.
    module.set_force_sum_reduction_for_comms(True)


def whole(value: Any) -> Any:
    """Tensors that are shared out, gathered, at any depth of dictionaries and lists. Every process must call it."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value.full_tensor() if isinstance(value, DTensor) else value


def shares_of(state: dict[str, Any], parameters: list[nn.Parameter]) -> dict[str, Any]:
    """An optimizer's ``state_dict`` of whole tensors, each cut as its parameter is."""
    def cut(value: Any, like: Tensor) -> Any:
        if isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape:
            return distribute_tensor(value, like.device_mesh, like.placements)
        return value

    moments = {number: {name: cut(value, parameters[number]) for name, value in held.items()}
               for number, held in state["state"].items()}
    return state | {"state": moments}


def average_gradients(module: nn.Module, group: Group) -> None:
    """Sum over processes; the loss was divided by the global count already. FSDP has summed its own."""
    if group.size == 1 or any(isinstance(p, DTensor) for p in module.parameters()):
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
