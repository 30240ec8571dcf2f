"""The bounds of a trained model on the negative log-likelihood of images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ihdm.data import Images, spread
from ihdm.engine import exact_device
from ihdm.execution import USUAL, Execution, Runner
from ihdm.likelihood import Bound, Bounding, bits_per_dimension, bounds, chosen_levels, standard_error, terms_by_level
from ihdm.model import Model
from ihdm.noise import SeededNoise
from ihdm.pixels import to_unit
from ihdm.processes import bounded
from ihdm.progress import progress_bar
from ihdm.workers import Workers

PRIOR_BATCH = 512  # images whose distances to those of the prior are computed at a time
FITTED = 1024  # training images that the variance of the last step is fitted to


@dataclass(frozen=True)
class Likelihood:
    """The bounds of each image, and what they are made of."""

    bounds: list[Bound]
    by_level: Tensor  # (K, bounds): the mean of L_0, ..., L_{K-1}; nan where no image was looked at
    dimensions: int
    levels: int  # evaluated for each image, of K
    seed: int
    noun: str = "image"

    @property
    def images(self) -> int:
        return len(self.bounds[0].L_0)

    @property
    def K(self) -> int:
        return len(self.by_level)

    def tree(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "images": self.images,
            "dimensions": self.dimensions,
            "K": self.K,
            "levels": self.levels,
            "seed": self.seed,
            "bits_per_dimension": "nats / (dimensions ln 2) + 8",
            "standard_error": f"over {self.noun}s" if self.images > 1 else f"null: a single {self.noun} gives none",
            "bounds": [self._tree(*pair) for pair in zip(self.bounds, self.by_level.T)],
        }

    def _tree(self, bound: Bound, by_level: Tensor) -> dict[str, Any]:
        bits = bits_per_dimension(bound.total, self.dimensions)
        named = {"L_K": bound.L_K, "L_1..L_(K-1)": bound.chain, "L_0": bound.L_0, "total": bound.total}
        named["bits_per_dimension"] = bits
        return {
            "bound": bound.row.name,
            "delta_ratio": bound.row.delta_ratio,
            **{
                name: {"mean": float(v.mean()), "standard_error": _or_none(standard_error(v))}
                for name, v in named.items()
            },
            "mean_by_level": [_or_none(value) for value in by_level.tolist()],
            "total_per_image": bound.total.tolist(),
        }


@torch.no_grad()
def likelihood(
    model: Model,
    images: Tensor,
    train: Images | None = None,
    *,
    levels: int | None = None,
    seed: int = 0,
    execution: Execution = USUAL,
    workers: Workers | None = None,
    **options: Any,
) -> Likelihood:
    """Bounds on -log p of uint8 images (N, C, H, W), or of other data (Eq. 5-10), as many as the process has.

    train: images to fit the variance of the last step to; None: the images themselves, which flatters the bound a bit.
    levels: how many levels to evaluate the network at for each image, level 1 and others drawn at random; None: all.
    options: those of the process, such as delta_ratio, several values of delta / sigma.
    Image i has its own noise and levels, which depend only on the seed and i.
    """
    workers, process = workers or Workers(), model.process
    bounding = bounded(process).bounding(**options)
    numbers = workers.share(len(images))
    own = images[numbers.start : numbers.stop]
    chosen = chosen_levels(process.K, numbers, None if levels is None else levels - 1, seed)
    runner = model.runner(execution)
    bounding.fit(runner.network, _last_steps(model, runner, images if train is None else train, seed))
    answers = workers.join(_answers(model, runner, bounding, own, numbers, chosen, seed))
    chosen = workers.join(chosen)
    rest = workers.join(_prior_terms(model, bounding, own, execution.progress))
    found = bounds(bounding, answers, chosen, rest, process.K)
    by_level = terms_by_level(bounding, answers, chosen, process.K)
    facts = math.prod(model.config.shape), chosen.shape[1], seed, model.config.domain.noun
    return Likelihood(found, by_level, *facts)


def _last_steps(model: Model, runner: Runner, images: Images, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images, each image with its own noise for level 1."""
    some = spread(images, FITTED)
    first = 0
    for batch in some.split(runner.size(len(some))):
        numbers = torch.arange(first, first + len(batch), device=model.device)
        yield to_unit(batch.to(model.device)), SeededNoise(seed, numbers, model.config.shape)(1)
        first += len(batch)


def _answers(
    model: Model, runner: Runner, bounding: Bounding, images: Tensor, numbers: range, levels: Tensor, seed: int
) -> Tensor:
    """What the bounds are made of, at the levels of each image, (images, levels, some numbers), on the CPU."""
    size = runner.size(max(1, len(images)))

    def ask(u_0: Tensor, k: Tensor, image: Tensor) -> Tensor:
        return bounding.ask(runner.network, u_0, k, SeededNoise(seed, image, model.config.shape)(k))

    ask = runner.recorded(ask, size)
    found: list[Tensor] = []
    shown = runner.execution.progress
    with progress_bar(total=levels.numel(), desc="evaluating", unit="level", disable=not shown) as bar:
        for first in range(0, len(images), size):
            rows = torch.arange(first, first + size).clamp_max(len(images) - 1)  # batches of one size, to be recorded
            own = rows[: len(images) - first]
            u_0, image = to_unit(images[rows].to(model.device)), (rows + numbers.start).to(model.device)
            columns = []
            with runner.advice(size):
                for k in levels[rows].T:
                    columns.append(ask(u_0, k.to(model.device), image)[: len(own)].cpu())
                    bar.update(len(own))
            found.append(torch.stack(columns, dim=1))
    if not found:  # a process without images must still know how many numbers an answer has
        u_0, k = torch.zeros(1, *model.config.shape), torch.ones(1, dtype=torch.long)
        answer = bounding.ask(runner.network, u_0.to(model.device), k.to(model.device), u_0.to(model.device))
        return answer[:0, None].expand(0, levels.shape[1], -1).cpu()
    return torch.cat(found)


def _prior_terms(model: Model, bounding: Bounding, images: Tensor, progress: bool) -> Tensor:
    """L_K, (images, bounds), on the CPU."""
    device = exact_device(model.device)
    batches = progress_bar(
        images.split(PRIOR_BATCH), desc="comparing with the prior", unit="batch", disable=not progress
    )
    terms = [bounding.prior_terms(to_unit(batch.to(device))).double().cpu() for batch in batches]
    return torch.cat([torch.empty(0, len(bounding.rows), dtype=torch.float64), *terms])


def _or_none(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else value
