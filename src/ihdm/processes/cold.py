"""Cold diffusion (Bansal et al. 2022): blur without noise, and a network that predicts the image.

The l1 loss, Alg. 2 and the way to generate images from blur are as published. At level K only the mean of each channel
is left of an image. One Gaussian is fitted to these means over the training images (a mixture of one, in the authors'
commands), and a start is a draw from it with a little noise (0.002 in [-1, 1]), without which all its pixels are equal
and samples are alike.
The blur differs: here it is the heat equation with this package's schedule, there a repeated Gaussian filter.

There is no density, and so no likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.constant import Constant
from ihdm.domains import Domain
from ihdm.errors import UsageError
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.processes.process import Batches, Network, Process, Steps, fitting
from ihdm.processes.widths import BlurWidths
from ihdm.settings import setting


@dataclass(frozen=True)
class ColdSettings(BlurWidths):
    """The forward process."""

    K: int = setting(200, "number of levels; at the last, only the channel means are left", least=1, most=100_000)
    sigma_B_min: float = setting(0.5, "blur width of level 1, in pixels", least=1e-6)
    sigma_B_max: float | None = setting(
        None, "blur width that the levels approach, in pixels; auto: 3/4 of the longer side", above=0, most=1e6
    )


@dataclass(frozen=True)
class ColdSampling(Steps):
    """How many steps to take, and how to start."""

    start_noise: float = setting(0.001, "noise that makes the pixels of a start differ; 0: none", least=0, most=100)


class Cold(Process):
    """u_k = D(u_0, k) = F(t_k) u_0; D(u_0, K) is the mean of each channel. Steps take no noise.

    mean, covariance: of the training images' channel means, (C,) and (C, C).
    """

    Settings = ColdSettings
    Sampling = ColdSampling
    title = "cold diffusion"
    grown = "grown from blur"
    method = "Bansal et al., *Cold Diffusion: Inverting Arbitrary Image Transforms Without Noise*, NeurIPS 2023"

    def __init__(
        self, settings: ColdSettings, sampling: ColdSampling, laplacian: Laplacian, mean: Tensor, covariance: Tensor
    ):
        parts = int((laplacian.eigenvalues == 0).sum())
        if parts > 1:
            raise UsageError(
                f"cold diffusion starts from a single colour, but the graph is in {parts} parts, each with its own"
            )
        self.K, self.sampling, self.laplacian = settings.K, sampling, laplacian
        self.schedule = settings.schedule(laplacian)
        alpha = laplacian.left(self.schedule.t)
        alpha[-1] = laplacian.eigenvalues == 0
        powers, axes = torch.linalg.eigh(covariance.double())
        self._alpha, self._mean, self._covariance = map(Constant, (alpha, mean, covariance))
        self._root = Constant((axes * powers.clamp_min(0).sqrt()) @ axes.mT)

    @classmethod
    def from_images(cls, settings: ColdSettings, sampling: ColdSampling, domain: Domain, batches: Batches) -> Cold:
        colours = torch.cat([u_0.double().flatten(2).mean(2).cpu() for u_0 in batches(None, "averaging images")])
        covariance = torch.cov(colours.T, correction=0).view(*domain.shape[:1] * 2)
        return cls(settings, sampling, domain.laplacian, colours.mean(0), covariance)

    @classmethod
    def from_state(
        cls, settings: ColdSettings, sampling: ColdSampling, domain: Domain, state: Mapping[str, Tensor]
    ) -> Cold:
        fitting(state, {"colours.mean": domain.shape[:1], "colours.covariance": domain.shape[:1] * 2})
        return cls(settings, sampling, domain.laplacian, state["colours.mean"], state["colours.covariance"])

    def state(self) -> dict[str, Tensor]:
        return {"colours.mean": self._mean.value, "colours.covariance": self._covariance.value}

    def alpha_at(self, k: Tensor, like: Tensor) -> Tensor:
        return self._alpha.like(like)[k.view(-1)][:, None]

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """D(u_0, k); eps is not used."""
        return self.laplacian.from_spectrum(self.alpha_at(k, u_0) * self.laplacian.to_spectrum(u_0))

    def restored(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """The image that the network predicts from u_k; its input and output are in [-1, 1]."""
        return (1 + network(2 * u_k - 1, k.expand(u_k.shape[0]))) / 2

    def loss(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The mean absolute error of the image, for each sample."""
        return (self.restored(network, self.noised(u_0, k, eps), k) - u_0).abs().flatten(1).mean(1)

    def step(self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor) -> Tensor:
        """u_j = u_k - D(x, k) + D(x, j), where x is the image that the network predicts (their Alg. 2)."""
        x_hat = self.laplacian.to_spectrum(self.restored(network, u_k, k.view(-1)))
        return u_k + self.laplacian.from_spectrum((self.alpha_at(j, u_k) - self.alpha_at(k, u_k)) * x_hat)

    @property
    def noisy(self) -> bool:
        return False

    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        """A colour drawn from the Gaussian with the mean of the noise, plus the rest of the noise, scaled."""
        eps = noise(self.K + 1)
        grey = eps.flatten(2).mean(2)
        colour = self._mean.like(eps) + grey * math.prod(self.laplacian.grid) ** 0.5 @ self._root.like(eps)
        ones = [1] * len(self.laplacian.grid)
        return colour.view(*grey.shape, *ones) + self.sampling.start_noise * (eps - grey.view(*grey.shape, *ones))

    @classmethod
    def summary(cls, settings: ColdSettings, sampling: ColdSampling, domain: Domain) -> str:
        schedule = settings.schedule(domain.laplacian)
        widths = f"sigma_B {schedule.sigma_B_min:g} to {schedule.sigma_B_max:g} {domain.unit}s, then blank"
        return f"{cls.title}, K = {settings.K}, {widths}"

    def facts(self) -> dict[str, str]:
        return {"start": "one colour, drawn from a Gaussian fitted to the mean colours of the training images"}

    def level_words(self, k: int) -> str:
        if k == self.K:
            return "one colour"
        return f"blurred over {float(self.schedule.sigma_B[k]):.1f} pixels" if k else "sharp"
