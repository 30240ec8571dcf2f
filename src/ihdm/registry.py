"""Processes and networks that can be chosen by name: those of ihdm and those that its users add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, TypeVar

from ihdm.errors import UsageError, unknown
from ihdm.settings import check_class

Class = TypeVar("Class", bound=type)


class Registry:
    """Classes by name. Each has a dataclass `Settings` of its own, which identifies it.

    places: where the built-in classes are, "module:Class". They are imported on first use: importing torch takes
    seconds.
    """

    def __init__(self, what: str, places: dict[str, str]):
        self.what, self._places = what, places
        self._classes: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([*self._places, *(name for name in self._classes if name not in self._places)])

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __getitem__(self, name: str) -> Any:
        """The class of that name."""
        if name not in self:
            own = f"a {self.what} of your own is known only to a program that registers it (docs/your-own-process.md)"
            raise UsageError(f"{unknown(self.what, name, self)}; {own}")
        if name not in self._classes:
            module, _, attribute = self._places[name].partition(":")
            self._classes[name] = getattr(import_module(module), attribute)
        return self._classes[name]

    def register(self, name: str) -> Callable[[Class], Class]:
        """A decorator that gives a class a name, by which settings and model folders then refer to it."""

        def named(cls: Class) -> Class:
            taken = {other: self[other].Settings for other in self if other != name}
            if name in self._places or getattr(cls, "Settings", None) in [None, *taken.values()]:
                raise ValueError(f"{name!r} needs a name and a dataclass `Settings` that no other {self.what} has")
            for part in ("Settings", "Sampling"):  # only processes have both
                if hasattr(cls, part):
                    check_class(getattr(cls, part), f"{cls.__name__}.{part}")
            self._classes[name] = cls
            return cls

        return named

    def kind(self, settings: Any) -> str:
        """The name of the class that the settings belong to."""
        return next(name for name in self if self[name].Settings is type(settings))

    def of(self, settings: Any) -> Any:
        """The class that the settings belong to."""
        return self[self.kind(settings)]


PROCESSES = Registry(
    "process",
    {
        "heat": "ihdm.processes.inverse_heat:InverseHeat",
        "ddpm": "ihdm.processes.ddpm:DDPM",
        "growing": "ihdm.processes.growing:GrowingHeat",
        "blurring": "ihdm.processes.blurring:Blurring",
        "soft": "ihdm.processes.soft:Soft",
        "cold": "ihdm.processes.cold:Cold",
    },
)
NETWORKS = Registry("network", {"unet": "ihdm.networks.unet:UNet", "graph": "ihdm.networks.graph:GraphNet"})
