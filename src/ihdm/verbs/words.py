"""Words that several verbs take."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from ihdm.config import Device, Precision
from ihdm.errors import IhdmError, UsageError

if TYPE_CHECKING:
    from ihdm.config import Config

ModelName = Annotated[Positional[str], arg(metavar="MODEL")]
Source = Annotated[str, arg(metavar="SOURCE")]
Settings = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(name="set", metavar="NAME=VALUE ...", help="settings to change, such as trainer.steps=1000 (see ihdm --help)"),
]


@dataclass(frozen=True)
class Computing:
    """How samples and likelihoods are computed."""

    batch_size: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None
    """images computed at a time; default: as many as are computed fast and fit into memory"""
    device: Device = "auto"
    """where to compute; auto: the GPU if there is one"""
    precision: Precision = "auto"
    """of the network; auto: bf16 where it is faster"""
    compile: Annotated[bool, arg(help_behavior_hint="")] = True
    """no compiled kernels and recorded steps on a GPU: it starts some seconds sooner, then is slower"""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"--batch-size must be at least 1, not {self.batch_size}")


AS_USUAL = Computing()


def with_data(config: Config, data: str | None) -> Config:
    """The configuration with the images that the user named."""
    from ihdm.data.sources import absolute

    source = absolute(data or config.data.source)
    return config.with_settings([f"data.source={source}"]) if source else config


def check_folder(folder: Path) -> None:
    """Make a folder, and refuse one that may not be written to, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise IhdmError(f"{folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise IhdmError(f"the folder {folder} may not be written to")


def check_outputs(json: Path | None, figures: Path | None) -> None:
    """The same for the numbers' file and the pictures' folder, where they are wanted."""
    if json and json.is_dir():
        raise UsageError(f"--json takes the name of a file, and {json} is a folder")
    for folder in (json and json.parent, figures):
        if folder:
            check_folder(folder)


def write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2, allow_nan=False) + "\n", encoding="utf-8")
