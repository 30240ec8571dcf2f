"""Orbitals of atoms with one electron: the exact wave functions, with random size and orientation.

psi = (a harmonic polynomial in x, y, z of degree l) x exp(-Z r / n), for quantum numbers l and n = l + 1, the least n
for this l. It is stored as two channels, its positive part and its negative part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

SIZE = 16  # of each axis, by default
TRAIN, TEST = 2500, 500  # orbitals in each split
LEAST = 0.05  # of the largest value: anything less counts as nothing
TINY = 1e-30  # avoids a division by 0: most orbitals are 0 on a grid of one voxel
REACH = 0.75, 1.0  # range of the radius where this begins, in units of half the volume
SHAPES: dict[str, list[Callable[..., Tensor]]] = {  # r^l Y_lm, one for each shape; others are rotations of these
    "1s": [lambda x, y, z, r2: torch.ones_like(x)],
    "2p": [lambda x, y, z, r2: z],
    "3d": [lambda x, y, z, r2: (3 * z**2 - r2) / 2, lambda x, y, z, r2: x * y],
    "4f": [
        lambda x, y, z, r2: z * (5 * z**2 - 3 * r2) / 2,
        lambda x, y, z, r2: x * (5 * z**2 - r2),
        lambda x, y, z, r2: x * y * z,
        lambda x, y, z, r2: x * (x**2 - 3 * y**2),
    ],
}
KINDS = tuple(SHAPES)  # n and the letter of l


@dataclass(frozen=True)
class Orbitals:
    """Volumes (N, 2, D, H, W) in [0, 1], and the kind of each, as its number in KINDS."""

    volumes: Tensor
    kinds: Tensor


def orbitals(count: int, seed: int, grid: Sequence[int] = (SIZE,) * 3) -> Orbitals:
    """As many as `count`, from a seed; the same ones on any grid."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(len(KINDS), (count,), generator=generator)
    shapes = torch.rand(count, generator=generator)
    reach = REACH[0] + (REACH[1] - REACH[0]) * torch.rand(count, generator=generator)
    signs = torch.randint(2, (count,), generator=generator) * 2 - 1
    turns = _rotations(torch.randn(count, 4, generator=generator))
    places = _places(grid)
    found = torch.empty(count, *grid)
    for i in range(count):
        kind = KINDS[int(kinds[i])]
        found[i] = signs[i] * _psi(kind, float(shapes[i]), (turns[i] @ places) / reach[i]).view(*grid)
    found /= found.flatten(1).abs().amax(1).clamp_min(TINY).view(-1, 1, 1, 1)
    return Orbitals(torch.stack([found.clamp_min(0), (-found).clamp_min(0)], 1), kinds)


def _psi(kind: str, shape: float, places: Tensor) -> Tensor:
    """psi at places (3, voxels), scaled so that nothing is left of it beyond a distance of 1."""
    shapes = SHAPES[kind]
    x, y, z = _edge(KINDS.index(kind)) * places
    r2 = x**2 + y**2 + z**2
    return shapes[int(shape * len(shapes))](x, y, z, r2) * torch.exp(-r2.sqrt() / 2)  # lengths in units of n / (2 Z)


@cache
def _edge(degree: int) -> float:
    """The length, in the same units, from which on nothing is left of r^l exp(-r / 2)."""
    r = torch.linspace(0, 60, 3001)
    size = r**degree * torch.exp(-r / 2)
    return float(r[size > LEAST * size.max()].max())


def _places(grid: Sequence[int]) -> Tensor:
    """The places of all voxels, (3, voxels); the longest axis goes from -1 to 1."""
    axes = [(2 * torch.arange(n) + 1 - n) / max(grid) for n in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)


def _rotations(quaternions: Tensor) -> Tensor:
    """Rotations (N, 3, 3) from quaternions (N, 4); if these are normally distributed, all are equally likely."""
    w, x, y, z = (quaternions / quaternions.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)
