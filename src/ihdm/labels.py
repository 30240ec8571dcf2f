"""Labels: a network is told the number of each image's label. The number after the last one stands for no label."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from ihdm.errors import UsageError, unknown
from ihdm.noise import LABEL_CHOICE, PRIOR_CHOICE, SeededNoise

SHOWN = 20  # most names that a message lists
Given = str | int | Sequence[str | int] | Tensor


@dataclass(frozen=True)
class Labels:
    """The names of the labels, and how many training images have each."""

    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.names) or (self.names and sum(self.counts) < 1):
            raise ValueError("labels need the number of training images that have each, and at least one image in all")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def none(self) -> int:
        """The number that stands for no label."""
        return len(self.names)

    @property
    def words(self) -> str:
        """How many they are, and their names, or the first if they are many."""
        return f"{len(self)}: {', '.join(self.names[:SHOWN])}{', ...' * (len(self) > SHOWN)}"

    def number(self, label: str | int | Integral) -> int:
        """The number of a label given by its name or, if no name is a number, by its number."""
        if str(label) in self.names:
            return self.names.index(str(label))
        whole = isinstance(label, Integral) and not isinstance(label, bool)
        if whole and 0 <= int(label) < len(self) and not any(map(str.isdecimal, self.names)):
            return int(label)
        raise unknown("label", str(label), self.names)

    def numbers(self, given: Given, n: int) -> Tensor:
        """Label numbers of n images, (n,), from one label for all or one for each; a tensor holds numbers already."""
        if isinstance(given, str | int | Integral):
            return torch.full((n,), self.number(given))
        if isinstance(given, Tensor) and given.ndim == 0:
            given = given.expand(n)
        if len(given) != n:
            raise UsageError(f"give one label for all images, or one for each of {n}, not {len(given)}")
        if not isinstance(given, Tensor):
            return torch.tensor([self.number(label) for label in given], dtype=torch.long)
        if given.ndim != 1 or given.is_floating_point() or bool(((given < 0) | (given > self.none)).any()):
            raise UsageError(
                f"a tensor of labels holds a whole number for each image, from 0 to {self.none}, which stands for no "
                f"label; not {reprlib.repr(given.tolist())}"
            )
        return given.long()

    def drawn(self, noise: SeededNoise) -> Tensor:
        """Labels for images without a given one: drawn in the proportions of the training images."""
        ends = torch.tensor(self.counts, device=noise.images.device).cumsum(0)
        return torch.searchsorted(ends, noise.choice(sum(self.counts), LABEL_CHOICE), right=True)


class Starts:
    """Training images by label, so that images can start from those of their own. labels: (N,); kinds: their number."""

    def __init__(self, labels: Tensor, kinds: int):
        self.counts = torch.bincount(labels, minlength=kinds)
        self.first, self.order = self.counts.cumsum(0) - self.counts, labels.argsort(stable=True)

    def choice(self, labels: Tensor, n: int | Tensor, chosen: Callable[[int | Tensor], Tensor]) -> Tensor:
        """For each image one with its label, or any of all n if there is none. chosen: picks a number below another."""
        count, first = self.counts[labels], self.first[labels]
        own = self.order[(first + chosen(count.clamp_min(1))).clamp_max(len(self.order) - 1)]
        return torch.where(count > 0, own, chosen(n))


@dataclass(frozen=True)
class LabelledNoise(SeededNoise):
    """Noise of images that start, where they start from training images, from those of their own label.

    labels: those of the rows; starts: those of the training images. If none has the label of a row, any will do.
    """

    labels: Tensor
    starts: Tensor

    def choice(self, n: int | Tensor, step: int = PRIOR_CHOICE) -> Tensor:
        starts, chosen = Starts(self.starts, int(self.labels.max()) + 1), super().choice
        return starts.choice(self.labels, n, lambda most: chosen(most, step))
