"""One image that a user gives, or one item of other data, in the shape that a model knows."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ihdm.data import reader
from ihdm.data.images import decode, picture_shape
from ihdm.data.pictures import Files
from ihdm.domains import Domain
from ihdm.errors import IhdmError, UsageError
from ihdm.pixels import to_unit
from ihdm.restoration import lift

SMALLEST = 3  # image, in pixels along an axis


def read_other(path: Path, domain: Domain, resize: bool) -> Tensor:
    """One item of data other than images, (C, *grid) in [0, 1], from the module that reads such data."""
    if not path.is_file():
        raise IhdmError(f"there is no file {path}")
    found: Tensor = reader(domain.kind).read_one(path, domain, resize)
    return found


def read_one(path: Path, shape: tuple[int, ...], resize: bool) -> tuple[Tensor, float | None, int]:
    """The image (C, H, W) in [0, 1], its blur width if that follows from its size, and how many channels it had.

    A smaller image of the same proportions is lifted to the model's grid; resize: others are cropped and scaled to it.
    """
    if not path.is_file():
        raise IhdmError(f"there is no file {path}")
    files, grid = Files(path.parent, [path.name]), (shape[1], shape[2])
    channels, height, width = picture_shape(files, None, None)
    if height * grid[1] == width * grid[0] and height < grid[0]:
        if min(height, width) < SMALLEST:
            raise UsageError(f"{path} is too small: {height} x {width} pixels say next to nothing")
        image, blur_width = lift(to_unit(decode(files, None, shape[0])[0]), grid)
        return image, blur_width, channels
    if (height, width) != grid and not resize:
        raise UsageError(
            f"{path} is {height} x {width}, but the model restores images of {grid[0]} x {grid[1]} (height x width) or "
            f"smaller ones of the same proportions; shrink it, or add --resize to have it cropped and scaled"
        )
    return to_unit(decode(files, grid, shape[0])[0]), None, channels
