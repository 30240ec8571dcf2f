"""The machine that a program runs on."""

from __future__ import annotations

import os
import sys


def host_bytes() -> int:
    """The memory of this machine, not counting its GPUs."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else sys.maxsize
