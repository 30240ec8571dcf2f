"""Files and folders that are either whole or not there, whenever the process dies."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ihdm.errors import IhdmError

if TYPE_CHECKING:
    from torch import Tensor

FULL = {errno.ENOSPC, errno.EDQUOT}  # errors of a full disk or quota


def expanded(path: str | Path) -> Path:
    """A path that a user typed, with ~ replaced by the home folder, if there is one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user, or no known home folder
        return Path(path)


def real(path: Path) -> Path:
    """The absolute path, with links followed; links in a circle, as far as they can be."""
    return Path(os.path.realpath(path))


def size_words(n: float) -> str:
    """A number of bytes, in a suitable unit."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


def identity(folder: Path) -> tuple[int, int] | None:
    """Which folder is there: another one once it has been replaced, none in between."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of `path` once it is complete and on the disk.

    A link is followed. Whatever else the old folder holds, such as a user's own files, goes into the new one.
    """
    path = real(path)
    if path.exists() and not path.is_dir():
        raise IhdmError(f"{path} is a file where a folder is to be written; move it away")
    fresh, stale = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    if stale.exists() and not path.exists():  # the process died between the two renames below
        stale.rename(path)
    for leftover in (fresh, stale):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if path.exists():
            _carry_over(path, fresh)
        for file in fresh.rglob("*"):
            if not file.is_symlink():
                _flush(file)
        _flush(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)  # so that a full disk has room again
        raise
    if path.exists():
        path.rename(stale)
    fresh.rename(path)
    _flush(path.parent)
    shutil.rmtree(stale, ignore_errors=True)


def replaced_text(path: Path, text: str) -> None:
    """Write a text file; whenever the process dies, the old or the new one is there, whole."""
    replaced_file(path, text.encode("utf-8", "surrogateescape"))  # for names that are not UTF-8


def replaced_file(path: Path, content: bytes) -> None:
    """Write a file; whenever the process dies, the old or the new one is there, whole, with the same permissions."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, fresh)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def kept_file(path: Path) -> Iterator[Path]:
    """A file to write to a cache, which gets its name once it is complete; several processes may write the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def seal(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""
    digest, size = hashlib.blake2b(digest_size=16), 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "blake2b": digest.hexdigest()}


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, even if its name is not UTF-8, which safetensors cannot open."""
    from safetensors.torch import load, load_file

    try:
        str(path).encode()
    except UnicodeEncodeError:
        return load(path.read_bytes())
    return load_file(path)


def _carry_over(old: Path, new: Path) -> None:
    """Put whatever has no namesake in the new folder there too; nothing in the old one changes."""
    for entry in old.iterdir():
        target = new / entry.name
        if os.path.lexists(target):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, target, symlinks=True, copy_function=_linked)
        else:
            _linked(entry, target)


def _linked(source: str | Path, target: str | Path) -> None:
    """Give a file a second name (a hard link) or, where the file system has no such names, copy it."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot do this, and need not
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
