"""Pictures of how good samples are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm import pictures
from ihdm.data import Images
from ihdm.domains import Domain
from ihdm.evaluation.bound import Likelihood
from ihdm.likelihood import Row, bits_per_dimension, standard_error
from ihdm.metrics.neighbours import Neighbours
from ihdm.metrics.spectra import ROUNDING, Rings
from ihdm.plots import figure, plain_numbers

SPACES = {"pixels": "pixels", "values": "values", "inception": "Inception features"}
SAMPLES, NEIGHBOURS = 10, 8  # rows, and images beside each sample


def neighbours(folder: Path, domain: Domain, samples: Tensor, train: Images, near: dict[str, Neighbours]) -> None:
    """Samples, each beside its nearest training images, or other data (App. D.5)."""
    for space, found in near.items():
        others = torch.cat([train[index] for index in found.index[:SAMPLES]])
        caption = f"nearest training {domain.noun}s, by {SPACES[space]}"
        page = pictures.beside(
            pictures.grid(domain.pictures(samples[:SAMPLES]), 1, "sample"),
            pictures.grid(domain.pictures(others), found.index.shape[1], caption),
        )
        page.save(folder / f"neighbours-{space}.png")


def memorisation(folder: Path, domain: Domain, distances: dict[str, list[Tensor]]) -> None:
    """How far samples and held-out images are from the training set, as distributions."""
    with figure(folder / "memorisation.png", columns=len(distances)) as axes:
        for axis, (space, pair) in zip(axes, distances.items()):
            usual = pair[1].quantile(0.5)
            unit = usual if usual > 0 else torch.ones(())
            for name, values in zip(("samples", f"held-out {domain.noun}s"), pair):
                axis.ecdf((values / unit).numpy(), label=name)
            nearest = f"distance to the nearest training {domain.noun}\n(1: median of held-out {domain.noun}s)"
            axis.set(xlabel=nearest, ylabel="share closer")
            axis.set(title=SPACES[space], xlim=(0, None))
            axis.legend(loc="upper left")


def spectra(folder: Path, domain: Domain, rings: Rings, powers: dict[str, Tensor]) -> None:
    """Power over frequency, both logarithmic (Fig. 4)."""
    with figure(folder / "spectrum.png", size=(8, 4.2)) as (axis,):
        frequency = domain.frequencies(rings.frequency[1:])
        for name, power in powers.items():
            axis.loglog(frequency, power[1:], "--" if name == "samples" else "-", label=name)
        axis.set(xlabel=domain.frequency_words, ylabel="power", title="power spectra")
        axis.set_ylim(bottom=max(ROUNDING / 10, float(min(power[1:].min() for power in powers.values())) / 2))
        plain_numbers(axis.xaxis, frequency)
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def likelihood(folder: Path, found: Likelihood) -> Path:
    """The bounds in bits (the paper's over delta, if the process has them), and the terms of all over the levels."""
    path = folder / "likelihood.png"
    bits = {bound.row: bits_per_dimension(bound.total, found.dimensions) for bound in found.bounds}
    swept = {row.delta_ratio: values for row, values in bits.items() if row.delta_ratio is not None}
    others = [row for row in bits if row.delta_ratio is None]
    styles: dict[Row, dict[str, Any]] = {
        row: {"color": f"C{number}"} for number, row in enumerate(others, 1 if swept else 0)
    }
    for number, row in enumerate(row for row in bits if row.delta_ratio is not None):  # one colour, ever paler
        styles[row] = {"color": "C0", "alpha": 1 - 0.7 * number / max(1, len(swept) - 1)}
    of = f"{found.images:,} {found.noun}{'' if found.images == 1 else 's'}"
    with figure(path, columns=2 if swept else 1) as (*before, right):
        for left in before:
            means, errors = [float(b.mean()) for b in swept.values()], [standard_error(b) for b in swept.values()]
            left.errorbar(list(swept), means, errors, marker="o", color="C0", capsize=3, label="paper's steps")
            for row in others:
                left.axhline(float(bits[row].mean()), **styles[row], linestyle="--", label=row.name)
            left.set(xlabel="delta / sigma", ylabel="bits / dimension", title=f"bounds on {of}")
            left.legend()
        k = torch.arange(2, found.K + 1)
        drawn: list[Tensor] = []
        for row, values in zip(bits, found.by_level[1:].T):
            known = ~values.isnan()
            if not any(torch.equal(values[known], other) for other in drawn):  # some differ only in L_0
                right.plot(k[known], values[known], label=row.name, **styles[row])
                drawn.append(values[known])
        right.set(xlabel="level k", ylabel="L_(k-1), nats", title=f"terms of the bounds, {of}")
        right.legend()
    return path
