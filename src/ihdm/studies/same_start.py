"""Many samples from one blank image (App. D.1)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ihdm.plots import figure, tiles
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, mean_and_error, told

STARTS, EACH = 4, 12
DIFFERENT = 0.25  # of the variance, that is, half of the deviation
CLAIM = (
    "samples from one start differ at least half as much (rms) as samples from different starts, that is, they have "
    "a quarter of the variance or more (decided only if the mean over starts is more than two standard errors from "
    "that)."
)


def study(lab: Lab) -> Findings:
    model = lab.paper_model()
    seeds = range(lab.seed, lab.seed + STARTS)
    rows = [model.sample(EACH, seed, same_start=True, execution=lab.execution) for seed in seeds]
    free = model.sample(STARTS * EACH, lab.seed, execution=lab.execution)
    shares = [float(_variance(row) / _variance(free)) for row in rows]
    within = sum(shares) / STARTS
    colour = sum(float(_variance(_colour(row))) for row in rows) / STARTS / float(_variance(_colour(free)))
    with figure(lab.picture("same-start"), size=(9, 3.4)) as (axis,):
        tiles(axis, rows, [f"start {i + 1}" for i in range(STARTS)])
    return Findings(
        {"variance_share": within, "variance_share_by_start": shares, "mean_colour_variance_share": colour},
        "each row grows from a single blank image: its average colour stays, everything else differs.",
        "very different images come from one start (App. D.1).",
        f"samples from one start have {100 * within:.0f} % of the variance of samples from different starts, but "
        f"{100 * colour:.0f} % of the variance of their mean colour.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    share, error = mean_and_error(numbers["variance_share_by_start"])
    return told(share - DIFFERENT, error)


def _colour(images: Tensor) -> Tensor:
    return images.mean((2, 3), keepdim=True)


def _variance(images: Tensor) -> Tensor:
    return images.flatten(1).var(0).sum()
