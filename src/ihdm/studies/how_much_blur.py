"""Blurring diffusion with more blur and with later blur, compared with the paper's process (beyond the paper)."""

from __future__ import annotations

from typing import Any

from ihdm.plots import figure
from ihdm.studies.family import FAMILY
from ihdm.studies.lab import Findings, Lab, blur_settings
from ihdm.studies.relatives import Relative, measured, nearer, samples_in_rows, tree, words
from ihdm.studies.verdict import Verdict

WIDTHS = {2: (0, 1, 2, 4, 8, 20), 4: (8, 20)}  # sigma_B,max by blur_power
QUICK_WIDTHS = {2: (0, 2, 20), 4: (8, 20)}
NAMES = {2: "blur", 4: "late"}  # by blur_power
MARKERS = {2: "o-", 4: "s--"}
CLAIM = (
    "blur improves samples: trained alike and sampled with a step for every level, blurring diffusion with "
    "sigma_B,max = 20 and blur_power 2 comes nearer to the data than without blur, by more than two standard errors "
    "(Hoogeboom and Salimans 2022, whose network is plain and was trained for long)."
)


def parts(quick: bool) -> dict[str, Relative]:
    found = {
        f"{NAMES[power]}-{width}": Relative(f"kind=blurring sigma_B_max={width} blur_power={power} skip=linear")
        for power, widths in (QUICK_WIDTHS if quick else WIDTHS).items()
        for width in widths
    }
    return found | {"heat": FAMILY["heat"]}


def study(lab: Lab) -> Findings:
    relatives = parts(lab.quick)
    found = measured(lab, relatives)
    values = {name: some.numbers["distance"][0] for name, some in found.items()}
    with figure(lab.picture("how-much-blur"), columns=2, size=(6.2, 4.6), widths=(1.25, 1)) as (left, right):
        samples_in_rows(left, found)
        for power, widths in WIDTHS.items():
            there = [width for width in widths if f"{NAMES[power]}-{width}" in found]
            line = [values[f"{NAMES[power]}-{width}"] for width in there]
            right.plot(there, line, MARKERS[power], label=f"blurring diffusion, blur_power {power}")
        if "heat" in found:
            process = blur_settings(lab.config.with_settings(relatives["heat"].words(lab)).process)
            widest = process.schedule(lab.images.domain.laplacian).sigma_B_max
            right.plot(widest, values["heat"], "*", color="C2", markersize=11, label="heat, the paper's process")
        right.set_xscale("symlog", linthresh=1, linscale=0.4)
        right.set_xticks(WIDTHS[2], WIDTHS[2])
        right.set_xticks([], minor=True)
        right.set(xlabel="$\\sigma_{B,max}$, pixels", ylabel=lab.distance_name)
        right.legend()
    return Findings(
        tree(lab, relatives, found),
        "rows of samples with the same seeds, none of them selected, with more and more blur; where the curve is "
        "lowest, and whether later blur costs less.",
        "not in the paper. Hoogeboom and Salimans (2022) report that blur improves the FID of diffusion.",
        words(lab, relatives, found),
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    return nearer(numbers, "blur-20", "blur-0")
