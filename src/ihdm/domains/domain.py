"""What a domain is: where the values of data lie, and all that depends on it alone.

Its Laplacian gives data a heat equation. A domain also knows how data are kept, shown and written to files, so that
nothing else has to ask whether they are images or sounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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
NOISES = tuple(ROUNDING * factor for factor in (1, 2, 4, 8))  # standard deviations, the first that of 8 bits


class Domain(ABC):
    """Data of a shape (C, *grid), with values in [0, 1]."""

    kind: ClassVar[str]  # the setting data.kind
    noun: ClassVar[str]  # what one of them is called; several have an s
    unit: ClassVar[str] = "pixel"  # of lengths, such as the width of a blur
    noises: ClassVar[tuple[float, ...]] = NOISES  # one may have besides its blur
    negatives: ClassVar[bool] = False  # whether the negative of one may be taken for one
    width_error: ClassVar[float] = 0.25  # relative, that most estimated blur widths are within (docs/domains.md)

    shape: Shape

    @cached_property
    def laplacian(self) -> Laplacian:
        with torch.device("cpu"):  # also where a network is built without memory
            return GridLaplacian(self.grid)

    @property
    def grid(self) -> Shape:
        """All axes but that of the channels."""
        return self.shape[1:]

    @property
    def longest(self) -> float:
        """The half-wave that has to be blurred away before nothing is left."""
        return self.laplacian.side

    @property
    @abstractmethod
    def suffix(self) -> str:
        """Of the name of a file that holds one."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The shape of one, such as "32x32 in 3 channels"."""

    @abstractmethod
    def pictures(self, u: Tensor) -> Tensor:
        """Data (N, C, *grid) as pictures (N, 1 or 3, height, width) in [0, 1]."""

    @abstractmethod
    def write(self, u: Tensor, path: Path) -> None:
        """One of them, as `kept` gives it, to a file."""

    def kept(self, u: Tensor) -> Tensor:
        """Data in [0, 1], or a little beyond, as they are handed out and compared with others."""
        return u.clamp(0, 1)

    def width_words(self, width: float) -> str:
        """What a blur of a width, in units, means for such data, if there is more to say."""
        return ""

    def width_label(self, width: float) -> str:
        """A blur of a width, in units, in few words, above a column of pictures."""
        return f"$\\sigma_B$ = {width:.2g}"

    @property
    def width_label_words(self) -> str:
        """What those say."""
        return f"the width of the blur in {self.unit}s"

    @property
    def frequency_words(self) -> str:
        """What `frequencies` are in, on an axis."""
        return f"frequency, radians / {self.unit}"

    def frequencies(self, radians: Tensor) -> Tensor:
        """Frequencies of the Laplacian, sqrt(-eigenvalue) in radians per unit, as such data have them."""
        return radians

    def difference_words(self, rms: float) -> str:
        """A root mean square difference between two of them."""
        return f"{255 * rms:.2f}/255"

    def data_settings(self) -> dict[str, Any]:
        """Those of data.* with which other data come out like these."""
        return {"kind": self.kind, "size": self.grid, "channels": self.shape[0]}

    def tree(self) -> dict[str, Any]:
        """What config.json says of it, beside its kind and shape."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What is too long for config.json."""
        return {}

    @classmethod
    def restored(cls, shape: Shape, tree: Mapping[str, Any], state: Mapping[str, Tensor]) -> Self:
        """As `tree` and `state` say; ValueError, KeyError or TypeError if they cannot be."""
        if tree or state:
            raise ValueError(f"{cls.noun}s have no {', '.join([*tree, *state])}")
        return cls(shape)  # type: ignore[call-arg]
