"""Samples of the preset orbitals beside real orbitals and faulty ones: python benchmarks/orbitals.py MODEL

parity: under inversion through the nucleus the values of an orbital stay the same or only change sign, so that
|<psi, inverted psi>| / <psi, psi> is 1. overlap: its positive and negative parts are nowhere in the same place, so that
2 <positive, negative> / <psi, psi> is 0. modes, spectrum: distances from the training set as in `ihdm evaluate`.
kinds: how many are nearest to a 1s, 2p, 3d and 4f of the training set.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from ihdm import Model
from ihdm.config import load_config
from ihdm.data import load_images
from ihdm.metrics.modes import Modes, modes_distance
from ihdm.metrics.neighbours import nearest
from ihdm.metrics.spectra import Rings, log_spectral_distance


def parity_and_overlap(volumes: Tensor) -> tuple[float, float]:
    """Medians over volumes (N, 2, D, H, W)."""
    positive, negative = volumes.double().unbind(1)
    psi = positive - negative
    norm = psi.square().flatten(1).sum(1)
    parity = (psi * psi.flip(1, 2, 3)).flatten(1).sum(1).abs() / norm
    overlap = 2 * (positive * negative).flatten(1).sum(1) / norm
    return float(parity.median()), float(overlap.median())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--sampler", choices=("paper", "exact"))
    parser.add_argument("--steps", type=int)
    chosen = parser.parse_args()
    sampling = {"sampler": chosen.sampler, "steps": chosen.steps} if chosen.sampler else {}
    model = Model.from_pretrained(chosen.model).sampled(**sampling)
    images = load_images(load_config("orbitals", ["data.labels=true"]).data, held_out_most=None)
    test, laplacian = images.held_out, images.domain.laplacian
    modes, rings = Modes(laplacian, 2), Rings(laplacian)
    reference, power = modes.features(images.train.split(512)), rings.power(images.train.split(512))
    eps = torch.randn(test.shape, generator=torch.Generator().manual_seed(0))
    sets = {
        "samples": model.sample(chosen.n),
        "test orbitals": test,
        "those, blurred by 0.5 voxels": laplacian.dissipate(test, 0.5**2 / 2),
        "those, blurred by 1 voxel": laplacian.dissipate(test, 1 / 2),
        "those, with noise 0.01": (test + 0.01 * eps).clamp(0, 1),
        "those, with noise 0.05": (test + 0.05 * eps).clamp(0, 1),
        "one of them, 500 times": test[:1].expand_as(test),
    }
    print("| | modes | spectrum, dB | parity | overlap | kinds |\n|---|---|---|---|---|---|")
    for name, volumes in sets.items():
        distance = modes_distance(modes.features([volumes]), reference)
        decibels = log_spectral_distance(rings.power([volumes]), power)
        parity, overlap = parity_and_overlap(volumes)
        near = nearest(volumes, images.train, 1, torch.device("cpu")).index[:, 0]
        kinds = torch.bincount(images.train_labels[near], minlength=len(images.labels)).tolist()
        figures = f"{distance:.2f} | {decibels:.2f} | {parity:.3f} | {overlap:.3f} | {' '.join(map(str, kinds))}"
        print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
