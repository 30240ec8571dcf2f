"""Images that can be decoded in a second, by format and size, from a zip archive; and a checkpoint's cost.

python benchmarks/data.py [--count 512]
"""

from __future__ import annotations

import argparse
import io
import os
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
from ihdm.building import build_network
from ihdm.config import load_config
from ihdm.data.images import Decoder
from ihdm.data.sources import open_source
from ihdm.engine import choose_device
from ihdm.model_folder import ModelConfig

FORMATS = {"png": {}, "jpg": {"quality": 90}, "webp": {"quality": 90}}
SIZES = (32, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=512)
    count = parser.parse_args().count
    where = f"{os.cpu_count()} cores, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    with tempfile.TemporaryDirectory() as folder:
        rows = [decoding(Path(folder), size, suffix, count) for size in SIZES for suffix in FORMATS]
        columns = ["size", "format", *(f"images/s, {n} threads" for n in threads())]
        print_table(f"Decoding images. {where}", columns, rows)
        print_table(f"A checkpoint of cifar10. {where}", ["what", "seconds"], checkpointing(Path(folder)))


def threads() -> list[int]:
    return sorted({1, 2, 4, os.cpu_count() or 1})


def smooth_picture(size: int, seed: int) -> Image.Image:
    """With the detail of a photograph rather than of noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size // 4, size // 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def decoding(folder: Path, size: int, suffix: str, count: int) -> list[str]:
    path = folder / f"{size}-{suffix}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(count):
            file = io.BytesIO()
            smooth_picture(size, i).save(file, Image.registered_extensions()[f".{suffix}"], **FORMATS[suffix])
            archive.writestr(f"{i}.{suffix}", file.getvalue())
    decoder = Decoder(open_source(str(path))["train"], None, None)
    cells = []
    for number in threads():
        with ThreadPoolExecutor(number) as pool:
            taken = seconds(lambda pool=pool: list(pool.map(decoder, range(count))))
        cells.append(f"{count / taken:.0f}")
    return [str(size), suffix, *cells]


def checkpointing(folder: Path) -> list[list[str]]:
    """How long training has to wait, and how long writing takes in the background."""
    device = choose_device()
    config = load_config("cifar10")
    network = build_network(ModelConfig(config.process, config.network, (3, 32, 32))).to(device)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = checkpoint.TrainingState(network, network, optimizer)
    held: list[checkpoint.Snapshot] = []
    copying = seconds(lambda: held.append(checkpoint.Snapshot.of(state, 1, "")))
    writing = seconds(lambda: checkpoint.save(folder / "checkpoints", held[0], keep=1))
    reading = seconds(lambda: checkpoint.load(folder / "checkpoints" / "step-00000001", state))
    times = {"copied to the host, while training waits": copying, "written, while it goes on": writing}
    return [[what, f"{taken:.2f}"] for what, taken in (times | {"read and checked": reading}).items()]


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
