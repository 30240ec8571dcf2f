"""Interpolation between two samples, compared with the diffusion baseline (Fig. 7b, App. D.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.model import Model
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.pictures import some_of
from ihdm.plots import figure, tiles, tiles_size
from ihdm.sampler import last
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, larger

PAIRS, STEPS, SHOWN = 24, 25, 9
AT_ONCE = 4  # pairs in a batch
CLAIM = (
    "the ratio of the largest step to the mean step is smaller with inverse heat dissipation than with DDPM, on "
    "average over pairs of samples and by more than two standard errors."
)


def study(lab: Lab) -> Findings:
    heat, diffusion = lab.paper_model(), lab.trained(*lab.diffusion)
    models = {"inverse heat": heat, "DDPM": diffusion, "DDIM": diffusion.sampled(eta=0.0)}
    parts = [range(first, first + AT_ONCE) for first in range(0, PAIRS, AT_ONCE)]
    strips = {name: torch.cat([_between(lab, model, some) for some in parts]) for name, model in models.items()}
    roughness = {name: [_roughness(strip) for strip in found] for name, found in strips.items()}
    mean = {name: sum(values) / PAIRS for name, values in roughness.items()}
    shown = some_of(range(STEPS), SHOWN)
    domain = heat.config.domain
    rows = [domain.pictures(strip[shown]) for found in strips.values() for strip in found[:2]]
    with figure(lab.picture("interpolation"), size=tiles_size(rows)) as (axis,):
        tiles(axis, rows, [label for name in strips for label in (name, "")])
    return Findings(
        {"largest_over_mean_step": roughness, "mean": mean},
        "the ends are two samples; between them the blurred start is interpolated linearly, and all noise along a "
        "circle.",
        "interpolations are smooth, while those of a diffusion model (with its noise interpolated too) change "
        "abruptly (Fig. 7b).",
        f"the ratio of the largest step between neighbours to the mean step, by their values, averaged over "
        f"{PAIRS} pairs: "
        + ", ".join(f"{name} {value:.2f}" for name, value in mean.items())
        + " (1 is perfectly even).",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """DDIM does not count, as the paper does not mention it."""
    found = numbers["largest_over_mean_step"]
    return larger(found["DDPM"], found["inverse heat"])


def _between(lab: Lab, model: Model, pairs: range) -> Tensor:
    """Images from one sample to another, (pairs, STEPS, C, *grid)."""
    weight = torch.linspace(0, 1, STEPS, device=lab.device).repeat(len(pairs))
    first = 2 * torch.tensor(pairs, device=lab.device).repeat_interleave(STEPS)
    numbers = (first + end for end in (0, 1))
    one, other = (SeededNoise(lab.seed, number, model.config.shape) for number in numbers)
    u_K = model.process.between(one, other, weight)
    path = model.path(u_K, InterpolatedNoise(one, other, weight), execution=lab.execution)
    return last(path).clamp(0, 1).cpu().unflatten(0, (len(pairs), STEPS))


def _roughness(strip: Tensor) -> float:
    """The largest step from one image to the next, divided by the mean step."""
    steps = strip.diff(dim=0).flatten(1).norm(dim=1)
    return float(steps.max() / steps.mean())
