"""`ihdm info`."""

from __future__ import annotations

import itertools
from typing import Annotated

from tyro.conf import Positional, arg

from ihdm.config import RENAMED, load_config, presets, shipped_words
from ihdm.errors import UsageError
from ihdm.verbs.words import OwnSource, Settings, table, with_data


def info(
    name: Annotated[Positional[str | None], arg(metavar="[MODEL_OR_PRESET]", help_behavior_hint="")] = None,
    /,
    data: OwnSource = None,
    settings: Settings = (),
) -> None:
    """Describe models and presets.

    Args:
        name: a model, given as for ihdm sample, or a preset; default: list all
        data: for a preset, the images to train on; default: the preset's
    """
    if name is None:
        print(table("presets, for ihdm train", presets()) + "\n")
        print(table("models that come with ihdm, for ihdm sample etc.", shipped_words()))
        return
    from ihdm import describe

    if name in presets() or name.endswith(".toml"):
        config = with_data(load_config(name, itertools.chain(*settings)), data)
        print(table(f"preset {name}, for ihdm train", describe.preset(config)))
        if name in RENAMED:
            print(f"the model that comes with ihdm is {RENAMED[name]}: ihdm info {RENAMED[name]}")
        return
    if settings or data:
        raise UsageError("--set and --data go with a preset; those of a model cannot be changed")
    print(table(f"model {name}", describe.model(name)))
