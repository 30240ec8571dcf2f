"""What is drawn by chance in a training step: levels and noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw(shape: Sequence[int], K: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A level (B,) and standard normal noise eps for each of a batch of images of a shape (B, C, *grid).

    Every level is uniform on 1..K; within a batch they are evenly spread, which makes the mean loss less noisy.
    """
    start = torch.rand((), generator=generator, device=generator.device)
    spread = torch.arange(shape[0], device=generator.device) / shape[0]
    k = 1 + ((start + spread) % 1 * K).long().clamp_max(K - 1)
    return k, torch.randn(tuple(shape), generator=generator, device=generator.device)
