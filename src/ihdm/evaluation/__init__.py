"""Measuring a trained model: how well it explains images, and how good its samples are."""

from __future__ import annotations

from dataclasses import replace

from ihdm.config import DataConfig
from ihdm.data import ImageSet, data_domain, load_images, set_name
from ihdm.data.sources import absolute
from ihdm.domains.domain import by
from ihdm.errors import UsageError
from ihdm.evaluation.bound import Likelihood, likelihood
from ihdm.evaluation.quality import METRICS, Quality, evaluate
from ihdm.model import Model
from ihdm.run import settings_of


def images_for(
    model: Model, source: str, resize: bool = False, label: str | None = None, name: str | None = None
) -> ImageSet:
    """The images of a source, which must have the model's shape or, with `resize`, are brought to it.

    label: take only images with this label; None: all. name: where the model is from; if that is in a run folder and
    the source is what it was trained on, the same images are held out as in training.
    """
    config, domain = DataConfig(source=source, labels=label is not None), model.config.domain
    run = None if name is None else settings_of(name)
    if run is not None and set_name(absolute(source)) == model.config.data:
        config = replace(config, holdout=run.data.holdout, on_error=run.data.on_error)
    if resize or domain.kind != config.kind:
        config = replace(config, **domain.data_settings())
    for split in ("train", "test"):
        found = data_domain(config, split)
        if found.shape != domain.shape and domain.kind == "images":
            raise UsageError(
                f"the model makes images of {by(domain.shape)}, and those of {source} are {by(found.shape)} "
                f"(channels x height x width); --resize brings them to the model's shape"
            )
        if found != domain:
            theirs = f"{found.words}{', but not of the same one' * (found.words == domain.words)}"
            raise UsageError(f"the model makes {domain.noun}s of {domain.words}; those of {source} are {theirs}")
    images = load_images(config, held_out_most=None)
    return images if label is None else images.of(label)


__all__ = ["METRICS", "Likelihood", "Quality", "evaluate", "images_for", "likelihood"]
