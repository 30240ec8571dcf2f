"""Arrays in files: NumPy's npy and npz, and MNIST's idx format."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ihdm.data.pictures import Array, Stack
from ihdm.data.splits import SPLIT_WORDS, split_word
from ihdm.errors import IhdmError

USUAL_CHANNELS = 4  # images rarely have more
LABEL_WORDS = {"y", "label", "labels", "target", "targets"}  # in the names of arrays that hold labels


def idx_stack(path: Path) -> Stack:
    """The format of MNIST: a magic number, three sizes, then pixels; gzipped or not."""
    return Stack(str(path), _idx_bytes(path, 3, "images")[..., None], partial(_idx_labels, path))


def _idx_labels(path: Path) -> Array | list[int]:
    """The labels of the images in a file. They lie in a file beside it, gzipped or not."""
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


def image_stacks(path: Path) -> dict[str, Stack]:
    """The images of an npy or npz file, by split."""
    return stacks_by_split(path, partial(_pixels, path=path))


def stacks_by_split(path: Path, checked: Callable[[Any], Any], stack: Callable[..., Any] = Stack) -> dict[str, Any]:
    """A stack for each split of an npy or npz file. checked: takes an array; gives it in the form that a stack has."""
    arrays, labels = _arrays_by_split(path)
    return {split: stack(str(path), checked(array), partial(labels.get, split, ())) for split, array in arrays.items()}


def _arrays_by_split(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of an npy or npz file by split, and their labels by split, if there are any.

    If there are several held-out arrays, such as test and val, the one that comes first in `SPLIT_WORDS` is taken.
    """
    arrays = numpy_file(path)
    arrays = arrays if isinstance(arrays, dict) else {"train": arrays}
    words = {name: name.lower().split("_") for name in arrays if len(arrays) > 1}
    beside = {split_word(words[name]): arrays.pop(name) for name in words if LABEL_WORDS & set(words[name])}
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
    """The array of an npy file, or the arrays of an npz file by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except Exception as error:  # damaged files make NumPy and zipfile raise many kinds
        raise IhdmError(f"{path} cannot be read as a NumPy array ({error})") from error


def _pixels(array: Any, path: Path) -> Array:
    """An array of images as uint8 (N, H, W, C). Floating point values must lie in [0, 1]."""
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise IhdmError(f"{path} has shape {array.shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W)")
    if array.ndim == 3 and array.shape[-1] <= USUAL_CHANNELS:
        raise IhdmError(
            f"{path} has shape {array.shape}, which may be one colour image, or many that are {array.shape[-1]} "
            f"pixels wide; save it as (N, H, W, C), with N = 1 or C = 1"
        )
    array = array[..., None] if array.ndim == 3 else _channels_last(array, path)
    if np.issubdtype(array.dtype, np.floating) and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.round(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        found = f"{array.dtype} values from {array.min():g} to {array.max():g}"
        raise IhdmError(f"{path} holds {found}; expected uint8, or floating point in [0, 1]")
    return array


def _channels_last(array: Any, path: Path) -> Any:
    """(N, H, W, C) from (N, H, W, C) or (N, C, H, W), as there are fewer channels than pixels.

    Print what was found if that is not obvious: if both may be channels, or neither.
    """
    first, last = array.shape[1], array.shape[-1]
    if first == last:
        raise IhdmError(
            f"{path} has shape {array.shape}, which may be (N, H, W, C) or (N, C, H, W); expected axis 1 or axis 3, "
            f"whichever holds the channels, to be shorter than the other"
        )
    shape, array = array.shape, np.moveaxis(array, 1, -1) if first < last else array
    if (first <= USUAL_CHANNELS) == (last <= USUAL_CHANNELS):
        n, height, width, channels = array.shape
        print(f"{path} of shape {shape} is read as {n:,} images of {height}x{width} with {channels} channels")
    return array
