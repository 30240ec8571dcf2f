"""Ways to sample that a visitor can choose from: which sampling settings of a process are offered, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from ihdm.app.numbers import whole, within
from ihdm.errors import UsageError
from ihdm.processes import Process

SAMPLER, STEPS = "sampler", "steps"
RANDOMNESS = {"delta_ratio": 2.5, "eta": 1.0}  # settings of the noise in a step, and how much is offered


@dataclass(frozen=True)
class Way:
    """settings: those that define it; free: the names of further settings that can be chosen."""

    settings: dict[str, Any]
    free: frozenset[str]

    @property
    def sampler(self) -> Any:
        """Its name, if the process has several samplers."""
        return self.settings.get(SAMPLER)


def ways(process: Process) -> list[Way]:
    """All ways that the process allows, found by trying what it refuses."""
    own = {f.name: getattr(process.sampling, f.name) for f in fields(process.sampling)}
    kinds = get_args(get_type_hints(type(process.sampling))[SAMPLER]) if SAMPLER in own else ()
    auto = {STEPS: None} if STEPS in own else {}
    tried = {STEPS: process.K - 1} | {name: own[name] for name in RANDOMNESS if name in own}
    found = []
    for settings in [{SAMPLER: kind} | auto for kind in kinds] or [auto]:
        if _allowed(process, settings):
            free = [name for name, value in tried.items() if _allowed(process, settings | {name: value})]
            found.append(Way(settings, frozenset(free)))
    return found


def own_way(process: Process) -> Way:
    """The way that the process's own settings choose."""
    own = getattr(process.sampling, SAMPLER, None)
    return next(way for way in ways(process) if way.sampler in (None, own))


def chosen(process: Process, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling settings from fields of the page, by name. Those that the sampler does not take are left out."""
    if not given:
        return {}
    way = next((way for way in ways(process) if way.sampler == given.get(SAMPLER)), own_way(process))
    settings = dict(way.settings)
    if STEPS in way.free and STEPS in given:
        settings[STEPS] = whole(given[STEPS], "The number of steps", 1, process.K)
    for name in RANDOMNESS:
        if name in way.free and name in given:
            settings[name] = within(given[name], "The randomness", 0, most(process, name))
    return settings


def most(process: Process, name: str) -> float:
    """The largest randomness that is offered; never less than the process's own."""
    return max(RANDOMNESS[name], float(getattr(process.sampling, name)))


def _allowed(process: Process, settings: dict[str, Any]) -> bool:
    try:
        process.with_sampling(**settings)
    except UsageError:
        return False
    return True
