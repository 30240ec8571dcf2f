"""Samples and their nearest training images (App. D.5)."""

from __future__ import annotations

from dataclasses import asdict

from ihdm.metrics.neighbours import memorisation, nearest
from ihdm.pixels import to_bytes, to_unit
from ihdm.plots import figure, tiles
from ihdm.studies.lab import Findings, Lab

ROWS, COLUMNS = 8, 6


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
        "samples beside their nearest training images, by Euclidean distance of pixels.",
        "samples are not copies of training images (App. D.5).",
        f"the nearest training image: {score}.",
    )
