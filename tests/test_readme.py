"""The README's commands and its Python run as they stand there, on little data and for few steps."""

from __future__ import annotations

import re
import shlex
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from ihdm.cli import main

README = Path(__file__).parent.parent / "README.md"
LITTLE = ["trainer.steps=2", "trainer.samples=4", "network.channels=8", "process.K=4", "trainer.batch_size=4"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("ihdm ")]


def test_the_readme_shows_the_two_commands_and_the_api():
    assert "make demo" in README.read_text() and "make test" in README.read_text()
    assert len(commands()) >= 4 and len(blocks("python")) >= 1


def test_the_readmes_commands_and_python_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("mnist", "photos"):
        (tmp_path / name).mkdir()
        for i in range(4):
            pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(tmp_path / "blurred.png")
    sounds_and_winds(tmp_path, rng)
    for words in commands():
        if words[0] == "app":
            continue  # it runs until it is stopped: tests/test_browser.py
        if words[0] in ("train", "demo") or "--quick" in words:
            words += [word for setting in LITTLE for word in ("--set", setting)]
        if words[0] == "evaluate":
            words = [*words[: words.index("--n")], "--n", "4", "--metrics", "spectrum"]  # the others need Inception
        main(words)
    for code in blocks("python"):
        exec(compile(code, str(README), "exec"), {})


def sounds_and_winds(folder: Path, rng: np.random.Generator) -> None:
    """Two drum hits of each kind, and fields on the nodes of a ring, with labels."""
    for kind in ("kick", "snare"):
        (folder / "hits" / kind).mkdir(parents=True)
        for i in range(4):
            with wave.open(str(folder / "hits" / kind / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                file.writeframes(rng.integers(-(2**15), 2**15, 2000, dtype=np.int16).tobytes())
    edges = np.stack([np.arange(12), np.arange(1, 13) % 12], 1)
    np.savez(folder / "globe.npz", train=rng.random((8, 12)), edges=edges, train_labels=np.arange(8) % 2)


def test_every_file_that_the_readme_points_to_is_there():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    missing = [t for t in targets if not t.startswith("http") and not (README.parent / t).exists()]
    assert targets and not missing, missing
