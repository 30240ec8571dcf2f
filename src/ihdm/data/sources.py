"""From the word a user types to pictures: named sets, folders, zips, tars, idx and npy/npz files, the hub."""

from __future__ import annotations

import contextlib
import copy
import gzip
import math
import os
import posixpath
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ihdm.data.images import NAMED_MOST, SUFFIXES, Array, Files, Pictures, Rows, Stack, TarMembers, ZipMembers
from ihdm.data.listing import files_below
from ihdm.disk import expanded, real
from ihdm.errors import IhdmError, UsageError, unknown
from ihdm.extras import needs
from ihdm.progress import progress_bar

Splits = Mapping[str, Pictures]  # "train", and "test" where there is one

USUAL_CHANNELS = 4  # at most
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "t10k": "test",
    "val": "test",
    "valid": "test",
    "validation": "test",
}
MADE_HERE = ("digits", "orbitals")  # sets that come with ihdm
FOR_WINDOWS = 0  # in zip archives
MOST_LINKS = 40  # that are followed from one to the next, as by Linux
Place = tuple[int, int]  # of a file in an archive: where it begins, and its size
LABEL_WORDS = {"y", "label", "labels", "target", "targets"}  # in the names of arrays that hold labels


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
    if source == "digits":
        with resources.as_file(resources.files("ihdm.data") / "digits-idx3-ubyte.gz") as path:
            return {"train": _idx(path)}
    if source == "orbitals":
        raise UsageError("orbitals are volumes: take the preset orbitals, or add --set data.kind=volumes")
    found = locate(source)
    return _path(found) if isinstance(found, Path) else _hub(source, found)


def locate(source: str) -> Path | str:
    """Where a source is: a path, or else its name on the hub."""
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
    """The source, to be found again from any folder: a path made absolute, a name as it is."""
    named = source in ("", *MADE_HERE, *NAMED) or source.startswith("hf:")
    path = expanded(source)
    return str(real(path)) if not named and path.exists() else source


def _path(path: Path) -> Splits:
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() == ".zip":
        return _zip(path)
    if path.suffix.lower() in (".npy", ".npz"):
        return _numpy(path)
    if path.suffix.lower() == ".tar":
        return _tar(path)
    if "idx3-ubyte" in path.name:
        return {"train": _idx(path)}
    if path.suffix.lower() in SUFFIXES:
        return {"train": Files(path.parent, [path.name])}
    raise IhdmError(f"{path} is not an image, a zip, tar, idx3-ubyte, npy or npz file, nor a folder of images")


def _folder(path: Path) -> Splits:
    files = files_below(path)
    idx = [(_split_by([name.split("/")[-1].split("-")[0]]), path / name) for name in files if _is_idx(name)]
    if len(dict(idx)) < len(idx):
        raise IhdmError(f"{path} holds several sets ({', '.join(str(file) for _, file in idx)}); name one of them")
    if idx:
        warn_of_left_out(path, files, _is_idx)
        return {split: _idx(file) for split, file in idx}
    tars = archives_by_split(path, files)
    if tars:
        warn_of_left_out(path, files, is_tar)
        return {split: _tars(paths) for split, paths in tars.items()}
    groups = grouped(files, path)
    warn_of_left_out(path, files, lambda name: split_of_image(name) is not None)
    return {split: Files(path, names) for split, names in groups.items()}


def warn_of_left_out(folder: Path, files: Sequence[str], taken: Callable[[str], bool]) -> None:
    """A folder is read as files of one kind; name those of other kinds that may hold images too."""
    others = [name for name in files if not taken(name) and (split_of_image(name) or _is_set(name))]
    if others:
        some = ", ".join(others[:NAMED_MOST]) + " ..." * (len(others) > NAMED_MOST)
        print(
            f"warning: {folder} is read by its {len(files) - len(others):,} other files; not by {some} "
            f"({len(others):,} in all)",
            file=sys.stderr,
        )


def archives_by_split(folder: Path, files: Sequence[str]) -> dict[str, list[Path]]:
    """The tar archives among a folder's files; a word such as train or val, anywhere in a name, says the split."""
    tars: dict[str, list[Path]] = {}
    for name in files:
        if is_tar(name):
            *folders, file = name.split("/")
            tars.setdefault(_split_by([*folders, *re.split("[-_.]", file)]), []).append(folder / name)
    return tars


def _zip(path: Path) -> Splits:
    archive = open_zip(path)
    groups = grouped(sorted(set(archive.namelist())), path)
    return {split: ZipMembers(path, archive, names) for split, names in groups.items()}


def open_zip(path: Path) -> zipfile.ZipFile:
    """An archive; some programs for Windows wrote folders with backslashes, which become slashes here."""
    try:
        archive = zipfile.ZipFile(path)
        for entry in archive.infolist():
            if entry.create_system == FOR_WINDOWS and "\\" in entry.filename:
                entry.filename = entry.filename.replace("\\", "/")
                archive.NameToInfo[entry.filename] = entry
        return archive
    except Exception as error:  # damaged archives make zipfile raise many kinds
        raise IhdmError(f"{path} cannot be read as a zip archive ({error})") from error


def _tars(paths: Sequence[Path]) -> TarMembers:
    """Archives as WebDataset has them, one after the other."""
    shown = progress_bar(paths, desc="looking into archives", unit="archive", delay=2)
    return TarMembers([member for path in shown for part in _tar(path).values() for member in part.members])


def _tar(path: Path) -> dict[str, TarMembers]:
    """An archive; only where each image lies in it is read."""
    with open_tar(path) as archive:
        entries = {entry.name: (entry.offset_data, entry.size) for entry in tar_files(archive)}
    groups = grouped(entries, path)
    return {split: TarMembers([(path, n, *entries[n]) for n in names]) for split, names in groups.items()}


@contextlib.contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except Exception as error:  # damaged archives make tarfile raise many kinds
        raise IhdmError(f"{path} cannot be read as a tar archive that is not compressed ({error})") from error


def tar_files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files in an archive, up to the zeros at its end; for Python a damaged header is as good an end as those.

    A link to one of them is like that one. An image that is a link to something else is empty, which is no image.
    """
    places: dict[str, Place | str] = {}
    for entry in archive:
        if entry.isreg() and entry.issparse() and split_of_image(entry.name):
            raise tarfile.ReadError(f"{entry.name} is stored with holes; make the archive without --sparse")
        if entry.islnk() or entry.issym():
            places = places or _places(Path(archive.name))  # type: ignore[arg-type]
            yield from _followed(entry, places)
        elif entry.isreg():
            yield entry
    file = archive.fileobj
    assert file is not None
    file.seek(archive.offset)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE or block.strip(b"\0"):
        raise tarfile.ReadError(f"it is cut off or damaged at byte {archive.offset:,}")


def _places(path: Path) -> dict[str, Place | str]:
    """Where each file in an archive lies, and the name that each link leads to."""
    with tarfile.open(path, "r:") as archive:
        found = {entry.name: _leads_to(entry) or (entry.offset_data, entry.size) for entry in archive if _holds(entry)}
    return {posixpath.normpath(name): place for name, place in found.items()}


def _holds(entry: tarfile.TarInfo) -> bool:
    return (entry.isreg() and not entry.issparse()) or entry.islnk() or entry.issym()


def _leads_to(entry: tarfile.TarInfo) -> str:
    """The name of what a link is to: a hard link has it as it is in the archive, others as seen from their folder."""
    folder = posixpath.dirname(entry.name) if entry.issym() else ""
    return posixpath.normpath(posixpath.join(folder, entry.linkname)) if entry.linkname else ""


def _followed(link: tarfile.TarInfo, places: Mapping[str, Place | str]) -> Iterator[tarfile.TarInfo]:
    """The file that a link is to, under the link's name."""
    end = _end(_leads_to(link), places)
    if end or split_of_image(link.name):
        file = copy.copy(link)
        file.type, (file.offset_data, file.size) = tarfile.REGTYPE, end or (0, 0)
        yield file


def _end(name: str, places: Mapping[str, Place | str]) -> Place | None:
    """Where the file of a name lies; links on the way to it, of files and of folders, are followed."""
    for _ in range(MOST_LINKS):
        heads = [name[:i] for i, letter in enumerate(name) if letter == "/"] + [name]
        link = next((head for head in heads if isinstance(places.get(head), str)), None)
        if link is None:
            place = places.get(name)
            return place if isinstance(place, tuple) else None
        name = posixpath.normpath(f"{places[link]}{name[len(link) :]}")
    return None


def grouped(
    names: Collection[str], origin: Path, suffixes: Collection[str] = SUFFIXES, what: str = "images"
) -> dict[str, list[str]]:
    """Files by split; what they are is for the message if there are none."""
    groups = by_split(names, suffixes)
    if not groups:
        found = f"only files such as {next(iter(names))}" if names else "it is empty, or may not be read"
        raise IhdmError(f"{origin} holds no {what} ({found}); {what} end in {', '.join(sorted(suffixes))}")
    return groups


def by_split(names: Iterable[str], suffixes: Collection[str]) -> dict[str, list[str]]:
    """Files of some suffixes by split: a folder named train, test or val, first or second in the path, says which."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if split := _split_of_file(name, suffixes):
            groups.setdefault(split, []).append(name)
    return groups


def split_of_image(name: str) -> str | None:
    """The split of a file by the folders in its name; None if it is hidden or no image."""
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
    return _split_by(parts[:2])


def _split_by(words: Iterable[str]) -> str:
    """The split that the first word which names one says; without any, train."""
    return SPLIT_WORDS[_split_word(words)]


def _split_word(words: Iterable[str]) -> str:
    return next((word.lower() for word in words if word.lower() in SPLIT_WORDS), "train")


def _is_idx(name: str) -> bool:
    return "images-idx3-ubyte" in name.rpartition("/")[2]


def is_tar(name: str) -> bool:
    return name.lower().endswith(".tar")


def _is_set(name: str) -> bool:
    """Whether a file by itself may be a set of images."""
    return _is_idx(name) or name.lower().endswith((".zip", ".tar", ".npy", ".npz"))


def _idx(path: Path) -> Stack:
    """The format of MNIST: a magic number, three sizes, then pixels; gzipped or not."""
    return Stack(str(path), _idx_bytes(path, 3, "images")[..., None], partial(_idx_labels, path))


def _idx_labels(path: Path) -> Array | list[int]:
    """Those of the images in a file: they lie beside it, gzipped or not."""
    name = path.name.replace("images-idx3", "labels-idx1").replace("idx3", "idx1").removesuffix(".gz")
    found = (file for file in (path.with_name(f"{name}.gz"), path.with_name(name)) if file.exists())
    return next((_idx_bytes(file, 1, "labels") for file in found), [])


def _idx_bytes(path: Path, dimensions: int, what: str) -> Array:
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise IhdmError(f"{path} cannot be read ({error})") from error
    start = 4 + 4 * dimensions
    magic, *shape = np.frombuffer(content[:start], ">u4").tolist() if len(content) >= start else [0]
    if magic != 0x800 + dimensions or 0 in shape or len(content) != start + math.prod(shape):
        raise IhdmError(f"{path} is not a complete idx{dimensions}-ubyte file of {what}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _numpy(path: Path) -> Splits:
    arrays, labels = arrays_by_split(path)
    return {
        split: Stack(str(path), _pixels(array, path), partial(labels.get, split, ())) for split, array in arrays.items()
    }


def arrays_by_split(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of an npy or npz file by split, and those of their labels, where there are some.

    Of several held-out arrays, such as test and val, the one that comes first in `SPLIT_WORDS` is taken.
    """
    arrays = numpy_file(path)
    arrays = arrays if isinstance(arrays, dict) else {"train": arrays}
    words = {name: name.lower().split("_") for name in arrays if len(arrays) > 1}
    beside = {_split_word(words[name]): arrays.pop(name) for name in words if LABEL_WORDS & set(words[name])}
    named = {name.lower().removeprefix("x_"): array for name, array in arrays.items()}
    taken = {split: word for word, split in reversed(SPLIT_WORDS.items()) if word in named}
    chosen = {split: named[word] for split, word in taken.items()}
    labels = {SPLIT_WORDS[word]: array for word, array in beside.items() if word not in named or word in taken.values()}
    if not chosen and len(arrays) == 1:
        chosen = {"train": next(iter(arrays.values()))}
    if "train" not in chosen:
        raise IhdmError(f"{path} holds the arrays {', '.join(arrays)}; expected one, or train (and test)")
    return chosen, labels


def numpy_file(path: Path) -> Any:
    """The array of an npy file, or those of an npz file by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except Exception as error:  # damaged files make NumPy and zipfile raise many kinds
        raise IhdmError(f"{path} cannot be read as a NumPy array ({error})") from error


def _pixels(array: Any, path: Path) -> Array:
    """An array of images as uint8 (N, H, W, C); floats are taken as [0, 1]."""
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise IhdmError(f"{path} has shape {array.shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W)")
    if array.ndim == 3 and array.shape[-1] <= USUAL_CHANNELS:
        raise IhdmError(
            f"{path} has shape {array.shape}, which may be one image in colour, or many that are {array.shape[-1]} "
            f"pixels wide; save it as (N, H, W, C), with N or C = 1"
        )
    array = array[..., None] if array.ndim == 3 else _channels_last(array, path)
    if np.issubdtype(array.dtype, np.floating) and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.round(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        found = f"{array.dtype} values from {array.min():g} to {array.max():g}"
        raise IhdmError(f"{path} holds {found}; expected uint8, or floating point in [0, 1]")
    return array


def _channels_last(array: Any, path: Path) -> Any:
    """(N, H, W, C) from that or (N, C, H, W): channels are fewer than pixels. If they are many, say what was found."""
    first, last = array.shape[1], array.shape[-1]
    if first == last:
        raise IhdmError(
            f"{path} has shape {array.shape}, which may be (N, H, W, C) or (N, C, H, W): one of the axes 1 and 3 holds "
            f"the channels, and is shorter than the other"
        )
    shape, array = array.shape, np.moveaxis(array, 1, -1) if first < last else array
    if (first <= USUAL_CHANNELS) == (last <= USUAL_CHANNELS):
        n, height, width, channels = array.shape
        print(f"{path}, of shape {shape}, is read as {n:,} images of {height}x{width} with {channels} channels")
    return array


def _hub(source: str, name: str) -> Splits:
    return {split: Rows(name, rows, column) for split, (rows, column) in hub_splits(source, name).items()}


def hub_splits(source: str, name: str, **options: Any) -> dict[str, tuple[Any, str]]:
    """The splits of a set on the hub, each as its rows and the column with the images; `options` of load_dataset."""
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
    """The problem; of a named set also why it was sought on the hub."""
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
