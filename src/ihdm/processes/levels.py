"""Which levels a batch is trained at."""

from __future__ import annotations

import torch
from torch import Tensor


def spread_levels(count: int, K: int, generator: torch.Generator) -> Tensor:
    """Every level is uniform on 1..K; within a batch they are evenly spread, which makes the mean loss less noisy."""
    start = torch.rand((), generator=generator, device=generator.device)
    spread = torch.arange(count, device=generator.device) / count
    return 1 + ((start + spread) % 1 * K).long().clamp_max(K - 1)
