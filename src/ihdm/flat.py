"""Tensors one after the other in one piece of memory, so that an update treats all at once instead of one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

ALIGNED = 16  # elements: each tensor begins at a multiple of so many, so that kernels can read several at once


class Flat:
    """Where each of several tensors lies in a piece of memory, in its own memory order."""

    def __init__(self, tensors: Sequence[Tensor]):
        sizes = [-(-tensor.numel() // ALIGNED) * ALIGNED for tensor in tensors]
        *starts, self.size = accumulate(sizes, initial=0)
        self.device = tensors[0].device
        dense = [torch.empty_like(tensor, device="meta") for tensor in tensors]  # the same memory order, without gaps
        self._places = [(tensor.shape, tensor.stride(), start) for tensor, start in zip(dense, starts)]

    def new(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """A piece of memory of this size, filled with zeros."""
        return torch.zeros(self.size, dtype=dtype, device=self.device)

    def views(self, memory: Tensor) -> list[Tensor]:
        """The tensors that lie in such a piece of memory."""
        return [memory.as_strided(*place) for place in self._places]

    def taken(self, tensors: Sequence[Tensor]) -> Tensor:
        """Move tensors into a new piece of memory, which is returned; they stay the same tensor objects."""
        memory = self.new()
        for view, tensor in zip(self.views(memory), tensors):
            tensor.data = view.copy_(tensor.data)
        return memory
