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

SHORT = 0.01  # steps in which states change by less


@dataclass(frozen=True)
class EtaSteps(Steps):
    """How to sample by exact steps."""

    eta: float = setting(1.0, "fresh noise per step: 1 as in the posterior, 0 none", least=0, most=1)
    order: int = setting(1, "2: each step also uses the one before, which is better with few steps", least=1, most=2)
    corrected: bool = setting(False, "each step corrects the one before: usually better with few steps, and as fast")


class Diagonal(Process):
    """Exact steps with eta in [0, 1], of first or second order, corrected or not.

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

    def correction(self, i: Tensor, k: Tensor, like: Tensor) -> Tensor:
        """How much of the change that its prediction made in a step from level i to k that step should have had.

        A step takes its prediction for constant; now that the next one is known, it is taken for linear in
        log(alpha / sigma). A share r = a sigma_k / sigma_i of the state is left in a step without fresh noise, less in
        others. The prediction has the weight 1 - r, and its change 1 + (1 - r) / log r: half of 1 - r in short steps,
        all of it in long ones. (Zhao et al. 2023, UniPC, of which this is the simplest corrector.)
        """
        left = self.ratio(i, k, like) * self.kept(i, k, like)[0]
        length = -left.log()
        short = length / 2 - length.square() / 6  # where 1 - (1 - left) / length would be lost in rounding
        return torch.where(length < SHORT, short, 1 - (1 - left) / length)

    def step(self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor) -> Tensor:
        """From level k to level j by the exact posterior (eta = 1), or with less fresh noise."""
        k, j, u_hat = k.view(-1), j.view(-1), self.basis.to_spectrum(u_k)
        m_j = self.predict(network, u_k, u_hat, k, j)
        return self.basis.from_spectrum(self.jump(u_hat, m_j, k, j, self.basis.to_spectrum(eps)))

    def mean_of(self, u_hat_0: Tensor, k: Tensor) -> Tensor:
        """The state at level k without its noise, in the spectrum, of images with coefficients u_hat_0."""
        return self._coarser(u_hat_0, k, torch.zeros_like(k))

    def _coarser(self, m_j: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """m_k, from m_j."""
        centre = self.centre_like(m_j)
        return centre + self.ratio(k, j, m_j) * (m_j - centre)

    def jump(self, u_hat: Tensor, m_j: Tensor, k: Tensor, j: Tensor, eps_hat: Tensor) -> Tensor:
        """u_hat_j = m_j + sqrt(sigma_j^2 - s^2) (u_hat_k - m_k) / sigma_k + s eps_hat; m_k is m_j blurred to level k.

        For any eta, u_j has the right marginal if u_k has, and if m is right.
        """
        kept, s = self.kept(k, j, u_hat)
        return m_j + kept * (u_hat - self._coarser(m_j, k, j)) + s * eps_hat

    def kept(self, k: Tensor, j: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(sigma_j^2 - s^2) / sigma_k, how much of the noise of level k is kept at level j, and s, what is added.

        s = eta (sigma_j / sigma_k) sqrt(sigma_k^2 - a^2 sigma_j^2), which for eta = 1 is that of the posterior.
        """
        a, sigma_k, sigma_j = self.ratio(k, j, like), self.sigma_at(k, like), self.sigma_at(j, like)
        s = self.sampling.eta * sigma_j * (1 - (a * sigma_j / sigma_k).square()).clamp_min(0).sqrt()
        return (sigma_j.square() - s.square()).clamp_min(0).sqrt() / sigma_k, s

    @property
    def noisy(self) -> bool:
        return bool(self.sampling.eta > 0)

    @property
    def remembers(self) -> bool:
        """Whether a step uses what the one before predicted."""
        return bool(self.sampling.order == 2 or self.sampling.corrected)

    def begin(self, u: Tensor) -> Tensor:
        """u, or what `advance` returns, as if nothing had been predicted before."""
        if not self.remembers:
            return u
        plain = [self.basis.to_spectrum(u)] if self.sampling.corrected else []
        return torch.stack([u, torch.zeros_like(u), *plain])

    def shown(self, state: Tensor) -> Tensor:
        return state[0] if self.remembers else state

    def advance(self, network: Network, state: Tensor, k: Tensor, j: Tensor, i: Tensor, eps: Tensor) -> Tensor:
        """One step, with the change of the prediction since the last one, made at level i.

        Second order extrapolates it to level j. A corrected chain steps on from where the last step should have led.
        Returns u_j, the prediction m_j and, in a corrected chain, u_hat_j without extrapolation.
        """
        if not self.remembers:
            return self.step(network, state, k, j, eps)
        u_k, of_k, *plain = state
        k, j, i, u_hat = k.view(-1), j.view(-1), i.view(-1), self.basis.to_spectrum(u_k)
        m_j = ahead = self.predict(network, u_k, u_hat, k, j)
        change = self._coarser(m_j, k, j) - of_k
        if self.sampling.order == 2:
            ahead = m_j + self.slope(i, k, j, u_k) * change
        if plain:
            u_hat = plain[0] + self.correction(i, k, u_k) * change
        eps_hat = self.basis.to_spectrum(eps)
        u_hat_j, *plain = (self.jump(u_hat, m, k, j, eps_hat) for m in (ahead, m_j)[: 1 + len(plain)])
        return torch.stack([self.basis.from_spectrum(u_hat_j), m_j, *plain])

    def sampling_words(self) -> str:
        return f"{len(self.levels()) - 1} steps, eta {self.sampling.eta:g}{self.refinements()}"

    def refinements(self) -> str:
        """Of its steps, in words that follow others."""
        own = {", second order": self.sampling.order == 2, ", corrected": self.sampling.corrected}
        return "".join(words for words, have in own.items() if have)
