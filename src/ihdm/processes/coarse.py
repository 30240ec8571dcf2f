"""How small a grid holds all that can be seen of coarse levels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import torch

from ihdm.heat import smaller
from ihdm.processes.process import Process

UNSEEN = 0.01  # a signal-to-noise ratio below which a coefficient says nothing of an image


def sufficient(process: Process) -> list[tuple[int, tuple[int, ...]]]:
    """From which level on half the size, a quarter, ... suffices, with the grid; as far down as there are such levels.

    There the signal-to-noise ratio is below UNSEEN for all coefficients but the lowest, as many as the grid has.
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
    """Whether all coefficients outside of the lowest, as many as a grid has, are unseen at level k."""
    ratio = process.signal_to_noise(k)
    assert ratio is not None
    inside = torch.zeros_like(ratio, dtype=torch.bool)
    inside[tuple(slice(n) for n in grid)] = True
    return bool((inside | (ratio < UNSEEN)).all())


def words(process: Process) -> str:
    """In words; empty if there is nothing to say."""
    levels = [f"{'x'.join(map(str, grid))} from level {level} on" for level, grid in sufficient(process)]
    return ", ".join(levels)


def remarks(process: Process, pyramid: Sequence[int]) -> list[str]:
    """What to bear in mind if a network is to see smaller grids from some levels on."""
    levels = [level for level, _ in sufficient(process)]
    levels += [process.K + 1] * (len(pyramid) - len(levels))
    if process.signal_to_noise(1) is None or all(mine >= level for mine, level in zip(pyramid, levels)):
        return []
    return [
        f"warning: network.pyramid={','.join(map(str, pyramid))} hides from the network what can still be seen; "
        f"all that can be seen is on {words(process) or 'the whole grid at every level'}"
    ]
