"""The example's process among those of the suite, with its law: `pytest -p own_law` (docs/your-own-process.md)."""

from __future__ import annotations

import laws
import torch
from own_process import Fading
from torch import Tensor

from ihdm.processes import Steps


def fading(K: int = 100, noise: float = 0.5) -> laws.Case:
    """The best prediction of u_0 is its mean given u_k, by its share of the variance of u_k."""
    law, (mean,) = laws.spectrum(), laws.LAPLACIAN.from_spectrum(laws.spectrum().mean[None])

    def network(u: Tensor, k: Tensor) -> Tensor:
        level = int(k[0])
        share = case.gain(level) * law.power / case.variance(level)
        return mean + laws.from_coordinates(share * case.coordinates(u, level))

    process = Fading(Fading.Settings(K, noise), Steps(), mean)
    gain, sigma = (lambda k: torch.tensor(1 - k / K).double()), (lambda k: noise * k / K)
    case = laws.Case(process, network, gain, sigma, centre=mean)
    return case


laws.CASES["fading"] = {"to noise": fading}
