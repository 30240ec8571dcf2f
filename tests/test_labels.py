"""Labels, from where they are found to what they change."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pytest
import torch
from archives import png, write_tar
from PIL import Image

from ihdm.config import DataConfig
from ihdm.data import ImageSet, load_images
from ihdm.data.labels import by_folder
from ihdm.data.lazy import LazyImages
from ihdm.errors import IhdmError, UsageError
from ihdm.labels import Labels
from ihdm.noise import SeededNoise

SHADES = {"ant": 10, "bee": 100, "cat": 200}  # of images that are what their folders say


def shaded(shade: int) -> np.ndarray:
    return np.full((8, 8), shade, np.uint8)


def zoo(each: int = 4, top: str = "") -> dict[str, bytes]:
    """Images in class folders."""
    return {f"{top}{name}/{i}.png": png(shaded(shade + i)) for name, shade in SHADES.items() for i in range(each)}


def load(source, **settings) -> ImageSet:
    return load_images(DataConfig(str(source), labels=True, **settings))


def check_shades(images: ImageSet) -> None:
    assert images.labels.names == tuple(SHADES)
    for shown, numbers in ((images.train, images.train_labels), (images.held_out, images.held_out_labels)):
        assert len(shown) == len(numbers) and numbers.dtype == torch.long
        for image, number in zip(shown, numbers.tolist()):
            assert 0 <= int(image[0, 0, 0]) - [*SHADES.values()][number] < 10
    assert images.labels.counts == tuple(torch.bincount(images.train_labels, minlength=3).tolist())


def write_files(folder, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("top", ["", "animals/", "train/", "animals/train/"])
def test_class_folders_are_labels_in_folders_and_archives(tmp_path, top):
    contents = zoo(top=top)
    write_files(tmp_path / "set", contents)
    write_tar(tmp_path / "set.tar", contents)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    for source in ("set", "set.tar", "set.zip"):
        images = load(tmp_path / source, holdout=0.25)
        assert len(images.train) == 9
        check_shades(images)


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["train/n1/images/1.png", "train/n2/images/2.png"], ["n1", "n2"]),
        (["cat/train/1.png", "dog/train/2.png"], ["cat", "dog"]),
        (["cat/old/1.png", "dog/2.png"], ["cat", "dog"]),
        (["all/test/cat/1.png", "all/test/cat/2.png"], ["cat", "cat"]),
        (["all/1.png", "all/cat/2.png"], ["", "cat"]),
        (["1.png", "./2.png"], ["", ""]),
        ([], []),
    ],
)
def test_which_folder_is_the_label(paths, labels):
    assert by_folder(paths) == labels


def test_splits_and_sets_outside_of_the_memory_have_labels_too(tmp_path):
    write_files(tmp_path, zoo(top="train/") | {"test/bee/0.png": png(shaded(101))})
    images = load(tmp_path)
    assert len(images.train) == 12 and images.held_out_labels.tolist() == [1]
    check_shades(images)
    lazy = load_images(DataConfig(str(tmp_path), labels=True, memory="no"), lazy=True)
    assert isinstance(lazy.train, LazyImages) and lazy.train_labels.equal(images.train_labels)
    assert lazy.fingerprint() == images.fingerprint() != load_images(DataConfig(str(tmp_path))).fingerprint()


def test_images_that_are_skipped_take_their_labels_along(tmp_path):
    write_files(tmp_path, zoo() | {"ant/0.png": b"none", "bee/1.png": b"none"})
    images = load(tmp_path, on_error="skip", holdout=0)
    assert len(images.train) == 10
    assert images.train_labels.tolist() == [0] * 3 + [1] * 3 + [2] * 4
    with pytest.raises(UsageError, match="take the places of broken ones"):
        load_images(DataConfig(str(tmp_path), labels=True, memory="no", on_error="skip"), lazy=True)


def idx(array: np.ndarray) -> bytes:
    head = np.array([0x800 + array.ndim, *array.shape], ">u4")
    return head.tobytes() + array.astype(np.uint8).tobytes()


PIXELS = np.stack([shaded(shade) for shade in (10, 200, 100, 10)])


@pytest.mark.parametrize("packed", [True, False])
def test_labels_of_mnist_lie_beside_its_images(tmp_path, packed):
    kinds = {"train": [0, 12, 7, 0], "t10k": [7, 12, 0, 0]}
    for split, numbers in kinds.items():
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(PIXELS))
        name, content = f"{split}-labels-idx1-ubyte", idx(np.array(numbers))
        write_files(tmp_path, {name + ".gz": gzip.compress(content)} if packed else {name: content})
    images = load(tmp_path)
    assert images.labels == Labels(("0", "7", "12"), (2, 1, 1))
    assert images.train_labels.tolist() == [0, 2, 1, 0] and images.held_out_labels.tolist() == [1, 2, 0, 0]
    assert load(tmp_path / "train-images-idx3-ubyte", holdout=0).train_labels.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize("names", [("train", "train_labels"), ("x_train", "y_train"), ("images", "labels")])
@pytest.mark.parametrize("values", [["b", "a", "c", "b"], [1, 0, 2, 1], [[1], [0], [2], [1]]])
def test_labels_are_arrays_beside_arrays(tmp_path, names, values):
    np.savez(tmp_path / "set.npz", **dict(zip(names, (PIXELS, np.array(values)))))
    images = load(tmp_path / "set.npz", holdout=0)
    assert images.train_labels.tolist() == [1, 0, 2, 1] and len(images.train) == 4
    assert len(load_images(DataConfig(str(tmp_path / "set.npz"), holdout=0)).train) == 4  # or are left alone


def test_labels_of_webdataset_are_files_in_its_archives(tmp_path):
    for part in range(2):
        numbers = {f"{i}": 3 * (i + part) for i in range(2)}
        contents = {
            f"{i}.{kind}": png(PIXELS[0]) if kind == "png" else f"{n}\n".encode()
            for i, n in numbers.items()
            for kind in ("cls", "png")
        }
        write_tar(tmp_path / f"{part}.tar", contents)
    images = load(tmp_path, holdout=0)
    assert images.labels.names == ("0", "3", "6") and images.train_labels.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("kind", ["names", "numbers", "texts"])
def test_labels_of_the_hub_are_a_column(monkeypatch, kind):
    datasets = pytest.importorskip("datasets")
    values = ["bee", "ant", "bee"] if kind == "texts" else [1, 0, 1]
    column = "labels" if kind == "texts" else "fine_label"
    rows = datasets.Dataset.from_dict({column: values, "img": [Image.fromarray(pixels) for pixels in PIXELS[:3]]})
    rows = rows.cast_column("img", datasets.Image())
    if kind == "names":
        rows = rows.cast_column(column, datasets.ClassLabel(names=["bee", "ant", "cow"]))
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict(train=rows))
    images = load("hf:someone/something", holdout=0)
    assert images.labels.names == (("0", "1") if kind == "numbers" else ("ant", "bee"))
    assert images.train_labels.tolist() == ([0, 1, 0] if kind == "names" else [1, 0, 1])


def test_the_embedded_digits_have_theirs():
    """Digits of one kind are nearer to the mean of their own than to that of the others, mostly."""
    images = load("digits", holdout=0)
    assert images.labels.names == tuple("0123456789") and len(images.train_labels) == len(images.train) == 1797
    assert nearest_kind(images.train, images.train).eq(images.train_labels).float().mean() > 0.88  # 0.904


def nearest_kind(images: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """The digit whose mean each image is nearest to, both as bytes; all known digits, with the embedded labels."""
    numbers = load("digits", holdout=0).train_labels
    means = torch.stack([known[numbers == digit].float().mean(0).flatten() for digit in range(10)])
    return torch.cdist(images.float().flatten(1), means).argmin(1)


def broken_sets(folder) -> dict[str, tuple[str, str]]:
    """Sources that have no labels or not the right ones, and what is said of them."""
    write_files(folder / "flat", {f"{i}.png": png(PIXELS[0]) for i in range(4)})
    write_files(folder / "half", zoo() | {"stray.png": png(PIXELS[0])})
    write_files(folder / "one", {f"cat/{i}.png": png(PIXELS[0]) for i in range(4)})
    write_files(folder / "unseen", zoo(top="train/") | {"test/dog/1.png": png(PIXELS[0])})
    (folder / "few-images-idx3-ubyte").write_bytes(idx(PIXELS))
    (folder / "few-labels-idx1-ubyte").write_bytes(idx(np.arange(3)))
    (folder / "cut-images-idx3-ubyte").write_bytes(idx(PIXELS))
    (folder / "cut-labels-idx1-ubyte").write_bytes(idx(np.arange(4))[:-1])
    np.savez(folder / "real.npz", train=PIXELS, train_labels=np.linspace(0, 1, 4))
    np.savez(folder / "none.npz", train=PIXELS)
    np.savez(folder / "some.npz", train=PIXELS, labels=np.array([1, 2, -1, 1]))
    return {
        "flat": ("has no labels", "class folders"),
        "half": ("stray.png has no label", "1 of 13"),
        "one": ("have one label, 'cat'", ""),
        "unseen": ("test/dog/1.png", "which no training image"),
        "few-images-idx3-ubyte": ("3 labels for 4 images", ""),
        "cut-images-idx3-ubyte": ("not a complete idx1-ubyte file of labels", ""),
        "real.npz": ("whole numbers or texts, not float", ""),
        "none.npz": ("has no labels", "train_labels"),
        "some.npz": ("some.npz[2] has no label", "1 of 4"),
    }


def test_labels_that_are_not_there_or_wrong_are_refused_before_images_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("ihdm.data.decode_readable", None)
    for name, words in broken_sets(tmp_path).items():
        with pytest.raises(IhdmError) as error:
            load(tmp_path / name, holdout=0)
        assert all(word in str(error.value) for word in words)
    with pytest.raises(UsageError, match=r"which a stream does not tell.*data\.memory=no"):
        DataConfig("set", labels=True, stream=True)


ANIMALS = Labels(("ant", "bee", "cat"), (1, 0, 3))


def test_labels_are_given_by_name_or_number_for_all_or_for_each():
    assert ANIMALS.numbers("bee", 2).tolist() == [1, 1] and ANIMALS.numbers(2, 1).tolist() == [2]
    assert ANIMALS.numbers(["cat", 0], 2).tolist() == ANIMALS.numbers(torch.tensor([2, 0]), 2).tolist() == [2, 0]
    assert Labels(("1", "5"), (1, 1)).numbers(5, 1).tolist() == [1]  # a name that is a number is meant
    for given, words in (("cta", "did you mean 'cat'"), (3, "unknown label '3'"), (["cat"], "each of 2, not 1")):
        with pytest.raises(UsageError, match=words):
            ANIMALS.numbers(given, 2)


def test_labels_that_are_not_given_follow_from_seed_and_image_in_the_training_set_s_proportions():
    drawn = ANIMALS.drawn(SeededNoise(3, torch.arange(20_000), (1,)))
    assert drawn.bincount(minlength=3).tolist()[1] == 0 and abs(float((drawn == 2).float().mean()) - 0.75) < 0.01
    assert ANIMALS.drawn(SeededNoise(3, torch.tensor([7, 5]), (1,))).equal(drawn[[7, 5]])
    starts = SeededNoise(3, torch.arange(20_000), (1,)).choice(4)
    together = torch.stack([(drawn == 2).float(), (starts == 0).float()])
    assert abs(float(torch.corrcoef(together)[0, 1])) < 0.03  # what an image starts from is another draw
