"""Between two samples, beside the diffusion baseline (Fig. 6b, App. D.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ihdm.model import Model
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.plots import figure, tiles
from ihdm.sampler import last
from ihdm.studies.lab import Findings, Lab

PAIRS, STEPS, SHOWN = 6, 25, 9


def study(lab: Lab) -> Findings:
    heat, diffusion = lab.paper_model(), lab.trained(*lab.diffusion)
    models = {"inverse heat": heat, "DDPM": diffusion, "DDIM": diffusion.sampled(eta=0.0)}
    strips = {name: [_between(lab, model, pair) for pair in range(PAIRS)] for name, model in models.items()}
    roughness = {name: [_roughness(strip) for strip in found] for name, found in strips.items()}
    mean = {name: sum(values) / PAIRS for name, values in roughness.items()}
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
        f"{PAIRS} pairs: "
        + ", ".join(f"{name} {value:.2f}" for name, value in mean.items())
        + " (1 is perfectly even).",
    )


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
