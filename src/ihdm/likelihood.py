"""The bound on the negative log-likelihood of images (Eq. 5-10, App. A.2-A.3), in nats, for each image.

-log p(u_0) <= L_K + L_{K-1} + ... + L_1 + L_0. A process computes its own terms (`Bounding`); one pass of the network
at each level serves all its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ihdm.noise import Purpose, permutation
from ihdm.pixels import ROUNDING
from ihdm.prior import Prior

if TYPE_CHECKING:
    from ihdm.processes.process import Network

BLOCK = 2**22  # distances held in memory at a time
BITS = 8  # of a pixel
HALF_STEP = 1 / 510  # half the distance between two 8-bit values in [0, 1]
LEAST = 1e-12  # the least probability that an 8-bit value is given
SPREADS = 64  # compared to find the best, within a factor of 8 around the root mean square error


@dataclass(frozen=True)
class Row:
    """The name of a bound; delta_ratio: that of its steps, if they are the paper's."""

    name: str
    delta_ratio: float | None = None


@dataclass(frozen=True)
class Bound:
    """An upper bound on -log p(u_0), in nats, one number for each image.

    chain: the sum L_1 + ... + L_{K-1}, or an estimate of it from some of the levels.
    """

    row: Row
    L_0: Tensor
    chain: Tensor
    L_K: Tensor

    @property
    def total(self) -> Tensor:
        return self.L_0 + self.chain + self.L_K


class Bounding(Protocol):
    """What a process needs to bound likelihoods, in as many ways as there are rows."""

    rows: list[Row]

    def fit(self, network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Learn what the last step needs, such as its variance, from training images and noise."""

    def ask(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """What each image's terms at level k are computed from, (B, some numbers)."""

    def terms(self, answers: Tensor, first: bool) -> Tensor:
        """L_{k-1}, (..., rows), from (..., some numbers); first: whether k = 1."""

    def prior_terms(self, u_0: Tensor) -> Tensor:
        """L_K, (B, rows), float64."""


def gaussian_kl(squared: Tensor, dimensions: int, sigma: float, delta: float) -> Tensor:
    """D_KL[N(a, sigma^2 I) || N(b, delta^2 I)] with squared = || a - b ||^2: L_{k-1} of Eq. (9), and App. A.3."""
    ratio = (sigma / delta) ** 2
    return dimensions / 2 * (ratio - 1 - math.log(ratio)) + squared / (2 * delta**2)


def gaussian_nll(squared: Tensor, dimensions: int, delta: float) -> Tensor:
    """-log N(a | b, delta^2 I) with squared = || a - b ||^2: L_0 of Eq. (10)."""
    return squared / (2 * delta**2) + dimensions * math.log(delta * math.sqrt(2 * math.pi))


def prior_term(prior: Prior, u_0: Tensor, sigma: float, deltas: Sequence[float], alpha: Tensor | None = None) -> Tensor:
    """An upper bound on L_K = D_KL[q(u_K | u_0) || p(u_K)], (deltas, images), float64 (App. A.3).

    With the best phi it is log N_T - log sum_i exp(-D_KL[q(u_K | u_0) || N(u_K^i, delta^2 I)]). Distances between
    images are those between the coefficients that the prior keeps; few are held at a time. alpha: what q leaves of each
    coefficient, (*grid), if that is more than the prior's blur leaves; then the other coefficients count too.
    """
    few = u_0.split(max(1, BLOCK // math.prod(u_0.shape[1:])))
    places, beyond = (torch.cat(parts) for parts in zip(*(_places(prior, some, alpha) for some in few)))
    bank = prior.coefficients.flatten(1).to(places)
    centre = bank.mean(0)  # does not change distances, only their rounding
    places, bank = places - centre, bank - centre
    nearness = places.new_full((len(deltas), len(places)), -math.inf)
    for block in bank.split(max(1, BLOCK // max(1, len(places)))):
        squared = places.square().sum(1)[:, None] + block.square().sum(1) - 2 * places @ block.T
        for row, delta in zip(nearness, deltas):
            row.copy_(torch.logaddexp(row, torch.logsumexp(squared / (-2 * delta**2), 1)))
    nearness -= torch.stack([beyond / (2 * delta**2) for delta in deltas])
    common = [float(gaussian_kl(torch.zeros(()), math.prod(u_0.shape[1:]), sigma, delta)) for delta in deltas]
    return nearness.new_tensor(common)[:, None] + math.log(len(prior)) - nearness


def _places(prior: Prior, u_0: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where images are at level K: the coefficients that the prior keeps, and the sum of the squares of the others."""
    if alpha is None:
        return prior.place(u_0).flatten(1), torch.zeros(len(u_0), dtype=torch.float64, device=u_0.device)
    u_hat, kept = prior.laplacian.to_spectrum(u_0.double()) * alpha.to(u_0.device), prior.kept.to(u_0.device)
    return u_hat[..., kept].flatten(1), u_hat[..., ~kept].square().flatten(1).sum(1)


def discrete_nll(u_0: Tensor, mean: Tensor, spread: Tensor | float) -> Tensor:
    """-log P of each 8-bit value under a Gaussian whose tails go to 0 and 255 (Ho et al. 2020, Eq. 13).

    log 256 is subtracted, so that bits per dimension are computed from it as from a density.
    """
    upper = torch.where(u_0 > 1 - HALF_STEP, torch.inf, (u_0 + HALF_STEP - mean) / spread)
    lower = torch.where(u_0 < HALF_STEP, -torch.inf, (u_0 - HALF_STEP - mean) / spread)
    flip = (lower > 0) & lower.isfinite()  # in the upper tail, mirror: lower tails are computed precisely
    upper, lower = torch.where(flip, -lower, upper), torch.where(flip, -upper, lower)
    probability = torch.special.ndtr(upper) - torch.special.ndtr(lower)
    return -probability.clamp_min(LEAST).log() - BITS * math.log(2)


def bounds(bounding: Bounding, answers: Tensor, levels: Tensor, prior_terms: Tensor, K: int) -> list[Bound]:
    """The bounds of each image (Eq. 5-7).

    answers: (images, m, some numbers), at the `levels` k of each image, (images, m): first 1, and then all of 2..K or
    a uniformly drawn part of them, which stands for all. prior_terms: (images, rows).
    """
    if answers.shape[:2] != levels.shape or bool((levels[:, 0] != 1).any()):
        raise ValueError("the first level of each image must be 1, from which L_0 is computed")
    L_0 = bounding.terms(answers[:, 0].double(), first=True)
    chain = bounding.terms(answers[:, 1:].double(), first=False).sum(1) * (K - 1) / max(1, answers.shape[1] - 1)
    parts = zip(bounding.rows, L_0.T, chain.T, prior_terms.double().cpu().T)
    return [Bound(*part) for part in parts]


def chosen_levels(K: int, images: Sequence[int], count: int | None, seed: int) -> Tensor:
    """Levels to evaluate the network at, (images, m): 1 and all others, or 1 and `count` others drawn for each image.

    They depend only on the seed and the image's number, and no level is drawn twice for an image.
    """
    if count is not None and count < 1:
        raise ValueError(f"at least one level besides the first is needed, not {count}")
    if count is None or count >= K - 1:
        return torch.arange(1, K + 1).expand(len(images), K)
    rows = []
    for image in images:
        others = 2 + permutation(K - 1, seed, Purpose.LEVELS, image)[:count]
        rows.append(torch.cat([torch.ones(1, dtype=torch.long), others]))
    return torch.stack(rows) if rows else torch.empty(0, 1 + count, dtype=torch.long)


def terms_by_level(bounding: Bounding, answers: Tensor, levels: Tensor, K: int) -> Tensor:
    """The means of L_0, ..., L_{K-1} over the images evaluated at that level, (K, rows); nan where none was."""
    first = bounding.terms(answers[:, :1].double(), first=True)
    terms = torch.cat([first, bounding.terms(answers[:, 1:].double(), first=False)], 1).flatten(0, 1)
    where = levels.flatten() - 1
    total = terms.new_zeros(K, terms.shape[1]).index_add(0, where, terms)
    return total / torch.bincount(where, minlength=K)[:, None]


def bits_per_dimension(nats: Tensor, dimensions: int) -> Tensor:
    """Bits per pixel and channel of 8-bit images, from a density of values in [0, 1], of which each takes 1 / 256."""
    return nats / (dimensions * math.log(2)) + BITS


def standard_error(values: Tensor) -> float:
    """The standard error of the mean over images."""
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else math.nan


def best_spread(u_0: Tensor, mean: Tensor) -> float:
    """The standard deviation of a Gaussian around predicted images that explains 8-bit ones best."""
    rms = max(float((u_0 - mean).square().mean().sqrt()), ROUNDING)
    spreads = [rms * 8 ** (2 * i / (SPREADS - 1) - 1) for i in range(SPREADS)]
    return min(spreads, key=lambda spread: float(discrete_nll(u_0, mean, spread).mean()))
