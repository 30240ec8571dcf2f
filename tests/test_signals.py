"""Sounds: their domain, their files, training on them, and restoring them."""

from __future__ import annotations

import math
import shutil
import struct
import sys
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ihdm.blurs import KINDS, kinds
from ihdm.cli import main
from ihdm.config import Config, DataConfig
from ihdm.data import ImageSet, data_domain, load_images
from ihdm.data.audio import Sound, decoded
from ihdm.data.signals import inside
from ihdm.domains import SignalDomain
from ihdm.domains.signals import LOWEST_HEARD
from ihdm.errors import IhdmError, UsageError
from ihdm.graph import GraphLaplacian
from ihdm.heat import GridLaplacian
from ihdm.model import Model
from ihdm.pixels import ROUNDING
from ihdm.processes import InverseHeat, LinearPredictor, LinearSkip, Spectrum
from ihdm.registry import DOMAINS
from ihdm.restoration import Guided, observe
from ihdm.sampler import chain, last, reverse_step
from ihdm.schedule import Schedule

RATE, LENGTH = 2000, 256
DOMAIN = SignalDomain((1, LENGTH), RATE)
Prepared = Callable[[Path], Path]


def midpoints(n: int, rate: int) -> torch.Tensor:
    """The times in seconds that samples stand for: each for its share of time."""
    return (torch.arange(n).double() + 0.5) / rate


def hit(frequency: float, n: int = LENGTH, rate: int = RATE) -> torch.Tensor:
    """A tone that fades, (1, n) in [-1, 1]."""
    t = midpoints(n, rate)
    return (0.8 * torch.exp(-20 * t) * torch.sin(2 * math.pi * frequency * t))[None]


def save(samples: torch.Tensor, path: Path, rate: int = RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    SignalDomain(tuple(samples.shape), rate).write((samples + 1) / 2, path)


def wav_of(frames: bytes, width: int, rate: int, channels: int, path: Path) -> bytes:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(frames)
    return path.read_bytes()


@pytest.fixture(scope="module")
def hits(tmp_path_factory) -> Path:
    """Class folders of low and high tones."""
    folder = tmp_path_factory.mktemp("hits")
    for i in range(12):
        save(hit(60 + 5 * i), folder / "low" / f"{i}.wav")
        save(hit(400 + 20 * i), folder / "high" / f"{i}.wav")
    return folder


def loaded(source: Path, **settings) -> ImageSet:
    return load_images(Config().with_tree({"data": {"kind": "signals", "source": str(source)} | settings}).data)


# The domain


def test_a_sound_says_what_it_is():
    stereo = SignalDomain((2, 4096), 8000, 0.9)
    assert stereo.words == "4,096 samples at 8,000 Hz, stereo" and DOMAIN.words == "256 samples at 2,000 Hz, mono"
    assert stereo.longest == 8000 / LOWEST_HEARD / 2 and SignalDomain((1, 50), 8000).longest == 50
    assert stereo.data_settings() == {"kind": "signals", "size": (4096,), "channels": 2, "rate": 8000, "peak": 0.9}
    assert DOMAINS["signals"].restored((2, 4096), stereo.tree(), {}) == stereo
    assert DOMAINS["signals"].restored((1, LENGTH), DOMAIN.tree(), {}) == DOMAIN
    for tree in ({}, {"rate": 0}, {"rate": 8000.5}, {"rate": True}, {"rate": 8000, "peak": 2.0}, {"rate": 1, "x": 1}):
        with pytest.raises(ValueError, match=r"rate|peak"):
            SignalDomain.restored((1, 8), tree, {})
    with pytest.raises(ValueError, match="channels and samples"):
        SignalDomain((1, 8, 8), 8000)


def test_a_blur_halves_the_power_where_it_says():
    width, n = 5.0, 4096
    domain = SignalDomain((1, n), 8000)
    frequency = int(domain.width_words(width).split()[-2])
    j = round(2 * n * frequency / 8000)
    left = GridLaplacian((n,)).decay(torch.tensor([width**2 / 2]), torch.zeros(1).double())[0, 0, j]
    assert float(left) ** 2 == pytest.approx(0.5, abs=0.005)
    assert domain.width_label(width).endswith(f"{frequency} Hz") and domain.width_label(0.0).endswith("sharp")
    assert domain.width_label(200.0).endswith("\n5.3 Hz") and "halves the power" in domain.width_label_words
    assert [domain.difference_words(rms) for rms in (0.5, 0.0)] == ["0 dB of full scale", "-101 dB of full scale"]


def test_frequencies_are_in_hertz():
    frequency = SignalDomain((1, 4096), 8000).frequencies((-GridLaplacian((4096,)).eigenvalues).sqrt())
    torch.testing.assert_close(frequency, 8000 * torch.arange(4096).double() / (2 * 4096))


@pytest.mark.parametrize("j", [0, 3, 700])
def test_a_cosine_fades_by_the_square_of_its_frequency(j):
    n, t = 1024, 9.0
    u = 0.5 + 0.4 * torch.cos(math.pi * j * (torch.arange(n).double() + 0.5) / n)[None, None]
    blurred = SignalDomain((1, n), 8000).laplacian.dissipate(u, t)
    torch.testing.assert_close(blurred - 0.5, (u - 0.5) * math.exp(-((math.pi * j / n) ** 2) * t))


def test_a_picture_has_tones_at_their_height_and_hits_at_their_time():
    n, rate = 4096, 8000
    t = midpoints(n, rate)
    tone, early = torch.sin(2 * math.pi * 1530 * t), torch.sin(2 * math.pi * 1530 * t) * (t < n / rate / 2)
    u = torch.stack([tone, early, 0 * t])[:, None] / 2 + 0.5
    shown = SignalDomain((1, n), rate).pictures(u)
    assert shown.shape == (3, 3, 96, 128) and float(shown.min()) >= 0 and float(shown.max()) <= 1
    wave_part, spectrogram = shown[:, 0, :32], shown[:, 0, 32:]
    assert int(spectrogram[0, :, 20:-20].mean(1).argmax()) == pytest.approx(64 - 1530 / 4000 * 64, abs=1)
    assert float(spectrogram[1, :, :60].max()) > 0.9 and float(spectrogram[1, :, 70:].max()) == 0
    assert float(spectrogram[2].max()) == 0
    assert bool((wave_part[0] < 1).all()) and (wave_part[2] < 1).sum(1).tolist() == [0] * 15 + [128] * 2 + [0] * 15
    assert SignalDomain((2, 7), 10).pictures(torch.rand(1, 2, 7)).isfinite().all()


# Files


def test_what_is_written_is_read_back(tmp_path):
    samples = torch.stack([hit(100)[0], -hit(300)[0]])
    samples[0, :2] = torch.tensor([1.0, -1.0])
    save(samples, tmp_path / "one.wav")
    found = decoded((tmp_path / "one.wav").read_bytes())
    assert found.rate == RATE
    torch.testing.assert_close(found.samples, samples, atol=2**-15, rtol=0)
    torch.testing.assert_close(found.samples[:, 2:], samples[:, 2:], atol=2**-16, rtol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_any_whole_numbers(width, tmp_path):
    values = [0.5, -0.25, 0.0, -1.0]
    whole = [round(v * 2 ** (8 * width - 1)) + 128 * (width == 1) for v in values]
    frames = b"".join(v.to_bytes(width, "little", signed=width > 1) for v in whole)
    found = decoded(wav_of(frames, width, 11025, 2, tmp_path / "x.wav"))
    assert (found.rate, found.samples.tolist()) == (11025, [[0.5, 0.0], [-0.25, -1.0]])


@pytest.mark.parametrize(("format", "subtype"), [("WAV", "FLOAT"), ("FLAC", "PCM_24"), ("AIFF", "PCM_16")])
def test_other_files_through_soundfile(format, subtype, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / f"x.{format.lower()}"
    soundfile.write(path, hit(100)[0].numpy(), RATE, subtype, format=format)
    found = decoded(path.read_bytes())
    assert found.rate == RATE
    torch.testing.assert_close(found.samples, hit(100), atol=2**-15, rtol=0)


def test_without_soundfile_one_is_told_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "x.flac").write_bytes(b"fLaC")
    with pytest.raises(UsageError, match=r"x\.flac: to read it needs soundfile: pip install 'ihdm\[sound\]'"):
        loaded(tmp_path)


@pytest.mark.parametrize(("rate", "other"), [(44100, 8000), (8000, 11025), (48000, 8000), (8000, 8000)])
def test_a_tone_is_the_same_at_another_rate(rate, other):
    n = rate // 2 + 17
    resampled = Sound(torch.sin(2 * math.pi * 440 * midpoints(n, rate))[None], rate).at(other)
    expected = torch.sin(2 * math.pi * 440 * midpoints(-(-n * other // rate), other))[None]
    assert resampled.rate == other and resampled.samples.shape == expected.shape
    inner = slice(other // 20, -other // 20)
    torch.testing.assert_close(resampled.samples[:, inner], expected[:, inner], atol=1e-3, rtol=0)


def test_what_a_rate_cannot_hold_is_not_heard_as_something_else():
    n = 44100
    high = Sound(torch.cos(2 * math.pi * 5000 * midpoints(n, 44100))[None], 44100).at(8000)
    low = Sound(torch.cos(2 * math.pi * 3000 * midpoints(n, 44100))[None], 44100).at(8000)
    assert float(high.samples.abs().max()) < 1e-9
    torch.testing.assert_close(low.samples[0], torch.cos(2 * math.pi * 3000 * midpoints(8000, 8000)))
    some = Sound(low.samples, 8000).at(4000, 100)
    assert 100 <= some.samples.shape[-1] <= 200


def test_clips_are_cut_or_followed_by_silence():
    samples = torch.tensor([[1.0, -1.0, 0.5]])
    assert inside(samples, 2).tolist() == [[1.0, 0.0]]
    assert inside(samples, 5).tolist() == [[1.0, 0.0, 0.75, 0.5, 0.5]]


# Sets


def test_a_folder_of_sounds(hits):
    found = loaded(hits, labels=True, holdout=0.25)
    assert found.train.shape == (18, 1, LENGTH) and found.held_out.shape == (6, 1, LENGTH)
    assert found.domain == DOMAIN == data_domain(DataConfig(kind="signals", source=str(hits)))
    assert found.labels.names == ("high", "low") and len(found.train_labels) == 18
    crossings = (found.train[:, 0].double() - 0.5).sign().diff().ne(0).sum(1)
    assert bool(((crossings > 40) == (found.train_labels == 0)).all())
    assert found.train.dtype == torch.float32 and float(found.train[..., -1].sub(0.5).abs().max()) < 0.1


def test_splits_zips_rates_channels_and_peaks(hits, tmp_path):
    save(hit(200), tmp_path / "train" / "one.wav")
    save(torch.cat([hit(200), 0 * hit(200)]), tmp_path / "test" / "two.wav")
    save(hit(200, 512, 4000), tmp_path / "train" / "fast.wav", 4000)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted(tmp_path.rglob("*.wav")):
            archive.write(path, path.relative_to(tmp_path))
    for source in (tmp_path, tmp_path / "all.zip"):
        found = loaded(source, rate=RATE, size=200, channels=1)
        assert (found.train.shape, found.held_out.shape) == ((2, 1, 200), (1, 1, 200))
        torch.testing.assert_close(found.train[0, :, 2:], found.train[1, :, 2:], atol=0.01, rtol=0)
        torch.testing.assert_close(found.held_out[0] - 0.5, (found.train[1] - 0.5) / 2, atol=1e-4, rtol=0)
    loud = loaded(tmp_path, rate=RATE, size=300, channels=2, peak=0.5)
    torch.testing.assert_close(loud.train.sub(0.5).abs().amax((1, 2)), torch.full((2,), 0.25))
    assert torch.equal(loud.train[:, 0], loud.train[:, 1]) and bool((loud.train[..., LENGTH + 1 :] == 0.5).all())


def test_arrays_of_sounds(tmp_path):
    floats = torch.stack([hit(100), hit(200)]).numpy()
    wholes = {"f": floats, "i2": np.round(floats * 2**15).astype("i2"), "u1": np.round(floats * 127 + 128).astype("u1")}
    for name, array in wholes.items():
        np.save(tmp_path / f"{name}.npy", array[:, 0])
        found = loaded(tmp_path / f"{name}.npy", rate=RATE, holdout=0.0)
        torch.testing.assert_close(found.train.double(), (torch.from_numpy(floats) + 1) / 2, atol=0.005, rtol=0)
    np.savez(tmp_path / "all.npz", train=floats, test=floats[:1], train_labels=[0, 1], test_labels=[1])
    found = loaded(tmp_path / "all.npz", rate=RATE, labels=True)
    assert (found.train_labels.tolist(), found.held_out_labels.tolist()) == ([0, 1], [1])


def test_what_cannot_be_read_is_skipped_if_asked(hits, tmp_path, capsys):
    for i in range(3):
        save(hit(100 + i), tmp_path / f"b{i}.wav")
    (tmp_path / "a.wav").write_bytes(b"no sound")
    found = loaded(tmp_path, on_error="skip", holdout=0.0)
    config = DataConfig(kind="signals", source=str(tmp_path), on_error="skip")
    assert found.train.shape == (3, 1, LENGTH) and data_domain(config) == DOMAIN
    assert "skipped 1 of 4 sounds" in capsys.readouterr().err


def not_numbers(path: Path) -> None:
    samples = struct.pack("<4f", 0.0, math.nan, 0.0, 0.0)
    header = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, RATE, RATE * 4, 4, 32)
    content = header + b"data" + struct.pack("<I", len(samples)) + samples
    path.write_bytes(b"RIFF" + struct.pack("<I", len(content)) + content)


def file(name: str, content: bytes = b"", whole: bool = True) -> Prepared:
    """Write a file; the source is its folder, or the file itself."""

    def prepare(at: Path) -> Path:
        (at / name).write_bytes(content)
        return at if whole else at / name

    return prepare


def array(*shape: int, value: float = 0.0, kind: str = "f8") -> Prepared:
    def prepare(at: Path) -> Path:
        np.save(at / "x.npy", np.full(shape, value, kind))
        return at / "x.npy"

    return prepare


def sound(change: Callable[[Path], None], samples: torch.Tensor) -> Prepared:
    def prepare(at: Path) -> Path:
        save(samples, at / "x.wav")
        change(at / "x.wav")
        return at

    return prepare


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def nothing(path: Path) -> None:
    pass


REFUSED: dict[str, tuple[Prepared, dict[str, object], str]] = {
    "no source": (lambda at: at / "none", {}, "there is no .*none; give a folder or zip of sound files"),
    "no sounds": (file("x.txt"), {}, r"holds no sounds .*x\.txt.*sounds end in"),
    "no sound": (file("x.wav", b"nothing"), {}, r"x\.wav is not a sound that can be read"),
    "an empty file": (file("x.wav"), {}, r"x\.wav is not a sound .*it is empty"),
    "one that is cut off": (sound(cut_off, hit(9)), {}, r"x\.wav is not a sound .*cut off: 206 of 256 samples"),
    "one without samples": (sound(nothing, torch.zeros(1, 0)), {}, "there are no samples in it"),
    "another file": (file("x.txt", whole=False), {}, "is not a sound file, a zip"),
    "a broken zip": (file("x.zip", b"x", whole=False), {}, "cannot be read as a zip"),
    "no test alone": (lambda at: save(hit(9), at / "test" / "x.wav") or at, {}, "no training sounds, only: test"),
    "memory": (sound(nothing, hit(9)), {"memory": "no"}, r"data\.memory=no is for images"),
    "an array without a rate": (array(2, 9), {}, "does not say its rate in Hz"),
    "a loud array": (array(2, 9, value=3), {"rate": 9}, "values from 3 to 3; expected floating point in"),
    "large integers": (array(2, 9, kind="i8"), {"rate": 9}, "int64 values"),
    "an array of images": (array(2, 3, 4, 5), {"rate": 9}, r"expected \(N, samples\)"),
    "samples before channels": (array(2, 9, 2), {"rate": 9}, "more channels than samples"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_set_of_sounds_is_refused(case, tmp_path):
    prepare, settings, message = REFUSED[case]
    with pytest.raises(IhdmError, match=message):
        loaded(prepare(tmp_path), **settings)


def test_what_cannot_be_read_is_said_without_the_words_of_a_library(tmp_path):
    pytest.importorskip("soundfile")
    (tmp_path / "x.wav").write_bytes(b"nothing of a sound")
    with pytest.raises(IhdmError, match=r"x\.wav .* read \(Format not recognised\); --set data\.on_error=skip goes on"):
        loaded(tmp_path, size=(9,), channels=1, rate=9)


def test_samples_that_are_not_numbers_are_refused(tmp_path):
    pytest.importorskip("soundfile")
    not_numbers(tmp_path / "x.wav")
    with pytest.raises(IhdmError, match=r"x\.wav .*not numbers"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (hit(9), 3000, r"differ in rate: .*a\.wav has 2,000 Hz and .*b\.wav 3,000; choose .*data\.rate"),
        (hit(9, 99), RATE, r"differ in length: .*a\.wav has 256 samples and .*b\.wav 99; choose .*data\.size"),
        (hit(9).expand(2, -1), RATE, r"differ in channels: .*a\.wav has 1 and .*b\.wav 2; choose .*data\.channels"),
    ],
)
def test_sounds_that_differ_are_refused_by_name(samples, rate, message, tmp_path):
    save(hit(9), tmp_path / "a.wav")
    save(samples, tmp_path / "b.wav", rate)
    with pytest.raises(UsageError, match=message):
        loaded(tmp_path, holdout=0.0)


def test_channels_that_cannot_be_made_and_settings_of_others_are_refused(tmp_path):
    save(hit(9).expand(2, -1), tmp_path / "a.wav")
    with pytest.raises(UsageError, match="has 2 channels, which cannot be converted to 3"):
        loaded(tmp_path, channels=3)
    for words in (["data.rate=8000"], ["data.peak=0.5"], ["data.kind=volumes", "data.rate=8000"]):
        with pytest.raises(UsageError, match=r"data\.\w+ is for signals, not for"):
            Config().with_settings(words)
    with pytest.raises(UsageError, match=r"data\.flip is for images"):
        Config().with_settings(["data.kind=signals", "data.flip=true"])
    with pytest.raises(UsageError, match=r"data\.size must be one number, not 8x8"):
        Config().with_settings(["data.kind=signals", "data.size=8x8"])


# A model

TINY = [
    *("data.size=auto", "data.rate=auto", "data.channels=auto", "process.K=10", "network.multipliers=1,2"),
    *(
        "network.attention=1",
        "trainer.batch_size=8",
        "trainer.decay=0",
        "trainer.warmup=2",
        "trainer.log_every=2",
    ),
    *("trainer.checkpoint_every=3", "trainer.sample_every=6", "trainer.samples=2", "sampling.steps=5"),
    *("engine.device=cpu", "trainer.tracker=none", "data.labels=true"),
]


@pytest.fixture(scope="module")
def run(hits, tmp_path_factory) -> Path:
    """A run of a tiny preset that was stopped and went on."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = ["train", "drums-heat", "--data", str(hits), "--run", str(folder), "--set", *TINY]
    main([*words, "trainer.steps=3"])
    main([*words, "trainer.steps=6"])
    return folder


def test_a_model_of_sounds_is_trained_goes_on_and_is_sampled(run, tmp_path, capsys):
    assert Image.open(run / "samples" / "step-00000006.png").size == (2 * 10 + 2 * 128 + 3, 2 * 10 + 96)
    pictures = ["--grid", str(tmp_path / "all.png"), "--gif", str(tmp_path / "all.gif")]
    main(["sample", str(run), "--n", "3", "--label", "low", "--out", str(tmp_path / "out"), *pictures])
    found = [decoded(path.read_bytes()) for path in sorted((tmp_path / "out").iterdir())]
    assert [(s.rate, tuple(s.samples.shape)) for s in found] == [(RATE, (1, LENGTH))] * 3
    model = Model.from_pretrained(run)
    expected = 2 * model.sample(3, labels="low").double() - 1
    torch.testing.assert_close(torch.stack([s.samples for s in found]), expected, atol=2**-15, rtol=0)
    assert (tmp_path / "all.png").exists() and Image.open(tmp_path / "all.gif").n_frames == 6
    assert model.config.domain == SignalDomain((1, LENGTH), RATE, 0.9) and model.config.steps == 6
    capsys.readouterr()
    main(["info", str(run)])
    said = capsys.readouterr().out
    assert "256 samples at 2,000 Hz, mono" in said and "samples, sigma 0.004" in said
    main(["info", "drums"])
    assert "2,048 samples at 8,000 Hz, mono" in capsys.readouterr().out


def test_an_uninterrupted_run_is_the_same(run, hits, tmp_path):
    main(
        ["train", "drums-heat", "--data", str(hits), "--run", str(tmp_path / "run"), "--set", *TINY, "trainer.steps=6"]
    )
    one, two = (Model.from_pretrained(folder).network.state_dict() for folder in (run, tmp_path / "run"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_preset_for_sampling_is_trained_and_cannot_restore(hits, tmp_path, capsys):
    folder = tmp_path / "run"
    main(["train", "drums", "--data", str(hits), "--run", str(folder), "--set", *TINY, "trainer.steps=2"])
    main(["sample", str(folder), "--n", "2", "--out", str(tmp_path / "out")])
    assert len(list((tmp_path / "out").iterdir())) == 2
    with pytest.raises(SystemExit):
        main(["restore", str(folder), str(hits / "low" / "0.wav"), "--out", str(tmp_path / "restored")])
    assert "blurring diffusion cannot restore" in capsys.readouterr().err


def test_a_muffled_sound_is_restored_by_a_command(run, hits, tmp_path, capsys):
    muffled, out = tmp_path / "muffled.wav", tmp_path / "out"
    u = DOMAIN.laplacian.dissipate((hit(150)[None] + 1) / 2, 2.0**2 / 2)[0]
    DOMAIN.write(u, muffled)
    words = ["restore", str(run), str(muffled), "--blur-width", "2", "--n", "3", "--out", str(out)]
    main(words)
    said = capsys.readouterr().out
    assert "blur width 2.00 samples (given; half the power at 133 Hz), level " in said and "dB of full scale" in said
    assert sorted(path.name for path in out.iterdir()) == ["00.wav", "01.wav", "02.wav", "input.wav", "restored.png"]
    versions = torch.stack([decoded((out / f"0{i}.wav").read_bytes()).samples for i in range(3)])
    again = DOMAIN.laplacian.dissipate(versions, 2.0**2 / 2)
    assert float((again - (2 * u - 1)).square().mean().sqrt()) < 10 ** (-50 / 20)
    assert Image.open(out / "restored.png").size[0] > 5 * 128
    assert "rough guess" not in said
    main([*words[:3], "--n", "1", "--out", str(tmp_path / "guessed")])
    assert "that is a rough guess" in (said := capsys.readouterr().out) and "give --blur-width SAMPLES" in said
    main(words)  # replaces what it made itself
    (out / "00.wav").write_bytes(muffled.read_bytes())  # and nothing that was changed since
    with pytest.raises(SystemExit):
        main(words)
    assert "has other files in it" in capsys.readouterr().err


def test_the_width_of_a_muffled_sound_is_estimated(run):
    model = Model.from_pretrained(run)
    u = DOMAIN.laplacian.dissipate((hit(70) + 1)[None] / 2, 4.0**2 / 2)[0].float()
    seen = model.restorer().settled(u)
    assert seen.kind == "Gaussian" and 1 < seen.width < 16 and seen.width_words
    low, high = (width / seen.width for width in seen.interval)
    assert low == pytest.approx(math.exp(-0.25)) and high == pytest.approx(math.exp(0.25))
    assert model.restorer().settled(u, seen.width).interval is None
    assert (
        model.restorer()
        .verdict(seen)
        .words.startswith(
            "the model was not calibrated (ihdm calibrate), so it cannot say whether it knows such sounds"
        )
    )


def test_sounds_that_the_model_cannot_restore_are_refused(run, hits, tmp_path, capsys):
    save(hit(100, 999), tmp_path / "long.wav")
    save(hit(100), tmp_path / "fast.wav", 4000)
    save(hit(100).expand(2, -1), tmp_path / "stereo.wav")
    save(hit(100, 99), tmp_path / "short.wav")
    (tmp_path / "none.wav").write_bytes(b"none")
    given = {"long": "999 samples", "fast": "4,000 Hz", "stereo": "stereo", "none": "is not a sound", "gone": "no file"}
    for name, message in given.items():
        with pytest.raises(SystemExit):
            main(["restore", str(run), str(tmp_path / f"{name}.wav"), "--out", str(tmp_path / "out")])
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["restore", str(run), str(tmp_path / "short.wav"), "--invert", "--out", str(tmp_path / "out")])
    assert "--invert is for images, not for sounds" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["restore", str(run), str(tmp_path / "short.wav"), "--blur-width", "999", "--out", str(tmp_path / "out")])
    assert "from 0 to 256 samples" in capsys.readouterr().err
    for name in ("long", "fast", "stereo"):
        words = ["--resize", "--blur-width", "1", "--n", "1", "--out", str(tmp_path / name)]
        main(["restore", str(run), str(tmp_path / f"{name}.wav"), *words])
        assert decoded((tmp_path / name / "00.wav").read_bytes()).samples.shape == (1, LENGTH)


def test_a_model_of_sounds_is_calibrated_and_says_what_it_does_not_know(run, tmp_path, capsys):
    many = torch.stack([hit(60 + i) if i % 2 else hit(400 + i) for i in range(48)])
    np.savez(tmp_path / "many.npz", train=many[:2].numpy(), test=many.numpy())
    shutil.copytree(run / "model", tmp_path / "model")
    data = ["--data", str(tmp_path / "many.npz"), "--resize", "--n", "40"]
    main(["calibrate", str(tmp_path / "model"), *data])
    noise = torch.rand(1, LENGTH, generator=torch.Generator().manual_seed(0)) - 0.5
    save(noise, tmp_path / "noise.wav")
    capsys.readouterr()
    out = ["--out", str(tmp_path / "out"), "--n", "1", "--blur-width", "1"]
    main(["restore", str(tmp_path / "model"), str(tmp_path / "noise.wav"), *out])
    said = capsys.readouterr().out
    assert "does not look like what the model knows: less than 1% of the sounds" in said and "negative" not in said


# Restoring on any domain


TREE = [(node, node // 2) for node in range(1, 80)]


@pytest.mark.parametrize(
    "laplacian", [GridLaplacian((96,)), GridLaplacian((4, 6, 5)), GraphLaplacian(80, TREE)], ids=str
)
def test_a_blur_is_undone_on_any_domain_as_well_as_it_can_be(laplacian, generator):
    """The linear estimate has the error that it says, and samples that are blurred again are what was seen."""
    grid, schedule, noise = laplacian.grid, Schedule(20, 8.0), ROUNDING
    power = (0.05 / (0.05 - laplacian.eigenvalues)).expand(2, *grid)
    spectrum = Spectrum(torch.full((2, *grid), 0.01).double(), torch.eye(2).double(), power)
    skip = LinearSkip(LinearPredictor(laplacian, schedule, 0.01, spectrum))
    process = InverseHeat(laplacian, schedule, 0.01, skip, spectra=(spectrum,))
    assert kinds(laplacian) == ["Gaussian"] and kinds(GridLaplacian((4, 4))) == list(KINDS)

    def normal(count: int) -> torch.Tensor:
        return torch.randn(count, 2, *grid, generator=generator, dtype=torch.float64)

    u_0 = laplacian.from_spectrum(spectrum.mean + power.sqrt() * normal(40)).clamp(-2, 2)
    seen = [observe(process, y + noise * e, 1.5) for y, e in zip(laplacian.dissipate(u_0, 1.5**2 / 2), normal(40))]
    errors = torch.stack([s.predict(0.0)[0] for s in seen]) - laplacian.to_spectrum(u_0)
    expected = torch.stack([s.predict(0.0)[1].expand(2, *grid) for s in seen])
    assert float((errors.square().mean(0) / expected.mean(0)).mean()) == pytest.approx(1, abs=0.15)
    eps = {j: normal(5) for j in range(schedule.K + 1)}
    guided = process.guided(Guided(process, seen[0]))
    step = reverse_step(guided, lambda u, k: torch.zeros_like(u), lambda j: eps[int(j)])
    held = last(chain(guided, step, seen[0].start(guided, eps[0]), guided.levels(seen[0].level)))
    assert seen[0].residual(held) < 3 * noise
    assert float(held.std(0).mean()) > noise  # several versions
    assert observe(process, seen[0].image).width == pytest.approx(1.5, rel=0.3)
