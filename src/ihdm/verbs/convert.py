"""`ihdm convert`."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ihdm.config import load_config
from ihdm.disk import replaced_folder
from ihdm.errors import IhdmError
from ihdm.verbs.words import OwnSource, Settings, check_new_folder, with_data


def convert(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    /,
    preset: Annotated[str, arg(metavar="PRESET")],
    data: OwnSource = None,
    settings: Settings = (),
) -> None:
    """Convert the authors' checkpoint to a model folder.

    Args:
        checkpoint: their checkpoint.pth or checkpoint_N.pth; no code in it is run
        out: a new folder for the model
        preset: the process: a preset (see `ihdm --help`), or a TOML file in the same format
        data: the training images, for the prior: a named set, folder or file; default: the preset's
    """
    config = with_data(load_config(preset, itertools.chain(*settings)), data)
    check_new_folder(out, "model")
    from ihdm.convert import convert, differing, fitting, read_checkpoint
    from ihdm.data import load_images
    from ihdm.engine import keep_freed_memory

    keep_freed_memory()
    found = read_checkpoint(checkpoint)
    described = fitting(config, found)
    try:
        images = load_images(config.data, lazy=True)
    except IhdmError as error:
        raise type(error)(f"the prior is made from the training images (--data SOURCE), but {error}") from error
    model = convert(found, described, images)
    with replaced_folder(out) as folder:
        model.save_pretrained(folder)
    parameters = sum(p.numel() for p in model.network.parameters())
    print(f"converted {parameters:,} averaged weights of step {found.steps:,}; prior from {len(images.train):,} images")
    changes = ", ".join(f"network.{name}={value}" for name, value in differing(described, config).items())
    if changes:
        print(f"from the checkpoint, not the preset: {changes}")
    print(f"the model is in {out}. Next: ihdm sample {shlex.quote(str(out))}")
