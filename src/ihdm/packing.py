"""A training run in numbered pieces, to move to another machine and resume there as if it had never moved.

A pack is a folder. Its pieces are the files of the run, one after the other, cut at equal lengths. `pack.json` lists
the files with their sizes, and the pieces with their sizes and checksums. The pictures of samples are left out, and of
the model folder all that a resumed run writes again: what is packed is what other commands added.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ihdm import checkpoint
from ihdm.disk import real, replaced_folder, seal
from ihdm.errors import IhdmError, UsageError, first_few
from ihdm.model_folder import ADDED, CONFIG, DOMAIN
from ihdm.run import locked

LIST = "pack.json"
OF_A_RUN = ("config.toml", "log.jsonl")  # packed besides the newest checkpoint
ADDED_TO_MODEL = (CONFIG, DOMAIN, *ADDED)  # the first two say of the weaker network what it is
NAME = r"config\.toml|log\.jsonl|checkpoints/step-\d+/\w[\w.-]*|model/(config\.json|\w+\.safetensors)"  # in a pack
BLOCK = 2**22  # bytes to read at a time


def pack(run: Path, out: Path, piece: int) -> dict[str, Any]:
    """Write a run's newest checkpoint to a new folder, in pieces of `piece` bytes; return what pack.json says."""
    if not (run / "config.toml").is_file():
        raise UsageError(f"{run} is not a run folder: it has no config.toml")
    with locked(run):
        newest = checkpoint.newest(run / "checkpoints")
        names = [name for name in OF_A_RUN if (run / name).exists()]
        names += [(newest / name).relative_to(run).as_posix() for name in checkpoint.FILES]
        if any((run / "model" / name).exists() for name in ADDED):
            names += [f"model/{name}" for name in ADDED_TO_MODEL if (run / "model" / name).exists()]
        files = {name: (run / name).stat().st_size for name in names}
        with replaced_folder(out) as folder:
            _write_pieces(_blocks(run / name for name in names), folder, piece)
            pieces = {path.name: seal(path) for path in sorted(folder.iterdir(), key=_number)}
            found = {"run": real(run).name, "checkpoint": newest.name, "files": files, "pieces": pieces}
            (folder / LIST).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def unpack(pack: Path, run: Path) -> dict[str, Any]:
    """Make a new run folder from a pack. If pieces are missing or damaged, name them and write nothing."""
    found = _read_list(pack)
    wrong = [f"{name} is {state}" for name, was in found["pieces"].items() if (state := _state(pack / name, was))]
    if wrong:
        raise IhdmError(f"{pack} is incomplete or damaged: {first_few(wrong, between=', ')}; copy them again")
    with replaced_folder(run) as folder:
        pieces = sorted((pack / name for name in found["pieces"]), key=_number)
        _write_files(_blocks(pieces), folder, found["files"])
    return found


def _read_list(pack: Path) -> dict[str, Any]:
    path = pack / LIST
    if not path.is_file():
        raise IhdmError(f"{pack} is not a packed run: {LIST} is missing")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        files, pieces = found["files"], found["pieces"]
        sizes = [*files.values(), *(piece["bytes"] for piece in pieces.values())]
        if not all(re.fullmatch(NAME, name) for name in files) or not all(map(_is_piece, pieces)):
            raise ValueError("it names files that do not belong in a pack")
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError("it holds impossible sizes")
        if sum(files.values()) != sum(piece["bytes"] for piece in pieces.values()):
            raise ValueError("the files and the pieces differ in total size")
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IhdmError(f"{path} is damaged ({type(error).__name__}: {error}); copy it again") from error


def _is_piece(name: str) -> bool:
    return re.fullmatch(r"\d+\.piece", name) is not None


def _number(piece: Path) -> int:
    return int(piece.stem)


def _state(piece: Path, was: Mapping[str, Any]) -> str:
    """What is wrong with a piece, if anything."""
    if not piece.is_file():
        return "missing"
    return "" if seal(piece) == was else "damaged"


def _blocks(paths: Iterable[Path]) -> Iterator[bytes]:
    """The contents of files, one after the other."""
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block


def _write_pieces(blocks: Iterator[bytes], folder: Path, size: int) -> None:
    number, rest = 0, b""
    while block := rest or next(blocks, b""):
        number += 1
        with (folder / f"{number:04d}.piece").open("wb") as file:
            rest = _fill(file, block, blocks, size)


def _write_files(blocks: Iterator[bytes], folder: Path, sizes: Mapping[str, int]) -> None:
    rest = b""
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            rest = _fill(file, rest, blocks, size)


def _fill(file: Any, block: bytes, blocks: Iterator[bytes], size: int) -> bytes:
    """Write `size` bytes, or all there are, from `block` and then `blocks`; return what is left of the last block."""
    while size and (block := block or next(blocks, b"")):
        taken = file.write(block[:size])
        block, size = block[taken:], size - taken
    return block
