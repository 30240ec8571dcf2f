"""The folder for what takes long to get or to compute."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path


def cache_folder() -> Path:
    """$IHDM_CACHE, or ihdm in the user's cache folder; without a home folder, a temporary folder."""
    own, shared = os.environ.get("IHDM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    try:
        return Path(shared or Path.home() / ".cache") / "ihdm"
    except RuntimeError:
        return Path(_temporary().name)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ihdm-")
