"""What `torch.save` wrote, read as data: nothing in the file is executed, and nothing grows larger than the file.

Such a file is a zip archive: `data.pkl` says what there is, the members `data/0`, `data/1`, ... hold the numbers. A
pickle is a program for a small machine, which may call any function that it names. Here a smaller machine reads it: it
builds dicts, lists, tuples, numbers and text, knows the few names of KNOWN, and calls nothing.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.errors import IhdmError

LARGEST_PICKLE = 2**22  # bytes of data.pkl, which is 0.5 MB for the largest networks of the paper
MOST_AXES, LARGEST = 8, 2**62  # axes of a tensor; limit of the numbers in its shape
LARGEST_KEY = 2**20  # limit of numbers as keys of a dict, such as those of an optimiser's parameters

STORAGES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch BoolStorage": torch.bool,
}
DICT = "collections OrderedDict"
TENSOR = "torch._utils _rebuild_tensor_v2"
PARAMETER = "torch._utils _rebuild_parameter"
NUMPY = {"numpy.core.multiarray scalar", "numpy._core.multiarray scalar", "numpy dtype", "_codecs encode"}
KNOWN = {*STORAGES, DICT, TENSOR, PARAMETER, *NUMPY}

VALUES = {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True)
class Name:
    """A function or class that the file names; it stays a name."""

    text: str


@dataclass(frozen=True)
class Ignored:
    """Something that is not needed, such as a learning rate stored as a NumPy number."""


@dataclass(frozen=True)
class Storage:
    """Numbers in a member of the archive."""

    archive: Archive
    member: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is still in its file."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.stride)
        possible = len(self.shape) == len(self.stride) <= MOST_AXES
        if not possible or not all(type(n) is int and 0 <= n < LARGEST for n in numbers):
            raise ValueError("a tensor has an impossible shape")
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride))
        if math.prod(self.shape) and last >= self.storage.count:
            raise ValueError("a tensor is larger than the numbers stored for it")

    def read(self) -> Tensor:
        return self.storage.archive.numbers(self.storage).as_strided(self.shape, self.stride, self.offset)


@dataclass
class Archive:
    """The zip archive, with the sizes that it declares checked against that of the file."""

    path: Path
    zip: zipfile.ZipFile
    root: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    _read: dict[str, bytearray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entries = self.zip.infolist()
        self.sizes = {entry.filename: entry.file_size for entry in entries}
        declared, there = sum(entry.file_size for entry in entries), self.path.stat().st_size
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if packed or declared > there or len(self.sizes) < len(entries):
            raise IhdmError(
                f"{self.path} is not a checkpoint that torch.save wrote: it declares {declared:,} bytes in "
                f"{len(entries):,} members, but has {there:,}" + " that are compressed" * packed
            )
        pickles = [name for name in self.sizes if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise IhdmError(
                f"{self.path} is a zip archive, but not a checkpoint that torch.save wrote: it has no data.pkl, or "
                f"several"
            )
        self.root = pickles[0].removesuffix("data.pkl")

    def content(self) -> Any:
        """What data.pkl describes."""
        if self.sizes[f"{self.root}data.pkl"] > LARGEST_PICKLE:
            raise IhdmError(f"{self.path} has far more in its data.pkl than a checkpoint needs")
        order = f"{self.root}byteorder"
        if order in self.sizes and self.zip.read(order) != b"little":
            raise IhdmError(f"{self.path} was written on a machine that orders bytes the other way")
        return _Machine(self).run(self.zip.read(f"{self.root}data.pkl"))

    def storage(self, kind: Name, key: str, count: int) -> Storage:
        member, dtype = f"{self.root}data/{key}", STORAGES[kind.text]
        if self.sizes[member] != count * dtype.itemsize:
            raise ValueError(f"{member} has {self.sizes[member]:,} bytes, not {count:,} numbers of {dtype}")
        return Storage(self, member, dtype, count)

    def numbers(self, storage: Storage) -> Tensor:
        """All numbers of a storage, in one dimension; zipfile verifies their checksum."""
        if not storage.count:
            return torch.empty(0, dtype=storage.dtype)
        try:
            if storage.member not in self._read:
                self._read[storage.member] = bytearray(self.zip.read(storage.member))
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise IhdmError(f"{self.path} is damaged ({error}); copy it again") from error
        return torch.frombuffer(self._read[storage.member], dtype=storage.dtype)


class _Machine:
    """Runs the part of a pickle's program that builds plain values, and refuses everything else."""

    def __init__(self, archive: Archive):
        self.archive = archive
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name == "STOP":
                return self.stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("data.pkl has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name in ("BINPUT", "LONG_BINPUT"):
            if argument > len(self.memo):
                raise ValueError("data.pkl numbers what it remembers in another way than torch.save")
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._popped(int(name[-1]))))
        elif name in ("APPEND", "APPENDS"):
            values = self._popped(1) if name == "APPEND" else self._since_mark()
            _of(list, stack[-1]).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._popped(2) if name == "SETITEM" else self._since_mark()
            if not all(map(_is_key, values[::2])):
                raise ValueError("a dict with keys that are neither text nor small numbers")
            _of(dict, stack[-1]).update(zip(values[::2], values[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(self._name(argument))
        elif name == "REDUCE":
            function, arguments = self._popped(2)
            stack.append(_called(_of(Name, function).text, _of(tuple, arguments)))
        elif name == "BUILD":
            self._popped(1)  # notes about a dict, or the rest of something ignored
        elif name == "BINPERSID":
            word, kind, key, _, count = _of(tuple, *self._popped(1))
            if word != "storage":
                raise ValueError("something else where numbers are expected")
            stack.append(self.archive.storage(_of(Name, kind), _of(str, key), _of(int, count)))
        elif name != "PROTO":
            raise ValueError(f"{name} in data.pkl, which torch.save does not write")

    def _name(self, text: str) -> Name:
        if text not in KNOWN:
            raise IhdmError(
                f"{self.archive.path} asks for {text[:80].replace(' ', '.')!r}, which weights do not need; "
                "nothing in it was executed"
            )
        return Name(text)

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("data.pkl takes more values than it has made")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values


def _called(function: str, arguments: tuple[Any, ...]) -> Any:
    """What stands for the result of a call."""
    if function == DICT and not arguments:
        return {}
    if function == TENSOR:
        storage, offset, shape, stride = arguments[:4]
        return StoredTensor(_of(Storage, storage), offset, _of(tuple, shape), _of(tuple, stride))
    if function == PARAMETER:
        return _of(StoredTensor, arguments[0])
    if function in NUMPY:
        return Ignored()
    raise ValueError(f"{function.replace(' ', '.')} is called, which torch.save does not do")


def _is_key(key: Any) -> bool:
    """Whether looking it up is quick: nested tuples, and numbers chosen to collide, would take for ever."""
    return type(key) is str or (type(key) is int and 0 <= key < LARGEST_KEY)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {type(value).__name__} where a {kind.__name__} is expected")
    return value


def read_archive(path: Path) -> Any:
    """The dicts, lists and numbers that `torch.save` wrote to a file, with a `StoredTensor` for each tensor."""
    if not path.is_file():
        raise IhdmError(f"there is no file {path}" if not path.exists() else f"{path} is a folder, not a checkpoint")
    try:
        return Archive(path, zipfile.ZipFile(path)).content()
    except zipfile.BadZipFile as error:
        raise IhdmError(
            f"{path} is not a checkpoint of torch.save, from torch 1.6 on, or it is cut off or damaged ({error})"
        ) from error
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        raise IhdmError(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error})") from error
