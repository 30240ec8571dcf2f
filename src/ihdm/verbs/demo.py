"""`ihdm demo`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from ihdm.verbs.words import Settings


def demo(out: Annotated[Path, arg(metavar="FOLDER")] = Path("demo"), settings: Settings = ()) -> None:
    """Train on embedded digits for about 90 seconds, then make pictures.

    Args:
        out: folder for all output
    """
    from ihdm.demo import run_demo
    from ihdm.engine import keep_freed_memory

    keep_freed_memory()
    run_demo(out, itertools.chain(*settings))
