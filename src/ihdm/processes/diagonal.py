"""Processes that act on each coefficient of a basis separately, and their exact steps between any two levels.

u_hat_k = alpha_k u_hat_0 + sigma_k eps_hat, where alpha depends on level and frequency, and sigma on the level. There
is a Markov chain with these marginals. Given u_0, its step from level k back to any level j < k is known
(docs/exact-steps.md); for sampling, a prediction takes the place of u_0. Ordinary diffusion, inverse heat dissipation
and the processes between them differ only in alpha and sigma.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.basis import Basis
from ihdm.constant import rows
from ihdm.processes.process import Network, Process, Steps
from ihdm.settings import setting


@dataclass(frozen=True)
class EtaSteps(Steps):
    """How to sample by exact steps."""

    eta: float = setting(1.0, "fresh noise per step: 1 as in the posterior, 0 none", least=0, most=1)
    order: int = setting(1, "2: each step also uses the one before, which is better with few steps", least=1, most=2)


class Diagonal(Process):
    """Exact steps with eta in [0, 1], of first or second order.

    Means are c + alpha (u_hat_0 - c), with the centre c from `centre_like`, such as mid-grey in diffusion.
    """

    Sampling = EtaSteps

    basis: Basis

    def centre_like(self, u_hat: Tensor) -> Tensor | float:
        """c, to be added to coefficients such as u_hat."""
        return 0.0

    @abstractmethod
    def ratio(self, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """a = alpha_k / alpha_j, at most 1, for the levels of each sample; broadcasts with `like`."""

    @abstractmethod
    def sigma_at(self, k: Tensor, like: Tensor) -> Tensor:
        """sigma_k, broadcasts with `like`; level 0 is the image itself, without noise."""

    @abstractmethod
    def predict(self, network: Network, u_k: Tensor, u_hat_k: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """m_j: what u_hat_j is without its noise, as predicted from u_k."""

    def slope(self, i: Tensor, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """By what factor second order extrapolates the change of the prediction from level i to k.

        Half the ratio of the steps in log(alpha / sigma) (Lu et al. 2022, DPM-Solver++), times alpha_j / alpha_k. It is
        0 in the first step (i = k), in the last, and for coefficients that have not moved.
        """
        before, ahead = self._stride(i, k, like), self._stride(k, j, like)
        moved = (rows((i > k) & (j > 0), like) > 0) & (before > 0)
        return torch.where(moved, ahead / before / (2 * self.ratio(k, j, like)), 0.0)

    def _stride(self, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """How much larger log(alpha / sigma) is at level j than at level k."""
        return torch.log(self.sigma_at(k, like) / (self.ratio(k, j, like) * self.sigma_at(j, like)))

    def step(self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor) -> Tensor:
        """From level k to level j by the exact posterior (eta = 1), or with less fresh noise."""
        return self._moved(network, u_k, k, j, eps)[0]

    def _moved(
        self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor, *last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """u_j, and the prediction m_j. last: the level before k, and what was predicted there for level k."""
        k, j, u_hat = k.view(-1), j.view(-1), self.basis.to_spectrum(u_k)
        m_j = ahead = self.predict(network, u_k, u_hat, k, j)
        if last:
            i, of_k = last
            ahead = m_j + self.slope(i.view(-1), k, j, u_k) * (self._coarser(m_j, k, j) - of_k)
        return self.basis.from_spectrum(self.jump(u_hat, ahead, k, j, self.basis.to_spectrum(eps))), m_j

    def mean_of(self, u_hat_0: Tensor, k: Tensor) -> Tensor:
        """The state at level k without its noise, in the spectrum, of images with coefficients u_hat_0."""
        return self._coarser(u_hat_0, k, torch.zeros_like(k))

    def _coarser(self, m_j: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """m_k, from m_j."""
        centre = self.centre_like(m_j)
        return centre + self.ratio(k, j, m_j) * (m_j - centre)

    def jump(self, u_hat: Tensor, m_j: Tensor, k: Tensor, j: Tensor, eps_hat: Tensor) -> Tensor:
        """u_hat_j = m_j + sqrt(sigma_j^2 - s^2) (u_hat_k - m_k) / sigma_k + s eps_hat; m_k is m_j blurred to level k.

        s = eta (sigma_j / sigma_k) sqrt(sigma_k^2 - a^2 sigma_j^2), which for eta = 1 is that of the posterior. For any
        eta, u_j has the right marginal if u_k has, and if m is right.
        """
        a, sigma_k, sigma_j = self.ratio(k, j, u_hat), self.sigma_at(k, u_hat), self.sigma_at(j, u_hat)
        s = self.sampling.eta * sigma_j * (1 - (a * sigma_j / sigma_k).square()).clamp_min(0).sqrt()
        kept = (sigma_j.square() - s.square()).clamp_min(0).sqrt() / sigma_k
        return m_j + kept * (u_hat - self._coarser(m_j, k, j)) + s * eps_hat

    @property
    def remembers(self) -> bool:
        """Whether a step uses the prediction of the one before."""
        return bool(self.sampling.order == 2)

    def begin(self, u: Tensor) -> Tensor:
        """u; in second order stacked with room for the last prediction."""
        return torch.stack([u, torch.zeros_like(u)]) if self.remembers else u

    def shown(self, state: Tensor) -> Tensor:
        return state[0] if self.remembers else state

    def advance(self, network: Network, state: Tensor, k: Tensor, j: Tensor, i: Tensor, eps: Tensor) -> Tensor:
        """One step; second order extrapolates the change of the prediction since the last one, made at level i."""
        if not self.remembers:
            return self.step(network, state, k, j, eps)
        u_k, of_k = state
        return torch.stack(self._moved(network, u_k, k, j, eps, i, of_k))

    def sampling_words(self) -> str:
        order = ", second order" if self.remembers else ""
        return f"{len(self.levels()) - 1} steps, eta {self.sampling.eta:g}{order}"
