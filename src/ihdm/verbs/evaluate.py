"""`ihdm evaluate`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, arg

from ihdm.verbs.words import (
    AS_THE_MODEL_HAS_IT,
    AS_USUAL,
    Computing,
    File,
    Folder,
    Guidance,
    HowToSample,
    ModelName,
    Source,
    check_count,
    check_outputs,
    make_folders,
    write_json,
)


def evaluate(
    model: ModelName,
    /,
    data: Source,
    n: int = 50_000,
    metrics: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="")] = (),
    split: Literal["train", "test"] = "train",
    convention: Literal["clean", "legacy"] = "clean",
    seed: int = 0,
    inception: File = None,
    allow_few: bool = False,
    resize: bool = False,
    label: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None,
    guidance: Guidance = None,
    json: File = None,
    figures: Folder = None,
    sampling: Annotated[HowToSample, OmitArgPrefixes] = AS_THE_MODEL_HAS_IT,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Measure sample quality: FID, KID, nearest images, power spectrum.

    Nearest training images follow App. D.5, the power spectrum App. B.6. Data other than images get the Fréchet
    distance of modes instead of FID and KID.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or a model that comes with ihdm (see ihdm info)
        data: the training data: a named set, a folder, zip, tar, idx, npy or npz file of images, or hf:NAME
        n: how many samples to make
        metrics: any of fid, kid, modes, neighbours, spectrum; default: all but modes for images, else no fid and kid
        split: images to compare with; neighbours always come from the training images
        convention: scaling to 299x299 for Inception: bicubic with antialiasing (clean) or bilinear (legacy)
        seed: image i depends only on the seed and i
        inception: the Inception network of 2015-12-05; default: found or downloaded once (docs/evaluation.md)
        allow_few: allow FID from fewer than 2,048 images, though it is then far too high; likewise modes
        resize: convert the images to the model's size and channels, as data.size and data.channels do in training
        label: compare samples of this label with images of this label; default: all labels, as often as in training
        guidance: strength away from the weaker network, if the model has one, else towards the label; 1: none; higher:
            clearer, less varied; 0: the weaker network alone, or no label; default: the model's
        json: file for all numbers
        figures: folder for pictures of neighbours, distances and spectra
    """
    check_count(n)
    check_outputs(json, figures)
    import torch

    from ihdm import evaluation, plots, workers
    from ihdm.engine import placed
    from ihdm.evaluation.quality import METRICS, check_images, check_kind, check_metrics, needs_inception, usual_metrics
    from ihdm.metrics.inception import Inception, find_inception
    from ihdm.model import Model

    if figures:
        plots.check_available()
    check_metrics(metrics or METRICS, n)
    place = computing.place()
    loaded = Model.from_pretrained(model).sampled(**sampling.changes())
    guidance = loaded.guidance(guidance)
    loaded.told(torch.arange(1), seed, label)  # refuses unknown labels
    domain = loaded.config.domain
    metrics = metrics or usual_metrics(domain)
    check_kind(metrics, domain)
    file = find_inception(inception) if needs_inception(metrics, domain) else None
    images = evaluation.images_for(loaded, data, resize, label, model)
    check_images(metrics, n, images, split, allow_few)
    make_folders(figures)
    with workers.together() as team:
        own = team.device(place)
        network = Inception(file, convention).to(own) if file else None
        found = evaluation.evaluate(
            placed(loaded, own),
            images,
            network,
            n,
            metrics,
            split=split,
            seed=seed,
            workers=team,
            figures=figures,
            execution=computing.execution(place, loaded.config.shape, team.main),
            labels=label,
            guidance=guidance,
        )
        if found is None:
            return
    words = loaded.process.sampling_words()
    told: dict[str, Any] = {"label": label} if loaded.config.labels else {}
    told |= {"guidance": guidance} if loaded.config.labels or loaded.guide is not None else {}
    asked = [f"label {label}" if label else "labels as in training"] if "label" in told else []
    asked += [f"guidance {guidance:g}"] if "guidance" in told else []
    print(f"{', '.join([model, words, *asked])}: {found.table()}")
    for caution in found.cautions:
        print(caution, file=sys.stderr)
    if json:
        write_json(json, {"model": model, "sampling": words} | told | found.tree())
    for path in filter(None, (json, figures)):
        print(path)
