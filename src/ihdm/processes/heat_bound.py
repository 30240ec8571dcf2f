"""Bounds on the likelihood of images under the heat process: the paper's, and that of exact steps, which is lower.

Both are computed from the errors e_k = mu(u_k, k) - F(t_{k-1}) u_0, so one pass of the network serves both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ihdm.constant import Constant
from ihdm.errors import UsageError
from ihdm.likelihood import ROUNDING, Row, best_spread, discrete_nll, gaussian_kl, gaussian_nll, prior_term
from ihdm.processes.linear import LEAST_SIGMA
from ihdm.processes.process import Network
from ihdm.processes.spectrum import rotate

if TYPE_CHECKING:
    from ihdm.processes.inverse_heat import InverseHeat

DENSITY, BY_FREQUENCY, DISCRETE = "exact", "exact, L_0 by frequency", "exact, L_0 discretised"
KEPT = 64  # training images whose errors are kept to find the best spread of 8-bit values


class HeatBound:
    """The paper's bound (Eq. 5-10) for each delta_ratio, and three bounds of exact steps (docs/exact-steps.md).

    The three have the terms sum (1 - a^2) |e_hat|^2 / (2 sigma^2), a = alpha_k / alpha_{k-1}, for k > 1, and noise
    sigma in the prior. They differ in L_0 = -log p(u_0 | u_1): a Gaussian with one variance, or with one for each
    coefficient along the colour axes, both as densities of values in [0, 1]; or a Gaussian with one variance,
    discretised to 8-bit values. Variances are the best ones for training images.
    """

    def __init__(self, process: InverseHeat, delta_ratio: Sequence[float] | None = None):
        ratios = sorted([process.sampling.delta_ratio] if delta_ratio is None else delta_ratio)
        if process.sigma < LEAST_SIGMA:
            raise UsageError(f"a model trained without noise (process.sigma={process.sigma:g}) has no likelihood")
        if not ratios or not all(1e-3 <= ratio <= 1e3 for ratio in ratios):
            raise UsageError(f"delta ratios must be from 0.001 to 1000, not {', '.join(map(str, ratios)) or 'none'}")
        self.process, self.deltas = process, [ratio * process.sigma for ratio in ratios]
        self.rows = [Row(f"paper, delta/sigma {ratio:g}", ratio) for ratio in ratios]
        self.exact = process.filter is None  # the filter's blur is not diagonal in the cosine basis
        if self.exact:
            self.rows += [Row(DENSITY), Row(BY_FREQUENCY), Row(DISCRETE)]
        self.dimensions = 0
        self.spread = 1.0
        channels = process.prior.coefficients.shape[1]
        axes = process.spectra[0].axes if process.spectra else torch.eye(channels, dtype=torch.float64)
        self._axes, self._variance = Constant(axes), Constant(torch.ones(channels, *process.laplacian.grid))

    def fit(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Find the best variances for the last step."""
        count, squares, kept = 0, torch.zeros((), dtype=torch.float64), []
        for u_0, eps in batches:
            self.dimensions = u_0[0].numel()
            errors = self.process.errors(network, u_0, torch.ones(len(u_0), dtype=torch.long, device=u_0.device), eps)
            squares = squares + self._along_axes(errors).double().square().sum(0).cpu()
            if count < KEPT:
                kept.append(torch.stack([u_0, u_0 + errors])[:, : KEPT - count].double().cpu())
            count += len(u_0)
        variance = (squares / count).clamp_min(ROUNDING**2)
        self._variance = Constant(variance)
        u_0, mean = torch.cat(kept, dim=1)
        self.spread = best_spread(u_0, mean)

    def ask(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """|| e ||^2; the exact term; L_0 by frequency; L_0 of 8-bit values. The last two only count for k = 1."""
        errors = self.process.errors(network, u_0, k, eps)
        squared = errors.square().flatten(1).sum(1)
        if not self.exact:
            return squared[:, None]
        spectrum, variance = self.process.laplacian.to_spectrum(errors), self._variance.like(errors)
        by_frequency = rotate(spectrum, self._axes.like(errors)).square() / variance + (2 * math.pi * variance).log()
        terms = self.process.chain_term(spectrum, k), by_frequency / 2, discrete_nll(u_0, u_0 + errors, self.spread)
        return torch.stack([squared, *(term.flatten(1).sum(1) for term in terms)], dim=1)

    def terms(self, answers: Tensor, first: bool) -> Tensor:
        squared, sigma = answers[..., 0], self.process.sigma
        n = self.dimensions
        paper = [gaussian_nll(squared, n, d) if first else gaussian_kl(squared, n, sigma, d) for d in self.deltas]
        if not self.exact:
            return torch.stack(paper, -1)
        _, chain, by_frequency, discrete = answers.unbind(-1)
        density = gaussian_nll(squared, n, math.sqrt(float(self._variance.value.mean())))
        return torch.stack([*paper, *((density, by_frequency, discrete) if first else (chain,) * 3)], -1)

    def prior_terms(self, u_0: Tensor) -> Tensor:
        deltas = [*self.deltas, *([self.process.sigma] if self.exact else [])]
        found = prior_term(self.process.prior, u_0, self.process.sigma, deltas).T
        return torch.cat([found, found[:, -1:], found[:, -1:]], 1) if self.exact else found

    def _along_axes(self, errors: Tensor) -> Tensor:
        return rotate(self.process.laplacian.to_spectrum(errors), self._axes.like(errors))
