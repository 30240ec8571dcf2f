"""`ihdm restore`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ihdm.errors import UsageError
from ihdm.verbs.words import (
    AS_THE_MODEL_HAS_IT,
    AS_USUAL,
    Computing,
    HowToSample,
    ModelName,
    check_count,
    check_folder,
    execution,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

COLUMNS = 8  # of samples in a picture
MARK = "ihdm restore"
MUCH = 3  # of 255: such a difference between the image and what was made of it is more than rounding


def restore(
    model: ModelName,
    image: Annotated[Positional[Path], arg(metavar="IMAGE")],
    /,
    blur_width: Annotated[str, arg(metavar="auto|PIXELS")] = "auto",
    n: int = 8,
    seed: int = 0,
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("restored"),
    consistent: Annotated[bool, arg(help_behavior_hint="")] = True,
    resize: bool = False,
    invert: bool = False,
    sampling: Annotated[HowToSample, OmitArgPrefixes] = AS_THE_MODEL_HAS_IT,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Make sharp versions of a blurred or small image of your own.

    By the paper's steps, unless told otherwise. A network that knows labels is told none.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or one that comes with ihdm (ihdm info lists them)
        image: a blurred image of the size that the model makes, or a smaller one of the same shape
        blur_width: standard deviation of the blur in pixels, the radius of many programs' blurs; auto: estimated
        n: how many sharp images to make
        seed: sample i depends on the seed and i alone
        out: a folder for input.png, restored.png (all in one picture) and each sample, 00.png and so on; those of an
            earlier time are replaced
        consistent: let samples start from the image and no more: blurred again, they need not look like it
        invert: restore the negative of the image, such as of black ink on white for a model of white on black
        resize: crop an image and bring it to the model's size; the blur width is then that in the model's pixels
    """
    width = _pixels(blur_width)
    check_count(n)
    from ihdm import pictures
    from ihdm.engine import choose_device, keep_freed_memory, placed
    from ihdm.model import Model

    keep_freed_memory()
    place = choose_device(computing.device)
    loaded = Model.from_pretrained(model)
    loaded.restoring_process(**sampling.changes())  # refuses what cannot be
    given, own_width = _read(image, loaded.config.shape, resize)
    if own_width is not None and width is not None:
        raise UsageError("--blur-width is for images of the model's size; that of a smaller one follows from its size")
    found_by = "estimated" if width is None and own_width is None else "given" if own_width is None else "by its size"
    width = own_width if width is None else width
    given = 1 - given if invert else given
    earlier = _earlier(out, image)
    check_folder(out)
    computed = execution(computing, place, loaded.config.shape)
    found = placed(loaded, place).restore(
        given,
        n,
        seed,
        blur_width=width,
        consistent=consistent,
        execution=computed,
        **sampling.changes(),
    )
    print(f"blur width {found.seen.width_words} pixels ({found_by}), level {found.seen.level} of {loaded.process.K}")
    if not found.seen.level:
        print("the image looks sharp already, and is left as it is; --blur-width says that it is not")
    residual = 255 * found.seen.residual(found.images)
    print(f"blurred again, the samples differ from the image by {residual:.2f}/255 (rms)")
    if residual > MUCH:
        print(
            "that is much: its blur may be another, or it is no image such as the model knows; try --blur-width PIXELS"
        )
    verdict = loaded.verdict(found.seen, computed.quiet())
    print(verdict.words + ("; its negative does: try --invert" if verdict.inverted else ""))
    for path in earlier:
        path.unlink()
    _save(pictures.plain(given), out / "input.png")
    for i, sample in enumerate(found.images):
        _save(pictures.plain(sample), out / f"{i:02d}.png")
    parts = {"input": given[None], "samples": found.images, "mean": found.mean[None]}
    parts |= {"spread": found.spread[None] * 2}  # of values in [0, 1] it is at most a half
    pages = [pictures.grid(some, min(len(some), COLUMNS), caption) for caption, some in parts.items()]
    _save(pictures.beside(*pages), out / "restored.png")
    print(out / "restored.png")


def _earlier(out: Path, image: Path) -> list[Path]:
    """What this command wrote to the folder before; refuse a folder with anything else in it, such as the image."""
    there = sorted(out.iterdir()) if out.is_dir() else []
    if not all(map(_is_ours, there)) or image.resolve() in [path.resolve() for path in there]:
        raise UsageError(f"--out takes a new folder, or one with earlier results alone; {out} has other files in it")
    return there


def _save(picture: Image, path: Path) -> None:
    """With a note that it is a result of this command, and may be replaced by another."""
    from PIL.PngImagePlugin import PngInfo

    note = PngInfo()
    note.add_text("Software", MARK)
    picture.save(path, pnginfo=note)


def _is_ours(path: Path) -> bool:
    """Whether this command wrote a file: by its name, and by the note in it."""
    from PIL.Image import open as opened

    if not path.is_file() or not re.fullmatch(r"(input|restored|\d\d+)\.png", path.name):
        return False
    try:
        with opened(path, formats=["PNG"]) as picture:
            return bool(picture.info.get("Software") == MARK)
    except (OSError, SyntaxError, ValueError):  # as Pillow has it, of damaged files
        return False


def _pixels(word: str) -> float | None:
    """A blur width as it was typed; None: to be estimated."""
    if word == "auto":
        return None
    try:
        width = float(word)
    except ValueError:
        width = math.nan
    if not 0 <= width < math.inf:
        raise UsageError(f"--blur-width takes auto or a number of pixels, not {word}")
    return width


def _read(path: Path, shape: tuple[int, ...], resize: bool) -> tuple[Tensor, float | None]:
    """The image in the model's shape, in [0, 1], and its blur width if that follows from its size."""
    from ihdm.data.single import read_one

    image, width, channels = read_one(path, shape, resize)
    if channels != shape[0]:
        kinds = {1: "grey", 3: "colour", 4: "colour with alpha"}
        ours = kinds.get(shape[0], f"of {shape[0]} channels")
        dropped = "; colour is dropped" if shape[0] == 1 < channels else ""
        print(f"{path} is {kinds[channels]}; the model's images are {ours}{dropped}")
    return image, width
