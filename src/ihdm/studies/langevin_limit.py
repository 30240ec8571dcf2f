"""With many levels a step becomes a Langevin step (App. A.4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ihdm.heat import GridLaplacian
from ihdm.plots import figure
from ihdm.schedule import Schedule
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, mean_and_error, told

LEVELS = (10, 20, 50, 100, 200, 500, 1000, 2000)
SIGMA, SIGMA_B_MAX = 0.1, 6.0
POINTS, STATES = 32, 64
CLAIM = (
    "from K = 50 on the difference falls as 1 / K, with an exponent within 0.1 of -1 (decided only if it is more than "
    "two standard errors, over the steps in K, inside or outside this range)."
)


def study(lab: Lab) -> Findings:
    """For a known density, a set of points, so that the best step and the score have closed forms."""
    generator = torch.Generator().manual_seed(lab.seed)
    laplacian = GridLaplacian((8, 8))
    data = torch.rand(POINTS, 1, 8, 8, generator=generator, dtype=torch.float64)
    choice = torch.randint(POINTS, (STATES,), generator=generator)
    eps = torch.randn(STATES, 1, 8, 8, generator=generator, dtype=torch.float64)
    errors = {K: _error(laplacian, Schedule(K, SIGMA_B_MAX), data, choice, eps) for K in LEVELS}
    slope = math.log(errors[LEVELS[-1]] / errors[LEVELS[2]]) / math.log(LEVELS[-1] / LEVELS[2])
    with figure(lab.picture("langevin-limit")) as (axis,):
        axis.loglog(LEVELS, list(errors.values()), "o-", label="$|\\mu - u - \\sigma^2 \\nabla \\log p|$, relative")
        axis.loglog(LEVELS, [errors[LEVELS[2]] * LEVELS[2] / K for K in LEVELS], "--", label="1 / K")
        axis.set(xlabel="levels K", ylabel="error")
        axis.legend()
    return Findings(
        {"K": LEVELS, "relative_error": list(errors.values()), "slope": slope},
        "the best step of the reverse process comes as close as one likes to a Langevin step of size sigma^2.",
        "as K goes to infinity, the loss becomes denoising score matching, and the step with delta = sqrt(2) sigma "
        "becomes a Langevin step (App. A.4).",
        f"the relative difference falls from {errors[LEVELS[0]]:.2g} (K = {LEVELS[0]}) to {errors[LEVELS[-1]]:.2g} "
        f"(K = {LEVELS[-1]}), as K to the power {slope:.2f}.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    points = [pair for pair in zip(numbers["K"], numbers["relative_error"]) if pair[0] >= LEVELS[2]]
    slopes = [math.log(f / e) / math.log(L / K) for (K, e), (L, f) in zip(points, points[1:])]
    slope, error = mean_and_error(slopes)
    return told(0.1 - abs(slope + 1), error)


def _error(laplacian: GridLaplacian, schedule: Schedule, data: Tensor, choice: Tensor, eps: Tensor) -> float:
    """|| mu - (u + sigma^2 grad log p_k(u)) || / || sigma^2 grad log p_k(u) || half-way, for draws u from p_k.

    The best mu is E[F(t_{k-1}) u_0 | u_k], and u + sigma^2 grad log p_k(u) is E[F(t_k) u_0 | u_k] (Tweedie's formula).
    """
    middle = math.sqrt(schedule.sigma_B_min * schedule.sigma_B_max)
    k = int((schedule.sigma_B[1:] - middle).abs().argmin()) + 1
    coarse, fine = (laplacian.dissipate(data, float(schedule.t[level])) for level in (k, k - 1))
    u = coarse[choice] + SIGMA * eps
    weights = torch.softmax(-torch.cdist(u.flatten(1), coarse.flatten(1)).square() / (2 * SIGMA**2), 1)
    mu, tweedie = (weights @ images.flatten(1) for images in (fine, coarse))
    return float((mu - tweedie).norm() / (tweedie - u.flatten(1)).norm())
