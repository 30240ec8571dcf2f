"""Inverse heat dissipation with noise that grows with the blur: frequencies fade over many levels, not all at once.

With the paper's constant noise each frequency is lost within a few levels, almost one after the other, so a sampler
cannot correct its mistakes later. Here sigma_k = sigma (sigma_B,k / sigma_B,1)^growth (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.constant import rows
from ihdm.domains import Domain
from ihdm.likelihood import prior_term
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.prior import Prior
from ihdm.processes.diagonal import EtaSteps
from ihdm.processes.noise_predicting import NoisePredicting, Skip, floored, kept, measured
from ihdm.processes.process import Batches
from ihdm.processes.spectrum import Spectrum
from ihdm.processes.widths import BlurWidths
from ihdm.schedule import Schedule
from ihdm.settings import setting


@dataclass(frozen=True)
class GrowingSettings(BlurWidths):
    """The forward process, and what the network learns."""

    K: int = setting(200, "number of levels", least=1, most=100_000)
    sigma: float = setting(0.01, "noise of level 1", least=1e-6, most=100)
    growth: float = setting(1.0, "noise grows with this power of the blur width; 0: not at all", least=0, most=4)
    sigma_B_min: float = setting(0.5, "blur width of level 1, in pixels", least=1e-6)
    sigma_B_max: float | None = setting(
        None, "blur width of level K, in pixels; auto: 3/4 of the longer side", above=0, most=1e6
    )
    skip: Skip = setting("linear", "the network predicts the noise, or only what the best linear prediction misses")

    def noise(self, schedule: Schedule) -> Tensor:
        """sigma of levels 0..K, float64."""
        return self.sigma * (schedule.sigma_B / schedule.sigma_B_min).pow(self.growth) * (schedule.sigma_B > 0)


class GrowingHeat(NoisePredicting):
    """q(u_k | u_0) = N(F(t_k) u_0, sigma_k^2 I): Eq. 3 with a sigma for each level. Starts are blurred training images.

    What F leaves of any frequency is at least FLOOR.
    """

    Settings = GrowingSettings
    title = "inverse heat dissipation with growing noise"
    grown = "grown from blur and noise"
    method = (
        "Rissanen, Heinonen, Solin, *Generative Modelling with Inverse Heat Dissipation*, ICLR 2023; noise that grows"
    )

    def __init__(self, settings: GrowingSettings, sampling: EtaSteps, prior: Prior, spectrum: Spectrum | None):
        laplacian = prior.laplacian
        self.schedule, self.prior = settings.schedule(laplacian), prior
        alpha = floored(laplacian.left(self.schedule.t))
        super().__init__(laplacian, alpha, settings.noise(self.schedule), sampling, spectrum)
        self.sigma_K = float(self._sigma.value[-1])

    @classmethod
    def from_images(
        cls, settings: GrowingSettings, sampling: EtaSteps, domain: Domain, batches: Batches
    ) -> GrowingHeat:
        laplacian = domain.laplacian
        t_K = float(settings.schedule(laplacian).t[-1])
        spectrum = measured(laplacian, settings.skip, batches)
        prior = Prior.from_images(laplacian, t_K, batches(None, "blurring for the prior"))
        return cls(settings, sampling, prior, spectrum)

    @classmethod
    def from_state(
        cls, settings: GrowingSettings, sampling: EtaSteps, domain: Domain, state: Mapping[str, Tensor]
    ) -> GrowingHeat:
        spectrum = kept(state, settings.skip, domain.shape, {"prior.coefficients": (None, domain.shape[0], None)})
        t_K = float(settings.schedule(domain.laplacian).t[-1])
        return cls(settings, sampling, Prior(domain.laplacian, t_K, state["prior.coefficients"]), spectrum)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"prior.coefficients": self.prior.coefficients}

    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        """u_K = F(t_K) u_0 + sigma_K eps, where each row chooses its own training image u_0."""
        return self.near(noise.choice(len(self.prior)), noise(self.K + 1))

    def near(self, index: Tensor, eps: Tensor) -> Tensor:
        """The same, where u_0 are the training images with the given numbers."""
        return self.prior.near(index, eps, self.sigma_K)

    def between(self, one: SeededNoise, other: SeededNoise, weight: Tensor) -> Tensor:
        """Blurred starts are interpolated linearly, and their noise so that it stays standard normal."""
        eps = InterpolatedNoise(one, other, weight)(self.K + 1)
        start, end = (self.prior.means(noise.choice(len(self.prior))) for noise in (one, other))
        return torch.lerp(start, end, rows(weight, eps)) + self.sigma_K * eps

    def prior_divergence(self, u_0: Tensor) -> Tensor:
        """D_KL[q(u_K | u_0) || p(u_K)]; p is the training images, blurred without the floor, under the same noise."""
        return prior_term(self.prior, u_0, self.sigma_K, [self.sigma_K], self._alpha.value[-1])[0]

    @classmethod
    def summary(cls, settings: GrowingSettings, sampling: EtaSteps, domain: Domain) -> str:
        schedule = settings.schedule(domain.laplacian)
        noise = settings.noise(schedule)
        return (
            f"{cls.title}, K = {settings.K}, sigma_B {schedule.sigma_B_min:g} to {schedule.sigma_B_max:g} "
            f"{domain.unit}s, sigma {float(noise[1]):g} to {float(noise[-1]):.3g}, {settings.skip} skip"
        )

    def facts(self) -> dict[str, str]:
        return {"prior": self.prior.words}

    def level_words(self, k: int) -> str:
        if not k:
            return "sharp"
        width, noise = float(self.schedule.sigma_B[k]), float(self._sigma.value[k])
        return f"blurred over {width:.1f} pixels, under noise of {noise:.2f}"
