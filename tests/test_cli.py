from __future__ import annotations

import errno
import inspect
import io
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from ihdm import cli
from ihdm.cli import VERBS, main
from ihdm.config import DataConfig, presets, setting_rows, shipped, shipped_words
from ihdm.data import load_images
from ihdm.errors import UsageError
from ihdm.evaluation import METRICS, images_for
from ihdm.evaluation.quality import check_images
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.pixels import to_bytes
from ihdm.processes import InverseHeat

QUICK = [
    *("--set", "trainer.steps=4", "--set", "trainer.checkpoint_every=2", "--set", "trainer.samples=4"),
    *("--set", "process.K=4", "--set", "trainer.batch_size=4", "--set", "network.channels=8"),
]


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IHDM_DATA", raising=False)


@pytest.fixture
def model(tiny_config, tiny_images, tmp_path) -> str:
    config = replace(ModelConfig.of(tiny_config, tiny_images.shape, "blobs"), steps=7)
    Model.from_images(config, tiny_images.train).save_pretrained(tmp_path / "model")
    return "model"


@pytest.fixture
def others(tiny_config, tiny_images, tmp_path) -> None:
    """Models of a Gaussian filter, of diffusion, and of its relatives."""
    for name, settings in {
        "filtered": ["process.skip=identity", "process.blur=gaussian"],
        "diffusion": ["process.kind=ddpm"],
        "soft": ["process.kind=soft"],
        "cold": ["process.kind=cold"],
    }.items():
        config = ModelConfig.of(tiny_config.with_settings(settings), tiny_images.shape, "blobs")
        Model.from_images(config, tiny_images.train).save_pretrained(tmp_path / name)


def refused(words, code, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    error = capsys.readouterr().err
    assert stop.value.code == code
    assert message in error
    assert "Traceback" not in error


def huge_png(width: int, height: int) -> bytes:
    """A file of a few bytes that says it is a large image."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_help_names_every_verb_and_preset_at_once(capsys):
    main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in [*VERBS, *presets(), *shipped(), "ihdm settings"])
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 80  # one screen
    main(["info"])
    text = capsys.readouterr().out
    assert all(name in text and about in text for name, about in (presets() | shipped_words()).items())
    code = "import sys; from ihdm.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_settings_are_listed_with_their_defaults_and_whose_they_are(capsys):
    main(["settings"])
    text = capsys.readouterr().out
    assert all(f"{name} " in text and about in text for name, about in setting_rows())
    assert "process.betas" in text and "ddpm: the noise schedule [linear | cosine; default linear]" in text
    main(["settings", "trainer.l"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["trainer.lr", "trainer.log_every"]
    with pytest.raises(SystemExit, match="2"):
        main(["settings", "proces.K"])
    assert "did you mean 'process.K'" in capsys.readouterr().err


def test_settings_typed_as_options_are_answered_with_how_to_give_them(capsys):
    for words, hint in {
        "train digits --steps 100": "give it with --set trainer.steps=100 or --set sampling.steps=100",
        "info digits --batch-size=4": "batch_size is a setting; give it with --set trainer.batch_size=4",
        "train digits --holdout": "holdout is a setting; give it with --set data.holdout=VALUE",
    }.items():
        refused(words.split(), 2, hint, capsys)
    for words in ("study sequence --device cpu --unknown", "sample mnist-ready --batch 4", "train digits --unknown 3"):
        with pytest.raises(SystemExit):
            main(words.split())
        assert "is a setting" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_without_importing_torch(verb):
    code = """import sys; from ihdm.cli import main
try: main([sys.argv[1], "--help"])
finally: assert "torch" not in sys.modules"""
    done = subprocess.run([sys.executable, "-c", code, verb], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout


def test_an_error_in_an_option_names_only_what_can_be_typed(capsys):
    for words in (["--sampler", "exactt"], ["--steps", "many"], ["--device", "tpu"]):
        with pytest.raises(SystemExit, match="2"):
            main(["sample", "mnist-ready", *words])
        error = capsys.readouterr().err
        assert words[0] in error and words[1] in error and "None" not in error
    main([cli.COMPLETION, "bash"])
    assert "'None'" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_help_puts_words_that_may_be_left_out_in_brackets(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    _, _, _, *usage = capsys.readouterr().out.split("\n\n")[0].replace("[-h] ", "").replace("[OPTIONS] ", "").split()
    words = [each for each in inspect.signature(VERBS[verb]).parameters.values() if each.kind is each.POSITIONAL_ONLY]
    assert [word.startswith("[") for word, _ in zip(usage, words)] == [word.default is not word.empty for word in words]


@pytest.mark.skipif(not hasattr(select, "poll"), reason="pipes are not told apart there")
@pytest.mark.parametrize("words", [["settings"], ["sample", "--help"]])
def test_output_that_nobody_reads_to_its_end_is_no_error(words):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run([sys.executable, "-m", "ihdm", *words], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_pipe_that_breaks_elsewhere_is_an_error(monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(cli, "_run", broken)
    with pytest.raises(SystemExit) as ended, tempfile.TemporaryFile("w") as file:
        monkeypatch.setattr("sys.stdout", file)
        cli.main(["settings"])
    assert ended.value.code == 1 and "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trian"], 2, "did you mean 'train'"),
        (["train", "minst"], 2, "did you mean 'mnist'"),
        (["train", "digits", "--set", "trainer.stesp=3"], 2, "did you mean 'trainer.steps'"),
        (["train", "digits", "--set", "process.K=ten"], 2, "a whole number"),
        (["train", "digits", "--set", "process.K=0"], 2, "at least 1"),
        (["train", "digits", "--set", "process.sigma_B_max=0.1"], 2, "larger than"),
        (["train", "digits", "--set", "process.sigma=-1"], 2, "at least 0"),
        (["train", "digits", "--set", "engine.device=cuda"], 2, "no device"),
        (["train", "digits", "--data", "nowhere/"], 1, "there is no"),
        (["train", "digits", "--data", "digit"], 2, "did you mean 'digits'"),
        (["train", "digits", "--data", "a-file.tar.gz"], 1, "a zip, uncompressed tar,"),
        (["train", "digits", "--run", "a-file"], 2, "is a file"),
        (["train", "digits", "--run", "/proc/nowhere"], 1, "/proc/nowhere"),
        (["train", "digits", "--set", "trainer.steps=" + "9" * 400], 2, "a whole number"),
        (["info", "digits", "--set", "data.size=1e9"], 2, "at most"),
        (["sample", "model", "--gif", "x.txt"], 2, "ends in .gif"),
        (["sample", "model", "--grid", "x"], 2, "name of a picture"),
        (["sample", "model", "--grid", "a-file/x.png"], 1, "a-file"),
        (["sample", "model", "--out", "a-file"], 1, "a-file"),
        (["sample", "model", "--out", "model"], 2, "empty folder"),
        (["sample", "model", "--same-start", "--same-noise"], 2, "the same"),
        (["train", "mnist"], 2, "IHDM_DATA"),
        (["sample", "./nowhere"], 1, "no model folder"),
        (["sample", "model", "--n", "0"], 2, "from 1 to"),
        (["sample", "model", "--n", str(10**22)], 2, "from 1 to"),
        (["sample", "model", "--batch-size", str(10**22)], 2, "--batch-size must be from 1 to"),
        (["sample", "model", "--grid", "folder.png"], 2, "--grid takes the name of a file, and folder.png is a folder"),
        (["sample", "model", "--gif", "folder.gif"], 2, "--gif takes the name of a file, and folder.gif is a folder"),
        (["sample", "~nobody/x"], 1, "no model folder"),
        (["sample", "loop"], 1, "no model folder"),
        (["info", "digits", "--set", "trainer.batch_size=70000"], 2, "a larger trainer.accumulate"),
        (["info", "digits", "--set", "process.sigma=1e300"], 2, "process.sigma must be"),
        (["info", "digits", "--set", "network.multipliers=" + "1," * 30 + "1"], 2, "at most 16 numbers, not 31"),
        (["convert", "nowhere.pth", ".", "--preset", "digits"], 2, ". exists; give the name of a new folder"),
        (["likelihood", "model", "--data", "digits", "--n", str(10**22)], 2, "from 1 to"),
        (["likelihood", "model", "--data", "digits", "--json", "folder.png"], 2, "is a folder"),
        (["evaluate", "model", "--data", "digits", "--n", "-1"], 2, "from 1 to"),
        (["app", "model", "--host", "\udcff"], 1, "cannot listen on"),
        (["sample", "model", "--delta-ratio", "-1"], 2, "delta_ratio must be at least 0, not -1"),
        (["restore", "model", "nowhere.png"], 1, "there is no file nowhere.png"),
        (["restore", "model", "a-file"], 1, "a-file is not an image"),
        (["restore", "model", "large.png"], 2, "--resize"),
        (["restore", "model", "huge.png"], 1, "huge.png is not an image"),
        (["restore", "model", "oblong.png"], 2, "smaller ones of the same proportions"),
        (["restore", "model", "fit.png", "--blur-width", "wide"], 2, "auto or a number"),
        (["restore", "model", "fit.png", "--blur-width", "-1"], 2, "auto or a number"),
        (["restore", "model", "fit.png", "--blur-width", "7"], 2, "from 0 to 6 pixels"),
        (["restore", "model", "small.png", "--blur-width", "2"], 2, "follows from its size"),
        (["restore", "model", "dot.png"], 2, "too small"),
        (["restore", "model", "fit.png", "--n", "0"], 2, "from 1 to"),
        (["restore", "model", "fit.png", "--delta-ratio", "nan"], 2, "delta_ratio must be a finite number"),
        (["restore", "model", "fit.png", "--out", "a-file"], 1, "a-file"),
        (["info", "./nowhere"], 1, "no model folder"),
        (["sample", "nothere"], 1, "no model folder nothere"),
        (["export", "nothere", "new", "--format", "torch"], 1, "no model folder nothere"),
        (["train", "nope.toml"], 1, "cannot read nope.toml"),
        (["train", "digitz"], 2, "did you mean 'digits'"),
        (["train", "digits", "--data", "./nowhere"], 1, "there is no ./nowhere"),
        (["train", "digits", "--data", "nowhere"], 2, "no such folder or file: 'nowhere'"),
        (["info", "model", "--set", "process.K=3"], 2, "go with a preset"),
    ],
)
def test_wrong_words_end_with_a_message_and_a_code(words, code, message, model, capsys, monkeypatch, tmp_path):
    (tmp_path / "a-file").write_text("")
    (tmp_path / "a-file.tar.gz").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("folder.png", "folder.gif"):
        (tmp_path / name).mkdir()
    for name, size in {"fit": (8, 8), "small": (4, 4), "dot": (1, 1), "large": (9, 9), "oblong": (6, 4)}.items():
        Image.new("L", size).save(tmp_path / f"{name}.png")
    (tmp_path / "huge.png").write_bytes(huge_png(50_000, 50_000))
    if message == "IHDM_DATA":
        monkeypatch.setitem(sys.modules, "datasets", None)  # as if the hf extra were not installed
    if message == "no device" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused(words, code, message, capsys)


ON_ONE = {"sample": [], "restore": ["fit.png"], "evaluate": ["--data", "digits", "--metrics", "spectrum", "--n", "4"]}


@pytest.mark.parametrize("verb", ON_ONE)
@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "model",
            ["--steps", "3"],
            "10 in all: leave out --steps (or --set sampling.steps=auto), or take 3 exact steps (--sampler exact",
        ),
        (
            "model",
            ["--sampler", "paper", "--steps", "3"],
            "10 in all: leave out --steps (or --set sampling.steps=auto), or take 3 exact steps",
        ),
        ("model", ["--sampler", "paper", "--eta", "0"], "eta is for the sampler 'exact', not for 'paper'"),
        ("model", ["--sampler", "paper", "--order", "1"], "order is for the sampler 'exact', not for 'paper'"),
        ("model", ["--delta-ratio", "1", "--eta", "0"], "eta is for the sampler 'exact', not for 'paper'"),
        ("model", ["--sampler", "exact", "--delta-ratio", "1"], "delta_ratio is for the sampler 'paper'"),
        ("model", ["--sampler", "exact", "--eta", "1.5"], "eta must be at most 1, not 1.5"),
        ("model", ["--sampler", "exact", "--eta", "-0.5"], "eta must be at least 0, not -0.5"),
        ("model", ["--sampler", "exact", "--eta", "nan"], "eta must be a finite number"),
        ("model", ["--sampler", "exact", "--steps", "0"], "steps must be at least 1, not 0"),
        ("model", ["--sampler", "exact", "--steps", "11"], "at most 10 steps, one for each level, not 11"),
        ("model", ["--sampler", "exact", "--order", "3"], "order must be at most 2, not 3"),
        (
            "model",
            ["--sampler", "paper", "--corrected", "true"],
            "corrected is for the sampler 'exact', not for 'paper'",
        ),
        ("model", ["--corrected", "None"], "Expected one of ('true',"),
        ("model", ["--sampler", "exakt"], "exakt"),
        ("model", ["--sampler", "None"], "None"),
        ("model", ["--steps", "None"], "None"),
        (
            "filtered",
            ["--sampler", "exact"],
            "exact steps need the heat equation (process.blur=heat); take the paper's",
        ),
        (
            "diffusion",
            ["--sampler", "exact"],
            "sampling by denoising diffusion has: steps, eta, order, corrected, clip",
        ),
        (
            "diffusion",
            ["--sampler", "paper"],
            "sampling by denoising diffusion has: steps, eta, order, corrected, clip",
        ),
        (
            "diffusion",
            ["--delta-ratio", "1"],
            "sampling by denoising diffusion has: steps, eta, order, corrected, clip",
        ),
        ("diffusion", ["--eta", "1.5"], "eta must be at most 1, not 1.5"),
        ("diffusion", ["--steps", "0"], "steps must be at least 1, not 0"),
        ("model", ["--sampler", "momentum"], "must be one of 'paper', 'exact', not 'momentum'"),
        ("soft", ["--sampler", "paper"], "must be one of 'momentum', 'exact', not 'paper'"),
        ("soft", ["--sampler", "momentum", "--eta", "0"], "eta is for the sampler 'exact', not for 'momentum'"),
        ("cold", ["--eta", "0"], "sampling by cold diffusion has: steps, start_noise"),
    ],
)
def test_samplers_that_cannot_be_are_refused_before_any_work(
    verb, name, words, message, model, others, capsys, monkeypatch
):
    def work(*words, **options):
        raise AssertionError("work was begun")

    Image.new("L", (8, 8)).save("fit.png")
    before = sorted(Path().rglob("*"))
    monkeypatch.setattr(Model, "runner", work)
    monkeypatch.setattr("ihdm.evaluation.images_for", work)
    cannot = verb == "restore" and name != "model"  # at all, which is said first
    refused([verb, name, *ON_ONE[verb], *words], 2, "restor" if cannot else message, capsys)
    assert sorted(Path().rglob("*")) == before


def test_cold_diffusion_is_refused_a_likelihood_before_any_work(others, capsys, monkeypatch):
    monkeypatch.setattr("ihdm.evaluation.images_for", lambda *words: pytest.fail("work was begun"))
    refused(["likelihood", "cold", "--data", "digits"], 2, "cold diffusion has no likelihood", capsys)


def test_a_diffusion_model_is_refused_restoring_in_words(others, capsys):
    Image.new("L", (8, 8)).save("fit.png")
    message = "denoising diffusion cannot restore what is blurred; inverse heat dissipation can"
    refused(["restore", "diffusion", "fit.png"], 2, message, capsys)
    refused(["restore", "filtered", "fit.png"], 2, "restoring needs a model of the heat equation", capsys)
    assert not Path("restored").exists()


def pixels(folder: str) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path), int) for path in sorted(Path(folder).glob("[0-9]*.png"))])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", [["--grid", "full.png"], ["--gif", "full.gif"]])
def test_a_full_disk_is_answered_with_what_to_do(model, words, capsys):
    Path(words[1]).symlink_to("/dev/full")
    refused(["sample", model, "--n", "1", *words], 1, "No space left on device; free some space", capsys)


def test_what_is_shared_must_matter(model, others, capsys):
    """Without noise on the way one start gives one image, and there is no noise to share."""
    for name, words in {"diffusion": ["--eta", "0"], "cold": [], model: ["--delta-ratio", "0"]}.items():
        for flag, effect in {"--same-start": "makes all images the same", "--same-noise": "changes nothing"}.items():
            refused(["sample", name, "--n", "2", flag, *words], 2, f"add no noise, so {flag} {effect}", capsys)
    for name, words in {"diffusion": [], "soft": [], model: ["--sampler", "exact"]}.items():
        main(["sample", name, "--n", "2", "--same-start", *words])


def test_samples_are_made_by_the_steps_that_are_asked_for(model, others, capsys):
    ways = {
        "paper": [],
        "named": ["--sampler", "paper", "--delta-ratio", "1.25"],
        "noisy": ["--delta-ratio", "5"],
        "exact": ["--sampler", "exact", "--steps", "3", "--eta", "0"],
        "again": ["--sampler", "exact", "--steps", "3", "--eta", "0"],
        "fresh": ["--sampler", "exact", "--steps", "3", "--eta", "1"],
        "first": ["--sampler", "exact", "--steps", "3", "--eta", "0", "--order", "1"],
        "corrected": ["--sampler", "exact", "--steps", "3", "--eta", "0", "--corrected", "true"],
        "not": ["--sampler", "exact", "--steps", "3", "--eta", "0", "--corrected", "false"],
        "every": ["--sampler", "exact", "--eta", "0"],
    }
    for out, words in ways.items():
        main(["sample", model, "--n", "3", "--out", out, *words])
    made = {out: pixels(out) for out in ways}
    assert all(images.shape == (3, 8, 8) for images in made.values())
    assert np.array_equal(made["paper"], made["named"]) and np.array_equal(made["exact"], made["again"])
    assert np.array_equal(made["exact"], made["not"])
    different = ["paper", "noisy", "exact", "fresh", "first", "corrected", "every"]
    assert len({made[out].tobytes() for out in different}) == len(different)
    expected = Model.from_pretrained(model).sample(3, sampler="exact", steps=3, eta=0.0) * 255
    assert np.abs(made["exact"] - expected[:, 0].numpy()).max() < 0.6
    main(["sample", model, "--n", "2", "--gif", "grow.gif", "--sampler", "exact", "--steps", "3"])
    assert Image.open("grow.gif").n_frames == 4  # as many as there are levels on the way
    for out, words in {"ancestral": [], "ddim": ["--eta", "0", "--steps", "5"]}.items():
        main(["sample", "diffusion", "--n", "3", "--out", out, *words])
    assert not np.array_equal(pixels("ancestral"), pixels("ddim"))
    ways = {"momentum": [], "few": ["--steps", "5"], "posterior": ["--sampler", "exact"], "still": ["--eta", "0"]}
    for out, words in ways.items():
        main(["sample", "soft", "--n", "3", "--out", out, *words])
    assert len({pixels(out).tobytes() for out in ways}) == 4
    main(["sample", "cold", "--n", "3", "--out", "skipping", "--steps", "4"])


def test_a_model_that_takes_few_steps_can_be_told_to_take_the_papers(model, capsys):
    """The number of steps that it has was for exact ones."""
    Model.from_pretrained(model).sampled(sampler="exact", steps=3).save_pretrained("quick")
    main(["sample", model, "--n", "2", "--out", "paper"])
    main(["sample", "quick", "--n", "2", "--out", "back", "--sampler", "paper"])
    assert np.array_equal(pixels("paper"), pixels("back"))
    refused(["sample", "quick", "--sampler", "paper", "--steps", "3"], 2, "take 3 exact steps", capsys)
    for name in (model, "quick"):  # which only the paper's steps have
        main(["sample", name, "--n", "2", "--out", f"{name}-soft", "--delta-ratio", "1"])
    assert np.array_equal(pixels(f"{model}-soft"), pixels("quick-soft"))
    Image.new("L", (8, 8), 128).save("fit.png")
    main(["restore", "quick", "fit.png", "--blur-width", "1.5", "--sampler", "paper", "--n", "1"])


@pytest.mark.accident("names that are not UTF-8", "of images, data, runs and results; read and written")
def test_names_that_are_not_utf8_are_read_written_and_printed(model, tmp_path, capfdbinary):
    data, run, out = (os.fsdecode(name) for name in (b"photos\xff", b"run\xfe", b"out\xfd.png"))
    Path(data).mkdir()
    for i in range(4):
        Image.new("L", (8, 8), 50 * i).save(os.path.join(data, f"{i}\udcfc.png"))
    settings = ["network.channels=4", "network.multipliers=1", "network.attention=none", "network.blocks=1"]
    settings += ["process.K=3", "trainer.batch_size=2", "trainer.samples=2", "engine.device=cpu"]
    for steps in (2, 3):  # the second goes on
        main(["train", "digits", "--data", data, "--run", run, "--set", *settings, f"trainer.steps={steps}"])
    main(["info", run])
    main(["sample", run, "--n", "2", "--grid", out])
    main(["restore", model, os.path.join(data, "1\udcfc.png"), "--n", "1", "--out", run + "/restored"])
    assert Path(out).exists() and Path(run, "restored", "00.png").exists()
    assert b"out\\udcfd.png" in capfdbinary.readouterr().out
    (Path(data) / "broken\udcfb.png").write_bytes(b"")
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--data", data, "--run", "other"])
    assert stop.value.code == 1 and b"broken\\udcfb.png is not an image" in capfdbinary.readouterr().err


@pytest.mark.parametrize("verb", ["sample", "restore", "study"])
def test_folders_that_cannot_be_created_are_refused_in_words(verb, model, capsys, monkeypatch):
    """As the system answers; permissions do not bind the superuser, and so the answer is put into its mouth."""
    Path("a-file").touch()
    Image.new("L", (8, 8)).save("fit.png")
    words = {"sample": [model], "restore": [model, "fit.png"], "study": ["sequence"]}[verb]
    monkeypatch.setattr(Model, "runner", lambda *_: pytest.fail("work was begun"))
    refused([verb, *words, "--out", "a-file/new"], 1, "the folder a-file/new cannot be created (Not a dir", capsys)
    make = os.mkdir

    def closed(path, *rest, **options):
        if Path(path).parent == Path("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        make(path, *rest, **options)

    Path("closed").mkdir()
    monkeypatch.setattr(os, "mkdir", closed)
    message = "the folder closed/new cannot be created (Permission denied); give another one"
    refused([verb, *words, "--out", "closed/new"], 1, message, capsys)


def test_folders_whose_names_are_too_long_and_links_to_nothing_are_refused(model, capsys, monkeypatch):
    monkeypatch.setattr(Model, "runner", lambda *_: pytest.fail("work was begun"))
    refused(["sample", model, "--out", f"new/{'a' * 300}"], 1, "cannot be created (File name too long)", capsys)
    Path("link").symlink_to("nothing")
    refused(["sample", model, "--out", "link"], 1, "the folder link cannot be created (No such file", capsys)
    assert sorted(Path().iterdir()) == [Path("link"), Path("model")]


OF_NO_MODEL = {
    "sample": "sample nothing --out a/b --grid c/d.png --gif e/f.gif",
    "restore": "restore nothing fit.png --out a/b",
    "evaluate": "evaluate nothing --data digits --json a/b.json --figures c/d",
    "likelihood": "likelihood nothing --data digits --json a/b.json --figures c/d",
    "study": "study sequence --model nothing --out a/b",
    "export": "export nothing a/b --format torch",
    "convert": "convert nothing a/b --preset digits",
    "pack": "pack nothing a/b",
    "unpack": "unpack nothing a/b",
}


@pytest.mark.parametrize("words", OF_NO_MODEL.values(), ids=OF_NO_MODEL)
def test_a_command_that_is_refused_leaves_no_folders_behind(words):
    Image.new("L", (8, 8)).save("fit.png")
    with pytest.raises(SystemExit):
        main(words.split())
    assert sorted(Path().iterdir()) == [Path("fit.png")]


def test_a_refused_command_does_not_keep_a_run_from_its_folder(model, capsys):
    refused(["sample", model, "--steps", "101", "--out", "run/samples"], 2, "at most 10 steps", capsys)
    main(["train", "digits", "--run", "run", *QUICK])
    assert Path("run/model").is_dir()


def test_new_folders_are_made_for_whatever_is_written(model):
    main(["sample", model, "--n", "1", "--out", "a/b", "--grid", "c/d/e.png", "--gif", "f/g.gif"])
    Image.new("L", (8, 8), 90).save("fit.png")
    main(["restore", model, "fit.png", "--n", "1", "--out", "h/i"])
    np.savez("blobs.npz", train=np.zeros((4, 8, 8), np.uint8))
    words = [model, "--data", "blobs.npz", "--n", "4"]
    main(["evaluate", *words, "--metrics", "spectrum", "--json", "j/k.json", "--figures", "l/m"])
    main(["likelihood", *words, "--split", "train", "--levels", "2", "--json", "n/o.json", "--figures", "p/q"])
    files = "a/b/000000.png c/d/e.png f/g.gif h/i/restored.png j/k.json l/m/spectrum.png n/o.json p/q/likelihood.png"
    assert all(Path(name).is_file() for name in files.split())


def test_images_that_others_write_meanwhile_are_left_as_they_are(model, capsys, monkeypatch):
    """Two commands may find the same folder empty; the second to write does not replace what the first wrote."""
    made = Model.sample_batches

    def meanwhile(*words, **options):
        Path("out/000001.png").write_bytes(b"of another command")
        return made(*words, **options)

    monkeypatch.setattr(Model, "sample_batches", meanwhile)
    message = "another program has written out/000001.png in the meantime"
    refused(["sample", model, "--n", "3", "--out", "out"], 1, message, capsys)
    assert Path("out/000001.png").read_bytes() == b"of another command"


def test_a_terminal_that_knows_few_letters_is_put_up_with(model, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr("sys.stdout", terminal)
    main(["sample", model, "--n", "1", "--grid", "é.png"])
    assert Path("é.png").exists() and terminal.buffer.getvalue().endswith(b"\\xe9.png\n")


def test_without_a_home_everything_works(model, monkeypatch, tmp_path, capsys):
    for name in ("HOME", "IHDM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("nobody")))
    Path("photos").mkdir()
    for i in range(4):
        Image.new("L", (8, 8), 50 * i).save(f"photos/{i}.png")
    main(["info", "digits", "--data", "photos"])
    main(["sample", model, "--n", "1"])
    refused(["sample", "~/model"], 1, "there is no model folder ~/model", capsys)


def test_half_of_torchruns_environment_is_refused(model, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    refused(["sample", model, "--n", "1"], 2, "start ihdm with torchrun, or unset WORLD_SIZE", capsys)
    refused(["train", "digits", "--run", "run"], 2, "start ihdm with torchrun, or unset WORLD_SIZE", capsys)
    monkeypatch.setenv("WORLD_SIZE", "two")
    refused(["sample", model, "--n", "1"], 2, "WORLD_SIZE is 'two'", capsys)


def test_bad_images_end_with_their_name_and_code_1(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    refused(["train", "digits", "--data", "empty"], 1, "holds no images", capsys)
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.png").write_bytes(b"nonsense")
    refused(["train", "digits", "--data", "mixed"], 1, "a.png is not an image", capsys)
    for name, size in (("a", 8), ("b", 9)):
        Image.new("L", (size, size)).save(tmp_path / "mixed" / f"{name}.png")
    refused(["train", "digits", "--data", "mixed", "--set", "data.holdout=0"], 2, "data.size", capsys)


def test_train_on_a_folder_of_photos_then_sample(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(6):
        pixels = rng.integers(0, 256, (40 + 5 * i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.jpg")
    main(["train", "digits", "--data", "photos", "--run", "here", "--set", "data.size=9x13", *QUICK])
    assert "ihdm sample here/model" in capsys.readouterr().out
    main(["sample", "here/model", "--n", "3", "--grid", "g/grid.png", "--gif", "g/grow.gif", "--out", "g/each"])
    assert Image.open("g/grow.gif").n_frames == 5  # levels 4, 3, 2, 1, 0
    assert [Image.open(path).size for path in sorted((tmp_path / "g/each").iterdir())] == [(13, 9)] * 3
    assert Image.open("g/grid.png").size[0] > 3 * 13
    main(["sample", "here/model", "--n", "2"])
    assert (tmp_path / "samples.png").exists()


def test_restore_makes_pictures_and_says_what_it_found(model, tiny_images, tmp_path, capsys):
    sharp = Image.fromarray(tiny_images.held_out[0, 0].numpy())
    sharp.filter(ImageFilter.GaussianBlur(1.5)).save("blurred.png")
    main(["restore", model, "blurred.png", "--n", "3", "--out", "out"])
    said = capsys.readouterr().out
    assert "(estimated), level" in said and "/255 (rms)" in said and "out/restored.png" in said
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("00.png", "01.png", "02.png"),
        *("input.png", "restored.png"),
    ]
    assert np.array_equal(np.asarray(Image.open("out/input.png")), np.asarray(Image.open("blurred.png")))
    assert Image.open("out/00.png").size == (8, 8) and Image.open("out/restored.png").width > 3 * 64
    main(["restore", model, "blurred.png", "--blur-width", "1.5", "--no-consistent", "--n", "1", "--out", "free"])
    assert "blur width 1.50 pixels (given)" in capsys.readouterr().out
    sharp.reduce(2).save("small.png")
    main(["restore", model, "small.png", "--n", "1", "--out", "small"])
    assert "blur width 2.80 pixels (by its size)" in capsys.readouterr().out
    given = ["restore", model, "blurred.png", "--blur-width", "1.5", "--n", "2"]
    exact, residual = ["--sampler", "exact", "--steps"], []
    ways = {"paper": ["--delta-ratio", "1.25"], "exact": [*exact, "5"], "still": [*exact, "5", "--eta", "0"]}
    for out, words in (ways | {"quick": [*exact, "3"]}).items():
        main([*given, "--out", out, *words])
        said = capsys.readouterr().out
        assert "blur width 1.50 pixels (given)" in said
        residual.append(float(said.split("differ from the image by ")[1].split("/255")[0]))
    made = [pixels(out) for out in ("paper", "exact", "still", "quick")]
    assert [len(images) for images in made] == [2, 2, 2, 2] and len({images.tobytes() for images in made}) == 4
    assert max(residual) < 2 * residual[0]  # an untrained model leaves [0, 1], and is clamped to it


def test_restore_says_what_becomes_of_a_sharp_image(model, tmp_path, capsys):
    """The linear estimate need not be the image itself, and is not said to be."""
    chequered = 60 + 130 * (np.add.outer(np.arange(8), np.arange(8)) % 2)
    Image.fromarray(chequered.astype(np.uint8)).save("sharp.png")
    for width, begins in {"0": "that is next", "0.2": "that is next", "auto": "the image already looks sharp"}.items():
        main(["restore", model, "sharp.png", "--blur-width", width, "--n", "2", "--out", width])
        (said,) = [line for line in capsys.readouterr().out.splitlines() if "best linear estimate" in line]
        assert said.startswith(begins) and said.endswith("give --blur-width PIXELS") == (width == "auto")
        made, changed = pixels(width), float(said.split("differs from the image by ")[1].split("/255 (rms)")[0])
        assert (made[0] == made[1]).all()
        assert np.sqrt(np.square(made[0] - chequered).mean()) == pytest.approx(changed, abs=0.5)


def test_restore_replaces_its_own_results_and_nothing_else(model, tiny_images, tmp_path, capsys):
    Image.fromarray(tiny_images.train[0, 0].numpy()).save("input.png")
    before = Path("input.png").read_bytes()
    main(["restore", model, "input.png", "--blur-width", "1", "--n", "3", "--out", "out"])
    main(["restore", model, "input.png", "--blur-width", "1", "--n", "1", "--out", "out"])
    assert sorted(path.name for path in Path("out").iterdir()) == ["00.png", "input.png", "restored.png"]
    for words in (["input.png", "--out", "."], ["out/00.png", "--out", "out"]):
        with pytest.raises(SystemExit) as stopped:
            main(["restore", model, *words])
        assert stopped.value.code == 2 and "other files in it" in capsys.readouterr().err
    assert Path("input.png").read_bytes() == before
    main(["sample", model, "--n", "12", "--out", "pics"])
    Path("out/00.png").write_bytes(before)  # by another hand, under a name of ours
    for out, files in (("pics", 12), ("out", 3)):
        with pytest.raises(SystemExit) as stopped:
            main(["restore", model, "input.png", "--blur-width", "1", "--n", "1", "--out", out])
        assert stopped.value.code == 2 and "other files in it" in capsys.readouterr().err
        assert len(list(Path(out).iterdir())) == files
    with pytest.raises(SystemExit):
        main(["restore", model, "nowhere.png", "--out", "new"])
    assert "there is no file nowhere.png" in capsys.readouterr().err and not Path("new").exists()


def test_restore_reads_every_kind_of_image(model, tmp_path, capsys):
    rng = np.random.default_rng(0)
    grey = rng.integers(60, 200, (8, 8), dtype=np.uint8)
    colour = Image.fromarray(np.stack([grey] * 3, -1))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees
    alpha = Image.fromarray(np.dstack([grey, np.full_like(grey, 255)]))
    Image.fromarray(grey).save("grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save("deep.png")
    Image.fromarray(np.rot90(grey)).save("turned.png", exif=turned)
    alpha.save("alpha.png")
    colour.save("colour.png")
    colour.resize((24, 16), Image.Resampling.NEAREST).save("large.png")
    for name in ("grey", "deep", "turned", "alpha", "colour"):
        main(["restore", model, f"{name}.png", "--n", "1", "--out", name, "--blur-width", "1"])
        assert ("is colour; the model's images are grey" in capsys.readouterr().out) == (name == "colour")
        assert np.array_equal(np.asarray(Image.open(f"{name}/input.png")), grey), name
    main(["restore", model, "large.png", "--n", "1", "--out", "large", "--resize"])
    assert Image.open("large/00.png").size == (8, 8)


def test_a_data_path_in_any_script_is_found_again(tmp_path, capsys):
    (tmp_path / "фото 😀").mkdir()
    for i in range(3):
        Image.new("L", (8, 8), 80 * i).save(tmp_path / "фото 😀" / f"{i}.png")
    for _ in range(2):
        main(["train", "digits", "--data", "фото 😀", "--run", "run", *QUICK])
    assert "is already at step 4" in capsys.readouterr().out


def test_settings_may_share_a_flag_and_a_moved_data_folder_may_go_on(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for i in range(3):
        Image.new("L", (8, 8), 80 * i).save(tmp_path / "photos" / f"{i}.png")
    settings = ["--set", "trainer.steps=2", "process.K=4", "network.channels=8", "--set", "network.attention=none"]
    main(["train", "digits", "--data", "photos", "--run", "run", *settings])
    (tmp_path / "photos").rename(tmp_path / "moved")
    main(["train", "digits", "--data", "moved", "--run", "run", *settings, "--set", "trainer.steps=3"])
    assert "continuing from step 2" in capsys.readouterr().out
    main(["info", "run"])
    assert "3 steps on moved" in capsys.readouterr().out


@pytest.mark.parametrize("broken", [0, 2])
@pytest.mark.parametrize("memory", ["yes", "no"])
def test_training_that_a_broken_image_stops_says_how_to_go_on_without(broken, memory, tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for i in range(4):
        Image.new("L", (8, 8), 60 * i).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / f"{broken}.png").write_bytes(b"")
    words = ["train", "digits", "--data", "photos", "--run", "run", *QUICK]
    words += ["--set", "data.holdout=0", f"data.memory={memory}"]
    refused(words, 1, f"{broken}.png is not an image that can be read", capsys)
    refused(words, 1, "--set data.on_error=skip", capsys)
    main([*words, "data.on_error=skip"])


def test_large_photographs_are_read_without_talk_of_attacks(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)  # Pillow warns from there, and refuses from twice as many
    (tmp_path / "photos").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "photos" / "large.png")
    with warnings.catch_warnings(record=True) as warned:
        main(["train", "digits", "--data", "photos", "--run", "run", *QUICK])
    assert not [one for one in warned if issubclass(one.category, Image.DecompressionBombWarning)]


def test_a_run_is_measured_on_the_images_that_it_held_out(tmp_path, capsys):
    main(["train", "digits", "--run", "run", *QUICK, "--set", "data.holdout=0.3", "data.on_error=skip"])
    model, learned = Model.from_pretrained("run"), load_images(DataConfig("digits", holdout=0.3), held_out_most=None)
    for name in ("run", "run/model", str(tmp_path / "run")):
        images = images_for(model, "digits", name=name)
        assert torch.equal(images.train, learned.train) and torch.equal(images.held_out, learned.held_out)
    Path("run/model").rename("elsewhere")
    assert len(images_for(model, "digits", name="elsewhere").held_out) == 90  # which says nothing of its training
    np.save("own.npy", np.zeros((40, 8, 8), np.uint8))
    assert len(images_for(model, "own.npy", name="run").held_out) == 2  # and these are others


def test_a_run_that_held_nothing_out_has_nothing_to_be_measured_on(capsys):
    main(["train", "digits", "--run", "run", *QUICK, "--set", "data.holdout=0"])
    refused(["likelihood", "run", "--data", "digits"], 2, "none were held out in training; --split train", capsys)
    images = images_for(Model.from_pretrained("run"), "digits", name="run")
    with pytest.raises(UsageError, match="leave it out \\(--metrics fid kid spectrum\\)"):
        check_images(METRICS, 5000, images, "train", allow_few=True)
    main(["likelihood", "run", "--data", "digits", "--split", "train", "--n", "2", "--levels", "2"])


def test_a_blur_too_narrow_for_the_images_is_pointed_out(capsys):
    main(["train", "digits", *QUICK, "--set", "process.sigma_B_max=2"])
    assert "does not blank data that are" in capsys.readouterr().out


def test_four_channels_are_written_with_alpha(tiny_config, tmp_path):
    config = ModelConfig.of(tiny_config, (4, 8, 8))
    images = torch.randint(0, 256, (5, 4, 8, 8), dtype=torch.uint8)
    Model.from_images(config, images).save_pretrained(tmp_path / "rgba")
    main(["sample", "rgba", "--n", "2", "--out", "each", "--grid", "grid.png"])
    assert Image.open("each/000000.png").mode == "RGBA" and Image.open("grid.png").mode == "RGB"


@pytest.mark.parametrize("channels", [2, 5])
def test_no_channel_of_a_sample_is_dropped(channels, tiny_config, tmp_path):
    config = ModelConfig.of(tiny_config, (channels, 8, 8))
    images = torch.randint(0, 256, (5, channels, 8, 8), dtype=torch.uint8)
    Model.from_images(config, images).save_pretrained(tmp_path / "many")
    main(["sample", "many", "--n", "2", "--out", "each", "--grid", "grid.png"])
    written = np.stack([np.load(f"each/{i:06d}.npy") for i in range(2)])
    assert np.array_equal(written, to_bytes(Model.from_pretrained("many").sample(2)).numpy())
    np.save("all.npy", written)
    assert torch.equal(load_images(DataConfig("all.npy", holdout=0)).train, torch.from_numpy(written))


def test_sigma_zero_is_allowed_with_a_warning(capsys):
    words = ["train", "digits", *QUICK, "--set", "process.sigma=0", "process.skip=identity"]
    advice = "--set sampling.sampler=paper sampling.steps=auto"
    refused(
        words,
        2,
        f"exact steps need noise (process.sigma of 1e-6 or more); take the paper's steps (--sampler paper, or {advice}",
        capsys,
    )
    main([*words, *advice.split()])
    assert "unstable" in capsys.readouterr().err


def test_what_a_refusal_advises_is_taken(capsys):
    """The preset takes fewer exact steps than it has levels."""
    main(["info", "digits"])
    words, advice = ["--set", "sampling.sampler=paper", "sampling.steps=25"], ["--set", "sampling.steps=auto"]
    refused(["info", "digits", *words], 2, " ".join(advice), capsys)
    main(["info", "digits", *words, *advice])


def test_info_of_a_preset_and_of_a_model(model, capsys):
    main(["info", "cifar10", "--set", "network.resample=conv", "--set", "process.K=50"])
    text = capsys.readouterr().out
    assert "61,060,867 parameters" in text and "K = 50" in text and "sigma_B 0.5 to 24" in text
    assert "400,000 steps of 128 images" in text and "with 128 images at a time" in text
    main(["info", model])
    text = capsys.readouterr().out
    assert "7 steps on blobs" in text and "8x8 in grey" in text and "with 16 images at a time" in text
    assert "4x4 from level" in text and "(network.pyramid)" in text
    main(["info", "drums"])
    assert "none; give --data SOURCE" in capsys.readouterr().out


def test_info_looks_at_the_images_that_are_given(tmp_path, capsys, monkeypatch):
    """Also if the preset fixes their size and channels. They are counted, and none of them is decoded."""
    for split, count in {"train": 7, "test": 2}.items():
        (tmp_path / "photos" / split).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "photos" / split / f"{i}.png").write_bytes(b"never looked at")
    main(["info", "cifar10-small", "--data", "photos", "--set", "data.flip=true"])
    counted = "photos, 7 images to learn from and 2 held out, mirrored at random"
    assert counted in capsys.readouterr().out
    for preset in ("cifar10-small", "digits", "drums"):
        refused(["info", preset, "--data", "nowhere"], 2, "no such folder or file: 'nowhere'", capsys)
    (tmp_path / "empty").mkdir()
    refused(["info", "cifar10-small", "--data", "empty"], 1, "holds no images", capsys)
    (tmp_path / "photos" / "test").rename(tmp_path / "empty" / "test")
    refused(["info", "cifar10-small", "--data", "empty"], 1, "has no training images, only: test", capsys)
    monkeypatch.setattr("ihdm.data.sources.hub_splits", lambda *_, **__: pytest.fail("the hub was contacted"))
    for source in ("hf:some/set", "cifar10"):
        main(["info", "cifar10-small", "--data", source])
        assert f"{source}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_demo_makes_its_pictures_and_trains_only_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ihdm.demo.LONGER", {"mnist-ready": 4, "cifar10-ready": 2})
    main(["demo", *QUICK])
    for name in ("samples.png", "sequence.png", "growth.gif", "mnist-ready.png", "cifar10-ready.png"):
        assert Image.open(tmp_path / "demo" / name).size[0] > 100
    before = (tmp_path / "demo" / "model" / "model.safetensors").stat().st_mtime_ns
    main(["demo", *QUICK])
    assert (tmp_path / "demo" / "model" / "model.safetensors").stat().st_mtime_ns == before
    assert "demo/model" in capsys.readouterr().out


@pytest.mark.accident("asked to stop (Ctrl-C)", "saved, exit code 0, and the same command goes on")
def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path):
    words = [sys.executable, "-m", "ihdm", "train", "digits", "--run", "run", *QUICK, "--set", "engine.device=cpu"]
    endless = [*words, "--set", "trainer.steps=1000000", "--set", "trainer.checkpoint_every=1000000"]
    process = subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "log.jsonl"
    deadline = time.time() + 60
    while not (log.exists() and log.read_text()) and time.time() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "everything saved" in output and "Traceback" not in error
    step = max(json.loads(line)["step"] for line in log.read_text().splitlines())
    done = subprocess.run([*words, "--set", f"trainer.steps={step + 2}"], capture_output=True, text=True)
    assert f"continuing from step {step:,}" in done.stdout, done.stderr
    assert "done" in done.stdout


def test_running_out_of_memory_says_what_helps(model, capsys, monkeypatch):
    def exhausted(*words, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(InverseHeat, "start", exhausted)
    refused(
        ["sample", "model", "--batch-size", "40"], 1, "not enough memory for 32 images at a time; 16 should", capsys
    )
    monkeypatch.setattr(Model, "from_pretrained", exhausted)
    refused(["sample", "model"], 1, "trainer.accumulate", capsys)
