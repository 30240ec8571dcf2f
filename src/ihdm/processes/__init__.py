"""Processes: how images are destroyed, and how a network is used to make them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ihdm.processes.inverse_heat import InverseHeat
from ihdm.processes.skip import IdentitySkip, LinearSkip, Spectrum

Network = Callable[[Tensor, Tensor], Tensor]


class Process(Protocol):
    """What the trainer, the sampler and the studies need of a process; levels are numbered 1..K."""

    @property
    def K(self) -> int:
        """The number of levels."""

    def loss(self, network: Network, u_0: Tensor, generator: torch.Generator) -> Tensor:
        """One loss for each image of a batch in [0, 1]."""

    def step(self, network: Network, u_k: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """From level k to level k - 1 with noise eps; one level for all samples or one for each."""


__all__ = ["IdentitySkip", "InverseHeat", "LinearSkip", "Network", "Process", "Spectrum"]
