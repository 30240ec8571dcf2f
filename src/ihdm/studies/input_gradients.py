"""Which input pixels a step looks at, compared with the diffusion baseline (Fig. 8)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.model import Model
from ihdm.plots import figure, signed_tiles
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, every, larger

SHARES = (0.05, 0.3, 0.6, 0.95)  # of K
IMAGES = 8
RADIUS = 0.15  # of the longer side
CLAIM = (
    "at the finest level looked at, inverse heat dissipation has more of its gradient near the pixel than DDPM has, "
    "and more than it has itself at the coarsest level, each by more than two standard errors over images."
)


def study(lab: Lab) -> Findings:
    heat = lab.paper_model()
    models = {"inverse heat": heat, "DDPM": lab.trained(*lab.diffusion, "sampling.clip=false")}  # clipped: no gradient
    u_0 = lab.real(IMAGES).to(lab.device)
    gradients, local, by_image = {}, {}, {}
    for name, model in models.items():
        levels = [max(1, round(share * model.process.K)) for share in SHARES]
        gradients[name] = [_gradients(model, u_0, k, lab.seed) for k in levels]
        local[name] = [_within(found) for found in gradients[name]]
        by_image[name] = [[_within(one[None]) for one in found] for found in gradients[name]]
    with figure(lab.picture("input-gradients"), size=(7.5, 4.2)) as (axis,):
        rows = [[found[0] for found in per_level] for per_level in gradients.values()]
        signed_tiles(axis, rows, list(models), [f"k = {share:g} K" for share in SHARES])
    mean = {name: sum(values) / len(values) for name, values in local.items()}
    return Findings(
        {"shares_of_K": SHARES, "share_within_radius": local, "share_by_image": by_image, "mean": mean}
        | {"radius": RADIUS},
        "the gradient of the central pixel of a step's mean with respect to all input pixels, signed, on a "
        "logarithmic scale.",
        "the network of inverse heat dissipation looks at nearby pixels at fine levels, and farther and farther away "
        "at coarser ones; that of a diffusion model looks at the whole image, even late (Fig. 8).",
        f"the share of the absolute gradient, without the pixel itself, within {RADIUS:g} of the image's side: "
        + "; ".join(f"{name} " + ", ".join(f"{value:.2f}" for value in values) for name, values in local.items())
        + " (each from fine to coarse levels).",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """Compares gradients image by image."""
    heat, diffusion = (numbers["share_by_image"][name] for name in ("inverse heat", "DDPM"))
    return every([larger(heat[0], diffusion[0]), larger(heat[0], heat[-1])])


def _gradients(model: Model, u_0: Tensor, k: int, seed: int) -> Tensor:
    """d (mean of a step)[centre] / d u_k, summed over channels, for each image (B, H, W); 0 at the pixel itself."""
    level = torch.full((len(u_0),), k, device=u_0.device)
    generator = torch.Generator(u_0.device).manual_seed(seed)
    eps = torch.randn(u_0.shape, generator=generator, device=u_0.device)
    u_k = model.process.noised(u_0, level, eps).requires_grad_()
    row, column = u_0.shape[2] // 2, u_0.shape[3] // 2
    mean = model.process.step(model.network, u_k, level, level - 1, torch.zeros_like(eps))
    output = mean[:, :, row, column].sum()
    gradient = torch.autograd.grad(output, u_k)[0].sum(1)
    gradient[:, row, column] = 0
    return gradient.cpu()


def _within(gradients: Tensor) -> float:
    _, height, width = gradients.shape
    rows, columns = torch.arange(height) - height // 2, torch.arange(width) - width // 2
    near = (rows[:, None].square() + columns.square()).sqrt() <= max(1.5, RADIUS * max(height, width))
    size = gradients.abs().mean(0)
    return float(size[near].sum() / size.sum())
