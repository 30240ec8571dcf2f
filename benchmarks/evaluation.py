"""How long measuring a model takes, apart from making its samples; and, given CIFAR-10, figures that can be checked.

    python benchmarks/evaluation.py [--data cifar10] [--inception PATH] [--device cpu]

Without --data the images are random ones of 32x32 pixels in colour, 50,000 for training and 10,000 held out. On a CPU
only 512 images go through Inception, and the features are random.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measure import print_table
from torch import Tensor

from ihdm.config import DataConfig
from ihdm.data import ImageSet, load_images, unit_batches
from ihdm.engine import choose_device, keep_freed_memory
from ihdm.heat import GridLaplacian
from ihdm.likelihood import gaussian_kl, prior_term, standard_error
from ihdm.metrics.distances import Reference, frechet_distance, kernel_distance
from ihdm.metrics.inception import FEATURES, Convention, Inception, features, find_inception
from ihdm.metrics.neighbours import nearest
from ihdm.pixels import to_bytes, to_unit
from ihdm.prior import Prior

SIGMA, RATIOS, WIDTHS = 0.01, (1.0, 1.25, 1.325), (8, 12, 16, 24, 32)
PAPER = {8: 10798.5, 12: 3924.7, 16: 1804.0, 24: 521.7, 32: 374.9}  # App. C.4; it does not say with which delta
CHECKED = 200  # test images whose L_K is also computed from pixels
BATCH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    keep_freed_memory()
    device = choose_device(arguments.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    where = f"{where}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    images = load_images(DataConfig(arguments.data), None) if arguments.data else random_images()
    path = find_inception(arguments.inception)
    rows = [*prior_rows(images, device), *neighbour_rows(images, device), *feature_rows(images, path, device)]
    print_table(f"Measuring, in seconds. {where}", ["what", "seconds"], rows)
    if arguments.data:
        print_prior_terms(images, device, where)
        if device.type == "cuda":
            print_distances(images, path, device, where)


def random_images() -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return ImageSet("random", images[:50_000], images[50_000:])


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def on(device: torch.device, images: Tensor) -> Iterator[Tensor]:
    return (batch.to(device) for batch in unit_batches(images, BATCH))


def prior_terms(images: ImageSet, sigma_B: float, device: torch.device) -> Tensor:
    laplacian = GridLaplacian(images.shape[1:])
    prior = Prior.from_images(laplacian, sigma_B**2 / 2, on(device, images.train))
    deltas = [ratio * SIGMA for ratio in RATIOS]
    return torch.cat([prior_term(prior, u, SIGMA, deltas).cpu() for u in on(device, images.held_out)], 1)


def prior_rows(images: ImageSet, device: torch.device) -> list[list[str]]:
    seconds(lambda: prior_terms(ImageSet("", images.train[:1000], images.held_out[:1000]), 24.0, device))
    taken, _ = seconds(lambda: prior_terms(images, 24.0, device))
    return [[f"L_K, {len(images.held_out):,} x {len(images.train):,}, three deltas, sigma_B 24", f"{taken:.2f}"]]


def neighbour_rows(images: ImageSet, device: torch.device) -> list[list[str]]:
    queries = images.held_out[:1000]
    vectors = torch.randn(len(images.train), FEATURES, generator=torch.Generator().manual_seed(0))
    rows = []
    for name, some, bank in (("pixels", queries, images.train), ("features", vectors[:1000] + 0.1, vectors)):
        nearest(some[:10], bank[:1000], 8, device)
        taken, _ = seconds(lambda some=some, bank=bank: nearest(some, bank, 8, device))
        rows.append([f"8 nearest of {len(some):,} among {len(bank):,}, by {name}", f"{taken:.2f}"])
    return rows


def feature_rows(images: ImageSet, path: Path, device: torch.device) -> list[list[str]]:
    inception = Inception(path).to(device)
    some = images.train if device.type == "cuda" else images.train[:512]
    list(features(inception, [images.train[:512]], 512))
    taken, found = seconds(lambda: torch.cat(list(features(inception, some.split(BATCH), len(some)))))
    rows = [[f"Inception features of {len(some):,} images", f"{taken:.2f}"]]
    if device.type != "cuda":
        found = torch.rand(50_000, FEATURES, generator=torch.Generator().manual_seed(0))
    count = f"{len(found):,}"
    taken, reference = seconds(lambda: Reference.from_features(found, device))
    rows.append([f"reference statistics from features of {count}", f"{taken:.2f}"])
    taken, _ = seconds(lambda: frechet_distance(found, reference, device))
    rows.append([f"FID from features of {count}", f"{taken:.2f}"])
    taken, _ = seconds(lambda: kernel_distance(found, reference, 0, device))
    return [*rows, [f"KID from features of {count}", f"{taken:.2f}"]]


def print_prior_terms(images: ImageSet, device: torch.device, where: str) -> None:
    """L_K for each sigma_B,max (App. C.4); for some images also from pixels, in float64, term by term."""
    rows = []
    for width in WIDTHS:
        terms = prior_terms(images, float(width), device)
        laplacian = GridLaplacian(images.shape[1:])
        blur = [laplacian.dissipate(to_unit(part.to(device)).double(), width**2 / 2).flatten(1)
                for part in (images.held_out[:CHECKED], *images.train.split(4096))]  # fmt: skip
        exactly = "donot_use_mm_for_euclid_dist"
        squared = torch.cat([torch.cdist(blur[0], block, compute_mode=exactly).square() for block in blur[1:]], 1)
        worst = 0.0
        for term, ratio in zip(terms, RATIOS):
            divergences = gaussian_kl(squared, blur[0].shape[1], SIGMA, ratio * SIGMA)
            pixels = torch.log(torch.tensor(float(len(images.train)))) - torch.logsumexp(-divergences, 1).cpu()
            worst = max(worst, float((pixels / term[:CHECKED] - 1).abs().max()))
        cells = [f"{float(term.mean()):.1f} +- {standard_error(term):.1f}" for term in terms]
        rows.append([str(width), *cells, f"{PAPER[width]}", f"{worst:.0e}"])
    print_table(
        f"L_K in nats. {images.name}, {len(images.held_out):,} images against {len(images.train):,}. {where}",
        ["sigma_B,max", *(f"delta {ratio:g} sigma" for ratio in RATIOS), "paper", "off from pixels, at most"],
        rows,
    )


def print_distances(images: ImageSet, path: Path, device: torch.device, where: str) -> None:
    """FID of known sets: held-out images, part of the training set, noise, blurred images."""
    generator = torch.Generator().manual_seed(0)
    some = images.train[torch.randperm(len(images.train), generator=generator)[: len(images.held_out)]]
    laplacian = GridLaplacian(images.shape[1:])
    sets = {
        "the training set itself": images.train,
        f"{len(images.held_out):,} held-out images": images.held_out,
        f"{len(some):,} of the training set": some,
    }
    for width in (0.5, 1.0, 2.0):
        sets[f"{len(some):,} of it, blurred by {width:g} pixels"] = to_bytes(
            torch.cat([laplacian.dissipate(u, width**2 / 2).cpu() for u in on(device, some)])
        )
    for noise in (0.05, 0.2):
        sets[f"{len(some):,} of it, noise {noise:g}"] = to_bytes(
            to_unit(some) + noise * torch.randn(some.shape, generator=generator)
        )
    sets["random pixels"] = torch.randint(0, 256, some.shape, dtype=torch.uint8, generator=generator)
    columns: dict[Convention, dict[str, str]] = {"legacy": {}, "clean": {}}
    for convention, column in columns.items():
        inception = Inception(path, convention).to(device)
        reference = None
        for name, members in sets.items():
            found = torch.cat(list(features(inception, members.split(BATCH), len(members))))
            reference = reference or Reference.from_features(found, device)
            column[name] = f"{frechet_distance(found, reference, device):.3f}"
    print_table(
        f"FID against the training images of {images.name}. {where}",
        ["", *columns],
        [[name, *(column[name] for column in columns.values())] for name in sets],
    )


if __name__ == "__main__":
    main()
