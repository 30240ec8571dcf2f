"""`ihdm train`."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from ihdm.config import DataConfig, load_config
from ihdm.errors import IhdmError
from ihdm.verbs.words import Folder, OwnSource, Settings, program, with_data

if TYPE_CHECKING:
    from ihdm.data import ImageSet


def train(
    preset: Annotated[Positional[str], arg(metavar="PRESET")],
    /,
    data: OwnSource = None,
    run: Folder = None,
    settings: Settings = (),
) -> None:
    """Train a model, or resume from its last checkpoint.

    Args:
        preset: a preset (see `ihdm --help`), or a TOML file in the same format
        data: a named set, a folder, zip, tar, idx, npy or npz file of images, or hf:NAME; default: the preset's
        run: folder for checkpoints, log, sample pictures and the model; default: runs/PRESET
    """
    config = with_data(load_config(preset, itertools.chain(*settings)), data)
    run = run or Path("runs") / Path(preset).stem
    if os.environ.get("RANK", "0") == "0":
        print(f"training {preset} in {run}, on {config.data.source or 'no data yet'}", flush=True)
    from ihdm.data import load_images
    from ihdm.engine import keep_freed_memory
    from ihdm.processes import coarse
    from ihdm.run import check_run
    from ihdm.trainer import Trainer

    keep_freed_memory()
    check_run(run, config)
    with _advice_on_broken(config.data):
        images = load_images(config.data, lazy=True)
        trainer = Trainer(config, images, run)
    parameters = sum(p.numel() for p in trainer.model.network.parameters())
    trainer.say(
        f"learning from {_amount(images)}, {images.domain.words}, checking on {len(images.held_out):,} "
        f"others; {parameters:,} parameters on {trainer.accelerator.device}"
    )
    process = trainer.model.process
    bold = coarse.remarks(process, getattr(config.network, "pyramid", ()))
    for remark in [*process.remarks(config.process, images.domain), *bold]:
        trainer.say(remark, sys.stderr if remark.startswith("warning") else sys.stdout)
    with _advice_on_broken(config.data):
        finished = trainer.train()
    if finished:
        model = run / "model"
        trainer.say(f"done; the model is in {model}. Next: {program()} sample {shlex.quote(str(model))}")
    else:
        trainer.say(f"stopped at step {trainer.step:,}, with everything saved; run the same command to resume")


@contextlib.contextmanager
def _advice_on_broken(data: DataConfig) -> Iterator[None]:
    """If an image cannot be read, say how to train without it."""
    from ihdm.data.images import Unreadable

    try:
        yield
    except Unreadable as error:
        if data.kind != "images" or data.on_error == "skip":
            raise
        raise IhdmError(f"{error}; repair it, or leave out such images with --set data.on_error=skip") from error


def _amount(images: ImageSet) -> str:
    if images.stream:
        return f"a stream of {len(images.stream.shards):,} shards (prior from {len(images.train):,} images)"
    return f"{len(images.train):,} {images.domain.noun}s" + f" with {len(images.labels)} labels" * bool(images.labels)
