"""`ihdm calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes

from ihdm.errors import UsageError
from ihdm.verbs.words import AS_USUAL, MOST, Computing, ModelName, Source, check_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ihdm.data import Images
    from ihdm.judgement import Judge
    from ihdm.width_reader import WidthReader

LEAST = 40  # images that are needed to tell how images differ


def calibrate(
    model: ModelName,
    /,
    data: Source,
    n: int = 1200,
    width_steps: int = 13_000,
    resize: bool = False,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Teach a model to read blur widths and to spot unfamiliar images.

    ihdm restore then says when a picture does not look like what the model knows. It also finds an image's blur width
    at once and more precisely, with a small network that is trained here.

    Args:
        model: a model or run folder, to which familiar.safetensors and widths.safetensors are written
        data: the training data: a named set, a folder, zip, tar, idx, npy or npz file of images, or hf:NAME
        n: how many held-out images, evenly spaced
        width_steps: training steps of the width-reading network (images only); 0: skip it
        resize: convert the images to the model's size and channels, as data.size and data.channels do in training
    """
    check_count(n)
    if n < LEAST:
        raise UsageError(f"--n must be at least {LEAST}")
    if not 0 <= width_steps <= MOST:
        raise UsageError(f"--width-steps must be from 0 to {MOST:,}, not {width_steps}")
    from ihdm.run import adding_to

    with adding_to(model) as folder:
        _calibrate(folder, data, n, width_steps, resize, computing)


def _calibrate(folder: Path, data: str, n: int, width_steps: int, resize: bool, computing: Computing) -> None:
    from ihdm import evaluation, judgement
    from ihdm.data import evenly_taken
    from ihdm.engine import placed
    from ihdm.graph import GraphLaplacian
    from ihdm.model import Model
    from ihdm.model_folder import FAMILIAR, READER, write_tensors
    from ihdm.progress import progress_bar
    from ihdm.studies.strangers import WAYS

    place = computing.place()
    loaded = Model.from_pretrained(folder)
    if isinstance(loaded.config.domain.laplacian, GraphLaplacian):
        raise UsageError("calibration looks at feature maps on grids, and networks on graphs have none")
    loaded.restorer().judge()  # refuses other models that cannot be calibrated
    images = evaluation.images_for(loaded, data, resize, name=str(folder))
    held_out = images.held_out
    if len(held_out) < LEAST:
        raise UsageError(
            f"{data} has {len(held_out)} {images.domain.noun}s held out from training; at least {LEAST} are needed"
        )
    some = evenly_taken(held_out, n)
    computed = computing.execution(place, loaded.config.shape)
    judge = placed(loaded, place).restorer(computed).judge()
    pictures = loaded.config.domain.kind == "images"
    ways = WAYS if pictures else [judge.dissipated]
    found = judgement.calibrate(judge, some, ways, lambda parts: progress_bar(parts, desc="calibrating", unit="level"))
    write_tensors(folder / FAMILIAR, replace(found, steps=loaded.config.steps).tensors())
    print(folder / FAMILIAR)
    if pictures and width_steps:
        reader = _reader(judge, images.train, some, width_steps, computed.precision)
        write_tensors(folder / READER, reader.tensors())
        print(folder / READER)


def _reader(judge: Judge, images: Images, others: Tensor, steps: int, precision: torch.dtype) -> WidthReader:
    """A reader of blur widths that is trained on `images`; `others` show how far off it is."""
    import torch

    from ihdm.progress import progress_bar
    from ihdm.studies.strangers import GAUSSIAN, by_pillow
    from ihdm.width_reader import Examples, scaled, trained

    numbers = progress_bar(range(steps), desc="learning to read widths", unit="step")
    examples, channels = Examples(images, GAUSSIAN, [by_pillow]), judge.shape[0]
    reader = trained(judge.blurs, examples, channels, numbers, count=steps, device=judge.device, precision=precision)
    unseen = Examples(others, GAUSSIAN, [by_pillow]).draw(len(others), torch.Generator().manual_seed(1))
    return scaled(reader, judge.blurs, unseen)
