"""Settings: frozen dataclasses, presets that list only what differs, and refusal of everything else.

A setting's name is its place, such as `process.K`. Values come from a preset (TOML), a model folder (JSON) or the
command line (`--set process.K=50`) and are checked the same way: name, type, range.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ihdm.errors import IhdmError, UsageError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bf16"]

AUTO = "auto"  # how a setting that is None, "choose for me", is written


def setting(
    default: Any, about: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> Any:
    """A field with a line of help and the range it must lie in."""
    return field(default=default, metadata={"about": about, "least": least, "above": above, "most": most})


@dataclass(frozen=True)
class ProcessConfig:
    """The forward and reverse process (App. B.4-B.5)."""

    kind: Literal["heat", "ddpm"] = setting(
        "heat", "inverse heat dissipation, or the diffusion that it is compared with"
    )
    K: int = setting(200, "number of levels, and of sampling steps", least=1, most=100_000)
    sigma: float = setting(0.01, "noise in training", least=0)
    delta_ratio: float = setting(
        1.25, "noise in sampling, in units of sigma (ddpm: of the posterior's; 0 is DDIM)", least=0
    )
    sigma_B_min: float = setting(0.5, "blur width of level 1, in pixels", above=0)
    sigma_B_max: float | None = setting(None, "blur width of level K, in pixels; auto: 3/4 of the longer side", above=0)
    skip: Literal["identity", "linear"] = setting(
        "identity", "what the network's output is added to: the image, as in the paper, or its best linear prediction"
    )
    blur: Literal["heat", "gaussian"] = setting(
        "heat", "the heat equation, or a Gaussian filter that sees black outside"
    )
    betas: Literal["linear", "cosine"] = setting("linear", "ddpm: the schedule of the noise")


@dataclass(frozen=True)
class NetworkConfig:
    """The U-Net (App. B.1)."""

    channels: int = setting(128, "width of the finest feature map", least=4, most=65_536)
    multipliers: tuple[int, ...] = setting(
        (1, 2, 2, 2), "width of each resolution, in units of channels", least=1, most=64
    )
    blocks: int = setting(4, "residual blocks per resolution", least=1, most=64)
    attention: tuple[int, ...] = setting(
        (2, 3), "resolutions with attention, or none; l stands for maps of size / 2^l", least=0
    )
    dropout: float = setting(0.1, "dropout rate in residual blocks", least=0, most=0.99)
    resample: Literal["pool", "conv"] = setting("pool", "average pooling, as in the paper, or strided convolutions")
    groups: int | None = setting(
        None, "groups of each normalisation; auto: 32, fewer where they would have less than four channels", least=1
    )


@dataclass(frozen=True)
class DataConfig:
    """The images."""

    source: str = setting("", "a named set, folder, zip, tar, idx, npy or npz file, or hf:NAME for a set on the hub")
    size: tuple[int, int] | None = setting(
        None, "32 or 27x41 (height x width); auto: as the images are", least=1, most=65_536
    )
    channels: int | None = setting(None, "1 grey, 3 colour, 4 with alpha; auto: as the images are", least=1, most=1024)
    flip: bool = setting(False, "mirror half of the training images left to right")
    memory: Literal["auto", "yes", "no"] = setting(
        "auto", "hold all images in memory, or decode them when needed; auto: hold them if they take less than half"
    )
    stream: bool = setting(
        False, "read tar archives or a set on the hub in sequence, for sets that no disk holds; nothing is kept"
    )
    buffer: int = setting(4096, "images of a stream that are shuffled at a time", least=1, most=1e9)
    workers: int | None = setting(
        None, "processes that read a stream, for each that trains; 0: threads; auto: 4 for a GPU", least=0, most=1024
    )
    on_error: Literal["stop", "skip"] = setting("stop", "what to do about images that cannot be read")
    holdout: float = setting(0.05, "share of images set aside where the source has no test split", least=0, most=0.9)


@dataclass(frozen=True)
class TrainerConfig:
    """Optimisation (App. B.1)."""

    steps: int = setting(400_000, "optimiser steps", least=1, most=1e12)
    batch_size: int = setting(128, "images per step, over all processes", least=1, most=1e6)
    accumulate: int = setting(1, "parts in which a batch is computed, one after the other, to save memory", least=1)
    lr: float = setting(2e-4, "learning rate of Adam", above=0)
    warmup: int = setting(5000, "steps over which the learning rate rises from 0", least=0)
    decay: float = setting(0.0, "share of the steps, at the end, over which it falls to 0", least=0, most=1)
    clip: float = setting(1.0, "largest gradient norm", above=0)
    ema: float = setting(0.999, "decay of the averaged weights", least=0, most=0.999999)
    seed: int = setting(0, "every step is a function of the settings and its number", least=0, most=2**63 - 1)
    log_every: int = setting(50, "steps between lines of log.jsonl", least=1)
    sample_every: int = setting(10_000, "steps between pictures of samples", least=1)
    samples: int = setting(36, "images in such a picture", least=1)
    checkpoint_every: int = setting(5000, "steps between checkpoints and held-out losses", least=1)
    keep: int = setting(2, "checkpoints kept", least=1)
    keep_every: int = setting(0, "steps between checkpoints that are kept for good; 0: none", least=0)
    skip_most: int = setting(
        20, "steps in a row without a finite gradient, which are skipped, before giving up", least=0
    )


@dataclass(frozen=True)
class EngineConfig:
    """How the arithmetic is done."""

    device: Device = setting(AUTO, "where to compute; auto: the GPU if there is one")
    precision: Precision = setting(AUTO, "of the network; auto: bf16 where it is faster")
    compile: bool = setting(True, "on a GPU, compiled kernels and recorded steps; false starts sooner, then is slower")
    checkpoint: bool = setting(False, "compute activations again for the backward pass: less memory, more time")
    shard: bool = setting(
        False, "divide weights among processes (FSDP), if a network does not fit: less memory, more time"
    )


@dataclass(frozen=True)
class Config:
    """Everything that defines a training run."""

    process: ProcessConfig = ProcessConfig()
    network: NetworkConfig = NetworkConfig()
    data: DataConfig = DataConfig()
    trainer: TrainerConfig = TrainerConfig()
    engine: EngineConfig = EngineConfig()

    def __post_init__(self) -> None:
        check_together(self.process, self.network)

    def with_settings(self, settings: Iterable[str]) -> Config:
        """A copy with `--set` words such as "process.K=50" applied."""
        tree: dict[str, dict[str, Any]] = {}
        for word in settings:
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise UsageError(f"--set takes name=value, such as trainer.steps=1000, not {word!r}")
            if name not in setting_names():
                raise unknown("setting", name, setting_names())
            section, key = name.split(".")
            tree.setdefault(section, {})[key] = value
        return updated(self, tree)


def check_together(process: ProcessConfig, network: NetworkConfig) -> None:
    """Refuse settings that are possible one by one but not together."""
    if process.sigma_B_max is not None and process.sigma_B_max <= process.sigma_B_min:
        raise UsageError(
            f"process.sigma_B_max ({process.sigma_B_max:g}) must be larger than "
            f"process.sigma_B_min ({process.sigma_B_min:g})"
        )
    if process.skip == "linear" and process.sigma < 1e-6:
        raise UsageError("process.skip=linear needs process.sigma of at least 1e-6; below, set process.skip=identity")
    if process.skip == "linear" and process.blur == "gaussian":
        raise UsageError(
            "process.skip=linear knows the heat equation only; with process.blur=gaussian, set it to identity"
        )
    if not network.multipliers:
        raise UsageError("network.multipliers must give at least one resolution, such as 1,2,2")
    if network.attention and max(network.attention) >= len(network.multipliers):
        raise UsageError(
            f"network.attention names resolution {max(network.attention)}, but network.multipliers "
            f"gives only resolutions 0..{len(network.multipliers) - 1}"
        )
    if network.groups is not None and network.channels % network.groups:
        raise UsageError(f"network.channels={network.channels} cannot be divided into network.groups={network.groups}")


ConfigType = TypeVar("ConfigType")


def updated(config: ConfigType, tree: Mapping[str, Any], place: str = "") -> ConfigType:
    """A copy of a dataclass with values from a nested mapping; unknown names and wrong types are refused."""
    hints = get_type_hints(type(config))
    metadata = {f.name: f.metadata for f in fields(config)}  # type: ignore[arg-type]
    changes = {}
    for key, value in tree.items():
        name = place + key
        if key not in hints:
            raise unknown("setting", name, [place + known for known in hints])
        if "about" in metadata[key]:
            changes[key] = _checked(name, hints[key], value, metadata[key])
        elif isinstance(value, Mapping):
            changes[key] = updated(getattr(config, key), value, f"{name}.")
        else:
            raise UsageError(f"{name} is a group of settings, not {value!r}")
    return replace(config, **changes)  # type: ignore[type-var]


def as_tree(config: Any) -> dict[str, Any]:
    """A nested dict of plain values, which `updated` reads back."""
    tree: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if "about" not in f.metadata:
            value = as_tree(value)
        elif value is None:
            value = AUTO
        elif isinstance(value, tuple):
            value = list(value)
        tree[f.name] = value
    return tree


def differences(config: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The settings in which two configurations differ, with both values."""
    one, two = as_tree(config), as_tree(other)
    return {
        name: (one[section][key], two[section][key])
        for name in setting_names()
        for section, key in [name.split(".")]
        if one[section][key] != two[section][key]
    }


def setting_names() -> dict[str, str]:
    """Every setting and what it is about, with its possible values, where they are few, and its default."""
    names = {}
    for section in fields(Config):
        group = getattr(Config(), section.name)
        for f in fields(group):
            kind, default = get_type_hints(type(group))[f.name], as_tree(group)[f.name]
            choices = f"{' | '.join(get_args(kind))}; " if get_origin(kind) is Literal else ""
            shown = ",".join(map(str, default)) if isinstance(default, list) else str(default) or "none"
            names[f"{section.name}.{f.name}"] = f"{f.metadata['about']} [{choices}default {shown}]"
    return names


def presets() -> dict[str, str]:
    """The names of the presets and a line about each."""
    files = (resources.files("ihdm") / "presets").iterdir()
    texts = {file.name.removesuffix(".toml"): file.read_text() for file in files if file.name.endswith(".toml")}
    return {name: tomllib.loads(texts[name])["about"] for name in sorted(texts, key=_by_word_and_number)}


def _by_word_and_number(name: str) -> list[tuple[str, int]]:
    """A key that sorts afhq-64 before afhq-256."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D+)(\d*)", name)]


def load_config(preset: str, settings: Iterable[str] = ()) -> Config:
    """A preset by name, or a TOML file of the same form by path, with settings applied."""
    if preset.endswith(".toml"):
        text = read_text(Path(preset))
    elif preset in presets():
        text = (resources.files("ihdm") / "presets" / f"{preset}.toml").read_text()
    else:
        raise unknown("preset", preset, presets())
    return config_from_toml(text, preset).with_settings(settings)


def config_from_toml(text: str, origin: str) -> Config:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{origin} is not valid TOML: {error}") from error
    tree.pop("about", None)
    return updated(Config(), tree)


def config_to_toml(config: Config) -> str:
    """The fully resolved configuration; JSON's plain values are TOML's too, but for one character."""
    lines = []
    for section, group in as_tree(config).items():
        lines += [f"[{section}]"]
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in group.items()]
        lines += [""]
    return "\n".join(lines).replace("\x7f", "\\u007f")


def read_text(path: Path) -> str:
    """The text of a file that a user named or may have changed."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IhdmError(f"cannot read {path}: {error}") from error


def _checked(name: str, kind: Any, value: Any, limits: Mapping[str, Any]) -> Any:
    value = _converted(name, kind, value)
    for number in value if isinstance(value, tuple) else [value]:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            if not math.isfinite(number):
                raise UsageError(f"{name} must be a finite number, not {number}")
            if number < limits["least"]:
                raise UsageError(f"{name} must be at least {limits['least']:g}, not {number}")
            if number <= limits["above"]:
                raise UsageError(f"{name} must be larger than {limits['above']:g}, not {number}")
            if number > limits["most"]:
                raise UsageError(f"{name} must be at most {limits['most']:g}, not {number}")
    return value


def _converted(name: str, kind: Any, value: Any) -> Any:
    """`value`, a plain value or the text of one, as the type `kind`."""
    if get_origin(kind) in (Union, UnionType):
        if value is None or value == AUTO:
            return None
        (kind,) = (option for option in get_args(kind) if option is not NoneType)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{name} must be one of {', '.join(map(repr, get_args(kind)))}, not {value!r}")
        return value
    if get_origin(kind) is tuple:
        return _converted_tuple(name, kind, value)
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is str and isinstance(value, str):
        return value
    if kind in (int, float) and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        number = _number(value)
        if number is not None and (kind is float or number == number // 1):
            return kind(number)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    raise UsageError(f"{name} must be {words[kind]}, not {value!r}")


def _converted_tuple(name: str, kind: Any, value: Any) -> tuple[int, ...]:
    """(1, 2, 2) from [1, 2, 2] or "1,2,2", () from "none"; for a pair also 27x41, and 32 for both."""
    item, pair = get_args(kind)[0], len(get_args(kind)) == 2 and get_args(kind)[1] is not Ellipsis
    if isinstance(value, str):
        text = value.strip("[]() ")
        value = [] if text in ("", "none") else text.replace("x", ",").split(",")
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if pair and len(items) == 1:
        items *= 2
    if pair and len(items) != 2:
        raise UsageError(f"{name} must be one number or two, height x width, not {value!r}")
    return tuple(_converted(name, item, part) for part in items)


def _number(value: int | float | str) -> int | float | None:
    """A number, or None for a text that is none and for numbers beyond all use."""
    for read in (int, float) if isinstance(value, str) else ():
        try:
            value = read(value)
            break
        except ValueError:
            continue
    return None if isinstance(value, str) or abs(value) > 1e300 else value
