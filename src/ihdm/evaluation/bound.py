"""The bound of a trained model on the negative log-likelihood of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ihdm import memory
from ihdm.data import unit_batches
from ihdm.engine import compile_ahead, exact_device, inference, recorded
from ihdm.errors import UsageError
from ihdm.likelihood import (
    Bound,
    bits_per_dimension,
    bound_of_terms,
    bounds,
    chosen_levels,
    gaussian_kl,
    gaussian_nll,
    mean_by_level,
    prior_term,
    standard_error,
)
from ihdm.model import Model
from ihdm.noise import SeededNoise
from ihdm.pixels import to_unit
from ihdm.plots import figure
from ihdm.processes import DDPM
from ihdm.workers import Workers

PRIOR_BATCH = 512  # images whose distances to the prior's are computed at a time


@dataclass(frozen=True)
class Likelihood:
    """The bound for each delta and each image, and what it is made of."""

    bounds: list[Bound]
    by_level: list[Tensor]  # for each delta the mean of L_0, ..., L_{K-1}; nan where no image was asked
    dimensions: int
    sigma: float
    levels: int  # asked for each image, of K
    seed: int

    @property
    def images(self) -> int:
        return len(self.bounds[0].L_0)

    @property
    def K(self) -> int:
        return len(self.by_level[0])

    def table(self) -> str:
        K = self.K
        levels = f"all {K} levels" if self.levels == K else f"{self.levels} of {K} levels each"
        lines = [
            f"{self.images:,} images of {self.dimensions:,} dimensions, {levels}, seed {self.seed}; "
            f"nats, mean +- standard error over images",
            "",
            f"{'delta/sigma':>11} {'L_K':>18} {'L_1..L_(K-1)':>22} {'L_0':>20} {'total':>22} {'bits/dim':>18}",
        ]
        for bound in self.bounds:
            parts = (bound.L_K, bound.chain, bound.L_0, bound.total)
            cells = [_words(part, 1) for part in parts]
            bits = bits_per_dimension(bound.total, self.dimensions)
            cells.append(_words(bits, 3))
            widths = (18, 22, 20, 22, 18)
            row = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))
            lines.append(f"{bound.delta / self.sigma:>11g} {row}")
        return "\n".join([*lines, "", "bits/dim: nats / (dimensions ln 2) + 8, for 8-bit pixels scaled to [0, 1]"])

    def tree(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "images": self.images,
            "dimensions": self.dimensions,
            "K": self.K,
            "levels": self.levels,
            "seed": self.seed,
            "sigma": self.sigma,
            "bits_per_dimension": "nats / (dimensions ln 2) + 8",
            "bounds": [self._tree(*pair) for pair in zip(self.bounds, self.by_level)],
        }

    def _tree(self, bound: Bound, by_level: Tensor) -> dict[str, Any]:
        bits = bits_per_dimension(bound.total, self.dimensions)
        named = {"L_K": bound.L_K, "L_1..L_(K-1)": bound.chain, "L_0": bound.L_0, "total": bound.total}
        named["bits_per_dimension"] = bits
        return {
            "delta": bound.delta,
            "delta_ratio": bound.delta / self.sigma,
            **{
                name: {"mean": float(v.mean()), "standard_error": _or_none(standard_error(v))}
                for name, v in named.items()
            },
            "mean_by_level": [_or_none(value) for value in by_level.tolist()],
            "total_per_image": bound.total.tolist(),
        }

    def draw(self, folder: Path) -> list[Path]:
        """The bound over delta, and its terms over the levels."""
        path = folder / "likelihood.png"
        with figure(path, columns=2) as (left, right):
            ratios = [bound.delta / self.sigma for bound in self.bounds]
            bits = [bits_per_dimension(bound.total, self.dimensions) for bound in self.bounds]
            left.errorbar(
                ratios, [float(b.mean()) for b in bits], [standard_error(b) for b in bits], marker="o", capsize=3
            )
            left.set(xlabel="delta / sigma", ylabel="bits / dimension", title=f"bound on {self.images:,} images")
            for values, ratio in zip((terms[1:] for terms in self.by_level), ratios):
                k = torch.arange(2, self.K + 1)
                known = ~values.isnan()
                right.plot(k[known], values[known], label=f"{ratio:g}")
            right.set(xlabel="level k", ylabel="L_(k-1), nats", title="terms of the bound")
            right.legend(title="delta / sigma")
        return [path]


@torch.no_grad()
def likelihood(
    model: Model,
    images: Tensor,
    delta_ratios: Sequence[float],
    *,
    levels: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    precision: torch.dtype = torch.float32,
    compiled: bool = True,
    workers: Workers | None = None,
    progress: bool = False,
) -> Likelihood:
    """The bound on -log p of uint8 images (N, C, H, W) for each ratio delta / sigma (Eq. 5-10).

    levels: how many to ask the network at for each image, drawn by chance; None: all of them.
    Image i has its own noise and levels, which depend on the seed and i alone.
    """
    workers, process = workers or Workers(), model.process
    delta_ratios = sorted(delta_ratios)
    check_noise(model, delta_ratios)
    numbers = workers.share(len(images))
    own = images[numbers.start : numbers.stop]
    asked = chosen_levels(process.K, numbers, None if levels is None else levels - 1, seed)
    answers = workers.join(_answers(model, own, numbers, asked, seed, batch_size, precision, compiled, progress))
    asked = workers.join(asked)
    means, dimensions = mean_by_level(answers, asked, process.K), math.prod(model.config.shape)
    if isinstance(process, DDPM):
        rest = workers.join(torch.cat([process.prior_term(u_0) for u_0 in unit_batches(own, PRIOR_BATCH)]))
        found, by_level, sigma = [bound_of_terms(answers, asked, rest, process.K)], [means], 1.0
    else:
        sigma, deltas = process.sigma, [ratio * process.sigma for ratio in delta_ratios]
        rest = workers.join(_prior_terms(model, own, deltas, progress)).T
        found = bounds(answers, asked, rest, process.K, dimensions, sigma, deltas)
        by_level = [_by_level(means, dimensions, sigma, delta) for delta in deltas]
    return Likelihood(found, by_level, dimensions, sigma, asked.shape[1], seed)


def _by_level(errors: Tensor, dimensions: int, sigma: float, delta: float) -> Tensor:
    """L_0, ..., L_{K-1} of the mean squared errors, of which they are linear functions."""
    first = gaussian_nll(errors[:1], dimensions, delta)
    return torch.cat([first, gaussian_kl(errors[1:], dimensions, sigma, delta)])


def check_noise(model: Model, delta_ratios: Sequence[float]) -> None:
    """Refuse what has no density."""
    if isinstance(model.process, DDPM):
        if list(delta_ratios) != [1.0]:
            raise UsageError("the bound of a diffusion model is that of its posterior's noise: delta ratio 1")
        return
    if model.process.sigma == 0:
        raise UsageError("a model trained without noise (process.sigma=0) has no likelihood")
    if not delta_ratios or not all(1e-3 <= ratio <= 1e3 for ratio in delta_ratios):
        raise UsageError(f"delta ratios go from 0.001 to 1000, not {', '.join(map(str, delta_ratios)) or 'none'}")


def _answers(
    model: Model,
    images: Tensor,
    numbers: range,
    levels: Tensor,
    seed: int,
    batch_size: int | None,
    precision: torch.dtype,
    compiled: bool,
    progress: bool,
) -> Tensor:
    """What the bound is made of, at the levels of each image, (images, levels), on the CPU.

    For inverse heat dissipation || mu(u_k, k) - F(t_{k-1}) u_0 ||^2, for the diffusion baseline its terms themselves.
    """
    question = model.process.bound_term if isinstance(model.process, DDPM) else model.process.loss_at
    device = next(model.network.parameters()).device
    size = min(max(1, len(images)), batch_size or model.batch_size(len(images), precision, compiled))
    network = inference(model.network, precision, compiled)
    if compiled:
        compile_ahead(model.network, torch.empty(size, *model.config.shape, device=device), precision)

    def ask(u_0: Tensor, image: Tensor, k: Tensor) -> Tensor:
        eps = SeededNoise(seed, image, model.config.shape)(k)
        return question(network, u_0, k, eps)

    ask = recorded(ask, device) if compiled else ask
    answers = torch.empty(levels.shape)
    with tqdm(total=levels.numel(), desc="asking the network", unit="level", disable=not progress, leave=False) as bar:
        for first in range(0, len(images), size):
            rows = torch.arange(first, first + size).clamp_max(len(images) - 1)  # all batches alike, for the recording
            own = rows[: len(images) - first]
            u_0, image = to_unit(images[rows].to(device)), (rows + numbers.start).to(device)
            with memory.advice(lambda: model.fewer_images(size, precision, compiled)):
                for column, k in enumerate(levels[rows].T):
                    answers[own, column] = ask(u_0, image, k.to(device))[: len(own)].cpu()
                    bar.update(len(own))
    return answers


def _prior_terms(model: Model, images: Tensor, deltas: Sequence[float], progress: bool) -> Tensor:
    """The bound of L_K, (images, deltas), on the CPU."""
    device = exact_device(next(model.network.parameters()).device)
    batches = tqdm(
        images.split(PRIOR_BATCH), desc="comparing with the prior", unit="batch", disable=not progress, leave=False
    )
    terms = [
        prior_term(model.prior, to_unit(batch.to(device)), model.process.sigma, deltas).T.cpu() for batch in batches
    ]
    return torch.cat([torch.empty(0, len(deltas), dtype=torch.float64), *terms])


def _words(values: Tensor, digits: int) -> str:
    """The mean, and its standard error where there is one."""
    error = f" +- {standard_error(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{float(values.mean()):,.{digits}f}{error}"


def _or_none(value: float) -> float | None:
    """JSON has no nan."""
    return None if math.isnan(value) else value
