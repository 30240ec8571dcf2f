"""`ihdm settings`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg


def settings(name: Annotated[Positional[str], arg(metavar="[NAME]", help_behavior_hint="")] = "", /) -> None:
    """List the settings that --set can change, with defaults.

    Args:
        name: part of a name, such as process or trainer.lr; default: all
    """
    from ihdm.config import setting_rows
    from ihdm.errors import unknown
    from ihdm.verbs.words import aligned

    rows = setting_rows()
    chosen = [row for row in rows if name in row[0]]
    if not chosen:
        raise unknown("setting", name, [row[0] for row in rows])
    print(aligned(chosen))
