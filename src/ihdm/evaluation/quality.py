"""The quality of a trained model's samples, beside a set of images."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.cache import cache_folder
from ihdm.data import Images, ImageSet, evenly_spaced, unit_batches
from ihdm.engine import exact_device
from ihdm.errors import UsageError, unknown
from ihdm.evaluation import drawings
from ihdm.evaluation.drawings import NEIGHBOURS, SPACES
from ihdm.execution import Execution
from ihdm.metrics.distances import (
    KID_LEAST,
    Reference,
    frechet_distance,
    kernel_distance,
    read_reference,
    write_reference,
)
from ihdm.metrics.inception import FEATURES, SHA256, Inception, check_channels, features
from ihdm.metrics.neighbours import Memorisation, Neighbours, memorisation, nearest
from ihdm.metrics.spectra import Rings, log_spectral_distance
from ihdm.model import USUAL, Model
from ihdm.pixels import to_unit
from ihdm.workers import Workers

METRICS = ("fid", "kid", "neighbours", "spectrum")
COMPARED = 1000  # samples and held-out images whose nearest training images are looked for
SPECTRUM_LEAST = 100  # images from which on the lowest ring, of two frequencies, scatters by less than half a decibel
FULL = 50_000  # samples that figures of the literature are of
BATCH = 512


@dataclass(frozen=True)
class Quality:
    """Figures of samples; those that were not asked for are None or empty."""

    samples: int
    seed: int
    reference: str
    convention: str
    fid: float | None = None
    kid: tuple[float, float | None] | None = None  # mean and, if there are enough images, deviation over subsets
    memorisation: dict[str, Memorisation] = field(default_factory=dict)  # by space
    spectral_distance: float | None = None  # decibels
    spectra: dict[str, list[float]] = field(default_factory=dict)  # by name; the frequencies too
    cautions: list[str] = field(default_factory=list)  # what to bear in mind about figures from so many images

    def table(self) -> str:
        rows = {}
        if self.fid is not None:
            rows["FID"] = f"{self.fid:.3f}"
        if self.kid is not None:
            mean, deviation = self.kid
            error = (
                "too few images to tell its error" if deviation is None else f"deviation over subsets {deviation:.6f}"
            )
            rows["KID"] = f"{mean:.6f} ({error})"
        for space, found in self.memorisation.items():
            rows[f"nearest training image, {SPACES[space]}"] = str(found)
        if self.spectral_distance is not None:
            rows["log spectral distance"] = f"{self.spectral_distance:.3f} dB"
        width = max(map(len, rows), default=0)
        lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
        resized = f", {self.convention} resizing" if self.fid is not None or self.kid is not None else ""
        return "\n".join([f"{self.samples:,} samples, seed {self.seed}, against {self.reference}{resized}", "", *lines])

    def tree(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Samples:
    """What is kept of the samples: features of all, the first of them as uint8 images, their mean power spectrum."""

    features: Tensor
    first: Tensor
    power: Tensor


def check_metrics(metrics: Sequence[str], n: int) -> None:
    """Refuse what cannot be measured, before anything is read."""
    for name in metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    if not metrics or n < 2:
        raise UsageError(f"nothing can be measured with {n} samples and the metrics: {', '.join(metrics) or 'none'}")


def check_images(metrics: Sequence[str], n: int, images: ImageSet, split: str, allow_few: bool) -> None:
    """Refuse before any work what cannot be measured against such images, or not soundly."""
    reference = len(split_images(images, split))
    if needs_inception(metrics):
        check_channels(images.shape[0])
    if "fid" in metrics and min(n, reference) < FEATURES and not allow_few:
        what, remedy = f"{n:,} samples", f"give --n {FEATURES} or more (50,000 is usual)"
        if reference < FEATURES:
            what, remedy = (
                f"{reference:,} images in the {split} split",
                "leave it out (--metrics kid neighbours spectrum)",
            )
        raise UsageError(
            f"FID compares covariances of {FEATURES:,} features, and {what} do not determine one: the figure "
            f"would be far too high; {remedy}, or take it as it is with --allow-few"
        )
    if reference < 2:
        raise UsageError(f"there are too few images to compare with: {reference} in the {split} split")
    if "neighbours" in metrics and not len(images.held_out):
        raise UsageError("the distance to training images is compared with that of held-out images, and there are none")


def needs_inception(metrics: Sequence[str]) -> bool:
    return bool({"fid", "kid", "neighbours"} & set(metrics))


def split_images(images: ImageSet, split: str) -> Images:
    return images.train if split == "train" else images.held_out


def cautions(metrics: Sequence[str], n: int, reference: int) -> list[str]:
    """What to bear in mind about figures from so many images."""
    few, found = min(n, reference), []
    if "fid" in metrics and few < FEATURES:
        found.append(
            f"warning: FID from {few:,} images is biased upwards by far, as they do not determine a "
            f"covariance of {FEATURES:,} features; it compares with nothing else"
        )
    elif "fid" in metrics and n < FULL:
        found.append(
            f"note: FID from {n:,} samples is biased upwards; compare it with figures from as many samples only"
        )
    if "kid" in metrics and few < KID_LEAST:
        found.append(
            f"note: KID from {few:,} images is unbiased, but how far off it may be cannot be told; at least "
            f"{KID_LEAST:,} samples and images are needed for that"
        )
    if "spectrum" in metrics and few < SPECTRUM_LEAST:
        found.append(
            f"warning: spectra of {few:,} images scatter, and so the log spectral distance is too high; at least "
            f"{SPECTRUM_LEAST} samples and images are needed"
        )
    return found


@torch.no_grad()
def evaluate(
    model: Model,
    images: ImageSet,
    inception: Inception | None,
    n: int,
    metrics: Sequence[str] = METRICS,
    *,
    split: str = "train",
    seed: int = 0,
    workers: Workers | None = None,
    figures: Path | None = None,
    execution: Execution = USUAL,
    **sampling: Any,
) -> Quality | None:
    """Measure n samples against the images of a split; None in processes other than the main one.

    inception: on the device that it is to use; None if no metric needs it. sampling: how to sample (`Model.sample`),
    with labels and guidance.
    """
    n = min(n, COMPARED) if set(metrics) == {"neighbours"} else n
    workers, device = workers or Workers(), exact_device(model.device)
    rings = Rings(model.config.domain.laplacian)
    sources: dict[str, Reference] = {}
    if inception is not None:
        wanted: dict[str, Images] = {split: split_images(images, split)} if {"fid", "kid"} & set(metrics) else {}
        if "neighbours" in metrics:
            wanted |= {"train": images.train, "held-out": _some(images.held_out)}
        sources = {name: _reference(images.name, name, some, inception, workers) for name, some in wanted.items()}
    samples = _generate(model, inception, rings, n, seed, workers, execution, sampling)
    if not workers.main:
        return None

    found: dict[str, Any] = {}
    if "fid" in metrics:
        found["fid"] = frechet_distance(samples.features, sources[split], device)
    if "kid" in metrics:
        found["kid"] = kernel_distance(samples.features, sources[split], seed, device)
    if "neighbours" in metrics:
        near = _neighbours(samples, images, sources, device)
        distances = {space: [one.distance[:, 0] for one in pair] for space, pair in near.items()}
        found["memorisation"] = {space: memorisation(*pair) for space, pair in distances.items()}
        if figures:
            drawings.neighbours(figures, samples.first, images.train, {space: pair[0] for space, pair in near.items()})
            drawings.memorisation(figures, distances)
    if "spectrum" in metrics:
        spectra = _spectra(model, rings, split_images(images, split)) | {"samples": samples.power}
        found["spectral_distance"] = log_spectral_distance(samples.power, spectra["data"])
        found["spectra"] = {"frequency": rings.frequency.tolist()} | {k: v.tolist() for k, v in spectra.items()}
        if figures:
            drawings.spectra(figures, rings, spectra)
    count = len(split_images(images, split))
    found["cautions"] = cautions(metrics, n, count)
    reference = f"{images.name} {split} ({count:,} images)"
    return Quality(n, seed, reference, inception.convention if inception else "", **found)


def _generate(
    model: Model,
    inception: Inception | None,
    rings: Rings,
    n: int,
    seed: int,
    workers: Workers,
    execution: Execution,
    sampling: dict[str, Any],
) -> Samples:
    """Make the samples of all processes and look at each once."""
    share = workers.share(n)
    seen: list[Tensor] = [torch.empty(0, inception.num_features if inception else 0)]
    first: list[Tensor] = [model.config.domain.kept(torch.empty(0, *model.config.shape))]

    def watched() -> Iterator[Tensor]:
        number = share.start
        own = execution if workers.main else execution.quiet()
        batches = model.sample_batches(len(share), seed, first=share.start, execution=own, **sampling)
        for batch in batches:
            if inception is not None:
                seen.extend(features(inception, [batch], len(batch)))
            first.append(batch[: max(0, COMPARED - number)])
            number += len(batch)
            yield to_unit(batch)

    power = rings.power(watched())
    power = workers.join(power[None] * len(share)).sum(0) / n
    return Samples(workers.join(torch.cat(seen)), workers.join(torch.cat(first)), power)


def _reference(name: str, split: str, images: Images, inception: Inception, workers: Workers) -> Reference:
    """Features of a data set: from the cache, or computed by all processes together and kept there."""
    digest = hashlib.blake2b(images[:].cpu().contiguous().numpy().data, digest_size=16).hexdigest()
    shape = "x".join(map(str, images.shape))
    key = {"images": shape, "digest": digest, "convention": inception.convention, "inception": SHA256}
    path = cache_folder() / "references" / f"{shape}-{inception.convention}-{digest}.safetensors"
    if workers.agree(path.exists()):
        return read_reference(path, key)
    share = workers.share(len(images))
    doing = f"features of {name} {split}" if workers.main else ""
    own = features(inception, images[share.start : share.stop].split(BATCH), len(share), doing)
    found = workers.join(torch.cat([torch.empty(0, inception.num_features), *own]))
    reference = Reference.from_features(found, exact_device(next(inception.parameters()).device))
    if workers.main:
        try:
            write_reference(path, key, reference)
        except OSError as error:
            print(f"warning: the features of {name} could not be kept for the next time ({error})", file=sys.stderr)
    return reference


def _some(held_out: Tensor) -> Tensor:
    return held_out[evenly_spaced(len(held_out), COMPARED)]


def _neighbours(
    samples: Samples, images: ImageSet, sources: dict[str, Reference], device: torch.device
) -> dict[str, tuple[Neighbours, Neighbours]]:
    """Nearest training images of samples and of held-out images, by space."""
    banks = {"pixels": images.train[:], "inception": sources["train"].features}
    queries = {
        "pixels": (samples.first, _some(images.held_out)),
        "inception": (samples.features[: len(samples.first)], sources["held-out"].features),
    }
    return {
        space: tuple(nearest(one, bank, NEIGHBOURS, device, f"neighbours, {SPACES[space]}") for one in queries[space])  # type: ignore[misc]
        for space, bank in banks.items()
    }


def _spectra(model: Model, rings: Rings, images: Images) -> dict[str, Tensor]:
    """Power spectra of data, and of data at some levels of the process (App. B.6)."""
    some = images[evenly_spaced(len(images), 10 * COMPARED)]
    spectra = {"data": rings.power(unit_batches(images, BATCH))}
    for level in (1, model.process.K // 3, 2 * model.process.K // 3, model.process.K):
        noise = torch.Generator().manual_seed(0)
        states = (
            model.process.noised(u, torch.full((len(u),), max(1, level)), torch.randn(u.shape, generator=noise))
            for u in unit_batches(some, BATCH)
        )
        spectra[f"data at level {max(1, level)}"] = rings.power(states)
    return spectra
