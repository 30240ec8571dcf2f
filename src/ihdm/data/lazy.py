"""Images that stay where they are until they are needed: for sets larger than memory."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ihdm.data.images import Decoder, Unreadable
from ihdm.data.pictures import Subset


class Images(Protocol):
    """What uint8 images (N, C, H, W) offer, whether they are in memory (a tensor) or outside it."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __getitem__(self, which: Any, /) -> Tensor: ...

    def split(self, size: int, /) -> Iterable[Tensor]: ...


class LazyImages:
    """Images that are decoded each time they are asked for.

    skip: a picture that cannot be read is named once, and the next readable one takes its place.
    """

    device = torch.device("cpu")

    def __init__(self, decoder: Decoder, skip: bool, named: set[str] | None = None):
        self.decoder, self.skip = decoder, skip
        self._named = set() if named is None else named
        self.shape = torch.Size((len(decoder.pictures), *decoder.shape))
        self._threads = ThreadPoolExecutor(decoder.threads)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """How many bytes they would take in memory."""
        return self.shape.numel()

    def __getitem__(self, which: Tensor | slice) -> Tensor:
        numbers = range(len(self))[which] if isinstance(which, slice) else which.tolist()
        found = list(self._threads.map(self._image, numbers))
        return torch.from_numpy(np.stack(found)) if found else torch.empty(0, *self.shape[1:], dtype=torch.uint8)

    def some(self, numbers: Tensor) -> LazyImages:
        """The images with the given numbers, not yet decoded."""
        decoder = copy.copy(self.decoder)
        decoder.pictures = Subset(decoder.pictures, numbers.tolist())
        return LazyImages(decoder, self.skip, self._named)

    def split(self, size: int) -> Iterator[Tensor]:
        return (self[first : first + size] for first in range(0, len(self), size))

    def _image(self, i: int) -> np.ndarray:
        for step in range(len(self)):
            number = (i + step) % len(self)
            try:
                return self.decoder(number)
            except Unreadable as error:
                if not self.skip:
                    raise
                name = self.decoder.pictures.name(number)
                if name not in self._named:
                    self._named.add(name)
                    print(f"warning: {error}; another takes its place ({len(self._named)} so far)", file=sys.stderr)
        raise Unreadable(f"none of {len(self):,} images can be read")
