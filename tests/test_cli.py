from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from ihdm.cli import VERBS, main
from ihdm.config import presets
from ihdm.model import Model
from ihdm.model_folder import ModelConfig

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
    config = ModelConfig(tiny_config.process, tiny_config.network, tiny_images.shape, "blobs", 7)
    Model.from_images(config, tiny_images.train).save_pretrained(tmp_path / "model")
    return "model"


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
    assert all(name in text for name in [*VERBS, *presets(), "process.sigma_B_max"])
    code = "import sys; from ihdm.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_without_importing_torch(verb):
    code = """import sys; from ihdm.cli import main
try: main([sys.argv[1], "--help"])
finally: assert "torch" not in sys.modules"""
    done = subprocess.run([sys.executable, "-c", code, verb], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout


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
        (["sample", "model", "--n", "0"], 2, "at least 1"),
        (["sample", "model", "--delta-ratio", "-1"], 2, "negative"),
        (["restore", "model", "nowhere.png"], 1, "there is no file nowhere.png"),
        (["restore", "model", "a-file"], 1, "a-file is not an image"),
        (["restore", "model", "large.png"], 2, "--resize"),
        (["restore", "model", "huge.png"], 1, "huge.png is not an image"),
        (["restore", "model", "oblong.png"], 2, "smaller ones of the same shape"),
        (["restore", "model", "fit.png", "--blur-width", "wide"], 2, "auto or a number"),
        (["restore", "model", "fit.png", "--blur-width", "-1"], 2, "auto or a number"),
        (["restore", "model", "fit.png", "--blur-width", "7"], 2, "from 0 to 6 pixels"),
        (["restore", "model", "small.png", "--blur-width", "2"], 2, "follows from its size"),
        (["restore", "model", "dot.png"], 2, "too small"),
        (["restore", "model", "fit.png", "--n", "0"], 2, "at least 1"),
        (["restore", "model", "fit.png", "--delta-ratio", "nan"], 2, "not negative"),
        (["restore", "model", "fit.png", "--out", "a-file"], 1, "a-file"),
        (["info", "./nowhere"], 1, "no model folder"),
        (["info", "model", "--set", "process.K=3"], 2, "go with a preset"),
    ],
)
def test_wrong_words_end_with_a_message_and_a_code(words, code, message, model, capsys, monkeypatch, tmp_path):
    (tmp_path / "a-file").write_text("")
    for name, size in {"fit": (8, 8), "small": (4, 4), "dot": (1, 1), "large": (9, 9), "oblong": (6, 4)}.items():
        Image.new("L", size).save(tmp_path / f"{name}.png")
    (tmp_path / "huge.png").write_bytes(huge_png(50_000, 50_000))
    if message == "IHDM_DATA":
        monkeypatch.setitem(sys.modules, "datasets", None)  # as if the hf extra were not installed
    if message == "no device" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused(words, code, message, capsys)


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
    assert "blur width 2.80 pixels (of small pixels)" in capsys.readouterr().out


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
    assert "going on from step 4" in capsys.readouterr().out


def test_settings_may_share_a_flag_and_a_moved_data_folder_may_go_on(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for i in range(3):
        Image.new("L", (8, 8), 80 * i).save(tmp_path / "photos" / f"{i}.png")
    settings = ["--set", "trainer.steps=2", "process.K=4", "network.channels=8", "--set", "network.attention=none"]
    main(["train", "digits", "--data", "photos", "--run", "run", *settings])
    (tmp_path / "photos").rename(tmp_path / "moved")
    main(["train", "digits", "--data", "moved", "--run", "run", *settings, "--set", "trainer.steps=3"])
    assert "going on from step 2" in capsys.readouterr().out
    main(["info", "run"])
    assert "3 steps on moved" in capsys.readouterr().out


def test_a_blur_too_narrow_for_the_images_is_pointed_out(capsys):
    main(["train", "digits", *QUICK, "--set", "process.sigma_B_max=2"])
    assert "not blank yet" in capsys.readouterr().out


def test_four_channels_are_written_with_alpha(tiny_config, tmp_path):
    config = ModelConfig(tiny_config.process, tiny_config.network, (4, 8, 8))
    images = torch.randint(0, 256, (5, 4, 8, 8), dtype=torch.uint8)
    Model.from_images(config, images).save_pretrained(tmp_path / "rgba")
    main(["sample", "rgba", "--n", "2", "--out", "each", "--grid", "grid.png"])
    assert Image.open("each/000000.png").mode == "RGBA" and Image.open("grid.png").mode == "RGB"


def test_sigma_zero_is_allowed_with_a_warning(capsys):
    main(["train", "digits", *QUICK, "--set", "process.sigma=0", "--set", "process.skip=identity"])
    assert "unstable" in capsys.readouterr().err


def test_info_of_a_preset_and_of_a_model(model, capsys):
    main(["info", "cifar10", "--set", "network.resample=conv", "--set", "process.K=50"])
    text = capsys.readouterr().out
    assert "61,060,867 parameters" in text and "K = 50" in text and "sigma_B 0.5 to 24" in text
    assert "400,000 steps of 128 images" in text and "with 128 images at a time" in text
    main(["info", model])
    text = capsys.readouterr().out
    assert "7 steps on blobs" in text and "1 x 8 x 8" in text and "with 16 images at a time" in text


def test_demo_makes_its_pictures_and_trains_only_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ihdm.demo.LARGER", 4)
    main(["demo", *QUICK])
    for name in ("samples.png", "sequence.png", "growth.gif", "mnist.png"):
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
    assert "all saved" in output and "Traceback" not in error
    step = max(json.loads(line)["step"] for line in log.read_text().splitlines())
    done = subprocess.run([*words, "--set", f"trainer.steps={step + 2}"], capture_output=True, text=True)
    assert f"going on from step {step:,}" in done.stdout, done.stderr
    assert "done" in done.stdout


def test_running_out_of_memory_says_what_helps(model, capsys, monkeypatch):
    def exhausted(*words, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Model, "start", exhausted)
    refused(
        ["sample", "model", "--batch-size", "40"], 1, "not enough memory for 32 images at a time; 16 should", capsys
    )
    monkeypatch.setattr(Model, "from_pretrained", exhausted)
    refused(["sample", "model"], 1, "trainer.accumulate", capsys)
