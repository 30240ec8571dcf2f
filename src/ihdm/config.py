"""The settings of a training run, and presets, which list only what differs from the defaults.

A setting's full name starts with its group, as in `process.K`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from ihdm.earlier import from_0_1
from ihdm.errors import IhdmError, UsageError, unknown
from ihdm.registry import NETWORKS, PROCESSES, Registry
from ihdm.settings import AUTO, as_tree, check, described, setting, updated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bf16"]


AXES = {"images": 2, "signals": 1, "volumes": 3, "graphs": 1}  # the number of axes of each kind of data


@dataclass(frozen=True)
class DataConfig:
    """The images, or other data."""

    source: str = setting("", "a named set, folder, zip, tar, idx, npy or npz file, or hf:NAME for a set on the hub")
    size: tuple[int, ...] | None = setting(
        None,
        "32 or 27x41 (height x width); signals: in samples; volumes: depth first; auto: as in the data",
        least=1,
        most=2**20,
    )
    channels: int | None = setting(
        None, "1 grey or mono, 2 stereo, 3 colour, 4 with alpha; auto: as in the data", least=1, most=1024
    )
    kind: Literal["images", "signals", "volumes", "graphs"] = setting(
        "images", "type of data; signals: sounds and other series; volumes: three axes; graphs: values on nodes"
    )
    range: tuple[float, ...] | None = setting(
        None,
        "for volumes, and each channel on graphs: the values that become 0 and 1, such as -1000,1000; auto: the "
        "training minimum and maximum",
    )
    rate: int | None = setting(
        None,
        "sample rate that sounds are converted to and arrays have; auto: as in the sounds",
        least=1,
        most=2**20,
    )
    peak: float | None = setting(None, "scale each sound to this peak, at most 1; auto: do not scale", above=0, most=1)
    flip: bool = setting(False, "mirror half of the training images left to right")
    labels: bool = setting(False, "tell the network what each image is, by class folders or labels beside the images")
    memory: Literal["auto", "yes", "no"] = setting(
        "auto", "hold all images in memory, or decode them when needed; auto: hold them if they fit in half of it"
    )
    stream: bool = setting(
        False, "read tar archives or a set on the hub in sequence, for sets too big for a disk; nothing is kept"
    )
    buffer: int = setting(4096, "images of a stream shuffled at a time", least=1, most=1e9)
    workers: int | None = setting(
        None, "processes that read a stream, per training process; 0: threads; auto: 4 for a GPU", least=0, most=1024
    )
    on_error: Literal["stop", "skip"] = setting("stop", "what to do with unreadable images")
    holdout: float = setting(0.05, "share of images held out if the source has no test split", least=0, most=0.9)

    def __post_init__(self) -> None:
        check(self, "data.")
        axes = AXES[self.kind]
        if self.size is not None and len(self.size) == 1:
            object.__setattr__(self, "size", self.size * axes)
        if self.size is not None and len(self.size) != axes:
            several = {1: "", 2: " or two, height x width", 3: " or three, depth x height x width"}[axes]
            raise UsageError(f"data.size must be one number{several}, not {'x'.join(map(str, self.size)) or 'none'}")
        only = (
            ("flip", self.flip, ("images",)),
            ("stream", self.stream, ("images",)),
            ("memory=no", self.memory == "no", ("images",)),
            ("on_error=skip", self.on_error == "skip", ("images", "signals")),
            ("rate", self.rate is not None, ("signals",)),
            ("peak", self.peak is not None, ("signals",)),
        )
        for name, asked, kinds in only:
            if asked and self.kind not in kinds:
                raise UsageError(f"data.{name} is for {' and '.join(kinds)}, not for {self.kind}")
        if self.range is not None and not self._has_ranges(self.range):
            given = ",".join(f"{number:g}" for number in self.range)
            raise UsageError(
                f"data.range is two numbers, the smaller first, for volumes, or two for each channel on graphs, "
                f"not {given} for {self.kind}"
            )
        if self.labels and self.stream:
            raise UsageError(
                "data.labels=true needs all labels at the start, which a stream does not tell; use data.memory=no "
                "instead of data.stream=true, so that the images stay on the disk"
            )

    def _has_ranges(self, ends: tuple[float, ...]) -> bool:
        many = {"volumes": len(ends) == 2, "graphs": len(ends) > 0 and len(ends) % 2 == 0}.get(self.kind, False)
        return many and all(low < high for low, high in zip(ends[::2], ends[1::2]))


@dataclass(frozen=True)
class TrainerConfig:
    """Optimisation (App. B.1)."""

    steps: int = setting(400_000, "optimiser steps", least=1, most=1e12)
    batch_size: int = setting(128, "images per step, over all processes", least=1, most=1e6)
    accumulate: int = setting(1, "parts to compute each batch in, one after the other, to save memory", least=1)
    lr: float = setting(2e-4, "Adam's learning rate", above=0, most=1e3)
    warmup: int = setting(5000, "steps over which the learning rate rises from 0", least=0)
    decay: float = setting(0.0, "final share of steps, over which lr falls to 0", least=0, most=1)
    clip: float = setting(1.0, "maximum gradient norm", least=1e-12, most=1e12)
    ema: float = setting(0.999, "decay of the averaged weights", least=0, most=0.999999)
    drop_labels: float = setting(
        0.1, "share of labels hidden from the network, so that it learns to do without", above=0, most=0.9
    )
    seed: int = setting(0, "each step depends only on the settings and its number", least=0, most=2**63 - 1)
    log_every: int = setting(50, "steps between lines of log.jsonl", least=1)
    tracker: Literal["auto", "none", "tensorboard", "wandb", "trackio"] = setting(
        "auto", "where else to log figures and pictures; auto: TensorBoard, if installed"
    )
    measure_every: int = setting(
        0, "steps between measurements of samples, by KID (images) or modes (other data); 0: none", least=0
    )
    measured: int = setting(1000, "samples to measure", least=2)
    sample_every: int = setting(10_000, "steps between pictures of samples", least=1)
    samples: int = setting(36, "images per picture", least=1, most=10_000)
    checkpoint_every: int = setting(5000, "steps between checkpoints and held-out losses", least=1)
    keep: int = setting(2, "checkpoints kept", least=1)
    keep_every: int = setting(0, "steps between checkpoints kept for good; 0: none", least=0)
    skip_most: int = setting(20, "steps in a row without a finite gradient to skip before giving up", least=0)


@dataclass(frozen=True)
class EngineConfig:
    """How the arithmetic is done."""

    device: Device = setting(AUTO, "device to use; auto: the GPU if there is one")
    precision: Precision = setting(AUTO, "network precision; auto: bf16 where faster")
    compile: bool = setting(True, "on a GPU, compiled kernels and recorded steps; false starts sooner, runs slower")
    checkpoint: bool = setting(False, "recompute activations in the backward pass: less memory, more time")
    shard: bool = setting(
        False, "split weights among processes (FSDP) if a network does not fit: less memory, more time"
    )


def _default(registry: Registry, name: str, part: str = "Settings") -> Any:
    return field(default_factory=lambda: getattr(registry[name], part)())


@dataclass(frozen=True)
class Config:
    """Everything that defines a training run.

    Which settings process, sampling and network hold depends on the process and the network that were chosen.
    """

    process: Any = _default(PROCESSES, "heat")
    sampling: Any = _default(PROCESSES, "heat", "Sampling")
    network: Any = _default(NETWORKS, "unet")
    data: DataConfig = DataConfig()
    trainer: TrainerConfig = TrainerConfig()
    engine: EngineConfig = EngineConfig()

    def __post_init__(self) -> None:
        kind = PROCESSES.of(self.process)
        kind.check(self.process, self.sampling)
        if getattr(self.network, "pyramid", ()) and not kind.predicts_alone(self.process):
            raise UsageError(
                "network.pyramid leaves high frequencies of coarse levels to linear prediction, which this process "
                "does not do with these settings; use process.skip=linear, if it has that, or network.pyramid=none"
            )

    def with_settings(self, settings: Iterable[str]) -> Config:
        """A copy with `--set` words such as "process.K=50" applied.

        A setting that only one sampler has chooses that sampler, as when a model is sampled.
        """
        tree: dict[str, dict[str, Any]] = {}
        for word in settings:
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise UsageError(f"--set takes name=value, such as trainer.steps=1000, not {word!r}")
            section, dot, key = name.partition(".")
            if not dot or section not in vars(self):
                raise unknown("setting", name, [name for name, _ in setting_rows()])
            tree.setdefault(section, {})[key] = value
        if "sampling" in tree:
            sections = self._chosen(tree)
            tree["sampling"] = PROCESSES.of(sections["process"]).with_sampler(sections["sampling"], tree["sampling"])
        return self.with_tree(tree)

    def with_tree(self, tree: Mapping[str, Any]) -> Config:
        """A copy with values from a nested mapping, section by section; what is not mentioned stays as it is.

        If another process or network is chosen, it takes over those of the earlier one's settings that were changed
        from their defaults and that it has too. Another process starts with its own defaults for sampling.
        """
        for name, values in tree.items():
            if name not in vars(self):
                raise unknown("group of settings", name, vars(self))
            if not isinstance(values, Mapping):
                raise UsageError(f"{name} is a group of settings, not {values!r}")
        sections = self._chosen(tree)
        process = f"the process {PROCESSES.kind(sections['process'])}"
        owners = {"process": process, "sampling": f"sampling by {process}"}
        owners["network"] = f"the network {NETWORKS.kind(sections['network'])}"
        for name, values in tree.items():
            _check_place(name, values, sections)
            rest = {key: value for key, value in values.items() if name not in KINDS or key != KIND}
            sections[name] = updated(sections[name], rest, f"{name}.", owners.get(name, ""))
        return Config(**sections)

    def _chosen(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """The settings by section, with those of the process and the network that a tree chooses."""
        sections: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, registry in KINDS.items():
            kind = tree.get(name, {}).get(KIND, registry.kind(sections[name]))
            if kind != registry.kind(sections[name]):
                sections[name] = _carried_over(sections[name], registry[str(kind)].Settings())
                if registry is PROCESSES:
                    sections["sampling"] = registry[str(kind)].Sampling()
        return sections

    def tree(self) -> dict[str, dict[str, Any]]:
        """Nested dicts of plain values, which `with_tree` reads back."""
        tree = {f.name: as_tree(getattr(self, f.name)) for f in fields(self)}
        return tree | {name: {KIND: kinds.kind(getattr(self, name))} | tree[name] for name, kinds in KINDS.items()}


def _check_place(section: str, values: Mapping[str, Any], sections: dict[str, Any]) -> None:
    """Refuse a sampling setting that is given under process, as in 0.1.0, or the other way round."""
    other = {"process": "sampling", "sampling": "process"}.get(section, section)
    for key in values:
        if key in vars(sections[other]) and key not in vars(sections[section]):
            raise UsageError(f"unknown setting '{section}.{key}'; did you mean '{other}.{key}'?")


KIND = "kind"  # the setting that chooses a process or network
KINDS = {"process": PROCESSES, "network": NETWORKS}


def _carried_over(old: Any, new: Any) -> Any:
    """The new settings, with the old ones' values that were not defaults, where the new ones accept them."""
    changed = {name: value for name, value in vars(old).items() if value != getattr(type(old)(), name)}
    for name, value in changed.items():
        with contextlib.suppress(UsageError):
            new = updated(new, {name: value})
    return new


def differences(config: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The settings in which two configurations differ, with both values; None where one does not have it."""
    one, two = config.tree(), other.tree()
    return {
        f"{section}.{key}": (one[section].get(key), two[section].get(key))
        for section in one
        for key in [*one[section], *(key for key in two[section] if key not in one[section])]
        if one[section].get(key) != two[section].get(key)
    }


def setting_rows() -> list[tuple[str, str]]:
    """Every setting and what it is about, after the name of the process or network that it belongs to, if any."""
    rows = []
    for section in fields(Config):
        if section.name == "sampling":
            groups = {name: PROCESSES[name].Sampling() for name in PROCESSES}
        elif section.name in KINDS:
            registry = KINDS[section.name]
            rows.append((f"{section.name}.{KIND}", f"which {section.name} [{' | '.join(registry)}]"))
            groups = {name: registry[name].Settings() for name in registry}
        else:
            groups = {"": getattr(Config(), section.name)}
        for kind, group in groups.items():
            label = f"{kind}: " if len(groups) > 1 else ""
            rows += [(f"{section.name}.{name}", label + about) for name, about in described(group).items()]
    return rows


def presets() -> dict[str, str]:
    """The names of the presets and a line about each."""
    files = (resources.files("ihdm") / "presets").iterdir()
    texts = {file.name.removesuffix(".toml"): file.read_text() for file in files if file.name.endswith(".toml")}
    return {name: tomllib.loads(texts[name])["about"] for name in sorted(texts, key=_by_word_and_number)}


def shipped() -> dict[str, Path]:
    """The models that come with the package, by name; no preset has the same name."""
    models = Path(str(resources.files("ihdm") / "models"))
    return {folder.name: folder for folder in sorted(models.iterdir()) if (folder / "config.json").exists()}


def shipped_words() -> dict[str, str]:
    """The names of the models that come with the package and a line about each."""
    trees = {name: json.loads((folder / "config.json").read_text()) for name, folder in shipped().items()}
    sizes = {name: "x".join(map(str, tree["shape"][1:])) for name, tree in trees.items()}
    kinds = {name: tree.get("domain", {}).get("kind", "images") for name, tree in trees.items()}
    return {name: f"{kinds[name]} like those of {tree['data']}, {sizes[name]}" for name, tree in trees.items()}


RENAMED = {"mnist": "mnist-ready"}  # a model's earlier name, which is also a preset's


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
    except (ValueError, RecursionError) as error:  # also for longer numbers and deeper nesting than Python reads
        raise UsageError(f"{origin} is not valid TOML: {error}") from error
    tree.pop("about", None)
    return Config().with_tree(from_0_1(tree))


def config_to_toml(config: Config) -> str:
    """The complete configuration. JSON writes plain values as TOML does, except for one character."""
    lines = []
    for section, group in config.tree().items():
        lines += [f"[{section}]"]
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in group.items()]
        lines += [""]
    return "\n".join(lines).replace("\x7f", "\\u007f")


def read_text(path: Path) -> str:
    """The text of a file that a user named or may have changed."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise IhdmError(f"cannot read {path}: {error}") from error
