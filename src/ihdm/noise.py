"""Where eps comes from.

Noise is a pure function of (seed, image, step): no state, no order of drawing, the same bits on every
device, and image i is the same whatever the batch around it. Rows that name the same image share their noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from ihdm.constant import rows
from ihdm.errors import UsageError
from ihdm.settings import whole

PRIOR_CHOICE = 0  # the step at which an image picks its prior component; others are 1, 2, ..., K + 1
LABEL_CHOICE = -1  # the step at which it picks its label


class Purpose(IntEnum):
    """What a seed is used for, so that no two uses share their random numbers."""

    SHUFFLE = 1  # the order of images
    STEP = 2  # levels, noise, mirroring and dropped labels of a training step
    INIT = 3  # untrained weights
    HELD_OUT = 4  # levels and noise of the held-out loss
    LEVELS = 5  # levels at which a bound is estimated
    KID = 6  # subsets of KID
    DROPOUT = 7
    SHARDS = 8  # the order of a stream's shards
    WINDOW = 9  # the order of images within a stream's window


class Noise(Protocol):
    """A source of standard normal draws, one tensor (B, C, *grid) for each step k (Alg. 2)."""

    def __call__(self, k: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class SeededNoise:
    """eps for the rows of a batch; row b belongs to the image numbered `images[b]`.

    images: whole numbers in a tensor (B,), on the device where the noise is wanted; equal ones give equal noise.
    shape: (C, *grid) of one image.
    """

    seed: int
    images: Tensor
    shape: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))
        if not isinstance(self.images, Tensor) or self.images.is_floating_point():
            what = getattr(self.images, "dtype", type(self.images).__name__)
            raise UsageError(f"images must be whole numbers in a tensor, such as torch.arange(8), not {what}")
        object.__setattr__(self, "images", self.images.long())  # keys have 64 bits

    def __call__(self, k: Tensor | int) -> Tensor:
        """Standard normal eps of shape (B, *shape), float32, by the Box-Muller transform."""
        pixel = torch.arange(math.prod(self.shape), device=self.images.device)
        bits = _scramble(self._stream(k)[:, None] + pixel * _GOLDEN)
        radius = torch.sqrt(-2 * torch.log(((bits >> 32 & 0xFFFFFFFF) + 1).float() * 2.0**-32))
        angle = (bits & 0xFFFFFFFF).float() * (2 * math.pi * 2.0**-32)
        return (radius * torch.cos(angle)).view(-1, *self.shape)

    def choice(self, n: int | Tensor, step: int = PRIOR_CHOICE) -> Tensor:
        """A number in 0..n-1 for each row, uniformly distributed; n may differ between rows."""
        return (self._stream(step) & _MAX) % n

    def _stream(self, k: Tensor | int) -> Tensor:
        """A 64-bit key for each row's draws of step k."""
        return _scramble(_scramble(_scramble(self.images * 0 + _signed(self.seed)) ^ self.images) ^ k)


@dataclass(frozen=True)
class InterpolatedNoise:
    """From one source of noise (weight 0) to another (weight 1), on the circle that joins them.

    cos(x) a + sin(x) b of independent standard normal draws a, b is standard normal again. weight: one for each row.
    """

    one: SeededNoise
    other: SeededNoise
    weight: Tensor

    def __call__(self, k: Tensor | int) -> Tensor:
        a, b = self.one(k), self.other(k)
        angle = rows(self.weight * math.pi / 2, a)
        return angle.cos() * a + angle.sin() * b

    def choice(self, n: int) -> Tensor:
        """What the nearer of the two picks."""
        return torch.where(self.weight < 0.5, self.one.choice(n), self.other.choice(n))


@dataclass(frozen=True)
class BranchingNoise:
    """Noise for the leaves of a binary tree (Fig. 5b): two leaves share it down to the level where their branches part.

    splits: the levels at which every branch parts in two, an integer tensor on the device where the noise is wanted.
    There is a row for each of the 2^len(splits) leaves.
    """

    seed: int
    splits: Tensor
    shape: Sequence[int]

    def __call__(self, k: Tensor) -> Tensor:
        leaves = torch.arange(2 ** len(self.splits), device=self.splits.device)
        later = (self.splits < k).sum()  # splits still to come
        return SeededNoise(self.seed, leaves >> later, self.shape)(k)


def mix_seed(*numbers: int) -> int:
    """One non-negative 63-bit seed from several integers, well spread even if they are small and consecutive."""
    key = 0
    for number in numbers:
        digest = hashlib.blake2b(f"{key} {int(number)}".encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little") & _MAX
    return key


def generator(*numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of random numbers that depend only on several integers: a seed, a `Purpose`, and so on."""
    return torch.Generator(device).manual_seed(mix_seed(*numbers))


def permutation(n: int, *numbers: int) -> Tensor:
    """The numbers 0..n-1 in an order that depends only on several integers."""
    return torch.randperm(n, generator=generator(*numbers))


_MAX = 2**63 - 1


def _signed(value: int) -> int:
    """The 64-bit pattern of `value` as the signed number that torch.int64 holds."""
    value &= 2**64 - 1
    return value - 2**64 if value > _MAX else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FACTORS = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def _scramble(z: Tensor) -> Tensor:
    """SplitMix64's output function (Steele et al. 2014): a bijection of 64 bits without visible structure."""
    z = z + _GOLDEN
    for shift, factor in zip((30, 27), _FACTORS):
        z = (z ^ (z >> shift & (1 << 64 - shift) - 1)) * factor
    return z ^ (z >> 31 & (1 << 33) - 1)
