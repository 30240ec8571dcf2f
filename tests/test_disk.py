from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from ihdm import pictures
from ihdm.disk import replaced_folder, replaced_text
from ihdm.errors import IhdmError


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.accident("a write that broke off", "in a folder; the old one stays whole")
def test_a_half_written_folder_never_takes_the_place_of_a_whole_one(tmp_path):
    target = tmp_path / "model"
    with replaced_folder(target) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(RuntimeError), replaced_folder(target) as folder:
        (folder / "a").write_text("new")
        raise RuntimeError
    assert contents(target) == {"a": "old"}
    with replaced_folder(target) as folder:
        (folder / "a").write_text("new")
    assert contents(tmp_path) == {"model/a": "new"}


def test_a_half_written_file_leaves_nothing_but_the_old_one(tmp_path, monkeypatch):
    replaced_text(tmp_path / "a", "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        replaced_text(tmp_path / "a", "new")
    assert contents(tmp_path) == {"a": "old"}


@pytest.mark.parametrize("links", [True, False])
def test_what_others_put_into_a_folder_goes_on_to_the_next(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr("os.link", lambda *_, **__: (_ for _ in ()).throw(OSError("no such names here")))
    target = tmp_path / "model"
    with replaced_folder(target) as folder:
        (folder / "a").write_text("old")
    (target / "notes").mkdir()
    (target / "notes" / "why").write_text("mine")
    (target / "nowhere").symlink_to("gone")
    for _ in range(2):
        with replaced_folder(target) as folder:
            (folder / "a").write_text("new")
    assert contents(target) == {"a": "new", "notes/why": "mine"}
    assert (target / "nowhere").is_symlink()


@pytest.mark.accident("killed between two renames", "the folder that was there comes back, and is then replaced")
def test_a_folder_without_a_successor_comes_back(tmp_path):
    target = tmp_path / "model"
    with replaced_folder(target) as folder:
        (folder / "a").write_text("old")
    (target / "why").write_text("mine")
    target.rename(tmp_path / ".model.old")
    (tmp_path / ".model.new").mkdir()
    with replaced_folder(target) as folder:
        (folder / "a").write_text("new")
    assert contents(tmp_path) == {"model/a": "new", "model/why": "mine"}


def test_links_are_followed_and_files_left_alone(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for text in ("one", "two"):
        with replaced_folder(tmp_path / "link") as folder:
            (folder / "a").write_text(text)
    assert (tmp_path / "link").is_symlink() and contents(tmp_path / "elsewhere") == {"a": "two"}
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(IhdmError, match="is a file where a folder is to be written"),
        replaced_folder(tmp_path / "file"),
    ):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_the_path_of_a_picture_may_be_text(tmp_path):
    pictures.animation(str(tmp_path / "new.gif"), [torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8, 8)])
    assert Image.open(tmp_path / "new.gif").n_frames == 2


@pytest.mark.parametrize("name", ["old.png", "old.JPG", "old.gif"])
def test_a_picture_that_a_full_disk_cuts_short_leaves_the_old_one(name, tmp_path, monkeypatch):
    path, states = tmp_path / name, [torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8, 8)]

    def draw() -> None:
        if path.suffix == ".gif":
            pictures.animation(path, states)
        else:
            pictures.write(pictures.grid(states[0]), path)

    draw()
    old = path.read_bytes()
    assert Image.open(path).format == {".png": "PNG", ".jpg": "JPEG", ".gif": "GIF"}[path.suffix.lower()]
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            draw()
    assert path.read_bytes() == old and [*tmp_path.iterdir()] == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "private.txt"
    replaced_text(path, "old")
    path.chmod(0o600)
    replaced_text(path, "new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o600
