"""The smallest grids that hold all that can be seen at coarse levels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch

from ihdm.domains.domain import by
from ihdm.heat import smaller
from ihdm.processes.process import Process

UNSEEN = 0.01  # with a lower signal-to-noise ratio a coefficient says nothing about an image


def sufficient(process: Process) -> list[tuple[int, tuple[int, ...]]]:
    """The level from which half the size, a quarter, ... suffices, and that grid, for each size that suffices at all.

    There the signal-to-noise ratio is below UNSEEN for all coefficients except the lowest, which the grid holds.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    whole = process.signal_to_noise(1)
    while whole is not None and (not found or max(found[-1][1]) > 1):
        grid = smaller(whole.shape, len(found) + 1)
        level = bisect_left(range(1, process.K + 1), True, key=partial(_suffices, process, grid)) + 1
        if level > process.K:
            break
        found.append((level, grid))
    return found


def _suffices(process: Process, grid: Sequence[int], k: int) -> bool:
    """Whether at level k all coefficients except the lowest, which the grid holds, are unseen."""
    ratio = process.signal_to_noise(k)
    assert ratio is not None
    inside = torch.zeros_like(ratio, dtype=torch.bool)
    inside[tuple(slice(n) for n in grid)] = True
    return bool((inside | (ratio < UNSEEN)).all())


def words(process: Process) -> str:
    """The grids that suffice, in words; empty if there are none."""
    levels = [f"{by(grid)} from level {level} on" for level, grid in sufficient(process)]
    return ", ".join(levels)


def remarks(process: Process, pyramid: Sequence[int]) -> list[str]:
    """A warning if a network that sees smaller grids from the levels in `pyramid` on would miss something."""
    levels = [level for level, _ in sufficient(process)]
    levels += [process.K + 1] * (len(pyramid) - len(levels))
    if process.signal_to_noise(1) is None or all(mine >= level for mine, level in zip(pyramid, levels)):
        return []
    return [
        f"warning: network.pyramid={','.join(map(str, pyramid))} hides from the network what can still be seen; "
        f"grids that lose nothing: {words(process) or 'the whole grid at every level'}"
    ]
