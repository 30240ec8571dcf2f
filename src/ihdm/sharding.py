"""Weights divided among processes by PyTorch's FSDP, for networks that do not fit on one device.

A divided weight is a `DTensor`. The modules that define it take long to import, so they are imported where needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def divide(network: nn.Module, device: torch.device, precision: torch.dtype) -> None:
    """Leave each process its part of every weight; whole ones, in `precision`, exist while the network computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(network, mesh=mesh, mp_policy=policy)


def is_divided(tensor: Any) -> bool:
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """The whole tensor; if it is divided, all processes must call this at the same time."""
    return tensor.full_tensor() if is_divided(tensor) else tensor


def own_part(tensor: Any) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if is_divided(tensor) else tensor


def divided_like(value: Tensor, other: Any) -> Tensor:
    """A whole value, divided as another tensor is."""
    if not is_divided(other):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(other.device, other.dtype), other.device_mesh, other.placements)
