"""`ihdm info`."""

from __future__ import annotations

import itertools
from typing import Annotated

from tyro.conf import Positional, arg

from ihdm.config import load_config, presets
from ihdm.errors import UsageError
from ihdm.verbs.words import Settings, with_data


def info(
    name: Annotated[Positional[str], arg(metavar="MODEL_OR_PRESET")],
    /,
    data: Annotated[str | None, arg(metavar="SOURCE", help_behavior_hint="")] = None,
    settings: Settings = (),
) -> None:
    """Say what a model folder or a preset is.

    Args:
        name: a model folder, a run folder, owner/name on the hub, or a preset
        data: with a preset: the images it would be trained on; default: the preset's
    """
    from ihdm import describe
    from ihdm.model_folder import shipped

    tables = {}
    if name in presets() or name.endswith(".toml"):
        config = with_data(load_config(name, itertools.chain(*settings)), data)
        tables[f"preset {name}, for ihdm train"] = describe.preset(config)
    elif settings or data:
        raise UsageError("--set and --data go with a preset; a model folder is what it is")
    if not tables or (name in shipped() and not settings and not data):
        tables[f"model {name}"] = describe.model(name)
    print("\n\n".join(_table(title, rows) for title, rows in tables.items()))


def _table(title: str, rows: dict[str, str]) -> str:
    width = max(len(label) for label in rows)
    return "\n".join([title, *(f"  {label:<{width}}  {value}" for label, value in rows.items())])
