"""The example of a kind of data of one's own: closed curves."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ihdm
from ihdm.cli import main
from ihdm.config import Config, DataConfig
from ihdm.data import data_domain, load_images
from ihdm.data.own import read_one
from ihdm.domains import Domain, Found
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import ModelConfig, read_config
from ihdm.registry import DOMAINS

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_data.py"
CURVES = ["data.kind=curves", "process.sigma=0.01", "process.K=10", "sampling.steps=5", "network.channels=8"]
QUICK = [*CURVES, "network.blocks=1", "trainer.steps=4", "trainer.batch_size=4", "engine.device=cpu", "data.size=16"]


@pytest.fixture
def example(monkeypatch):
    """The example as a module; what it registers is known until the test ends."""
    monkeypatch.setattr(DOMAINS, "_classes", dict(DOMAINS._classes))
    spec = importlib.util.spec_from_file_location("own_data", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_data", module)
    spec.loader.exec_module(module)
    return module


def test_nothing_of_ihdm_knows_of_it():
    assert "curves" not in DOMAINS
    for path in Path(ihdm.__file__).parent.rglob("*.py"):
        assert not re.search(r"\b(own_data|CurveDomain)\b", path.read_text()), path


def test_its_page_quotes_it_and_shows_its_commands():
    source, page = EXAMPLE.read_text(), (EXAMPLE.parent.parent / "docs" / "your-own-data.md").read_text()
    quoted = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(quoted) == 3 and all(block in source for block in quoted)
    commands = re.findall(r"^python examples/own_data.py .*$", page, re.MULTILINE)
    assert len(commands) == 2 and all(command in source for command in commands)


def test_its_heat_equation_is_that_of_a_ring(example):
    """A wave of l periods round n points decays with the rate 2 - 2 cos(2 pi l / n), wherever it begins."""
    laplacian = example.CurveDomain((2, 16)).laplacian
    wave = torch.cos(2 * torch.pi * 3 * (torch.arange(16, dtype=torch.float64) + 0.3) / 16).expand(1, 2, 16)
    rate = 2 - 2 * np.cos(2 * np.pi * 3 / 16)
    torch.testing.assert_close(laplacian.dissipate(wave, 0.7), wave * np.exp(-0.7 * rate), atol=1e-12, rtol=0)


def test_a_set_is_read_and_divided_with_labels(example):
    images = load_images(DataConfig("stars", kind="curves", labels=True), None)
    assert images.domain == data_domain(DataConfig("stars", kind="curves")) == example.CurveDomain((2, 64))
    assert images.labels.names == ("flower", "heart", "star", "triangle")
    assert len(images.train) == 2850 and len(images.held_out) == len(images.held_out_labels) == 150
    assert float(images.train.min()) >= 0 and float(images.train.max()) <= 1
    curves, names = example.made(3000, 64)
    match = (torch.from_numpy(curves).float() == images.train[7]).flatten(1).all(1).nonzero().item()
    assert images.labels.names[images.train_labels[7]] == names[match]


def test_commands_train_sample_measure_and_restore_it(example, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> str:
        assert main([str(word) for word in words]) in (None, 0)
        return capsys.readouterr().out

    chosen = ["globe", "--data", "stars", "--set", *QUICK]
    assert "16 points" in typed("info", *chosen)
    assert "2,850 curves with 4 labels, 16 points" in typed("train", *chosen, "--run", "run")
    assert "continuing from step 4 of 6" in typed("train", *chosen, "trainer.steps=6", "--run", "run")
    assert "16 points" in typed("info", "run")
    typed("sample", "run", "--n", "4", "--label", "star", "--out", "files", "--grid", "g.png", "--gif", "g.gif")
    assert np.load("files/000003.npy").shape == (2, 16) and Image.open("g.gif").n_frames == 6
    assert Image.open("g.png").width > 2 * example.SIDE
    assert "2,850 curves" in typed("evaluate", "run", "--data", "stars", "--n", "20", "--allow-few")
    assert "curves of 32 dimensions" in typed("likelihood", "run", "--data", "stars", "--n", "4")
    typed("restore", "run", "files/000000.npy", "--blur-width", "2", "--n", "2", "--out", "r")
    assert sorted(path.name for path in Path("r").iterdir()) == ["00.npy", "01.npy", "input.npy", "restored.png"]
    assert read_config(tmp_path / "run" / "model").domain == example.CurveDomain((2, 16))
    with pytest.raises(SystemExit):
        main(["calibrate", "run", "--data", "stars"])
    assert "networks on graphs have none" in capsys.readouterr().err


def test_a_model_of_it_is_for_programs_that_register_it(example, tmp_path):
    config = Config().with_settings([*CURVES[:3], "network.kind=graph"])
    model = Model.from_images(ModelConfig.of(config, example.CurveDomain((2, 16))), torch.rand(8, 2, 16))
    model.save_pretrained(tmp_path)
    assert torch.equal(Model.from_pretrained(tmp_path).sample(2), model.sample(2))
    del DOMAINS._classes["curves"]
    with pytest.raises(IhdmError, match=r"unknown kind of data 'curves'.*known only to a program that registers it"):
        Model.from_pretrained(tmp_path)


def test_classes_that_would_not_serve_are_refused(example):
    class Bare:
        noun = "thing"

    @dataclass(frozen=True)
    class Half(Domain):
        noun, axes, suffix, words = "half", 1, ".npy", ""
        shape: tuple[int, ...]

    with pytest.raises(ValueError, match="ihdm has a kind of data 'images' already"):
        DOMAINS.register("images")(example.CurveDomain)
    with pytest.raises(ValueError, match="'bare' has no axes, read, a base class Domain"):
        DOMAINS.register("bare")(Bare)
    with pytest.raises(ValueError, match="'halves' has no read, pictures, write"):
        DOMAINS.register("halves")(Half)
    with pytest.raises(UsageError, match="unknown kind of data 'curve'; did you mean 'curves'"):
        DataConfig("stars", kind="curve")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["f4", ">f8", "f2", "?", "u1"])
def test_arrays_may_be_of_any_type_and_lie_in_a_file(kind, example, tmp_path):
    """Such as np.load(..., mmap_mode="r"), to which nothing can be written."""
    np.save(tmp_path / "some.npy", (np.arange(32).reshape(4, 2, 4) % 3 == 0).astype(kind))
    values = np.load(tmp_path / "some.npy", mmap_mode="r")
    example.CurveDomain.read = classmethod(lambda cls, config: Found(cls((2, 4)), {"train": values}))
    found = load_images(DataConfig("mine", kind="curves", holdout=0), None).train
    assert found.dtype == torch.float32 and np.array_equal(found.numpy(), values.astype("f4"))
    example.CurveDomain.read_one = classmethod(lambda cls, path: values[0])
    assert read_one(tmp_path / "some.npy", example.CurveDomain((2, 4)), False).equal(found[0])


def test_another_shape_than_is_asked_for_is_refused(example, monkeypatch):
    found = Found(example.CurveDomain((2, 4)), {"train": torch.rand(6, 2, 4)})
    monkeypatch.setattr(example.CurveDomain, "read", classmethod(lambda cls, config: found))
    load_images(DataConfig("mine", kind="curves", size=4, channels=2), None)
    for asked, words in (
        ({"size": 8}, r"curves of 2x4, but data\.size=8"),
        ({"channels": 1}, r"2x4, but data\.channels=1"),
    ):
        with pytest.raises(UsageError, match=words):
            data_domain(DataConfig("mine", kind="curves", **asked))


def test_what_it_reads_is_checked(example, monkeypatch, tmp_path):
    domain = example.CurveDomain((2, 4))
    right = torch.rand(6, 2, 4)
    wrong = {
        "train has 2x5 for each curve; expected 2x4": {"train": torch.rand(6, 2, 5)},
        "train has values from 0 to 3": {"train": right.clone().fill_(0).index_fill_(0, torch.tensor(1), 3.0)},
        "train has values from nan": {"train": torch.full((6, 2, 4), torch.nan)},
        "has no curves to train on": {"test": right},
        "unknown split 'val'": {"train": right, "val": right},
    }
    for message, values in wrong.items():
        monkeypatch.setattr(example.CurveDomain, "read", classmethod(lambda cls, config, v=values: Found(domain, v)))
        with pytest.raises(IhdmError, match=re.escape(message)):
            load_images(DataConfig("mine", kind="curves"), None)
    found = Found(domain, {"train": right, "test": right[:2]}, {"train": ["a", "b"], "test": ["a", "b"]})
    monkeypatch.setattr(example.CurveDomain, "read", classmethod(lambda cls, config: found))
    assert len(load_images(DataConfig("mine", kind="curves"), None).held_out) == 2
    with pytest.raises(IhdmError, match="2 labels for 6"):
        load_images(DataConfig("mine", kind="curves", labels=True), None)
    for setting in ({"memory": "no"}, {"on_error": "skip"}, {"range": (0, 1)}, {"rate": 8000}, {"flip": True}):
        with pytest.raises(UsageError, match=rf"data.{next(iter(setting))}"):
            load_images(DataConfig("mine", kind="curves", **setting), None)
    np.save(tmp_path / "long.npy", np.zeros((2, 5)))
    with pytest.raises(UsageError, match=r"long.npy is 2x5, but the model's curves are 2x4"):
        read_one(tmp_path / "long.npy", domain, False)
    monkeypatch.delattr(example.CurveDomain, "read_one")
    with pytest.raises(UsageError, match=r"curves cannot be restored: CurveDomain has no read_one"):
        read_one(tmp_path / "long.npy", domain, False)
