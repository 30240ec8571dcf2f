"""What may happen around a run: clocks are set, folders become read-only, files vanish."""

from __future__ import annotations

import os
import random
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from ihdm import checkpoint, cli
from ihdm.config import DataConfig
from ihdm.data import listing, load_images
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.run import locked, read_log
from ihdm.trainer import Trainer


def train(config, images, run) -> Path:
    Trainer(config, images, run).train()
    return run


def assert_same_weights(run: Path, other: Path) -> None:
    """Of the newest checkpoint, to the bit."""
    ends = [checkpoint.saved(folder / "checkpoints")[-1] for folder in (run, other)]
    assert ends[0].name == ends[1].name
    for name in ("network.safetensors", "average.safetensors", "optimizer.safetensors"):
        found, expected = (load_file(end / name) for end in ends)
        assert found.keys() == expected.keys() and all(found[key].equal(expected[key]) for key in expected)


class WildClock:
    """A clock that is set at every look: hours back, or years forward."""

    def __init__(self, seed: int):
        self.moves = random.Random(seed)

    def __call__(self) -> float:
        return 1.7e9 + self.moves.choice([-3e8, -5e3, 0.0, 5e3, 3e8])


@pytest.mark.accident(
    "the clock is set", "back and forward at every look, file times shuffled; to the bit the same run"
)
@pytest.mark.parametrize("seed", range(3))
def test_clocks_that_are_set_change_nothing(tiny_config, tiny_images, tmp_path, seed, monkeypatch):
    config = tiny_config.with_settings(["trainer.checkpoint_every=1", "trainer.keep=4", "trainer.log_every=1"])
    whole = train(config, tiny_images, tmp_path / "whole")
    clock = WildClock(seed)
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(time, "time_ns", lambda: int(clock() * 1e9))
    run = tmp_path / "run"
    for steps in (2, 5, 6):
        train(config.with_settings([f"trainer.steps={steps}"]), tiny_images, run)
        for path in run.rglob("*"):
            os.utime(path, (clock(), clock()))
        newest = checkpoint.saved(run / "checkpoints")[-1]
        os.utime(newest, (0, 0))  # the oldest of all, by its time
        assert newest.name == f"step-{steps:08d}"
    monkeypatch.undo()
    assert_same_weights(run, whole)
    assert [line["step"] for line in read_log(run)] == [line["step"] for line in read_log(whole)]
    assert all(line["seconds"] >= 0 for line in read_log(run))


@pytest.mark.accident("the clock is set", "while a run holds its lock; a second run is refused, before and after")
def test_a_lock_does_not_grow_old(tmp_path, monkeypatch):
    with locked(tmp_path / "run"):
        for year in (1970, 2100):
            seconds = (year - 1970) * 3.15e7
            monkeypatch.setattr(time, "time", lambda now=seconds: now)
            os.utime(tmp_path / "run" / ".lock", (seconds, seconds))
            with pytest.raises(UsageError, match="another process"), locked(tmp_path / "run"):
                pytest.fail("two runs in one folder")
    with locked(tmp_path / "run"):
        pass


@pytest.mark.accident("the clock is set", "back, after images were copied; a list of files is not trusted, none missed")
def test_a_list_of_files_is_not_trusted_if_the_clock_was_set_back(tmp_path, monkeypatch):
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(listing, "LARGE", 1)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").touch()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400)
    for number in range(2, 9):
        assert len(listing.files_below(tmp_path / "images")) == number - 1
        (tmp_path / "images" / f"{number}.png").touch()
    assert not (tmp_path / "cache").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WORDS = ["train", "digits", "--set", "trainer.steps=2", "network.channels=8", "engine.device=cpu", "--run"]


@pytest.mark.accident("a read-only folder", "for the run; refused in words before any image is read")
@pytest.mark.parametrize("which", ["run", "parent", "checkpoints", "log.jsonl"])
def test_a_read_only_folder_is_refused_before_work_starts(
    tiny_config, tiny_images, tmp_path, which, monkeypatch, capsys
):
    """As the system answers; permissions do not bind the superuser, and so the answer is put into its mouth."""
    run = tmp_path / "run"
    closed = {"run": run, "parent": tmp_path, "checkpoints": run / "checkpoints", "log.jsonl": run / "log.jsonl"}[which]
    if which in ("checkpoints", "log.jsonl"):
        main(*WORDS, str(run))
    elif which == "run":
        run.mkdir()
    before = contents(tmp_path)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and real(path, mode))
    monkeypatch.setattr("ihdm.data.load_images", lambda *_, **__: pytest.fail("work has started"))
    capsys.readouterr()
    assert main(*WORDS, str(run)) == 1
    error = capsys.readouterr().err
    assert "cannot be written to" in error and str(closed) in error and "--run" in error
    assert contents(tmp_path) == before


def main(*words: str) -> int:
    """The exit code."""
    try:
        cli.main(list(words))
    except SystemExit as end:
        return int(str(end.code))
    return 0


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind the superuser")
@pytest.mark.accident("a read-only folder", "by its permissions; refused in words, and as it was")
def test_permissions_are_minded(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert main(*WORDS, str(tmp_path / "run")) == 1
    assert "cannot be written to" in capsys.readouterr().err
    (tmp_path / "run").chmod(stat.S_IRWXU)
    assert main(*WORDS, str(tmp_path / "run")) == 0


@pytest.mark.accident("a read-only folder", "at the first file written, against its permissions; refused in words")
def test_a_folder_that_cannot_be_made_is_refused(tiny_config, tiny_images, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(30, "Read-only file system")

    trainer = Trainer(tiny_config, tiny_images, tmp_path / "run")
    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(IhdmError, match=r"run cannot be written to .*Read-only file system"):
        trainer.train()
    monkeypatch.undo()
    assert trainer.train()


@pytest.mark.accident("a read-only folder", "in the middle of a run; it stops in words, and goes on to the bit later")
def test_a_folder_that_becomes_read_only(tiny_config, tiny_images, tmp_path, monkeypatch):
    whole = train(tiny_config, tiny_images, tmp_path / "whole")
    run = train(tiny_config.with_settings(["trainer.steps=3"]), tiny_images, tmp_path / "run")
    kept = contents(run / "checkpoints")
    real = Path.mkdir

    def refused(path, *rest, **options):
        if path.name.startswith(".step-"):
            raise OSError(30, "Read-only file system", str(path))
        real(path, *rest, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(IhdmError, match=r"run could not be written to .*what was saved before is intact"):
        train(tiny_config, tiny_images, run)
    monkeypatch.undo()
    assert contents(run / "checkpoints") == kept
    assert_same_weights(train(tiny_config, tiny_images, run), whole)


@pytest.mark.accident("a missing prior", "deleted from the model; named when it is loaded, and the run writes it again")
def test_a_missing_prior(tiny_config, tiny_images, tmp_path):
    run = train(tiny_config, tiny_images, tmp_path / "run")
    prior = run / "model" / "prior.safetensors"
    before = prior.read_bytes()
    prior.unlink()
    with pytest.raises(IhdmError, match=r"prior\.safetensors"):
        Model.from_pretrained(run / "model")
    train(tiny_config, tiny_images, run)
    assert prior.read_bytes() == before
    assert len(Model.from_pretrained(run / "model").sample(2)) == 2


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


@pytest.mark.accident(
    "an unreadable image", "in the middle of a run, images not in memory; named, and with it mended to the bit the same"
)
@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut"])
def test_an_image_that_breaks_during_a_run(tiny_config, tmp_path, photos, damage):
    images = load_images(DataConfig(str(photos), holdout=0, memory="no"), lazy=True)
    settings = ["trainer.steps=12", "trainer.checkpoint_every=1", "trainer.sample_every=1000", "trainer.log_every=1"]
    config = tiny_config.with_settings(settings)
    whole = train(config, images, tmp_path / "whole")
    broken = photos / "07.png"
    content = broken.read_bytes()
    trainer = Trainer(config, images, tmp_path / "run")
    step = trainer.train_step

    def damaging():
        if trainer.step == 2 and damage == "deleted":
            broken.unlink(missing_ok=True)
        elif trainer.step == 2:
            broken.write_bytes(content[:40] if damage == "cut" else b"")
        return step()

    trainer.train_step = damaging
    with pytest.raises(IhdmError, match=r"07\.png"):
        trainer.train()
    assert checkpoint.saved(tmp_path / "run" / "checkpoints")
    broken.write_bytes(content)
    assert_same_weights(train(config, images, tmp_path / "run"), whole)


@pytest.mark.accident("an unreadable image", "in a folder, with data.on_error=skip; named once, and the run ends")
@pytest.mark.parametrize("memory", ["yes", "no"])
def test_a_run_without_its_broken_images(tiny_config, tmp_path, photos, memory, capsys):
    for name in ("00.png", "11.png"):
        (photos / name).write_bytes(b"no picture")
    images = load_images(DataConfig(str(photos), holdout=0, memory=memory, on_error="skip"), lazy=True)
    train(tiny_config.with_settings(["trainer.steps=9"]), images, tmp_path / "run")
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert [[name in line for line in warnings].count(True) for name in ("00.png", "11.png")] == [1, 1]
    assert checkpoint.saved(tmp_path / "run" / "checkpoints")[-1].name == "step-00000009"
