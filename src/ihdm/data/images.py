"""Decoding pictures, of any kind and size, into images of one shape."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ihdm.data.pictures import Array, Pictures, Subset
from ihdm.domains.domain import by
from ihdm.errors import IhdmError, UsageError, first_few
from ihdm.progress import progress_bar

SIXTEEN_BITS = ("PNG", "PPM")  # formats whose deep images have 16 bits, even if Pillow gives them 32
SMALL, MOST_THREADS = 96 * 96, 16  # pixels of a small image; most threads for larger ones (benchmarks/data.py)
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GREY_MODES = {"1", "L", "LA", "F"}  # and the integer modes, whose names begin with I


@dataclass(frozen=True)
class Fitting:
    """Makes pictures uint8 (C, H, W), resized and converted if asked; `first` names the one that gave the shape.

    Without a size, all must have the size of the first. Without channels, all are grey or colour like the first, and no
    colour is dropped silently. Transparent parts become white, unless alpha is asked for.
    """

    first: str
    shape: tuple[int, int, int]
    size: tuple[int, int] | None
    channels: int | None

    @property
    def threads(self) -> int:
        """How many are fastest: most of the work on small images is Python's, which runs in one thread at a time."""
        small = self.shape[1] * self.shape[2] <= SMALL
        return 1 if small else min(MOST_THREADS, os.cpu_count() or 1)

    def __call__(self, picture: Image.Image | Array, name: str) -> Array:
        if self.size is None and _size(picture) != self.shape[1:]:
            raise UsageError(
                f"the images differ in size: {self.first} is {by(self.shape[1:])} and {name} is "
                f"{by(_size(picture))} (height x width); choose one size for all, such as --set data.size=64"
            )
        if self.channels is None and _channels(picture) > self.shape[0]:
            raise UsageError(
                f"{self.first} is grey and {name} is in colour; choose one for all, "
                f"--set data.channels=3 (colour) or 1 (grey)"
            )
        return _array(picture, self.size, self.shape[0], name).transpose(2, 0, 1)


class Decoder:
    """Reads pictures by number, in the form that `Fitting` gives them."""

    def __init__(self, pictures: Pictures, size: tuple[int, int] | None, channels: int | None):
        self.pictures = pictures
        self.fitting = Fitting(pictures.name(0), picture_shape(pictures, size, channels), size, channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.fitting.shape

    @property
    def threads(self) -> int:
        return self.fitting.threads

    def __call__(self, i: int) -> Array:
        return self.fitting(_read(self.pictures, i), self.pictures.name(i))


class Unreadable(IhdmError):
    """A picture, or a sound, that is damaged or none at all."""


def decode(pictures: Pictures, size: tuple[int, int] | None, channels: int | None, skip: bool = False) -> Tensor:
    """All pictures as one uint8 tensor (N, C, H, W), as `Decoder` makes them.

    skip: leave out pictures that cannot be read, with a warning that names them, instead of stopping at the first.
    """
    return decode_readable(pictures, size, channels, skip)[0]


def decode_readable(
    pictures: Pictures, size: tuple[int, int] | None, channels: int | None, skip: bool = False
) -> tuple[Tensor, Tensor]:
    """What `decode` gives, and the numbers of the pictures that were not left out."""
    broken: dict[int, str] = {}
    decoder = Decoder(from_the_first_that_reads(pictures) if skip else pictures, size, channels)
    numbers = np.arange(len(pictures))[-len(decoder.pictures) :]
    pictures = decoder.pictures
    out = np.empty((len(pictures), *decoder.shape), np.uint8)

    def fill(i: int) -> None:
        try:
            out[i] = decoder(i)
        except Unreadable as error:
            if not skip:
                raise
            broken[i] = str(error)

    with (
        ThreadPoolExecutor(decoder.threads) as threads,
        progress_bar(total=len(pictures), desc="reading images", unit="image", delay=2) as bar,
    ):
        for start in range(0, len(pictures), 1024):
            for _ in threads.map(fill, range(start, min(start + 1024, len(pictures)))):
                bar.update()
    if broken:
        warn_of(broken, len(pictures))
        out, numbers = np.delete(out, sorted(broken), 0), np.delete(numbers, sorted(broken))
    return torch.from_numpy(out), torch.from_numpy(numbers)


def from_the_first_that_reads(pictures: Pictures, warn: bool = True) -> Pictures:
    """The pictures from the first readable one on, which decides the shape of all."""
    broken: dict[int, str] = {}
    for i in range(len(pictures)):
        try:
            _read(pictures, i)
        except Unreadable as error:
            broken[i] = str(error)
        else:
            if broken and warn:
                warn_of(broken, len(pictures))
            return Subset(pictures, range(i, len(pictures))) if i else pictures
    raise Unreadable(f"none of {len(pictures):,} images can be read; the first: {broken[0]}")


def warn_of_frames(pictures: Pictures) -> None:
    """Only the first frame of an animation, or page of a file, is read: warn if the first picture has more."""
    picture, frames = _read(pictures, 0), 1
    with contextlib.suppress(Exception):  # damage after the first frame makes Pillow raise many kinds
        frames = int(getattr(picture, "n_frames", 1))
    if frames > 1 and getattr(picture, "format", "") != "MPO":  # a photograph with a small copy of itself
        others = ", and only the first of any others" if len(pictures) > 1 else ""
        of = f"{frames:,} frames or pages of {pictures.name(0)}"
        print(f"warning: only the first of {of} is read{others}", file=sys.stderr)


def warn_of(broken: dict[int, str], total: int, noun: str = "image") -> None:
    """Warn of what was left out."""
    shown = first_few([broken[i] for i in sorted(broken)])
    print(f"warning: skipped {len(broken):,} of {total:,} {noun}s: {shown}", file=sys.stderr)


def picture_shape(pictures: Pictures, size: tuple[int, int] | None, channels: int | None) -> tuple[int, int, int]:
    """(C, H, W) of the tensor that `decode` makes; looks at the first picture for what is not given."""
    if size is None or channels is None:
        first = _read(pictures, 0)
        size = size or _size(first)
        channels = channels or _channels(first)
    return channels, *size


def fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Centre-crop to the proportions of `size` (H, W), halve by area while possible, then bicubic with antialiasing."""
    height, width = size
    scale = min(image.width / width, image.height / height)
    crop_width, crop_height = max(1, round(width * scale)), max(1, round(height * scale))
    left, top = (image.width - crop_width) // 2, (image.height - crop_height) // 2
    if (crop_width, crop_height) != image.size:
        image = image.crop((left, top, left + crop_width, top + crop_height))
    # Halving an odd side leaves a last pixel that covers only half as much; `extent` is what the pixels stand for.
    extent: tuple[float, float] = image.size
    while extent[0] >= 2 * width and extent[1] >= 2 * height:
        image, extent = image.reduce(2), (extent[0] / 2, extent[1] / 2)
    if extent == (width, height):
        return image
    return image.resize((width, height), Image.Resampling.BICUBIC, box=(0, 0, *extent))


def _read(pictures: Pictures, i: int) -> Image.Image | Array:
    return load_picture(pictures.name(i), lambda: pictures.read(i))


def load_picture(name: str, read: Callable[[], Image.Image | Array | None]) -> Image.Image | Array:
    """Read and decode one picture, turned as its EXIF data says; an unreadable one is named."""
    try:
        picture = read()
        if picture is None:
            raise ValueError("there is nothing in its place")
        if isinstance(picture, Image.Image):
            picture.load()
            ImageOps.exif_transpose(picture, in_place=True)
        return picture
    except UnidentifiedImageError as error:
        raise Unreadable(f"{name} is not an image that can be read (its format cannot be told)") from error
    except Exception as error:  # decoders and archives raise many kinds; each is an unreadable image
        raise Unreadable(f"{name} is not an image that can be read ({error})") from error


def _array(picture: Image.Image | Array, size: tuple[int, int] | None, channels: int, name: str) -> Array:
    """One picture as uint8 (H, W, C)."""
    if not isinstance(picture, Image.Image):
        if picture.shape[-1] == channels and size in (None, picture.shape[:2]):
            return picture
        if picture.shape[-1] == channels and channels not in MODES:
            planes = [_array(plane[..., None], size, 1, name) for plane in np.moveaxis(picture, -1, 0)]
            return np.concatenate(planes, -1)
        if picture.shape[-1] not in MODES:
            raise UsageError(f"{name} has {picture.shape[-1]} channels, which cannot be converted to {channels}")
        picture = Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture)
    if channels not in MODES:
        raise UsageError(
            f"{name} cannot be converted to {channels} channels; set data.channels to 1 (grey), 3 (colour) or 4 (alpha)"
        )
    picture = _eight_bits(picture, name)
    if channels != 4 and picture.has_transparency_data:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    picture = picture.convert(MODES[channels])
    if size is not None:
        picture = fit(picture, size)
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def _eight_bits(picture: Image.Image, name: str) -> Image.Image:
    """Deep images, in 16-bit integers or floating point in [0, 1], scaled to 0..255."""
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture
    values = np.asarray(picture)
    low, high = values.min(), values.max()
    if picture.mode == "F" and low >= 0 and high <= 1:
        values = np.round(values * 255)
    elif picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in SIXTEEN_BITS):
        values = values >> 8
    else:
        kind = "floating point" if picture.mode == "F" else "32-bit"
        raise IhdmError(
            f"{name} has {kind} values from {low} to {high}; expected 8 or 16 bits, or floating point in [0, 1]"
        )
    return Image.fromarray(values.astype(np.uint8))


def _channels(picture: Image.Image | Array) -> int:
    if isinstance(picture, Image.Image):
        return 1 if picture.mode in GREY_MODES or picture.mode.startswith("I") else 3
    return int(picture.shape[-1])


def _size(picture: Image.Image | Array) -> tuple[int, int]:
    if isinstance(picture, Image.Image):
        return picture.height, picture.width
    height, width, _ = picture.shape
    return height, width
