"""Batches that follow from the step alone: shuffled epochs, with no position to remember."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ihdm.data.lazy import Images
from ihdm.noise import Purpose, permutation

MOST_OF_A_GPU = 0.4  # of its free memory, that images may take
AHEAD = 3  # steps whose images are decoded in advance, if they are not in memory


class Batches:
    """The training images of any step, uint8, on `device`.

    Step s takes the places s B .. (s + 1) B - 1 of an endless sequence of epochs, each shuffled by (seed, epoch).
    Each of several processes takes its share of the places. labels: those of all images, (N,), if there are any.
    """

    def __init__(self, images: Images, batch_size: int, seed: int, device: torch.device, labels: Tensor | None = None):
        self.images, self.batch_size, self.seed, self.device = images, batch_size, seed, device
        self.labels = None if labels is None else labels.to(images.device)
        self._order = lru_cache(maxsize=2)(self._shuffled)
        self._thread = ThreadPoolExecutor(1)
        self._ahead: dict[tuple[int, int, int], Future[Tensor]] = {}

    def go_on(self, step: int, places: Any) -> None:
        """Nothing to do: a step's images follow from its number."""

    def places(self, rank: int = 0, ranks: int = 1) -> Tensor | None:
        """Nothing to remember."""
        return None

    def close(self) -> None:
        """Nothing to end."""

    def at(self, step: int, rank: int = 0, ranks: int = 1) -> Tensor:
        """The images of a step."""
        taken = self._taken(step, rank, ranks) if isinstance(self.images, Tensor) else self._fetched(step, rank, ranks)
        return taken.to(self.device, non_blocking=True)

    def labels_at(self, step: int, rank: int = 0, ranks: int = 1) -> Tensor | None:
        """The labels of the images of a step."""
        if self.labels is None:
            return None
        return self.labels[self.numbers(step)[rank::ranks]].to(self.device, non_blocking=True)

    def _taken(self, step: int, rank: int, ranks: int) -> Tensor:
        return self.images[self.numbers(step)[rank::ranks]]

    def _fetched(self, *place: int) -> Tensor:
        """Images that have to be decoded; those of the next steps are decoded while this step is computed."""
        for step in range(place[0], place[0] + 1 + AHEAD):
            key = (step, *place[1:])
            if key not in self._ahead:
                self._ahead[key] = self._thread.submit(self._taken, *key)  # type: ignore[index]
        self._ahead = {key: future for key, future in self._ahead.items() if key[0] >= place[0]}
        return self._ahead[place].result()  # type: ignore[index]

    def numbers(self, step: int) -> Tensor:
        """Which images make up the batch of a step."""
        place, end = step * self.batch_size, (step + 1) * self.batch_size
        parts = []
        while place < end:
            epoch, offset = divmod(place, len(self.images))
            parts.append(self._order(epoch)[offset : offset + end - place])
            place += len(parts[-1])
        return torch.cat(parts)

    def _shuffled(self, epoch: int) -> Tensor:
        return permutation(len(self.images), self.seed, Purpose.SHUFFLE, epoch).to(self.images.device)


def mirrored(u_0: Tensor, chosen: Tensor) -> Tensor:
    """The images, of which the chosen ones, (B,), are flipped left to right."""
    return torch.where(chosen.view(-1, 1, 1, 1), u_0.flip(-1), u_0)


def resident(images: Images, device: torch.device) -> Images:
    """The images on the device if most of its memory stays free; otherwise where they are."""
    if not isinstance(images, Tensor):
        return images
    if device.type == "cuda" and images.nbytes > MOST_OF_A_GPU * torch.cuda.mem_get_info(device)[0]:
        return images
    return images.to(device)
