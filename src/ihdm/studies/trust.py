"""Whether restorations can be trusted: blurs of unknown width, and pictures that the model does not know."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.data import Images, evenly_spaced
from ihdm.judgement import calibrate
from ihdm.metrics.fidelity import psnr
from ihdm.model import Model
from ihdm.pixels import to_unit
from ihdm.progress import progress_bar
from ihdm.restoration import observe
from ihdm.studies.lab import Lab
from ihdm.studies.strangers import BORDERS, WAYS, by_pillow, by_scipy, strangers

RADII = 0.054, 0.143  # of other programs' blurs, as shares of the longer side: 1.5 to 4 pixels of 28
CLOSE = 1.0  # dB
ALARMS = 0.05  # share of held-out images that may be flagged
UNKNOWN = 200  # images of an unknown width
CALIBRATED = 1200  # held-out images that ihdm calibrate takes by default
STRANGERS = 52  # pictures of each kind that the model does not know


def unknown_widths(lab: Lab, model: Model) -> dict[str, dict[str, float]]:
    """For held-out images blurred by other programs: what not knowing the width costs, and how good intervals are."""
    restorer = model.restorer(lab.execution.quiet())
    judge, familiar = restorer.judge(), restorer.familiar
    count, longest = 2 if lab.quick else UNKNOWN, max(lab.images.shape[1:])
    radii = (longest * torch.linspace(*RADII, count)).tolist()
    held_out = _fresh(lab.images.held_out, count)
    rows: dict[str, list[list[float]]] = {"Pillow": [], "scipy": []}
    order = torch.randperm(count, generator=torch.Generator().manual_seed(lab.seed)).tolist()
    for i, (image, place) in enumerate(progress_bar(list(zip(held_out, order)), desc="finding widths", unit="image")):
        name, width = ("Pillow", "scipy")[i % 2], radii[place]
        y = by_pillow(image, width) if name == "Pillow" else by_scipy(image, width, BORDERS[i // 2 % len(BORDERS)])
        y = y.double()
        seen = {"spectrum": observe(judge.blurs, y), "found": judge.observe(y), "true": judge.known(y, width)}
        close = {
            way: float(psnr(judge.restored([one], 8).mean(1).cpu(), to_unit(image)[None])) for way, one in seen.items()
        }
        low, high = seen["found"].interval or (seen["found"].width,) * 2
        loss = [close["true"] - close[way] for way in ("found", "spectrum")]
        error = abs(seen["found"].width / width - 1)
        unusual = familiar is not None and judge.verdict(familiar, seen["found"], negative=False).unusual
        within = [x <= CLOSE for x in loss]
        rows[name].append([*within, low <= width <= high, unusual, error, *loss])
    shares = "within_1_dB", "within_1_dB_by_spectrum", "interval_covers", "flagged_wrongly"
    medians = "median_relative_error", "median_loss_dB"
    found = {}
    for name, values in rows.items():
        table = torch.tensor(values)
        means, middles = table[:, :4].mean(0).tolist(), table[:, 4:6].median(0).values.tolist()
        found[name] = {"images": len(values)} | dict(zip(shares, means)) | dict(zip(medians, middles))
    return found


def width_words(unknown: dict[str, dict[str, float]]) -> str:
    words = [
        f"{name}, {one['images']} images: {one['within_1_dB']:.0%} ({one['within_1_dB_by_spectrum']:.0%} with the "
        f"width from the spectrum alone), with a median error of the width of {one['median_relative_error']:.1%}, the "
        f"true width in the interval for {one['interval_covers']:.0%}, and {one['flagged_wrongly']:.0%} flagged wrongly"
        for name, one in unknown.items()
    ]
    return (
        f"Unknown widths, found as `ihdm restore` finds them. How many restorations (the mean of 8, in eight exact "
        f"steps) are within {CLOSE:g} dB of what the true width gives: {'; '.join(words)}."
    )


def trust(lab: Lab, model: Model) -> dict[str, Any]:
    """How many pictures of other kinds are flagged, at each rate of false alarms on held-out images."""
    restorer, held_out = model.restorer(lab.execution.quiet()), lab.images.held_out
    judge = restorer.judge()
    count, longest = (2 if lab.quick else STRANGERS), max(lab.images.shape[1:])
    taken = _taken(len(held_out))[:: 4 if lab.quick else 1]
    familiar = restorer.familiar or calibrate(judge, held_out[taken], WAYS)
    fresh = _fresh(held_out, 4 * count)
    distances: dict[str, list[float]] = {}
    for name, images in ({"held out": fresh} | strangers(fresh, count)).items():
        distances[name] = []
        for i, image in enumerate(progress_bar(images, desc=f"judging {name}", unit="image")):
            width = longest * (RADII[0] + (RADII[1] - RADII[0]) * (i * 7 % len(images)) / len(images))
            y = (by_pillow(image, width) if i % 2 else by_scipy(image, width, "reflect")).double()
            seen = judge.known(y, width)
            level = torch.tensor([seen.level / judge.process.K]).double()
            distances[name].append(float(familiar.distances(judge.features(seen), level)))
    usual = torch.tensor(distances.pop("held out")).double()
    alarms = [0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5]
    limits = usual.quantile(1 - torch.tensor(alarms).double())
    curves = {n: [float((torch.tensor(d).double() > x).double().mean()) for x in limits] for n, d in distances.items()}
    limit = familiar.quantiles.quantile(1 - ALARMS)
    flagged = {n: float((torch.tensor(d) > limit).double().mean()) for n, d in distances.items()}
    return {
        "images": {"held out": len(usual), **{name: len(d) for name, d in distances.items()}},
        "false_alarms": alarms,
        "flagged_at_false_alarms": curves,
        "flagged": flagged,
        "false_alarms_as_calibrated": float((usual > limit).double().mean()),
    }


def _taken(n: int) -> Tensor:
    """Which of n held-out images `ihdm calibrate` takes; half of a small set."""
    return evenly_spaced(n, min(CALIBRATED, n // 2))


def _fresh(held_out: Images, count: int) -> Tensor:
    """Held-out images that `ihdm calibrate` does not take, at most `count`."""
    left = torch.ones(len(held_out), dtype=torch.bool)
    left[_taken(len(held_out))] = False
    numbers = left.nonzero()[:, 0]
    return held_out[numbers[evenly_spaced(len(numbers), count)]]


def trust_words(known: dict[str, Any]) -> str:
    flagged = ", ".join(f"{name} {share:.0%}" for name, share in known["flagged"].items())
    overall = sum(known["flagged"].values()) / len(known["flagged"])
    return (
        f"Pictures of other kinds, blurred in the same way ({known['images']['held out']} held-out images that the "
        f"calibration did not use, and {known['images']['letters']} of each other kind). Flagged: {flagged}, "
        f"{overall:.0%} in all, with false alarms on {known['false_alarms_as_calibrated']:.0%} of held-out images. "
        f"The width is known here."
    )
