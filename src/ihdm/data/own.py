"""Data of kinds that users register: their domain reads them, and here they are checked and divided."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data import ImageSet, set_name, split_off
from ihdm.data.labels import numbered
from ihdm.data.pictures import Pictures, Stack
from ihdm.domains import Domain, Found
from ihdm.domains.domain import by
from ihdm.errors import IhdmError, UsageError, unknown
from ihdm.registry import DOMAINS
from ihdm.settings import as_text

SPLITS = "train", "test"


def domain(config: DataConfig, split: str = "train") -> Domain:
    """The domain of the data that `load` would give, the same for all splits."""
    return _read(config).domain


def load(config: DataConfig, held_out_most: int | None) -> ImageSet:
    """Read a source; if it has no test split, hold out a share of the items."""
    found = _read(config)
    splits: dict[str, Pictures] = {}
    for split, values in found.values.items():
        array = _checked(values, found.domain, f"{config.source}: {split}").numpy()
        splits[split] = Stack(f"{config.source}: {split}", array, partial(found.labels.get, split, ()))
    train, held_out = split_off(splits, config.holdout, held_out_most)
    told = numbered(config, train, held_out)
    data = _stacked(train, found.domain), _stacked(held_out, found.domain)
    return ImageSet(set_name(config.source), data[0], data[1], None, *told, found.domain)


def read_one(path: Path, domain: Domain, resize: bool) -> Tensor:
    """An item (C, *grid) that a user gives, in [0, 1] or a little beyond."""
    if not hasattr(domain, "read_one"):
        raise UsageError(f"{domain.kind} cannot be restored: {type(domain).__name__} has no read_one(path)")
    found = _tensor(domain.read_one(path))
    if tuple(found.shape) != domain.shape:
        raise UsageError(
            f"{path} is {by(found.shape)}, but the model's {domain.noun}s are {by(domain.shape)} (channels first)"
        )
    return found


def _read(config: DataConfig) -> Found:
    found: Any = DOMAINS[config.kind].read(config)
    if not isinstance(found, Found):
        raise TypeError(f"read of {config.kind} gives {type(found).__name__}; expected ihdm.domains.Found")
    for split in (*found.values, *found.labels):
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
    if not len(found.values.get("train", ())):
        raise IhdmError(f"{config.source} has no {found.domain.noun}s to train on")
    shape = found.domain.shape
    for name, asked, there in (("size", config.size, shape[1:]), ("channels", config.channels, shape[0])):
        if asked not in (None, there):
            words = f"of {by(shape)}, but data.{name}={as_text(asked)} is asked for; auto takes them as they are"
            raise UsageError(f"{config.source} has {found.domain.noun}s {words}")
    return found


def _checked(values: Any, domain: Domain, name: str) -> Tensor:
    """Values (N, C, *grid), float32; other shapes, and values outside [0, 1], are refused."""
    u = _tensor(values)
    if u.ndim < 2 or tuple(u.shape[1:]) != domain.shape:
        raise IhdmError(f"{name} has {by(u.shape[1:])} for each {domain.noun}; expected {by(domain.shape)}")
    if not bool(((u >= 0) & (u <= 1)).all()):
        raise IhdmError(f"{name} has values from {u.min():g} to {u.max():g}; a domain's `read` scales them to [0, 1]")
    return u


def _tensor(values: Any) -> Tensor:
    """Numbers in float32; an array is copied, as it may be one to which nothing can be written."""
    return (values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float32))).float()


def _stacked(items: Pictures, domain: Domain) -> Tensor:
    """(N, C, *grid), in the order of the items."""
    found: list[Any] = [torch.from_numpy(items.read(i)) for i in range(len(items))]
    return torch.stack(found) if found else torch.empty(0, *domain.shape)
