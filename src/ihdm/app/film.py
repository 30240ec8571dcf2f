"""A path kept to be looked at: its states at some of the levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ihdm.pictures import some_of
from ihdm.pixels import to_bytes

MOST = 51  # levels that are kept


@dataclass(frozen=True)
class Film:
    """States of a path by level, coarsest first; kept as bytes, or exactly if paths will continue from them.

    visited: all levels of the path, of which only some are kept.
    """

    visited: Sequence[int]
    exact: bool = False
    states: dict[int, Tensor] = field(default_factory=dict)

    def add(self, k: int, u: Tensor) -> None:
        """Keep the state if its level is one of those that are kept."""
        if k in some_of(self.visited, MOST):
            self.states[k] = u.cpu() if self.exact else to_bytes(u).cpu()

    @property
    def levels(self) -> list[int]:
        return list(self.states)

    @property
    def last(self) -> Tensor:
        return self.states[self.levels[-1]]

    @property
    def steps(self) -> int:
        return len(self.visited) - 1

    def step(self, k: int) -> int:
        """How many steps lead to level k."""
        return self.visited.index(k)

    def nearest(self, step: int) -> int:
        """The level, of those that are kept, to which the nearest number of steps leads."""
        return min(self.levels, key=lambda k: abs(self.step(k) - step))

    @property
    def every(self) -> int:
        """How many steps lead from one state that is kept to the next; 1 if the number varies."""
        places = [self.step(k) for k in self.levels]
        apart = {after - before for before, after in zip(places, places[1:])}
        return apart.pop() if len(apart) == 1 else 1

    def some(self, count: int) -> list[Tensor]:
        """At most `count` of the states, evenly spaced, both ends included."""
        return [self.states[k] for k in some_of(self.levels, count)]

    def only(self, i: int) -> Film:
        """The path of image i alone."""
        return replace(self, states={k: u[i : i + 1] for k, u in self.states.items()})

    def then(self, later: Film) -> Film:
        """This path up to where another begins, followed by that one."""
        level = later.visited[0]
        visited = [*(k for k in self.visited if k > level), *later.visited]
        return replace(self, visited=visited, states={k: u for k, u in self.states.items() if k > level} | later.states)
