"""Samples and their nearest training images (App. D.5)."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ihdm.metrics.neighbours import CLOSEST, memorisation, nearest
from ihdm.pixels import to_bytes, to_unit
from ihdm.plots import figure, tiles
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, told

ROWS, COLUMNS = 8, 6
COPIED = 0.05  # of the samples; of new images it is 1 %, known to within about half of itself
SHARE_OF = 500  # samples
CLAIM = (
    "fewer than 5 % of the samples are as close to a training image as the closest 1 % of held-out images are, by "
    "more than two standard errors of a share of 500 samples."
)


def study(lab: Lab) -> Findings:
    model = lab.model()
    count = 100 if lab.quick else 1000
    held_out = lab.held_out(count)
    samples = to_bytes(model.sample(count, lab.seed, execution=lab.execution))
    found, usual = (nearest(some, lab.images.train, COLUMNS, lab.device) for some in (samples, held_out))
    score = memorisation(found.distance[:, 0], usual.distance[:, 0])
    rows = [[to_unit(sample), *to_unit(lab.images.train[near])] for sample, near in zip(samples[:ROWS], found.index)]
    with figure(lab.picture("neighbours"), size=(5.6, 6.4)) as (axis,):
        tiles(axis, rows, column_labels=["sample", *(f"{i + 1}." for i in range(COLUMNS))])
    return Findings(
        asdict(score),
        "samples beside their nearest training images, by the Euclidean distance between pixels.",
        "samples are not copies of training images (App. D.5).",
        f"the nearest training image: {score}.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """For copies the share is 100 %. With too few held-out images there is none, and it is too small to tell."""
    closer = numbers["closer"]
    if closer is None:
        return "too small to tell"
    scatter = max(closer, CLOSEST) * (1 - min(closer, 1 - CLOSEST))  # a share of 0 in the samples need not be 0 exactly
    return told(COPIED - closer, math.sqrt(scatter / SHARE_OF))
