"""Why training needs noise (App. C.5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ihdm.model import Model
from ihdm.noise import SeededNoise
from ihdm.pictures import some_of
from ihdm.plots import figure, tiles
from ihdm.studies.lab import PAPER_WORDS, Findings, Lab, blur_settings, blurring
from ihdm.studies.verdict import Verdict, every, told

ROWS, COLUMNS = 2, 9
SETTINGS = ("process.skip=identity", *PAPER_WORDS)
SAMPLES = 64
FAILED = 0.1  # of the pixels
CLAIM = (
    "without noise in training, more than a tenth of the pixels of samples end more than a tenth outside [0, 1], and "
    "with noise less than a tenth of them do, each by more than two standard errors over samples."
)


def study(lab: Lab) -> Findings:
    sigma = blur_settings(lab.config.process).sigma
    models = {"with noise": lab.trained(*SETTINGS), "without": lab.trained("process.sigma=0", *SETTINGS)}
    real = lab.real(SAMPLES)
    rows, labels, beyond, growth = [], [], {}, {}
    for name, model in models.items():
        states = dict(_unclamped(lab, model))
        rows += [[states[k][i] for k in some_of(model.process.levels(), COLUMNS)] for i in range(ROWS)]
        labels += [name] + [""] * (ROWS - 1)
        beyond[name] = float(((states[0] < -0.1) | (states[0] > 1.1)).double().mean())
        growth[name] = _growth(lab, model, real, sigma)
    with figure(lab.picture("sigma-zero"), size=(9, 4.2)) as (axis,):
        tiles(axis, rows, labels)
    return Findings(
        {"pixels_beyond_the_scale": beyond, "growth_of_small_noise": growth, "sigma": sigma},
        "sequences from blank to sharp, by a model trained with noise and by one trained without.",
        "without noise in training the network amplifies small errors, and sampling fails (App. C.5).",
        f"pixels of samples more than a tenth outside [0, 1]: {100 * beyond['with noise']:.1f} % with noise in "
        f"training, {100 * beyond['without']:.1f} % without. Noise of a hundredth of sigma, added to the input of a "
        f"step, comes out {growth['with noise']:.2f} and {growth['without']:.2f} times as large, on average over "
        f"levels.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """A share p of pixels scatters over samples by at most sqrt(p (1 - p))."""
    beyond = numbers["pixels_beyond_the_scale"]
    errors = {name: math.sqrt(share * (1 - share) / SAMPLES) for name, share in beyond.items()}
    fails = told(beyond["without"] - FAILED, errors["without"])
    return every([fails, told(FAILED - beyond["with noise"], errors["with noise"])])


def _unclamped(lab: Lab, model: Model) -> Iterator[tuple[int, Tensor]]:
    numbers = lab.numbers(SAMPLES)
    noise = SeededNoise(lab.seed, numbers, model.config.shape)
    return ((k, u.cpu()) for k, u in model.path(model.start(numbers, lab.seed), noise, execution=lab.execution))


@torch.no_grad()
def _growth(lab: Lab, model: Model, real: Tensor, sigma: float) -> float:
    """How many times larger a small disturbance of u_k is after a step, on average over levels."""
    generator = torch.Generator().manual_seed(lab.seed)
    small = 0.01 * sigma * torch.randn(real.shape, generator=generator).to(lab.device)
    u_0, ratios = real.to(lab.device), []
    process, K = blurring(model.process), model.process.K
    for level in range(1, K + 1, max(1, K // 20)):
        k = torch.full((len(u_0),), level, device=lab.device)
        u_k = process.blur(u_0, k)
        change = process.mean(model.network, u_k + small, k) - process.mean(model.network, u_k, k)
        ratios.append(float(change.norm() / small.norm()))
    return sum(ratios) / len(ratios)
