"""Volumes from npy and npz files, folders of npy files, or orbitals, as one float32 tensor in [0, 1]."""

from __future__ import annotations

import sys
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data import ImageSet, given, set_name, split_off
from ihdm.data.arrays import numpy_file, stacks_by_split
from ihdm.data.labels import numbered
from ihdm.data.listing import files_below
from ihdm.data.orbitals import KINDS, SIZE, TEST, TRAIN, orbitals
from ihdm.data.pictures import Files, Pictures, Stack
from ihdm.data.sources import MADE_HERE, locate
from ihdm.data.splits import by_split
from ihdm.domains import VolumeDomain
from ihdm.domains.domain import by
from ihdm.errors import IhdmError, UsageError
from ihdm.heat import resized

ORBITALS = "orbitals"
AXES = "(D, H, W), or (C, D, H, W) with channels"


class VolumeFiles(Files):
    """npy files in a folder, one volume each."""

    def read(self, i: int) -> Any:
        return _checked(numpy_file(self.folder / self.names[i]), self.name(i), 3, AXES)


def domain(config: DataConfig, split: str = "train") -> VolumeDomain:
    """The domain of the volumes that `load` would give, the same for all splits."""
    if config.size and config.channels and config.range:
        return VolumeDomain((config.channels, *config.size), *config.range)
    return _domain(config, _splits(config))


def load(config: DataConfig, held_out_most: int | None) -> ImageSet:
    """Read a source; if it has no test split, hold out a share of the volumes."""
    splits = _splits(config)
    found = _domain(config, splits)
    train, held_out = split_off(splits, config.holdout, held_out_most)
    told = numbered(config, train, held_out)
    data = _stacked(train, found), _stacked(held_out, found)
    return ImageSet(set_name(config.source), data[0], data[1], None, *told, found)


def read_one(path: Path, domain: VolumeDomain, resize: bool) -> Tensor:
    """A volume (C, D, H, W) in [0, 1] that a user gives; resize: bring it to the model's size."""
    files = VolumeFiles(path.parent, [path.name])
    shape = files.read(0).shape
    if shape[0] != domain.shape[0] or (shape != domain.shape and not resize):
        raise UsageError(
            f"{path} is {by(shape)} (channels x depth x height x width), but the model's volumes are "
            f"{by(domain.shape)}; --resize changes the size, but not the channels"
        )
    return _stacked(files, domain)[0]


def _splits(config: DataConfig) -> dict[str, Pictures]:
    if given(config.source) == ORBITALS:
        return _orbitals(config.size or (SIZE,) * 3)
    path = locate(config.source) if config.source not in MADE_HERE else None
    if not isinstance(path, Path):
        raise UsageError(f"{config.source} is not a set of volumes; give a file or a folder, or the set {ORBITALS}")
    if path.is_dir():
        names = by_split(files_below(path), {".npy"})
        splits: dict[str, Pictures] = {split: VolumeFiles(path, some) for split, some in names.items()}
    elif path.suffix.lower() in (".npy", ".npz"):
        axes = "(N, D, H, W), or (N, C, D, H, W) with channels"
        splits = stacks_by_split(path, partial(_checked, name=str(path), axes=4, expected=axes))
    else:
        raise IhdmError(f"volumes are read from an npy or npz file or a folder of npy files, not from {path}")
    if "train" not in splits:
        raise IhdmError(f"{path} holds no training volumes; found: {', '.join(splits) or 'no npy files'}")
    return splits


@lru_cache(maxsize=1)
def _orbitals(grid: tuple[int, ...]) -> dict[str, Pictures]:
    splits: dict[str, Pictures] = {}
    for seed, (split, count) in enumerate({"train": TRAIN, "test": TEST}.items()):
        found = orbitals(count, seed, grid)
        names = {split: [KINDS[kind] for kind in found.kinds.tolist()]}
        splits[split] = Stack(ORBITALS, found.volumes.numpy(), partial(names.get, split))
    return splits


def _checked(array: Any, name: str, axes: int, expected: str) -> Any:
    """An array of finite numbers with `axes` axes and, before the last three, one for channels, added if missing."""
    if array.ndim not in (axes, axes + 1) or 0 in array.shape:
        raise IhdmError(f"{name} has shape {array.shape}; expected {expected}")
    if array.dtype.kind not in "buif":
        raise IhdmError(f"{name} holds {array.dtype}; expected integers or floating point numbers")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise IhdmError(f"{name} holds values that are not finite (nan or infinity)")
    return np.expand_dims(array, -4) if array.ndim == axes else array


def _domain(config: DataConfig, splits: dict[str, Pictures]) -> VolumeDomain:
    """The domain: the least and the largest training value become 0 and 1, unless others are given."""
    train = splits["train"]
    first: Any = train.read(0)
    low, high = np.inf, -np.inf
    for split, volumes in splits.items():
        for i in range(len(volumes)):
            volume: Any = volumes.read(i)
            if volume.shape[0] != first.shape[0] or (config.size is None and volume.shape != first.shape):
                raise UsageError(
                    f"the volumes differ in shape: {train.name(0)} is {by(first.shape)} and {volumes.name(i)} is "
                    f"{by(volume.shape)} (channels x depth x height x width); --set data.size=16 brings them to "
                    f"one size, but all must have the same number of channels"
                )
            if split == "train":
                low, high = min(low, float(volume.min())), max(high, float(volume.max()))
    if config.channels not in (None, len(first)):
        raise UsageError(f"{train.name(0)} has {len(first)} channels, but data.channels={config.channels} is asked for")
    if config.range is None and low == high:
        raise IhdmError(f"all values of {config.source} are {low:g}: there is nothing to learn")
    low, high = config.range or (low, high)
    return VolumeDomain((len(first), *(config.size or first.shape[1:])), low, high)


def _stacked(volumes: Pictures, domain: VolumeDomain) -> Tensor:
    """(N, C, *grid) in [0, 1]; values outside are clipped, with a warning unless resizing put them there."""
    found, outside = torch.empty(len(volumes), *domain.shape), 0
    for i in range(len(volumes)):
        values: Any = volumes.read(i)
        u = domain.scaled(torch.from_numpy(values.astype(np.float64)))
        outside += int(((u < 0) | (u > 1)).sum())
        found[i] = resized(u[None], domain.grid)[0].clamp(0, 1)
    if outside:
        print(
            f"warning: {outside:,} values lie outside of {domain.low:g} to {domain.high:g}, the range of the training "
            f"volumes (or data.range), and are clipped to it",
            file=sys.stderr,
        )
    return found
