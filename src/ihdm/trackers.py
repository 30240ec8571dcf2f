"""Where to watch a run, besides its log.jsonl: TensorBoard, Weights & Biases, trackio."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from ihdm import extras

PROJECT = "ihdm"


class Tracker(Protocol):
    """Takes the figures and pictures of a step; steps never decrease."""

    def figures(self, step: int, facts: Mapping[str, float]) -> None: ...

    def picture(self, step: int, name: str, image: Image.Image) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Files in RUN/tensorboard. When a run resumes after a step, what was logged for later steps is hidden."""

    def __init__(self, run: Path, step: int, settings: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(run / "tensorboard", purge_step=step + 1)

    def figures(self, step: int, facts: Mapping[str, float]) -> None:
        for name, value in facts.items():
            self._board.add_scalar(name, value, step)

    def picture(self, step: int, name: str, image: Image.Image) -> None:
        self._board.add_image(name, np.asarray(image), step, dataformats="HWC")

    def close(self) -> None:
        self._board.close()


class Wandb:
    """Files in RUN/wandb, which `wandb sync` uploads. Without it nothing is sent, unless WANDB_MODE says so.

    If a run is stopped and resumed, wandb shows each part as a run of its own, all in one group.
    """

    def __init__(self, run: Path, step: int, settings: Mapping[str, Any]):
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        quiet = wandb.Settings(silent=True)
        self._image, name = wandb.Image, run.resolve().name
        self._run = wandb.init(
            project=PROJECT, group=name, name=f"{name} from {step}", dir=run, mode=mode, config=settings, settings=quiet
        )

    def figures(self, step: int, facts: Mapping[str, float]) -> None:
        self._run.log(dict(facts), step=step)

    def picture(self, step: int, name: str, image: Image.Image) -> None:
        self._run.log({name: self._image(image)}, step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """trackio's own folder on this machine (TRACKIO_DIR), which `trackio show` displays."""

    def __init__(self, run: Path, step: int, settings: Mapping[str, Any]):
        import trackio

        self._trackio = trackio
        trackio.init(project=PROJECT, name=run.resolve().name, config=dict(settings), resume="allow", embed=False)

    def figures(self, step: int, facts: Mapping[str, float]) -> None:
        self._trackio.log(dict(facts), step=step)

    def picture(self, step: int, name: str, image: Image.Image) -> None:
        self._trackio.log({name: self._trackio.Image(np.asarray(image))}, step=step)

    def close(self) -> None:
        self._trackio.finish()


KINDS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}


def check(kind: str) -> None:
    """Refuse a tracker that is not installed, before any work."""
    if kind in KINDS:
        extras.check(f"trainer.tracker={kind}", kind, kind)


def started(kind: str, run: Path, step: int, settings: Mapping[str, Any]) -> Tracker | None:
    """The tracker of a run that starts or resumes after `step`; auto: TensorBoard, if it is installed."""
    if kind == "auto":
        kind = "tensorboard" if extras.installed("tensorboard") else "none"
    try:
        return KINDS[kind](run, step, settings) if kind in KINDS else None
    except UnicodeEncodeError:
        print(f"warning: {kind} cannot write to {run}, whose name is not UTF-8", file=sys.stderr)
        return None
