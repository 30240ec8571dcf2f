"""How weights move: the learning rate, and their moving average."""

from __future__ import annotations

import torch
from torch import nn

from ihdm.config import TrainerConfig


def learning_rate(settings: TrainerConfig, step: int) -> float:
    """Linear warm-up (App. B.1), and a linear fall to zero where `decay` asks for one."""
    rise = min(1.0, (step + 1) / max(settings.warmup, 1))
    fall = min(1.0, (settings.steps - step) / max(settings.decay * settings.steps, 1))
    return settings.lr * rise * fall


def averaging_weight(settings: TrainerConfig, step: int) -> float:
    """The weight of the new in the moving average: 1 - min(decay, (1 + step) / (10 + step)), at first all of it."""
    return 1 - min(settings.ema, (1 + step) / (10 + step)) if step else 1.0


def averaging(average: nn.Module, network: nn.Module) -> torch.optim.Optimizer:
    """An optimiser that moves `average` towards `network` by the share that is its learning rate.

    average += weight (network - average) is a gradient step on |average - network|^2 / 2, and as such PyTorch
    has it in one pass over all weights, with a weight that may lie on the GPU.
    """
    for averaged, current in zip(average.parameters(), network.parameters()):
        averaged.grad = current.detach()
    return torch.optim.SGD(average.parameters(), lr=1.0, weight_decay=1.0, maximize=True, fused=True)
