"""Pictures of values on the nodes of a mesh, or at points in space, as seen from two opposite sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ihdm.graph import areas

Array = NDArray[Any]

SIZE = 112  # of each side of a view, in pixels
DARKEST = 0.6  # brightness, of a surface seen from its edge
COLOURS = torch.tensor(  # from the least value to the largest, in equal steps
    [
        [0.11, 0.13, 0.36],
        [0.14, 0.42, 0.65],
        [0.56, 0.77, 0.80],
        [0.97, 0.95, 0.86],
        [0.93, 0.68, 0.42],
        [0.75, 0.27, 0.22],
        [0.38, 0.06, 0.16],
    ],
    device="cpu",
)


@dataclass(frozen=True)
class Drawing:
    """For each pixel the nodes that it shows, (H, W, 3), their weights, of the same shape, and its brightness, (H, W).

    Pixels that show nothing have brightness 0.
    """

    nodes: Tensor
    weights: Tensor
    brightness: Tensor

    @classmethod
    def of(cls, positions: Tensor, faces: Tensor | None) -> Drawing:
        """Triangles, or points if there are none, seen along the first axis, from in front and from behind.

        The third axis points up. What is nearer hides what is behind it.
        """
        places = positions.double().cpu().numpy()
        places = places - (places.max(0) + places.min(0)) / 2
        places = places / max(float(np.abs(places[:, 1:]).max()), 1e-12) * (SIZE / 2 - 1)
        views = [_view(places * np.array([side, side, 1]), faces) for side in (1, -1)]
        return cls(*(torch.from_numpy(np.concatenate(parts, 1)) for parts in zip(*views)))

    def pictures(self, u: Tensor) -> Tensor:
        """Pictures of data (N, C, n) in [0, 1]: in a scale of colours, or three channels as red, green and blue."""
        nodes, weights, brightness = (part.to(u.device) for part in (self.nodes, self.weights, self.brightness))
        values = sum(u[..., nodes[..., corner]] * weights[..., corner] for corner in range(3))
        assert isinstance(values, Tensor)
        return torch.where(brightness > 0, colours(values) * brightness, 1.0)


def colours(values: Tensor) -> Tensor:
    """Values (N, C, H, W) in [0, 1] as red, green and blue: three channels as they are, else the first by COLOURS."""
    values = values.float().clamp(0, 1)
    if values.shape[1] == 3:
        return values
    table, place = COLOURS.to(values.device), values[:, 0] * (len(COLOURS) - 1)
    below = place.floor().clamp_max(len(COLOURS) - 2).long()
    return torch.lerp(table[below], table[below + 1], (place - below)[..., None]).movedim(-1, 1)


def _view(places: Array, faces: Tensor | None) -> tuple[Array, Array, Array]:
    """Nodes, weights and brightness of the pixels of one view."""
    nodes, weights = np.zeros((SIZE, SIZE, 3), np.int64), np.zeros((SIZE, SIZE, 3), np.float32)
    brightness = np.zeros((SIZE, SIZE), np.float32)
    depth, columns, rows = places[:, 0], places[:, 1] + SIZE / 2, SIZE / 2 - places[:, 2]
    if faces is None:
        radius = max(1.0, SIZE / 4 / len(places) ** 0.5)
        for node in np.argsort(depth):  # the nearest comes last
            spot = tuple(slice(max(int(c - radius), 0), int(c + radius) + 1) for c in (rows[node], columns[node]))
            nodes[spot], weights[spot], brightness[spot] = node, (1, 0, 0), 1
        return nodes, weights, brightness
    corners = faces.cpu().numpy()
    x, y = columns[corners], rows[corners]
    twice = (x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0])  # the areas as seen
    sides = [np.stack([v.min(1).clip(0), v.max(1) + 1], 1).clip(None, SIZE).astype(int).tolist() for v in (y, x)]
    nearest, which = np.full((SIZE, SIZE), -np.inf), np.full((SIZE, SIZE), -1)
    for face in np.flatnonzero(abs(twice) >= 1e-9):  # without those that are seen from their edge
        (top, bottom), (left, right) = (ends[face] for ends in sides)
        across, down = np.arange(left, right) + 0.5, np.arange(top, bottom)[:, None] + 0.5
        inside, box = _shares(across, down, x[face], y[face], twice[face]), (slice(top, bottom), slice(left, right))
        height = inside @ depth[corners[face]]
        ahead = (inside >= -1e-9).all(-1) & (height > nearest[box])
        nearest[box][ahead], which[box][ahead] = height[ahead], face
    shown = which >= 0
    there, (down, across) = which[shown], np.argwhere(shown).T + 0.5
    nodes[shown], weights[shown] = corners[there], _shares(across, down, x[there], y[there], twice[there])
    brightness[shown] = DARKEST + (1 - DARKEST) * abs(twice[there]) / (2 * areas(places, corners)[there])
    return nodes, weights, brightness


def _shares(across: Array, down: Array, x: Array, y: Array, twice: Array) -> Array:
    """How much of each corner there is in points of a triangle, (..., 3); some are negative in points outside it.

    x, y: of its corners, (..., 3). twice: its area, doubled.
    """
    right, below = across - x[..., 0], down - y[..., 0]
    second = (right * (y[..., 2] - y[..., 0]) - (x[..., 2] - x[..., 0]) * below) / twice
    third = ((x[..., 1] - x[..., 0]) * below - right * (y[..., 1] - y[..., 0])) / twice
    return np.stack([1 - second - third, second, third], -1)
