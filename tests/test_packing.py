"""A run in pieces: what is put together again is what was cut, and whatever is missing or damaged is named."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accidents import at_length
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ihdm import checkpoint, disk, packing
from ihdm.cli import main
from ihdm.disk import seal
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import DOMAIN, READER, ModelConfig
from ihdm.trainer import Trainer


@pytest.fixture
def run(tiny_config, tiny_images, tmp_path) -> Path:
    Trainer(tiny_config.with_settings(["trainer.steps=3", "trainer.decay=0"]), tiny_images, tmp_path / "run").train()
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_was_moved_goes_on_as_if_it_had_stayed(run, tiny_config, tiny_images, tmp_path, capsys):
    main(["pack", str(run), str(tmp_path / "pack"), "--piece", "10kB"])
    assert "step-00000003" in capsys.readouterr().out
    pieces = sorted((tmp_path / "pack").glob("*.piece"))
    assert len(pieces) > 3 and {path.stat().st_size for path in pieces[:-1]} == {10_000}
    main(["unpack", str(tmp_path / "pack"), str(tmp_path / "moved")])
    there = contents(tmp_path / "moved")
    assert there.items() <= contents(run).items() and set(there) >= {"config.toml", "log.jsonl"}
    for folder in ("moved", "run"):
        Trainer(tiny_config.with_settings(["trainer.decay=0"]), tiny_images, tmp_path / folder).train()
    ends = [contents(tmp_path / folder / "checkpoints" / "step-00000006") for folder in ("run", "moved")]
    assert ends[0] == ends[1]
    models = [contents(tmp_path / folder / "model") for folder in ("run", "moved")]
    assert models[0] == models[1]


def test_what_other_commands_added_to_the_model_moves_too(run, tiny_config, tiny_images, tmp_path, capsys):
    smaller = tiny_config.with_settings(["network.channels=8", "network.multipliers=1,1"])
    weaker = Model.from_images(ModelConfig.of(smaller, tiny_images.shape), tiny_images.train)
    Model.from_pretrained(run).guided_by(weaker, 1.75).save_pretrained(run / "model")
    (run / "model" / READER).write_bytes(b"what reads widths")
    (run / "model" / DOMAIN).write_bytes(b"a graph")
    main(["pack", str(run), str(tmp_path / "pack")])
    assert ": 1 piece, " in capsys.readouterr().out
    main(["unpack", str(tmp_path / "pack"), str(tmp_path / "moved")])
    assert sorted(contents(tmp_path / "moved" / "model")) == ["config.json", DOMAIN, "guide.safetensors", READER]
    (tmp_path / "moved" / "model" / DOMAIN).unlink()  # images have none
    with pytest.raises(IhdmError, match="is missing: the training command of its run writes it"):
        Model.from_pretrained(tmp_path / "moved")
    Trainer(tiny_config.with_settings(["trainer.decay=0"]), tiny_images, tmp_path / "moved").train()
    assert (tmp_path / "moved" / "model" / READER).read_bytes() == b"what reads widths"
    (tmp_path / "moved" / "model" / READER).unlink()
    found = Model.from_pretrained(tmp_path / "moved")
    assert found.guidance() == 1.75 and found.config.steps == tiny_config.trainer.steps
    expected = weaker.network.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in found.guide.state_dict().items())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), piece=st.integers(1, 50), block=st.integers(1, 30))
def test_any_files_in_any_pieces(sizes, piece, block, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(packing, "BLOCK", block)
    folder = tmp_path_factory.mktemp("files")
    names = {f"checkpoints/step-1/{i}": bytes((i * 50 + j) % 256 for j in range(n)) for i, n in enumerate(sizes)}
    for name, content in names.items():
        (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "run" / name).write_bytes(content)
    (folder / "pieces").mkdir()
    packing._write_pieces(packing._blocks(folder / "run" / name for name in names), folder / "pieces", piece)
    pieces = sorted((folder / "pieces").iterdir())
    assert [path.stat().st_size for path in pieces[:-1]] == [piece] * (len(pieces) - 1)
    packing._write_files(packing._blocks(pieces), folder / "again", {n: len(c) for n, c in names.items()})
    assert contents(folder / "again") == names


def test_pieces_are_put_together_by_number_however_many_there_are(run, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_flush", lambda path: None)  # which takes long, of so many
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    pieces = packing.pack(run, tmp_path / "pack", size // 20_000)["pieces"]
    assert len(pieces) > 10_000 and list(pieces)[9_998:10_000] == ["9999.piece", "10000.piece"]
    packing.unpack(tmp_path / "pack", tmp_path / "moved")
    assert contents(tmp_path / "moved").items() <= contents(run).items()


@pytest.mark.accident("pieces of a run", "missing, cut off, changed or exchanged; named, and nothing is written")
@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "exchanged"])
def test_a_missing_or_damaged_piece_is_named(damage, run, tmp_path):
    packing.pack(run, tmp_path / "pack", 5000)
    second, third = (tmp_path / "pack" / f"000{i}.piece" for i in (2, 3))
    content = bytearray(second.read_bytes())
    if damage == "missing":
        second.unlink()
    elif damage == "cut":
        second.write_bytes(content[:-1])
    elif damage == "changed":
        content[1234] ^= 1
        second.write_bytes(content)
    else:
        second.write_bytes(third.read_bytes())
    word = "missing" if damage == "missing" else "damaged"
    with pytest.raises(IhdmError, match=rf"is incomplete or damaged: 0002\.piece is {word}; copy them again"):
        packing.unpack(tmp_path / "pack", tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../evil": 3}},
        {"files": {"/etc/evil": 3}},
        {"files": {"checkpoints/step-1/../../evil": 3}},
        {"files": {"config.toml": -3}},
        {"files": {"config.toml": 3}},
        {"pieces": {"../run/config.toml": {"bytes": 3, "blake2b": ""}}},
        {"pieces": []},
        {"pieces": None},
    ],
)
def test_a_list_that_no_pack_has_is_refused(changes, run, tmp_path):
    packing.pack(run, tmp_path / "pack", 5000)
    path = tmp_path / "pack" / "pack.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(IhdmError, match=r"pack\.json is damaged"):
        packing.unpack(tmp_path / "pack", tmp_path / "moved")
    path.write_text("{")
    with pytest.raises(IhdmError, match=r"pack\.json is damaged"):
        packing.unpack(tmp_path / "pack", tmp_path / "moved")
    assert not (tmp_path / "moved").exists() and not (tmp_path / "evil").exists()


def test_wrong_words_are_refused_before_work_starts(run, tmp_path, capsys):
    for words, message in (
        (["pack", str(tmp_path), "out"], "is not a run folder"),
        (["pack", str(run), str(run)], "exists; give the name of a new folder"),
        (["pack", str(run), "out", "--piece", "3"], "at least 1000 bytes"),
        (["pack", str(run), "out", "--piece", "many"], "a size such as 15MB"),
        (["unpack", str(run), str(tmp_path / "new")], "is not a packed run"),
        (["unpack", "nowhere", str(run)], "exists; give the name of a new folder"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err
    newest = checkpoint.saved(run / "checkpoints")[-1]
    (newest / "network.safetensors").write_bytes(b"")
    with pytest.raises(IhdmError, match=r"network\.safetensors has changed since it was written"):
        packing.pack(run, tmp_path / "pack", 5000)
    shutil.rmtree(newest.parent)
    with pytest.raises(IhdmError, match="there is no checkpoint"):
        packing.pack(run, tmp_path / "pack", 5000)
    (run / "config.toml").unlink()
    with pytest.raises(UsageError, match="is not a run folder"):
        packing.pack(run, tmp_path / "pack", 5000)


@at_length
@pytest.mark.accident("killed at any moment", "while a run is packed or unpacked; it is whole or not there")
def test_packing_and_unpacking_that_are_killed(run, tmp_path):
    newest = checkpoint.saved(run / "checkpoints")[-1]  # made large, so that there is time
    (newest / "optimizer.safetensors").write_bytes(bytes(2**27))
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["files"]["optimizer.safetensors"] = seal(newest / "optimizer.safetensors")
    (newest / "manifest.json").write_text(json.dumps(manifest))
    for verb, source, target in (("pack", run, tmp_path / "pack"), ("unpack", tmp_path / "pack", tmp_path / "moved")):
        started = time.perf_counter()
        words = [sys.executable, "-m", "ihdm", verb, str(source)]
        subprocess.run([*words, str(tmp_path / f"{verb} whole")], check=True, capture_output=True)
        whole, lasts = contents(tmp_path / f"{verb} whole"), time.perf_counter() - started
        for share in (0.7, 0.8, 0.9, 0.95):
            process = subprocess.Popen([*words, str(target)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(share * lasts)
            process.send_signal(signal.SIGKILL)
            process.wait()
            if target.exists():
                assert contents(target) == whole
                shutil.rmtree(target)
        subprocess.run([*words, str(target)], check=True, capture_output=True)
        assert contents(target) == whole
