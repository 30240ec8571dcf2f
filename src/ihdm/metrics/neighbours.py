"""Nearest neighbours in a training set (App. D.5), and whether samples are closer to it than other images are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ihdm.data import Images
from ihdm.pixels import to_unit
from ihdm.progress import progress_bar

CPU = torch.device("cpu")
BLOCK = 2**23  # distances that are held in memory at a time
SPARE = 8  # more neighbours than asked for, so that rounding in the search does not decide
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
BEYOND = 5  # values needed beyond a quantile to give it: its level is then right to within about half of itself
CLOSEST = 0.01  # the share of held-out images, the closest ones, that samples are compared with
SHARE_LEAST = 100  # samples needed to give a share: one of them is then one percent


@dataclass(frozen=True)
class Neighbours:
    """Numbers of the nearest images and their Euclidean distances, (queries, count) each, nearest first."""

    index: Tensor
    distance: Tensor


@dataclass(frozen=True)
class Memorisation:
    """How far samples are from their nearest training images, in units of what is usual for images held out.

    score: the median distance of samples divided by that of held-out images: 1 for new images, 0 for copies. There is
    none if most held-out images are themselves copies of training images.
    closer: the share of samples that are no farther than the nearest one percent of the held-out images.
    samples, held_out: quantiles of both distances, in the same unit.
    missing: why there is no score, or no share of closer samples. Figures that need more images are None.
    """

    score: float | None
    closer: float | None
    samples: dict[float, float | None]
    held_out: dict[float, float | None]
    missing: dict[str, str] = field(default_factory=dict)

    noun: str = "image"  # what one item is called

    def __str__(self) -> str:
        if self.score is None:
            return self.missing["score"]
        far = f"{self.score:.3f} x as far as it is from held-out {self.noun}s"
        if self.closer is None:
            return f"{far}; samples as close as the closest 1 % of those: {self.missing['closer']}"
        return f"{far}; {100 * self.closer:.1f} % of the samples are as close as the closest 1 % of those"


def least(quantile: float) -> int:
    """How many values a quantile needs: 500 for the first percent, 10 for the median."""
    return math.ceil(round(BEYOND / min(quantile, 1 - quantile), 6))


def nearest(queries: Tensor, bank: Images, count: int, device: torch.device, doing: str = "") -> Neighbours:
    """The `count` images of the bank (N, ...) nearest to each query (n, ...); the device sees the bank in blocks.

    uint8 images are compared in [0, 1]. Candidates are found by products in float32; their distances and order are
    then computed from differences, in float64.
    """
    asked = min(count + SPARE, len(bank))
    points = _flat(queries, device)
    best, index = points.new_empty(len(points), 0), torch.empty(len(points), 0, dtype=torch.long, device=device)
    size = max(1, BLOCK // max(1, len(points), points.shape[1]))
    firsts = progress_bar(range(0, len(bank), size), desc=doing, unit="block", delay=2, disable=not doing)
    for first in firsts:
        block = _flat(bank[first : first + size], device)
        squared = block.square().sum(1) - 2 * points @ block.T  # without the query's square, the same for all
        numbers = torch.arange(first, first + len(block), device=device).expand_as(squared)
        best, order = torch.cat([best, squared], 1).topk(min(asked, best.shape[1] + len(block)), largest=False)
        index = torch.cat([index, numbers], 1).gather(1, order)
    index = index.cpu()
    distance = torch.stack(
        [
            (_flat(bank[rows], CPU).double() - point.double()).square().sum(1).sqrt()
            for rows, point in zip(index, points.cpu())
        ]
    )
    order = distance.argsort(dim=1, stable=True)[:, :count]
    return Neighbours(index.gather(1, order), distance.gather(1, order))


def memorisation(samples: Tensor, held_out: Tensor, noun: str = "image") -> Memorisation:
    """From the distances of samples and of held-out images, or other data, to their nearest training images."""
    missing = {"score": _too_few(samples, held_out, least(0.5), least(0.5), noun)}
    missing["closer"] = _too_few(samples, held_out, SHARE_LEAST, least(CLOSEST), noun)
    if missing["score"] or held_out.double().quantile(0.5) == 0:
        why = missing["score"] or f"no figure, as most held-out {noun}s are copies of training {noun}s"
        return Memorisation(None, None, {}, {}, {"score": why, "closer": why}, noun)
    usual = held_out.double().quantile(0.5)
    ours, theirs = samples.double() / usual, held_out.double() / usual
    close = float((ours <= theirs.quantile(CLOSEST)).double().mean())
    return Memorisation(
        score=float(ours.quantile(0.5)),
        closer=None if missing["closer"] else close,
        samples=_quantiles(ours),
        held_out=_quantiles(theirs),
        missing={name: why for name, why in missing.items() if why},
        noun=noun,
    )


def _too_few(samples: Tensor, held_out: Tensor, of_samples: int, of_held_out: int, noun: str) -> str:
    """Says which of the two are too few; empty if neither is."""
    for name, values, needed in ((f"held-out {noun}s", held_out, of_held_out), ("samples", samples, of_samples)):
        if len(values) < needed:
            return f"too few {name} to tell ({len(values)}; at least {needed} are needed)"
    return ""


def _quantiles(values: Tensor) -> dict[float, float | None]:
    return {q: float(values.quantile(q)) if len(values) >= least(q) else None for q in QUANTILES}


def _flat(images: Tensor, device: torch.device) -> Tensor:
    images = images.to(device)
    return (to_unit(images) if images.dtype == torch.uint8 else images.float()).flatten(1)
