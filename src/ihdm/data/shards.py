"""Sets that are read in sequence, shard by shard: tar archives, as in WebDataset, and sets on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from ihdm.data.archives import is_tar, open_tar, tar_files
from ihdm.data.images import Unreadable, load_picture
from ihdm.data.listing import files_below
from ihdm.data.pictures import open_member, open_row
from ihdm.data.sources import archives_by_split, hub_splits, locate, warn_of_left_out
from ihdm.data.splits import split_of_image
from ihdm.errors import IhdmError, UsageError

FEW = 16  # a set on the hub with fewer shards is divided further, by the row groups of its Parquet files
AT_ONCE = 64  # rows that the hub's library hands over at a time


class Found(NamedTuple):
    """An image in a stream, not yet decoded: its name, its shard, its number there, and how to read it."""

    name: str
    shard: int
    number: int
    read: Callable[[], Image.Image | None]


def reads(found: Found) -> bool:
    """Whether the image can be read."""
    try:
        load_picture(found.name, found.read)
    except Unreadable:
        return False
    return True


class FoundPictures:
    """Some images of a stream, by number."""

    def __init__(self, found: Sequence[Found]):
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    def name(self, i: int) -> str:
        return self.found[i].name

    def read(self, i: int) -> Image.Image | None:
        return self.found[i].read()


class Shards(Protocol):
    """Parts of a set, each read in sequence to its end, from its beginning or from a later place.

    readers: how many threads should read at the same time; many if shards are slow to answer.
    """

    readers: int

    def __len__(self) -> int: ...

    def images(self, shard: int, start: int = 0, step: int = 1) -> Iterator[Found]:
        """Every step-th image of a shard, from the one numbered `start` on."""


class TarShards:
    """Uncompressed tar archives; if a split is given, only the images that their folders assign to it."""

    readers = 2

    def __init__(self, paths: Sequence[Path], split: str | None = None):
        self.paths, self.splits = paths, {split} if split else {"train", "test"}

    def __len__(self) -> int:
        return len(self.paths)

    def images(self, shard: int, start: int = 0, step: int = 1) -> Iterator[Found]:
        path, number = self.paths[shard], 0
        with open_tar(path) as archive:
            for entry in tar_files(archive):
                archive.members.clear()  # type: ignore[attr-defined]  # or it would remember all entries
                if split_of_image(entry.name) not in self.splits:
                    continue
                if number >= start and (number - start) % step == 0:
                    content = archive.extractfile(entry).read()  # type: ignore[union-attr]
                    yield Found(f"{path}/{entry.name}", shard, number, partial(open_member, content))
                number += 1


class HubShards:
    """One image column of a set on the Hugging Face hub, by the files it has there, or by smaller parts."""

    readers = 16

    def __init__(self, origin: str, rows: Any, column: str):
        self.origin, self.column = origin, column
        rows = rows.select_columns([column])
        self.rows = rows.reshard() if rows.num_shards < FEW else rows

    def __len__(self) -> int:
        return int(self.rows.num_shards)

    def images(self, shard: int, start: int = 0, step: int = 1) -> Iterator[Found]:
        try:
            rows = self.rows.shard(len(self), shard)
            batches = (rows.skip(start) if start else rows).iter(AT_ONCE)
            numbered = enumerate((row for batch in batches for row in batch[self.column]), start)
            for number, row in islice(numbered, 0, None, step):
                name = f"{self.origin}, shard {shard}, image {number}"
                yield Found(name, shard, number, partial(open_row, row))
        except Exception as error:  # the hub's client raises many kinds, after retrying
            raise IhdmError(
                f"the stream of {self.origin} broke off in shard {shard} ({type(error).__name__}: {error})"
            ) from error


class Parts:
    """Shards divided into `count` parts each, of every count-th image, where there are too few shards."""

    def __init__(self, shards: Shards, count: int):
        self.shards, self.count, self.readers = shards, count, shards.readers

    def __len__(self) -> int:
        return len(self.shards) * self.count

    def images(self, shard: int, start: int = 0, step: int = 1) -> Iterator[Found]:
        whole, part = divmod(shard, self.count)
        return self.shards.images(whole, start * self.count + part, step * self.count)


def open_shards(source: str) -> Mapping[str, Shards]:
    """The splits of a source, to be read in sequence."""
    found = locate(source)
    if isinstance(found, str):
        return _on_the_hub(source, found)
    if found.is_dir() and (archives := archives_by_split(found, files := files_below(found))):
        warn_of_left_out(found, files, is_tar)
        return {split: TarShards(paths) for split, paths in archives.items()}
    if found.is_file() and found.suffix.lower() == ".tar":
        return {split: TarShards([found], split) for split in ("train", "test")}
    raise UsageError(
        f"{source} cannot be read as a stream: data.stream=true is for tar archives, folders of them, and sets on the "
        f"hub (hf:NAME)"
    )


def _on_the_hub(source: str, name: str) -> Mapping[str, Shards]:
    splits = hub_splits(source, name, streaming=True)
    try:
        return {split: HubShards(name, rows, column) for split, (rows, column) in splits.items()}
    except Exception as error:  # this looks into each file, and any may be missing or damaged
        raise IhdmError(f"the stream of {name} cannot be opened ({type(error).__name__}: {error})") from error
