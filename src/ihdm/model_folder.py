"""The model folder: `config.json`, `model.safetensors`, `prior.safetensors`, `README.md`.

It needs nothing else, and nothing in it is executed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import safetensors
from safetensors.torch import load_file, save
from torch import Tensor

from ihdm.config import NetworkConfig, ProcessConfig, as_tree, check_together, read_text, updated
from ihdm.errors import IhdmError

CONFIG, WEIGHTS, PRIOR, CARD = "config.json", "model.safetensors", "prior.safetensors", "README.md"
LATER = {"groups"}  # settings that folders of earlier versions do not have; the defaults are what those did

SectionType = TypeVar("SectionType", ProcessConfig, NetworkConfig)


@dataclass(frozen=True)
class ModelConfig:
    """What config.json says: all that the tensors do not; origin: the checkpoint that it was converted from, if any."""

    process: ProcessConfig
    network: NetworkConfig
    shape: tuple[int, int, int]
    data: str = ""
    steps: int = 0
    origin: str = ""


def shipped() -> dict[str, Path]:
    """The models that come with the package."""
    models = Path(str(resources.files("ihdm") / "models"))
    return {folder.name: folder for folder in sorted(models.iterdir()) if (folder / CONFIG).exists()}


def locate(name: str | Path) -> Path:
    """The model folder or run folder of that name, a model that comes with the package, or one from the hub."""
    folder = Path(name).expanduser()
    for candidate in (folder, folder / "model"):
        if (candidate / CONFIG).exists():
            return candidate
    if str(name) in shipped():
        return shipped()[str(name)]
    if folder.is_dir():
        return folder
    if folder.exists() or len(folder.parts) != 2 or str(name).startswith((".", "/", "~")):
        raise IhdmError(
            f"there is no model folder {name}; train one with `ihdm train`, take one that is here already "
            f"({', '.join(shipped())}), or give owner/name on the hub"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=[CONFIG, WEIGHTS, PRIOR, CARD]))
    except Exception as error:  # the hub's client raises many kinds; each is a failed download
        raise IhdmError(
            f"there is no folder {name}, and no such model could be downloaded from the hub ({type(error).__name__})"
        ) from error


def write_config(folder: Path, config: ModelConfig) -> None:
    tree: dict[str, Any] = {"process": as_tree(config.process), "network": as_tree(config.network)}
    tree |= {"shape": list(config.shape), "data": config.data, "steps": config.steps}
    tree |= {"origin": config.origin} if config.origin else {}
    (folder / CONFIG).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def read_config(folder: Path) -> ModelConfig:
    """The config of a model folder, with nothing left out and nothing impossible in it."""
    path = folder / CONFIG
    if not path.exists():
        raise IhdmError(f"{folder} is not a model folder: {CONFIG} is missing")
    try:
        tree = json.loads(read_text(path))
        process = _section(ProcessConfig(), tree["process"], "process.")
        network = _section(NetworkConfig(), tree["network"], "network.")
        check_together(process, network)
        channels, height, width = (_count(n, 1) for n in tree["shape"])
        words = str(tree["data"]), _count(tree["steps"], 0), str(tree.get("origin", ""))
        return ModelConfig(process, network, (channels, height, width), *words)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IhdmError(f"{path} is not the config of a model ({type(error).__name__}: {error})") from error


def _section(default: SectionType, tree: Any, place: str) -> SectionType:
    """A section of the config, in which nothing may be left out that was there from the beginning."""
    missing = [name for name in as_tree(default) if name not in tree and name not in LATER]
    if missing:
        raise ValueError(f"{place}{missing[0]} is missing")
    return updated(default, tree, place)


def _count(number: Any, least: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**40:
        raise ValueError(f"{number!r} is not a possible number of pixels, channels or steps")
    return number


def read_tensors(path: Path, expected: dict[str, tuple[int, ...]] | None = None) -> dict[str, Tensor]:
    """The tensors of a file, which must be exactly the floating point tensors `expected`, if given."""
    if not path.exists():
        raise IhdmError(f"{path.parent} is not a complete model folder: {path.name} is missing")
    try:
        tensors = load_file(path)
    except PermissionError as error:
        raise IhdmError(f"{path} may not be read by this user") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise IhdmError(f"{path} is damaged ({error}); copy or train the model again") from error
    if expected is None:
        return tensors
    misfits = [
        *(f"{name} is missing" for name in expected if name not in tensors),
        *(f"{name} is not expected" for name in tensors if name not in expected),
        *(
            f"{name} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}, not of shape {shape}"
            for name, shape in expected.items()
            if name in tensors and (tensors[name].shape != shape or not tensors[name].is_floating_point())
        ),
    ]
    if misfits:
        more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
        raise IhdmError(f"{path} does not fit {CONFIG}: {'; '.join(misfits[:3])}{more}")
    return tensors


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file that whoever may read the folder may read; safetensors' own are for their owner alone."""
    path.write_bytes(save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))


def write_card(folder: Path, config: ModelConfig, rows: dict[str, str]) -> None:
    """README.md: what the model is, for those who find the folder; `rows` become a table."""
    channels, height, width = config.shape
    depth = f"{channels} channel{'s' * (channels != 1)}"
    origin = f"Trained with ihdm on `{config.data}` for {config.steps:,} steps."
    if config.origin:
        origin = (
            f"Trained for {config.steps:,} steps with the code of the method's authors, and converted by ihdm\n"
            f"from their checkpoint `{config.origin}`. The prior is of `{config.data}`."
        )
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    text = f"""---
library_name: ihdm
tags: [inverse-heat-dissipation, unconditional-image-generation]
---
# An inverse heat dissipation model

Images of {height}x{width} pixels, {depth}, grown from blur in {config.process.K} steps.
{origin}

| | |
|---|---|
{table}

```python
from ihdm import Model

images = Model.from_pretrained("path/to/this/folder").sample(16, seed=0)
```

Method: Rissanen, Heinonen, Solin, *Generative Modelling with Inverse Heat Dissipation*, ICLR 2023.
The prior holds blurred copies of the training images: share the folder only where you may share those.
"""
    (folder / CARD).write_text(text, encoding="utf-8")
