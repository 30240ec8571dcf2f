"""FID and KID: distances between sets of images by their features."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import torch
from safetensors.torch import safe_open, save_file
from torch import Tensor

from ihdm.disk import kept_file
from ihdm.errors import IhdmError
from ihdm.noise import Purpose, generator

KID_SUBSETS, KID_SUBSET = 100, 1000  # the usual choice
KID_LEAST = 2 * KID_SUBSET  # images needed on either side before subsets differ enough to give a deviation
KEPT = ("features", "total", "outer")  # what a file of a reference holds
BLOCK = 4096  # features whose products are summed at a time


@dataclass(frozen=True)
class Reference:
    """Features (N, 2048) of a set of images, their sum and the sum of their outer products, in float64."""

    features: Tensor
    total: Tensor
    outer: Tensor
    _roots: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_features(cls, features: Tensor, device: torch.device | None = None) -> Reference:
        total, outer = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for block in features.split(BLOCK):
            block = block.to(device or features.device, torch.float64)
            total, outer = total + block.sum(0).cpu(), outer + (block.T @ block).cpu()
        return cls(features, total, outer)

    def moments(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The mean and the covariance."""
        total, outer, count = self.total.to(device), self.outer.to(device), len(self)
        mean = total / count
        return mean, (outer - count * mean.outer(mean)) / (count - 1)

    def root(self, device: torch.device) -> Tensor:
        """The square root of the covariance, computed once: it takes about as long as the rest of a distance."""
        if device not in self._roots:
            values, vectors = torch.linalg.eigh(self.moments(device)[1])
            self._roots[device] = vectors * values.clamp(min=0).sqrt() @ vectors.T
        return self._roots[device]

    def __len__(self) -> int:
        return len(self.features)


def frechet_distance(samples: Tensor, reference: Reference, device: torch.device | None = None) -> float:
    """The distance between Gaussians with the means and covariances of both; for Inception features this is FID.

    |m - n|^2 + tr(S + R - 2 (S R)^(1/2)), where the trace of the root is that of (R^(1/2) S R^(1/2))^(1/2): the
    eigenvalues of this symmetric matrix are real, and a GPU finds them many times faster than those of S R.
    """
    device = device or samples.device
    if len(samples) < 2 or not bool(samples.isfinite().all()):
        raise IhdmError(f"a Fréchet distance needs two samples or more, with finite features; there are {len(samples)}")
    mean, covariance = Reference.from_features(samples, device).moments(device)
    other_mean, other = reference.moments(device)
    root = reference.root(device)
    common = torch.linalg.eigvalsh(root @ covariance @ root).clamp(min=0).sqrt().sum()
    gap = (mean - other_mean).square().sum()
    return max(0.0, float(gap + covariance.trace() + other.trace() - 2 * common))


def kernel_distance(
    samples: Tensor, reference: Reference, seed: int, device: torch.device | None = None
) -> tuple[float, float | None]:
    """KID: mean and deviation, over random subsets, of an unbiased estimate of the squared distance of kernel means.

    With few images the subsets are nearly the same; their deviation would say nothing, and is None.
    """
    chance = generator(seed, Purpose.KID)
    size = min(KID_SUBSET, len(samples), len(reference))
    found = []
    for _ in range(KID_SUBSETS):
        x, y = (
            features[torch.randperm(len(features), generator=chance)[:size]].to(device or features.device)
            for features in (reference.features, samples)
        )
        within = sum((k.sum() - k.trace()) / (size * (size - 1)) for k in (_kernel(x, x), _kernel(y, y)))
        found.append(float(within - 2 * _kernel(x, y).mean()))
    values = torch.tensor(found, dtype=torch.float64)
    enough = min(len(samples), len(reference)) >= KID_LEAST
    return float(values.mean()), float(values.std(correction=0)) if enough else None


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """(x.y / d + 1)^3 of all pairs, float64 (Binkowski et al. 2018)."""
    return (x @ y.T / x.shape[1] + 1).double() ** 3


def write_reference(path: Path, key: Mapping[str, str], reference: Reference) -> None:
    with kept_file(path) as unfinished:
        save_file({name: getattr(reference, name).cpu().contiguous() for name in KEPT}, unfinished, dict(key))


def read_reference(path: Path, key: Mapping[str, str]) -> Reference:
    try:
        with safe_open(path, "pt") as file:
            found = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in KEPT}
    except (OSError, safetensors.SafetensorError) as error:
        raise IhdmError(f"{path} is damaged ({error}); remove it, and it will be computed again") from error
    if found != dict(key):
        raise IhdmError(
            f"{path} was made with other settings: {json.dumps(found)} instead of {json.dumps(dict(key))}; remove it, "
            f"and it will be computed again"
        )
    return Reference(**tensors)
