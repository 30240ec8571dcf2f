"""What a tab shows before anybody has asked for anything: its own settings' result, made while nobody else computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ihdm.errors import IhdmError

Work = Callable[..., Iterator[tuple[Any, ...]]]
AWAY = 1.0  # seconds without a step of a visitor's work, after which ours goes on


@dataclass(frozen=True)
class Turns:
    """Steps of the model, one at a time, a visitor's before our own."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    visited: list[float] = field(default_factory=lambda: [-AWAY])  # when a visitor's work last went on
    ended: threading.Event = field(default_factory=threading.Event)

    def visitor(self, steps: Iterator[Any]) -> Iterator[Any]:
        return self._each(steps, lambda: self.visited.__setitem__(0, time.monotonic()))

    def own(self, steps: Iterator[Any]) -> Iterator[Any]:
        return self._each(steps, self._step_aside)

    def _each(self, steps: Iterator[Any], before: Callable[[], None]) -> Iterator[Any]:
        done = object()
        while True:
            before()
            with self.lock:
                found = next(steps, done)
            if found is done or self.ended.is_set():
                return
            yield found

    def _step_aside(self) -> None:
        while (left := self.visited[0] + AWAY - time.monotonic()) > 0 and not self.ended.wait(min(left, 0.1)):
            pass


@dataclass
class First:
    """One tab's: the work, what it is given, and what came of it, once it is `ready`; None if it cannot be done."""

    work: Work
    given: Sequence[Any]
    found: tuple[Any, ...] | None = None
    ready: bool = False


@dataclass(frozen=True)
class Firsts:
    """Those of all tabs."""

    turns: Turns = field(default_factory=Turns)
    all: list[First] = field(default_factory=list)

    def add(self, work: Work, given: Sequence[Any]) -> First:
        self.all.append(First(work, given))
        return self.all[-1]

    def make(self, folder: Path) -> None:
        """All of them, one after another; their files go into a folder that must stay."""
        for number, first in enumerate(self.all):
            place = folder / str(number)
            place.mkdir(parents=True)
            try:
                for found in self.turns.own(first.work(place, *first.given)):
                    first.found = found
            except IhdmError:  # who presses the button is told; until then there is nothing to show
                first.found = None
            finally:
                first.ready = not self.turns.ended.is_set()

    def end(self) -> None:
        self.turns.ended.set()
