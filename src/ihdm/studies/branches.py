"""One start, whose sequence parts in two at each of the given levels (Fig. 5b)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ihdm.noise import BranchingNoise
from ihdm.plots import coloured, figure
from ihdm.studies.lab import Findings, Lab, blurring
from ihdm.studies.verdict import Verdict, every, larger

SPLITS = (0.85, 0.55, 0.3)  # of K
HALF, APART = 0.43, 2.0  # half the side of a drawn image and the distance of columns, in units of that of rows
TREES = 8  # distances are averaged over these; the first is drawn
CLAIM = (
    "the later leaves part, the less they differ, by more than two standard errors over trees from each split to the "
    "next."
)


def study(lab: Lab) -> Findings:
    schedule = blurring(lab.model().process).schedule
    model = lab.paper_model()
    K, leaves = model.process.K, 2 ** len(SPLITS)
    splits = [max(1, round(share * K)) for share in SPLITS]
    wanted = [K, *splits, 0]
    distances: dict[int, list[float]] = {split: [] for split in splits}
    drawn: dict[int, Tensor] = {}
    for tree in range(TREES):
        u_K = model.start(torch.full((leaves,), tree, device=lab.device), lab.seed)
        noise = BranchingNoise(lab.seed + tree, torch.tensor(splits, device=lab.device), model.config.shape)
        states = {k: u.cpu() for k, u in model.path(u_K, noise, execution=lab.execution) if k in wanted}
        drawn = drawn or states
        images = states[0].flatten(1)
        for depth, split in enumerate(splits):
            half = leaves >> depth + 1  # leaves on one side of a split
            pairs = images.view(-1, 2, half, images.shape[1])
            distances[split].append(float((pairs[:, 0] - pairs[:, 1]).square().mean(-1).sqrt().mean()))
    apart = {split: sum(values) / TREES for split, values in distances.items()}
    _draw(lab, drawn, wanted, schedule.sigma_B)
    words = ", ".join(f"{apart[split]:.3f} (level {split})" for split in splits)
    return Findings(
        {"splits": splits, "rms_difference_by_split": apart, "rms_difference_by_tree": distances},
        "leaves that part early differ in shape, leaves that part late only in detail.",
        "the image branches into plausible variants, which are more alike the later they part (Fig. 5b).",
        f"the root mean square difference between leaves, by the level at which they part: {words}.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    """Compares differences within the same tree."""
    trees = list(numbers["rms_difference_by_tree"].values())  # from the first split to the last
    return every([larger(*pair) for pair in zip(trees, trees[1:])])


def _draw(lab: Lab, states: dict[int, Tensor], levels: list[int], sigma_B: Tensor) -> None:
    """Columns are levels; each branch is drawn once and joined to those it parts into."""
    leaves = len(states[levels[0]])
    with figure(lab.picture("branches"), size=(8.5, 7.6)) as (axis,):
        places: list[list[tuple[float, float]]] = []
        for column, k in enumerate(levels):
            branches = 2 ** max(0, column - 1)  # the states at a split are still shared
            each = leaves // branches
            places.append([(APART * column, (b + 0.5) * each) for b in range(branches)])
            for branch, (x, y) in enumerate(places[-1]):
                pixels = coloured(states[k][branch * each])
                box = (x - HALF, x + HALF, y + HALF, y - HALF)
                axis.imshow(pixels, extent=box, interpolation="nearest", aspect="equal", zorder=2)
        for left, right in zip(places, places[1:]):
            for branch, (x, y) in enumerate(right):
                from_x, from_y = left[branch * len(left) // len(right)]
                axis.plot([from_x + HALF, x - HALF], [from_y, y], color="0.6", linewidth=1, zorder=1)
        axis.set(xlim=(-0.5, APART * (len(levels) - 1) + 0.5), ylim=(leaves, 0), yticks=[])
        axis.set_xticks(
            [APART * column for column in range(len(levels))],
            [f"$\\sigma_B$ = {float(sigma_B[k]):.2g}" for k in levels],
        )
        axis.grid(False)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
