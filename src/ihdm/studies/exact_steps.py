"""Samples with the paper's steps, and with fewer and fewer exact steps (beyond the paper)."""

from __future__ import annotations

from typing import Any

import torch

from ihdm.pixels import to_unit
from ihdm.plots import figure, tiles
from ihdm.studies.lab import PAPER, Findings, Lab
from ihdm.studies.verdict import Verdict, both, told

COLUMNS = 10
DIVISORS = (1, 2, 3, 5)  # of K: how many steps
NOISY = (1.0, 0.5)  # values of eta, with all levels
SECOND = "second order"
REFINED: dict[str, dict[str, Any]] = {
    "first order": {"order": 1},
    SECOND: {"order": 2},
    "second order, corrected": {"order": 2, "corrected": True},
}
CLAIM = (
    "exact steps of second order without fresh noise come closer to the data than twice as many of the paper's steps, "
    "by more than two standard errors (our own claim)."
)


def study(lab: Lab) -> Findings:
    model = lab.paper_model()
    K, count = model.process.K, lab.count
    fewer = list(dict.fromkeys(max(1, K // divisor) for divisor in DIVISORS))
    ways: dict[str, dict[str, Any]] = {"paper": PAPER}
    ways |= {f"eta {eta:g}": {"steps": K, "eta": eta, "order": 1} for eta in NOISY}
    ways |= {
        f"eta 0, {words}, {steps} steps": {"steps": steps, "eta": 0.0} | refined
        for words, refined in REFINED.items()
        for steps in fewer
    }
    distance, error, rows = {}, {}, []
    for name, way in ways.items():
        made = {"sampler": "exact"} | way
        samples = torch.cat(list(model.sample_batches(count, lab.seed, execution=lab.execution, **made)))
        found = lab.distance([samples])
        distance[name], error[name] = found.value, found.error
        rows.append(to_unit(samples[:COLUMNS]))
    curves = {words: [distance[f"eta 0, {words}, {steps} steps"] for steps in fewer] for words in REFINED}
    with figure(lab.picture("exact-steps"), columns=2, size=(5.6, 5), widths=(1.25, 1)) as (left, right):
        tiles(left, rows, list(ways))
        for (words, values), style in zip(curves.items(), ("o-", "s--", "^:")):
            right.plot(fewer, values, style, label=f"eta 0, {words}")
        for place, name in enumerate(("paper", *(f"eta {eta:g}" for eta in NOISY)), start=len(curves)):
            right.plot(K, distance[name], "*", color=f"C{place}", markersize=11, label=f"{name}, all {K} levels")
        right.set(xlabel="steps", ylabel=f"{lab.distance_name}, {count:,} samples", xticks=fewer)
        right.legend()
    noisy = ", ".join(f"{distance[f'eta {eta:g}']:.4g} (eta {eta:g})" for eta in NOISY)
    quiet = "; ".join(f"{', '.join(f'{v:.4g}' for v in values)} in {words}" for words, values in curves.items())
    return Findings(
        {"ways": ways, "distance": distance, "distance_error": error, "distance_is": lab.distance_name}
        | {"samples": count, "K": K},
        "each column has one start and one noise; exact steps without fresh noise (eta 0) grow an image from that "
        "start in fewer and fewer steps.",
        "not in the paper, whose steps go through all levels.",
        f"{lab.distance_name} of {count:,} samples: {distance['paper']:.4g} with the paper's {K} steps; with as many "
        f"exact steps {noisy}; without fresh noise, in {', '.join(map(str, fewer))} steps, {quiet}.",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    half = f"eta 0, {SECOND}, {max(1, numbers['K'] // 2)} steps"
    distance, error = numbers["distance"], numbers["distance_error"]
    return told(distance["paper"] - distance[half], both(error["paper"], error[half]))
