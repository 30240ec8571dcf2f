"""The bound on the likelihood of images under exact steps, for any process that acts on each coefficient separately."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ihdm.errors import UsageError
from ihdm.likelihood import Row, best_spread, discrete_nll
from ihdm.processes.diagonal import Diagonal
from ihdm.processes.process import Network

KEPT = 64  # training images that the spread of the last step is fitted to


class DiagonalBound:
    """The variational bound with the posterior's variance in every step (Ho et al. 2020, Eq. 5, 13).

    divergence: computes D_KL[q(u_K | u_0) || p(u_K)] for each image. The last step, to 8-bit values, is a Gaussian with
    a single spread: the given one, or the best for training images.
    """

    rows = [Row("the posterior's variance")]  # noqa: RUF012 -- never changed

    def __init__(self, process: Diagonal, divergence: Callable[[Tensor], Tensor], spread: float | None = None):
        self.process, self.divergence, self.spread = process.with_sampling(eta=1.0, order=1), divergence, spread

    def fit(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Find the best spread, if none is given."""
        kept: list[Tensor] = []
        for u_0, eps in batches if self.spread is None else ():
            first = torch.ones(len(u_0), dtype=torch.long, device=u_0.device)
            kept.append(torch.stack([u_0, self._last(network, self.process.noised(u_0, first, eps))]).double().cpu())
            if sum(pair.shape[1] for pair in kept) >= KEPT:
                break
        if kept:
            self.spread = best_spread(*torch.cat(kept, dim=1)[:, :KEPT])

    def ask(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """k > 1: D_KL[q(u_{k-1} | u_k, u_0) || p(u_{k-1} | u_k)]. k = 1: -log of the probability of 8-bit values.

        The posterior's variance is the share 1 - (a sigma_j / sigma_k)^2 of sigma_j^2, and its mean has the same share
        of an error of m_j: what neither blur nor noise changes in a step is known, whatever is predicted.
        """
        process, j = self.process, k - 1
        u_k = process.noised(u_0, k, eps)
        guess = process.predict(network, u_k, process.basis.to_spectrum(u_k), k, j)
        error = guess - process.mean_of(process.basis.to_spectrum(u_0), j)
        sigma_k, sigma_j = process.sigma_at(k, u_0), process.sigma_at(j, u_0)
        share = 1 - (process.ratio(k, j, u_0) * sigma_j / sigma_k).square()
        first = (k == 1).view(-1, *[1] * (u_0.ndim - 1))
        divergence = share * (error / torch.where(first, 1.0, sigma_j)).square() / 2
        spread = sigma_k if self.spread is None else torch.full_like(sigma_k, self.spread)
        image = process.basis.from_spectrum(guess)
        return torch.where(first, discrete_nll(u_0, image, spread), divergence).flatten(1).sum(1, keepdim=True)

    def _last(self, network: Network, u_1: Tensor) -> Tensor:
        """The image that the last step leads to."""
        one = torch.ones(len(u_1), dtype=torch.long, device=u_1.device)
        return self.process.step(network, u_1, one, 0 * one, torch.zeros_like(u_1))

    def terms(self, answers: Tensor, first: bool) -> Tensor:
        return answers

    def prior_terms(self, u_0: Tensor) -> Tensor:
        return self.divergence(u_0)[:, None]


def from_normal(process: Diagonal, u_0: Tensor) -> Tensor:
    """D_KL[q(x_K | x_0) || N(0, I)], x = 2 u - 1, for each image."""
    level, u_hat = torch.full((len(u_0),), process.K, device=u_0.device), process.basis.to_spectrum(u_0)
    mean = 2 * (process.mean_of(u_hat, level) - process.centre_like(u_hat))
    variance = (2 * process.sigma_at(level, u_hat)).square()
    return ((mean.square() + variance - 1 - variance.log()) / 2).flatten(1).sum(1)


def nothing_to_choose(process: Diagonal, options: Mapping[str, Any]) -> None:
    """Refuse options for a bound that takes none."""
    if options:
        raise UsageError(f"the bound of {process.title} uses the posterior's noise: leave out {', '.join(options)}")
