"""Images by a model that ihdm exported, with torch alone: this file, chain.json, start.pt2 and step.pt2 are all of it.

images = Chain.from_pretrained("folder").sample(16, torch.Generator().manual_seed(0))  # (16, C, H, W) in [0, 1]

torch.export.load would run what a stranger has hidden in such files: load only those of people whom you trust.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

VERSION = 1  # of chain.json
Chance = torch.Generator | list[torch.Generator] | None  # one for all images, or one for each, which then stands alone


class Chain(nn.Module):
    """start: a state, and the image that it shows, from a choice (any whole number) and noise; step: the next ones."""

    def __init__(self, folder: str | Path):
        super().__init__()
        about = json.loads((Path(folder) / "chain.json").read_text(encoding="utf-8"))
        if about["export"] != VERSION:
            raise ValueError(f"{folder} is an export of version {about['export']}, this file is for version {VERSION}")
        self.shape, self.steps = about["shape"], about["steps"]
        self._programs = [torch.export.load(Path(folder) / name) for name in ("start.pt2", "step.pt2")]
        self.to("cpu")

    @classmethod
    def from_pretrained(cls, folder: str | Path, **_: Any) -> Chain:
        return cls(folder)

    def to(self, device: Any = None, dtype: torch.dtype | None = None, **_: Any) -> Chain:  # type: ignore[override]
        """The same on another device; in float32 whatever is asked for."""
        if device is not None and not isinstance(device, torch.dtype):
            self.device = torch.device(device)
            self._start, self._step = (move_to_device_pass(p, str(device)).module() for p in self._programs)
        return self

    @torch.no_grad()
    def grow(self, n: int, chance: Chance = None) -> Iterator[Tensor]:
        """n images in [0, 1] after each step, from blank to sharp."""
        if isinstance(chance, list) and len(chance) != n:
            raise ValueError(f"{len(chance)} generators are given for {n} images")
        state, _ = self._start(self._drawn(n, chance, self._choice), self._drawn(n, chance, self._normal))
        for levels in self.steps:
            k, j, i = torch.tensor(levels, device=self.device)
            state, images = self._step(state, k, j, i, self._drawn(n, chance, self._normal))
            yield images

    def sample(self, n: int, chance: Chance = None) -> Tensor:
        """n images (n, C, H, W) in [0, 1]."""
        *_, images = self.grow(n, chance)
        return images

    def _drawn(self, n: int, chance: Chance, draw: Any) -> Tensor:
        """By one generator for all images, or by each image's own."""
        if isinstance(chance, list):
            return torch.cat([draw(1, own) for own in chance]).to(self.device)
        return draw(n, chance).to(self.device)

    def _choice(self, n: int, chance: torch.Generator | None) -> Tensor:
        return torch.randint(2**62, (n,), generator=chance, device=chance.device if chance else None)

    def _normal(self, n: int, chance: torch.Generator | None) -> Tensor:
        return torch.randn(n, *self.shape, generator=chance, device=chance.device if chance else None)
