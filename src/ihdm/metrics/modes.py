"""A distance between sets of data of any kind, by their Laplacian's coefficients: it needs no trained network."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.metrics.distances import Reference, frechet_distance
from ihdm.metrics.spectra import ROUNDING

LOWEST = 16  # modes of each channel whose coefficients are features


class Modes:
    """Features of data (B, C, *grid): each channel's lowest coefficients, and the logarithm of its power by octave.

    An octave goes from one frequency to twice that, the first from the lowest that is not 0. Power is the mean square
    of coefficients; the power of rounding to 8 bits is added to that of each octave.
    """

    def __init__(self, laplacian: Laplacian, channels: int):
        self.laplacian = laplacian
        frequency = (-laplacian.eigenvalues).sqrt().flatten()
        self._lowest = frequency.argsort(stable=True)[:LOWEST]
        number = frequency * laplacian.side / math.pi  # of half-waves along the domain
        self._moving = number > 0.5
        octave = (number[self._moving] + 1e-6).log2().floor().clamp_min(0)
        _, self._octave = octave.unique(return_inverse=True)
        self._modes = torch.bincount(self._octave).double()
        self.count = channels * (len(self._lowest) + len(self._modes))

    def features(self, batches: Iterable[Tensor]) -> Tensor:
        """The features of data in [0, 1] given in batches, (N, count), float64, on the CPU."""
        return torch.cat([torch.empty(0, self.count, dtype=torch.float64), *map(self._features, batches)])

    def _features(self, u: Tensor) -> Tensor:
        u_hat = self.laplacian.to_spectrum(u.double()).cpu().flatten(2)
        squares = u_hat[..., self._moving].square()
        power = squares.new_zeros(*u.shape[:2], len(self._modes)).index_add(2, self._octave, squares) / self._modes
        return torch.cat([u_hat[..., self._lowest], (power + ROUNDING).log()], -1).flatten(1)


def modes_distance(samples: Tensor, reference: Tensor) -> float:
    """The Fréchet distance between features of samples and of a reference, each in units of the reference's deviation.

    So all features count alike. One that is nearly the same in all of the reference is in units of rounding instead.
    """
    mean, deviation = reference.mean(0), reference.std(0).clamp_min(math.sqrt(ROUNDING))
    return frechet_distance((samples - mean) / deviation, Reference.from_features((reference - mean) / deviation))
