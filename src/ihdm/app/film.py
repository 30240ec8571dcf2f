"""A path kept for looking at: its states at some of the levels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import Tensor

from ihdm.pictures import even_levels
from ihdm.pixels import to_bytes

MOST = 51  # levels that are kept


@dataclass(frozen=True)
class Film:
    """States of a path by level, coarsest first; as bytes unless they are to be walked on from."""

    K: int
    exact: bool = False
    states: dict[int, Tensor] = field(default_factory=dict)

    def add(self, k: int, u: Tensor) -> None:
        """Keep the state if its level is one of those that are kept, or the first of all."""
        if not self.states or k in even_levels(self.K, MOST):
            self.states[k] = u.cpu() if self.exact else to_bytes(u).cpu()

    @property
    def levels(self) -> list[int]:
        return list(self.states)

    @property
    def last(self) -> Tensor:
        return self.states[self.levels[-1]]

    def some(self, count: int) -> list[Tensor]:
        """At most `count` of the states, evenly spaced, both ends included."""
        levels = self.levels
        return [self.states[levels[-1 - i]] for i in even_levels(len(levels) - 1, count)]

    def only(self, i: int) -> Film:
        """The path of image i alone."""
        return replace(self, states={k: u[i : i + 1] for k, u in self.states.items()})

    def then(self, later: Film) -> Film:
        """This path down to where another begins, and on with that."""
        return replace(self, states=_above(self.states.items(), later.levels[0]) | later.states)


def _above(states: Iterable[tuple[int, Tensor]], level: int) -> dict[int, Tensor]:
    return {k: u for k, u in states if k > level}
