"""Processes, networks and kinds of data that can be chosen by name: those of ihdm and those that its users add."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, TypeVar

from ihdm.errors import UsageError, unknown
from ihdm.settings import check_class

Class = TypeVar("Class", bound=type)


class Registry:
    """Classes by name.

    places: where the built-in classes are, "module:Class". They are imported on first use: importing torch takes
    seconds.
    """

    page = "your-own-process.md"  # of the documentation, on how to add one

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
            own = f"a {self.what} of your own is known only to a program that registers it (docs/{self.page})"
            raise UsageError(f"{unknown(self.what, name, self)}; {own}")
        if name not in self._classes:
            module, _, attribute = self._places[name].partition(":")
            self._classes[name] = getattr(import_module(module), attribute)
        return self._classes[name]

    def register(self, name: str) -> Callable[[Class], Class]:
        """A decorator that gives a class a name, by which settings and model folders then refer to it."""

        def named(cls: Class) -> Class:
            if name in self._places:
                raise ValueError(f"ihdm has a {self.what} {name!r} already; give yours another name")
            self._check(name, cls)
            self._classes[name] = cls
            return cls

        return named

    def _check(self, name: str, cls: Any) -> None:
        """Refuse a class that would not serve."""


class WithSettings(Registry):
    """Classes that each have a dataclass `Settings` of their own, which identifies them."""

    def _check(self, name: str, cls: Any) -> None:
        taken = {other: self[other].Settings for other in self if other != name}
        if getattr(cls, "Settings", None) in [None, *taken.values()]:
            raise ValueError(f"{name!r} needs a dataclass `Settings` that no other {self.what} has")
        for part in ("Settings", "Sampling"):  # only processes have both
            if hasattr(cls, part):
                check_class(getattr(cls, part), f"{cls.__name__}.{part}")

    def kind(self, settings: Any) -> str:
        """The name of the class that the settings belong to."""
        return next(name for name in self if self[name].Settings is type(settings))

    def of(self, settings: Any) -> Any:
        """The class that the settings belong to."""
        return self[self.kind(settings)]


class Domains(Registry):
    """Kinds of data. Those of ihdm are read by modules of their name in `data/`, others by themselves."""

    page = "your-own-data.md"

    def _check(self, name: str, cls: Any) -> None:
        missing = [part for part in ("noun", "axes", "read") if not hasattr(cls, part)]
        missing += sorted(getattr(cls, "__abstractmethods__", ["a base class Domain"]))
        if missing:
            raise ValueError(f"the kind of data {name!r} has no {', '.join(missing)}; see docs/{self.page}")
        cls.kind = name

    def is_own(self, name: str) -> bool:
        """Whether a kind of data is a user's, and so reads itself."""
        return hasattr(self[name], "read")


PROCESSES = WithSettings(
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
NETWORKS = WithSettings("network", {"unet": "ihdm.networks.unet:UNet", "graph": "ihdm.networks.graph:GraphNet"})
DOMAINS = Domains(
    "kind of data",
    {
        "images": "ihdm.domains.images:ImageDomain",
        "signals": "ihdm.domains.signals:SignalDomain",
        "volumes": "ihdm.domains.volumes:VolumeDomain",
        "graphs": "ihdm.domains.graphs:GraphDomain",
    },
)
