"""What a domain is: where the values of data lie, and everything that depends on this alone.

Its Laplacian gives data a heat equation. A domain also knows how data are stored, shown and written to files, so that
nothing else has to ask whether they are images or sounds. One of a user's own, registered by name, also reads them:
`read(config)`, a class method, gives what it finds in `config.source`, and `read_one(path)`, if there is one, an item
to be restored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.heat import GridLaplacian
from ihdm.pixels import ROUNDING

if TYPE_CHECKING:
    from typing_extensions import Self

Shape = tuple[int, ...]
NOISES = tuple(ROUNDING * factor for factor in (1, 2, 4, 8))  # standard deviations; the first is that of 8 bits


def by(shape: Sequence[int]) -> str:
    """A shape or size in words, such as 3x32x32."""
    return "x".join(map(str, shape))


@dataclass(frozen=True)
class Found:
    """What the domain of a user's own finds in a source (`Domain.read`).

    values: arrays or tensors (N, C, *grid) in [0, 1], for training and maybe for testing: {"train": ..., "test": ...}.
    labels: by the same names, what each item is, in words or whole numbers; empty if there are none.
    """

    domain: Domain
    values: Mapping[str, Any]
    labels: Mapping[str, Sequence[str | int]] = field(default_factory=dict)


class Domain(ABC):
    """Data of a shape (C, *grid), with values in [0, 1]."""

    kind: ClassVar[str]  # the setting data.kind
    axes: ClassVar[int]  # besides that of the channels
    noun: ClassVar[str]  # what one item is called; several have an s
    unit: ClassVar[str] = "pixel"  # of lengths, such as the width of a blur
    noises: ClassVar[tuple[float, ...]] = NOISES  # that an item may have besides its blur
    negatives: ClassVar[bool] = False  # whether an item may be given as its negative
    width_error: ClassVar[float] = 0.25  # relative error of most estimated blur widths, at most (docs/domains.md)

    shape: Shape

    @cached_property
    def laplacian(self) -> Laplacian:
        with torch.device("cpu"):  # also where a network is built without memory
            return GridLaplacian(self.grid)

    @property
    def grid(self) -> Shape:
        """All axes but the channels."""
        return self.shape[1:]

    @property
    def longest(self) -> float:
        """The longest half-wave: once it is blurred away, nothing is left."""
        return self.laplacian.side

    @property
    @abstractmethod
    def suffix(self) -> str:
        """The ending of the name of a file that holds one item."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The shape of one item in words, such as "32x32 in 3 channels"."""

    @abstractmethod
    def pictures(self, u: Tensor) -> Tensor:
        """Data (N, C, *grid) as pictures (N, 1 or 3, height, width) in [0, 1]."""

    @abstractmethod
    def write(self, u: Tensor, path: Path) -> None:
        """Write one item, as `kept` gives it, to a file."""

    def kept(self, u: Tensor) -> Tensor:
        """Data in [0, 1], or a little beyond, in the form in which they are handed out and compared with others."""
        return u.clamp(0, 1)

    def width_words(self, width: float) -> str:
        """What a blur width, in units, means for such data, if there is more to say."""
        return ""

    def width_label(self, width: float) -> str:
        """A short label for a blur width, in units, above a column of pictures."""
        return f"$\\sigma_B$ = {width:.2g}"

    @property
    def width_label_words(self) -> str:
        """What these labels say."""
        return f"the width of the blur in {self.unit}s"

    @property
    def frequency_words(self) -> str:
        """The label of an axis of `frequencies`, with their unit."""
        return f"frequency, radians / {self.unit}"

    def frequencies(self, radians: Tensor) -> Tensor:
        """Frequencies of the Laplacian, sqrt(-eigenvalue) in radians per unit, in the unit usual for such data."""
        return radians

    def difference_words(self, rms: float) -> str:
        """A root mean square difference between two items, in words."""
        return f"{255 * rms:.2f}/255"

    def data_settings(self) -> dict[str, Any]:
        """The settings data.* with which other data come out like these."""
        return {"kind": self.kind, "size": self.grid, "channels": self.shape[0]}

    def tree(self) -> dict[str, Any]:
        """What config.json records of the domain besides its kind and shape."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """The tensors of the domain that are too long for config.json."""
        return {}

    @classmethod
    def restored(cls, shape: Shape, tree: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        """The domain that `tree` and `state` describe; ValueError, KeyError or TypeError if there is none."""
        if tree or state:
            raise ValueError(f"{cls.noun}s have no {', '.join([*tree, *state])}")
        return cls(shape)  # type: ignore[call-arg]
