"""`ihdm restore`."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
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
    make_folders,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ihdm.domains import Domain
    from ihdm.restoration import Restored

COLUMNS = 8  # of samples in a picture
MARK = "ihdm restore"
MADE = "Made"  # in restored.png: names and digests of files that cannot carry a mark of their own
ALL = "restored.png"
MUCH = 3  # of 255: a larger difference between the image and the samples blurred again is more than rounding


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
    """Make sharp versions of your own blurred image or muffled sound.

    Takes the paper's steps unless --sampler says otherwise. A model that knows labels is told none.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or a model that comes with ihdm (see ihdm info)
        image: a blurred image of the model's size, or smaller in the same proportions; a sound for a model of sounds
        blur_width: standard deviation of the blur (many programs' radius), in pixels or sound samples; auto: estimated
        n: how many sharp images to make
        seed: sample i depends only on the seed and i
        out: folder for input.png, restored.png (all in one picture) and the samples, 00.png etc. (sounds: 00.wav);
            earlier results are replaced
        consistent: only start from the image: blurred again, samples need not match it
        invert: restore the negative, e.g. of black ink on white with a model of white on black
        resize: crop and scale an image to the model's size, or cut and resample a sound; --blur-width then counts the
            model's pixels or samples
    """
    width = _pixels(blur_width)
    check_count(n)
    from ihdm.engine import placed
    from ihdm.model import Model

    place = computing.place()
    loaded = Model.from_pretrained(model)
    loaded.restorer().process(**sampling.changes())  # refuses models that cannot restore, and impossible sampling
    domain = loaded.config.domain
    if invert and not domain.negatives:
        raise UsageError(f"--invert is for images, not for {domain.noun}s")
    given, own_width = _read(image, domain, resize)
    if own_width is not None and width is not None:
        raise UsageError("--blur-width is for images of the model's size; that of a smaller one follows from its size")
    found_by = "estimated" if width is None and own_width is None else "given" if own_width is None else "by its size"
    width = own_width if width is None else width
    given = 1 - given if invert else given
    earlier = _earlier(out, image)
    check_folder(out)
    computed = computing.execution(place, loaded.config.shape)
    found = placed(loaded, place).restore(
        given,
        n,
        seed,
        blur_width=width,
        consistent=consistent,
        execution=computed,
        **sampling.changes(),
    )
    _say(found, domain, found_by, loaded.process.K)
    verdict = loaded.restorer(computed.quiet()).verdict(found.seen)
    advice = "; the image itself does: leave out --invert" if invert else "; its negative does: try --invert"
    print(verdict.words + advice * verdict.inverted)
    for path in earlier:
        path.unlink()
    _write(found, given, domain, out)
    print(out / ALL)


def _say(found: Restored, domain: Domain, found_by: str, K: int) -> None:
    """Print how blurred the image was, and how well the samples agree with it."""
    seen, noun, words = found.seen, domain.noun, domain.width_words(found.seen.width)
    how = f"{found_by}; {words}" if words else found_by
    print(f"blur width {seen.width_words} {domain.unit}s ({how}), level {seen.level} of {K}")
    if seen.interval and domain.width_error:
        print(
            f"that is a rough guess, as {noun}s vary more in sharpness than images; if you know the width, "
            f"give --blur-width {domain.unit.upper()}S"
        )
    if not seen.level:
        estimated = found_by == "estimated"
        sharp = f"the {noun} already looks sharp" if estimated else "that is next to no blur"
        if_not = f"; if it is blurred, give --blur-width {domain.unit.upper()}S" if estimated else ""
        changed = float((found.images[0] - seen.image).square().mean().sqrt())
        print(
            f"{sharp}, so the network is not used: all samples are the best linear estimate, which differs from the "
            f"{noun} by {domain.difference_words(changed)} (rms){if_not}"
        )
    residual = seen.residual(found.images)
    print(f"blurred again, the samples differ from the {noun} by {domain.difference_words(residual)} (rms)")
    if 255 * residual > MUCH:
        print(
            f"that is a lot: the blur may be another one, or the model may not know such {noun}s; try "
            f"{'another ' * (found_by == 'given')}--blur-width {domain.unit.upper()}S"
        )


def _write(found: Restored, given: Tensor, domain: Domain, out: Path) -> None:
    """Write the input and each sample to a file, and all of them to one picture."""
    from ihdm import pictures

    make_folders(out)
    named = {"input": given} | {f"{i:02d}": sample for i, sample in enumerate(found.images)}
    paths = {out / f"{name}{domain.suffix}": one for name, one in named.items()}
    parts = {"input": given[None], "samples": found.images, "mean": found.mean[None]}
    images = domain.kind == "images"
    if images:
        parts |= {"spread": found.spread[None] * 2}  # at most a half, as values lie in [0, 1]
    for path, one in paths.items():
        if images:
            _save(pictures.plain(one), path)
        else:
            domain.write(one, path)
    shown = {caption: domain.pictures(some) for caption, some in parts.items()}
    pages = [pictures.grid(some, min(len(some), COLUMNS), caption) for caption, some in shown.items()]
    unmarked = [] if images else list(paths)
    _save(pictures.beside(*pages), out / ALL, unmarked)


def _earlier(out: Path, image: Path) -> list[Path]:
    """The files that this command wrote to the folder before; refuse a folder with any others, such as the image."""
    there = sorted(out.iterdir()) if out.is_dir() else []
    made = _made(out / ALL)
    if not all(_is_ours(path, made) for path in there) or image.resolve() in [path.resolve() for path in there]:
        raise UsageError(f"--out takes a new folder, or one with only earlier results; {out} has other files in it")
    return there


def _save(picture: Image, path: Path, others: Sequence[Path] = ()) -> None:
    """Save with a note that this picture and `others` are results of this command, which a later one may replace."""
    from PIL.PngImagePlugin import PngInfo

    note = PngInfo()
    note.add_text("Software", MARK)
    if others:
        note.add_text(MADE, json.dumps({other.name: _digest(other) for other in others}))
    picture.save(path, pnginfo=note)


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _is_ours(path: Path, made: dict[str, str]) -> bool:
    """Whether this command wrote a file. Its name and the note in it tell, or its digest in restored.png (`made`)."""
    if not path.is_file():
        return False
    if path.name in made:
        return _digest(path) == made[path.name]
    return bool(re.fullmatch(r"(input|restored|\d\d+)\.png", path.name)) and _note(path).get("Software") == MARK


def _made(path: Path) -> dict[str, str]:
    """The names and digests in restored.png of other files that an earlier command wrote."""
    note = _note(path) if path.is_file() else {}
    try:
        made = json.loads(note.get(MADE, "{}")) if note.get("Software") == MARK else {}
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(digest) for name, digest in made.items()} if isinstance(made, dict) else {}


def _note(path: Path) -> dict[str, str]:
    """The notes in a PNG file."""
    from PIL.Image import open as opened

    try:
        with opened(path, formats=["PNG"]) as picture:
            return {str(name): str(value) for name, value in picture.info.items()}
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for damaged files
        return {}


def _pixels(word: str) -> float | None:
    """The blur width that was typed; None if it is to be estimated."""
    if word == "auto":
        return None
    try:
        width = float(word)
    except ValueError:
        width = math.nan
    if not 0 <= width < math.inf:
        raise UsageError(f"--blur-width takes auto or a number of pixels or samples, not {word}")
    return width


def _read(path: Path, domain: Domain, resize: bool) -> tuple[Tensor, float | None]:
    """The image in the model's shape, in [0, 1], and its blur width if that follows from its size."""
    from ihdm.data.single import read_one, read_other

    shape = domain.shape
    if domain.kind != "images":
        return read_other(path, domain, resize), None
    image, width, channels = read_one(path, shape, resize)
    if channels != shape[0]:
        kinds = {1: "grey", 3: "colour", 4: "colour with alpha"}
        ours = kinds.get(shape[0], f"of {shape[0]} channels")
        dropped = "; colour is dropped" if shape[0] == 1 < channels else ""
        print(f"{path} is {kinds[channels]}; the model's images are {ours}{dropped}")
    return image, width
