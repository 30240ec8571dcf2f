"""The quality of a trained model's samples, compared with a set of images."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ihdm.cache import cache_folder
from ihdm.data import Images, ImageSet, evenly_taken, unit_batches
from ihdm.domains import Domain
from ihdm.domains.domain import by
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
from ihdm.metrics.modes import Modes, modes_distance
from ihdm.metrics.neighbours import Memorisation, Neighbours, memorisation, nearest
from ihdm.metrics.spectra import Rings, log_spectral_distance
from ihdm.model import USUAL, Model
from ihdm.pixels import to_unit
from ihdm.workers import Workers

METRICS = ("fid", "kid", "modes", "neighbours", "spectrum")
OF_IMAGES = ("fid", "kid")  # computed by a network that was trained on photographs
COMPARED = 1000  # samples and held-out images whose nearest training images are searched for
SPECTRUM_LEAST = 100  # with so many images the lowest ring, of two frequencies, scatters by less than half a decibel
FULL = 50_000  # samples that figures in the literature are computed from
BATCH = 512


@dataclass(frozen=True)
class Quality:
    """Figures of samples; those that were not asked for are None or empty. noun: what one sample is called."""

    samples: int
    seed: int
    reference: str
    convention: str
    noun: str = "image"
    fid: float | None = None
    kid: tuple[float, float | None] | None = None  # mean and, if there are enough images, deviation over subsets
    modes_distance: float | None = None
    memorisation: dict[str, Memorisation] = field(default_factory=dict)  # by space
    spectral_distance: float | None = None  # decibels
    spectra: dict[str, list[float]] = field(default_factory=dict)  # by name, the frequencies among them
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
        if self.modes_distance is not None:
            rows["Fréchet distance of modes"] = f"{self.modes_distance:.3f}"
        for space, found in self.memorisation.items():
            rows[f"nearest training {self.noun}, {SPACES[space]}"] = str(found)
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
    """What is kept of the samples: features of all, the first few as they would be stored, the mean power spectrum."""

    features: Tensor
    modes: Tensor
    first: Tensor
    power: Tensor


def usual_metrics(domain: Domain) -> tuple[str, ...]:
    """The metrics that are measured unless others are asked for."""
    left_out = ("modes",) if domain.kind == "images" else OF_IMAGES
    return tuple(name for name in METRICS if name not in left_out)


def check_metrics(metrics: Sequence[str], n: int) -> None:
    """Refuse what cannot be measured, before anything is read."""
    for name in metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
    if not metrics or n < 2:
        raise UsageError(
            f"nothing can be measured with {n} samples and the metrics: {', '.join(metrics) or 'none'}; "
            f"it takes at least two samples and one metric"
        )


def check_images(metrics: Sequence[str], n: int, images: ImageSet, split: str, allow_few: bool) -> None:
    """Refuse, before any work, what cannot be measured soundly against such images."""
    reference, domain = len(split_images(images, split)), images.domain
    nouns, few = f"{domain.noun}s", min(n, reference)
    check_kind(metrics, domain)
    if needs_inception(metrics, domain):
        check_channels(images.shape[0])
    if "fid" in metrics and few < FEATURES and not allow_few:
        what, remedy = f"{n:,} samples", f"give --n {FEATURES} or more (50,000 is usual)"
        if reference < FEATURES:
            what = f"{reference:,} images in the {split} split"
            remedy = "leave it out (--metrics kid neighbours spectrum)"
        raise UsageError(
            f"FID compares covariances of {FEATURES:,} features, and {what} do not determine one: the figure "
            f"would be far too high; {remedy}, or accept that with --allow-few"
        )
    if reference < 2:
        raise UsageError(
            f"there are too few {nouns} to compare with: {reference} in the {split} split, and at least two are needed"
        )
    if "spectrum" in metrics and math.prod(domain.grid) == 1:
        raise UsageError(f"{nouns} of a single value have no spectrum; choose other metrics (--metrics neighbours)")
    needed = Modes(domain.laplacian, domain.shape[0]).count + 1 if "modes" in metrics else 0
    if few < needed and not allow_few:
        which = f"--n {needed} or more" if reference >= needed else f"a set of {needed} {nouns} or more"
        raise UsageError(
            f"the distance of modes compares covariances of {needed - 1} features, and {few:,} {nouns} do not "
            f"determine one; give {which}, leave it out (--metrics neighbours spectrum), or accept that with "
            f"--allow-few"
        )
    if "neighbours" in metrics and not len(images.held_out):
        raise UsageError(
            f"neighbours compares distances to training {nouns} with those of held-out {nouns}, and there are none; "
            f"leave it out (--metrics {' '.join(name for name in usual_metrics(domain) if name != 'neighbours')})"
        )


def check_kind(metrics: Sequence[str], domain: Domain) -> None:
    """Refuse metrics that only images have, for other data."""
    if domain.kind != "images" and (wrong := [name for name in metrics if name in OF_IMAGES]):
        raise UsageError(
            f"only images have {' and '.join(name.upper() for name in wrong)}, computed by a network that was trained "
            f"on photographs; for the model's {domain.noun}s there are {', '.join(usual_metrics(domain))}"
        )


def needs_inception(metrics: Sequence[str], domain: Domain) -> bool:
    return domain.kind == "images" and bool({*OF_IMAGES, "neighbours"} & set(metrics))


def split_images(images: ImageSet, split: str) -> Images:
    return images.train if split == "train" else images.held_out


def cautions(metrics: Sequence[str], n: int, reference: int, noun: str = "image") -> list[str]:
    """What to bear in mind about figures from so many images, or other data."""
    few, found = min(n, reference), []
    if "fid" in metrics and few < FEATURES:
        found.append(
            f"warning: FID from {few:,} images is strongly biased upwards, as they do not determine a "
            f"covariance of {FEATURES:,} features; it cannot be compared with any other figure"
        )
    elif "fid" in metrics and n < FULL:
        found.append(
            f"note: FID from {n:,} samples is biased upwards; compare it only with figures from as many samples"
        )
    if "kid" in metrics and few < KID_LEAST:
        found.append(
            f"note: KID from {few:,} images is unbiased, but its error cannot be told; that takes at least "
            f"{KID_LEAST:,} samples and images"
        )
    if "spectrum" in metrics and few < SPECTRUM_LEAST:
        found.append(
            f"warning: spectra of {few:,} {noun}s scatter, which makes the log spectral distance too high; at least "
            f"{SPECTRUM_LEAST} samples and {noun}s are needed"
        )
    return found


@torch.no_grad()
def evaluate(
    model: Model,
    images: ImageSet,
    inception: Inception | None,
    n: int,
    metrics: Sequence[str] | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    workers: Workers | None = None,
    figures: Path | None = None,
    execution: Execution = USUAL,
    **sampling: Any,
) -> Quality | None:
    """Measure n samples against the images of a split; None in processes other than the main one.

    inception: the network, on the device to use; None if no metric needs it. metrics: None: those that are usual for
    such data. sampling: how to sample (`Model.sample`), labels and guidance included.
    """
    domain = model.config.domain
    metrics = usual_metrics(domain) if metrics is None else metrics
    n = min(n, COMPARED) if set(metrics) == {"neighbours"} else n
    workers, device = workers or Workers(), exact_device(model.device)
    rings, modes = Rings(domain.laplacian), Modes(domain.laplacian, domain.shape[0]) if "modes" in metrics else None
    sources: dict[str, Reference] = {}
    if inception is not None:
        wanted: dict[str, Images] = {split: split_images(images, split)} if {"fid", "kid"} & set(metrics) else {}
        if "neighbours" in metrics:
            wanted |= {"train": images.train, "held-out": evenly_taken(images.held_out, COMPARED)}
        sources = {name: _reference(images.name, name, some, inception, workers) for name, some in wanted.items()}
    samples = _generate(model, inception, rings, modes, n, seed, workers, execution, sampling)
    if not workers.main:
        return None

    found: dict[str, Any] = {}
    if "fid" in metrics:
        found["fid"] = frechet_distance(samples.features, sources[split], device)
    if "kid" in metrics:
        found["kid"] = kernel_distance(samples.features, sources[split], seed, device)
    if modes is not None:
        theirs = modes.features(unit_batches(split_images(images, split), BATCH))
        found["modes_distance"] = modes_distance(samples.modes, theirs)
    if "neighbours" in metrics:
        near = _neighbours(samples, images, sources, device)
        distances = {space: [one.distance[:, 0] for one in pair] for space, pair in near.items()}
        found["memorisation"] = {
            space: memorisation(pair[0], pair[1], domain.noun) for space, pair in distances.items()
        }
        if figures:
            of_samples = {space: pair[0] for space, pair in near.items()}
            drawings.neighbours(figures, domain, samples.first, images.train, of_samples)
            drawings.memorisation(figures, domain, distances)
    if "spectrum" in metrics:
        spectra = _spectra(model, rings, split_images(images, split)) | {"samples": samples.power}
        found["spectral_distance"] = log_spectral_distance(samples.power, spectra["data"])
        found["spectra"] = {"frequency": rings.frequency.tolist()} | {k: v.tolist() for k, v in spectra.items()}
        if figures:
            drawings.spectra(figures, domain, rings, spectra)
    count = len(split_images(images, split))
    found["cautions"] = cautions(metrics, n, count, domain.noun)
    reference = f"{images.name} {split} ({count:,} {domain.noun}s)"
    return Quality(n, seed, reference, inception.convention if inception else "", domain.noun, **found)


def _generate(
    model: Model,
    inception: Inception | None,
    rings: Rings,
    modes: Modes | None,
    n: int,
    seed: int,
    workers: Workers,
    execution: Execution,
    sampling: dict[str, Any],
) -> Samples:
    """Make this process's share of the samples, look at each once, and gather what all processes found."""
    share = workers.share(n)
    seen: list[Tensor] = [torch.empty(0, inception.num_features if inception else 0)]
    of_modes: list[Tensor] = [torch.empty(0, modes.count if modes else 0, dtype=torch.float64)]
    first: list[Tensor] = [model.config.domain.kept(torch.empty(0, *model.config.shape))]

    def watched() -> Iterator[Tensor]:
        number = share.start
        for batch in model.sample_batches(len(share), seed, first=share.start, execution=execution, **sampling):
            if inception is not None:
                seen.extend(features(inception, [batch], len(batch)))
            if modes is not None:
                of_modes.append(modes.features([to_unit(batch)]))
            first.append(batch[: max(0, COMPARED - number)])
            number += len(batch)
            yield to_unit(batch)

    power = rings.power(watched())
    power = workers.join(power[None] * len(share)).sum(0) / n
    everything = [workers.join(torch.cat(parts)) for parts in (seen, of_modes, first)]
    return Samples(everything[0], everything[1], everything[2], power)


def _reference(name: str, split: str, images: Images, inception: Inception, workers: Workers) -> Reference:
    """Features of a data set: from the cache, or computed by all processes together and kept there.

    Images that do not fit into memory are read a few at a time.
    """
    pixels = hashlib.blake2b(digest_size=16)
    for batch in images.split(BATCH):
        pixels.update(batch.cpu().contiguous().numpy().data)
    digest, shape = pixels.hexdigest(), by(images.shape)
    key = {"images": shape, "digest": digest, "convention": inception.convention, "inception": SHA256}
    path = cache_folder() / "references" / f"{shape}-{inception.convention}-{digest}.safetensors"
    if workers.agree(path.exists()):
        return read_reference(path, key)
    share = workers.share(len(images))
    doing = f"features of {name} {split}" if workers.main else ""
    batches = (images[first : min(first + BATCH, share.stop)] for first in share[::BATCH])
    own = features(inception, batches, len(share), doing)
    found = workers.join(torch.cat([torch.empty(0, inception.num_features), *own]))
    reference = Reference.from_features(found, exact_device(next(inception.parameters()).device))
    if workers.main:
        try:
            write_reference(path, key, reference)
        except (OSError, SafetensorError) as error:
            print(f"warning: the features of {name} could not be kept for the next time ({error})", file=sys.stderr)
    return reference


def _neighbours(
    samples: Samples, images: ImageSet, sources: dict[str, Reference], device: torch.device
) -> dict[str, tuple[Neighbours, Neighbours]]:
    """Nearest training images of samples and of held-out images, by space; other data have only the space of values."""
    own = "pixels" if images.domain.kind == "images" else "values"
    banks = {own: images.train[:]}
    queries = {own: (samples.first, evenly_taken(images.held_out, COMPARED))}
    if sources:
        banks["inception"] = sources["train"].features
        queries["inception"] = (samples.features[: len(samples.first)], sources["held-out"].features)
    return {
        space: tuple(nearest(one, bank, NEIGHBOURS, device, f"neighbours, {SPACES[space]}") for one in queries[space])  # type: ignore[misc]
        for space, bank in banks.items()
    }


def _spectra(model: Model, rings: Rings, images: Images) -> dict[str, Tensor]:
    """Power spectra of data, and of data at some levels of the process (App. B.6)."""
    some = evenly_taken(images, 10 * COMPARED)
    spectra = {"data": rings.power(unit_batches(images, BATCH))}
    for level in (1, model.process.K // 3, 2 * model.process.K // 3, model.process.K):
        noise = torch.Generator().manual_seed(0)
        states = (
            model.process.noised(u, torch.full((len(u),), max(1, level)), torch.randn(u.shape, generator=noise))
            for u in unit_batches(some, BATCH)
        )
        spectra[f"data at level {max(1, level)}"] = rings.power(states)
    return spectra
