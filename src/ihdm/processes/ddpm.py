"""The baseline that the paper compares with: denoising diffusion (Ho et al. 2020) with DDIM's steps (Song et al. 2021).

States are kept in the scale of images: u = (x + 1) / 2 for the usual x in [-1, 1], so that u_0 is an image in [0, 1]
and every state can be shown. The network sees x and predicts the noise in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ihdm.heat import Constant
from ihdm.processes.levels import draw

if TYPE_CHECKING:
    from ihdm.processes import Network

LONG = 1000  # levels that the linear schedule's ends were chosen for
LARGEST_BETA = 0.999
HALF_STEP = 1 / 255  # half the distance of two 8-bit values, in the scale of x


@dataclass(frozen=True)
class DDPM:
    """q(x_k | x_0) = N(sqrt(alpha_bar_k) x_0, (1 - alpha_bar_k) I), k = 1..K.

    eta: noise in sampling, relative to that of the posterior: 1 is ancestral sampling, 0 the deterministic DDIM.
    clip: whether predicted images are clipped to [-1, 1], as is usual.
    """

    K: int
    schedule: Literal["linear", "cosine"] = "linear"
    eta: float = 1.0
    clip: bool = True
    _tables: dict[str, Constant] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.K < 1 or not 0 <= self.eta < math.inf:
            raise ValueError(
                f"there must be at least one level and no negative noise: K is {self.K}, eta is {self.eta}"
            )
        here, below = self.alpha_bar, torch.cat([self.alpha_bar[:1], self.alpha_bar[:-1]])
        spread = ((1 - below) / (1 - here) * (1 - here / below)).sqrt().nan_to_num()
        tables = {
            "signal": here.sqrt(),
            "noise": (1 - here).sqrt(),
            "posterior": spread,  # the standard deviation of q(x_{k-1} | x_k, x_0)
            "kept": (1 - below - (self.eta * spread).square()).clamp_min(0).sqrt(),  # noise that a step leaves
        }
        object.__setattr__(self, "_tables", {name: Constant(table) for name, table in tables.items()})

    @property
    def delta(self) -> float:
        return self.eta

    def with_noise(self, ratio: float) -> DDPM:
        return replace(self, eta=ratio)

    @cached_property
    def _ancestral(self) -> DDPM:
        """The same with the posterior's noise; kept, as its tables are copied to a GPU once."""
        return self if self.eta == 1 else self.with_noise(1)

    @cached_property
    def alpha_bar(self) -> Tensor:
        """Of levels 0..K, float64: by linear betas (Ho et al.) or by the cosine of Nichol and Dhariwal 2021."""
        if self.schedule == "linear":
            ends = 1e-4 * LONG / self.K, 0.02 * LONG / self.K
            beta = torch.linspace(*ends, self.K, dtype=torch.float64).clamp_max(LARGEST_BETA)
        else:
            angle = (torch.linspace(0, 1, self.K + 1, dtype=torch.float64) + 0.008) / 1.008 * math.pi / 2
            beta = (1 - angle.cos().square()[1:] / angle.cos().square()[:-1]).clamp_max(LARGEST_BETA)
        return torch.cat([torch.ones(1, dtype=torch.float64), (1 - beta).cumprod(0)])

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """u_k, a draw from q(x_k | x_0) made from the noise eps."""
        return _image(self._at("signal", k, u_0) * _signed(u_0) + self._at("noise", k, u_0) * eps)

    def loss(self, network: Network, u_0: Tensor, generator: torch.Generator) -> Tensor:
        """Their L_simple at a random level, one for each sample."""
        k, eps = draw(u_0.shape, self.K, generator)
        return self.loss_at(network, u_0, k, eps.to(u_0.dtype))

    def loss_at(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The mean squared error of the predicted noise, for each sample."""
        predicted = network(_signed(self.noised(u_0, k, eps)), k)
        return (predicted - eps).square().flatten(1).mean(1)

    def step(self, network: Network, u_k: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """From level k to level k - 1: mean + spread eps, with one level for all samples or one for each."""
        k = k.expand(len(u_k))
        x_prev = self._mean(_signed(u_k), self._predicted(network, u_k, k), k)
        return _image(x_prev + self.eta * self._at("posterior", k, u_k) * eps)

    def mean(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """The mean of p(u_{k-1} | u_k)."""
        return _image(self._mean(_signed(u_k), self._predicted(network, u_k, k), k))

    def bound_term(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The term of the variational bound at level k of each sample, in nats (Ho et al., Eq. 5, 13).

        k > 1: D_KL[q(x_{k-1} | x_k, x_0) || p(x_{k-1} | x_k)], both with the posterior's variance. k = 1: -log of the
        probability of the 8-bit values, less that of a uniform density on them, so that bits per dimension are counted
        as those of a density.
        """
        process = self._ancestral
        u_k = process.noised(u_0, k, eps)
        x_0, x_k = _signed(u_0), _signed(u_k)
        found, true = (process._mean(x_k, x, k) for x in (process._predicted(network, u_k, k), x_0))
        first = _like(k == 1, u_0)
        spread = torch.where(first, process._at("noise", k, u_0), process._at("posterior", k, u_0))
        divergence = ((true - found) / spread).square() / 2
        return torch.where(first, _discrete_nll(x_0, found, spread), divergence).flatten(1).sum(1)

    def prior_term(self, u_0: Tensor) -> Tensor:
        """D_KL[q(x_K | x_0) || N(0, I)], in nats."""
        alpha_bar = self.alpha_bar[-1].to(u_0)
        squares = alpha_bar * _signed(u_0).square()
        return ((squares - alpha_bar - torch.log1p(-alpha_bar)) / 2).flatten(1).sum(1)

    def _predicted(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor:
        """x_0, from the noise that the network sees in x_k."""
        x_k = _signed(u_k)
        x_0 = (x_k - self._at("noise", k, u_k) * network(x_k, k)) / self._at("signal", k, u_k)
        return x_0.clamp(-1, 1) if self.clip else x_0

    def _mean(self, x_k: Tensor, x_0: Tensor, k: Tensor) -> Tensor:
        """The mean of x_{k-1} given x_k and x_0 (Song et al., Eq. 7); with eta = 1 that of q(x_{k-1} | x_k, x_0)."""
        eps = (x_k - self._at("signal", k, x_k) * x_0) / self._at("noise", k, x_k)
        return self._at("signal", k - 1, x_k) * x_0 + self._at("kept", k, x_k) * eps

    def _at(self, name: str, k: Tensor, like: Tensor) -> Tensor:
        """What a table says of each sample's level."""
        return _like(self._tables[name].like(like)[k], like)


class StandardNormal:
    """p(x_K) = N(0, I): a prior that has nothing to remember."""

    def sample(self, choice: object, eps: Tensor, delta: float) -> Tensor:
        return _image(eps)


def _signed(u: Tensor) -> Tensor:
    return 2 * u - 1


def _image(x: Tensor) -> Tensor:
    return (x + 1) / 2


def _like(values: Tensor, u: Tensor) -> Tensor:
    """One value for each sample of u, with ones added so that they go together."""
    return values.view(-1, *[1] * (u.ndim - 1))


def _discrete_nll(x_0: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """-log P of 8-bit values under a Gaussian whose tails belong to the ends (Ho et al., Eq. 13), as of a density."""
    upper = torch.where(x_0 > 1 - HALF_STEP, torch.inf, (x_0 + HALF_STEP - mean) / spread)
    lower = torch.where(x_0 < HALF_STEP - 1, -torch.inf, (x_0 - HALF_STEP - mean) / spread)
    flip = (lower > 0) & lower.isfinite()  # both tails are computed on the side where they are small
    upper, lower = torch.where(flip, -lower, upper), torch.where(flip, -upper, lower)
    probability = torch.special.ndtr(upper) - torch.special.ndtr(lower)
    return -probability.clamp_min(1e-12).log() - math.log(256)
