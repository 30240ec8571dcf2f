"""How the reverse mean mu is made of the network's output: what the network does not have to learn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ihdm.heat import Constant, GridLaplacian
from ihdm.schedule import Schedule

if TYPE_CHECKING:
    from ihdm.processes import Network


class Skip(Protocol):
    """mu(u_k, k) from a network."""

    def __call__(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor: ...


class IdentitySkip:
    """mu = u_k + f(u_k, k), the paper's parametrisation (section 2.1)."""

    def __call__(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        return u_k + network(u_k, k)


@dataclass(frozen=True)
class Spectrum:
    """Second-order statistics of a data set: all that a linear predictor can know of it.

    mean: the mean image's cosine coefficients (C, *grid); axes: principal colour axes, in columns (C, C);
    power: variance of each coefficient along each axis (C, *grid). All float64.
    """

    mean: Tensor
    axes: Tensor
    power: Tensor

    @classmethod
    def from_images(cls, laplacian: GridLaplacian, batches: Iterable[Tensor]) -> Spectrum:
        """Measure images in [0, 1], given in batches (B, C, *grid), in one pass."""
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for u_0 in batches:
            u_hat = laplacian.to_spectrum(u_0.double())
            count += len(u_hat)
            total = total + u_hat.sum(0).cpu()
            squares = squares + torch.stack([(u_hat * u_hat[:, c, None]).sum(0) for c in range(u_hat.shape[1])]).cpu()
        mean = total / count
        covariance = squares / count - mean[:, None] * mean[None]
        _, axes = torch.linalg.eigh(covariance.flatten(2).sum(-1))
        power = torch.einsum("ce,cd...,de->e...", axes, covariance, axes).clamp_min(0)
        return cls(mean, axes, power)


class LinearSkip:
    """mu = E[u_prev | u_k] of the best linear predictor + its rms error c_k x f(u_k, k).

    Take the cosine coefficients, along the principal colour axes, as independent with the data set's mean m and
    power P. With E_k = exp(t_k eigenvalue) for each, the predictor of u_prev is
    E_{k-1} m + G_k (u_hat_k - E_k m), with G_k = P E_{k-1} E_k / (P E_k^2 + sigma^2),
    and its mean squared error is c_k^2 = mean of P E_{k-1}^2 sigma^2 / (P E_k^2 + sigma^2) over coefficients.
    """

    def __init__(self, laplacian: GridLaplacian, schedule: Schedule, sigma: float, spectrum: Spectrum):
        if sigma <= 0:
            raise ValueError("the linear skip needs noise (sigma > 0); without it use process.skip=identity")
        self.laplacian = laplacian
        self.sigma = sigma
        self.spectrum = spectrum
        self._t = Constant(schedule.t)
        self._mean, self._axes, self._power = map(Constant, (spectrum.mean, spectrum.axes, spectrum.power))
        self._scale = Constant(
            torch.tensor([0.0, *map(self._rms_error, schedule.t[:-1], schedule.t[1:])], dtype=torch.float64)
        )

    def __call__(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        scale = self._scale.like(u_k)[k].view(-1, *[1] * (u_k.ndim - 1))
        return self.predict(u_k, k) + scale * network(u_k, k)

    def predict(self, u_k: Tensor, k: Tensor) -> Tensor:
        """The best linear prediction of u_prev."""
        t, mean, axes, power = (constant.like(u_k) for constant in (self._t, self._mean, self._axes, self._power))
        coarse, fine = self.laplacian.decay(t[k], u_k), self.laplacian.decay(t[k - 1], u_k)
        gain = power * fine * coarse / (power * coarse.square() + self.sigma**2)
        deviation = rotate(self.laplacian.to_spectrum(u_k) - coarse * mean, axes)
        return self.laplacian.from_spectrum(fine * mean + rotate(gain * deviation, axes.mT))

    def _rms_error(self, t_fine: Tensor, t_coarse: Tensor) -> float:
        """c_k, from the times of levels k - 1 and k."""
        fine, coarse = (torch.exp(t * self.laplacian.eigenvalues) for t in (t_fine, t_coarse))
        power, variance = self.spectrum.power, self.sigma**2
        return float((power * fine**2 * variance / (power * coarse**2 + variance)).mean().sqrt())


def rotate(u_hat: Tensor, axes: Tensor) -> Tensor:
    """Coordinates along the columns of `axes` instead of the colour channels."""
    return torch.einsum("nc...,cd->nd...", u_hat, axes)
