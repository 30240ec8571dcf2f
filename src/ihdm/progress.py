"""Progress: a bar on a terminal; elsewhere, such as in a file, a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

SECONDS = 10  # between lines
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} gone, {remaining} left{postfix}"


def progress_bar(things: Iterable[Any] | None = None, *, leave: bool = False, **options: Any) -> tqdm[Any]:
    """A bar of tqdm's; unless `leave` is set, it vanishes when it is done."""
    if not sys.stderr.isatty():
        options |= {"file": _Lines(), "mininterval": SECONDS, "bar_format": LINE, "delay": 0 if leave else SECONDS}
    return tqdm(things, leave=leave, **options)


class _Lines:
    """Prints what is written to a bar to standard error, one line at a time."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Each line is written at once."""
