"""Processes that are trained alike and measured alike, all at once or in several sessions.

The measurements of each are a small file in the folder `measured`, which is found again with or without the model.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.disk import replaced_text
from ihdm.errors import IhdmError
from ihdm.evaluation import likelihood
from ihdm.likelihood import bits_per_dimension
from ihdm.model import Model
from ihdm.pixels import to_unit
from ihdm.plots import tiles
from ihdm.processes import Bounded
from ihdm.studies.lab import Lab, digest
from ihdm.studies.verdict import Verdict, both, mean_and_error, told

DIVISORS = (1, 4, 10, 20)  # of K: how many steps
SHOWN = 10
ANCESTRAL: dict[str, Any] = {"eta": 1.0, "order": 1}
QUIET: dict[str, Any] = {"eta": 0.0, "order": 2}


@dataclass(frozen=True)
class Relative:
    """settings: of its process. every, few: how it is sampled with a step for every level, and with fewer steps."""

    settings: str
    every: dict[str, Any] = field(default_factory=lambda: ANCESTRAL)
    few: dict[str, Any] = field(default_factory=lambda: QUIET)

    def words(self, lab: Lab) -> list[str]:
        """Settings for training: as many levels as the preset's process and, if quick, half as many steps as usual."""
        usual = not any(word.startswith("trainer.steps=") for word in lab.settings)
        quick = [f"trainer.steps={max(1, lab.config.trainer.steps // 2)}"] if lab.quick and usual else []
        return [*(f"process.{word}" for word in self.settings.split()), f"process.K={lab.config.process.K}", *quick]


@dataclass(frozen=True)
class Measured:
    """numbers: for JSON; lists go from most steps to fewest. samples: the first few, with a step for every level."""

    numbers: dict[str, Any]
    samples: Tensor


def measured(lab: Lab, relatives: Mapping[str, Relative]) -> dict[str, Measured]:
    """The relatives that the lab is to compute, and those that were computed before."""
    held_out = lab.held_out(60 if lab.quick else 1000)
    found = {}
    for name, relative in relatives.items():
        path = _path(lab, relative)
        if path.exists():
            found[name] = _read(path, lab.images.shape)
        elif not lab.only or name in lab.only:
            found[name] = _measure(lab, relative, held_out)
            _write(path, found[name])
    return found


def tree(lab: Lab, relatives: Iterable[str], found: Mapping[str, Measured]) -> dict[str, Any]:
    """All numbers, for JSON."""
    return {
        "relatives": {name: some.numbers for name, some in found.items()},
        "missing": [name for name in relatives if name not in found],
        "samples": lab.count,
        "distance_is": lab.distance_name,
        "batch_size": lab.config.trainer.batch_size,
    }


def nearer(numbers: Mapping[str, Any], one: str, other: str) -> Verdict:
    """Whether one is nearer to the data than another, with a step for every level; undecided if one is missing."""
    if not {one, other} <= set(numbers["relatives"]):
        return "too small to tell"
    here, there = (numbers["relatives"][name] for name in (one, other))
    return told(there["distance"][0] - here["distance"][0], both(here["distance_error"][0], there["distance_error"][0]))


def words(lab: Lab, relatives: Iterable[str], found: Mapping[str, Measured]) -> str:
    """A table of all, then how they were sampled, where they were measured, and which are missing."""
    first = next(iter(found.values())).numbers
    steps = first["steps"]
    heads = ["", "process", *(f"{n} steps" for n in steps), "bits / dim.", "ms / image"]
    lines = [heads, ["---"] * len(heads)]
    for name, some in found.items():
        n = some.numbers
        distances = [f"{value:.4g}" for value in n["distance"]]
        lines.append([name, f"`{n['process']}`", *distances, bits(n), milliseconds(n)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    sampled = ", ".join(f"{name} ({'; '.join(some.numbers['sampled'][:2])})" for name, some in found.items())
    where = "; ".join(dict.fromkeys(f"{s.numbers['machine']}, {s.numbers['date']}" for s in found.values()))
    missing = [name for name in relatives if name not in found]
    last = f"\n\nNot measured yet: {', '.join(missing)} (`--only {' '.join(missing)}`)." if missing else ""
    return (
        f"{lab.distance_name} of {lab.count:,} samples after {first['trained_steps']:,} training steps of "
        f"{lab.config.trainer.batch_size} images each; the bound in bits per dimension of held-out images, as 8-bit "
        f"values; the time of a sample with a step for every level.\n\n{table}\n\nSampled by: {sampled}. "
        f"Measured on: {where}.{last}"
    )


def bits(numbers: Mapping[str, Any]) -> str:
    value = numbers["bits_per_dimension"]
    return "none" if value is None else f"{value:.2f}"


def milliseconds(numbers: Mapping[str, Any]) -> str:
    return f"{1000 * numbers['seconds_per_image'][0]:.3g}"


def samples_in_rows(axis: Any, found: Mapping[str, Measured]) -> None:
    """Draw a row of samples for each, with its name on the left, its bound and its time on the right."""
    tiles(axis, [to_unit(some.samples) for some in found.values()], list(found))
    columns = {1.03: ("bits/dim.", bits), 1.16: ("ms/image", milliseconds)}
    for x, (head, words_of) in columns.items():
        axis.text(x, 1.01, head, transform=axis.transAxes, fontsize=8)
        for y, some in zip(axis.get_yticks(), found.values()):
            axis.text(x, y, words_of(some.numbers), transform=axis.get_yaxis_transform(), va="center_baseline")


def _measure(lab: Lab, relative: Relative, held_out: Tensor) -> Measured:
    settings = relative.words(lab)
    model, config = lab.trained(*settings), lab.config.with_settings(settings)
    K = model.process.K
    steps = list(dict.fromkeys(max(1, K // divisor) for divisor in DIVISORS))
    ways = [relative.every | {"steps": None}, *(relative.few | {"steps": n} for n in steps[1:])]
    distances, seconds, shown = [], [], []
    for way in ways:
        samples, taken = _timed(model.sample_batches(lab.count, lab.seed, execution=lab.execution, **way))
        distances.append(lab.distance([samples]))
        seconds.append(taken)
        shown.append(samples[:SHOWN])
    bound, bound_error = _bits(lab, model, held_out)
    numbers = {
        "process": relative.settings,
        "trained_steps": config.trainer.steps,
        "parameters": sum(weights.numel() for weights in model.network.parameters()),
        "steps": steps,
        "sampled": [model.process.with_sampling(**way).sampling_words() for way in ways],
        "distance": [distance.value for distance in distances],
        "distance_error": [distance.error for distance in distances],
        "seconds_per_image": seconds,
        "bits_per_dimension": bound,
        "bits_error": bound_error,
        "machine": lab.machine,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    return Measured(numbers, shown[0])


def _timed(batches: Iterable[Tensor]) -> tuple[Tensor, float]:
    """The images, and the seconds for each; the first of several batches does not count, as it starts more slowly."""
    begun, found, ends = time.perf_counter(), [], []
    for batch in batches:
        found.append(batch)
        ends.append(time.perf_counter())
    images = torch.cat(found)
    if len(found) == 1:
        return images, (ends[0] - begun) / len(images)
    return images, (ends[-1] - ends[0]) / (len(images) - len(found[0]))


def _bits(lab: Lab, model: Model, held_out: Tensor) -> tuple[float | None, float | None]:
    """The bound and its standard error, where there is one."""
    if not isinstance(model.process, Bounded):
        return None, None
    levels = 10 if lab.quick else 40
    found = likelihood(model, held_out, lab.images.train, levels=levels, seed=lab.seed, execution=lab.execution)
    last = found.bounds[-1]  # of exact steps to 8-bit values, which every process with a bound has
    return mean_and_error(bits_per_dimension(last.total, found.dimensions).tolist())


def _path(lab: Lab, relative: Relative) -> Path:
    """Named by the model and by how it is measured."""
    settings = relative.words(lab)
    sampling = {name: value for name, value in lab.unusual(*settings).items() if name.startswith("sampling.")}
    ways = [sorted(way.items()) for way in (sampling, relative.every, relative.few)]
    how = [ways, DIVISORS, lab.count, lab.seed, lab.distance_name]
    return lab.out / "measured" / f"{lab.folder(*settings).name}-{digest(how)}.json"


def _write(path: Path, found: Measured) -> None:
    pixels = base64.b64encode(found.samples.contiguous().numpy().tobytes()).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    replaced_text(path, json.dumps({"numbers": found.numbers, "samples": pixels}, indent=2, allow_nan=False) + "\n")


def _read(path: Path, shape: Sequence[int]) -> Measured:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        pixels = torch.frombuffer(bytearray(base64.b64decode(found["samples"])), dtype=torch.uint8)
        return Measured(found["numbers"], pixels.view(-1, *shape))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise IhdmError(f"{path} is damaged ({error}); remove it, and its process will be measured again") from error
