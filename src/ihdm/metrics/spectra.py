"""Power spectra of images, averaged over contours of equal frequency (App. A.5, B.6)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ihdm.basis import Laplacian

ROUNDING = 1 / (12 * 255**2)  # the power that rounding to 8 bits adds to each coefficient


class Rings:
    """The frequencies of a Laplacian, gathered in rings as wide as the lowest of them.

    frequency: the mean frequency of each ring in radians per pixel, sqrt(-eigenvalue), from 0 (the mean colour) to
    pi sqrt(2) (the corner). modes: how many frequencies are in each ring.
    """

    def __init__(self, laplacian: Laplacian):
        self.laplacian = laplacian
        frequency = (-laplacian.eigenvalues).sqrt().flatten()
        nearest = (frequency * laplacian.side / math.pi).round().long()
        _, self._ring = nearest.unique(return_inverse=True)
        self.modes = torch.bincount(self._ring).double()
        self.frequency = self._mean(frequency)

    def __len__(self) -> int:
        return len(self.frequency)

    def power(self, batches: Iterable[Tensor]) -> Tensor:
        """|v_i^T u|^2 averaged over rings, channels and images given in batches (B, C, *grid), float64."""
        total, count = torch.zeros(self.laplacian.grid, dtype=torch.float64), 0
        for u in batches:
            squares = self.laplacian.to_spectrum(u.double()).square()
            total += squares.sum((0, 1)).cpu()
            count += len(u) * u.shape[1]
        return self._mean(total.flatten() / max(count, 1))

    def _mean(self, values: Tensor) -> Tensor:
        return torch.zeros_like(self.modes).index_add(0, self._ring, values) / self.modes


def log_spectral_distance(power: Tensor, other: Tensor) -> float:
    """Root mean square difference of two power spectra, in decibels, over all rings but the mean colour.

    Power below that of rounding to 8 bits counts as that.
    """
    decibels = 10 * (power[1:].clamp_min(ROUNDING) / other[1:].clamp_min(ROUNDING)).log10()
    return float(decibels.square().mean().sqrt())
