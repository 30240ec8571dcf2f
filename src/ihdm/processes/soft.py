"""Soft diffusion (Daras et al. 2022): the network predicts an image, which the loss compares after blurring it again.

Images are blurred by C_k, under noise that grows with the blur: u_k = C_k u_0 + sigma_k eps. Three things are as
published: the loss || C_k (x - u_0) ||^2 (soft score matching), a network that predicts what is to be added to u_k, and
the momentum sampler. The weight of a level, 1 / sigma_k^2, is that of a public port. The rest is shared with
growing.py: blur by the heat equation (theirs is a Gaussian filter) with its floor; how noise grows with it; the start,
a blurred training image under noise; exact steps with their bound; and the linear skip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ihdm.processes.diagonal import EtaSteps
from ihdm.processes.growing import GrowingHeat, GrowingSettings
from ihdm.processes.noise_predicting import Skip
from ihdm.processes.process import Network
from ihdm.settings import setting


@dataclass(frozen=True)
class SoftSettings(GrowingSettings):
    """The forward process, and what the network learns."""

    skip: Skip = setting(
        "plain", "the network's output is added to the state, as published, or to the best linear prediction"
    )


@dataclass(frozen=True)
class SoftSampling(EtaSteps):
    """The momentum sampler, or exact steps, with eta and order."""

    sampler: Literal["momentum", "exact"] = setting("momentum", "the published steps, or exact posterior steps")


class Soft(GrowingHeat):
    """The loss is || C_k (x - u_0) ||^2 / sigma_k^2, x = u_k + f(u_k, k): the mean squared error of the noise in u_k.

    That is the loss of growing.py, whose network answers with the noise itself; with the linear skip the two networks
    learn the same.
    """

    Settings = SoftSettings
    Sampling = SoftSampling
    title = "soft diffusion"
    samplers = {"momentum": (), "exact": ("eta", "order", "corrected")}  # noqa: RUF012 -- never changed
    method = "Daras et al., *Soft Diffusion: Score Matching for General Corruptions*, TMLR 2023"

    def noise_of(self, network: Network, u_k: Tensor, u_hat_k: Tensor, k: Tensor) -> Tensor:
        """(u_k - C_k x) / sigma_k, where x is the image that the network predicts."""
        if self.spectrum is not None:
            return super().noise_of(network, u_k, u_hat_k, k)
        x_hat = u_hat_k + self.answer(network, u_k, k)
        return (u_hat_k - self.mean_of(x_hat, k)) / self.sigma_at(k, u_k)

    def jump(self, u_hat: Tensor, m_j: Tensor, k: Tensor, j: Tensor, eps_hat: Tensor) -> Tensor:
        """The momentum sampler (their Alg. 2): a step along the score, plus the change of C x from k to j; m_j = C_j x.

        If the image is known, u_j has the variance sigma_j^2 + (sigma_k^2 - sigma_j^2)^2 / sigma_k^2, which is right
        in the limit of many steps. Noise is added for the noise that is removed, none for the blur; if noise does not
        grow with the level, this is the exact step with eta = 0.
        """
        if not self.momentum:
            return super().jump(u_hat, m_j, k, j, eps_hat)
        m_k, variance = self._coarser(m_j, k, j), self.sigma_at(k, u_hat).square()
        less = variance - self.sigma_at(j, u_hat).square()
        score = (m_k - u_hat) / variance
        return u_hat + less * score + less.sqrt() * eps_hat + m_j - m_k

    @property
    def momentum(self) -> bool:
        return bool(self.sampling.sampler == "momentum")

    @property
    def noisy(self) -> bool:
        return self.momentum or super().noisy

    @property
    def remembers(self) -> bool:
        return super().remembers and not self.momentum

    def sampling_words(self) -> str:
        return f"{len(self.levels()) - 1} steps with momentum" if self.momentum else super().sampling_words()
