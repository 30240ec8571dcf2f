"""Samples from a model that ihdm exported. This file needs only torch, chain.json, start.pt2 and step.pt2.

images = Chain.from_pretrained("folder").sample(16, torch.Generator().manual_seed(0))  # (16, C, H, W) in [0, 1]

If the model knows labels (chain.json lists them), you can ask for one: sample(16, labels="cat", guidance=1.5).
torch.export.load can run code that somebody has hidden in such files: load only files from people whom you trust.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

VERSION = 1  # of chain.json
Chance = torch.Generator | list[torch.Generator] | None  # one for all images, or one for each, independent of the rest
Given = str | int | list[str | int] | Tensor | None  # a label for all images, or one for each, by its name or number


class Chain(nn.Module):
    """start makes a state and the image that it shows from a choice (a whole number) and noise; step, the next ones."""

    dtype = torch.float32  # diffusers asks for it

    def __init__(self, folder: str | Path):
        super().__init__()
        about = json.loads((Path(folder) / "chain.json").read_text(encoding="utf-8"))
        if about["export"] != VERSION:
            raise ValueError(f"{folder} is an export of version {about['export']}, this file is for version {VERSION}")
        self.shape, self.steps = about["shape"], about["steps"]
        self.labels, self._counts = about.get("labels", []), about.get("counts", [])
        self._programs = [torch.export.load(Path(folder) / name) for name in ("start.pt2", "step.pt2")]
        self.to("cpu")

    @classmethod
    def from_pretrained(cls, folder: str | Path, **_: Any) -> Chain:
        return cls(folder)

    def to(self, device: Any = None, dtype: torch.dtype | None = None, **_: Any) -> Chain:  # type: ignore[override]
        """This chain on another device, always in float32."""
        if device is not None and not isinstance(device, torch.dtype):
            self.device = torch.device(device)
            self._start, self._step = (move_to_device_pass(p, str(device)).module() for p in self._programs)
        return self

    @torch.no_grad()
    def grow(self, n: int, chance: Chance = None, labels: Given = None, guidance: float = 1.0) -> Iterator[Tensor]:
        """n images in [0, 1] after each step, from blank to sharp.

        labels: by default in the proportions of the training set; the number after the last means none. guidance: how
        much they count: 1 as in training, more for clearer and less varied images, 0 not at all. Any value except 1
        takes twice as long.
        """
        if isinstance(chance, list) and len(chance) != n:
            raise ValueError(f"{len(chance)} generators are given for {n} images")
        told = self._told(n, chance, labels, guidance)
        state, _ = self._start(self._drawn(n, chance, self._choice), self._drawn(n, chance, self._normal), *told[:1])
        for levels in self.steps:
            k, j, i = torch.tensor(levels, device=self.device)
            state, images = self._step(state, k, j, i, self._drawn(n, chance, self._normal), *told)
            yield images

    def sample(self, n: int, chance: Chance = None, labels: Given = None, guidance: float = 1.0) -> Tensor:
        """n images (n, C, H, W) in [0, 1]; labels and guidance as in `grow`."""
        *_, images = self.grow(n, chance, labels, guidance)
        return images

    def _told(self, n: int, chance: Chance, labels: Given, guidance: float) -> list[Tensor]:
        """What else the programs take if the model knows labels: the label of each image, and the guidance."""
        if not 0 <= guidance < math.inf:
            raise ValueError(
                f"guidance must be a number from 0 up (0: the label is ignored, 1: as in training), not {guidance}"
            )
        if not self.labels:
            if labels is not None or guidance != 1:
                raise ValueError("the model knows no labels, and takes neither labels nor guidance")
            return []
        told = self._drawn(n, chance, self._any)  # drawn in any case, so that all else is the same with given labels
        if labels is not None:
            given = labels if isinstance(labels, list | tuple | Tensor) else [labels] * n
            if len(given) != n:
                raise ValueError(f"give one label for all images, or one for each of {n}, not {len(given)}")
            told = self._numbers(given).to(self.device)
        return [told, torch.tensor(float(guidance), device=self.device)]

    def _numbers(self, given: Any) -> Tensor:
        """The numbers of labels; a tensor already holds numbers."""
        if not isinstance(given, Tensor):
            return torch.tensor([self._number(label) for label in given])
        if given.is_floating_point() or bool(((given < 0) | (given > len(self.labels))).any()):
            raise ValueError(
                f"a tensor of labels must hold whole numbers from 0 to {len(self.labels)}, the last meaning no label"
            )
        return given.long()

    def _number(self, label: str | int) -> int:
        """A label's number, from its name or, if no name is a number, its number; the one after the last means none."""
        if str(label) in self.labels:
            return self.labels.index(str(label))
        by_number = not any(map(str.isdecimal, self.labels))
        if isinstance(label, int) and (label == len(self.labels) or (by_number and 0 <= label < len(self.labels))):
            return label
        near = difflib.get_close_matches(str(label), self.labels, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(self.labels)}"
        raise ValueError(f"unknown label {str(label)!r}; {hint}")

    def _drawn(self, n: int, chance: Chance, draw: Any) -> Tensor:
        """Drawn by one generator for all images, or by each image's own."""
        if isinstance(chance, list):
            return torch.cat([draw(1, own) for own in chance]).to(self.device)
        return draw(n, chance).to(self.device)

    def _choice(self, n: int, chance: torch.Generator | None) -> Tensor:
        return torch.randint(2**62, (n,), generator=chance, device=chance.device if chance else None)

    def _normal(self, n: int, chance: torch.Generator | None) -> Tensor:
        return torch.randn(n, *self.shape, generator=chance, device=chance.device if chance else None)

    def _any(self, n: int, chance: torch.Generator | None) -> Tensor:
        ends = torch.tensor(self._counts).cumsum(0)
        place = torch.randint(int(ends[-1]), (n,), generator=chance, device=chance.device if chance else None)
        return torch.searchsorted(ends.to(place.device), place, right=True)
