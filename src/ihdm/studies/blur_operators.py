"""Three ways to blur: how much they differ, how long they take, and how well models do with them (App. C.6)."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from ihdm.heat import FiniteDifferences, GaussianFilter, GridLaplacian
from ihdm.pictures import some_of
from ihdm.plots import figure, octaves, tiles
from ihdm.studies.lab import PAPER_WORDS, Findings, Lab
from ihdm.studies.verdict import Verdict, both, every, told

OPERATORS: dict[str, Any] = {
    "cosine basis": GridLaplacian,
    "Gaussian filter": GaussianFilter,
    "finite differences": FiniteDifferences,
}
MODELS: dict[str, tuple[str, ...]] = {"cosine basis": (), "Gaussian filter": ("process.blur=gaussian",)}
IMAGES, POINTS, SHOWN, SAMPLES = 32, 12, 5, 5
SLOW, TIME_ERROR = 2.0, 0.25  # times as long; the error of such a ratio, as a share
CLAIM = (
    "a model trained with the Gaussian filter is farther from the data than one trained with the cosine basis, by "
    "more than two standard errors, and at the widest blur finite differences take more than twice as long as the "
    "cosine basis (a ratio between 1 and 3 is too small to tell)."
)


def study(lab: Lab) -> Findings:
    grid = lab.images.shape[1:]
    u_0 = lab.real(IMAGES).to(lab.device)
    schedule = lab.process.schedule(lab.images.domain.laplacian)
    widths = [float(schedule.sigma_B[1 + i]) for i in some_of(range(schedule.K), POINTS)]
    blurred: dict[str, list[Tensor]] = {}
    milliseconds: dict[str, list[float]] = {}
    for name, operator in OPERATORS.items():
        timed = [_timed(operator(grid), u_0, width**2 / 2) for width in widths]
        blurred[name], milliseconds[name] = [images for images, _ in timed], [taken for _, taken in timed]
    exact = blurred["cosine basis"]
    apart = {
        name: [float((one - other).square().mean().sqrt()) for one, other in zip(found, exact)]
        for name, found in blurred.items()
        if found is not exact
    }
    models = {name: lab.trained("process.skip=identity", *words, *PAPER_WORDS) for name, words in MODELS.items()}
    samples = {name: model.sample(SAMPLES, lab.seed, execution=lab.execution) for name, model in models.items()}
    distances = {name: lab.distance_of(model) for name, model in models.items()}
    distance = {name: found.value for name, found in distances.items()}
    picks = some_of(range(len(widths)), SHOWN)
    with figure(lab.picture("blur-operators"), columns=3, size=(4.2, 3.8)) as (left, middle, right):
        rows = [[found[i][0] for i in picks] for found in blurred.values()] + list(samples.values())
        tiles(left, rows, [*blurred, *(f"samples, {name}" for name in samples)])
        for name, values in apart.items():
            middle.loglog(widths, values, "o-", markersize=3, label=f"{name} - cosine basis")
        middle.set(xlabel="$\\sigma_B$, pixels", ylabel="rms difference")
        middle.legend(fontsize=8)
        for name, values in milliseconds.items():
            right.loglog(widths, values, "o-", markersize=3, label=name)
        right.set(xlabel="$\\sigma_B$, pixels", ylabel=f"ms for {IMAGES} images")
        right.legend(fontsize=8)
        octaves(middle.xaxis)
        octaves(right.xaxis)
    last = {name: values[-1] for name, values in milliseconds.items()}
    return Findings(
        {
            "sigma_B": widths,
            "rms_difference": apart,
            "milliseconds": milliseconds,
            "distance": distance,
            "distance_error": {name: found.error for name, found in distances.items()},
            "distance_is": lab.distance_name,
        },
        "the Gaussian filter darkens the edges, because it takes the outside of the image to be black; finite "
        "differences agree with the heat equation but take more and more steps as the blur widens.",
        "a model trained with the Gaussian filter is slightly worse on CIFAR-10 (FID 22.44 instead of 18.96); finite "
        "differences would be slow (App. C.6).",
        f"at the widest blur, {widths[-1]:.3g} pixels, the root mean square difference from the heat equation is "
        + ", ".join(f"{values[-1]:.2g} ({name})" for name, values in apart.items())
        + "; blurring takes "
        + ", ".join(f"{value:.3g} ms ({name})" for name, value in last.items())
        + f". {lab.distance_name} of the trained models: "
        + ", ".join(f"{value:.4g} ({name})" for name, value in distance.items())
        + ".",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    distance, error = numbers["distance"], numbers["distance_error"]
    names = ("Gaussian filter", "cosine basis")
    worse = told(distance[names[0]] - distance[names[1]], both(*(error[name] for name in names)))
    slow, fast = (numbers["milliseconds"][name][-1] for name in ("finite differences", "cosine basis"))
    return every([worse, told(slow / fast - SLOW, TIME_ERROR * SLOW)])


def _timed(operator: Any, u_0: Tensor, t: float) -> tuple[Tensor, float]:
    """The blurred images, and the shortest of three times in milliseconds."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        blurred = operator.dissipate(u_0, torch.tensor(t)).cpu()  # to the CPU, so that a GPU has finished
        times.append(1000 * (time.perf_counter() - start))
    return blurred, min(times)
