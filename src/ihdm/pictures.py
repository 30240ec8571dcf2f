"""Pictures for people: grids, sequences, animations. Pixels are enlarged by repetition, never blurred."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ihdm.disk import real, replaced_file
from ihdm.pixels import to_bytes

GAP, MARGIN, CAPTION = 3, 10, 22
PAPER, INK = 255, 60
CELL = 64  # images are enlarged to about this many pixels by default


def grid(
    images: Sequence[Tensor] | Tensor, columns: int | None = None, caption: str = "", cell: int = CELL
) -> Image.Image:
    """Images (N, C, H, W), in [0, 1] or uint8, in rows of `columns`, by default about square."""
    columns = columns or int(np.ceil(np.sqrt(len(images))))
    tiles = [_tile(image, cell) for image in images]
    width, height = tiles[0].size
    rows = -(-len(tiles) // columns)
    top = MARGIN + (CAPTION if caption else 0)
    size = 2 * MARGIN + columns * (width + GAP) - GAP, top + MARGIN + rows * (height + GAP) - GAP
    page = Image.new("RGB", size, (PAPER,) * 3)
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        page.paste(tile, (MARGIN + column * (width + GAP), top + row * (height + GAP)))
    if caption:
        ImageDraw.Draw(page).text((MARGIN, MARGIN - 2), caption, fill=(INK,) * 3, font=ImageFont.load_default(14))
    return page


def beside(*pages: Image.Image) -> Image.Image:
    """Pages next to each other."""
    page = Image.new("RGB", (sum(p.width for p in pages), max(p.height for p in pages)), (PAPER,) * 3)
    left = 0
    for part in pages:
        page.paste(part, (left, 0))
        left += part.width
    return page


def sequence(states: Sequence[Tensor], caption: str = "") -> Image.Image:
    """One row for each image, one column for each state of the trajectory (Fig. 5a)."""
    rows = torch.stack(list(states), dim=1).flatten(0, 1)
    return grid(rows, len(states), caption)


def evenly(trajectory: Iterable[tuple[int, Tensor]], levels: Sequence[int], count: int) -> list[Tensor]:
    """At most `count` of the states of a trajectory through the levels, evenly spaced, both ends included."""
    wanted = some_of(levels, count)
    return [u for k, u in trajectory if k in wanted]


def some_of(levels: Sequence[int], count: int) -> list[int]:
    """At most `count` of the levels, evenly spaced, both ends included."""
    most = len(levels) - 1
    return [levels[place] for place in sorted({round(i * most / max(count - 1, 1)) for i in range(count)})]


def animation(
    path: str | Path, states: Sequence[Tensor], seconds: float = 4.0, hold: float = 1.5, cell: int = CELL
) -> None:
    """A looping GIF of the states, each a batch shown as a grid; the last one stays for `hold` seconds."""
    frames = [grid(state, cell=cell).quantize(256) for state in states]
    step = max(20, round(1000 * seconds / len(frames)))
    durations = [step] * (len(frames) - 1) + [round(1000 * hold)]
    write(frames[0], path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def write(picture: Image.Image, path: str | Path, **options: Any) -> None:
    """Write a picture in the format that its name says; an older one of that name stays until this one is whole."""
    content = io.BytesIO()
    picture.save(content, Image.registered_extensions()[Path(path).suffix.lower()], **options)
    target = real(Path(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content.getvalue())  # a device or a pipe
    else:
        replaced_file(target, content.getvalue())


def plain(image: Tensor) -> Image.Image:
    """One image (C, H, W), in [0, 1] or uint8, pixel for pixel.

    Of four channels the last is alpha. Of two only the first is shown, of five or more the first three.
    """
    shown = image[: {1: 1, 2: 1, 4: 4}.get(len(image), 3)].detach().cpu()
    pixels = (shown if shown.dtype == torch.uint8 else to_bytes(shown)).numpy().transpose(1, 2, 0)
    return Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)


def _tile(image: Tensor, cell: int) -> Image.Image:
    """One image, on white where it is transparent, enlarged if it is small."""
    tile = plain(image).convert("RGBA")
    tile = Image.alpha_composite(Image.new("RGBA", tile.size, "white"), tile).convert("RGB")
    factor = max(1, cell // max(tile.size))
    return tile.resize((tile.width * factor, tile.height * factor), Image.Resampling.NEAREST)
