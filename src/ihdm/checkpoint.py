"""State on disk: folders that are whole or not there, whenever the process dies; tensors and JSON only."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ihdm.errors import IhdmError


@dataclass(frozen=True)
class TrainingState:
    """What a training step changes."""

    network: nn.Module
    average: nn.Module
    optimizer: Any  # torch's, or accelerate's around it


def save(root: Path, step: int, data: str, state: TrainingState, keep: int) -> Path:
    """Write step-N under `root` and delete all but the last `keep`; `data` is the images' fingerprint."""
    path = root / f"step-{step:08d}"
    with replaced_folder(path) as folder:
        save_file(_flat(state.network), folder / "network.safetensors")
        save_file(_flat(state.average), folder / "average.safetensors")
        save_file(_flat_optimizer(state.optimizer), folder / "optimizer.safetensors")
        (folder / "state.json").write_text(json.dumps({"step": step, "data": data}) + "\n")
    for old in saved(root)[:-keep]:
        shutil.rmtree(old)
    return path


def saved(root: Path) -> list[Path]:
    """The checkpoints under a run folder, oldest first."""
    return sorted(root.glob("step-[0-9]*"))


def load(path: Path, state: TrainingState) -> dict[str, Any]:
    """Read a checkpoint into a state of the same shape; return its step and its images' fingerprint."""
    try:
        state.network.load_state_dict(load_file(path / "network.safetensors"))
        state.average.load_state_dict(load_file(path / "average.safetensors"))
        _load_optimizer(state.optimizer, load_file(path / "optimizer.safetensors"))
        facts = json.loads((path / "state.json").read_text())
        return {"step": int(facts["step"]), "data": str(facts["data"])}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise IhdmError(
            f"the checkpoint {path} cannot be read ({error}); delete it to go on from the one before"
        ) from error


@contextlib.contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of `path` once it is complete."""
    fresh, stale = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    for leftover in (fresh, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    yield fresh
    if path.exists():
        path.rename(stale)
    fresh.rename(path)
    shutil.rmtree(stale, ignore_errors=True)


def _flat(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}


def _flat_optimizer(optimizer: Any) -> dict[str, Tensor]:
    """The optimiser's tensors as "number of the parameter.name of the tensor"."""
    return {
        f"{number}.{name}": tensor.cpu().contiguous()
        for number, tensors in optimizer.state_dict()["state"].items()
        for name, tensor in tensors.items()
    }


def _load_optimizer(optimizer: Any, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    before = {parameter: dict(tensors) for parameter, tensors in optimizer.state.items()}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, loaded in optimizer.state.items():
        for name, value in loaded.items():  # in the place it had, or else in the memory order of its parameter
            new = torch.empty_like(parameter) if value.shape == parameter.shape else value
            loaded[name] = before.get(parameter, {}).get(name, new).copy_(value)
