"""Sets that are read in sequence: nothing twice, nothing left out, the same whoever reads and wherever it stopped."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import png, write_tar
from hub import served
from hypothesis import assume, given, settings, strategies
from PIL import Image
from safetensors.torch import load_file

from ihdm.config import DataConfig
from ihdm.data import ImageSet, image_shape, load_images
from ihdm.data.images import Fitting
from ihdm.data.shards import Found, TarShards
from ihdm.data.stream import Beginnings, Stream
from ihdm.data.streamed import StreamedBatches, lanes
from ihdm.errors import IhdmError, UsageError
from ihdm.trainer import Trainer

SEED, BATCH, CPU = 7, 32, torch.device("cpu")


def picture(number: int, size: int = 2) -> bytes:
    """An image whose first two pixels tell its number."""
    pixels = np.zeros((size, size), np.uint8)
    pixels[0, :2] = number % 256, number // 256
    return png(pixels)


def write_set(folder: Path, cuts: list[int], size: int = 2) -> DataConfig:
    """Archives of the images numbered up to the first cut, from there to the second, and so on."""
    for first, last in zip([0, *cuts], cuts):
        images = {f"{number:05d}.png": picture(number, size) for number in range(first, last)}
        write_tar(folder / f"train-{first:05d}.tar", images | {f"{first}.json": b"{}"})
    return DataConfig(str(folder), stream=True, holdout=0, buffer=64)


def load(config: DataConfig) -> ImageSet:
    return load_images(config, lazy=True)


def stream_of(config: DataConfig) -> Stream:
    stream = load(config).stream
    assert stream is not None
    return stream


def numbers(images: torch.Tensor) -> list[int]:
    return (images[:, 0, 0, 0].long() + 256 * images[:, 0, 0, 1].long()).tolist()


def joined(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain(*batches))


def taken(stream: Stream, steps: range, ranks: int = 1, workers: int = 0, places=None, batch_size=BATCH, seed=SEED):
    """The numbers of each step's images, and the places after it, of several processes put together."""
    readers = [StreamedBatches(stream, batch_size, seed, CPU, workers) for _ in range(ranks)]
    batches, after = [], []
    with contextlib.ExitStack() as stack:
        for reader in readers:
            stack.callback(reader.close)
            reader.go_on(steps.start, places)
        for step in steps:
            batch = torch.empty(batch_size, *stream.fitting.shape, dtype=torch.uint8)
            for rank, reader in enumerate(readers):
                batch[rank::ranks] = reader.at(step, rank, ranks)
            batches.append(numbers(batch))
            after.append(sum(reader.places(rank, ranks) for rank, reader in enumerate(readers)).tolist())
    return batches, after


CUTS = [50, 130, 131, 300, 420, 500]
HELD_OUT = {number for first, last in zip([0, *CUTS], CUTS) for number in range(first, last, 10)}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory) -> Stream:
    """Six archives, of 1 to 169 images, which four lanes share; every tenth image is held out."""
    return stream_of(replace(write_set(tmp_path_factory.mktemp("uneven"), CUTS), holdout=0.1))


def test_an_epoch_has_every_image_once(tmp_path):
    stream = stream_of(write_set(tmp_path, list(range(20, 660, 20))))  # 32 archives, two for each lane
    batches, _ = taken(stream, range(40))
    first, second = (joined(batches[start : start + 20]) for start in (0, 20))
    assert sorted(first) == sorted(second) == list(range(640))
    assert first != second and first != sorted(first)


def test_shards_of_any_size_are_shared(uneven):
    """Lanes go at the same speed: an epoch of small shards ends sooner, and no image is left out for long."""
    seen = Counter(joined(taken(uneven, range(120))[0]))
    assert set(seen) == set(range(500)) - HELD_OUT
    assert max(seen.values()) < 2.5 * min(seen.values())


def test_neighbours_in_a_shard_are_not_neighbours_in_training(tmp_path):
    stream = stream_of(replace(write_set(tmp_path, [1000]), buffer=512))
    order = joined(taken(stream, range(31))[0])
    assert np.mean(np.abs(np.diff(order)) < 10) < 0.1


@pytest.mark.parametrize("ranks", [2, 4])
def test_several_processes_read_the_batches_of_one(uneven, ranks):
    assert taken(uneven, range(20), ranks) == taken(uneven, range(20))


def test_more_processes_than_shards_share_them(uneven):
    batches, places = taken(uneven, range(40), ranks=16)
    assert set(joined(batches)) == set(range(500)) - HELD_OUT
    assert taken(uneven, range(20, 40), ranks=8, places=places[19])[0] == batches[20:]


def test_lanes():
    """As many as divide a batch, at most 16 and one for each shard; but every process has one."""
    assert lanes(128, 1, 100) == lanes(128, 8, 100) == 16
    assert lanes(100, 1, 100) == lanes(128, 4, 6) == 4
    assert lanes(128, 1, 1) == lanes(7, 1, 9) == 1
    assert lanes(30, 3, 9) == 3
    assert lanes(128, 32, 100) == 32


@pytest.mark.slow
def test_reading_processes_give_what_threads_give(uneven):
    alone = taken(uneven, range(12))
    assert taken(uneven, range(12), workers=3) == alone  # as two, which is how lanes can be shared
    assert taken(uneven, range(6, 12), ranks=2, workers=1, places=alone[1][5])[0] == alone[0][6:]


def test_a_stream_goes_on_wherever_it_stood(uneven):
    batches, places = taken(uneven, range(40))
    for step in range(1, 40):
        assert taken(uneven, range(step, min(step + 3, 40)), places=places[step - 1])[0] == batches[step : step + 3]
    assert taken(uneven, range(20, 40), ranks=4, places=places[19])[0] == batches[20:]


def test_a_stream_that_cannot_go_on_is_refused(uneven):
    with pytest.raises(UsageError, match="in 16 lanes, which 3 processes cannot share"):
        taken(uneven, range(5, 6), ranks=3, places=[[0] * 5] * 16)
    for places in (None, [], [[1, 2]], [[0] * 5] * 5):
        with pytest.raises(IhdmError, match="does not tell where"):
            StreamedBatches(uneven, BATCH, SEED, CPU).go_on(1, places)
    with pytest.raises(ValueError, match="in sequence"):
        StreamedBatches(uneven, BATCH, SEED, CPU).at(3)


class Numbers:
    """Shards of given sizes, in memory; some of the images are broken."""

    readers = 3

    def __init__(self, sizes: list[int], broken: set[int]):
        self.sizes, self.broken = sizes, broken

    def __len__(self) -> int:
        return len(self.sizes)

    def images(self, shard, start=0, step=1):
        for i in range(start, self.sizes[shard], step):
            number = sum(self.sizes[:shard]) + i
            yield Found(str(number), shard, i, partial(self.read, number))

    def read(self, number):
        return None if number in self.broken else np.array([[[number % 256], [number // 256]]], np.uint8)


@settings(max_examples=25, deadline=None)
@given(
    sizes=strategies.lists(strategies.sampled_from([0, 1, 2, 5, 17, 40]), min_size=1, max_size=40),
    batch_size=strategies.sampled_from([8, 12, 16, 25, 32]),
    buffer=strategies.sampled_from([1, 16, 100, 1000]),
    share=strategies.sampled_from([0.0, 0.05, 0.5, 0.9]),
    chance=strategies.randoms(use_true_random=False),
)
def test_any_stream_is_the_same_from_any_place(sizes, batch_size, buffer, share, chance):
    shards = Numbers(sizes, set(chance.sample(range(sum(sizes)), sum(sizes) // 10)))
    looked_at = Beginnings.of(shards, 64, share)
    held_out = {int(one.name) for one in looked_at.images(shards) if looked_at.hold_out(one)}
    wanted = set(range(sum(sizes))) - shards.broken - held_out
    assume(len(wanted) > 20)
    stream = Stream(shards, Fitting("0", (1, 1, 2), None, None), looked_at, buffer, skip=True)
    seed, steps = chance.randrange(1000), 6 * len(wanted) // batch_size + 5
    batches, places = taken(stream, range(steps), batch_size=batch_size, seed=seed)
    assert set(joined(batches)) <= wanted
    if len(shards) >= len(places[0]) and min(sizes) >= 5 and max(sizes) < 3 * min(sizes) and share < 0.5:
        assert set(joined(batches)) == wanted  # as no lane is much longer than the others
    stop, ranks = chance.randrange(1, steps), chance.choice([n for n in (1, 2, 4) if len(places[0]) % n == 0])
    again = taken(stream, range(stop, steps), ranks, places=places[stop - 1], batch_size=batch_size, seed=seed)
    assert again == (batches[stop:], places[stop:])


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_without_a_test_split_some_of_the_first_images_are_held_out(tmp_path, monkeypatch, share):
    """A part of those that a start looks at, one of each shard at least, and nothing else."""
    monkeypatch.setattr("ihdm.data.LOOKED_AT", 40)
    images = load(replace(write_set(tmp_path, [10, 100, 200, 203]), holdout=share))
    held_out, learnt = numbers(images.held_out), numbers(images.train)
    assert {0, 10, 100, 200} <= set(held_out)
    assert sorted(held_out + learnt) == [*range(20), *range(100, 110), *range(200, 203)]
    assert len(held_out) == 3 * math.ceil(10 * share) + math.ceil(3 * share)
    assert set(joined(taken(images.stream, range(40))[0])) == set(range(203)) - set(held_out)


def test_a_test_split_is_held_out(tmp_path):
    config = replace(write_set(tmp_path, [100]), holdout=0.5)
    write_tar(tmp_path / "val-0.tar", {f"{number}.png": picture(number) for number in range(300, 310)})
    images = load(config)
    assert numbers(images.held_out) == [*range(300, 310)] and len(images.train) == 100
    assert set(joined(taken(images.stream, range(20))[0])) == set(range(100))
    write_tar(tmp_path / "val-0.tar", {"0.json": b"{}"})
    assert len(load(config).held_out) == 50


def test_one_archive_and_its_folders(tmp_path):
    contents = {f"{folder}/{i}.png": picture(10 * j + i)
                for j, folder in enumerate(("train", "test", ".hidden")) for i in range(5)}  # fmt: skip
    write_tar(tmp_path / "all.tar", contents)
    config = DataConfig(str(tmp_path / "all.tar"), stream=True, holdout=0)
    for stream in (True, False):
        images = load(replace(config, stream=stream))
        assert [numbers(part) for part in (images.train, images.held_out)] == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


def test_the_shape_is_that_of_the_first_image(tmp_path):
    write_tar(tmp_path / "0.tar", {"0.json": b"{}"})
    config = DataConfig(str(tmp_path), stream=True)
    with pytest.raises(IhdmError, match="no training images"):
        image_shape(config)
    with pytest.raises(IhdmError, match="no training images"):
        load(config)
    write_tar(tmp_path / "1.tar", {"0.png": picture(0, size=5)})
    assert image_shape(config) == (1, 5, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_stop_the_stream_or_are_left_out_by_name(tmp_path, workers, capfd):
    write_tar(tmp_path / "set" / "0.tar", {f"{i}.png": picture(i) if i != 70 else b"broken" for i in range(100)})
    config = DataConfig(str(tmp_path / "set"), stream=True, holdout=0, buffer=64)
    with pytest.raises(IhdmError, match=r"0\.tar/70\.png is not an image"):
        taken(stream_of(config), range(20), workers=workers)
    batches, _ = taken(stream_of(replace(config, on_error="skip")), range(20), workers=workers)
    assert set(joined(batches)) == set(range(100)) - {70}
    assert "70.png" in (told := capfd.readouterr().err) and "left out (1 so far)" in told


def test_the_first_image_may_be_a_broken_one(tmp_path):
    write_tar(tmp_path / "set" / "0.tar", {f"{i}.png": picture(i) if i else b"broken" for i in range(20)})
    config = DataConfig(str(tmp_path / "set"), stream=True, holdout=0)
    with pytest.raises(IhdmError, match=r"0\.png is not an image"):
        image_shape(config)
    skipping = replace(config, on_error="skip")
    assert image_shape(skipping) == (1, 2, 2) and len(load(skipping).train) == 19


def test_a_set_of_broken_images_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("ihdm.data.stream.EMPTY_MOST", 5)
    contents = {f"{i:03d}.png": picture(i) if i < 2 else b"broken" for i in range(300)}
    write_tar(tmp_path / "0.tar", contents)
    config = DataConfig(str(tmp_path), stream=True, holdout=0, buffer=16, on_error="skip")
    with pytest.raises(IhdmError, match="no image that can be read"):
        taken(stream_of(config), range(4))


@pytest.mark.parametrize("stream", [True, False])
def test_a_damaged_archive_is_named(tmp_path, stream):
    """In an image, in a header, before a header; or with a header that is none."""
    config = replace(write_set(tmp_path, [100, 200]), stream=stream)
    path = tmp_path / "train-00100.tar"
    whole = path.read_bytes()
    broken = whole[: 158 * 512] + b"\x01" * 512 + whole[159 * 512 :]
    for content in (whole[: 159 * 512 + 20], whole[: 158 * 512 + 20], whole[: 158 * 512], broken):
        path.write_bytes(content)
        with pytest.raises(IhdmError, match=r"train-00100\.tar cannot be read"):
            load(config)
    path.write_bytes(whole)
    load(config)


def test_images_of_another_shape_are_named(tmp_path):
    contents = {f"{i}.png": picture(i, size=3 if i == 90 else 2) for i in range(100)}
    write_tar(tmp_path / "0.tar", contents)
    with pytest.raises(UsageError, match=r"0\.png is 2x2 and .*90\.png is 3x3"):
        taken(stream_of(DataConfig(str(tmp_path), stream=True, holdout=0, buffer=64)), range(20))


def test_reading_ends_at_once(tmp_path, monkeypatch):
    """After the image that is being read, not after a window of them."""
    stream, read, count = stream_of(replace(write_set(tmp_path, [400]), buffer=300)), TarShards.images, []

    def slowly(*words):
        for one in read(*words):
            time.sleep(0.02)
            count.append(one)
            yield one

    monkeypatch.setattr(TarShards, "images", slowly)
    batches = StreamedBatches(stream, BATCH, SEED, CPU)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(batches.at, 0)
        while not count:
            time.sleep(0.01)
        batches.close()
        with pytest.raises(CancelledError):
            waiting.result()
    assert len(count) < 100


def test_what_is_no_stream_is_refused(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    for source in (str(tmp_path), str(tmp_path / "a.png"), "digits"):
        with pytest.raises(UsageError, match="cannot be read as a stream"):
            load(DataConfig(source, stream=True))
    with pytest.raises(UsageError, match=r"leave out data\.stream=true"):
        load_images(write_set(tmp_path / "set", [9]))


def test_a_dead_reader_ends_the_run_in_words(uneven):
    batches = StreamedBatches(uneven, BATCH, SEED, CPU, workers=1)
    batches.at(0)
    os.kill(next(iter(batches._reading._processes)).pid, signal.SIGKILL)
    with pytest.raises(IhdmError, match="reading the stream failed"):
        for step in range(1, 1000):
            batches.at(step)
    batches.close()


def test_a_stopped_run_goes_on_with_its_stream(tmp_path, tiny_config):
    """To the bit, whoever reads; the checkpoint tells where the stream stood."""
    data = write_set(tmp_path / "set", [60, 100, 180], size=8)
    for run, stops, workers in (("whole", [6], 0), ("parts", [3, 4, 6], 1)):
        for stop in stops:
            config = tiny_config.with_settings([f"trainer.steps={stop}", f"data.workers={workers}"])
            config = replace(config, data=replace(data, workers=workers))
            assert Trainer(config, load(data), tmp_path / run).train()
    for file in ("checkpoints/step-00000006/optimizer.safetensors", "model/model.safetensors"):
        whole, parts = (load_file(tmp_path / run / file) for run in ("whole", "parts"))
        assert all(parts[name].equal(tensor) for name, tensor in whole.items())
    other = write_set(tmp_path / "other", [60, 100, 180, 200], size=8)
    with pytest.raises(UsageError, match="are not those"):
        Trainer(replace(config, data=other), load(other), tmp_path / "parts").train()


@pytest.mark.parametrize(
    "places", [[], "none", 7, [[0.5] * 5], [[-1] * 5], [[2**70] * 5], [[True] * 5], [[1], [1, 2]], [None]]
)
def test_a_checkpoint_with_other_places_is_damaged(tmp_path, tiny_config, capsys, places):
    """It is named, and the one before used."""
    data = write_set(tmp_path / "set", [60, 100], size=8)
    config = replace(tiny_config, data=data)
    assert Trainer(config, load(data), tmp_path / "run").train()
    manifest = tmp_path / "run" / "checkpoints" / "step-00000006" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"places": places}))
    assert Trainer(config, load(data), tmp_path / "run").train()
    told = capsys.readouterr()
    assert "step-00000006 cannot be read" in told.err and "continuing from step 3" in told.out


def test_a_trainer_goes_on_after_it_has_stopped(tmp_path, tiny_config):
    data = write_set(tmp_path / "set", [60, 100], size=8)
    config = replace(tiny_config, data=data)
    whole, part = (Trainer(config, load(data), tmp_path / name) for name in ("whole", "part"))
    whole.train()
    part.config = config.with_settings(["trainer.steps=4"])
    part.train()
    part.config = config
    part.train()
    assert all(
        one.equal(two) for one, two in zip(part.training.average.parameters(), whole.training.average.parameters())
    )


@pytest.fixture
def parquet(tmp_path, monkeypatch) -> Path:
    """A data set as it lies on the hub: two files, each of four groups of rows, and one to check on."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 200), ("test-00000-of-00001", 400)):
        pictures = [{"bytes": picture(number), "path": None} for number in range(first, first + 200)]
        rows = datasets.Dataset.from_dict({"label": [0] * 200, "img": pictures}).cast_column("img", datasets.Image())
        rows.to_parquet(tmp_path / "set" / "data" / f"{name}.parquet", batch_size=50)
    return tmp_path / "set"


def test_sets_on_the_hub_are_streamed_by_groups_of_rows(parquet, tmp_path):
    images = load(DataConfig(f"hf:{parquet}", stream=True, buffer=64))
    assert images.stream is not None and len(images.stream.shards) == 8
    assert sorted(numbers(images.held_out)) == [*range(400, 600)]
    batches, places = taken(images.stream, range(50))
    assert set(joined(batches)) == set(range(400))
    assert taken(images.stream, range(25, 50), ranks=2, places=places[24])[0] == batches[25:]
    assert taken(images.stream, range(8), workers=2)[0] == batches[:8]
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_damaged_file_on_the_hub_is_refused_in_words(parquet):
    path = parquet / "data" / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(IhdmError, match="cannot be opened"):
        load(DataConfig(f"hf:{parquet}", stream=True))


STREAMED = """
import sys
import torch
from ihdm.config import DataConfig
from ihdm.data import load_images
from ihdm.data.streamed import StreamedBatches, lanes
images = load_images(DataConfig("hf:someone/something", stream=True, buffer=64), lazy=True)
batches = StreamedBatches(images.stream, 32, 0, torch.device("cpu"))
print(sorted(set(torch.cat([batches.at(step) for step in range(50)])[:, 0, 0].long().flatten(1)[:, :2].mv(
    torch.tensor([1, 256])).tolist())) == list(range(400)))
batches.close()
"""


def test_nothing_is_kept_of_what_the_hub_sends(parquet, tmp_path):
    """By the hub's protocol, from a stand-in for it on this machine."""
    with served(parquet) as (address, asked):
        home = tmp_path / "home"
        words = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
        done = subprocess.run(
            [sys.executable, "-c", STREAMED], env=os.environ | words, capture_output=True, text=True, timeout=120
        )
    assert done.stdout.strip() == "True", done.stderr
    assert any("train-00001-of-00002.parquet bytes=" in line for line in asked)
    assert sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) < 10_000
