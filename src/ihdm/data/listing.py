"""The files below a folder, in order; the list of a large folder is remembered until a folder in it changes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ihdm.cache import cache_folder
from ihdm.disk import kept_file
from ihdm.errors import first_few

LARGE = 20_000  # files from which on a listing is remembered
SETTLED = 60  # seconds without a change before a listing is trusted: a clock's tick may hide a more recent change
MOUNTS = Path("/proc/self/mountinfo")  # on Linux; elsewhere the kind of a file system is not known
Times = list[int]  # of a folder: when its entries and its attributes changed last, its number and its device's


@dataclass
class Listing:
    """Files, by paths relative to the folder with "/" as separator, sorted folder by folder; and the folders' times.

    doubtful: something may change without a trace in these times. links: those that are left out.
    """

    files: list[str] = field(default_factory=list)
    folders: dict[str, Times] = field(default_factory=dict)
    doubtful: bool = False
    links: list[str] = field(default_factory=list)


def files_below(root: Path) -> list[str]:
    """The files below a folder, with links to files; links to folders are not followed."""
    index = _index_path(root)
    remembered = _remembered(index, root)
    if remembered is not None:
        return remembered
    now, listing = time.time(), Listing()
    _list(root, "", listing)
    if listing.links:
        some = first_few(listing.links, between=", ")
        print(f"warning: links in {root} that lead to folders, or to nothing, are left out: {some}", file=sys.stderr)
    if len(listing.files) >= LARGE and _trustworthy(listing, now):
        _remember(index, root, listing)
    return listing.files


def _list(root: Path, prefix: str, listing: Listing) -> None:
    folder = os.path.join(root, prefix)
    try:
        listing.folders[prefix] = _times(folder)
        with os.scandir(folder) as found:
            entries = sorted((entry.name, _kind(entry)) for entry in found)
    except OSError as error:
        print(f"warning: {folder} cannot be listed ({error}) and is left out", file=sys.stderr)
        listing.doubtful = True
        return
    for name, kind in entries:
        if kind == "folder":
            _list(root, f"{prefix}{name}/", listing)
        elif kind == "file" or (kind == "link" and os.path.isfile(os.path.join(folder, name))):
            listing.files.append(prefix + name)
        elif kind == "link" and "/." not in f"/{prefix}{name}":  # hidden files are never wanted
            listing.links.append(prefix + name)
        listing.doubtful |= kind == "link"  # its target may change


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_file(follow_symlinks=False):
        return "file"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "link" if entry.is_symlink() else "other"


def _times(folder: str | Path) -> Times:
    found = os.stat(folder)
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _trustworthy(listing: Listing, now: float) -> bool:
    """Whether any later change will show in the folders' times."""
    last = max(max(times[:2]) for times in listing.folders.values()) / 1e9
    devices = {times[3] for times in listing.folders.values()}
    return not listing.doubtful and last < now - SETTLED and len(devices) == 1 and not _in_user_space(devices.pop())


def _in_user_space(device: int) -> bool:
    """Whether a device is a FUSE file system: some of those, for object stores, never change a folder's times."""
    number = f"{os.major(device)}:{os.minor(device)}" if MOUNTS.exists() else ""
    mounts = [line.split() for line in MOUNTS.read_text().splitlines()] if number else []
    return any(mount[2] == number and mount[mount.index("-") + 1].startswith("fuse") for mount in mounts)


def _index_path(root: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(root.resolve()), digest_size=8).hexdigest()
    return cache_folder() / "listings" / f"{name}.json"


def _remember(index: Path, root: Path, listing: Listing) -> None:
    content = json.dumps([str(root.resolve()), listing.folders, listing.files])
    try:
        with kept_file(index) as unfinished:
            unfinished.write_text(f"{_checksum(content)}\n{content}", encoding="ascii")
    except OSError as error:
        print(f"warning: the list of files in {root} cannot be saved ({error})", file=sys.stderr)


def _remembered(index: Path, root: Path) -> list[str] | None:
    """The files as listed before; None if something has changed since, or the index is missing or damaged."""
    try:
        checksum, content = index.read_text(encoding="ascii").split("\n", 1)
        if checksum != _checksum(content):
            return None
        place, folders, files = json.loads(content)
        unchanged = all(_times(os.path.join(root, prefix)) == times for prefix, times in folders.items())
    except (OSError, ValueError):
        return None
    return files if unchanged and place == str(root.resolve()) else None


def _checksum(content: str) -> str:
    return hashlib.blake2b(content.encode("ascii"), digest_size=16).hexdigest()
