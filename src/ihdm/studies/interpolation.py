"""Between two samples, beside the diffusion baseline (Fig. 6b, App. D.2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.model import Model
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.plots import figure, tiles
from ihdm.sampler import last
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, mean_and_error, told

PAIRS, STEPS, SHOWN = 24, 25, 9
CLAIM = (
    "the largest over the mean step is smaller with inverse heat dissipation than with DDPM, on average over "
    "pairs of samples by more than two standard errors."
)


def study(lab: Lab) -> Findings:
    heat, diffusion = lab.paper_model(), lab.trained(*lab.diffusion)
    models = {"inverse heat": heat, "DDPM": diffusion, "DDIM": diffusion.sampled(eta=0.0)}
    pairs = PAIRS // 2 if lab.quick else PAIRS
    strips = {name: [_between(lab, model, pair) for pair in range(pairs)] for name, model in models.items()}
    roughness = {name: [_roughness(strip) for strip in found] for name, found in strips.items()}
    mean = {name: sum(values) / pairs for name, values in roughness.items()}
    shown = [round(i * (STEPS - 1) / (SHOWN - 1)) for i in range(SHOWN)]
    rows = [strip[shown] for found in strips.values() for strip in found[:2]]
    with figure(lab.picture("interpolation"), size=(9, 6)) as (axis,):
        tiles(axis, rows, [label for name in strips for label in (name, "")])
    return Findings(
        {"largest_over_mean_step": roughness, "mean": mean},
        "ends are two samples; between, the blurred start is interpolated linearly, and all noise on a circle.",
        "interpolations are smooth, where those of a diffusion model (with its noise interpolated too) change "
        "abruptly (Fig. 6b).",
        "the largest over the mean step between neighbours, in pixels, averaged over "
        f"{pairs} pairs: "
        + ", ".join(f"{name} {value:.2f}" for name, value in mean.items())
        + " (1 is perfectly even).",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """DDIM, which the paper does not speak of, does not count."""
    found = numbers["largest_over_mean_step"]
    return told(*mean_and_error([other - own for own, other in zip(found["inverse heat"], found["DDPM"])]))


def _between(lab: Lab, model: Model, pair: int) -> Tensor:
    """Images from one sample to another."""
    weight = torch.linspace(0, 1, STEPS, device=lab.device)
    numbers = (torch.full((STEPS,), 2 * pair + end, device=lab.device) for end in (0, 1))
    one, other = (SeededNoise(lab.seed, number, model.config.shape) for number in numbers)
    u_K = model.process.between(one, other, weight)
    path = model.path(u_K, InterpolatedNoise(one, other, weight), execution=lab.execution)
    return last(path).clamp(0, 1).cpu()


def _roughness(strip: Tensor) -> float:
    """The largest step from one image to the next over the mean one."""
    steps = strip.diff(dim=0).flatten(1).norm(dim=1)
    return float(steps.max() / steps.mean())
