"""The folder for what takes long to get or to compute."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$IHDM_CACHE, or ihdm in the user's cache folder."""
    own, shared = os.environ.get("IHDM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else Path(shared or Path.home() / ".cache") / "ihdm"
