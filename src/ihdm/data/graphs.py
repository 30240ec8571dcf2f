"""Fields on the nodes of a graph or a mesh, as one float32 tensor in [0, 1]; an npz file holds both."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data import ImageSet, given, set_name, split_off
from ihdm.data.arrays import numpy_file
from ihdm.data.labels import numbered
from ihdm.data.pictures import Pictures, Stack
from ihdm.data.sources import locate
from ihdm.domains import GraphDomain
from ihdm.domains.graphs import TENSORS
from ihdm.errors import IhdmError, UsageError, unknown

SPLITS = "train", "test"
LABELS = "train_labels", "test_labels"


def domain(config: DataConfig, split: str = "train") -> GraphDomain:
    """The domain of the fields that `load` would give, the same for all splits."""
    return _read(config)[0]


def load(config: DataConfig, held_out_most: int | None) -> ImageSet:
    """Read a file; if it has no test split, hold out a share of the fields."""
    found, splits = _read(config)
    train, held_out = split_off(splits, config.holdout, held_out_most)
    told = numbered(config, train, held_out)
    data = _stacked(train, found), _stacked(held_out, found)
    return ImageSet(set_name(config.source), data[0], data[1], None, *told, found)


def read_one(path: Path, domain: GraphDomain, resize: bool) -> Tensor:
    """A field (C, n) that a user gives in an npy file, in the units of the data; in [0, 1], or a little beyond."""
    array, (channels, nodes) = numpy_file(path), domain.shape
    if isinstance(array, dict) or array.ndim not in (1, 2):
        raise UsageError(f"{path} holds no single field; expected an npy array (n,), or (C, n) with channels")
    values = _checked(array[None], str(path))
    if values.shape[1:] != domain.shape:
        there = f"{values.shape[1]} channels on {values.shape[2]:,} nodes"
        raise UsageError(f"{path} is a field of {there}, but the model's fields have {channels} on {nodes:,}")
    return domain.scaled(torch.from_numpy(values))[0].float()


def _read(config: DataConfig) -> tuple[GraphDomain, dict[str, Pictures]]:
    """The domain and the fields of a file, checked."""
    path = locate(given(config.source))
    if not isinstance(path, Path) or path.suffix.lower() != ".npz":
        raise UsageError(f"fields on a graph are read from an npz file (docs/domains.md), not from {config.source}")
    arrays = _arrays(path)
    fields = {split: _checked(arrays[split], f"{path}: {split}") for split in SPLITS if split in arrays}
    found = _domain(path, fields, {name: arrays[name] for name in TENSORS if name in arrays}, config.range)
    channels, nodes = found.shape
    asked = {"size": (config.size or (nodes,))[0], "channels": config.channels or channels}
    for name, there in (("size", nodes), ("channels", channels)):
        if asked[name] != there:
            words = f"{channels} channels on {nodes:,} nodes, but data.{name}={asked[name]} is asked for"
            raise UsageError(f"{path} has fields of {words}")
    labels = {split: partial(arrays.get, f"{split}_labels", ()) for split in fields}
    return found, {split: Stack(str(path), array, labels[split]) for split, array in fields.items()}


def _arrays(path: Path) -> dict[str, Any]:
    arrays = numpy_file(path)
    if not isinstance(arrays, dict):
        raise IhdmError(f"{path} is one array; expected an npz with train and edges, or train, positions and faces")
    for name in arrays:
        if name not in (*SPLITS, *LABELS, *TENSORS):
            raise UsageError(f"{path}: {unknown('array', name, [*SPLITS, *LABELS, *TENSORS])}")
    if "train" not in arrays:
        raise IhdmError(f"{path} has no array named train, only: {', '.join(arrays) or 'nothing'}")
    return arrays


def _domain(path: Path, fields: dict[str, Any], graph: dict[str, Any], ends: tuple[float, ...] | None) -> GraphDomain:
    """The domain: each channel's least and largest training values become 0 and 1, unless others are given."""
    train = fields["train"]
    for split, array in fields.items():
        if array.shape[1:] != train.shape[1:]:
            raise IhdmError(f"{path}: {split} has fields of shape {array.shape[1:]}, but train of {train.shape[1:]}")
    low, high = train.min((0, 2)), train.max((0, 2))
    if ends is not None:
        low, high = (np.array(some, np.float64) for some in (ends[::2], ends[1::2]))
    if len(low) != train.shape[1]:
        words = f"{train.shape[1]} channels, but data.range has {len(low)} pairs of numbers; give one for each"
        raise UsageError(f"{path} has fields of {words}")
    if (low == high).any():
        channel = int(np.flatnonzero(low == high)[0])
        raise IhdmError(f"{path}: all values of channel {channel} are {low[channel]:g}; there is nothing to learn")
    try:
        return GraphDomain(train.shape[1:], tuple(low.tolist()), tuple(high.tolist()), **graph)
    except UsageError as error:
        raise IhdmError(f"{path}: {error}") from error


def _checked(array: Any, name: str) -> Any:
    """Fields (N, C, n) of finite numbers, float64."""
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise IhdmError(f"{name} has shape {array.shape}; expected (N, n) for N fields on n nodes, or (N, C, n)")
    if array.dtype.kind not in "buif":
        raise IhdmError(f"{name} holds {array.dtype}; expected numbers")
    values = array.astype(np.float64).reshape(len(array), -1, array.shape[-1])
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        field, _, node = wrong[0]
        raise IhdmError(f"{name} has {values[tuple(wrong[0])]:g} at node {node} of field {field}; expected numbers")
    return values


def _stacked(fields: Pictures, domain: GraphDomain) -> Tensor:
    """(N, C, n) in [0, 1]; values outside are clipped, with a warning."""
    found: list[Any] = [fields.read(i) for i in range(len(fields))]
    if not found:
        return torch.empty(0, *domain.shape)
    u = domain.scaled(torch.from_numpy(np.stack(found)))
    outside = int(((u < 0) | (u > 1)).sum())
    if outside:
        print(
            f"warning: {outside:,} of {u.numel():,} values lie outside the range of the training fields (or "
            f"data.range) and are clipped to it",
            file=sys.stderr,
        )
    return u.clamp(0, 1).float()
