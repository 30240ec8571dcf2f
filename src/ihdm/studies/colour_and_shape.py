"""The start decides the colour, the noise the shape (Fig. 6a, App. D.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ihdm.noise import SeededNoise
from ihdm.plots import figure, tiles
from ihdm.sampler import last
from ihdm.studies.lab import Findings, Lab

SIDE, SHOWN = 8, 6


def study(lab: Lab) -> Findings:
    model = lab.paper_model()
    noises, starts = (
        axis.flatten().to(lab.device) for axis in torch.meshgrid(*2 * [torch.arange(SIDE)], indexing="ij")
    )
    noise = SeededNoise(lab.seed, noises, model.config.shape)
    u_K = model.start(starts + SIDE, lab.seed)
    images = last(model.path(u_K, noise, execution=lab.execution)).clamp(0, 1).cpu()
    matrix = images.unflatten(0, (SIDE, SIDE))  # noise x start
    colour = matrix.mean((-1, -2), keepdim=True)
    shares = {
        "colour_explained_by_start": _explained(colour, 1),
        "colour_explained_by_noise": _explained(colour, 0),
        "rest_explained_by_start": _explained(matrix - colour, 1),
        "rest_explained_by_noise": _explained(matrix - colour, 0),
    }
    with figure(lab.picture("colour-and-shape"), size=(5.5, 5.5)) as (axis,):
        tiles(axis, [row[:SHOWN] for row in matrix[:SHOWN]])
        axis.set(xlabel="start", ylabel="noise")
        axis.xaxis.set_label_position("top")
    return Findings(
        shares,
        "a row has one noise: the same shape; a column has one start: the same average colour.",
        "with the noise fixed, samples from different starts have different colours but similar shapes (Fig. 6a).",
        f"the start explains {100 * shares['colour_explained_by_start']:.0f} % of the variance of the mean colour "
        f"(the noise "
        f"{100 * shares['colour_explained_by_noise']:.0f} %); of the rest, the noise explains "
        f"{100 * shares['rest_explained_by_noise']:.0f} % (the start {100 * shares['rest_explained_by_start']:.0f} %).",
    )


def _explained(matrix: Tensor, axis: int) -> float:
    """The share of the variance that remains when all but one of the two factors is averaged out."""
    total = (matrix - matrix.mean((0, 1))).square().sum()
    means = matrix.mean(1 - axis)
    return float((means - means.mean(0)).square().sum() * matrix.shape[1 - axis] / total)
