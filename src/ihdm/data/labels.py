"""The label of each picture, from class folders, files or arrays of labels, or a column of a set on the hub."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data.archives import open_tar, tar_files
from ihdm.data.pictures import Files, Pictures, Rows, Stack, Subset, TarMembers, ZipMembers
from ihdm.data.splits import SPLIT_WORDS
from ihdm.errors import IhdmError, UsageError
from ihdm.labels import Labels

COLUMNS = "label", "labels", "fine_label"  # of sets on the hub; the first that exists is used
NO_LABELS = (
    "class folders (cat/1.png, dog/2.png), a file such as train-labels-idx1-ubyte.gz beside MNIST's, an array such as "
    "train_labels in an npz file, .cls files in tar archives, a column named label on the hub, or the `labels` that a "
    "kind of data of your own finds"
)


def numbered(config: DataConfig, train: Pictures, held_out: Pictures) -> tuple[Labels, Tensor | None, Tensor | None]:
    """The labels of the training images, and the label numbers of the training and of the held-out pictures.

    Without data.labels there are none.
    """
    if not config.labels:
        return Labels(), None, None
    source, names, others = config.source, named(train), named(held_out)
    if not any(names):
        raise UsageError(f"{source} has no labels; expected {NO_LABELS}. Without labels, set data.labels=false")
    found = Counter(names)
    for pictures, each in ((train, names), (held_out, others)):
        if "" in each:
            first, missing = pictures.name(each.index("")), names.count("") + others.count("")
            total = len(names) + len(others)
            raise IhdmError(f"{first} has no label, as {missing:,} of {total:,} images have none; label all or none")
    if len(found) < 2:
        raise UsageError(f"all images of {source} have the same label, {names[0]!r}, which tells a network nothing")
    if unseen := set(others) - set(found):
        raise IhdmError(
            f"{held_out.name(others.index(min(unseen)))} is held out and has the label {min(unseen)!r}, which no "
            f"training image of {source} has"
        )
    known = sorted(found, key=_by_number)
    places = {name: number for number, name in enumerate(known)}
    numbers = [torch.tensor([places[name] for name in each], dtype=torch.long) for each in (names, others)]
    return Labels(tuple(known), tuple(found[name] for name in known)), numbers[0], numbers[1]


def _by_number(name: str) -> tuple[float, str]:
    """A key that sorts 9 before 10, and numbers before words."""
    return (float(name) if name.isdecimal() else float("inf")), name


def named(pictures: Pictures) -> list[str]:
    """The label of each picture; "" where there is none."""
    if isinstance(pictures, Subset):
        whole = named(pictures.pictures)
        return [whole[number] for number in pictures.numbers]
    if isinstance(pictures, Files):
        return by_folder(pictures.names)
    if isinstance(pictures, ZipMembers):
        return by_folder(pictures.members)
    if isinstance(pictures, TarMembers):
        return _in_archives(pictures)
    if isinstance(pictures, Rows):
        return _in_column(pictures)
    given: Any = np.atleast_1d(pictures.labels()) if isinstance(pictures, Stack) else []
    return _words(pictures, given) if len(given) else [""] * len(pictures)


def by_folder(paths: Sequence[str]) -> list[str]:
    """The label in each path: its folder at the first depth where folders differ, ignoring one that names a split.

    If they differ at no depth, as in a split with one class, the deepest folder.
    """
    columns = [*zip_longest(*(_folders(os.path.dirname(path)) for path in paths), fillvalue="")]
    own = next((column for column in columns if len(set(column)) > 1), None)
    return list(own or (columns[-1] if columns else [""] * len(paths)))


def _folders(folder: str) -> list[str]:
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    return [part for place, part in enumerate(parts) if place > 1 or part.lower() not in SPLIT_WORDS]


def _in_archives(pictures: TarMembers) -> list[str]:
    """Labels from files beside the images, as in WebDataset (7.cls beside 7.png), or else from folders."""
    beside: dict[tuple[Any, str], str] = {}
    for path in dict.fromkeys(path for path, *_ in pictures.members):
        with open_tar(path) as archive:
            for entry in tar_files(archive):
                if entry.name.endswith(".cls"):
                    content = archive.extractfile(entry).read()  # type: ignore[union-attr]
                    beside[path, _key(entry.name)] = content.decode(errors="replace").strip()
    if not beside:
        return by_folder([name for _, name, _, _ in pictures.members])
    return [beside.get((path, _key(name)), "") for path, name, _, _ in pictures.members]


def _key(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.split('.')[0]}"


def _in_column(pictures: Rows) -> list[str]:
    features = pictures.rows.features or {}
    column = next((column for column in COLUMNS if column in features), None)
    if column is None:
        return [""] * len(pictures)
    names = getattr(features[column], "names", None)
    given = list(pictures.rows[column])
    if names:
        given = [names[number] if number is not None and number >= 0 else None for number in given]
    return _words(pictures, given)


def _words(pictures: Pictures, given: Iterable[Any]) -> list[str]:
    """Labels that are whole numbers or texts, as texts; "" where one is negative or missing."""
    values = [value.item() if hasattr(value, "item") and value.size == 1 else value for value in given]
    where = f"in the set that begins with {pictures.name(0)}"
    if len(values) != len(pictures):
        raise IhdmError(f"there are {len(values):,} labels for {len(pictures):,} images {where}")
    if wrong := [value for value in values if not isinstance(value, int | str | None)]:
        raise IhdmError(f"there is a label of type {type(wrong[0]).__name__} {where}; expected whole numbers or texts")
    return ["" if value is None or (isinstance(value, int) and value < 0) else str(value) for value in values]
