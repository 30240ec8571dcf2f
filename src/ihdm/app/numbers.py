"""Numbers from fields of the page."""

from __future__ import annotations

import math
from typing import Any

from ihdm.errors import UsageError

MOST_SEED = 2**31 - 1


def whole(value: Any, name: str, least: int = 0, most: int = MOST_SEED) -> int:
    """A whole number from a field of the page, which may be empty or hold anything."""
    number = within(value, name, least, most)
    if number != int(number):
        raise UsageError(f"{name} must be a whole number, not {number:g}.")
    return int(number)


def within(value: Any, name: str, least: float, most: float) -> float:
    """A number from a field of the page, between two limits."""
    if value is None or isinstance(value, str) or not math.isfinite(value) or not least <= value <= most:
        given = "empty" if value is None else f"{value}"
        raise UsageError(f"{name} must be a number from {least:,} to {most:,}; it is {given}.")
    return float(value)
