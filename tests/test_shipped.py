"""The models that come with the package."""

from __future__ import annotations

import pytest
import torch

from ihdm.cli import main
from ihdm.config import RENAMED, presets
from ihdm.errors import IhdmError
from ihdm.model import Model
from ihdm.model_folder import READER, locate, shipped


def test_it_is_small_and_makes_digits_without_a_network():
    folder = shipped()["mnist-ready"]
    assert sum(file.stat().st_size for file in folder.iterdir() if file.name != READER) < 8_000_000
    images = Model.from_pretrained("mnist-ready").sample(4, seed=1)
    ink = images.mean(dim=(1, 2, 3))
    assert images.shape == (4, 1, 28, 28) and bool(((ink > 0.03) & (ink < 0.35)).all())
    background = images[..., :2, :].max()  # the frame of MNIST's digits is black
    extremes = ((images < 0.1) | (images > 0.9)).float().mean()
    assert background < 0.1 and extremes > 0.8  # sharp: few pixels are grey


def test_a_folder_of_ones_own_comes_first_but_one_that_is_no_model_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()  # such as one with the idx files
    assert locate("mnist") == shipped()["mnist-ready"]
    model = Model.from_pretrained("mnist")
    model.save_pretrained(tmp_path / "mnist", torch.bfloat16)
    assert locate("mnist").resolve() == tmp_path / "mnist"
    modes = {file.stat().st_mode for file in (tmp_path / "mnist").iterdir()}
    assert len(modes) == 1  # who may read one of its files may read all
    again = Model.from_pretrained("mnist")
    for name, tensor in model.network.state_dict().items():
        assert again.network.state_dict()[name].equal(tensor)
    with pytest.raises(IhdmError, match=r"use one that comes with ihdm .*mnist-ready"):
        locate("mnits")


def test_no_model_has_the_name_of_a_preset_and_earlier_names_still_work(capsys):
    assert not set(shipped()) & set(presets())
    for name, now in RENAMED.items():
        assert locate(name) == shipped()[now]
        main(["info", name])
        assert f"ihdm info {now}" in capsys.readouterr().out


def test_the_colour_model_is_small_and_makes_pictures():
    """As smooth as photographs, and in colours."""
    folder = shipped()["cifar10-ready"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25_000_000
    images = Model.from_pretrained("cifar10-ready").sample(3, steps=12)
    assert images.shape == (3, 3, 32, 32)
    deviation = images - images.mean(dim=(2, 3), keepdim=True)
    beside = (deviation[..., 1:] * deviation[..., :-1]).mean() / deviation.square().mean()
    assert beside > 0.8 and deviation.std() > 0.1  # neighbouring pixels are alike, and the picture is not blank
    assert (images.amax(dim=1) - images.amin(dim=1)).mean() > 0.05
