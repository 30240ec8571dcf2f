"""Images: pixels in rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ihdm import pictures
from ihdm.domains.domain import Domain, Shape
from ihdm.pixels import to_bytes


@dataclass(frozen=True)
class ImageDomain(Domain):
    """Images (C, H, W), which are handed out in 8 bits."""

    kind = "images"
    axes = 2
    noun = "image"
    negatives = True
    width_error = 0.0  # each comes with an interval instead (docs/studies/restore.md)

    shape: Shape

    def __post_init__(self) -> None:
        if len(self.shape) != 3:
            raise ValueError(f"the shape of an image is channels, height and width, not {self.shape}")

    @property
    def suffix(self) -> str:
        """PNG files hold grey, colour and alpha, but no other channels."""
        return ".png" if self.shape[0] in (1, 3, 4) else ".npy"

    @property
    def words(self) -> str:
        channels, height, width = self.shape
        return f"{height}x{width} in {'grey' if channels == 1 else f'{channels} channels'}"

    def pictures(self, u: Tensor) -> Tensor:
        return u

    def kept(self, u: Tensor) -> Tensor:
        return to_bytes(u)

    def write(self, u: Tensor, path: Path) -> None:
        if self.suffix == ".png":
            pictures.plain(u).save(path)
        else:
            np.save(path, u.cpu().numpy())
