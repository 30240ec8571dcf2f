"""Models on the Hugging Face hub, or rather on a stand-in for it on this machine, by the hub's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from hub import served
from PIL import Image

from ihdm import hub
from ihdm.cli import main
from ihdm.errors import UsageError
from ihdm.model import Model
from ihdm.model_folder import ModelConfig


@pytest.fixture
def model(tiny_config, tiny_images, tmp_path, monkeypatch):
    """A model folder, here."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Model.from_images(ModelConfig.of(tiny_config, tiny_images.shape, "blobs"), tiny_images.train).eval()
    model.save_pretrained("model")
    return model


def there(address: str, words: list[str]) -> str:
    """What ihdm prints whose hub is at an address; the hub's client reads it when it is imported."""
    own = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_any", "HF_HUB_DISABLE_XET": "1", "HF_HOME": "home"}
    command = [sys.executable, "-m", "ihdm", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_is_pushed_with_its_card_and_taken_from_there(model, tmp_path):
    (tmp_path / "hub").mkdir()
    with served(tmp_path / "hub") as (address, asked):
        assert there(address, ["push", "model", "owner/blobs", "--n", "4", "--private"]) == f"{address}/owner/blobs\n"
        there(address, ["sample", "owner/blobs", "--n", "2", "--out", "samples", "--device", "cpu"])
    there("http://127.0.0.1:9", ["sample", "model", "--n", "2", "--out", "own", "--device", "cpu"])
    for name in ("000000.png", "000001.png"):
        assert (tmp_path / "samples" / name).read_bytes() == (tmp_path / "own" / name).read_bytes()
    _, header, text = (tmp_path / "hub" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "unconditional-image-generation"
    assert 'from_pretrained("owner/blobs")' in text and "![Samples](samples.png)" in text
    assert Image.open(tmp_path / "hub" / "samples.png").size[0] > 8
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["data"] == "blobs"
    assert sum("/commit/" in line for line in asked) == 1  # all or nothing


def test_a_card_of_ones_own_is_pushed_as_it_is(model, tmp_path, monkeypatch):
    (tmp_path / "model" / "README.md").write_text("my words")
    sent = {}
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", lambda *_, **__: "page")
    monkeypatch.setattr(
        "huggingface_hub.HfApi.create_commit",
        lambda _, name, additions, **__: sent.update({a.path_in_repo: a.path_or_fileobj for a in additions}),
    )
    assert hub.push(tmp_path / "model", model, "owner/blobs") == "page"
    assert sent.pop("README.md") == b"my words"
    assert set(sent) == {"config.json", "model.safetensors", "prior.safetensors"}
    assert sent["config.json"] == (tmp_path / "model" / "config.json").read_bytes()


@pytest.mark.parametrize(
    "name", ["blobs", "owner/", "/blobs", "a/b/c", "owner/blobs?", "../blobs", "owner/a--b", "owner/a.git", "owner/é"]
)
def test_names_that_the_hub_does_not_know_are_refused(name):
    with pytest.raises(UsageError, match="owner/name"):
        hub.check(name)


def test_who_is_not_logged_in_is_told_so_before_any_work(model, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(SystemExit):
        main(["push", "model", "owner/blobs"])
    assert "hf auth login" in capsys.readouterr().err


def test_a_revision_is_of_the_hub_alone(model, monkeypatch):
    with pytest.raises(UsageError, match="only a model on the hub has revisions, and model is the folder model"):
        Model.from_pretrained("model", revision="v2")
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **how: asked.append((name, how)) or "model")
    Model.from_pretrained("owner/blobs", revision="v2")
    assert asked[0][0] == "owner/blobs" and asked[0][1]["revision"] == "v2"
