"""The list of files below a folder: remembered, and never wrong."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from ihdm.data import listing
from ihdm.data.listing import files_below


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder that is large and settled enough to be remembered."""
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(listing, "LARGE", 1)
    monkeypatch.setattr(listing, "SETTLED", -1)
    root = tmp_path / "tree"
    for name in ("a.png", "a/z.png", "a/b/deep.png", "a-b/1.png", "B/2.png", "ä.png", ".hidden/3.png", "a b\n.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    (root / "empty").mkdir()
    return root


def expected(root) -> list[str]:
    return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]


def indices(root) -> list:
    return sorted((root.parent / "cache").rglob("*.json"))


def forbid_listing(monkeypatch) -> None:
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("listed again"))


def test_files_come_in_the_order_of_their_paths(tree):
    assert files_below(tree) == expected(tree) and len(expected(tree)) == 8


def test_an_unchanged_folder_is_not_listed_again(tree, monkeypatch):
    first = files_below(tree)
    assert len(indices(tree)) == 1
    forbid_listing(monkeypatch)
    assert files_below(tree) == first
    monkeypatch.chdir(tree)
    assert files_below(listing.Path(".")) == first


CHANGES = {
    "new": lambda root: (root / "new.png").write_bytes(b""),
    "new in a folder": lambda root: (root / "a" / "b" / "new.png").write_bytes(b""),
    "new in an empty folder": lambda root: (root / "empty" / "new.png").write_bytes(b""),
    "deleted": lambda root: (root / "a" / "z.png").unlink(),
    "renamed": lambda root: (root / "a" / "z.png").rename(root / "a" / "y.png"),
    "a folder renamed": lambda root: (root / "B").rename(root / "C"),
    "a folder deleted": lambda root: shutil.rmtree(root / "a"),
    "a folder for a file": lambda root: ((root / "a.png").unlink(), (root / "a.png").mkdir()),
    "another tree": lambda root: (root.rename(root.parent / "old"), (root / "x").mkdir(parents=True)),
}


@pytest.mark.accident(
    "images change between runs",
    "files and folders made, renamed, deleted, times set back; the kept list of files is dropped",
)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("restored", [False, True])
def test_every_change_is_seen(tree, change, restored):
    """Even if the folders' times of change are set back afterwards, as programs that copy trees do."""
    files_below(tree)
    times = {path: path.stat() for path in (tree, *tree.rglob("*")) if path.is_dir()}
    time.sleep(0.02)  # more than a tick of the clock that stamps files; SETTLED stands for it outside of tests
    CHANGES[change](tree)
    for path, old in times.items() if restored else ():
        if path.exists():
            os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert files_below(tree) == expected(tree)


@pytest.mark.accident("damaged files", "the list of files kept in the cache; ignored and written anew")
@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "not ascii", "no checksum", "of another folder"])
def test_a_damaged_index_is_ignored_and_written_anew(tree, damage, monkeypatch):
    first = files_below(tree)
    (index,) = indices(tree)
    content = index.read_bytes()
    changed = content.replace(b"deep.png", b"deeq.png")
    kinds = {"empty": b"", "cut": content[:-9], "changed": changed, "not ascii": b"\xff" * 9, "no checksum": b"[]"}
    if damage == "of another folder":
        other = json.dumps(["/elsewhere", *json.loads(content.decode().split("\n", 1)[1])[1:]])
        kinds[damage] = f"{listing._checksum(other)}\n{other}".encode()
    index.write_bytes(kinds[damage])
    assert files_below(tree) == expected(tree)
    assert index.read_bytes() == content
    forbid_listing(monkeypatch)
    assert files_below(tree) == first


def test_what_may_change_unseen_is_not_remembered(tree, monkeypatch):
    (tree / "link.png").symlink_to(tree / "a.png")
    (tree / "behind").symlink_to(tree / "a")
    (tree / "dangling.png").symlink_to(tree / "later.png")
    assert files_below(tree) == expected(tree) and not indices(tree)
    (tree.parent / "later.png").write_bytes(b"")
    (tree / "dangling.png").unlink()
    (tree / "dangling.png").symlink_to(tree.parent / "later.png")
    assert "dangling.png" in files_below(tree) and not any(name.startswith("behind") for name in files_below(tree))
    for name in ("link.png", "behind", "dangling.png"):
        (tree / name).unlink()
    monkeypatch.setattr(listing, "SETTLED", 60)
    files_below(tree)
    assert not indices(tree)  # changed a moment ago
    monkeypatch.setattr(listing, "SETTLED", -1)
    monkeypatch.setattr(listing, "LARGE", 100)
    files_below(tree)
    assert not indices(tree)  # too few to be worth it


@pytest.mark.skipif(not listing.MOUNTS.exists(), reason="asks Linux for the kind of a file system")
def test_file_systems_that_may_not_tell_of_changes_are_listed_each_time(tree, tmp_path, monkeypatch):
    device = os.stat(tree).st_dev
    mounts = tmp_path / "mounts"
    mounts.write_text(f"22 27 {os.major(device)}:{os.minor(device)} / /data rw - fuse.gcsfuse bucket rw\n")
    monkeypatch.setattr(listing, "MOUNTS", mounts)
    assert files_below(tree) == expected(tree) and not indices(tree)


def test_links_that_are_left_out_are_named(tree, capsys):
    (tree / "link.png").symlink_to(tree / "a.png")
    files_below(tree)
    assert not capsys.readouterr().err
    (tree / "a" / "behind").symlink_to(tree / "B")
    (tree / "dangling.png").symlink_to(tree / "nowhere.png")
    (tree / ".hidden" / "dangling.png").symlink_to(tree / "nowhere.png")
    files_below(tree)
    assert "lead to folders, or to nothing, are left out: a/behind, dangling.png\n" in capsys.readouterr().err


def test_pipes_are_no_files(tree):
    os.mkfifo(tree / "pipe.png")  # to open it would wait for ever
    assert "pipe.png" not in files_below(tree)


def test_without_a_place_to_remember_it_is_said_and_listed_each_time(tree, capsys):
    (tree.parent / "cache").write_text("a file where the folder should be")
    assert files_below(tree) == expected(tree)
    assert "cannot be saved" in capsys.readouterr().err


def test_a_folder_that_cannot_be_listed_is_named(tree, monkeypatch, capsys):
    real = os.scandir

    def refused(path):
        if str(path).endswith("a-b/"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert files_below(tree) == [name for name in expected(tree) if not name.startswith("a-b/")]
    assert "a-b" in capsys.readouterr().err and not indices(tree)
