"""A study of one's own (docs/your-own-process.md): are samples as bright as the training images?

python examples/own_study.py study brightness --quick
"""

from __future__ import annotations

import sys
from typing import Any

from ihdm import studies
from ihdm.cli import main
from ihdm.data import evenly_taken
from ihdm.pixels import to_unit
from ihdm.plots import figure
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, told

MOST = 0.02  # of the range from black to white
CLAIM = f"samples are as bright as training images, within {MOST} (decided if two standard errors do not matter)."


def study(lab: Lab) -> Findings:
    model = lab.paper_model()
    samples = model.sample(lab.count, lab.seed, execution=lab.execution).flatten(1).mean(1)
    images = to_unit(evenly_taken(lab.images.train, lab.count)).flatten(1).mean(1)
    difference = float(samples.mean() - images.mean())
    error = float((samples.var() / len(samples) + images.var() / len(images)).sqrt())
    with figure(lab.picture("brightness"), size=(6, 3.5)) as (axis,):
        axis.hist([images.numpy(), samples.numpy()], bins=20, density=True, label=["training images", "samples"])
        axis.set(xlabel="mean brightness", ylabel="density")
        axis.legend()
    return Findings(
        {"difference": difference, "error": error},
        look_for="two histograms of the same shape.",
        paper="blur leaves the mean of an image as it is, so the start decides it (Eq. 2).",
        found=f"samples are brighter than {len(images):,} training images by {difference:.4f} +- {error:.4f}.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    return told(MOST - abs(numbers["difference"]), numbers["error"])


studies.register("brightness", "whether samples are as bright as training images", sys.modules[__name__])

if __name__ == "__main__":
    main()
