"""Pictures unlike those that a model was trained on, and blurs as other programs compute them."""

from __future__ import annotations

import string
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from ihdm.blurs import sampled
from ihdm.pixels import to_unit

BORDERS = ("reflect", "nearest", "constant", "mirror", "wrap")
PHOTOGRAPH = "grace_hopper.jpg"  # comes with matplotlib
FONTS = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono-Bold.ttf")  # come with matplotlib too


def by_pillow(image: Tensor, radius: float) -> Tensor:
    """Pillow's GaussianBlur of a uint8 image (C, H, W), in [0, 1]."""
    planes = [Image.fromarray(plane.numpy()).filter(ImageFilter.GaussianBlur(radius)) for plane in image]
    return to_unit(torch.from_numpy(np.stack([np.array(plane) for plane in planes])))


def by_scipy(image: Tensor, radius: float, border: str) -> Tensor:
    """scipy.ndimage.gaussian_filter of a uint8 image, which rounds down to 8 bits after each axis, in [0, 1]."""
    rows, columns = (sampled(n, radius, border) for n in image.shape[1:])
    halfway = (rows @ image.double() + 1e-9).floor()
    return to_unit((halfway @ columns.mT + 1e-9).floor().byte())


def by_rounding(image: Tensor, radius: float, border: str) -> Tensor:
    """The same blur by a program that rounds once, at the end."""
    rows, columns = (sampled(n, radius, border) for n in image.shape[1:])
    return to_unit((rows @ image.double() @ columns.mT).round().byte())


GAUSSIAN = [partial(way, border=border) for way in (by_scipy, by_scipy, by_rounding) for border in BORDERS]
WAYS = (by_pillow, partial(by_scipy, border="reflect"))  # to blur the images that a model is calibrated on


def strangers(held_out: Tensor, count: int) -> dict[str, Tensor]:
    """Other kinds of pictures, each (count, C, H, W), uint8, in the shape of the held-out images."""
    _, channels, *grid = held_out.shape
    generator = torch.Generator().manual_seed(0)
    grey = torch.linspace(0, 255, count).byte()[:, None, None, None]
    found = {
        "inverted": 255 - held_out[:count],
        "photographs": _photographs(count, grid, generator).expand(-1, channels, -1, -1),
        "noise": torch.randint(0, 256, (count, channels, *grid), generator=generator, dtype=torch.uint8),
        "letters": _letters(count, grid).expand(-1, channels, -1, -1),
        "blank": grey.expand(-1, channels, *grid),
    }
    return {name: images.contiguous() for name, images in found.items()}


def _photographs(count: int, grid: list[int], generator: torch.Generator) -> Tensor:
    """Parts of a photograph, of several sizes."""
    import matplotlib

    with Image.open(Path(matplotlib.get_data_path(), "sample_data", PHOTOGRAPH)) as picture:
        whole = picture.convert("L")
    parts = []
    for share, x, y in torch.rand(count, 3, generator=generator).tolist():
        side = int((0.15 + 0.6 * share) * min(whole.size))
        left, top = int(x * (whole.width - side)), int(y * (whole.height - side))
        part = whole.crop((left, top, left + side, top + side))
        parts.append(np.array(part.resize((grid[1], grid[0]), Image.Resampling.LANCZOS)))
    return torch.from_numpy(np.stack(parts))[:, None]


def _letters(count: int, grid: list[int]) -> Tensor:
    """White letters on black, in several fonts, about as large as digits."""
    import matplotlib

    fonts = [Path(matplotlib.get_data_path(), "fonts", "ttf", name) for name in FONTS]
    pages = []
    for i in range(count):
        letter = string.ascii_letters[i * len(string.ascii_letters) // count]
        page = Image.new("L", (grid[1], grid[0]))
        font = ImageFont.truetype(str(fonts[i % len(fonts)]), round(0.8 * min(grid)))
        ImageDraw.Draw(page).text((grid[1] / 2, grid[0] / 2), letter, fill=255, font=font, anchor="mm")
        pages.append(np.array(page))
    return torch.from_numpy(np.stack(pages))[:, None]
