"""Sounds as one float32 tensor in [0, 1], from folders and zips of sound files, or npy and npz arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data import ImageSet, given, set_name, split_off
from ihdm.data.archives import open_zip
from ihdm.data.arrays import stacks_by_split
from ihdm.data.audio import SUFFIXES, Sound, decoded, in_unit
from ihdm.data.images import Unreadable, warn_of
from ihdm.data.labels import numbered
from ihdm.data.listing import files_below
from ihdm.data.pictures import Files, Pictures, Stack, Subset, ZipMembers
from ihdm.data.splits import grouped
from ihdm.disk import expanded
from ihdm.domains import SignalDomain
from ihdm.errors import IhdmError, UsageError
from ihdm.progress import progress_bar

KINDS = ("int16", "uint8")  # of integers in arrays


class SoundFiles(Files):
    """Sound files in a folder, by their names there."""

    def read(self, i: int) -> Sound:  # type: ignore[override]
        return decoded((self.folder / self.names[i]).read_bytes())


class SoundMembers(ZipMembers):
    """Sound files inside a zip archive."""

    def read(self, i: int) -> Sound:  # type: ignore[override]
        return decoded(self.archive.read(self.members[i]))


class SoundStack(Stack):
    """Sounds that already are one array (N, C, n), with one rate."""

    def __init__(self, origin: str, array: Any, labels: Callable[[], Any], rate: int):
        super().__init__(origin, array, labels)
        self.rate = rate

    def read(self, i: int) -> Sound:  # type: ignore[override]
        values = self.array[i]
        return Sound(torch.from_numpy(in_unit(values) if values.dtype.kind in "iu" else values.astype("f8")), self.rate)


@dataclass(frozen=True)
class Fitting:
    """Makes sounds float32 (C, n) in [0, 1], at one rate; `first` names the one that decides what is not set.

    Longer sounds are cut, shorter ones end in silence. If size or rate are not set, all must have those of the first;
    if channels are not, none may have more than the first.
    """

    first: str
    domain: SignalDomain
    config: DataConfig

    @classmethod
    def of(cls, sounds: Pictures, config: DataConfig) -> Fitting:
        if known := _told(config):
            return cls("", known, config)
        name, sound = sounds.name(0), _read(sounds, 0)
        rate = config.rate or sound.rate
        channels, samples = config.channels or len(sound.samples), config.size or (sound.at(rate).samples.shape[-1],)
        return cls(name, SignalDomain((channels, *samples), rate, config.peak), config)

    def __call__(self, sound: Sound, name: str) -> Tensor:
        if self.config.rate is None and sound.rate != self.domain.rate:
            raise UsageError(
                f"the sounds differ in rate: {self.first} has {self.domain.rate:,} Hz and {name} {sound.rate:,}; "
                f"choose one rate for all, such as --set data.rate=16000"
            )
        length, most = self.domain.shape[1], None if self.config.size is None else self.config.size[0]
        channels = self._channels(len(sound.samples), name)
        samples = mixed(sound.at(self.domain.rate, most).samples, channels, name)
        if self.config.size is None and samples.shape[-1] != length:
            raise UsageError(
                f"the sounds differ in length: {self.first} has {length:,} samples and {name} {samples.shape[-1]:,}; "
                f"choose one length for all, such as --set data.size=16384"
            )
        return inside(raised(samples[:, :length], self.domain.peak), length)

    def _channels(self, found: int, name: str) -> int:
        if self.config.channels is None and found > self.domain.shape[0]:
            raise UsageError(
                f"the sounds differ in channels: {self.first} has {self.domain.shape[0]} and {name} {found}; "
                f"choose one number for all, --set data.channels=1 (mono) or 2 (stereo)"
            )
        return self.domain.shape[0]


def mixed(samples: Tensor, channels: int, name: str) -> Tensor:
    """Samples (C, n) in a given number of channels: one is the mean of all; several repeat a single one."""
    if channels == 1:
        return samples.mean(0, keepdim=True)
    if len(samples) not in (1, channels):
        raise UsageError(f"{name} has {len(samples)} channels, which cannot be converted to {channels}")
    return samples.expand(channels, -1)


def raised(samples: Tensor, peak: float | None) -> Tensor:
    """Samples scaled to a given peak, if there is one; silence stays silent."""
    largest = samples.abs().max()
    return samples if peak is None or not largest else samples * (peak / largest)


def inside(samples: Tensor, length: int) -> Tensor:
    """Samples in [-1, 1] as float32 in [0, 1], cut to a length or filled up to it with silence."""
    return F.pad((samples[:, :length].clamp(-1, 1) + 1) / 2, (0, max(0, length - samples.shape[-1])), value=0.5).float()


def domain(config: DataConfig, split: str = "train") -> SignalDomain:
    """The domain of the sounds that `load` would give, judged by the first of a split."""
    if known := _told(config):
        return known
    splits = _opened(config)
    return Fitting.of(_readable(splits.get(split) or splits["train"], config), config).domain


def _told(config: DataConfig) -> SignalDomain | None:
    """The domain, if the settings alone determine it."""
    if not (config.size and config.channels and config.rate):
        return None
    return SignalDomain((config.channels, *config.size), config.rate, config.peak)


def load(config: DataConfig, held_out_most: int | None) -> ImageSet:
    """Read all sounds; if there is no test split, hold out a share of them."""
    splits = _opened(config)
    train, held_out = split_off(splits, config.holdout, held_out_most)
    labels, *numbers = numbered(config, train, held_out)
    fitting = Fitting.of(_readable(train, config), config)
    learnt, kept = _decoded(train, fitting)
    others, kept_others = _decoded(held_out, fitting)
    if not len(learnt):
        raise IhdmError(f"none of {len(train):,} sounds of {config.source} can be read")
    told = [None if each is None else each[some] for each, some in zip(numbers, (kept, kept_others))]
    return ImageSet(set_name(config.source), learnt, others, None, labels, told[0], told[1], fitting.domain)


def read_one(path: Path, domain: SignalDomain, resize: bool) -> Tensor:
    """A sound (C, n) in [0, 1] that a user gives; shorter ones end in silence.

    resize: bring it to the model's rate and channels, and cut it, if it differs.
    """
    sound, (channels, length) = _read(SoundFiles(path.parent, [path.name]), 0), domain.shape
    found = SignalDomain(tuple(sound.samples.shape), sound.rate)
    if (sound.rate != domain.rate or found.shape[0] != channels or found.shape[1] > length) and not resize:
        raise UsageError(
            f"{path} has {found.words}, but the model restores sounds of {domain.words}, or shorter ones; add --resize "
            f"to have it resampled, mixed and cut"
        )
    return inside(mixed(sound.at(domain.rate, length).samples, channels, str(path)), length)


def _opened(config: DataConfig) -> Mapping[str, Pictures]:
    path = expanded(given(config.source))
    if not path.exists():
        raise IhdmError(f"there is no {config.source}; give a folder or zip of sound files, or an npy or npz file")
    splits = _splits(path, config.rate)
    if "train" not in splits:
        raise IhdmError(f"{config.source} has no training sounds, only: {', '.join(splits)}")
    return splits


def _splits(path: Path, rate: int | None) -> Mapping[str, Pictures]:
    suffix = path.suffix.lower()
    if path.is_dir():
        return {split: SoundFiles(path, names) for split, names in _grouped(files_below(path), path).items()}
    if suffix == ".zip":
        archive = open_zip(path)
        groups = _grouped(sorted(set(archive.namelist())), path)
        return {split: SoundMembers(path, archive, names) for split, names in groups.items()}
    if suffix in (".npy", ".npz"):
        if rate is None:
            raise UsageError(f"{path} does not say its rate in Hz; give it, such as --set data.rate=8000")
        return stacks_by_split(path, partial(_samples, path=path), partial(SoundStack, rate=rate))
    if suffix in SUFFIXES:
        return {"train": SoundFiles(path.parent, [path.name])}
    raise IhdmError(f"{path} is not a sound file, a zip, npy or npz file, nor a folder of sounds")


def _grouped(names: list[str], path: Path) -> dict[str, list[str]]:
    return grouped(names, path, SUFFIXES, "sounds")


def _samples(array: Any, path: Path) -> Any:
    """An array as (N, C, n)."""
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise IhdmError(f"{path} has shape {array.shape}; expected (N, samples) or (N, channels, samples)")
    if array.ndim == 3 and array.shape[1] > array.shape[2]:
        raise IhdmError(f"{path} has shape {array.shape}, more channels than samples; expected (N, channels, samples)")
    within = array.dtype.kind == "f" and bool((abs(array) <= 1).all())
    if not within and array.dtype.name not in KINDS:
        found = f"{array.dtype} values from {array.min():g} to {array.max():g}"
        raise IhdmError(f"{path} holds {found}; expected floating point in [-1, 1], or {' or '.join(KINDS)}")
    return array[:, None] if array.ndim == 2 else array


def _read(sounds: Any, i: int) -> Sound:
    try:
        return sounds.read(i)
    except UsageError as error:
        raise UsageError(f"{sounds.name(i)}: {error}") from error
    except Exception as error:  # files, archives and decoders raise many kinds; each is an unreadable sound
        raise Unreadable(f"{sounds.name(i)} is not a sound that can be read ({error})") from error


def _readable(sounds: Pictures, config: DataConfig) -> Pictures:
    """The sounds from the first readable one on, if unreadable ones are to be skipped."""
    for i in range(len(sounds) if config.on_error == "skip" else 0):
        try:
            _read(sounds, i)
        except Unreadable:
            continue
        return Subset(sounds, range(i, len(sounds)))
    return sounds


def _decoded(sounds: Pictures, fitting: Fitting) -> tuple[Tensor, Tensor]:
    """All sounds that can be read, (N, C, n), and their numbers."""
    found, broken = [torch.empty(0, *fitting.domain.shape)], dict[int, str]()
    for i in progress_bar(range(len(sounds)), desc="reading sounds", unit="sound", delay=2):
        try:
            found.append(fitting(_read(sounds, i), sounds.name(i))[None])
        except Unreadable as error:
            if fitting.config.on_error != "skip":
                raise Unreadable(f"{error}; --set data.on_error=skip goes on without such sounds") from error
            broken[i] = str(error)
    if broken:
        warn_of(broken, len(sounds), "sound")
    return torch.cat(found), torch.tensor([i for i in range(len(sounds)) if i not in broken], dtype=torch.long)
