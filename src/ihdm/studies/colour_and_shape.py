"""The start decides the colour, the noise the shape (Fig. 7a, App. D.4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.noise import SeededNoise
from ihdm.plots import figure, tiles
from ihdm.sampler import last
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, every, jackknife, told

SIDE, SHOWN = 8, 6
CLAIM = (
    "the start explains more than half of the variance of the mean colour, and the noise explains more of the "
    "remaining variance than the start does, each by more than two standard errors."
)


def study(lab: Lab) -> Findings:
    model = lab.paper_model()
    noises, starts = (
        axis.flatten().to(lab.device) for axis in torch.meshgrid(*2 * [torch.arange(SIDE)], indexing="ij")
    )
    noise = SeededNoise(lab.seed, noises, model.config.shape)
    u_K = model.start(starts + SIDE, lab.seed)
    images = last(model.path(u_K, noise, execution=lab.execution)).clamp(0, 1).cpu()
    matrix = images.unflatten(0, (SIDE, SIDE))  # noise x start
    shares = _shares(matrix)
    with figure(lab.picture("colour-and-shape"), size=(5.5, 5.5)) as (axis,):
        tiles(axis, [row[:SHOWN] for row in matrix[:SHOWN]])
        axis.set(xlabel="start", ylabel="noise")
        axis.xaxis.set_label_position("top")
    return Findings(
        shares | {"standard_error": _errors(matrix)},
        "each row has one noise and so the same shape; each column has one start and so the same average colour.",
        "with the noise fixed, samples from different starts have different colours but similar shapes (Fig. 7a).",
        f"the start explains {100 * shares['colour_explained_by_start']:.0f} % of the variance of the mean colour "
        f"(the noise {100 * shares['colour_explained_by_noise']:.0f} %); of the rest, the noise explains "
        f"{100 * shares['rest_explained_by_noise']:.0f} % (the start {100 * shares['rest_explained_by_start']:.0f} %).",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    errors = numbers["standard_error"]
    colour = told(numbers["colour_explained_by_start"] - 0.5, errors["colour_explained_by_start"])
    more = numbers["rest_explained_by_noise"] - numbers["rest_explained_by_start"]
    return every([colour, told(more, errors["noise_less_start"])])


def _shares(matrix: Tensor) -> dict[str, float]:
    """Shares of the variance, of the mean colour and of the rest, that the start and the noise explain."""
    colour = matrix.mean((-1, -2), keepdim=True)
    return {
        "colour_explained_by_start": _explained(colour, 1),
        "colour_explained_by_noise": _explained(colour, 0),
        "rest_explained_by_start": _explained(matrix - colour, 1),
        "rest_explained_by_noise": _explained(matrix - colour, 0),
    }


def _errors(matrix: Tensor) -> dict[str, float]:
    """Standard errors, by leaving out one noise and one start at a time."""
    others = [[i for i in range(len(matrix)) if i != left] for left in range(len(matrix))]
    without = [_shares(matrix[some][:, some]) for some in others]
    return {
        "colour_explained_by_start": jackknife([one["colour_explained_by_start"] for one in without]),
        "noise_less_start": jackknife(
            [one["rest_explained_by_noise"] - one["rest_explained_by_start"] for one in without]
        ),
    }


def _explained(matrix: Tensor, axis: int) -> float:
    """The share of the variance that remains when the other of the two factors is averaged out."""
    total = (matrix - matrix.mean((0, 1))).square().sum()
    means = matrix.mean(1 - axis)
    return float((means - means.mean(0)).square().sum() * matrix.shape[1 - axis] / total)
