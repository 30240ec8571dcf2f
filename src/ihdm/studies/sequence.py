"""Forward and generative sequences (Fig. 1, 5a)."""

from __future__ import annotations

from typing import Any

import torch

from ihdm.metrics.spectra import Rings
from ihdm.pictures import some_of
from ihdm.plots import figure, tiles, tiles_size
from ihdm.studies.lab import Findings, Lab, blurring
from ihdm.studies.verdict import Verdict, told

ROWS, COLUMNS = 4, 9
CLAIM = (
    "from blank to sharp, a generated sequence gains at least half as many rings of frequencies as the forward "
    "sequence loses, and never loses more than one on the way (a gain within two rings of that half is too small to "
    "tell)."
)


def study(lab: Lab) -> Findings:
    model = lab.model()
    blurs, levels = blurring(model.process), some_of(model.process.levels(), COLUMNS)
    generated = {k: u for k, u in model.trajectory(ROWS, lab.seed, execution=lab.execution) if k in levels}
    real = lab.real(ROWS)
    eps = torch.randn(real.shape, generator=torch.Generator().manual_seed(lab.seed))
    forward = {k: model.process.noised(real, torch.full((ROWS,), k), eps) for k in levels}

    domain = model.config.domain
    rings = Rings(domain.laplacian)
    noise = 2 * max(blurs.start_noise, blurs.sigma) ** 2
    detail = {  # how many rings of frequencies stand out from the noise
        name: [int((rings.power([states[k]])[1:] > noise).sum()) for k in levels]
        for name, states in (("generated", generated), ("forward", forward))
    }
    shown = [{k: domain.pictures(states[k]) for k in levels} for states in (generated, forward)]
    rows = [[states[k][i] for k in levels] for states in shown for i in range(ROWS)]
    labels = ["generated"] + [""] * (ROWS - 1) + ["forward"] + [""] * (ROWS - 1)
    with figure(lab.picture("sequence"), size=tiles_size(rows)) as (axis,):
        tiles(axis, rows, labels, [domain.width_label(float(blurs.schedule.sigma_B[k])) for k in levels])
    return Findings(
        {"levels": levels, "frequencies_above_noise": detail, "of": len(rings) - 1},
        f"{domain.noun}s grow from blank to sharp: first the mean, then large shapes, then detail; the lower rows are "
        f"real {domain.noun}s, blurred. Above the columns: {domain.width_label_words}.",
        "the generative sequence mirrors the forward one, coarse to fine (Fig. 1, 5a).",
        f"of {len(rings) - 1} rings of frequencies, the number with more than twice the power of the noise, from blank "
        f"to sharp: generated {', '.join(map(str, detail['generated']))}; forward "
        f"{', '.join(map(str, detail['forward']))}.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """A count of rings has an error of one ring."""
    generated, forward = (numbers["frequencies_above_noise"][name] for name in ("generated", "forward"))
    gained, lost = generated[-1] - generated[0], forward[-1] - forward[0]
    fall = max(before - after for before, after in zip(generated, generated[1:]))
    return "not as claimed" if fall > 1 else told(gained - lost / 2, 1.0)
