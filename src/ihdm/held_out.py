"""The loss of held-out images: all of them, and by band of levels."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from ihdm.data import Images, unit_batches
from ihdm.networks import told
from ihdm.processes import Process

BANDS = 4  # of levels, from the finest to the coarsest


@torch.no_grad()
def held_out_losses(
    process: Process,
    network: Any,
    images: Images,
    labels: Tensor | None,
    generator: torch.Generator,
    size: int,
    part: int,
) -> tuple[Tensor, Tensor]:
    """The loss of each image, and the level at which it was computed, both on the generator's device.

    size: of the batches within which levels are spread evenly. part: images computed at a time, at most.
    """
    losses, levels, device = [], [], generator.device
    known = itertools.repeat(None) if labels is None else labels.to(device).split(size)
    for batch, label in zip(unit_batches(images, size), known):
        u_0 = batch.to(device)
        k, eps = process.draw(u_0.shape, generator)
        levels.append(k)
        for first in range(0, len(u_0), part):
            own = slice(first, first + part)
            knowing = told(network, None if label is None else label[own])
            losses.append(process.losses(knowing, u_0[own], k[own], eps[own]))
    return torch.cat(losses), torch.cat(levels)


def by_band(losses: Tensor, levels: Tensor, K: int) -> dict[str, float]:
    """The mean losses of bands of levels, without those in which there are no images."""
    found, ends = {}, [n * K // BANDS for n in range(BANDS + 1)]
    for low, high in itertools.pairwise(ends):
        inside = (levels > low) & (levels <= high)
        if bool(inside.any()):
            found[f"held_out_loss_levels_{low + 1}_{high}"] = float(losses[inside].mean())
    return found
