"""Processes of blur and noise, trained alike: samples, quality over the number of steps, bounds (beyond the paper)."""

from __future__ import annotations

from typing import Any

from ihdm.plots import figure, octaves
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.relatives import ANCESTRAL, Relative, measured, nearer, samples_in_rows, tree, words
from ihdm.studies.verdict import Verdict, every

EXACT = {"sampler": "exact", "order": 2}
FAMILY = {  # each names all that a preset may have changed, except K and sigma
    "heat": Relative("kind=heat sigma_B_max=auto skip=identity", {"sampler": "paper"}, EXACT | {"eta": 1.0}),
    "growing": Relative("kind=growing sigma_B_max=auto growth=1.5 skip=linear"),
    "soft": Relative("kind=soft sigma_B_max=auto growth=1 skip=plain", {"sampler": "momentum"}, EXACT | {"eta": 0.0}),
    "cold": Relative("kind=cold sigma_B_max=auto", {}, {}),
    "blurring": Relative("kind=blurring sigma_B_max=20 blur_power=2 skip=plain", few=ANCESTRAL),
    "late-blur": Relative("kind=blurring sigma_B_max=8 blur_power=4 skip=linear"),
    "diffusion": Relative("kind=ddpm"),
}
MARKERS = "osD^vPX*"
CLAIM = (
    "trained alike and sampled with a step for every level, noise that grows with the blur (growing) and noise that "
    "comes before it (late-blur) both bring samples nearer to the data than the paper's process (heat) does, each by "
    "more than two standard errors (our own claim)."
)


def parts(quick: bool) -> dict[str, Relative]:
    return FAMILY


def study(lab: Lab) -> Findings:
    found = measured(lab, FAMILY)
    with figure(lab.picture("family"), columns=2, size=(6.6, 4.6), widths=(1.25, 1)) as (left, right):
        samples_in_rows(left, found)
        for i, name in enumerate(FAMILY):
            if name in found:
                numbers = found[name].numbers
                right.loglog(numbers["steps"], numbers["distance"], f"{MARKERS[i % 8]}-", color=f"C{i}", label=name)
        ticks = next(iter(found.values())).numbers["steps"]
        right.set_xticks(ticks, ticks)
        right.set_xticks([], minor=True)
        octaves(right.yaxis, (1, 1.5))
        right.set(xlabel="steps", ylabel=lab.distance_name)
        right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return Findings(
        tree(lab, FAMILY, found),
        "rows of samples with the same seeds, none of them selected; which process is close to the data after equal "
        "training, and which stays close in few steps.",
        "heat is its process, sampled with the paper's steps if there is one for every level and with exact steps if "
        "there are fewer. Soft and cold diffusion, blurring diffusion as published and ordinary diffusion are by "
        "others; growing and late-blur lie in between.",
        words(lab, FAMILY, found),
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    return every([nearer(numbers, name, "heat") for name in ("growing", "late-blur")])
