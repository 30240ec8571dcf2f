"""The run folder: the settings it was started with, and its log."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from PIL import Image

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

from ihdm.config import Config, config_from_toml, differences, read_text
from ihdm.disk import expanded, real, replaced_text
from ihdm.errors import IhdmError, UsageError
from ihdm.model_folder import locate
from ihdm.trackers import Tracker

# Settings that may change when a run is resumed.
FREE_OF_TRAINER = (
    "steps",
    "accumulate",
    "log_every",
    "tracker",
    "measure_every",
    "measured",
    "sample_every",
    "samples",
    "checkpoint_every",
    "keep",
    "keep_every",
    "skip_most",
)
FREE = {f"trainer.{name}" for name in FREE_OF_TRAINER}
FREE |= {"engine.device", "engine.precision", "engine.compile", "engine.checkpoint", "engine.shard"}
FREE |= {"data.source", "data.on_error", "data.memory", "data.workers"}  # the images themselves are compared instead

BARELY_BEGUN = {".lock", ".config.toml.new"}  # all that a run killed at its start may have left


def check_run(run: Path, config: Config, option: str = "--run") -> None:
    """Refuse a folder that holds a run with other settings, or something else. option: what the user names it with."""
    path = run / "config.toml"
    if run.exists() and not run.is_dir():
        raise UsageError(f"{run} is a file; give the name of a folder with {option}")
    _check_writable(run, option)
    if not path.exists():
        if run.exists() and not {file.name for file in run.iterdir()} <= BARELY_BEGUN:
            raise UsageError(f"{run} is not empty, but it is not a run folder; give another folder with {option}")
        return
    changed = differences(config_from_toml(read_text(path), str(path)), config)
    fixed = {name: pair for name, pair in changed.items() if name not in FREE and not name.startswith("sampling.")}
    lines = [f"{name} was {old}, is {new}" for name, (old, new) in fixed.items()]
    if lines:
        raise UsageError(
            f"{run} was started with other settings ({'; '.join(lines)}); "
            f"use the old settings to resume it, or give another folder with {option} to start a new run"
        )


def settings_of(model: str | Path) -> Config | None:
    """The settings that a model was trained with, if it is given as a run folder or as the model folder in one."""
    path = settings_file(model)
    return None if path is None else config_from_toml(read_text(path), str(path))


def settings_file(model: str | Path) -> Path | None:
    """Where they are."""
    folder = expanded(model).absolute()
    runs = [run for run in (folder, folder.parent) if run == folder or folder.name == "model"]
    paths = [run / "config.toml" for run in runs if (run / "checkpoints").is_dir()]  # others may have any config.toml
    return next((path for path in paths if path.is_file()), None)


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Keep other processes from working in the run folder; the system lifts the lock however this process ends."""
    with _lock_file(run) as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is working in {run}; wait for it, or give another folder") from error
        except OSError as error:  # some network file systems have no locks
            print(f"warning: {run} cannot be locked ({error}); start no other process there", file=sys.stderr)
        yield


@contextlib.contextmanager
def adding_to(model: str) -> Iterator[Path]:
    """The folder of a user's own model, for a command that adds to it. While it does so, no training of it goes on.

    Models that come with ihdm, and those in the hub's cache, are not the user's own.
    """
    if not expanded(model).is_dir():
        raise UsageError(
            f"there is no folder {model}; give a model or run folder of your own, such as a copy of a model that comes "
            f"with ihdm"
        )
    folder = locate(model)
    with locked(folder.parent) if settings_of(folder) else contextlib.nullcontext():
        yield folder


def _check_writable(run: Path, option: str) -> None:
    """Refuse a folder that cannot be written to or created, before hours are spent on training."""
    folders = [run / name for name in ("checkpoints", "model", "samples", "tensorboard")]
    for place in (run, *folders, run / "config.toml", run / "log.jsonl"):
        if place.exists() and place.is_dir() != (place in (run, *folders)):
            raise UsageError(
                f"{place} is a {'folder' if place.is_dir() else 'file'}, but the run needs that name for a "
                f"{'file' if place.is_dir() else 'folder'}; move it away, or give another folder with {option}"
            )
        present = next((path for path in (place, *real(place).parents) if path.exists()), place)
        if not os.access(present, os.W_OK | (os.X_OK if present.is_dir() else 0)):
            raise IhdmError(
                f"{run} cannot be written to: {present} is read-only for this user; change its permissions, or give "
                f"another folder with {option}"
            )


def _lock_file(run: Path) -> TextIO:
    try:
        run.mkdir(parents=True, exist_ok=True)
        return (run / ".lock").open("w")
    except OSError as error:
        raise IhdmError(f"{run} cannot be written to ({error}); give another folder") from error


class Log:
    """log.jsonl, one line of facts at a time, and a tracker, if there is one."""

    def __init__(self, run: Path, step: int, tracker: Tracker | None):
        """Continue after `step`: lines of later steps are dropped, as these will be taken again."""
        self.path, self.tracker = run / "log.jsonl", tracker
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        replaced_text(self.path, "".join(line + "\n" for line in lines if _step(line) <= step))
        self._start = time.perf_counter()  # unlike the wall clock, this one cannot be set

    def write(self, step: int, facts: dict[str, float]) -> None:
        with self.path.open("a") as file:
            line = {"step": step, **facts, "seconds": round(time.perf_counter() - self._start, 1)}
            file.write(json.dumps(line) + "\n")
        if self.tracker:
            self.tracker.figures(step, facts)

    def picture(self, step: int, name: str, image: Image.Image) -> None:
        """Pass a picture to the tracker; log.jsonl has none."""
        if self.tracker:
            self.tracker.picture(step, name, image)

    def close(self) -> None:
        if self.tracker:
            self.tracker.close()


def read_log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log.jsonl."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if _step(line) < float("inf")]


def _step(line: str) -> float:
    """The step of a line; infinity for a line that was cut off by a crash."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
