"""Processes: how images are destroyed, and how a network is used to make them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ihdm.processes.ddpm import DDPM, StandardNormal
from ihdm.processes.inverse_heat import InverseHeat
from ihdm.processes.skip import IdentitySkip, LinearSkip, Spectrum

if TYPE_CHECKING:
    from typing_extensions import Self

Network = Callable[[Tensor, Tensor], Tensor]


class Process(Protocol):
    """What the trainer, the sampler and the studies need of a process; levels are numbered 1..K."""

    @property
    def K(self) -> int:
        """The number of levels."""

    @property
    def delta(self) -> float:
        """The noise in sampling."""

    def with_noise(self, ratio: float) -> Self:
        """The same with other noise in sampling, in the process's own unit."""

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The state at level k of each image, made from the noise eps."""

    def mean(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """The mean of the state at level k - 1, given that at level k of each sample."""

    def loss(self, network: Network, u_0: Tensor, generator: torch.Generator) -> Tensor:
        """One loss for each image of a batch in [0, 1], at random levels."""

    def loss_at(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The same at given levels with given noise."""

    def step(self, network: Network, u_k: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """From level k to level k - 1 with noise eps; one level for all samples or one for each."""


__all__ = ["DDPM", "IdentitySkip", "InverseHeat", "LinearSkip", "Network", "Process", "Spectrum", "StandardNormal"]
