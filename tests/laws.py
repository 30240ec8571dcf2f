"""Gaussian laws of images, for which every process has a best network in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ihdm.heat import GridLaplacian
from ihdm.prior import Prior
from ihdm.processes import DDPM, IdentitySkip, InverseHeat, LinearPredictor, LinearSkip, Process, Spectrum
from ihdm.processes.blurring import Blurring, BlurringSettings
from ihdm.processes.cold import Cold, ColdSettings
from ihdm.processes.ddpm import DiffusionSettings
from ihdm.processes.growing import GrowingHeat, GrowingSettings
from ihdm.processes.noise_predicting import NoisePredicting
from ihdm.processes.soft import Soft, SoftSettings
from ihdm.schedule import Schedule

GRID, CHANNELS = (4, 3), 2
SHAPE = (CHANNELS, *GRID)
LAPLACIAN = GridLaplacian(GRID)


def network(x: Tensor, k: Tensor) -> Tensor:
    """Some network, which is right about nothing, and differs by level, pixel and state."""
    return 0.3 * x.roll(1, -1) - 0.1 * x.square() + k.view(-1, 1, 1, 1) / 20


def spectrum() -> Spectrum:
    """Mean, colour axes and power: low frequencies strong, high ones weak, the mean not that of any channel."""
    generator = torch.Generator().manual_seed(3)
    axes, _ = torch.linalg.qr(torch.randn(CHANNELS, CHANNELS, dtype=torch.float64, generator=generator))
    power = 0.04 * torch.exp(0.3 * LAPLACIAN.eigenvalues).expand(SHAPE) * torch.tensor([1.0, 0.3]).view(-1, 1, 1)
    mean = 0.1 * torch.randn(SHAPE, dtype=torch.float64, generator=generator)
    mean[:, 0, 0] = 0.5 * (GRID[0] * GRID[1]) ** 0.5
    return Spectrum(mean, axes, power.clone())


@dataclass(frozen=True)
class Case:
    """A process, the best network for the law, and q(u_k | u_0) by its definition.

    Coefficients are multiplied by gain(k) as seen from `centre`, and get white noise of deviation sigma(k).
    """

    process: Process
    network: Callable[[Tensor, Tensor], Tensor]
    gain: Callable[[int], Tensor]
    sigma: Callable[[int], float]
    centre: float | Tensor = 0.0

    def mean(self, u_0: Tensor, k: int) -> Tensor:
        """E[u_k | u_0]."""
        return self.centre + LAPLACIAN.from_spectrum(self.gain(k) * LAPLACIAN.to_spectrum(u_0 - self.centre))

    def start(self, n: int, seed: int = 0) -> Tensor:
        """Draws of u_K as the forward process makes them from images of the law."""
        return self.process.noised(draws(n, seed), torch.full((n,), self.process.K), white(n, seed + 1))

    def coordinates(self, u: Tensor, k: int) -> Tensor:
        """Coefficients of states of level k along the colour axes, less their means: independent, see `variance`."""
        mean = self.mean(LAPLACIAN.from_spectrum(spectrum().mean[None]), k)
        return torch.einsum("nc...,cd->nd...", LAPLACIAN.to_spectrum(u - mean), spectrum().axes)

    def coordinates_of_images(self, u_0: Tensor) -> Tensor:
        """The same of images."""
        return torch.einsum("nc...,cd->nd...", LAPLACIAN.to_spectrum(u_0) - spectrum().mean, spectrum().axes)

    def variance(self, k: int) -> Tensor:
        """Of the coordinates of u_k."""
        return self.gain(k).square() * spectrum().power + self.sigma(k) ** 2

    def image(self, u: Tensor, k: int) -> Tensor:
        """E[u_0 | u_k]; of coefficients of which u_k has nothing, not even noise, their mean."""
        share = torch.nan_to_num(self.gain(k) * spectrum().power / self.variance(k))
        return LAPLACIAN.from_spectrum(spectrum().mean[None]) + from_coordinates(share * self.coordinates(u, k))


def draws(n: int, seed: int = 0) -> Tensor:
    """Images of the law."""
    law = spectrum()
    return LAPLACIAN.from_spectrum(law.mean[None]) + from_coordinates(law.power.sqrt() * white(n, seed))


def from_coordinates(coordinates: Tensor) -> Tensor:
    """Images with given coefficients along the colour axes."""
    return LAPLACIAN.from_spectrum(torch.einsum("ndij,cd->ncij", coordinates, spectrum().axes))


def white(n: int, seed: int) -> Tensor:
    return torch.randn(n, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def heat(skip: str, K: int = 100, sigma: float = 0.02) -> Case:
    """Inverse heat dissipation; with the linear skip the best network adds nothing."""
    schedule = Schedule(K, 3.0, 0.1)
    linear = LinearSkip(LinearPredictor(LAPLACIAN, schedule, sigma, spectrum()))
    prior = Prior.from_images(LAPLACIAN, float(schedule.t[-1]), [draws(500, 9)])
    process = InverseHeat(
        LAPLACIAN, schedule, sigma, linear if skip == "linear" else IdentitySkip(), prior=prior, spectra=(spectrum(),)
    )
    network = (lambda u, k: 0 * u) if skip == "linear" else (lambda u, k: linear.predict(u, k) - u)
    return Case(process, network, lambda k: torch.exp(schedule.t[k] * LAPLACIAN.eigenvalues), lambda k: sigma)


def diffusion(K: int = 100) -> Case:
    """DDPM, which predicts E[eps | x_k]: the noise's share of the deviation of x_k = 2 u_k - 1 from its mean."""
    process = DDPM(DiffusionSettings(K, "cosine"), DDPM.Sampling(clip=False))
    alpha, sigma = process.alpha_bar.sqrt(), (1 - process.alpha_bar).sqrt() / 2

    def network(x: Tensor, k: Tensor) -> Tensor:
        level, u = int(k[0]), (x + 1) / 2
        eps = sigma[level] * case.coordinates(u, level) / case.variance(level)
        return from_coordinates(eps)

    case = Case(process, network, lambda k: alpha[k], lambda k: float(sigma[k]), centre=0.5)
    return case


def noise_predicting(process: NoisePredicting, linear: bool, centre: float = 0.0) -> Case:
    """Processes that predict E[eps | u_k]; with the linear skip nothing is left for the network."""
    alpha, sigma = process._alpha.value, process._sigma.value

    def network(x: Tensor, k: Tensor) -> Tensor:
        level = int(k[0])
        if linear:
            return 0 * x
        u = (x * max(1.0, 2 * float(sigma[level])) + 1) / 2
        return from_coordinates(sigma[level] * case.coordinates(u, level) / case.variance(level))

    case = Case(process, network, lambda k: alpha[k], lambda k: float(sigma[k]), centre)
    return case


def growing(skip: str, K: int = 100, growth: float = 1.0) -> Case:
    return noise_predicting(
        with_growing_noise(GrowingHeat, GrowingSettings(K, 0.02, growth, 0.1, 3.0, skip)), skip == "linear"
    )


def with_growing_noise(kind: type[GrowingHeat], settings: GrowingSettings) -> GrowingHeat:
    prior = Prior.from_images(LAPLACIAN, float(settings.schedule(LAPLACIAN).t[-1]), [draws(500, 9)])
    return kind(settings, kind.Sampling(), prior, spectrum() if settings.skip == "linear" else None)


def soft(skip: str, K: int = 100, growth: float = 1.0) -> Case:
    """Soft diffusion, which predicts what is to be added to u_k for E[u_0 | u_k]."""
    process = with_growing_noise(Soft, SoftSettings(K, 0.02, growth, 0.1, 3.0, skip))
    case = noise_predicting(process, skip == "linear")

    def network(x: Tensor, k: Tensor) -> Tensor:
        level = int(k[0])
        u = (x * max(1.0, 2 * case.sigma(level)) + 1) / 2
        return case.image(u, level) - u

    return case if skip == "linear" else replace(case, network=network)


def blurring(skip: str, K: int = 100) -> Case:
    known = spectrum() if skip == "linear" else None
    process = Blurring(BlurringSettings(K, 2.0, skip=skip), Blurring.Sampling(), LAPLACIAN, known)
    return noise_predicting(process, skip == "linear", centre=0.5)


def cold(K: int = 100) -> Case:
    """Cold diffusion: without noise all is known until the last level, of which the mean image is the median."""
    process = Cold(ColdSettings(K, 0.1, 1.0), Cold.Sampling(), LAPLACIAN, torch.full((2,), 0.5), torch.eye(2))
    alpha = process._alpha.value
    case = Case(process, lambda x, k: 2 * case.image((x + 1) / 2, int(k[0])) - 1, lambda k: alpha[k], lambda k: 0.0)
    return case


CASES: dict[str, dict[str, Callable[[], Case]]] = {  # by the names of the registry
    "heat": {"linear skip": lambda: heat("linear"), "identity skip": lambda: heat("identity")},
    "ddpm": {"cosine": diffusion},
    "growing": {
        "plain": lambda: growing("plain"),
        "linear skip": lambda: growing("linear"),
        "linear skip, noise that does not grow": lambda: growing("linear", growth=0.0),
    },
    "blurring": {"plain": lambda: blurring("plain"), "linear skip": lambda: blurring("linear")},
    "soft": {"plain": lambda: soft("plain"), "linear skip": lambda: soft("linear")},
    "cold": {"without noise": cold},
}
WITHOUT_NOISE = {"cold"}  # what is said of noise, and of samples that have the law of the data, is not said of these
