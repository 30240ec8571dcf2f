"""The state of a training run on the disk: only tensors and JSON, with sizes and checksums in a manifest."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ihdm.disk import load_tensors, replaced_folder, seal
from ihdm.errors import IhdmError
from ihdm.optimisation import Adam
from ihdm.sharding import divided_like, whole

MANIFEST = "manifest.json"  # the step, the images' fingerprint etc., and the size and checksum of every other file
DAMAGED = OSError, ValueError, KeyError, TypeError, AttributeError  # what reading a damaged file may raise
NETWORK, AVERAGE, OPTIMIZER = "network.safetensors", "average.safetensors", "optimizer.safetensors"
TENSORS = NETWORK, AVERAGE, OPTIMIZER
FILES = MANIFEST, *TENSORS


@dataclass(frozen=True)
class Snapshot:
    """A copy, in the host's memory, of what training changes; divided weights are joined in it.

    It is written while training continues: the optimiser, the weights that it updates, and their average.

    data: the images' fingerprint; processes: how many took the steps; places: how far a stream of images was read.
    """

    step: int
    data: str
    processes: int
    places: list[list[int]] | None
    files: dict[str, dict[str, Tensor]]

    @classmethod
    def of(
        cls, optimizer: Adam, step: int, data: str, processes: int = 1, places: list[list[int]] | None = None
    ) -> Snapshot:
        files = {
            NETWORK: _copies(optimizer.network.state_dict()),
            AVERAGE: _copies(optimizer.average.state_dict()),
            OPTIMIZER: _copies(optimizer.tensors()),
        }
        return cls(step, data, processes, places, files)


def save(root: Path, snapshot: Snapshot, keep: int, keep_every: int = 0) -> Path:
    """Write step-N under `root`, then delete all but the last `keep` and those of every `keep_every` steps.

    Checkpoints that are links, or that other files were put into, are kept too.
    """
    path = root / f"step-{snapshot.step:08d}"
    with replaced_folder(path) as folder:
        for name, tensors in snapshot.files.items():
            save_file(tensors, folder / name)
        files = {name: seal(folder / name) for name in snapshot.files}
        manifest = {name: getattr(snapshot, name) for name in ("step", "data", "processes", "places")}
        manifest["files"] = files
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    past = [old for old in saved(root) if _step(old) <= snapshot.step]  # later ones are damaged, and left to the user
    for old in past[:-keep]:
        ours = not old.is_symlink() and {path.name for path in old.iterdir()} <= set(FILES)
        if ours and (not keep_every or _step(old) % keep_every):
            shutil.rmtree(old)
    return path


def saved(root: Path) -> list[Path]:
    """The checkpoints under a run folder, oldest first."""
    return sorted((path for path in root.glob("step-*") if _step(path) >= 0), key=_step)


def resume(root: Path, optimizer: Adam) -> dict[str, Any] | None:
    """Read the newest undamaged checkpoint, if there is one, and warn about those that are skipped."""
    damaged = []
    for path in reversed(saved(root)):
        try:
            return load(path, optimizer)
        except IhdmError as error:
            print(f"warning: {error}; trying the one before it", file=sys.stderr)
            damaged.append(path.name)
    if damaged:
        raise IhdmError(f"no checkpoint in {root} can be read ({', '.join(damaged)}); delete them to start anew")
    return None


def load(path: Path, optimizer: Adam) -> dict[str, Any]:
    """Read a checkpoint into an optimiser, its network and average; return step, data, processes and places of it."""
    try:
        manifest = _checked_manifest(path)
        kinds = {"step": int, "data": str, "processes": int}
        facts: dict[str, Any] = {name: kind(manifest[name]) for name, kind in kinds.items()}
        facts["places"] = _checked_places(manifest.get("places"))
        tensors = {name: load_tensors(path / name) for name in TENSORS}
        _load(optimizer.network, tensors[NETWORK])
        _load(optimizer.average, tensors[AVERAGE])
        _load_optimizer(optimizer, tensors[OPTIMIZER])
        return facts
    except (*DAMAGED, RuntimeError, safetensors.SafetensorError) as error:
        raise IhdmError(f"the checkpoint {path} cannot be read ({error})") from error


def newest(root: Path) -> Path:
    """The newest checkpoint, if it is undamaged."""
    path = next(reversed(saved(root)), None)
    if path is None:
        raise IhdmError(f"there is no checkpoint in {root}")
    try:
        _checked_manifest(path)
    except DAMAGED as error:
        raise IhdmError(f"the checkpoint {path} cannot be read ({error})") from error
    return path


def _checked_manifest(path: Path) -> dict[str, Any]:
    """The contents of a manifest, once the files are found to agree with it."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    for name in TENSORS:
        if seal(path / name) != manifest["files"][name]:
            raise ValueError(f"{name} has changed since it was written")
    if manifest["step"] != _step(path):
        raise ValueError(f"its {MANIFEST} belongs to step {manifest['step']}")
    return dict(manifest)


def _checked_places(found: Any) -> list[list[int]] | None:
    """Rows of equally many numbers, or None."""
    if found is None:
        return None
    numbers = [number for row in found for number in row]
    if len({len(row) for row in found}) != 1 or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise ValueError(f"its {MANIFEST} holds no valid places in a stream")
    return found


def _step(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the host."""
    return {name: torch.empty(t.shape, dtype=t.dtype).copy_(whole(t.detach())) for name, t in tensors.items()}


def _load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    now = module.state_dict()
    module.load_state_dict({name: divided_like(tensor, now.get(name)) for name, tensor in tensors.items()})


def _load_optimizer(optimizer: Adam, tensors: dict[str, Tensor]) -> None:
    """Copy the tensors into those that the optimiser already has."""
    now = optimizer.tensors()
    if not set(tensors) <= set(now):
        raise ValueError(f"{OPTIMIZER} belongs to another network")
    for name, tensor in now.items():
        if name in tensors and tensor.shape != tensors[name].shape:
            raise ValueError(f"{name} in {OPTIMIZER} has the wrong shape, {tuple(tensors[name].shape)}")
    for name, tensor in now.items():
        if name in tensors:
            tensor.copy_(divided_like(tensors[name], tensor))
        elif not name.endswith(".step"):  # of a weight without a gradient, for which torch's Adam kept nothing
            tensor.zero_()
