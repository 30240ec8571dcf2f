"""Random command lines, from a grammar of verbs, options and nasty values: each must end in words, and soon.

    python tests/fuzz_cli.py COUNT SEED FOLDER [FIRST]

prints what it tries in FOLDER, and every traceback. A line ends well if it works, or is refused with an error of
ihdm's own: codes 0, 1 and 2.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ihdm.cli import COMPLETION, VERBS, main
from ihdm.config import presets, setting_rows
from ihdm.studies import STUDIES
from ihdm.studies.family import FAMILY

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "any"}  # before the hub's client is loaded: it asks for nothing
MEMORY = 6 * 2**30  # bytes more than at the start that a line may take
PATIENCE = 90  # seconds
TINY = [
    *("network.channels=4", "network.multipliers=1", "network.blocks=1", "network.attention=none", "process.K=3"),
    *("trainer.steps=2", "trainer.batch_size=4", "trainer.samples=2", "engine.device=cpu"),
]
NUMBERS = ["0", "-1", "1", "2", "3", "0.5", "-0", "1e-300", "1e300", str(10**22), "nan", "inf", "-inf", "0x10", "1_0"]
TEXTS = ["", " ", "x", "é", "\udcff", "x" * 5000, "auto", "none", "true", "1,2,3", "[1, 2]", "--", "-h", "*", "%s"]
TEXTS += ["{}", "mnist", "digits", "owner/name", "~", "~nobody/x", "hf:", "hf:x/y", "a=b", "\n", "9" * 30]
PATHS = ["images", "images.npy", "one.png", "text.txt", "text.png", "empty", "model", "run", ".", "..", "/"]
PATHS += ["/dev/null", "/proc/self/mem", "folder.png", "folder.gif", "folder.json", "new.png", "new.gif", "new.json"]
PATHS += ["new/er", "é.png", "\udcff.png", "\udcff", "text.txt/x", "x" * 300, "loop", "checkpoint.pth", "own.toml"]
PATHS += ["bad.toml", "odd.npy"]
SETTINGS = [name for name, _ in setting_rows()]
MODELS = [
    *["model"] * 8,
    "soft",
    "cold",
    "run",
    "mnist-ready",
    "empty",
    "text.txt",
    "owner/name",
    "é",
    "\udcff",
    "~",
    "",
    "loop",
]
SOURCES = [*["images", "images.npy"] * 4, "digits", "empty", "text.txt", "text.png", "odd.npy", "nowhere", "hf:"]
KINDS: dict[str, list[str]] = {
    "number": NUMBERS,
    "text": TEXTS,
    "path": PATHS,
    "model": MODELS,
    "data": SOURCES,
    "preset": [*presets(), *["digits", "own.toml"] * 6, "own.toml", "bad.toml", "nowhere.toml", "", "é"],
    "sampler": ["paper", "exact", "momentum"],
    "format": ["diffusers", "onnx", "torch", "web"],
    "part": [*FAMILY, "blur-20", "late-8"],
    "metric": ["neighbours", "spectrum", "fid", "kid"],
    "set": [],  # made up
    "flag": [],
}
OPTIONS: dict[str, dict[str, str]] = {
    "train": {"data": "data", "run": "path", "set": "set"},
    "sample": {"n": "number", "seed": "number", "grid": "path", "gif": "path", "out": "path", "same-start": "flag"},
    "restore": {"n": "number", "seed": "number", "out": "path", "blur-width": "number", "resize": "flag"},
    "likelihood": {"data": "data", "n": "number", "seed": "number", "json": "path", "figures": "path"},
    "evaluate": {"data": "data", "n": "number", "seed": "number", "json": "path", "metrics": "metric"},
    "calibrate": {"n": "number", "resize": "flag"},
    "guide": {"guidance": "number"},
    "study": {"model": "model", "data": "data", "preset": "preset", "out": "path", "seed": "number", "only": "part"}
    | {"set": "set"},
    "info": {"data": "data", "set": "set"},
    "settings": {},
    "app": {"host": "text", "port": "text"},
    "convert": {"preset": "preset", "data": "data", "set": "set"},
    "doctor": {"json": "path"},
    "export": {},
    "push": {"n": "number", "message": "text"},
    "pack": {"piece": "text"},
    "unpack": {},
    "demo": {"out": "path", "set": "set"},
}
SAMPLING = {"sampler": "sampler", "steps": "number", "eta": "number", "order": "number"}
SAMPLING |= {"corrected": "text", "delta-ratio": "number"}
COMPUTING = {"batch-size": "number", "device": "text", "precision": "text"}
for verb in ("sample", "restore", "evaluate"):
    OPTIONS[verb] |= SAMPLING | COMPUTING
OPTIONS["export"] |= SAMPLING
for verb in ("sample", "evaluate"):
    OPTIONS[verb] |= {"label": "text", "guidance": "number"}
OPTIONS["likelihood"] |= COMPUTING | {"levels": "number", "delta-ratio": "number", "resize": "flag"}


def value(kind: str, chance: random.Random) -> str:
    """Mostly of its kind."""
    return chance.choice(KINDS[kind] if chance.random() < 0.85 else [*NUMBERS, *TEXTS, *PATHS])


def settings(chance: random.Random) -> list[str]:
    kinds = ["number", "number", "text", "path"]
    return [f"{chance.choice(SETTINGS)}={value(chance.choice(kinds), chance)}" for _ in range(chance.randint(0, 2))]


def command_line(chance: random.Random) -> list[str]:
    """A verb with what it needs, and some of what it may have; now and then a word too few, too many, or moved."""
    verb = chance.choice([*VERBS, *VERBS, "", "--version", "-h", COMPLETION, "smaple", "é", "\udcff"])
    if verb not in VERBS:
        return [verb, *chance.choice([[], ["bash"], [value("text", chance)]])]
    steps = chance.choice(["0", "2", "-1", "é"])  # not as many as it takes to learn
    words = {
        "train": [value("preset", chance)],
        "sample": [value("model", chance)],
        "restore": [value("model", chance), chance.choice(["one.png", value("path", chance)])],
        "likelihood": [value("model", chance), "--data", value("data", chance)],
        "evaluate": [value("model", chance), "--data", value("data", chance)],
        "calibrate": [value("model", chance), "--data", value("data", chance), "--width-steps", steps],
        "guide": [value("model", chance), value("model", chance)],
        "study": [chance.choice([*STUDIES, "", "é"]), "--quick"],
        "info": [value(chance.choice(["model", "preset"]), chance)],
        "settings": [value("text", chance)],
        "app": [chance.choice(["é", "empty", "text.txt", ""])],  # not one that would serve
        "convert": [chance.choice(["checkpoint.pth", *PATHS]), value("path", chance)],
        "doctor": [],
        "export": [value("model", chance), value("path", chance), "--format", value("format", chance)],
        "push": [value("model", chance), value("text", chance)],  # the hub is out of reach
        "pack": [chance.choice(["run", value("path", chance)]), value("path", chance)],
        "unpack": [value("path", chance), value("path", chance)],
        "demo": [],
    }[verb]
    for name, kind in OPTIONS[verb].items():
        if chance.random() < 0.15:
            given = [] if kind == "flag" else settings(chance) if kind == "set" else [value(kind, chance)]
            words += [f"--{name}", *given]
    if "set" in OPTIONS[verb] and verb != "info":
        words += ["--set", *TINY, *settings(chance)]
    if verb in ("sample", "restore", "likelihood", "evaluate") and "--n" not in words:
        words += ["--n", "2"]
    if words and chance.random() < 0.05:
        words.pop(chance.randrange(len(words)))
    if chance.random() < 0.05:
        words.append(value("text", chance))
    return [verb, *words]


def prepare(folder: Path) -> None:
    """The files that paths name."""
    (folder / "images").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "images" / f"{i}.png")
    Image.fromarray(pixels[0]).save(folder / "one.png")
    np.save(folder / "images.npy", pixels)
    np.save(folder / "odd.npy", np.zeros((3, 4)))
    for name in ("empty", "folder.png", "folder.gif", "folder.json"):
        (folder / name).mkdir()
    for name in ("text.txt", "text.png", "bad.toml", "checkpoint.pth"):
        (folder / name).write_text("[[nothing\n")
    (folder / "own.toml").write_text('about = "mine"\n[process]\nK = 3\n')
    (folder / "loop").symlink_to("loop")
    main(["train", "digits", "--data", "images", "--run", "run", "--set", *TINY])
    for kind in ("soft", "cold"):
        main(["train", f"digits-{kind}", "--data", "images", "--run", kind, "--set", *TINY, "sampling.steps=auto"])
    (folder / "run" / "model").rename(folder / "model")


def outcome(words: list[str]) -> Any:
    """The exit code of a line, or the traceback of what else came out of it."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    signal.alarm(PATIENCE)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(words)
        return 0
    except SystemExit as stopped:
        return stopped.code
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)


def fuzz(count: int, seed: int, folder: Path, first: int = 0) -> int:
    """Try `count` lines; return how many ended badly."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    prepare(folder.resolve())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"more than {PATIENCE} s")))
    bad, codes = 0, {0: 0, 1: 0, 2: 0}
    for number in range(first, first + count):
        words = command_line(random.Random(f"{seed} {number}"))
        found = outcome(words)
        if found in codes:
            codes[found] += 1
        else:
            bad += 1
            print(f"{number}: {ascii(shlex.join(words))[:600]}\n{ascii(found) if isinstance(found, int) else found}")
    print(f"{count} command lines: {codes[0]} worked, {codes[1] + codes[2]} were refused in words, {bad} ended badly")
    return bad


if __name__ == "__main__":
    numbers = [int(word) for word in (sys.argv[1], sys.argv[2], *sys.argv[4:])]
    sys.exit(1 if fuzz(numbers[0], numbers[1], Path(sys.argv[3]), *numbers[2:]) else 0)
