"""Blurring diffusion (Hoogeboom and Salimans 2022): ordinary diffusion in which high frequencies fade first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.constant import Constant, rows
from ihdm.domains import Domain
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.processes.diagonal import EtaSteps
from ihdm.processes.diagonal_bound import from_normal
from ihdm.processes.noise_predicting import NoisePredicting, Skip, floored, kept, measured
from ihdm.processes.process import Batches
from ihdm.processes.spectrum import Spectrum
from ihdm.settings import setting

LOG_SNR = 10.0  # log(a^2 / sigma^2) at s = 0, and minus that at s = 1


@dataclass(frozen=True)
class BlurringSettings:
    """The forward process, and what the network learns."""

    K: int = setting(200, "number of levels", least=1, most=100_000)
    sigma_B_max: float = setting(20.0, "blur width of level K, in pixels; 0: ordinary diffusion", least=0, most=1e6)
    blur_power: float = setting(
        2.0, "sigma_B = sigma_B_max sin(pi s / 2)^blur_power: higher means later blur", above=0, most=64
    )
    skip: Skip = setting("plain", "the network predicts the noise, or only what the best linear prediction misses")


class Blurring(NoisePredicting):
    """x_k = 2 u_k - 1 has alpha = a d and a^2 + sigma^2 = 1, where a = cos phi and the angle phi grows with s = k / K.

    d = (1 - FLOOR) exp(t eigenvalues) + FLOOR, t = sigma_B^2 / 2, sigma_B = sigma_B,max sin(pi s / 2)^blur_power.
    A power above 2, the published one, makes the blur come later, when noise already hides what it removes.
    Without blur this is diffusion with the cosine schedule, log(a^2 / sigma^2) = -2 log tan phi from 10 to -10.
    """

    Settings = BlurringSettings
    title = "blurring diffusion"
    grown = "grown from noise"
    method = "Hoogeboom, Salimans, *Blurring Diffusion Models*, ICLR 2023"

    def __init__(self, settings: BlurringSettings, sampling: EtaSteps, laplacian: Laplacian, spectrum: Spectrum | None):
        s = torch.arange(settings.K + 1, dtype=torch.float64) / settings.K
        first, last = math.atan(math.exp(-LOG_SNR / 2)), math.atan(math.exp(LOG_SNR / 2))
        phi = first + (last - first) * s
        self.sigma_B = settings.sigma_B_max * (math.pi / 2 * s).sin().pow(settings.blur_power)
        left = floored(laplacian.left(self.sigma_B.square() / 2))
        alpha = rows(phi.cos(), left) * left
        alpha[0], sigma = 1.0, phi.sin() / 2  # level 0 is the image itself
        sigma[0] = 0.0
        super().__init__(laplacian, alpha, sigma, sampling, spectrum)
        self._grey = Constant(laplacian.to_spectrum(torch.full((1, 1, *laplacian.grid), 0.5, dtype=torch.float64)))

    @classmethod
    def from_images(cls, settings: BlurringSettings, sampling: EtaSteps, domain: Domain, batches: Batches) -> Blurring:
        laplacian = domain.laplacian
        return cls(settings, sampling, laplacian, measured(laplacian, settings.skip, batches))

    @classmethod
    def from_state(
        cls, settings: BlurringSettings, sampling: EtaSteps, domain: Domain, state: Mapping[str, Tensor]
    ) -> Blurring:
        return cls(settings, sampling, domain.laplacian, kept(state, settings.skip, domain.shape, {}))

    def centre_like(self, u_hat: Tensor) -> Tensor:
        """Mid-grey, which has only a coefficient of frequency 0."""
        return self._grey.like(u_hat)

    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        """x_K, a draw from N(0, I)."""
        return (1 + noise(self.K + 1)) / 2

    def prior_divergence(self, u_0: Tensor) -> Tensor:
        return from_normal(self, u_0)

    @classmethod
    def summary(cls, settings: BlurringSettings, sampling: EtaSteps, domain: Domain) -> str:
        widest = f"{settings.sigma_B_max:g} {domain.unit}s"
        return f"{cls.title}, K = {settings.K}, sigma_B up to {widest}, {settings.skip} skip"

    def level_words(self, k: int) -> str:
        if not k:
            return "sharp"
        return f"blurred over {float(self.sigma_B[k]):.1f} pixels, under noise of {2 * float(self._sigma.value[k]):.2f}"
