"""Restoring blurred held-out images: how close to the truth, and how well the spread of samples tells the error.

Also how well an unknown width is found, and how well pictures that the model does not know are recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ihdm.metrics.fidelity import psnr, ssim
from ihdm.model import Model
from ihdm.pixels import to_bytes, to_unit
from ihdm.plots import figure, octaves, tiles
from ihdm.processes import restoring
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.trust import ALARMS, trust, trust_words, unknown_widths, width_words
from ihdm.studies.verdict import Verdict, told

SHARES = (0.04, 0.07, 0.11, 0.18, 0.29)  # blur widths, as shares of the longer side
UNSURE = 0.02  # pixels with a larger spread count in the calibration
SHOWN = 3  # samples in the picture
WAYS = ("blurred", "Wiener", "sample", "mean")
CLAIM = (
    "at every width the mean of the samples is closer to the truth than the estimate of Wiener's filter, by more than "
    "1 dB in PSNR, over at least 8 images (our own claim)."
)


def study(lab: Lab) -> Findings:
    model = lab.model()
    laplacian = restoring(model.process).laplacian
    count, samples = (4, 4) if lab.quick else (8, 8)
    truth = to_unit(lab.held_out(count))
    sides = [share * max(lab.images.shape[1:]) for share in (SHARES[1::2] if lab.quick else SHARES)]
    widths = [round(side, 1) for side in sides]
    scores: dict[str, dict[str, list[float]]] = {"psnr": {way: [] for way in WAYS}, "ssim": {way: [] for way in WAYS}}
    calibration: dict[str, list[float]] = {"within_1": [], "within_2": [], "rms_z": []}
    residual, width_error = [], []
    rows: list[list[Tensor]] = []
    for width in widths:
        u = to_unit(to_bytes(laplacian.dissipate(truth, width**2 / 2)))
        found = [_restored(lab, model, image, width, samples) for image in u]
        images = torch.stack([restored for restored, _, _, _ in found])  # (image, sample, C, H, W)
        results = {"blurred": u, "Wiener": torch.stack([wiener for _, wiener, _, _ in found])}
        results |= {"sample": images[:, 0], "mean": images.mean(1)}
        measures: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"psnr": psnr, "ssim": ssim}
        for name, measure in measures.items():
            for way in WAYS:
                scores[name][way].append(float(measure(results[way], truth).mean()))
        for name, value in _calibration(images, truth).items():
            calibration[name].append(value)
        residual.append(255 * float(torch.tensor([again for _, _, again, _ in found]).mean()))
        guessed = torch.tensor([guess for _, _, _, guess in found])
        width_error.append(float((guessed / width - 1).square().mean().sqrt()))
        i = len(rows) % len(truth)  # another image in each row
        rows.append([u[i], results["Wiener"][i], *images[i, :SHOWN], results["mean"][i], truth[i]])
    unknown, known = unknown_widths(lab, model), trust(lab, model)
    with figure(lab.picture("restore"), columns=4, size=(4.3, 3.6), widths=(1.3, 1, 1, 1)) as axes:
        left, middle, right, roc = axes
        columns = ["blurred", "Wiener", *[f"sample {i + 1}" for i in range(SHOWN)], "mean", "truth"]
        tiles(left, rows, [f"$\\sigma_B$ = {width:g}" for width in widths], columns)
        left.tick_params(axis="x", labelsize=7)
        for axis, name, label in ((middle, "psnr", "PSNR in dB"), (right, "ssim", "SSIM")):
            for way in WAYS:
                axis.plot(widths, scores[name][way], "o-", label=way)
            axis.set(xlabel="blur width in pixels", ylabel=label, xscale="log")
            octaves(axis.xaxis)
        middle.legend()
        for name, curve in known["flagged_at_false_alarms"].items():
            roc.plot(known["false_alarms"], curve, label=name)
        roc.axvline(ALARMS, color="grey", lw=0.8)
        roc.set(xlabel="false alarms on held-out images", ylabel="flagged", xlim=(0, 0.5), ylim=(0, 1.02))
        roc.legend()
    words = [
        f"sigma_B {width:g}: {scores['psnr']['blurred'][i]:.1f}, {scores['psnr']['Wiener'][i]:.1f}, "
        f"{scores['psnr']['sample'][i]:.1f}, {scores['psnr']['mean'][i]:.1f}"
        for i, width in enumerate(widths)
    ]
    inside = sum(calibration["within_1"]) / len(widths), sum(calibration["within_2"]) / len(widths)
    return Findings(
        {"widths": widths, **scores, "calibration": calibration, "residual_of_255": residual}
        | {"estimated_width_relative_error": width_error, "images": len(truth), "samples": samples}
        | {"unknown_width": unknown, "trust": known},
        "what the best linear filter makes of a blurred image, and what the model makes of it; samples differ in what "
        "the blur has destroyed.",
        "does not restore images; its reverse process starts from blurred training images (section 2.1).",
        f"PSNR in dB of {len(truth)} held-out images under the model's own blur of known width "
        f"(blurred, Wiener's filter, a sample, the mean of {samples}): "
        f"{'; '.join(words)}. Where samples disagree, the truth is within one standard deviation of their mean for "
        f"{inside[0]:.0%} of the pixels, within two for {inside[1]:.0%} (a normal distribution: 68 %, 95 %). Blurred "
        f"again, samples differ from the given image by {max(residual):.2f}/255 (rms) at the width where they differ "
        f"most. "
        f"From the spectrum alone, the width is estimated with an error of {min(width_error):.0%} to "
        f"{max(width_error):.0%}.\n\n{width_words(unknown)}\n\n{trust_words(known)}",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    gains = [mean - wiener for mean, wiener in zip(numbers["psnr"]["mean"], numbers["psnr"]["Wiener"])]
    return told(min(gains), 0.5 if numbers["images"] >= 8 else None)


def _restored(lab: Lab, model: Model, image: Tensor, width: float, n: int) -> tuple[Tensor, Tensor, float, float]:
    """Samples, Wiener's estimate, how far the samples, blurred again, are from the image, and the estimated width."""
    found = model.restore(image, n, lab.seed, blur_width=width, execution=lab.execution)
    wiener = found.seen.deconvolved().float().clamp(0, 1)
    return found.images, wiener, found.seen.residual(found.images), model.restorer().observation(image).width


def _calibration(images: Tensor, truth: Tensor) -> dict[str, float]:
    """Errors of the mean of samples (N, n, C, H, W) in units of their spread, where it is more than `UNSURE`."""
    n = images.shape[1]
    spread = images.std(1) * (1 + 1 / n) ** 0.5
    z = ((truth - images.mean(1)) / spread)[spread > UNSURE]
    if not len(z):
        return {"within_1": 1.0, "within_2": 1.0, "rms_z": 0.0}
    inside = {f"within_{k}": float((z.abs() <= k).float().mean()) for k in (1, 2)}
    return inside | {"rms_z": float(z.square().mean().sqrt())}
