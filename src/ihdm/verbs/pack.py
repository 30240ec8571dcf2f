"""`ihdm pack` and `ihdm unpack`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ihdm.errors import UsageError
from ihdm.verbs.words import check_new_folder

UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SMALLEST = 1000  # bytes in a piece, at least


def pack(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    /,
    piece: Annotated[str, arg(metavar="SIZE")] = "15MB",
) -> None:
    """Split a run's checkpoint into pieces to move elsewhere.

    Args:
        run: a run folder that no process is using
        out: a new folder for the pieces
        piece: largest piece, such as 15MB or 64MiB
    """
    size = _bytes(piece)
    check_new_folder(out, "pieces")
    from ihdm import packing

    found = packing.pack(run, out, size)
    count, total = len(found["pieces"]), sum(found["files"].values())
    print(f"{found['checkpoint']} of {run} is in {out}: {count:,} piece{'s' * (count > 1)}, {total:,} bytes")
    print(f"to resume elsewhere: ihdm unpack {shlex.quote(out.name)} RUN, then the training command with --run RUN")


def unpack(
    pack: Annotated[Positional[Path], arg(metavar="PACK")],
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
) -> None:
    """Put a packed run back together, ready to resume.

    Args:
        pack: the folder with the pieces and pack.json
        run: a new folder for the run
    """
    check_new_folder(run, "run")
    from ihdm import packing

    found = packing.unpack(pack, run)
    print(f"{found['checkpoint']} of {found['run']} is in {run}; to resume, add --run to the training command")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})\s*([A-Za-z]*)", text)
    if not match or match[2] not in UNITS:
        raise UsageError(f"--piece takes a size such as 15MB or 64MiB, not {text}")
    size = int(match[1]) * UNITS[match[2]]
    if size < SMALLEST:
        raise UsageError(f"--piece must be at least {SMALLEST} bytes, not {text}")
    return size
