"""How far a learned step is from the best linear one (beyond the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.data import unit_batches
from ihdm.noise import SeededNoise
from ihdm.pixels import to_unit
from ihdm.plots import figure, octaves
from ihdm.processes import LinearPredictor, LinearSkip, Spectrum
from ihdm.studies.lab import Findings, Lab, blurring
from ihdm.studies.verdict import Verdict, mean_and_error, told

IMAGES, POINTS = 64, 15
CLAIM = (
    "at the finest level looked at, the learned step's error is smaller than that of the best linear one, by more "
    "than two standard errors over held-out data (our own claim)."
)


def study(lab: Lab) -> Findings:
    u_0, model = to_unit(lab.held_out(IMAGES)).to(lab.device), lab.model()
    process, K = blurring(model.process), model.process.K
    spectrum = Spectrum.from_images(process.laplacian, unit_batches(lab.images.train, 512))
    linear = LinearSkip(LinearPredictor(process.laplacian, process.schedule, process.sigma, spectrum))
    noise = SeededNoise(lab.seed, lab.numbers(len(u_0)), model.config.shape)
    levels = sorted({max(1, round(K * i / POINTS)) for i in range(1, POINTS + 1)})
    squares: list[Tensor] = []  # errors of each step, for each image
    errors: dict[str, list[float]] = {"doing nothing": [], "best linear step": [], "learned step": []}
    for level in levels:
        k = torch.full((len(u_0),), level, device=lab.device)
        u_k, target = model.process.noised(u_0, k, noise(level)), process.blur(u_0, k - 1)
        with torch.no_grad():
            steps = (u_k, linear.predict(u_k, k), process.mean(model.network, u_k, k))
        squares.append(torch.stack([(step - target).square().flatten(1).mean(1) for step in steps]))
        for values, found in zip(errors.values(), squares[-1]):
            values.append(float(found.mean().sqrt()))
    gain = [1 - learned / best for learned, best in zip(errors["learned step"], errors["best linear step"])]
    with figure(lab.picture("network-bias"), columns=2) as (left, right):
        sigma_B = [float(process.schedule.sigma_B[k]) for k in levels]
        for name, values in errors.items():
            left.loglog(sigma_B, values, "o-", markersize=3, label=name)
        width = f"$\\sigma_B$, {model.config.domain.unit}s"
        left.set(xlabel=width, ylabel="rms error of $u_{k-1}$")
        left.legend()
        right.semilogx(sigma_B, [100 * value for value in gain], "o-", markersize=3)
        right.axhline(0, color="0.6", linewidth=0.8)
        right.set(xlabel=width, ylabel="error less than linear, %")
        octaves(left.xaxis)
        octaves(right.xaxis)
    return Findings(
        {"levels": levels, "rms_error": errors, "gain": gain, "gain_error": _gain_error(squares[0][2], squares[0][1])},
        "where the learned step is better than the best linear filter, which knows only the data's spectrum.",
        "not in the paper.",
        f"the learned step's error is {100 * gain[0]:.0f} % less than the linear one's at level {levels[0]}, "
        f"{100 * gain[len(gain) // 2]:.0f} % less half-way, {100 * gain[-1]:.0f} % less at level K.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    return told(numbers["gain"][0], numbers["gain_error"])


def _gain_error(learned: Tensor, linear: Tensor) -> float | None:
    """The standard error of 1 - rms(learned) / rms(linear), from the squared errors of each image."""
    ratio = float(learned.mean() / linear.mean())
    _, error = mean_and_error(((learned - ratio * linear) / linear.mean()).tolist())
    return None if error is None else error / (2 * ratio**0.5)
