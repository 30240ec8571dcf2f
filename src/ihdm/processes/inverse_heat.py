"""The paper's process: blur and a little noise forward, deblurring and a little noise back (Eq. 3-4, Alg. 1-2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ihdm.heat import Constant, GaussianFilter, GridLaplacian
from ihdm.processes.levels import draw
from ihdm.schedule import Schedule

if TYPE_CHECKING:
    from ihdm.processes import Network
    from ihdm.processes.skip import Skip


@dataclass(frozen=True)
class InverseHeat:
    """q(u_k | u_0) = N(F(t_k) u_0, sigma^2 I) (Eq. 3) and p(u_prev | u_k) = N(mu(u_k, k), delta^2 I) (Eq. 4).

    skip: how mu is made of the network, the paper's identity or the best linear predictor.
    filter: blurs instead of the heat equation, if given (App. C.6).
    """

    laplacian: GridLaplacian
    schedule: Schedule
    sigma: float
    delta: float
    skip: Skip
    filter: GaussianFilter | None = None
    _t: Constant = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (0 <= self.sigma < float("inf") and 0 <= self.delta < float("inf")):
            raise ValueError(f"noise cannot be negative: sigma is {self.sigma}, delta is {self.delta}")
        object.__setattr__(self, "_t", Constant(self.schedule.t))

    @property
    def K(self) -> int:
        return self.schedule.K

    def with_noise(self, ratio: float) -> InverseHeat:
        """The same with sampling noise delta = ratio sigma."""
        return replace(self, delta=ratio * self.sigma)

    def blur(self, u_0: Tensor, k: Tensor) -> Tensor:
        """F(t_k) u_0 (Eq. 2), with one level for each sample, (B,), or several, (L, B), for which u_0 is read once."""
        return (self.filter or self.laplacian).dissipate(u_0, self._t.like(u_0)[k])

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """u_k = F(t_k) u_0 + sigma eps, a draw from q(u_k | u_0) (Eq. 3)."""
        return self.blur(u_0, k) + self.sigma * eps

    def mean(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """mu(u_k, k) (Eq. 4)."""
        return self.skip(network, u_k, k)

    def loss_at(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """|| mu(F(t_k) u_0 + sigma eps, k) - F(t_{k-1}) u_0 ||^2, summed over pixels, for each sample (Eq. 9-10)."""
        coarse, fine = self.blur(u_0, torch.stack([k, k - 1]))
        return (self.mean(network, coarse + self.sigma * eps, k) - fine).square().flatten(1).sum(1)

    def loss(self, network: Network, u_0: Tensor, generator: torch.Generator) -> Tensor:
        """Alg. 1: the squared error at a random level, one for each sample."""
        k, eps = draw(u_0.shape, self.K, generator)
        return self.loss_at(network, u_0, k, eps.to(u_0.dtype))

    def step(self, network: Network, u_k: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """Alg. 2: u_prev = mu(u_k, k) + delta eps, with one level for all samples or one for each."""
        return self.mean(network, u_k, k.expand(len(u_k))) + self.delta * eps
