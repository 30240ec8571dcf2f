"""`ihdm likelihood`."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, arg

from ihdm.errors import UsageError
from ihdm.verbs.words import (
    AS_USUAL,
    Computing,
    File,
    Folder,
    ModelName,
    Source,
    check_count,
    check_outputs,
    make_folders,
    write_json,
)


def likelihood(
    model: ModelName,
    /,
    data: Source,
    delta_ratio: Annotated[tuple[float, ...], arg(metavar="RATIO ...", help_behavior_hint="")] = (),
    levels: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="")] = None,
    split: Literal["test", "train"] = "test",
    n: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    seed: int = 0,
    resize: bool = False,
    json: File = None,
    figures: Folder = None,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Bound the negative log-likelihood of images (Eq. 5-10).

    Prints every known bound, in nats and bits per dimension. A model that knows labels is told none.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or a model that comes with ihdm (see ihdm info)
        data: a named set, a folder, zip, tar, idx, npy or npz file of images, or hf:NAME
        delta_ratio: noise of the paper's steps, in units of sigma; several cost the same as one; default: the model's
        levels: levels to evaluate per image: level 1 and others at random; default: all
        split: which images: held out from training, or trained on
        n: how many images, evenly spaced; default: all
        seed: for the noise and the random levels
        resize: convert the images to the model's size and channels, as data.size and data.channels do in training
        json: file for all numbers
        figures: folder for a plot of the bound against delta and levels
    """
    if n is not None:
        check_count(n)
    if levels is not None and levels < 2:
        raise UsageError("--levels must be at least 2 (level 1 and another)")
    check_outputs(json, figures)
    from ihdm import evaluation, plots, workers
    from ihdm.data import evenly_taken
    from ihdm.engine import placed
    from ihdm.evaluation import drawings, tables
    from ihdm.evaluation.quality import split_images
    from ihdm.model import Model
    from ihdm.processes import bounded

    if figures:
        plots.check_available()
    place = computing.place()
    loaded = Model.from_pretrained(model)
    options = {"delta_ratio": delta_ratio} if delta_ratio else {}
    bounded(loaded.process).bounding(**options)  # refuses what has no bound
    images = evaluation.images_for(loaded, data, resize, name=model)
    chosen = split_images(images, split)
    chosen = evenly_taken(chosen, n or len(chosen))
    if not len(chosen):
        raise UsageError(
            f"{data} has no images in its {split} split, and none were held out in training; --split train uses images "
            f"that the model was trained on"
        )
    make_folders(figures)
    with workers.together() as team:
        found = evaluation.likelihood(
            placed(loaded, team.device(place)),
            chosen,
            images.train,
            levels=levels,
            seed=seed,
            execution=computing.execution(place, loaded.config.shape, team.main),
            workers=team,
            **options,
        )
        if not team.main:
            return
    print(f"{model} on {images.name} ({split}): {tables.likelihood(found)}")
    if json:
        write_json(json, {"model": model, "data": images.name, "split": split} | found.tree())
    for path in filter(None, (json, figures and drawings.likelihood(figures, found))):
        print(path)
