"""How weights move: the learning rate, and their moving average."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ihdm.config import TrainerConfig
from ihdm.sharding import own_part


def learning_rate(settings: TrainerConfig, step: int) -> float:
    """Linear warm-up (App. B.1), and a linear fall to zero where `decay` asks for one."""
    rise = min(1.0, (step + 1) / max(settings.warmup, 1))
    fall = min(1.0, (settings.steps - step) / max(settings.decay * settings.steps, 1))
    return settings.lr * rise * fall


def averaging_weight(settings: TrainerConfig, step: int) -> float:
    """The weight of the new in the moving average: 1 - min(decay, (1 + step) / (10 + step)), at first all of it."""
    return 1 - min(settings.ema, (1 + step) / (10 + step)) if step else 1.0


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, weight: Tensor) -> None:
    """average += weight (network - average), a few launches for all weights; of divided ones each process its part.

    The parts are asked for anew each time: FSDP moves them in memory when a network first computes or is loaded.
    """
    averages, weights = ([own_part(p) for p in module.parameters()] for module in (average, network))
    change = torch._foreach_sub(weights, averages)
    torch._foreach_mul_(change, weight)
    torch._foreach_add_(averages, change)
    for kept, now in zip(average.buffers(), network.buffers()):  # such as a normalisation's, averages already
        kept.copy_(now)
