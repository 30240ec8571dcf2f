"""Volumes: voxels in depth, height and width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ihdm.domains.domain import Domain, Shape, by

if TYPE_CHECKING:
    from typing_extensions import Self

VIEW = 64  # of each side of a view, in pixels
SLICES = (0.2, 0.4, 0.6, 0.8)  # where they are taken, as shares of the depth
AZIMUTH, ELEVATION = 0.5, 0.4  # angles from which a volume is seen, in radians
FARTHEST = 1.1  # half the side of the view, in units of half the volume's longest axis
CLEAR, SOLID = 0.1, 0.6  # values up to which a voxel is invisible, and from which on it hides what is behind
LIGHT = (-0.55, -0.6, -0.58)  # the direction it comes from: depth, height, width
COLOURS = {1: [(1, 1, 1)], 2: [(1, 0.5, 0.1), (0.15, 0.5, 1)], 3: [(1, 0, 0), (0, 1, 0), (0, 0, 1)]}  # by channels


@dataclass(frozen=True)
class VolumeDomain(Domain):
    """Volumes (C, D, H, W); in the units of the data, their values go from `low` to `high`."""

    kind = "volumes"
    axes = 3
    noun = "volume"
    suffix = ".npy"
    unit = "voxel"

    shape: Shape
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if len(self.shape) != 4:
            raise ValueError(f"the shape of a volume is channels, depth, height and width, not {self.shape}")
        if not 0 < self.high - self.low < math.inf:
            raise ValueError(f"values must go from a finite number to a larger one, not from {self.low} to {self.high}")

    @property
    def words(self) -> str:
        size, channels = by(self.grid), self.shape[0]
        values = "" if (self.low, self.high) == (0, 1) else f", values from {self.low:g} to {self.high:g}"
        return f"{size} in {'one channel' if channels == 1 else f'{channels} channels'}{values}"

    def scaled(self, values: Tensor) -> Tensor:
        """Values in the units of the data, scaled to [0, 1]."""
        return (values - self.low) / (self.high - self.low)

    def values(self, u: Tensor) -> Tensor:
        """The reverse of `scaled`."""
        return self.low + u * (self.high - self.low)

    def write(self, u: Tensor, path: Path) -> None:
        np.save(path, self.values(u).cpu().float().numpy())

    def data_settings(self) -> dict[str, Any]:
        return super().data_settings() | {"range": (self.low, self.high)}

    def tree(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}

    @classmethod
    def restored(cls, shape: Shape, tree: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        if set(tree) - {"low", "high"} or state:
            raise ValueError(f"volumes have low and high, not {', '.join([*tree, *state])}")
        return cls(shape, *(float(tree[name]) for name in ("low", "high")))

    def pictures(self, u: Tensor) -> Tensor:
        """Each volume from outside, lit, beside four slices; the slices of large volumes skip some voxels."""
        u = u.float().clamp(0, 1)
        if not len(u):
            return u.new_zeros(0, 3, VIEW, 2 * VIEW)
        rays = _turned(self.grid).to(u)
        seen = torch.stack([_seen(each, rays) for each in u])
        return torch.cat([seen, _slices(u, VIEW)], -1).cpu()


def _seen(u: Tensor, rays: Tensor) -> Tensor:
    """One volume (C, D, H, W) seen a little from above and from the side, (3, VIEW, VIEW): its values are opacities."""
    field = F.grid_sample(u[None], rays, align_corners=False)[0]
    opaque = ((field[: len(COLOURS)] - CLEAR) / (SOLID - CLEAR)).clamp(0, 1)
    slope = torch.stack(torch.gradient(opaque, dim=(1, 2, 3)))  # it points inwards, away from the light
    light = torch.tensor(LIGHT).to(u)
    facing = -(slope * light.view(3, 1, 1, 1, 1)).sum(0) / slope.square().sum(0).sqrt().clamp_min(1e-6)
    shaded = opaque * (0.35 + 0.65 * facing.clamp(0, 1))
    colours = torch.tensor(COLOURS[min(len(field), 3)]).to(u)
    total = opaque.sum(0).clamp(0, 1)
    through = torch.cat([torch.ones_like(total[:1]), (1 - total).cumprod(0)[:-1]])
    return torch.einsum("cdhw,dhw,cx->xhw", shaded, through, colours).clamp(0, 1)


def _turned(grid: Shape) -> Tensor:
    """Where rays through a picture's pixels meet the volume, (1, VIEW, VIEW, VIEW, 3), as `grid_sample` wants it."""
    a, e = AZIMUTH, ELEVATION
    about_height = torch.tensor([[math.cos(a), 0, math.sin(a)], [0, 1, 0], [-math.sin(a), 0, math.cos(a)]])
    about_width = torch.tensor([[1, 0, 0], [0, math.cos(e), -math.sin(e)], [0, math.sin(e), math.cos(e)]])
    turn = FARTHEST * about_height @ about_width  # of (width, height, depth)
    longest = torch.tensor([max(grid) / n for n in reversed(grid)])
    theta = torch.cat([longest[:, None] * turn, torch.zeros(3, 1)], 1)
    return F.affine_grid(theta[None], [1, 1, VIEW, VIEW, VIEW], align_corners=False)


def _slices(u: Tensor, side: int) -> Tensor:
    """Four slices of each volume, from front to back, (N, 3, side, side)."""
    depth, height, width = u.shape[2:]
    colours = torch.tensor(COLOURS[min(u.shape[1], 3)]).to(u)
    some = u[:, : len(colours), [int(share * depth) for share in SLICES]]
    coloured = torch.einsum("ncdhw,cx->nxdhw", some, colours).clamp(0, 1)
    longest, half = max(height, width), side // 2
    left, above = (longest - width) // 2, (longest - height) // 2
    square = F.pad(coloured, (left, longest - width - left, above, longest - height - above))
    places = torch.arange(half) * longest // half
    parts = square[:, :, :, places][..., places].unbind(2)
    return torch.cat([torch.cat(parts[:2], -1), torch.cat(parts[2:], -1)], -2)
