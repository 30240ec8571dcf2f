"""How L_K depends on the widest blur (App. C.4)."""

from __future__ import annotations

from typing import Any

import torch

from ihdm.data import unit_batches
from ihdm.likelihood import prior_term
from ihdm.plots import figure
from ihdm.prior import Prior
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, both, every, mean_and_error, told

WIDTHS = (0.25, 0.375, 0.5, 0.75, 1.0)  # of the longer side; the paper's 8, 12, 16, 24 and 32 pixels of 32
RATIOS = (1.0, 1.25, 1.325)
IMAGES = 10_000
PAPER = "10798.5, 3924.7, 1804.0, 521.7 and 374.9 nats"
CLAIM = (
    "at delta = 1.25 sigma, L_K falls from each width to the next wider one by more than two standard errors over "
    "images."
)


def study(lab: Lab) -> Findings:
    sigma, side = lab.process.sigma, max(lab.images.shape[1:])
    laplacian = lab.images.domain.laplacian
    held_out = lab.held_out(IMAGES)
    means, errors = [], []
    for width in WIDTHS:
        batches = (u.to(lab.device) for u in unit_batches(lab.images.train, 512))
        prior = Prior.from_images(laplacian, (width * side) ** 2 / 2, batches)
        deltas = [ratio * sigma for ratio in RATIOS]
        terms = [prior_term(prior, u.to(lab.device), sigma, deltas).cpu() for u in unit_batches(held_out, 512)]
        found = torch.cat(terms, 1)
        means.append(found.mean(1).tolist())
        errors.append([mean_and_error(row.tolist())[1] for row in found])
    with figure(lab.picture("prior-overlap")) as (axis,):
        for i, ratio in enumerate(RATIOS):
            pixels = [width * side for width in WIDTHS]
            values, bars = [row[i] for row in means], [row[i] or 0.0 for row in errors]
            axis.errorbar(pixels, values, bars, marker="o", capsize=3, label=f"{ratio:g}")
        axis.set(xlabel="widest blur $\\sigma_{B,max}$, pixels", ylabel="$L_K$, nats", yscale="log")
        axis.legend(title="delta / sigma")
    return Findings(
        {
            "sigma_B_max": [width * side for width in WIDTHS],
            "delta_ratio": RATIOS,
            "L_K": means,
            "standard_error": errors,
        },
        "how badly the blurred training set predicts blurred held-out images: this falls as the blur widens, steeply "
        "at first and then hardly.",
        f"on CIFAR-10, for 8, 12, 16, 24 and 32 pixels: {PAPER}; it does not say for which delta (App. C.4).",
        "at delta = 1.25 sigma: " + ", ".join(f"{row[1]:,.1f}" for row in means) + " nats.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    place = list(numbers["delta_ratio"]).index(1.25)
    found = [(row[place], error[place]) for row, error in zip(numbers["L_K"], numbers["standard_error"])]
    return every([told(a - b, both(e, f)) for (a, e), (b, f) in zip(found, found[1:])])
