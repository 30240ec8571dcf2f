"""Processes between inverse heat dissipation and diffusion: blur and noise, and a network that predicts the noise.

In the cosine basis u_hat_k = c + alpha_k (u_hat_0 - c) + sigma_k eps_hat, where alpha depends on level and frequency
and sigma on the level. Blur and noise grow together; c is what is left of an image at the end.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.constant import Constant, rows
from ihdm.processes.diagonal import Diagonal, EtaSteps
from ihdm.processes.diagonal_bound import DiagonalBound, nothing_to_choose
from ihdm.processes.process import Batches, Network, fitting
from ihdm.processes.spectrum import SPECTRUM_MOST, Spectrum, rotate

MOST_AHEAD = math.e  # the most by which second order amplifies a change of the prediction
FLOOR = 0.001  # the least that blur leaves of any frequency, so that there is no division by zero

Skip = Literal["plain", "linear"]


class NoisePredicting(Diagonal):
    """A process defined by its tables of alpha, (K + 1, *grid), and sigma, (K + 1,).

    With the linear skip the network's answer is added to the best linear prediction of eps, in units of the error of
    that prediction, sqrt(P alpha^2 / (P alpha^2 + sigma^2)) for a coefficient of power P. Where a frequency is nothing
    but noise, eps is then known without the network, whose mistakes there would be carried along and grow.
    """

    Sampling = EtaSteps

    def __init__(
        self, laplacian: Laplacian, alpha: Tensor, sigma: Tensor, sampling: EtaSteps, spectrum: Spectrum | None
    ):
        self.basis = self.laplacian = laplacian
        self.K, self.sampling, self.spectrum = len(sigma) - 1, sampling, spectrum
        self._alpha, self._sigma = Constant(alpha), Constant(sigma)
        if spectrum is not None:
            self._mean, self._axes, self._power = map(Constant, (spectrum.mean, spectrum.axes, spectrum.power))

    # Forward, and what the network learns

    def alpha_at(self, k: Tensor, like: Tensor) -> Tensor:
        return self._alpha.like(like)[k.view(-1)][:, None]

    def sigma_at(self, k: Tensor, like: Tensor) -> Tensor:
        return rows(self._sigma.like(like)[k], like)

    def ratio(self, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        return self.alpha_at(k, like) / self.alpha_at(j, like)

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """u_k, a draw from q made from the noise eps."""
        u_hat = self.basis.to_spectrum(u_0)
        return self.basis.from_spectrum(self.mean_of(u_hat, k)) + self.sigma_at(k, u_0) * eps

    def loss(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The mean squared error of the predicted noise, for each sample."""
        u_k = self.noised(u_0, k, eps)
        found = self.basis.from_spectrum(self.noise_of(network, u_k, self.basis.to_spectrum(u_k), k))
        return (found - eps).square().flatten(1).mean(1)

    def noise_of(self, network: Network, u_k: Tensor, u_hat_k: Tensor, k: Tensor) -> Tensor:
        """E[eps | u_k], in the spectrum."""
        answer, sigma = self.answer(network, u_k, k), self.sigma_at(k, u_k)
        if self.spectrum is None:
            return answer
        axes, power = self._axes.like(u_k), self._power.like(u_k)
        deviation = rotate(u_hat_k - self.mean_of(self._mean.like(u_k)[None], k), axes)
        signal = power * self.alpha_at(k, u_k).square()
        share = signal / (signal + sigma.square())  # the signal's share of the variance
        eps = (1 - share) * deviation / sigma + share.sqrt() * rotate(answer, axes)
        return rotate(eps, axes.mT)

    def answer(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """The network's answer, in the spectrum. It sees x_k = 2 u_k - 1, scaled down where the noise is large."""
        seen = (2 * u_k - 1) / (2 * self.sigma_at(k, u_k)).clamp_min(1)
        return self.basis.to_spectrum(network(seen, k.expand(u_k.shape[0])))

    def signal_to_noise(self, k: int) -> Tensor | None:
        spectrum, sigma = self.spectrum, float(self._sigma.value[k])
        return None if spectrum is None else spectrum.signal_to_noise(self._alpha.value[k], sigma)

    # Back

    def predict(self, network: Network, u_k: Tensor, u_hat_k: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """m_j, from the image that the predicted noise implies."""
        signal = u_hat_k - self.sigma_at(k, u_k) * self.noise_of(network, u_k, u_hat_k, k)
        centre = self.centre_like(u_hat_k)
        return centre + (signal - centre) / self.ratio(k, j, u_k)

    def slope(self, i: Tensor, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """As in `Diagonal`, but with alpha_j / alpha_k limited: more would amplify mistakes of the prediction."""
        ratio = self.ratio(k, j, like)
        return super().slope(i, k, j, like) * ratio * ratio.reciprocal().clamp_max(MOST_AHEAD)

    @abstractmethod
    def prior_divergence(self, u_0: Tensor) -> Tensor:
        """D_KL[q(u_K | u_0) || p(u_K)], for each image."""

    def bounding(self, **options: Any) -> DiagonalBound:
        nothing_to_choose(self, options)
        return DiagonalBound(self, self.prior_divergence)

    # Its state

    def state(self) -> dict[str, Tensor]:
        return self.spectrum.state() if self.spectrum else {}


def floored(decay: Tensor) -> Tensor:
    """What blur leaves of each frequency, but no less than FLOOR."""
    return (1 - FLOOR) * decay + FLOOR


def measured(laplacian: Laplacian, skip: Skip, batches: Batches) -> Spectrum | None:
    """The spectrum of training images, if it is needed."""
    if skip == "plain":
        return None
    return Spectrum.from_images(laplacian, batches(SPECTRUM_MOST, "measuring the spectrum"))


def kept(
    state: Mapping[str, Tensor], skip: Skip, shape: tuple[int, ...], others: Mapping[str, tuple[int | None, ...]]
) -> Spectrum | None:
    """The spectrum as it was saved; ValueError if the state does not have exactly its tensors and the others."""
    shapes = Spectrum.shapes(shape) if skip == "linear" else {}
    fitting(state, {**shapes, **others})
    return Spectrum.from_state(state) if shapes else None
