"""Figures as text, for people."""

from __future__ import annotations

from torch import Tensor

from ihdm.evaluation.bound import Likelihood
from ihdm.likelihood import bits_per_dimension, standard_error

HEADS = {"L_K": 18, "L_1..L_(K-1)": 22, "L_0": 20, "total": 22, "bits/dim": 18}  # and the widths of their columns


def likelihood(found: Likelihood) -> str:
    """A row for each bound."""
    K, left = found.K, max(len(bound.row.name) for bound in found.bounds)
    levels = f"all {K} levels" if found.levels == K else f"{found.levels} of {K} levels each"
    one, noun = found.images == 1, found.noun
    error = f"without an error, as a single {noun} gives none" if one else f"mean +- standard error over {noun}s"
    lines = [
        f"{found.images:,} {noun}{'' if one else 's'} of {found.dimensions:,} dimensions, {levels}, seed {found.seed}; "
        f"nats, {error}",
        "",
        " ".join([" " * left, *(f"{head:>{width}}" for head, width in HEADS.items())]),
    ]
    for bound in found.bounds:
        cells = [_words(part, 1) for part in (bound.L_K, bound.chain, bound.L_0, bound.total)]
        cells.append(_words(bits_per_dimension(bound.total, found.dimensions), 3))
        row = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, HEADS.values()))
        lines.append(f"{bound.row.name:<{left}} {row}")
    scale = "for 8-bit pixels scaled to [0, 1]" if noun == "image" else "as for 8-bit pixels, with values in [0, 1]"
    return "\n".join([*lines, "", f"bits/dim: nats / (dimensions ln 2) + 8, {scale}"])


def _words(values: Tensor, digits: int) -> str:
    """The mean, and its standard error where there is one."""
    error = f" +- {standard_error(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{float(values.mean()):,.{digits}f}{error}"
