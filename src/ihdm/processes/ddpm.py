"""The baseline that the paper compares with: denoising diffusion (Ho et al. 2020) with DDIM's steps (Song et al. 2021).

States are kept in the scale of images: u = (x + 1) / 2 for the usual x in [-1, 1], so that u_0 is an image in [0, 1]
and every state can be shown. The network sees x and predicts the noise in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from ihdm.basis import Pixels
from ihdm.constant import Constant, rows
from ihdm.domains import Domain
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.processes.diagonal import Diagonal, EtaSteps
from ihdm.processes.diagonal_bound import DiagonalBound, from_normal, nothing_to_choose
from ihdm.processes.process import Network
from ihdm.settings import setting

LONG = 1000  # number of levels that the ends of the linear schedule were chosen for
LARGEST_BETA = 0.999


@dataclass(frozen=True)
class DiffusionSettings:
    """The forward process."""

    K: int = setting(200, "number of levels; 1000 is usual", least=1, most=100_000)
    betas: Literal["linear", "cosine"] = setting("linear", "the noise schedule")


@dataclass(frozen=True)
class DiffusionSampling(EtaSteps):
    """From ancestral steps (eta = 1) to DDIM's (eta = 0)."""

    clip: bool = setting(True, "clip predicted images to their range, as usual")


class DDPM(Diagonal):
    """q(x_k | x_0) = N(sqrt(alpha_bar_k) x_0, (1 - alpha_bar_k) I), k = 1..K."""

    Settings = DiffusionSettings
    Sampling = DiffusionSampling
    title = "denoising diffusion"
    grown = "grown from noise"
    method = "Ho, Jain, Abbeel, *Denoising Diffusion Probabilistic Models*, NeurIPS 2020"
    centre = 0.5

    def __init__(
        self, settings: DiffusionSettings, sampling: DiffusionSampling | None = None, domain: Domain | None = None
    ):
        self.settings, self.sampling, self.K = settings, sampling or DiffusionSampling(), settings.K
        self.basis = Pixels()
        self._alpha, self._sigma = Constant(self.alpha_bar.sqrt()), Constant((1 - self.alpha_bar).sqrt() / 2)

    @cached_property
    def alpha_bar(self) -> Tensor:
        """Of levels 0..K, float64: from linear betas (Ho et al.) or from the cosine of Nichol and Dhariwal 2021."""
        if self.settings.betas == "linear":
            ends = 0.02 * LONG / self.K, 1e-4 * LONG / self.K  # the largest first, so that K = 1 has that one
            beta = torch.linspace(*ends, self.K, dtype=torch.float64).flip(0).clamp_max(LARGEST_BETA)
        else:
            angle = (torch.linspace(0, 1, self.K + 1, dtype=torch.float64) + 0.008) / 1.008 * math.pi / 2
            beta = (1 - angle.cos().square()[1:] / angle.cos().square()[:-1]).clamp_max(LARGEST_BETA)
        return torch.cat([torch.ones(1, dtype=torch.float64), (1 - beta).cumprod(0)])

    def centre_like(self, u_hat: Tensor) -> float:
        return self.centre

    def alpha_at(self, k: Tensor, like: Tensor) -> Tensor:
        return rows(self._alpha.like(like)[k], like)

    def sigma_at(self, k: Tensor, like: Tensor) -> Tensor:
        """sigma_k in the scale of images, which is half of that of x."""
        return rows(self._sigma.like(like)[k], like)

    def ratio(self, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        return self.alpha_at(k, like) / self.alpha_at(j, like)

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """u_k, a draw from q made from the noise eps."""
        return self.mean_of(u_0, k) + self.sigma_at(k, u_0) * eps

    def loss(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The mean squared error of the predicted noise, for each sample: their L_simple."""
        return (network(2 * self.noised(u_0, k, eps) - 1, k) - eps).square().flatten(1).mean(1)

    def predict(self, network: Network, u_k: Tensor, u_hat_k: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """m_j, from the image that the predicted noise in x_k implies."""
        noise = self.sigma_at(k, u_k) * network(2 * u_k - 1, k.expand(u_k.shape[0]))
        u_0 = (u_k - noise - self.centre) / self.alpha_at(k, u_k) + self.centre
        return self.mean_of(u_0.clamp(0, 1) if self.sampling.clip else u_0, j)

    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        """x_K, a draw from N(0, I)."""
        return self.centre + noise(self.K + 1) / 2

    def bounding(self, **options: Any) -> DiagonalBound:
        nothing_to_choose(self, options)
        return DiagonalBound(self, partial(from_normal, self), spread=float(self._sigma.value[1]))

    @classmethod
    def summary(cls, settings: DiffusionSettings, sampling: DiffusionSampling, domain: Domain) -> str:
        return f"{cls.title}, K = {settings.K}, {settings.betas} betas"

    def level_words(self, k: int) -> str:
        return f"{100 * float(1 - self.alpha_bar[k]):.0f} % noise" if k else "an image"
