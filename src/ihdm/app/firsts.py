"""What a tab shows before anybody asks for anything: the result of its initial settings, made when nobody computes."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ihdm.errors import IhdmError

Work = Callable[..., Iterator[tuple[Any, ...]]]
DONE = object()
AWAY = 1.0  # after so many seconds without a step of a visitor's work, ours continues


@dataclass(frozen=True)
class Turns:
    """Runs steps of the model one at a time, a visitor's before our own."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    visited: list[float] = field(default_factory=lambda: [-AWAY])  # when a visitor's work last took a step
    ended: threading.Event = field(default_factory=threading.Event)

    def visitor(self, steps: Iterator[Any]) -> Iterator[Any]:
        while (found := self._step(steps)) is not DONE:
            yield found

    def own(self, steps: Iterator[Any]) -> Iterator[Any]:
        found = None
        while found is not DONE and not self.ended.wait(0.1 if self._visited() else 0):
            with self.lock:
                found = DONE if self.ended.is_set() else None if self._visited() else next(steps, DONE)
            if found is not DONE and found is not None:
                yield found

    def _step(self, steps: Iterator[Any]) -> Any:
        self.visited[0] = math.inf  # until it is done, however long that takes
        try:
            with self.lock:
                return next(steps, DONE)
        finally:
            self.visited[0] = time.monotonic()

    def _visited(self) -> bool:
        return time.monotonic() - self.visited[0] < AWAY


@dataclass
class First:
    """A tab's first result: the work, its arguments, and what it found once it is `ready`; None if it failed."""

    work: Work
    given: Sequence[Any]
    found: tuple[Any, ...] | None = None
    ready: bool = False


@dataclass(frozen=True)
class Firsts:
    """The first results of all tabs."""

    turns: Turns = field(default_factory=Turns)
    all: list[First] = field(default_factory=list)

    def add(self, work: Work, given: Sequence[Any]) -> First:
        self.all.append(First(work, given))
        return self.all[-1]

    def make(self, folder: Path) -> None:
        """Compute them all, one after another. Their files go into a folder that must stay while the page is shown."""
        for number, first in enumerate(self.all):
            place = folder / str(number)
            place.mkdir(parents=True)
            try:
                for found in self.turns.own(first.work(place, *first.given)):
                    first.found = found
            except IhdmError:  # whoever presses the button is told why; until then there is nothing to show
                first.found = None
            except Exception:  # the terminal shows it; the other tabs, and visitors, can do without this result
                traceback.print_exc()
                first.found = None
            finally:
                first.ready = not self.turns.ended.is_set()

    def end(self) -> None:
        self.turns.ended.set()
