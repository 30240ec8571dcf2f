"""Whether images are like those that a network knows, judged by its feature maps.

How much they surprise the network says little about that: plain pictures surprise it less than those that it knows.
Statistics of its coarsest feature map tell most printed letters from handwritten digits (docs/studies/restore.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

AXES = 100  # principal directions of the features, at most
FOR_EACH = 4  # images for each of these directions, at least
LEAST_SPREAD = 1e-6
QUANTILES = 101
STEPS = "steps"  # the name of what is no tensor of the distribution
UNUSUAL = 0.05  # the share of images held out from training that are called unlike what the model knows


@contextlib.contextmanager
def overheard(network: nn.Module) -> Iterator[list[Tensor]]:
    """Yields a list, to which each call of the network appends the mean and spread of a map's channels, (B, 2 C).

    The map is the last of the coarsest feature maps.
    """
    heard: list[Tensor] = []
    maps: list[Tensor] = []

    def hear(module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        if isinstance(output, Tensor) and output.ndim > 3:
            coarsest = not maps or output.shape[2:].numel() <= maps[0].shape[2:].numel()
            maps[:] = [output] if coarsest else maps
        if module is network:
            pixels = maps[0].flatten(2)
            heard.append(torch.cat([pixels.mean(2), pixels.std(2, correction=0)], 1).double().cpu())
            maps.clear()

    handles = [module.register_forward_hook(hear) for module in network.modules()]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Familiar:
    """How features of images that a network knows are distributed: probabilistic PCA (Tipping and Bishop 1999).

    mean: (2, F), for images restored from blur of level 0, and its change up to level K; spread: (F,); axes: (A, F),
    directions in units of the spread, with their variances; rest: the variance in all other directions; usual: the log
    of squared distances of held-out images at level 0, and its change; quantiles: of these in units of the usual one.
    steps: of training that the network had; None if a file does not say, as earlier ones.
    """

    mean: Tensor
    spread: Tensor
    axes: Tensor
    variances: Tensor
    rest: Tensor
    usual: Tensor
    quantiles: Tensor
    steps: int | None = None

    @classmethod
    def calibrated(cls, features: Tensor, levels: Tensor) -> Familiar:
        """From features (N, F) and the levels of the images, as shares of K. A third is held out for the quantiles."""
        third = torch.arange(len(features)) % 3 == 2
        known, design = features[~third], torch.stack([torch.ones_like(levels), levels], 1)
        mean = torch.linalg.lstsq(design[~third], known).solution
        deviation = known - design[~third] @ mean
        spread = deviation.std(0) + LEAST_SPREAD
        _, values, axes = torch.linalg.svd(deviation / spread, full_matrices=False)
        variances, count = values.square() / len(known), min(AXES, len(known) // FOR_EACH, features.shape[1] - 1)
        rest = variances[count:].sum() / (features.shape[1] - count)
        nothing = torch.zeros(2).double()
        found = cls(mean, spread, axes[:count].half().double(), variances[:count], rest[None], nothing, nothing)
        others = features[third], levels[third]
        usual = torch.linalg.lstsq(design[third], found.distances(*others).log()[:, None]).solution[:, 0]
        found = replace(found, usual=usual)
        return replace(found, quantiles=found.distances(*others).quantile(torch.linspace(0, 1, QUANTILES).double()))

    def distances(self, features: Tensor, levels: Tensor) -> Tensor:
        """Squared Mahalanobis distances of features (B, F) from levels (B,), in units of the usual one."""
        z = (features - self.mean[0] - levels[:, None] * self.mean[1]) / self.spread
        along = (z @ self.axes.mT).square()
        squares = (along / self.variances).sum(1) + (z.square().sum(1) - along.sum(1)) / self.rest
        return squares / torch.exp(self.usual[0] + levels * self.usual[1])

    def shares(self, features: Tensor, levels: Tensor) -> Tensor:
        """The share of held-out images that are as unusual as each, or more."""
        return (self.quantiles >= self.distances(features, levels)[:, None]).double().mean(1)

    def is_of(self, steps: int) -> bool:
        """Whether it belongs to the network after so many steps, as far as is known: others have other features."""
        return self.steps in (None, steps)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save; axes in half precision, to which they were rounded before."""
        kept = {name: torch.half if name == "axes" else torch.float for name in _tensor_names()}
        found = {name: getattr(self, name).to(dtype).contiguous() for name, dtype in kept.items()}
        return found if self.steps is None else found | {STEPS: torch.tensor([self.steps])}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Familiar:
        """From what `tensors` returned; ValueError if it is something else."""
        names, steps = _tensor_names(), tensors.get(STEPS)
        if sorted({*tensors} - {STEPS}) != sorted(names):
            raise ValueError(f"it must have exactly {', '.join(names)}, and may have {STEPS}")
        if steps is not None and (steps.shape != (1,) or steps.dtype != torch.long):
            raise ValueError(f"{STEPS} is not a number of steps")
        found = cls(**{name: tensors[name].double() for name in names}, steps=None if steps is None else int(steps))
        size, count = found.spread.shape[-1:].numel(), found.variances.shape[-1:].numel()
        shapes = (2, size), (size,), (count, size), (count,), (1,), (2,), (QUANTILES,)
        fits = all(getattr(found, name).shape == shape for name, shape in zip(names, shapes))
        if not fits or not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError(f"{', '.join(names)} do not fit together, or are not finite")
        return found


def _tensor_names() -> list[str]:
    return [f.name for f in fields(Familiar) if f.name != STEPS]


@dataclass(frozen=True)
class Verdict:
    """Whether a model knows such images; inverted: whether it knows the negative.

    share: what part of the images held out from training is as unusual; None if unknown. outdated: it is unknown as the
    network was trained further after the model was calibrated.
    """

    share: float | None
    inverted: bool = False
    noun: str = "image"
    outdated: bool = False

    @property
    def unusual(self) -> bool:
        return self.share is not None and self.share < UNUSUAL

    @property
    def words(self) -> str:
        if self.outdated:
            return (
                f"the model was trained further after it was calibrated, so it cannot say whether it knows such "
                f"{self.noun}s; run ihdm calibrate again"
            )
        if self.share is None:
            return f"the model was not calibrated (ihdm calibrate), so it cannot say whether it knows such {self.noun}s"
        as_unusual = f"{self.share:.0%} of the {self.noun}s held out from training are as unusual"
        almost_none = f"less than 1% of the {self.noun}s held out from training are as unusual"
        if self.unusual:
            return f"this does not look like what the model knows: {as_unusual if self.share >= 0.01 else almost_none}"
        return f"this looks like what the model knows: {as_unusual}"
