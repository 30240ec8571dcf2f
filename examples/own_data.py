"""A kind of data of your own: closed curves, which grow from a point (docs/your-own-data.md).

python examples/own_data.py train globe --data stars --run runs/curves --set data.kind=curves process.sigma=0.01
python examples/own_data.py sample runs/curves --n 16 --label flower heart star triangle --gif curves.gif
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from ihdm.cli import main
from ihdm.config import DataConfig
from ihdm.domains import Domain, Found
from ihdm.errors import UsageError
from ihdm.graph import GraphLaplacian
from ihdm.registry import DOMAINS

POINTS = 64
SIDE, SHARPER = 64, 4  # pixels of a picture; how many times larger it is drawn before it is shrunk


@DOMAINS.register("curves")
@dataclass(frozen=True)
class CurveDomain(Domain):
    """Closed curves (2, n): x to the right and y downwards, both in [0, 1], of n points that form a ring."""

    noun, unit, axes, suffix = "curve", "point", 1, ".npy"

    shape: tuple[int, ...]

    @classmethod
    def read(cls, config: DataConfig) -> Found:
        """Curves that are made here (stars), or an npy file of curves (N, 2, n)."""
        if config.source == "stars":
            curves, kinds = made(3000, config.size[0] if config.size else POINTS)
            return Found(cls(curves.shape[1:]), {"train": curves}, {"train": kinds})
        if not config.source.endswith(".npy"):
            raise UsageError(f"curves are stars, or an npy file of curves (N, 2, n), not {config.source}")
        curves = np.load(config.source)
        return Found(cls(curves.shape[1:]), {"train": curves})

    @classmethod
    def read_one(cls, path: Path) -> Tensor:
        return torch.from_numpy(np.load(path))

    @cached_property
    def laplacian(self) -> GraphLaplacian:
        """Each point is joined to the next, and the last to the first."""
        n = self.shape[1]
        return GraphLaplacian(n, [(i, (i + 1) % n) for i in range(n)])

    @property
    def words(self) -> str:
        return f"{self.shape[1]} points"

    def write(self, u: Tensor, path: Path) -> None:
        np.save(path, u.cpu().numpy())

    def pictures(self, u: Tensor) -> Tensor:
        """Filled curves, dark on white, (N, 1, 64, 64)."""
        return torch.stack([drawn(curve) for curve in u.cpu()]) if len(u) else torch.empty(0, 1, SIDE, SIDE)


def drawn(curve: Tensor) -> Tensor:
    picture = Image.new("L", (SIDE * SHARPER, SIDE * SHARPER), 255)
    points = [(float(x), float(y)) for x, y in curve.T * (SIDE * SHARPER - 1)]
    ImageDraw.Draw(picture).polygon(points, fill=90, outline=40, width=SHARPER)
    return torch.from_numpy(np.array(picture.resize((SIDE, SIDE), Image.Resampling.BOX)) / 255).float()[None]


def made(count: int, n: int) -> tuple[np.ndarray, list[str]]:
    """Curves (count, 2, n) in [0, 1], of four kinds in turn, each a little stretched, turned and moved."""
    random, names = np.random.default_rng(0), [list(SHAPES)[i % len(SHAPES)] for i in range(count)]
    angles, stretched = random.normal(0, 0.15, count), random.uniform(0.6, 1, (count, 2, 1))
    turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
    outlines = {name: evenly(corners, n) for name, corners in SHAPES.items()}
    curves = np.einsum("ijc,cjn->cin", turns, stretched * [outlines[name] for name in names])
    return 0.5 + random.uniform(-0.05, 0.05, (count, 2, 1)) + 0.42 * curves, names


def evenly(corners: np.ndarray, n: int) -> np.ndarray:
    """n points (2, n), evenly spaced along a closed outline of corners (M, 2) that begins at the top."""
    closed = np.concatenate([corners, corners[:1]])
    along = np.concatenate([[0], np.hypot(*np.diff(closed, axis=0).T).cumsum()])
    return np.stack([np.interp(np.arange(n) / n * along[-1], along, axis) for axis in closed.T])


def around(radius: np.ndarray) -> np.ndarray:
    """The outline with these radii, at angles from the top and clockwise."""
    angles = np.linspace(0, 2 * np.pi, len(radius), endpoint=False)
    return np.stack([radius * np.sin(angles), -radius * np.cos(angles)], 1)


T = np.linspace(0, 2 * np.pi, 240, endpoint=False)
HEART = 16 * np.sin(T) ** 3, 5 * np.cos(2 * T) + 2 * np.cos(3 * T) + np.cos(4 * T) - 13 * np.cos(T)
SHAPES = {
    "flower": around(0.72 + 0.28 * np.cos(6 * T)),
    "heart": np.stack(HEART, 1) / 17,
    "star": around(np.array([1, 0.42] * 5)),
    "triangle": around(np.ones(3)),
}


if __name__ == "__main__":
    main()
