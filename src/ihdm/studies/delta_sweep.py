"""More and more sampling noise: samples, their quality and the bound (Fig. 6, App. C.3, D.3)."""

from __future__ import annotations

from typing import Any

from ihdm.evaluation import likelihood
from ihdm.likelihood import bits_per_dimension
from ihdm.plots import figure, tiles
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, every, lowest, mean_and_error

SHOWN = (0.0, 0.5, 1.0, 1.25, 1.5, 2.0)
RATIOS = (0.9, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4)
COLUMNS = 10
CLAIM = (
    "the distance is lowest for a delta from 1.2 to 1.35 sigma and the bound for a delta from 1 to 1.1 sigma, each "
    "lower than for any other delta by more than two standard errors."
)


def study(lab: Lab) -> Findings:
    model = lab.paper_model()
    explained, levels = (60, 10) if lab.quick else (1000, 40)
    held_out = lab.held_out(explained)
    rows = [model.sample(COLUMNS, lab.seed, delta_ratio=ratio, execution=lab.execution) for ratio in SHOWN]
    how: dict[str, Any] = {"levels": levels, "seed": lab.seed, "execution": lab.execution}
    found = likelihood(model, held_out, lab.images.train, delta_ratio=RATIOS, **how)
    of_images = {b.row: bits_per_dimension(b.total, found.dimensions) for b in found.bounds}
    swept = [values for row, values in of_images.items() if row.delta_ratio is not None]
    bits = [float(values.mean()) for values in swept]
    lowest_bits = swept[bits.index(min(bits))]
    bits_error = [mean_and_error((values - lowest_bits).tolist())[1] for values in swept]  # image by image
    exact = {row.name: float(values.mean()) for row, values in of_images.items() if row.delta_ratio is None}
    distances = [lab.distance_of(model, delta_ratio=ratio) for ratio in RATIOS]
    quality = [distance.value for distance in distances]
    best = {"quality": RATIOS[quality.index(min(quality))], "bound": RATIOS[bits.index(min(bits))]}
    with figure(lab.picture("delta-sweep"), columns=2, size=(5.6, 4), widths=(1.2, 1)) as (left, right):
        tiles(left, rows, [f"{ratio:g}" for ratio in SHOWN])
        left.set_ylabel("delta / sigma")
        right.plot(RATIOS, quality, "o-", color="C0")
        right.axvline(best["quality"], color="C0", linestyle=":")
        right.set(xlabel="delta / sigma")
        right.set_ylabel(f"{lab.distance_name}, {lab.count:,} samples", color="C0")
        other = right.twinx()
        other.plot(RATIOS, bits, "s--", color="C1")
        other.axvline(best["bound"], color="C1", linestyle=":")
        other.set_ylabel("bound, bits / dimension", color="C1")
        other.spines["right"].set_visible(True)
        other.grid(False)
    return Findings(
        {
            "delta_ratio": RATIOS,
            "distance": quality,
            "distance_error": [distance.error for distance in distances],
            "distance_is": lab.distance_name,
            "bits_per_dimension": bits,
            "bits_error_to_the_best": bits_error,
            "bits_per_dimension_of_exact_steps": exact,
            "best": best,
        },
        "each column has one start and one noise, which is scaled by delta: too little gives smooth images, too much "
        "gives noisy ones. Dotted lines: the best delta for samples and for the bound.",
        "delta = 0 gives blank or smooth images; FID is best near 1.3 sigma and the bound near 1.05 sigma (Fig. 6, "
        "App. C.3).",
        f"{lab.distance_name} is best at {best['quality']:g} sigma, the bound at {best['bound']:g} sigma, "
        f"{min(bits):.2f} bits per dimension"
        + (f"; that of exact steps is {min(exact.values()):.2f}." if exact else "."),
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """The paper's 1.25 to 1.3 and its 1.05, and their neighbours on the grid."""
    ratios, bits = numbers["delta_ratio"], numbers["bits_per_dimension"]
    quality = lowest(ratios, numbers["distance"], numbers["distance_error"], 1.2, 1.35)
    return every([quality, lowest(ratios, bits, numbers["bits_error_to_the_best"], 1.0, 1.1)])
