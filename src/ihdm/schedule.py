"""How blurred each level is (App. B.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ihdm.settings import whole


@dataclass(frozen=True)
class Schedule:
    """sigma_B[k] = exp(log sigma_B_min (K - k)/(K - 1) + log sigma_B_max (k - 1)/(K - 1)), sigma_B[0] = 0 (App. B.5).

    Widths are in pixels; level 0 is the image itself.
    """

    K: int
    sigma_B_max: float
    sigma_B_min: float = 0.5

    def __post_init__(self) -> None:
        whole("K", self.K, 1)
        if not 0 < self.sigma_B_min < self.sigma_B_max < math.inf:
            raise ValueError(
                f"blur widths must satisfy 0 < sigma_B_min < sigma_B_max, not {self.sigma_B_min} and {self.sigma_B_max}"
            )

    @cached_property
    def sigma_B(self) -> Tensor:
        """Blur widths of levels 0..K, float64."""
        ends = math.log(self.sigma_B_max), math.log(self.sigma_B_min)
        widths = torch.linspace(*ends, self.K, dtype=torch.float64).exp().flip(0)
        return torch.cat([torch.zeros(1, dtype=torch.float64), widths])

    @cached_property
    def t(self) -> Tensor:
        """Dissipation times of levels 0..K, t = sigma_B^2 / 2, float64."""
        return self.sigma_B.square() / 2
