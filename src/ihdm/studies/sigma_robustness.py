"""Models for several training noises over sampling noise (App. C.1)."""

from __future__ import annotations

from ihdm.plots import figure, tiles
from ihdm.studies.lab import PAPER_WORDS, Findings, Lab, blur_settings

FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)  # of the preset's sigma
RATIOS = (1.0, 1.1, 1.2, 1.3, 1.4)
COLUMNS = 6


def study(lab: Lab) -> Findings:
    factors = (0.5, 1.0, 2.0) if lab.quick else FACTORS
    samples = 200 if lab.quick else 10_000
    sigmas = [factor * blur_settings(lab.config.process).sigma for factor in factors]
    distances, rows = {}, []
    for sigma in sigmas:
        model = lab.trained(f"process.sigma={sigma:g}", *PAPER_WORDS)
        distances[f"{sigma:g}"] = [
            lab.distance(model.sample_batches(samples, lab.seed, delta_ratio=ratio, execution=lab.execution))
            for ratio in RATIOS
        ]
        rows.append(model.sample(COLUMNS, lab.seed, execution=lab.execution))
    best = {sigma: RATIOS[values.index(min(values))] for sigma, values in distances.items()}
    with figure(lab.picture("sigma-robustness"), columns=2, widths=(1, 1.2)) as (left, right):
        tiles(left, rows, [f"$\\sigma$ = {sigma:g}" for sigma in sigmas])
        for label, values in distances.items():
            right.plot(RATIOS, values, "o-", label=label)
        right.set(xlabel="delta / sigma", ylabel=f"{lab.distance_name}, {samples:,} samples")
        right.legend(title="$\\sigma$ in training", loc="center left", bbox_to_anchor=(1, 0.5))
    return Findings(
        {"delta_ratio": RATIOS, "distance": distances, "distance_is": lab.distance_name, "best_delta_ratio": best},
        "each curve is a model trained with its own noise; where each is lowest.",
        "the best delta is 1.3 sigma for every sigma, and quality is best for sigma of 0.01 to 0.02 on CIFAR-10 "
        "(App. C.1).",
        f"the best delta / sigma by {lab.distance_name}: "
        + ", ".join(f"{ratio:g} (sigma {sigma})" for sigma, ratio in best.items())
        + ".",
    )
