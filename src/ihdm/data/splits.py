"""Which split a file belongs to, by the names of its folders."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path

from ihdm.data.pictures import SUFFIXES
from ihdm.errors import IhdmError

SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "t10k": "test",
    "val": "test",
    "valid": "test",
    "validation": "test",
}


def grouped(
    names: Collection[str], origin: Path, suffixes: Collection[str] = SUFFIXES, what: str = "images"
) -> dict[str, list[str]]:
    """Files by split. what: the word for such files in the error message if there are none."""
    groups = by_split(names, suffixes)
    if not groups:
        found = f"only files such as {next(iter(names))}" if names else "it is empty, or may not be read"
        raise IhdmError(f"{origin} holds no {what} ({found}); {what} end in {', '.join(sorted(suffixes))}")
    return groups


def by_split(names: Iterable[str], suffixes: Collection[str]) -> dict[str, list[str]]:
    """The files with some suffixes by split. A folder named train, test or val, first or second in a path, gives it."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if split := _split_of_file(name, suffixes):
            groups.setdefault(split, []).append(name)
    return groups


def split_of_image(name: str) -> str | None:
    """The split of an image by the folders in its name; None if it is hidden, or not an image."""
    return _split_of_file(name, SUFFIXES)


def _split_of_file(name: str, suffixes: Collection[str]) -> str | None:
    folder, _, file = name.rpartition("/")
    split = _split_of(folder)
    return split if os.path.splitext(file)[1].lower() in suffixes and not file.startswith(".") else None


@lru_cache
def _split_of(folder: str) -> str | None:
    """The split of the images in a folder; None if it is hidden."""
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if any(part.startswith(".") or part == "__MACOSX" for part in parts):
        return None
    return named_split(parts[:2])


def named_split(words: Iterable[str]) -> str:
    """The split that the first of the words naming one gives; train if none does."""
    return SPLIT_WORDS[split_word(words)]


def split_word(words: Iterable[str]) -> str:
    return next((word.lower() for word in words if word.lower() in SPLIT_WORDS), "train")
