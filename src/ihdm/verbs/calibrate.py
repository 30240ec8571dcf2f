"""`ihdm calibrate`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import OmitArgPrefixes

from ihdm.errors import UsageError
from ihdm.verbs.words import AS_USUAL, Computing, ModelName, Source, check_count, execution

LEAST = 40  # images that say how images differ


def calibrate(
    model: ModelName,
    /,
    data: Source,
    n: int = 1200,
    resize: bool = False,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Learn what a model knows, for restore to tell.

    Of pictures of other kinds restore then says that they do not look like what the model knows.

    Args:
        model: a model folder or a run folder; familiar.safetensors is written to it
        data: what it was trained on: a named set, a folder, zip, tar, idx, npy or npz file of images, or hf:NAME
        n: how many held-out images, evenly spaced
        resize: bring the images to the model's size and channels, as in training with data.size and data.channels
    """
    check_count(n)
    if n < LEAST:
        raise UsageError(f"--n must be at least {LEAST}")
    from ihdm import evaluation, judgement
    from ihdm.data import evenly_spaced
    from ihdm.engine import choose_device, keep_freed_memory, placed
    from ihdm.model import Model
    from ihdm.model_folder import FAMILIAR, locate, write_familiar
    from ihdm.progress import progress_bar
    from ihdm.studies.strangers import WAYS

    keep_freed_memory()
    place = choose_device(computing.device)
    loaded = Model.from_pretrained(model)
    loaded.judge()  # refuses what cannot be
    images = evaluation.images_for(loaded, data, resize).held_out
    if len(images) < LEAST:
        raise UsageError(f"{data} has {len(images)} images held out from training; at least {LEAST} are needed")
    some = images[evenly_spaced(len(images), min(n, len(images)))]
    judge = placed(loaded, place).judge(execution(computing, place, loaded.config.shape))
    ways = WAYS if loaded.config.domain.kind == "images" else [judge.dissipated]
    found = judgement.calibrate(judge, some, ways, lambda parts: progress_bar(parts, desc="calibrating", unit="level"))
    write_familiar(locate(model), found)
    print(locate(model) / FAMILIAR)
