"""Tar archives of images, as WebDataset has them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def png(pixels: object) -> bytes:
    content = BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(content, "PNG")
    return content.getvalue()


def write_tar(path: Path, contents: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))


def write_crosses(folder: Path, archives: int, images: int) -> None:
    """Archives of simple images, 8x8, no two of them in a row alike."""
    for number in range(archives):
        pixels = [np.roll(np.eye(8, dtype=np.uint8) * 200, (i, number), (0, 1)) for i in range(images)]
        write_tar(folder / f"{number}.tar", {f"{i}.png": png(one) for i, one in enumerate(pixels)})
