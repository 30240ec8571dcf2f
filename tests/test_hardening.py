"""Whatever lies in files: it is read, or refused in words. Nothing else comes out, and nothing is executed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import warnings
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ihdm.config import Config, DataConfig, load_config, setting_rows
from ihdm.data import load_images
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import ModelConfig, locate

EXAMPLES = int(os.environ.get("IHDM_FUZZ", 60))
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def read_or_refused(source: Path) -> torch.Tensor | None:
    """The images, or None if they were refused in words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about odd files
            return load_images(DataConfig(source=str(source), holdout=0)).train
    except IhdmError:
        return None


def picture(suffix: str = ".png", mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> bytes:
    file = BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(file, Image.registered_extensions()[suffix])
    return file.getvalue()


def archive(members: dict[str, bytes]) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file.getvalue()


def npz() -> bytes:
    file = BytesIO()
    np.savez(file, train=np.zeros((3, 4, 5), np.uint8))
    return file.getvalue()


def tar() -> bytes:
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("a.png")
        entry.size = len(picture())
        archive.addfile(entry, BytesIO(picture()))
    return file.getvalue()


VALID = {
    "one.png": picture(),
    "one.jpg": picture(".jpg"),
    "one.gif": picture(".gif", "P"),
    "one.tif": picture(".tif"),
    "many.zip": archive({"train/a.png": picture(), "test/b.png": picture()}),
    "many.npz": npz(),
    "many.tar": tar(),
    "train-images-idx3-ubyte": struct.pack(">4i", 0x803, 3, 4, 5) + bytes(60),
    "t-idx3-ubyte.gz": gzip.compress(struct.pack(">4i", 0x803, 3, 4, 5) + bytes(60)),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_files_are_read(name, tmp_path):
    (tmp_path / name).write_bytes(VALID[name])
    assert read_or_refused(tmp_path / name) is not None


@pytest.mark.accident("damaged files", "bytes changed and cut in images, archives, arrays; read, or refused in words")
@pytest.mark.parametrize("name", VALID)
@QUICK
@given(data=st.data())
def test_changed_files_are_read_or_refused(name, data, tmp_path_factory):
    content = bytearray(VALID[name])
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    path = tmp_path_factory.mktemp("files") / name
    path.write_bytes(bytes(content[:length]))
    read_or_refused(path)


@pytest.mark.accident(
    "damaged files", "any bytes under the names of images, archives, arrays; read, or refused in words"
)
@pytest.mark.parametrize("name", [*VALID, "one.npy", "one.webp", "one.bmp"])
@QUICK
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(name, content, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / name
    path.write_bytes(content)
    read_or_refused(path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_pictures_of_every_mode_become_grey_or_colour(mode, tmp_path):
    pixels = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5))
    pixels = (
        Image.fromarray(np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000) if mode == "I;16" else pixels.convert(mode)
    )
    pixels.save(tmp_path / ("a.jpg" if mode == "YCbCr" else "a.tif"))  # such a TIFF Pillow 12 writes but cannot read
    images = load_images(DataConfig(source=str(tmp_path), holdout=0)).train
    assert images.shape[2:] == (4, 5) and images.shape[1] in (1, 3)


def test_of_an_animation_the_first_picture_is_taken(tmp_path):
    frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert load_images(DataConfig(source=str(tmp_path), holdout=0)).train.unique().tolist() == [10]


@pytest.mark.accident("hostile files", "a picture that claims 400 million pixels; refused in words")
def test_pictures_that_would_fill_the_memory_are_refused(tmp_path):
    """A picture of a few kilobytes that claims to have 400 million pixels: Pillow's limit is in force."""
    (tmp_path / "bomb.png").write_bytes(picture())
    content = bytearray((tmp_path / "bomb.png").read_bytes())
    content[16:24] = struct.pack(">2I", 20_000, 20_000)
    content[29:33] = struct.pack(">I", zlib.crc32(bytes(content[12:29])))
    (tmp_path / "bomb.png").write_bytes(bytes(content))
    with pytest.raises(IhdmError, match=r"bomb\.png"):
        load_images(DataConfig(source=str(tmp_path), holdout=0))


@pytest.mark.accident("hostile files", "zip members with paths that lead outside; nothing written there")
def test_zip_members_outside_of_the_archive_are_only_read_from_it(tmp_path):
    names = ["../outside.png", "/absolute.png", "a/../../b.png", "inside.png"]
    (tmp_path / "images.zip").write_bytes(archive({name: picture() for name in names}))
    before = set(tmp_path.parent.iterdir())
    assert len(load_images(DataConfig(source=str(tmp_path / "images.zip"), holdout=0)).train) == 2  # those without ..
    assert set(tmp_path.parent.iterdir()) == before and [path.name for path in tmp_path.iterdir()] == ["images.zip"]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.accident("hostile files", "arrays of pickled objects; refused, nothing executed")
def test_pickled_objects_are_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    np.savez("evil.npz", train=np.array([Evil()], dtype=object))
    for name in ("evil.npy", "evil.npz"):
        with pytest.raises(IhdmError):
            load_images(DataConfig(source=name))
    assert not Path("executed").exists()


@pytest.mark.accident("damaged files", "any text as a setting; taken, or refused in words")
@QUICK
@given(
    name=st.sampled_from(sorted({name for name, _ in setting_rows()})) | st.text(),
    value=st.text() | st.integers().map(str),
)
def test_any_setting_is_taken_or_refused(name, value):
    with contextlib.suppress(IhdmError):
        Config().with_settings([f"{name}={value}"])


@pytest.mark.accident("damaged files", "any text as a preset; read, or refused in words")
@QUICK
@given(text=st.text(max_size=80))
def test_any_preset_file_is_taken_or_refused(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("presets") / "mine.toml"
    path.write_text(text, encoding="utf-8", newline="")
    with contextlib.suppress(IhdmError):
        load_config(str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = Config().with_settings(
        ["process.K=3", "network.channels=4", "network.multipliers=1", "network.attention=none", "network.blocks=1"]
    )
    path = tmp_path_factory.mktemp("model") / "model"
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    Model.from_images(ModelConfig.of(config, (1, 4, 4)), images).save_pretrained(path)
    return path


@pytest.mark.accident("damaged files", "bytes changed and cut in model folders; read, or refused in words")
@QUICK
@given(data=st.data())
def test_changed_model_folders_are_read_or_refused(data, folder):
    name = data.draw(st.sampled_from(["config.json", "model.safetensors", "prior.safetensors"]))
    original = (folder / name).read_bytes()
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 400) - 1))] = data.draw(st.integers(0, 255))
    try:
        (folder / name).write_bytes(bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]))
        Model.from_pretrained(folder)
    except IhdmError:
        pass
    finally:
        (folder / name).write_bytes(original)


@pytest.mark.parametrize("text", [f"x = {'9' * 5000}", "x = " + "[" * 50_000, "x" * 10**6, "[" * 10**5])
def test_preset_files_beyond_what_python_reads_are_refused(text, tmp_path):
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UsageError, match=r"own\.toml is not valid TOML"):
        load_config(str(tmp_path / "own.toml"))


@pytest.mark.accident("damaged files", "any JSON in a model's config; read, or refused in words")
@QUICK
@given(tree=JSON, key=st.sampled_from(["process", "sampling", "network", "shape", "data", "steps", "origin"]))
def test_any_json_is_a_config_or_refused(tree, key, folder):
    original = (folder / "config.json").read_text()
    changed = json.loads(original) | {key: tree}
    try:
        (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        Model.from_pretrained(folder)
    except IhdmError:
        pass
    finally:
        (folder / "config.json").write_text(original)


HUGE = [
    {"network": {"channels": 65_536, "multipliers": [64] * 16, "blocks": 64}},
    {"network": {"channels": 2048, "blocks": 8}},
    {"network": {"multipliers": [1] * 20_000}},
    {"network": {"attention": [0] * 20_000}},
    {"shape": [1, 2**39, 2**39]},
    {"shape": [2**30, 4, 4]},
    {"shape": [1, 4096, 4096]},
    {"process": {"skip": "identity"}, "shape": [1, 4096, 4096]},
    {"process": {"K": 10**12}},
]


LOADING = """
import resource, sys
from pathlib import Path
from ihdm.errors import IhdmError
from ihdm.model import Model

Model.from_pretrained("mnist")  # whatever a first time needs
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
for folder in sys.argv[1:]:
    try:
        Model.from_pretrained(folder)
    except IhdmError as error:
        print("refused:", error)
"""


@pytest.mark.accident("a model folder that asks for much", "in its config; refused before the memory is taken")
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_what_a_folder_asks_for_is_bounded_by_its_weights(folder, tmp_path):
    """In a process that may take a gigabyte more than it has at its start."""
    copies = [shutil.copytree(folder, tmp_path / str(number)) for number in range(len(HUGE))]
    for copy, changes in zip(copies, HUGE):
        tree = json.loads((copy / "config.json").read_text())
        for key, value in changes.items():
            tree[key] = tree[key] | value if isinstance(value, dict) else value
        (copy / "config.json").write_text(json.dumps(tree))
    words = [sys.executable, "-c", LOADING, *map(str, copies)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("refused:") == len(HUGE), done.stderr[-2000:]


@pytest.mark.accident("damaged files", "absurd headers in safetensors; refused in words")
@pytest.mark.parametrize("header", [2**63, 2**40, 2**20, 8])
def test_safetensors_with_absurd_headers_are_refused(header, folder):
    original = (folder / "model.safetensors").read_bytes()
    try:
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", header) + original[8:])
        with pytest.raises(IhdmError, match="damaged"):
            Model.from_pretrained(folder)
    finally:
        (folder / "model.safetensors").write_bytes(original)


@pytest.mark.accident("hostile files", "names of models that lead outside; refused")
@pytest.mark.parametrize(
    "name", ["../../etc", "/etc/passwd", "~/nothing", "a/../../b", "..", "a/b/c", "https://x.org/y"]
)
def test_model_names_do_not_leave_their_folder(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: pytest.fail("asked the hub"))
    with pytest.raises(IhdmError):
        Model.from_pretrained(locate(name))
