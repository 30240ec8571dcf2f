from __future__ import annotations

import contextlib
import gzip
import tarfile
import zipfile
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from archives import png, write_tar
from PIL import EpsImagePlugin, Image

from ihdm import data as data_module
from ihdm import model as model_module
from ihdm.config import Config, DataConfig
from ihdm.data import evenly_spaced, image_shape, load_images
from ihdm.data.batches import Batches, mirrored
from ihdm.data.images import fit
from ihdm.data.lazy import LazyImages
from ihdm.data.single import read_one
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import ModelConfig

SETTINGS = ["process.K=3", "process.skip=identity", "network.channels=4", "network.multipliers=1"]
SMALL = Config().with_settings([*SETTINGS, "network.attention=none", "network.blocks=1"])
MODEL = ModelConfig.of(SMALL, (3, 6, 5))


def load(source, **options):
    return load_images(DataConfig(str(source), **options))


def colours(n, height=6, width=5, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for i, pixels in enumerate(colours(10)):
        path = tmp_path / "photos" / f"class{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(pixels))
    return tmp_path / "photos"


@pytest.mark.parametrize("given", ["digits", Config()])
def test_only_settings_of_data_say_what_to_load(given):
    with pytest.raises(TypeError, match=r"settings of data, such as load_config\('digits'\)\.data, not (str|Config)"):
        load_images(given)


def test_digits_are_embedded():
    images = load("digits")
    assert images.shape == (1, 8, 8)
    assert len(images.train) + len(images.held_out) == 1797
    assert images.train.dtype == torch.uint8 and images.train.max() == 255


def test_a_folder_gives_every_pixel_back(folder):
    images = load(folder, holdout=0.0)
    order = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]  # class folders, then names
    assert np.array_equal(images.train.numpy(), colours(10)[order].transpose(0, 3, 1, 2))
    assert len(images.held_out) == 0


def test_without_a_test_split_a_share_is_set_aside(folder):
    images = load(folder, holdout=0.2)
    assert (len(images.train), len(images.held_out)) == (8, 2)
    rows = {image.numpy().tobytes() for image in images.train} & {image.numpy().tobytes() for image in images.held_out}
    assert not rows


@pytest.mark.parametrize("prefix", ["", "afhq/"])
@pytest.mark.parametrize("second", ["test", "val"])
def test_a_zip_with_splits(tmp_path, prefix, second):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for i, pixels in enumerate(colours(6)):
            archive.writestr(f"{prefix}{'train' if i < 4 else second}/cat/{i}.png", png(pixels))
        archive.writestr("__MACOSX/x.png", b"")
        archive.writestr("readme.txt", b"hello")
    images = load(tmp_path / "set.zip")
    assert (len(images.train), len(images.held_out)) == (4, 2)
    assert np.array_equal(images.held_out.numpy(), colours(6)[4:].transpose(0, 3, 1, 2))


def idx(array) -> bytes:
    return np.array([0x803, *array.shape], ">u4").tobytes() + array.tobytes()


def test_idx_files_as_mnist_has_them(tmp_path):
    train, test = colours(7)[..., 0], colours(3, seed=1)[..., 0]
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(train)))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(test))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"ignored")
    images = load(tmp_path)
    assert np.array_equal(images.train[:, 0].numpy(), train)
    assert np.array_equal(images.held_out[:, 0].numpy(), test)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 5, idx(colours(2)[..., 0])[:-1], b"\x1f\x8bbroken"])
def test_broken_idx_files_are_named(tmp_path, content):
    path = tmp_path / "a-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(IhdmError, match="a-images-idx3-ubyte"):
        load(path)


def test_numpy_arrays_in_every_layout(tmp_path):
    array = colours(5)
    layouts = {"nhwc": array, "nchw": array.transpose(0, 3, 1, 2), "float": array / 255, "grey": array[..., 0]}
    for name, values in layouts.items():
        np.save(tmp_path / f"{name}.npy", values)
        expected = array[..., :1] if name == "grey" else array
        found = load(tmp_path / f"{name}.npy", holdout=0.0).train.numpy()
        assert np.array_equal(found, expected.transpose(0, 3, 1, 2)), name
    np.savez(tmp_path / "both.npz", x_train=array, x_test=array[:2])
    images = load(tmp_path / "both.npz")
    assert (len(images.train), len(images.held_out)) == (5, 2)


def test_numpy_files_that_do_not_fit_are_refused(tmp_path):
    cases = {"flat": np.zeros(5, np.uint8), "signed": np.zeros((2, 4, 4), np.int32), "big": np.full((2, 4, 4), 7.0)}
    for name, array in cases.items():
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(IhdmError, match=f"{name}.npy"):
            load(tmp_path / f"{name}.npy")
    for shape in ((16, 16, 3), (6, 3, 8, 3), (6, 16, 9, 16), (2, 3, 4, 5, 6)):
        np.save(tmp_path / "odd.npy", np.zeros(shape, np.uint8))
        with pytest.raises(IhdmError, match=rf"odd\.npy has shape \({shape[0]}, {shape[1]}"):
            load(tmp_path / "odd.npy")
    np.save(tmp_path / "object.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(IhdmError, match=r"object\.npy"):
        load(tmp_path / "object.npy")


def test_any_number_of_channels_from_arrays(tmp_path, capsys):
    array = np.random.default_rng(0).integers(0, 256, (4, 2, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "two.npy", array)
    assert load(tmp_path / "two.npy").shape == (2, 8, 8)
    assert load(tmp_path / "two.npy", size=(4, 6)).shape == (2, 4, 6)
    assert not capsys.readouterr().out
    for shape in ((6, 5, 16, 16), (6, 16, 16, 5)):  # more channels than usual: said
        np.save(tmp_path / "five.npy", np.zeros(shape, np.uint8))
        assert load(tmp_path / "five.npy").shape == (5, 16, 16)
        assert f"of shape {shape} is read as 6 images of 16x16 with 5 channels" in capsys.readouterr().out


def test_grey_or_colour(folder):
    assert load(folder, channels=1).shape == (1, 6, 5)
    grey = load(folder, channels=1, holdout=0.0).train[0, 0].numpy()
    assert np.array_equal(grey, np.asarray(Image.fromarray(colours(10)[0]).convert("L")))
    assert load("digits", channels=3).shape == (3, 8, 8)


def test_sixteen_bit_and_alpha_and_rotated_images(tmp_path):
    deep = np.full((4, 6), 40_000, np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert load(tmp_path / "deep.png").train.unique().tolist() == [40_000 >> 8]
    Image.new("RGBA", (6, 4), (10, 20, 30, 40)).save(tmp_path / "alpha.png")
    assert load(tmp_path / "alpha.png").shape == (3, 4, 6)
    assert load(tmp_path / "alpha.png", channels=4).train[0, :, 0, 0].tolist() == [10, 20, 30, 40]
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert load(tmp_path / "turned.jpg").shape == (3, 6, 4)


def test_what_is_transparent_becomes_white(tmp_path):
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.putpixel((0, 0), (0, 0, 255, 255))
    image.save(tmp_path / "logo.png")
    train = load(tmp_path / "logo.png").train
    assert train[0, :, 0, 0].tolist() == [0, 0, 255] and train[0, :, 1, 1].tolist() == [255, 255, 255]
    assert load(tmp_path / "logo.png", channels=1).train[0, 0, 1, 1] == 255


def test_colour_is_never_dropped_silently(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "b.png")
    with pytest.raises(UsageError, match=r"a\.png is grey and .*b\.png is in colour.*data\.channels=3"):
        load(tmp_path, holdout=0.0)
    assert load(tmp_path, channels=3).shape == (3, 4, 4)


def test_fit_crops_the_centre_halves_by_area_and_keeps_the_mean():
    assert fit(Image.new("L", (50, 100)), (8, 12)).size == (12, 8)
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255  # detail finer than a pixel of the result must average out, not alias
    assert np.asarray(fit(Image.fromarray(stripes), (16, 16))).std() == 0
    left = np.zeros((10, 30), np.uint8)
    left[:, :10] = 255
    assert not np.asarray(fit(Image.fromarray(left), (10, 10))).any()
    same = Image.fromarray(colours(1)[0])
    assert fit(same, (6, 5)) is same


@pytest.mark.parametrize("length", [17, 35, 63, 129])
def test_fit_does_not_shift_images_of_odd_size(length):
    """A ramp stays a ramp: each pixel is the mean of what it covers, away from the ends."""
    ramp = np.tile(np.arange(length) * (250 / length), (length, 1)).astype(np.float32)
    small = np.asarray(fit(Image.fromarray(ramp), (8, 8)))[0]
    expected = ((np.arange(8) + 0.5) * length / 8 - 0.5) * (250 / length)
    np.testing.assert_allclose(small[2:6], expected[2:6], atol=0.5)


def test_fit_keeps_a_sliver():
    assert np.asarray(fit(Image.new("L", (1000, 1), 255), (64, 32))).min() == 255


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("deep.tif", np.full((4, 4), 0.5, np.float32), 128),
        *[
            (f"{light}.{kind}", np.full((4, 4), light, np.uint16), light >> 8)
            for light in (200, 51_200)
            for kind in ("tif", "png", "pgm")
        ],
    ],
)
def test_deep_images_keep_their_brightness(tmp_path, name, values, expected):
    Image.fromarray(values).save(tmp_path / name)
    assert load(tmp_path / name).train.unique().tolist() == [expected]


@pytest.mark.parametrize("values", [np.full((4, 4), 1000.5, np.float32), np.full((4, 4), 200, np.int32)])
def test_deep_images_of_unknown_range_are_refused(tmp_path, values):
    Image.fromarray(values).save(tmp_path / "wild.tif")
    with pytest.raises(IhdmError, match=r"wild\.tif has .* values from"):
        load(tmp_path / "wild.tif")


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """A program of that name, and the file that it would write."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # to be looked for
    return tmp_path / "started"


def test_no_program_is_started_for_an_image(tmp_path, ghostscript, monkeypatch):
    datasets = pytest.importorskip("datasets")
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n%%EndComments\nshowpage\n"
    with contextlib.suppress(OSError):
        Image.open(BytesIO(content)).load()
    assert ghostscript.exists()  # as Pillow does it
    ghostscript.unlink()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "evil.png").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("evil.png", content)
    write_tar(tmp_path / "set.tar", {"evil.png": content})
    rows = datasets.Dataset.from_dict({"img": [{"bytes": content, "path": None}]}).cast_column("img", datasets.Image())
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict(train=rows))
    for source in ("photos", "photos/evil.png", "set.zip", "set.tar", "hf:someone/something"):
        place = source if source.startswith("hf:") else str(tmp_path / source)
        with pytest.raises(IhdmError, match="is not an image that can be read"):
            load(place)
    tar = DataConfig(str(tmp_path / "set.tar"), stream=True, holdout=0)
    for config in (tar, DataConfig("hf:any/thing", memory="no")):
        with pytest.raises(IhdmError, match="is not an image that can be read"):
            load_images(config, lazy=True)
    with pytest.raises(IhdmError, match="is not an image that can be read"):
        read_one(tmp_path / "photos" / "evil.png", (1, 6, 5), resize=True)
    assert not ghostscript.exists()


def test_images_with_holes_in_a_tar_are_refused_by_name(tmp_path):
    """A sparse member, as GNU tar stores it: a map of what is not zero, and those bytes alone."""
    picture = png(colours(1)[0])
    write_tar(tmp_path / "set.tar", {"a.png": picture, "b.png": picture})
    content = bytearray((tmp_path / "set.tar").read_bytes())
    header = content[:512]
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[257:265] = b"ustar  \0"
    header[386 : 386 + 24] = b"%011o\0%011o\0" % (0, len(picture))  # one piece, from the beginning on
    header[483:495] = b"%011o\0" % len(picture)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[:512] = header
    (tmp_path / "set.tar").write_bytes(content)
    with pytest.raises(IhdmError, match=r"a\.png is stored with holes"):
        load(tmp_path / "set.tar")
    with pytest.raises(IhdmError, match=r"a\.png is stored with holes"):
        load_images(DataConfig(str(tmp_path / "set.tar"), stream=True), lazy=True)


def add_link(archive, name, target, kind=tarfile.LNKTYPE):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    archive.addfile(entry)


def test_links_in_a_tar_are_read_like_the_files_that_they_lead_to(tmp_path, capsys):
    """As tar stores a file's second name; symbolic links are seen from their folder, and may come before the file."""
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        add_link(archive, "./b/0.png", "../a/1.png", tarfile.SYMTYPE)
        add_link(archive, "./b/folder", "../a", tarfile.SYMTYPE)
        for i in (1, 2):
            for name, content in ((f"./a/{i}.png", png(np.full((5, 4), i))), (f"./a/{i}.cls", b"%d" % i)):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, BytesIO(content))
        add_link(archive, "./b/2.png", "./a/2.png")
        add_link(archive, "./b/3.png", "2.png", tarfile.SYMTYPE)
        add_link(archive, "./b/4.png", "folder/1.png", tarfile.SYMTYPE)
        for name, number in (("0", 1), ("2", 2), ("3", 2), ("4", 1)):
            add_link(archive, f"./b/{name}.cls", f"a/{number}.cls")
    images = load(path, holdout=0, labels=True)
    expected = {"a/1": 1, "a/2": 2, "b/0": 1, "b/2": 2, "b/3": 2, "b/4": 1}
    assert sorted(images.train[:, 0, 0, 0].tolist()) == sorted(expected.values())
    assert (images.train_labels + 1 == images.train[:, 0, 0, 0]).all()
    stream = load_images(DataConfig(str(path), stream=True, holdout=0), lazy=True)
    assert sorted(stream.train[:][:, 0, 0, 0].tolist()) == sorted(expected.values())
    with tarfile.open(path, "a") as archive:
        add_link(archive, "./b/5.png", "/elsewhere.png", tarfile.SYMTYPE)
        add_link(archive, "./b/6.png", "b/6.png")
    for config in (DataConfig(str(path), holdout=0), DataConfig(str(path), holdout=0, stream=True)):
        with pytest.raises(IhdmError, match=r"b/5\.png is not an image .* a link to something that is not a file in"):
            load_images(config, lazy=True).train[:]
        assert len(load_images(replace(config, on_error="skip"), lazy=True).train[:]) == 6
        assert "skipped 2 of 8 images" in capsys.readouterr().err


def test_what_lies_beside_the_images_that_are_read_is_named(folder, tmp_path, capsys):
    load(folder)
    assert not capsys.readouterr().err
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("a.png", png(colours(1)[0]))
    assert len(load(folder, holdout=0.0).train) == 10
    assert "images may also be in more.zip\n" in capsys.readouterr().err
    write_tar(folder / "some.tar", {"a.png": png(colours(1)[0])})
    assert len(load(folder, holdout=0.0).train) == 1
    said = capsys.readouterr().err
    assert "also be in class0/0.png, class0/2.png" in said and said.endswith(" and 6 more\n")
    load_images(DataConfig(str(folder), stream=True, holdout=0), lazy=True)
    assert capsys.readouterr().err.endswith(" and 6 more\n")
    (folder / "train-images-idx3-ubyte").write_bytes(idx(colours(2)[..., 0]))
    load(folder)
    assert capsys.readouterr().err.endswith(" and 7 more\n")


@pytest.mark.parametrize("words", [("Train", "Test"), ("TRAINING", "Val"), ("train", "VALIDATION")])
def test_splits_are_seen_however_they_are_written(words, tmp_path):
    names = {f"{word}/{i}.png": png(colours(1)[0]) for word, count in zip(words, (3, 2)) for i in range(count)}
    for name, content in names.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    write_tar(tmp_path / "set.tar", names)
    (tmp_path / "tars").mkdir()
    for word, count in zip(words, (3, 2)):
        write_tar(tmp_path / "tars" / f"{word}-0.tar", {f"{i}.png": png(colours(1)[0]) for i in range(count)})
    np.savez(tmp_path / "set.npz", **{f"X_{word}": colours(count) for word, count in zip(words, (3, 2))})
    for source in ("set", "set.zip", "set.tar", "tars", "set.npz"):
        images = load(tmp_path / source)
        assert (len(images.train), len(images.held_out)) == (3, 2), source


def test_damaged_members_of_a_zip_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("good.png", png(colours(1)[0]))
        archive.writestr("bad.png", png(colours(2)[1]))
    content = bytearray((tmp_path / "set.zip").read_bytes())
    content[content.index(b"bad.png") + 40] ^= 0xFF
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(IhdmError, match=r"bad\.png is not an image"):
        load(tmp_path / "set.zip")


def test_channels_that_cannot_be_converted_are_refused(tmp_path):
    np.save(tmp_path / "five.npy", np.zeros((3, 8, 8, 5), np.uint8))
    with pytest.raises(UsageError, match="5 channels"):
        load(tmp_path / "five.npy", channels=3)


def test_a_folder_with_only_a_test_set_or_with_two_sets_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "t10k-images-idx3-ubyte").write_bytes(idx(colours(2)[..., 0]))
    with pytest.raises(IhdmError, match="no training images"):
        load(tmp_path / "a")
    for name in ("one", "two"):
        (tmp_path / "b" / name).mkdir(parents=True)
        (tmp_path / "b" / name / "train-images-idx3-ubyte").write_bytes(idx(colours(2)[..., 0]))
    with pytest.raises(IhdmError, match="several sets"):
        load(tmp_path / "b")


def test_of_few_images_some_are_left_to_learn_from(folder):
    for count, expected in ((1, (1, 0)), (2, (1, 1)), (3, (1, 2)), (5, (1, 4))):
        np.save(folder / "some.npy", np.zeros((count, 8, 8), np.uint8))
        images = load(folder / "some.npy", holdout=0.9)
        assert (len(images.train), len(images.held_out)) == expected


@pytest.mark.parametrize("kind", ["folder", "stream"])
def test_a_set_whose_held_out_images_are_all_broken_can_be_learned_from(tmp_path, kind, capsys):
    contents = {f"{i:02d}.png": png(np.full((5, 4), i)) for i in range(20)}
    write_tar(tmp_path / "set.tar", contents)
    (held_out,) = load(tmp_path / "set.tar", holdout=0.05).held_out[:, 0, 0, 0].tolist()
    first = 0 if kind == "stream" else held_out  # which a stream holds out
    source = tmp_path / ("set" if kind == "folder" else "broken.tar")
    contents[f"{first:02d}.png"] = b"broken"
    write_tar(tmp_path / "broken.tar", contents)
    (tmp_path / "set").mkdir()
    for name, content in contents.items():
        (tmp_path / "set" / name).write_bytes(content)
    config = DataConfig(str(source), stream=kind == "stream", holdout=0.05)
    with pytest.raises(IhdmError, match="is not an image that can be read"):
        load_images(config, lazy=True)
    images = load_images(replace(config, on_error="skip"), lazy=True)
    assert len(images.train) == 19 and tuple(images.held_out.shape) == (0, 1, 5, 4)
    assert "warning: of the held-out images, none of 1 images can be read" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["gif", "tiff", "png", "webp"])
def test_of_animations_the_first_frame_is_read_and_that_is_said(tmp_path, suffix, capsys):
    frames = [Image.new("L", (5, 4), 60 * i) for i in range(1, 4)]
    frames[0].save(tmp_path / f"one.{suffix}", lossless=True)
    load(tmp_path / f"one.{suffix}", holdout=0)
    assert not capsys.readouterr().err
    frames[0].save(tmp_path / f"many.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    assert load(tmp_path / f"many.{suffix}", holdout=0).train.unique().tolist() == [60]
    said = f"warning: only the first of 3 frames or pages of {tmp_path}/many.{suffix} is read"
    assert capsys.readouterr().err == f"{said}\n"
    (tmp_path / f"one.{suffix}").rename(tmp_path / f"other.{suffix}")
    load(tmp_path, holdout=0)
    assert f"{said}, and only the first of any others\n" in capsys.readouterr().err


def test_a_photograph_with_a_small_one_of_itself_is_no_animation(tmp_path, capsys):
    frames = [Image.new("RGB", (5, 4), (60 * i,) * 3) for i in (1, 2)]
    frames[0].save(tmp_path / "one.jpg", format="MPO", save_all=True, append_images=frames[1:])
    assert Image.open(tmp_path / "one.jpg").n_frames == 2
    load(tmp_path / "one.jpg", holdout=0)
    assert not capsys.readouterr().err


def test_folders_in_a_zip_may_be_written_as_on_windows(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for i, name in enumerate(("train\\cat\\a.png", "train\\dog\\a.png", "test\\cat\\a.png")):
            entry = zipfile.ZipInfo(name)
            entry.create_system = 0
            archive.writestr(entry, png(np.full((5, 4), i)))
    images = load(tmp_path / "set.zip", labels=True)
    assert images.labels.names == ("cat", "dog") and images.held_out_labels.tolist() == [0]
    assert images.train[:, 0, 0, 0].tolist() == [0, 1] and images.held_out[:, 0, 0, 0].tolist() == [2]


def test_a_name_that_is_in_a_zip_twice_is_one_image(tmp_path):
    """The last, as when the archive is unpacked: that is how an image in an archive is replaced."""
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for name, value in (("a.png", 1), ("b.png", 2), ("a.png", 3)):
            archive.writestr(name, png(np.full((5, 4), value)))
    assert load(tmp_path / "set.zip", holdout=0).train[:, 0, 0, 0].tolist() == [3, 2]


def test_images_of_different_sizes_need_a_target(folder):
    (folder / "class0" / "odd.png").write_bytes(png(colours(1, 9, 9)[0]))
    with pytest.raises(UsageError, match=r"6x5.*odd\.png.*9x9.*data\.size"):
        load(folder, holdout=0.0)
    assert load(folder, size=(8, 8)).shape == (3, 8, 8)


def test_bad_sources_are_refused_with_their_name(tmp_path, folder, monkeypatch):
    monkeypatch.delenv("IHDM_DATA", raising=False)
    with pytest.raises(UsageError, match="no data given"):
        load("")
    with pytest.raises(UsageError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(IhdmError, match="there is no"):
        load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IhdmError, match=r"empty.*no images"):
        load(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(IhdmError, match=r"notes\.txt is not an image"):
        load(tmp_path / "notes.txt")
    (tmp_path / "bad.zip").write_text("hello")
    with pytest.raises(IhdmError, match=r"bad\.zip"):
        load(tmp_path / "bad.zip")
    (folder / "class1" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(IhdmError, match=r"broken\.png is not an image"):
        load(folder)


def test_named_sets_are_found_in_IHDM_DATA(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(colours(4)[..., 0]))
    monkeypatch.setenv("IHDM_DATA", str(tmp_path))
    assert len(load("mnist", holdout=0.0).train) == 4


def test_hub_sets_are_read_through_datasets(monkeypatch):
    datasets = pytest.importorskip("datasets")
    pictures = [Image.fromarray(pixels) for pixels in colours(3)]
    rows = datasets.Dataset.from_dict({"label": [0, 1, 2], "img": pictures}).cast_column("img", datasets.Image())
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict(train=rows, test=rows))
    images = load("hf:someone/something")
    assert np.array_equal(images.train.numpy(), colours(3).transpose(0, 3, 1, 2))
    assert len(images.held_out) == 3


def test_hub_sets_stay_on_the_disk_and_are_read_by_number(tmp_path, monkeypatch):
    """Without a copy in memory: a set as the hub's library keeps it, here made from Parquet files."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for shard in range(3):
        pictures = [Image.fromarray(pixels) for pixels in colours(4, seed=shard)]
        rows = datasets.Dataset.from_dict({"img": pictures}).cast_column("img", datasets.Image())
        rows.to_parquet(tmp_path / "set" / "data" / f"train-{shard:05d}-of-00003.parquet")
    config = DataConfig(f"hf:{tmp_path / 'set'}", holdout=0, memory="no")
    outside, inside = load_images(config, lazy=True).train, load_images(config).train
    expected = np.concatenate([colours(4, seed=shard) for shard in range(3)]).transpose(0, 3, 1, 2)
    assert isinstance(outside, LazyImages) and np.array_equal(inside.numpy(), expected)
    rows = outside.decoder.pictures.pictures.rows
    assert rows.cache_files  # mapped from there, not held
    lazily, plain = (Batches(images, 5, 1, torch.device("cpu")) for images in (outside, inside))
    for step in (0, 1, 7):
        assert all(lazily.at(step, rank, 5).equal(plain.at(step, rank, 5)) for rank in range(5))


def test_shape_without_reading_everything(folder):
    assert image_shape(DataConfig(str(folder))) == (3, 6, 5)
    assert image_shape(DataConfig("nowhere", size=(9, 8), channels=2)) == (2, 9, 8)


def test_fingerprint_changes_with_the_images(folder):
    before = load(folder, holdout=0.0).fingerprint()
    assert before == load(folder, holdout=0.0).fingerprint()
    (folder / "class0" / "0.png").write_bytes(png(255 - colours(10)[0]))
    assert load(folder, holdout=0.0).fingerprint() != before


def test_evenly_spaced_numbers():
    assert evenly_spaced(10, 3).tolist() == [0, 3, 6]
    assert evenly_spaced(2, 5).tolist() == [0, 1]
    assert evenly_spaced(0, 5).tolist() == []


def batches(n=10, batch=4):
    return Batches(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1), batch, seed=3, device=torch.device("cpu"))


def test_every_epoch_visits_every_image_once():
    numbers = torch.cat([batches().numbers(step) for step in range(10)])
    for epoch in numbers.view(4, 10):
        assert sorted(epoch.tolist()) == list(range(10))
    assert numbers[:10].tolist() != numbers[10:20].tolist()


def test_batches_larger_than_the_set_and_shared_between_processes():
    assert sorted(batches(n=3, batch=6).numbers(5).tolist()) == [0, 0, 1, 1, 2, 2]
    whole = batches().at(7)
    parts = [batches().at(7, rank, 2) for rank in (0, 1)]
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)


def test_chosen_images_are_mirrored():
    u_0 = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).repeat(3, 1, 1, 1)
    found = mirrored(u_0, torch.tensor([True, False, True]))
    assert found[:, 0, 0, 0].tolist() == [1, 0, 1] and found[:, 0, 0, 1].tolist() == [0, 1, 0]


@pytest.mark.accident("an unreadable image", "before a run; named, or left out by name")
def test_broken_images_stop_the_reading_or_are_left_out_by_name(tmp_path, capsys):
    for i in range(12):
        Image.new("L", (4, 5), 10 * i).save(tmp_path / f"{i:02d}.png")
    for name in ("00", "03", "07"):
        (tmp_path / f"{name}.png").write_bytes(b"not a picture")
    config = DataConfig(source=str(tmp_path), holdout=0)
    with pytest.raises(IhdmError, match=r"00\.png"):
        load_images(config)
    images = load_images(replace(config, on_error="skip"))
    assert images.train[:, 0, 0, 0].tolist() == [10, 20, 40, 50, 60, 80, 90, 100, 110]
    warnings = capsys.readouterr().err
    assert all(f"{name}.png" in warnings for name in ("00", "03", "07")) and "skipped 2 of 11" in warnings
    for lazy in (False, True):
        assert len(load_images(replace(config, on_error="skip"), lazy=lazy).train) == 9
    assert image_shape(replace(config, on_error="skip")) == (1, 5, 4)
    with pytest.raises(IhdmError, match=r"00\.png"):
        image_shape(config)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(IhdmError, match="none of 12 images can be read"):
        load_images(replace(config, on_error="skip"))


def test_images_outside_of_the_memory_are_those_inside(folder, monkeypatch):
    config = DataConfig(source=str(folder), holdout=0)
    inside = load_images(config, lazy=True)
    assert isinstance(inside.train, torch.Tensor)  # they are few
    outside = load_images(replace(config, memory="no"), lazy=True)
    assert isinstance(outside.train, LazyImages) and outside.shape == inside.shape
    assert outside.fingerprint() == inside.fingerprint()
    assert torch.cat(list(outside.train.split(2))).equal(inside.train) and outside.train[1:3].equal(inside.train[1:3])
    lazily, plain = (Batches(some.train, 3, 5, torch.device("cpu")) for some in (outside, inside))
    for step in (0, 1, 2, 7, 3):
        assert lazily.at(step).equal(plain.at(step))
        assert lazily.at(step, 1, 2).equal(plain.at(step, 1, 2))
    monkeypatch.setattr(data_module, "host_bytes", lambda: 100)
    assert isinstance(load_images(config, lazy=True).train, LazyImages)
    assert isinstance(load_images(config).train, torch.Tensor)  # only training can do without


def test_a_broken_image_outside_of_the_memory(tmp_path, capsys):
    for i in range(6):
        Image.new("L", (4, 5), 10 * i).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"")
    config = DataConfig(source=str(tmp_path), holdout=0, memory="no")
    with pytest.raises(IhdmError, match=r"3\.png"):
        load_images(config, lazy=True).train[torch.tensor([2, 3])]
    images = load_images(replace(config, on_error="skip"), lazy=True).train
    for _ in range(2):
        assert images[torch.tensor([2, 3])][:, 0, 0, 0].tolist() == [20, 40]
    assert capsys.readouterr().err.count("warning") == 1


def write_grey(path, numbers):
    contents = {f"{i:03d}.png": png(np.full((5, 4), i)) for i in numbers}
    write_tar(path, contents | {f"{i:03d}.json": b"{}" for i in numbers})


@pytest.mark.parametrize("memory", ["yes", "no"])
def test_archives_as_webdataset_has_them(tmp_path, memory):
    for name, numbers in (("train-000.tar", range(3)), ("train-001.tar", range(3, 6)), ("val-000.tar", range(6, 8))):
        write_grey(tmp_path / name, numbers)
    images = load_images(DataConfig(source=str(tmp_path), memory=memory), lazy=True)
    assert images.train[:6][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert images.held_out[:, 0, 0, 0].tolist() == [6, 7]
    one = load_images(DataConfig(source=str(tmp_path / "train-001.tar"), holdout=0))
    assert one.train[:, 0, 0, 0].tolist() == [3, 4, 5]
    (tmp_path / "val-000.tar").write_bytes(b"no archive")
    with pytest.raises(IhdmError, match=r"val-000\.tar"):
        load_images(DataConfig(source=str(tmp_path)))


@pytest.mark.parametrize("names", [("imagenet-train-00.tar", "imagenet-val-00.tar"), ("train/0.tar", "val/0.tar")])
def test_splits_of_archives_are_found_in_any_part_of_their_names(tmp_path, names):
    for name, numbers in zip(names, (range(3), range(3, 5))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_grey(tmp_path / name, numbers)
    images = load_images(DataConfig(source=str(tmp_path)))
    assert (len(images.train), len(images.held_out)) == (3, 2)


def test_a_start_outside_of_the_memory_decodes_no_more_than_it_needs(folder, monkeypatch):
    """However many images there are: of those in the prior each once, after once for the spectrum."""
    images = load_images(DataConfig(source=str(folder), holdout=0, memory="no"), lazy=True).train
    whole = Model.from_images(MODEL, images).process.prior.coefficients
    assert len(whole) == 10
    monkeypatch.setattr(model_module, "OUTSIDE_MOST", 3)
    decoded = []
    monkeypatch.setattr(
        images.decoder.pictures, "read", lambda i: decoded.append(i) or type(pictures).read(pictures, i)
    )
    pictures = images.decoder.pictures
    few = Model.from_images(MODEL, images).process.prior.coefficients
    assert few.equal(whole[[0, 3, 6]]) and decoded == 2 * [0, 3, 6]
