"""A set that can only be read in sequence. It is read in lanes, each shuffled in windows; the seed decides the order.

Five numbers say where a lane stands, so a stopped run goes on with the very image that would have been next.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ihdm.data.images import Fitting, Unreadable, load_picture
from ihdm.data.pictures import Array
from ihdm.data.shards import Found, Parts, Shards
from ihdm.errors import IhdmError
from ihdm.noise import Purpose, permutation

LOOKED_INTO = 16  # shards whose first images are read at the start
EMPTY_MOST = 100  # most windows in a row without an image


@dataclass(frozen=True)
class Beginnings:
    """The first images of some evenly spaced shards, about `most` in all, which are read at the start.

    share: the share of them that is held out, beginning with the first of each shard.
    """

    shards: frozenset[int]
    first: int  # images of each shard
    share: float

    @classmethod
    def of(cls, shards: Shards, most: int, share: float = 0.0) -> Beginnings:
        count = min(len(shards), LOOKED_INTO)
        return cls(frozenset(i * len(shards) // count for i in range(count)), -(-most // max(count, 1)), share)

    def images(self, shards: Shards) -> list[Found]:
        with ThreadPoolExecutor(LOOKED_INTO) as threads:
            heads = threads.map(
                lambda shard: list(itertools.islice(shards.images(shard), self.first)), sorted(self.shards)
            )
            return list(itertools.chain(*heads))

    def hold_out(self, found: Found) -> bool:
        seen = found.shard in self.shards and found.number < self.first
        return seen and math.ceil((found.number + 1) * self.share) > math.ceil(found.number * self.share)


@dataclass(frozen=True)
class Stream:
    """Images to train on, shard by shard.

    fitting: makes them arrays; looked_at: those read at the start, some of which are held out; buffer: how many are
    shuffled at a time; skip: leave out images that cannot be read, with a warning.
    """

    shards: Shards
    fitting: Fitting
    looked_at: Beginnings
    buffer: int
    skip: bool
    named: set[str] = field(default_factory=set)

    def decoded(self, found: Sequence[Found]) -> list[Array]:
        """The images as arrays; skip: without those that cannot be read."""
        return [array for one in found if (array := self._array(one)) is not None]

    def _array(self, found: Found) -> Array | None:
        try:
            return self.fitting(load_picture(found.name, found.read), found.name)
        except Unreadable as error:
            if not self.skip:
                raise
            if found.name not in self.named:
                self.named.add(found.name)
                print(f"warning: {error}; it is left out ({len(self.named)} so far)", file=sys.stderr)
            return None


class Place(NamedTuple):
    """Where a lane stands: its current window began at this epoch, shard of the epoch and image of the shard."""

    epoch: int = 0
    shard: int = 0
    image: int = 0
    window: int = 0  # the number of this window
    taken: int = 0  # images already taken from it


class Threads:
    """The threads that read, several shards at a time, and those that decode, as many as are fastest."""

    def __init__(self, stream: Stream, lanes: int):
        self.readers = ThreadPoolExecutor(min(lanes, stream.shards.readers))
        self.decoders = ThreadPoolExecutor(stream.fitting.threads)
        self.parts = stream.fitting.threads  # of a window, to decode at the same time
        self._ended = threading.Event()

    def go_on(self) -> None:
        """Raise an exception if the work is to end."""
        if self._ended.is_set():
            raise CancelledError

    def close(self) -> None:
        """End after the image that is being read."""
        self._ended.set()
        for pool in (self.readers, self.decoders):
            pool.shutdown(wait=False, cancel_futures=True)


class Lane:
    """One of `lanes` endless sequences of images; in every epoch each shard belongs to one lane.

    The next window is read while images are taken from the current one. The first window has another length in each
    lane, so that the lanes' windows do not all end at once.
    """

    def __init__(self, stream: Stream, number: int, lanes: int, seed: int, place: Place, threads: Threads):
        self.stream, self.number, self.lanes, self.seed, self.place = stream, number, lanes, seed, place
        self._found = _images_from(place, stream, number, lanes, seed)
        self._window = np.empty((0, *stream.fitting.shape), np.uint8)
        self._threads = threads
        self._ahead = threads.readers.submit(self._read, place)

    def take(self, count: int) -> Array:
        """The next images, (count, C, H, W)."""
        parts = []
        while count:
            if self.place.taken >= len(self._window):
                self._advance()
            taken = self.place.taken
            parts.append(self._window[taken : taken + count])
            self.place = self.place._replace(taken=taken + len(parts[-1]))
            count -= len(parts[-1])
        return np.concatenate(parts)

    def _advance(self) -> None:
        """Go to the next window that is not empty."""
        for _ in range(EMPTY_MOST):
            self.place, self._window, after = self._ahead.result()
            self._ahead = self._threads.readers.submit(self._read, after)
            if len(self._window):
                return
        raise IhdmError(
            f"the stream had no image that can be read in {EMPTY_MOST} windows in a row, up to epoch "
            f"{self.place.epoch}; if the set is small, leave out data.stream=true"
        )

    def _read(self, place: Place) -> tuple[Place, Array, Place]:
        """The place where a window begins, the window, shuffled, and the place where the next one begins."""
        size = max(1, self.stream.buffer // self.lanes)
        if place.window == 0:
            size = -(-size * (self.number + 1) // self.lanes)
        chosen: list[Found] = []
        while len(chosen) < size:
            self._threads.go_on()
            after, found = next(self._found)
            if found is None:  # the epoch ends, and the window with it
                break
            chosen.append(found)
        arrays = self._decoded(chosen)
        window = np.stack(arrays) if arrays else np.empty((0, *self.stream.fitting.shape), np.uint8)
        order = permutation(len(window), self.seed, Purpose.WINDOW, self.number, place.window)
        return place, window[order.numpy()], after._replace(window=place.window + 1)

    def _decoded(self, found: list[Found]) -> list[Array]:
        each = -(-len(found) // self._threads.parts) or 1
        parts = [found[first : first + each] for first in range(0, len(found), each)]
        return list(itertools.chain(*self._threads.decoders.map(self.stream.decoded, parts)))


def _images_from(
    place: Place, stream: Stream, lane: int, lanes: int, seed: int
) -> Iterator[tuple[Place, Found | None]]:
    """All images of a lane that are not held out, each with the place after it; None where an epoch ends."""
    parts = -(-lanes // len(stream.shards))
    shards = Parts(stream.shards, parts) if parts > 1 else stream.shards
    first_shard, first_image = place.shard, place.image
    for epoch in itertools.count(place.epoch):
        mine = permutation(len(shards), seed, Purpose.SHARDS, epoch)[lane::lanes].tolist()
        for shard in range(first_shard, len(mine)):
            for image, found in enumerate(shards.images(mine[shard], first_image), first_image + 1):
                if not stream.looked_at.hold_out(found):
                    yield Place(epoch, shard, image), found
            first_image = 0
        first_shard = 0
        yield Place(epoch + 1), None
