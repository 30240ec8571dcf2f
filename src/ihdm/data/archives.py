"""Zip and tar archives: which files are in them, and where."""

from __future__ import annotations

import contextlib
import copy
import posixpath
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ihdm.data.splits import split_of_image
from ihdm.errors import IhdmError

FOR_WINDOWS = 0  # in zip archives: the system that wrote an entry
MOST_LINKS = 40  # links that are followed from one to the next; Linux has the same limit
Place = tuple[int, int]  # of a file in an archive: where it begins, and its size


def open_zip(path: Path) -> zipfile.ZipFile:
    """A zip archive. Some Windows programs write backslashes between folders, which become slashes here."""
    try:
        archive = zipfile.ZipFile(path)
        for entry in archive.infolist():
            if entry.create_system == FOR_WINDOWS and "\\" in entry.filename:
                entry.filename = entry.filename.replace("\\", "/")
                archive.NameToInfo[entry.filename] = entry
        return archive
    except Exception as error:  # damaged archives make zipfile raise many kinds
        raise IhdmError(f"{path} cannot be read as a zip archive ({error})") from error


@contextlib.contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except Exception as error:  # damaged archives make tarfile raise many kinds
        raise IhdmError(f"{path} cannot be read as an uncompressed tar archive ({error})") from error


def tar_files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files in an archive. It must end in zeros, which is checked because Python also stops at a damaged header.

    A link to a file in the archive stands for that file. An image that is a link to anything else is given as an empty
    file, so that it counts as an unreadable image.
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
    """Where each file in an archive lies, and which name each link leads to."""
    with tarfile.open(path, "r:") as archive:
        found = {entry.name: _leads_to(entry) or (entry.offset_data, entry.size) for entry in archive if _holds(entry)}
    return {posixpath.normpath(name): place for name, place in found.items()}


def _holds(entry: tarfile.TarInfo) -> bool:
    return (entry.isreg() and not entry.issparse()) or entry.islnk() or entry.issym()


def _leads_to(entry: tarfile.TarInfo) -> str:
    """The name that a link leads to: in hard links a name in the archive, in others one relative to their folder."""
    folder = posixpath.dirname(entry.name) if entry.issym() else ""
    return posixpath.normpath(posixpath.join(folder, entry.linkname)) if entry.linkname else ""


def _followed(link: tarfile.TarInfo, places: Mapping[str, Place | str]) -> Iterator[tarfile.TarInfo]:
    """The file that a link leads to, under the link's name."""
    end = _end(_leads_to(link), places)
    if end or split_of_image(link.name):
        file = copy.copy(link)
        file.type, (file.offset_data, file.size) = tarfile.REGTYPE, end or (0, 0)
        yield file


def _end(name: str, places: Mapping[str, Place | str]) -> Place | None:
    """Where a named file lies; links on the way to it, to files and to folders, are followed."""
    for _ in range(MOST_LINKS):
        heads = [name[:i] for i, letter in enumerate(name) if letter == "/"] + [name]
        link = next((head for head in heads if isinstance(places.get(head), str)), None)
        if link is None:
            place = places.get(name)
            return place if isinstance(place, tuple) else None
        name = posixpath.normpath(f"{places[link]}{name[len(link) :]}")
    return None


def is_tar(name: str) -> bool:
    return name.lower().endswith(".tar")
