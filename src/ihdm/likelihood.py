"""The bound on the negative log-likelihood of images (Eq. 5-10, App. A.2-A.3), in nats, for each image.

-log p(u_0) <= L_K + L_{K-1} + ... + L_1 + L_0. What a network has to be asked are squared errors, and what the prior
has to be asked are squared distances; delta enters through closed forms only, so that any number of them costs no more
than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.noise import mix_seed
from ihdm.prior import Prior

LEVELS_STREAM = 5  # keeps the drawing of levels apart from other uses of the same seed
BLOCK = 2**22  # distances that are held at a time
BITS = 8  # of a pixel


@dataclass(frozen=True)
class Bound:
    """An upper bound of -log p(u_0) with sampling noise delta, in nats, one number for each image.

    chain: the sum L_1 + ... + L_{K-1}, or an estimate of it from some of the levels.
    """

    delta: float
    L_0: Tensor
    chain: Tensor
    L_K: Tensor

    @property
    def total(self) -> Tensor:
        return self.L_0 + self.chain + self.L_K


def gaussian_kl(squared: Tensor, dimensions: int, sigma: float, delta: float) -> Tensor:
    """D_KL[N(a, sigma^2 I) || N(b, delta^2 I)] with squared = || a - b ||^2: L_{k-1} of Eq. (9), and App. A.3."""
    ratio = (sigma / delta) ** 2
    return dimensions / 2 * (ratio - 1 - math.log(ratio)) + squared / (2 * delta**2)


def gaussian_nll(squared: Tensor, dimensions: int, delta: float) -> Tensor:
    """-log N(a | b, delta^2 I) with squared = || a - b ||^2: L_0 of Eq. (10)."""
    return squared / (2 * delta**2) + dimensions * math.log(delta * math.sqrt(2 * math.pi))


def prior_term(prior: Prior, u_0: Tensor, sigma: float, deltas: Sequence[float]) -> Tensor:
    """An upper bound of L_K = D_KL[q(u_K | u_0) || p(u_K)], (deltas, images), float64 (App. A.3).

    With the best phi it is log N_T - log sum_i exp(-D_KL[q(u_K | u_0) || N(u_K^i, delta^2 I)]). Distances between
    images are those between their kept coefficients; few are held at a time.
    """
    places = prior.place(u_0).flatten(1)
    bank = prior.coefficients.flatten(1).to(places)
    centre = bank.mean(0)  # of no effect on distances but on their rounding
    places, bank = places - centre, bank - centre
    nearness = places.new_full((len(deltas), len(places)), -math.inf)
    for block in bank.split(max(1, BLOCK // max(1, len(places)))):
        squared = places.square().sum(1)[:, None] + block.square().sum(1) - 2 * places @ block.T
        for row, delta in zip(nearness, deltas):
            row.copy_(torch.logaddexp(row, torch.logsumexp(squared / (-2 * delta**2), 1)))
    common = [float(gaussian_kl(torch.zeros(()), math.prod(u_0.shape[1:]), sigma, delta)) for delta in deltas]
    return nearness.new_tensor(common)[:, None] + math.log(len(prior)) - nearness


def bounds(
    errors: Tensor,
    levels: Tensor,
    prior_terms: Tensor,
    K: int,
    dimensions: int,
    sigma: float,
    deltas: Sequence[float],
) -> list[Bound]:
    """The bound of each image for each delta (Eq. 5-7).

    errors: || mu(u_k, k) - F(t_{k-1}) u_0 ||^2 at the `levels` k of each image, both (images, m): 1 first, and then all
    of 2..K or some, drawn without preference, which stand for all. prior_terms: (deltas, images).
    """
    errors = errors.double()
    _check_levels(errors, levels)
    return [
        Bound(
            delta,
            gaussian_nll(errors[:, 0], dimensions, delta),
            _sum_of_all(gaussian_kl(errors[:, 1:], dimensions, sigma, delta), K),
            term.cpu(),
        )
        for delta, term in zip(deltas, prior_terms)
    ]


def bound_of_terms(terms: Tensor, levels: Tensor, prior_terms: Tensor, K: int) -> Bound:
    """The bound of each image from its terms at some levels, (images, m), as of a process that knows no delta."""
    terms = terms.double()
    _check_levels(terms, levels)
    return Bound(1.0, terms[:, 0], _sum_of_all(terms[:, 1:], K), prior_terms.double().cpu())


def _check_levels(values: Tensor, levels: Tensor) -> None:
    if values.shape != levels.shape or bool((levels[:, 0] != 1).any()):
        raise ValueError("the first level of each image must be 1, which L_0 is made of")


def _sum_of_all(terms: Tensor, K: int) -> Tensor:
    """The sum over levels 2..K, of which those that were drawn stand for all."""
    return (K - 1) / max(1, terms.shape[1]) * terms.sum(1)


def chosen_levels(K: int, images: Sequence[int], count: int | None, seed: int) -> Tensor:
    """Levels at which to ask the network, (images, m): 1 and all others, or 1 and `count` others of each image's own.

    They depend on the seed and the image's number alone, and no level is drawn twice for an image.
    """
    if count is not None and count < 1:
        raise ValueError(f"at least one level beside the first must be asked, not {count}")
    if count is None or count >= K - 1:
        return torch.arange(1, K + 1).expand(len(images), K)
    rows = []
    for image in images:
        generator = torch.Generator().manual_seed(mix_seed(seed, LEVELS_STREAM, image))
        rows.append(
            torch.cat([torch.ones(1, dtype=torch.long), 2 + torch.randperm(K - 1, generator=generator)[:count]])
        )
    return torch.stack(rows) if rows else torch.empty(0, 1 + count, dtype=torch.long)


def mean_by_level(errors: Tensor, levels: Tensor, K: int) -> Tensor:
    """The mean of the errors at each level 1..K over the images that were asked there; nan where none was."""
    where = levels.flatten() - 1
    total = torch.zeros(K, dtype=torch.float64).index_add(0, where, errors.flatten().double())
    return total / torch.bincount(where, minlength=K)


def bits_per_dimension(nats: Tensor, dimensions: int) -> Tensor:
    """Bits for each pixel and channel of 8-bit images: the density is that of values in [0, 1], 1 / 256 apart."""
    return nats / (dimensions * math.log(2)) + BITS


def standard_error(values: Tensor) -> float:
    """Of the mean over images."""
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
