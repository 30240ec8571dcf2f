"""How many images a second can be decoded, from a zip archive or a stream, and what a checkpoint costs.

python benchmarks/data.py [--count 512]
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import io
import os
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import print_table
from PIL import Image

from ihdm import checkpoint
from ihdm.config import DataConfig, load_config
from ihdm.data import load_images
from ihdm.data.images import Decoder
from ihdm.data.sources import open_source
from ihdm.data.streamed import StreamedBatches
from ihdm.engine import choose_device
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.optimisation import FlatAdam

FORMATS = {"png": {}, "jpg": {"quality": 90}, "webp": {"quality": 90}}
SIZES = (32, 256)
SHARDS, STEPS = 16, 64  # of a stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=512)
    count = parser.parse_args().count
    where = f"{os.cpu_count()} cores, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    with tempfile.TemporaryDirectory() as folder:
        rows = [decoding(Path(folder), size, suffix, count) for size in SIZES for suffix in FORMATS]
        columns = ["size", "format", *(f"images/s, {n} threads" for n in threads())]
        print_table(f"Decoding images. {where}", columns, rows)
        rows = [streaming(Path(folder), size, kind, count) for size in SIZES for kind in shard_kinds()]
        columns = ["size", "shards", *(f"images/s, {n} processes" for n in processes())]
        print_table(f"Streaming png images; 0 processes: threads. {where}", columns, rows)
        print_table(f"A checkpoint of cifar10. {where}", ["what", "seconds"], checkpointing(Path(folder)))


def threads() -> list[int]:
    return sorted({1, 2, 4, os.cpu_count() or 1})


def processes() -> list[int]:
    return [0, *(n for n in (1, 2, 4, 8) if n <= (os.cpu_count() or 1))]


def shard_kinds() -> list[str]:
    return ["tar", *(["parquet"] if importlib.util.find_spec("datasets") else [])]


def smooth_picture(size: int, seed: int) -> Image.Image:
    """A picture with the detail of a photograph rather than of noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size // 4, size // 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def encoded(size: int, seed: int, suffix: str) -> bytes:
    file = io.BytesIO()
    smooth_picture(size, seed).save(file, Image.registered_extensions()[f".{suffix}"], **FORMATS[suffix])
    return file.getvalue()


def decoding(folder: Path, size: int, suffix: str, count: int) -> list[str]:
    path = folder / f"{size}-{suffix}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(count):
            archive.writestr(f"{i}.{suffix}", encoded(size, i, suffix))
    decoder = Decoder(open_source(str(path))["train"], None, None)
    cells = []
    for number in threads():
        with ThreadPoolExecutor(number) as pool:
            taken = seconds(lambda pool=pool: list(pool.map(decoder, range(count))))
        cells.append(f"{count / taken:.0f}")
    return [str(size), suffix, *cells]


def streaming(folder: Path, size: int, kind: str, count: int) -> list[str]:
    """Images a second, in batches of 128 from 16 shards."""
    source = folder / f"{size}-{kind}"
    source.mkdir()
    contents = [encoded(size, i, "png") for i in range(count)]
    for shard in range(SHARDS):
        write_shard(source / f"{shard:02d}.{kind}", contents[shard::SHARDS])
    config = DataConfig(f"hf:{source}" if kind == "parquet" else str(source), stream=True, holdout=0)
    stream = load_images(config, lazy=True).stream
    assert stream is not None
    cells = []
    for number in processes():
        batches = StreamedBatches(stream, 128, 0, torch.device("cpu"), number)
        batches.at(0)
        taken = seconds(lambda batches=batches: [batches.at(step) for step in range(1, 1 + STEPS)])
        batches.close()
        cells.append(f"{STEPS * 128 / taken:.0f}")
    return [str(size), kind, *cells]


def write_shard(path: Path, contents: list[bytes]) -> None:
    if path.suffix == ".tar":
        with tarfile.open(path, "w") as archive:
            for i, content in enumerate(contents):
                entry = tarfile.TarInfo(f"{i}.png")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    else:
        import datasets

        rows = datasets.Dataset.from_dict({"image": [{"bytes": content, "path": None} for content in contents]})
        rows.cast_column("image", datasets.Image()).to_parquet(path)


def checkpointing(folder: Path) -> list[list[str]]:
    """How long training has to wait, and how long writing takes in the background."""
    device = choose_device()
    config = load_config("cifar10")
    network = build_network(ModelConfig.of(config, (3, 32, 32))).to(device)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = FlatAdam(network, average, clip=1.0)
    held: list[checkpoint.Snapshot] = []
    copying = seconds(lambda: held.append(checkpoint.Snapshot.of(optimizer, 1, "")))
    writing = seconds(lambda: checkpoint.save(folder / "checkpoints", held[0], keep=1))
    reading = seconds(lambda: checkpoint.load(folder / "checkpoints" / "step-00000001", optimizer))
    times = {"copied to the host, while training waits": copying, "written, while it continues": writing}
    return [[what, f"{taken:.2f}"] for what, taken in (times | {"read and checked": reading}).items()]


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
