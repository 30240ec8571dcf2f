"""Options that several verbs share."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from ihdm.config import Device, Precision
from ihdm.disk import real
from ihdm.errors import IhdmError, UsageError

if TYPE_CHECKING:
    import torch

    from ihdm.config import Config
    from ihdm.execution import Execution

MOST = 10**9  # at most so many images for a command
ModelName = Annotated[Positional[str], arg(metavar="MODEL")]
Source = Annotated[str, arg(metavar="SOURCE")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]  # which may be left out, as the next two
Folder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
OwnSource = Annotated[str | None, arg(metavar="SOURCE", help_behavior_hint="")]
Guidance = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
Settings = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(name="set", metavar="NAME=VALUE ...", help="change settings, e.g. trainer.steps=1000 (see ihdm settings)"),
]


@dataclass(frozen=True)
class Computing:
    """Where and how to compute."""

    batch_size: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """images per batch; default: as many as run fast and fit in memory"""
    device: Device = "auto"
    """device to use; auto: the GPU if there is one"""
    precision: Precision = "auto"
    """network precision; auto: bf16 where faster"""
    compile: Annotated[bool, arg(help_behavior_hint="")] = True
    """on a GPU, use no compiled kernels or recorded steps: starts seconds sooner, runs slower"""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_count(self.batch_size, "--batch-size")

    def place(self) -> torch.device:
        """The device to use, by a program that computes from now on."""
        from ihdm.engine import choose_device, keep_freed_memory

        keep_freed_memory()
        return choose_device(self.device)

    def execution(self, place: torch.device, shape: tuple[int, ...], progress: bool = True) -> Execution:
        """How a network for images of this shape computes on a device."""
        from ihdm.engine import choose_precision
        from ihdm.execution import Execution

        precision = choose_precision(self.precision, place, shape[1:])
        return Execution(precision, self.compile, self.batch_size, progress)


@dataclass(frozen=True)
class HowToSample:
    """How to sample. What you leave out is taken from the model."""

    sampler: Annotated[
        Literal["paper", "exact", "momentum"] | None, arg(metavar="paper|exact|momentum", help_behavior_hint="")
    ] = None
    """the paper's steps, any number of exact posterior steps, or soft diffusion's own; default: the model's"""
    steps: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """number of steps, for exact steps and diffusion; default: the model's"""
    eta: Annotated[float | None, arg(metavar="0..1", help_behavior_hint="")] = None
    """fresh noise in exact steps and diffusion: 1 as in the posterior, 0 none; default: the model's"""
    order: Annotated[int | None, arg(metavar="1|2", help_behavior_hint="")] = None
    """2: each step also uses the one before, which is better with few steps; default: the model's"""
    corrected: Annotated[bool | None, arg(metavar="true|false", help_behavior_hint="")] = None
    """each step corrects the one before: usually better with few steps, and as fast; default: the model's"""
    delta_ratio: Annotated[float | None, arg(metavar="RATIO", help_behavior_hint="")] = None
    """noise of the paper's steps, in units of sigma: more adds detail, then noise; default: the model's"""

    def changes(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


AS_USUAL = Computing()
AS_THE_MODEL_HAS_IT = HowToSample()


def program() -> str:
    """The command that started this program: ihdm, or python and the user's own script."""
    own = Path(sys.argv[0])
    return f"python {shlex.quote(str(own))}" if own.suffix == ".py" and own.name != "__main__.py" else "ihdm"


def with_data(config: Config, data: str | None) -> Config:
    """The configuration with the images that the user named."""
    from ihdm.data.sources import absolute

    source = absolute(data or config.data.source)
    return config.with_settings([f"data.source={source}"]) if source else config


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be created or written to, before anything is computed.

    It is created when there is something to put into it, so that a command that is refused leaves nothing behind.
    """
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise IhdmError(f"{folder} is a file, not a folder")
    if not os.path.exists(folder):
        try:
            _try_to_create(folder)
        except OSError as error:  # a parent is read-only, or a file
            why = error.strerror or type(error).__name__
            raise IhdmError(f"the folder {folder} cannot be created ({why}); give another one") from error
    elif not os.access(folder, os.W_OK):
        raise IhdmError(f"the folder {folder} cannot be written to; change its permissions, or give another one")


def _try_to_create(folder: Path) -> None:
    """Fail as the system would, but leave nothing: each new name is tried in a folder that is removed again."""
    present = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    trial = present / f".{secrets.token_hex(8)}"
    trial.mkdir()
    try:
        for name in folder.relative_to(present).parts:
            (trial / name).mkdir(exist_ok=True)
    finally:
        shutil.rmtree(trial)


def check_new_folder(folder: Path, what: str) -> None:
    """Refuse a folder that has something in it, or that cannot be created."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or real(folder) == Path.cwd()):
        raise UsageError(f"{folder} exists; give the name of a new folder for the {what}")
    check_folder(folder.absolute().parent)


def check_count(n: int, option: str = "--n") -> None:
    if not 1 <= n <= MOST:
        raise UsageError(f"{option} must be from 1 to {MOST:,}, not {n}")


def check_file(path: Path | None, option: str) -> None:
    """If a file is wanted, refuse one that cannot be written, before anything is computed."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} takes the name of a file, and {path} is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise IhdmError(f"the file {path} cannot be written to; change its permissions, or give another one")
    check_folder(path.parent)


def check_outputs(json: Path | None, figures: Path | None) -> None:
    """Check the file for the numbers and the folder for the pictures, if they are wanted."""
    check_file(json, "--json")
    if figures:
        check_folder(figures)


def make_folders(*folders: Path | None) -> None:
    """Create those that are wanted, once nothing is left to be refused."""
    for folder in filter(None, folders):
        folder.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, tree: dict[str, Any]) -> None:
    make_folders(path.parent)
    path.write_text(json.dumps(tree, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def table(title: str, rows: dict[str, str], width: int = 0) -> str:
    """A title above rows of a label and its value, the labels at least `width` wide."""
    return f"{title}\n{aligned(rows.items(), width, '  ')}"


def aligned(rows: Iterable[tuple[str, str]], width: int = 0, indent: str = "") -> str:
    """Labels, at least `width` wide, and their values in two columns."""
    rows = list(rows)
    width = max(width, *(len(label) for label, _ in rows))
    return "\n".join(f"{indent}{label:<{width}}  {value}" for label, value in rows)
