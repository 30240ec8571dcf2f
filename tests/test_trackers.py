"""Figures and pictures of a run, where people watch them."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from test_evaluation import TinyInception

from ihdm import trackers
from ihdm.errors import IhdmError, UsageError
from ihdm.held_out import by_band
from ihdm.run import read_log
from ihdm.trainer import Trainer

FIGURES = {"loss", "gradient_norm", "lr", "images_per_second", "held_out_loss"}
BANDS = {f"held_out_loss_levels_{band}" for band in ("1_2", "3_5", "6_7", "8_10")}


def test_tensorboard_shows_figures_by_band_and_pictures(tiny_config, tiny_images, tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in (3, 6):  # stopped in between
        Trainer(tiny_config.with_settings([f"trainer.steps={steps}"]), tiny_images, tmp_path / "run").train()
    shown = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert set(shown.Tags()["scalars"]) >= FIGURES and set(shown.Tags()["scalars"]) & BANDS
    assert [event.step for event in shown.Scalars("held_out_loss")] == [3, 6]
    assert [event.step for event in shown.Images("samples")] == [3, 6] and shown.Images("samples")[0].width > 8


class Fake(types.ModuleType):
    """What wandb and trackio have in common, as far as it is used."""

    def __init__(self, name):
        super().__init__(name)
        self.begun, self.logged, self.ended = [], [], 0
        self.Image, self.Settings = np.asarray, dict

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, facts, step):
        self.logged.append((step, facts))

    def finish(self):
        self.ended += 1


@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_others_get_the_same_in_order_and_are_told_of_the_end(tiny_config, tiny_images, tmp_path, monkeypatch, kind):
    fake = Fake(kind)
    monkeypatch.setitem(sys.modules, kind, fake)
    monkeypatch.setattr("ihdm.extras.installed", lambda _: True)
    Trainer(tiny_config.with_settings([f"trainer.tracker={kind}"]), tiny_images, tmp_path / "run").train()
    steps = [step for step, _ in fake.logged]
    assert steps == sorted(steps) and fake.ended == 1
    names = {name for _, facts in fake.logged for name in facts}
    assert names >= FIGURES | {"samples"} and names & BANDS
    (options,) = fake.begun
    assert options["project"] == "ihdm" and options["config"]["trainer"]["steps"] == 6
    assert options.get("mode", "offline") == "offline"  # nothing is sent


@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_the_real_ones_keep_a_run(tiny_config, tiny_images, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which is read when it is imported
    pytest.importorskip(kind)
    Trainer(tiny_config.with_settings([f"trainer.tracker={kind}"]), tiny_images, tmp_path / "run").train()
    folder = tmp_path / "run" / "wandb" if kind == "wandb" else tmp_path / "trackio"
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > 1000


def test_a_tracker_that_is_not_installed_is_refused_before_any_work(tiny_config, tiny_images, tmp_path, monkeypatch):
    monkeypatch.setattr("ihdm.extras.installed", lambda _: False)
    with pytest.raises(IhdmError, match=r"pip install 'ihdm\[wandb\]'"):
        Trainer(tiny_config.with_settings(["trainer.tracker=wandb"]), tiny_images, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert trackers.started("auto", tmp_path, 0, {}) is None


def test_losses_are_averaged_by_the_band_of_their_level():
    levels = torch.tensor([1, 2, 3, 5, 6, 10])
    found = by_band(torch.tensor([1.0, 3, 5, 7, 9, 11]), levels, 10)
    assert found == {f"held_out_loss_levels_{n}": x for n, x in {"1_2": 2, "3_5": 6, "6_7": 9, "8_10": 11}.items()}
    assert by_band(torch.tensor([2.0]), torch.tensor([1]), 1) == {"held_out_loss_levels_1_1": 2.0}


def test_samples_are_measured_on_the_way(tiny_config, tiny_images, tmp_path, monkeypatch):
    torch.jit.save(torch.jit.script(TinyInception()), str(tmp_path / "fid_inception.pt"))
    monkeypatch.setattr("ihdm.metrics.inception._checked", lambda path: path)
    monkeypatch.setenv("IHDM_DATA", str(tmp_path))
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path / "cache"))
    settings = ["trainer.measure_every=4", "trainer.measured=5", "trainer.tracker=none"]
    Trainer(tiny_config.with_settings(settings), tiny_images, tmp_path / "run").train()
    measured = {line["step"]: line["kid"] for line in read_log(tmp_path / "run") if "kid" in line}
    assert sorted(measured) == [4, 6] and all(np.isfinite(kid) for kid in measured.values())


def test_what_cannot_be_measured_is_refused_before_any_work(tiny_config, tiny_images, tmp_path):
    streamed = types.SimpleNamespace(**{**vars(tiny_images), "stream": object(), "shape": tiny_images.shape})
    with pytest.raises(UsageError, match="a stream never has all"):
        Trainer(tiny_config.with_settings(["trainer.measure_every=4"]), streamed, tmp_path / "run")
    assert not (tmp_path / "run").exists()
