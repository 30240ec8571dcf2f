"""From the word that a user types to pictures: named sets, folders, archives, arrays, the hub."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ihdm.data.archives import is_tar, open_tar, open_zip, tar_files
from ihdm.data.arrays import idx_stack, image_stacks
from ihdm.data.listing import files_below
from ihdm.data.pictures import SUFFIXES, Files, Pictures, Rows, TarMembers, ZipMembers
from ihdm.data.splits import SPLIT_WORDS, grouped, named_split, split_of_image
from ihdm.disk import expanded, real
from ihdm.errors import IhdmError, UsageError, first_few, unknown
from ihdm.extras import needs
from ihdm.progress import progress_bar

Splits = Mapping[str, Pictures]  # "train", and "test" where there is one

DIGITS = Path(str(resources.files("ihdm.data") / "digits-idx3-ubyte.gz"))
MADE_HERE = ("digits", "orbitals")  # sets that come with ihdm


@dataclass(frozen=True)
class NamedSet:
    """Where a well-known set lies in $IHDM_DATA (the first that exists), and its name on the hub."""

    files: tuple[str, ...]
    hub: str


NAMED = {
    "mnist": NamedSet(("mnist",), "ylecun/mnist"),
    "fashion-mnist": NamedSet(("fashion-mnist",), "zalando-datasets/fashion_mnist"),
    "cifar10": NamedSet(("cifar10.zip", "cifar10"), "uoft-cs/cifar10"),
    "afhq": NamedSet(("afhq.zip", "afhq", "afhq_cat_64.zip"), "huggan/AFHQ"),
    "ffhq": NamedSet(("ffhq.zip", "ffhq"), "merkol/ffhq-256"),
    "lsun-church": NamedSet(("lsun-church.zip", "lsun-church"), "tglcourse/lsun_church_train"),
}


def open_source(source: str) -> Splits:
    """The splits of a named set, a path, or hf:NAME."""
    if source == "orbitals":
        raise UsageError("orbitals are volumes: take the preset orbitals, or add --set data.kind=volumes")
    found = locate(source)
    return _path(found) if isinstance(found, Path) else _hub(source, found)


def locate(source: str) -> Path | str:
    """Where a source is: a path, or its name on the hub."""
    if source == "digits":
        return DIGITS
    if source.startswith("hf:"):
        return source.removeprefix("hf:")
    if source in NAMED:
        folder = os.environ.get("IHDM_DATA")
        places = [Path(folder, file) for file in NAMED[source].files] if folder else []
        return next((place for place in places if place.exists()), NAMED[source].hub)
    path = expanded(source)
    if not path.exists():
        if "/" in source or path.suffix:
            raise IhdmError(f"there is no {source}; --data takes a folder or file of images, or a named set")
        raise unknown("data set, and there is no such folder or file:", source, ["digits", *NAMED])
    return path


def absolute(source: str) -> str:
    """The source as it can be found from any folder: a path becomes absolute, a name stays as it is."""
    named = source in ("", *MADE_HERE, *NAMED) or source.startswith("hf:")
    path = expanded(source)
    return str(real(path)) if not named and path.exists() else source


def _path(path: Path) -> Splits:
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".zip":
        return _zip(path)
    if path.suffix.lower() in (".npy", ".npz"):
        return image_stacks(path)
    if path.suffix.lower() == ".tar":
        return _tar(path)
    if "idx3-ubyte" in path.name:
        return {"train": idx_stack(path)}
    if path.suffix.lower() in SUFFIXES:
        return {"train": Files(path.parent, [path.name])}
    known = "an image, a zip, uncompressed tar, idx3-ubyte, npy or npz file"
    raise IhdmError(f"{path} is not {known}, nor a folder of images")


def _folder(path: Path) -> Splits:
    files = files_below(path)
    idx = [(named_split([name.split("/")[-1].split("-")[0]]), path / name) for name in files if _is_idx(name)]
    if len(dict(idx)) < len(idx):
        raise IhdmError(f"{path} holds several sets ({', '.join(str(file) for _, file in idx)}); name one of them")
    if idx:
        warn_of_left_out(path, files, _is_idx)
        return {split: idx_stack(file) for split, file in idx}
    tars = archives_by_split(path, files)
    if tars:
        warn_of_left_out(path, files, is_tar)
        return {split: _tars(paths) for split, paths in tars.items()}
    groups = grouped(files, path)
    warn_of_left_out(path, files, lambda name: split_of_image(name) is not None)
    return {split: Files(path, names) for split, names in groups.items()}


def warn_of_left_out(folder: Path, files: Sequence[str], taken: Callable[[str], bool]) -> None:
    """A folder is read as files of one kind: warn of files of other kinds, which may hold images too."""
    others = [name for name in files if not taken(name) and (split_of_image(name) or _is_set(name))]
    if others:
        some, read = first_few(others, between=", "), len(files) - len(others)
        print(f"warning: in {folder} only {read:,} files are read; images may also be in {some}", file=sys.stderr)


def archives_by_split(folder: Path, files: Sequence[str]) -> dict[str, list[Path]]:
    """The tar archives among a folder's files; a word such as train or val anywhere in a name gives the split."""
    tars: dict[str, list[Path]] = {}
    for name in files:
        if is_tar(name):
            *folders, file = name.split("/")
            tars.setdefault(named_split([*folders, *re.split("[-_.]", file)]), []).append(folder / name)
    return tars


def _zip(path: Path) -> Splits:
    archive = open_zip(path)
    groups = grouped(sorted(set(archive.namelist())), path)
    return {split: ZipMembers(path, archive, names) for split, names in groups.items()}


def _tars(paths: Sequence[Path]) -> TarMembers:
    """Several archives as one set, one after the other, as WebDataset does it."""
    shown = progress_bar(paths, desc="looking into archives", unit="archive", delay=2)
    return TarMembers([member for path in shown for part in _tar(path).values() for member in part.members])


def _tar(path: Path) -> dict[str, TarMembers]:
    """One archive. Only the places of the images in it are read."""
    with open_tar(path) as archive:
        entries = {entry.name: (entry.offset_data, entry.size) for entry in tar_files(archive)}
    groups = grouped(entries, path)
    return {split: TarMembers([(path, n, *entries[n]) for n in names]) for split, names in groups.items()}


def _is_idx(name: str) -> bool:
    return "images-idx3-ubyte" in name.rpartition("/")[2]


def _is_set(name: str) -> bool:
    """Whether a file may be a set of images by itself."""
    return _is_idx(name) or name.lower().endswith((".zip", ".tar", ".npy", ".npz"))


def _hub(source: str, name: str) -> Splits:
    return {split: Rows(name, rows, column) for split, (rows, column) in hub_splits(source, name).items()}


def hub_splits(source: str, name: str, **options: Any) -> dict[str, tuple[Any, str]]:
    """The splits of a set on the hub, each as its rows and the name of the image column. options: of load_dataset."""
    try:
        import datasets
    except ImportError as error:
        problem = needs(f"{name} on the Hugging Face hub", "hf", "datasets")
        raise UsageError(_not_here(source, problem)) from error
    try:
        loaded = datasets.load_dataset(name, **options)
    except Exception as error:  # the hub's client raises many kinds; each is a failed download
        problem = f"{name} could not be downloaded from the hub ({type(error).__name__}: {error})"
        raise IhdmError(_not_here(source, problem)) from error
    splits = {SPLIT_WORDS[split.lower()]: rows for split, rows in loaded.items() if split.lower() in SPLIT_WORDS}
    columns = {split: _image_column(name, rows) for split, rows in splits.items()}
    undecoded = datasets.Image(decode=False)
    return {s: (rows.cast_column(columns[s], undecoded), columns[s]) for s, rows in splits.items()}


def _not_here(source: str, problem: str) -> str:
    """The problem and, for a named set, why it was looked for on the hub."""
    if source not in NAMED:
        return problem
    folder = os.environ.get("IHDM_DATA")
    place = f"in $IHDM_DATA ({folder})" if folder else "on this machine ($IHDM_DATA is not set)"
    return (
        f"{source} was not found {place}: put {' or '.join(NAMED[source].files)} there, or give --data PATH. "
        f"Besides, {problem}"
    )


def _image_column(name: str, rows: Any) -> str:
    for column, feature in (rows.features or {}).items():
        if type(feature).__name__ == "Image":
            return str(column)
    raise IhdmError(f"{name} has no column of images, only {', '.join(rows.features or ['unnamed ones'])}")
