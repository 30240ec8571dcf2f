"""Spectra under noising and under blurring (Fig. 4, App. B.5-B.6)."""

from __future__ import annotations

from typing import Any

import torch

from ihdm.metrics.spectra import Rings
from ihdm.plots import figure, octaves, plain_numbers
from ihdm.studies.lab import BATCH, Findings, Lab
from ihdm.studies.verdict import LEAST, Verdict, told

IMAGES = 5000
NOISES = (0.03, 0.1, 0.3, 1.0)
BLURS = (0.02, 0.05, 0.12, 0.3)  # of the longest extent, which in an image is its longer side
NATURAL, NEAR = 2.0, 0.5  # the paper's exponent, which it calls approximate, and what counts as near it
CLAIM = (
    "the exponent is within 0.5 of 2 (decided only if it is more than two standard errors of the fit inside or "
    "outside this range)."
)
OTHERS = (
    "power falls with frequency: the exponent is above 0 (decided only if it is more than two standard errors of the "
    "fit away from 0)."
)


def study(lab: Lab) -> Findings:
    domain, laplacian = lab.images.domain, lab.images.domain.laplacian
    sigma, schedule = lab.process.sigma, lab.process.schedule(laplacian)
    rings = Rings(laplacian)
    some = lab.real(IMAGES).split(BATCH)
    generator = torch.Generator().manual_seed(lab.seed)
    data = rings.power(some)
    noisy = {
        noise: rings.power(u + noise * torch.randn(u.shape, generator=generator) for u in some) for noise in NOISES
    }
    widths = [share * domain.longest for share in BLURS]
    blurred = {width: rings.power(laplacian.dissipate(u, width**2 / 2) for u in some) for width in widths}
    frequency = rings.frequency[1:]
    middle = frequency <= torch.pi  # the few frequencies of the corners would decide the fit
    slope = _slope(frequency[middle].log(), data[1:][middle].log())
    left = [int((data[1:] * torch.exp(-2 * t * frequency.square()) > sigma**2).sum()) for t in schedule.t]

    with figure(lab.picture("power-spectrum"), columns=3, size=(4, 3.6)) as (one, two, three):
        shown = domain.frequencies(frequency)
        for axis, spectra, unit in ((one, noisy, "noise"), (two, blurred, "blur")):
            axis.loglog(shown, data[1:], color="black", label="data")
            for value, power in spectra.items():
                axis.loglog(shown, power[1:], label=f"{unit} {value:.2g}")
            axis.axhline(sigma**2, color="0.6", linestyle=":")
            axis.set(xlabel=domain.frequency_words, ylim=(sigma**2 / 10, None))
            plain_numbers(axis.xaxis, shown)
            axis.legend(fontsize=8)
        one.set(ylabel="power", title="adding noise")
        two.set(title=f"blurring, in {domain.unit}s (dotted: $\\sigma^2$)")
        three.semilogx(schedule.sigma_B[1:], left[1:])
        octaves(three.xaxis)
        three.set(xlabel=f"$\\sigma_B$, {domain.unit}s", ylabel="rings above $\\sigma^2$", title="what is left")
    return Findings(
        {
            "of": domain.kind,
            "frequency": frequency.tolist(),
            "data": data[1:].tolist(),
            "exponent": slope,
            "frequencies_above_noise": left,
        },
        "noise raises a floor that drowns the high frequencies first; blur removes them directly, down to the noise.",
        "the spectra of natural images follow a power law with an exponent near 2; both processes lose high "
        "frequencies first (Fig. 4); with the logarithmic schedule frequencies vanish at a nearly constant rate "
        "(App. B.5).",
        f"the fitted exponent is {slope:.2f}; of {len(frequency)} rings of frequencies, {left[1]} are above the "
        f"noise at level 1, {left[len(left) // 2]} half-way and {left[-1]} at level K."
        + f" The paper's 2 is for natural images, not for {domain.noun}s."
        * (domain.kind != "images"),
        claim=CLAIM if domain.kind == "images" else OTHERS,
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """For images, what the paper claims; for other data, which it does not mention, what blur needs."""
    frequency, data = (torch.tensor(numbers[name], dtype=torch.float64) for name in ("frequency", "data"))
    middle = frequency <= torch.pi
    x, y = frequency[middle].log(), data[middle].log()
    slope = _slope(x, y)
    left = y - y.mean() + slope * (x - x.mean())
    error = (left.square().sum() / max(1, len(x) - 2) / (x - x.mean()).square().sum()).sqrt()
    margin = NEAR - abs(slope - NATURAL) if numbers.get("of", "images") == "images" else slope
    return told(margin, float(error) if len(x) > LEAST else None)


def _slope(x: torch.Tensor, y: torch.Tensor) -> float:
    """Minus the slope of the best straight line."""
    x, y = x - x.mean(), y - y.mean()
    return -float((x * y).sum() / x.square().sum())
