"""Pictures by number, each opened when it is read: files, members of archives, an array, rows of a set on the hub."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

Array = np.ndarray[Any, np.dtype[np.uint8]]

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"]  # of files with these suffixes, as Pillow names them


def open_picture(source: Path | bytes) -> Image.Image:
    """Open a file or its content, in FORMATS only: for one of the others that Pillow knows, it starts Ghostscript."""
    return Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)


def open_member(content: bytes) -> Image.Image:
    """An image in a tar archive."""
    if not content:
        raise ValueError("it is empty, or a link to something that is not a file in the archive")
    return open_picture(content)


class Pictures(Protocol):
    """Images by number: Pillow images or uint8 arrays (H, W, C), or None where a set on the hub has a gap."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """Where image i comes from, for messages."""

    def read(self, i: int) -> Any:
        """Image i; `SoundFiles` and its like give a sound."""


class Files:
    """Image files in a folder, by their names there."""

    def __init__(self, folder: Path, names: Sequence[str]):
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return str(self.folder / self.names[i])

    def read(self, i: int) -> Image.Image:
        return open_picture(self.folder / self.names[i])


class ZipMembers:
    """Image files inside a zip archive."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, members: Sequence[str]):
        self.path, self.archive, self.members = path, archive, members

    def __len__(self) -> int:
        return len(self.members)

    def name(self, i: int) -> str:
        return f"{self.path}/{self.members[i]}"

    def read(self, i: int) -> Image.Image:
        return open_picture(self.archive.read(self.members[i]))


class TarMembers:
    """Image files inside tar archives that are not compressed: (archive, name, place, size) each."""

    def __init__(self, members: Sequence[tuple[Path, str, int, int]]):
        self.members = members

    def __len__(self) -> int:
        return len(self.members)

    def name(self, i: int) -> str:
        path, name, _, _ = self.members[i]
        return f"{path}/{name}"

    def read(self, i: int) -> Image.Image:
        path, _, place, size = self.members[i]
        with path.open("rb") as file:
            file.seek(place)
            return open_member(file.read(size))


class Stack:
    """Images that already are one uint8 array (N, H, W, C). labels: reads their labels; empty if there are none."""

    def __init__(self, origin: str, array: Array, labels: Callable[[], Any]):
        self.origin, self.array, self.labels = origin, array, labels

    def __len__(self) -> int:
        return len(self.array)

    def name(self, i: int) -> str:
        return f"{self.origin}[{i}]"

    def read(self, i: int) -> Array:
        return self.array[i]


class Rows:
    """One image column of a data set from the hub, which must not decode the images itself."""

    def __init__(self, origin: str, rows: Any, column: str):
        self.origin, self.rows, self.column = origin, rows, column

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, i: int) -> str:
        return f"{self.origin}[{i}]"

    def read(self, i: int) -> Image.Image | None:
        return open_row(self.rows[i][self.column])


def open_row(row: Any) -> Image.Image | None:
    """Open an image of a data set from the hub, given as its content or as a path to it; None if there is none."""
    if row is None:
        return None
    if row["bytes"] is not None:
        return open_picture(row["bytes"])
    import fsspec  # comes with the hub's library

    with fsspec.open(row["path"]) as file:
        return open_picture(file.read())


class Subset:
    """Some of the pictures, by number."""

    def __init__(self, pictures: Pictures, numbers: Sequence[int]):
        self.pictures, self.numbers = pictures, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, i: int) -> str:
        return self.pictures.name(self.numbers[i])

    def read(self, i: int) -> Any:
        return self.pictures.read(self.numbers[i])
