"""Images from any source, as one uint8 tensor."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data.images import (
    Decoder,
    Unreadable,
    decode,
    decode_readable,
    from_the_first_that_reads,
    picture_shape,
    warn_of_frames,
)
from ihdm.data.labels import numbered
from ihdm.data.lazy import Images, LazyImages
from ihdm.data.pictures import Pictures, Subset
from ihdm.data.shards import FoundPictures, Shards, open_shards, reads
from ihdm.data.sources import Splits, locate, open_source
from ihdm.data.stream import Beginnings, Stream
from ihdm.domains import Domain, ImageDomain
from ihdm.errors import IhdmError, UsageError
from ihdm.host import host_bytes
from ihdm.labels import Labels
from ihdm.pixels import to_unit
from ihdm.registry import DOMAINS

HELD_OUT_MOST = 2048  # most images that the held-out loss uses
LOOKED_AT = 4096  # images of a stream that are read at the start; the prior is made from them
MEMORY_SHARE = 0.5  # of all memory, that images may fill


@dataclass(frozen=True)
class ImageSet:
    """Images to train on and images held out, uint8, (N, C, H, W) each; `held_out` may be empty.

    Other data are float32 in [0, 1], (N, C, *grid), and bring their domain with them (`own_domain`).

    The training images of a set larger than memory stay outside it. For a stream, `train` holds the first images of
    some shards; they stand for the rest, which only `stream` gives. If there are labels, `train_labels` and
    `held_out_labels` hold the label number of each image, (N,).
    """

    name: str
    train: Images
    held_out: Tensor
    stream: Stream | None = None
    labels: Labels = Labels()
    train_labels: Tensor | None = None
    held_out_labels: Tensor | None = None
    own_domain: Domain | None = None

    @property
    def domain(self) -> Domain:
        return self.own_domain or ImageDomain(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of one image."""
        return tuple(self.train.shape[1:])

    def of(self, label: str) -> ImageSet:
        """The images with one label; the set must be in memory."""
        if label not in self.labels.names or self.train_labels is None or self.held_out_labels is None:
            raise UsageError(f"no image of {self.name} has the label {label!r}; there are {self.labels.words}")
        number = self.labels.names.index(label)
        train, held_out = self.train_labels == number, self.held_out_labels == number
        some = self.train[:][train], self.held_out[held_out]
        return ImageSet(f"{self.name} ({label})", *some, own_domain=self.own_domain)

    def fingerprint(self) -> str:
        """A short text that changes with the training images: their number, shape, domain, labels and 1,024 of them."""
        digest = hashlib.blake2b(repr(tuple(self.train.shape)).encode(), digest_size=8)
        if self.stream:
            digest.update(f"{len(self.stream.shards)} shards".encode())
        digest.update(evenly_taken(self.train, 1024).cpu().numpy().tobytes())
        for name, tensor in self.own_domain.state().items() if self.own_domain else ():
            digest.update(name.encode() + tensor.numpy().tobytes())
        if self.train_labels is not None:
            digest.update(repr(self.labels).encode() + self.train_labels.numpy().tobytes())
        return digest.hexdigest()


def load_images(config: DataConfig, held_out_most: int | None = HELD_OUT_MOST, lazy: bool = False) -> ImageSet:
    """Read a source; if it has no test split, hold out a share of the images.

    held_out_most: how many of those held out to keep at most; None keeps all. lazy: if data.memory allows it, leave
    training images where they are and decode each when it is needed.
    """
    if not isinstance(config, DataConfig):
        raise TypeError(f"expected settings of data, such as load_config('digits').data, not {type(config).__name__}")
    if config.kind != "images":
        return reader(config.kind).load(config, held_out_most)
    if config.stream:
        return _load_stream(config, held_out_most, lazy)
    splits = opened(config.source)
    train, held_out = split_off(splits, config.holdout, held_out_most)
    skip = config.on_error == "skip"
    warn_of_frames(_readable(train, skip, warn=False))
    labels, *numbers = numbered(config, train, held_out)
    images: Tensor | LazyImages
    if lazy and _stays_outside(config, train):
        if config.labels and skip:
            raise UsageError(
                "while images are not all in memory, data.on_error=skip lets others take the places of broken ones, "
                "and these may have other labels; set data.memory=yes, or repair the images"
            )
        decoder = Decoder(_readable(train, skip), _size(config), config.channels)
        images, kept = LazyImages(decoder, skip), torch.arange(len(train))
    else:
        images, kept = decode_readable(train, _size(config), config.channels, skip)
    held_out_images, held_out_kept = _held_out(held_out, tuple(images.shape[1:]), skip)
    told = [None if each is None else each[some] for each, some in zip(numbers, (kept, held_out_kept))]
    return ImageSet(set_name(config.source), images, held_out_images, None, labels, told[0], told[1])


def _load_stream(config: DataConfig, held_out_most: int | None, lazy: bool) -> ImageSet:
    """A stream, and the first images of its shards; if there is no test split, some of these are held out."""
    if not lazy:
        raise UsageError("this needs all images, which a stream does not give; leave out data.stream=true")
    splits, skip = _opened_stream(config.source), config.on_error == "skip"
    train, test = splits["train"], splits.get("test")
    held_out = Beginnings.of(test, held_out_most or HELD_OUT_MOST).images(test) if test else []
    looked_at = Beginnings.of(train, LOOKED_AT, 0.0 if held_out else config.holdout)
    found = looked_at.images(train)
    learnt = [one for one in found if not looked_at.hold_out(one)]
    held_out = held_out or [one for one in found if looked_at.hold_out(one)]
    if not learnt:
        raise IhdmError(f"{config.source} has no training images at the start of {len(looked_at.shards)} of its shards")
    decoder = Decoder(_readable(FoundPictures(learnt), skip), _size(config), config.channels)
    warn_of_frames(decoder.pictures)
    stream = Stream(train, decoder.fitting, looked_at, config.buffer, skip)
    channels, *size = decoder.shape
    images = decode(decoder.pictures, (size[0], size[1]), channels, skip)
    held_out_images, _ = _held_out(FoundPictures(held_out), decoder.shape, skip)
    return ImageSet(set_name(config.source), images, held_out_images, stream)


def _held_out(pictures: Pictures, shape: tuple[int, ...], skip: bool) -> tuple[Tensor, Tensor]:
    """Held-out images in the shape of the training images, and the numbers of those that can be read; maybe none."""
    channels, height, width = shape
    try:
        if len(pictures):
            return decode_readable(pictures, (height, width), channels, skip)
    except Unreadable as error:
        if not skip:
            raise
        print(f"warning: of the held-out images, {error}", file=sys.stderr)
    return torch.empty(0, *shape, dtype=torch.uint8), torch.arange(0)


def _readable(pictures: Pictures, skip: bool, warn: bool = True) -> Pictures:
    return from_the_first_that_reads(pictures, warn) if skip else pictures


def set_name(source: str) -> str:
    """The name of a set as models record it, without a path that would reveal too much, and always valid UTF-8."""
    path = Path(source)
    return os.fsencode(path.name if path.is_absolute() else source).decode("utf-8", "replace")


def _stays_outside(config: DataConfig, train: Pictures) -> bool:
    """Whether training images stay outside memory: there are too many of them, or data.memory says so."""
    if config.memory != "auto":
        return config.memory == "no"
    some = _readable(train, config.on_error == "skip", warn=False)
    size = len(train) * math.prod(picture_shape(some, _size(config), config.channels))
    return size > MEMORY_SHARE * host_bytes()


def data_domain(config: DataConfig, split: str = "train") -> Domain:
    """The domain of the data that `load_images` would give, judged by the first of a split."""
    if config.kind == "images":
        return ImageDomain(image_shape(config, split))
    found: Domain = reader(config.kind).domain(config, split)
    return found


def reader(kind: str) -> Any:
    """The module that reads a kind of data other than images.

    It has `domain(config, split)`, `load(config, held_out_most)` and `read_one(path, domain, resize)`.
    """
    return import_module(f"ihdm.data.{'own' if DOMAINS.is_own(kind) else kind}")


def image_shape(config: DataConfig, split: str = "train") -> tuple[int, int, int]:
    """(C, H, W) of the images that `load_images` would give, judged by the first of a split, or else of training."""
    size = _size(config)
    if size is not None and config.channels is not None:
        return config.channels, *size
    skip = config.on_error == "skip"
    splits = opened(config.source) if not config.stream else _first_of_each(_opened_stream(config.source), skip)
    pictures = _readable(splits.get(split) or splits["train"], skip, warn=False)
    return picture_shape(pictures, size, config.channels)


def _size(config: DataConfig) -> tuple[int, int] | None:
    """The height and width that images are resized to; None if they are not."""
    return None if config.size is None else (config.size[0], config.size[1])


def labels_of(config: DataConfig) -> Labels | None:
    """The labels of the images that `load_images` would give; None if they are on the hub, which is not contacted."""
    if not config.labels:
        return Labels()
    if config.kind != "images":
        return load_images(config).labels
    if not isinstance(locate(given(config.source)), Path):
        return None
    return numbered(config, *split_off(opened(config.source), config.holdout))[0]


def evenly_spaced(n: int, most: int) -> Tensor:
    """At most `most` of the numbers 0..n-1, evenly spaced, so that sets sorted by class are covered evenly."""
    count = min(n, most)
    return torch.arange(count) * n // max(count, 1)


def evenly_taken(images: Images, most: int) -> Tensor:
    """At most `most` of the images, evenly spaced, in memory."""
    return images[evenly_spaced(len(images), most)]


def spread(images: Images, most: int) -> Images:
    """At most `most` of the images, evenly spaced; those outside memory stay there."""
    numbers = evenly_spaced(len(images), most)
    return images.some(numbers) if isinstance(images, LazyImages) else images[numbers]


def unit_batches(images: Images, size: int) -> Iterator[Tensor]:
    """The images in order, as float32 in [0, 1]."""
    for batch in images.split(size):
        yield to_unit(batch)


def _opened_stream(source: str) -> Mapping[str, Shards]:
    splits = open_shards(given(source))
    if "train" not in splits:
        raise IhdmError(f"{source} has no training images, only: {', '.join(splits) or 'nothing'}")
    return splits


def _first_of_each(splits: Mapping[str, Shards], skip: bool) -> Splits:
    """The first image of each split that has any; skip: the first that can be read."""
    images = {split: chain.from_iterable(map(shards.images, range(len(shards)))) for split, shards in splits.items()}
    readable = {split: filter(reads, some) if skip else some for split, some in images.items()}
    found = {split: FoundPictures(list(islice(some, 1))) for split, some in readable.items()}
    if not len(found["train"]):
        raise IhdmError("the stream has no training images" + " that can be read" * skip)
    return {split: pictures for split, pictures in found.items() if len(pictures)}


def given(source: str) -> str:
    """The source, which must not be empty."""
    if not source:
        raise UsageError("no data given; name a set, folder or file with --data SOURCE (or data.source=SOURCE)")
    return source


def opened(source: str) -> Splits:
    """The splits of a source, of which one must have training images."""
    splits = open_source(given(source))
    if "train" not in splits or len(splits["train"]) == 0:
        raise IhdmError(f"{source} has no training images, only: {', '.join(splits) or 'nothing'}")
    return splits


def split_off(splits: Splits, holdout: float, most: int | None = None) -> tuple[Pictures, Pictures]:
    """Training and held-out pictures: the test split is held out, or else a share of the others, but never all.

    most: how many of those held out to keep at most, evenly spaced; None keeps all.
    """
    train, held_out = splits["train"], splits.get("test")
    if held_out is None or not len(held_out):
        count = min(max(1, round(holdout * len(train))), len(train) - 1) if holdout > 0 else 0
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        train, held_out = (Subset(train, part.sort().values.tolist()) for part in (order[count:], order[:count]))
    return train, Subset(held_out, evenly_spaced(len(held_out), most or len(held_out)).tolist())


__all__ = [
    "ImageSet",
    "Images",
    "data_domain",
    "evenly_spaced",
    "evenly_taken",
    "image_shape",
    "labels_of",
    "load_images",
    "reader",
    "spread",
    "unit_batches",
]
