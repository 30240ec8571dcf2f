"""Whether a study's result is as claimed, decided from its own numbers.

Each study has a CLAIM, a sentence that names its threshold, and a function `verdict` of its numbers as they stand in
the JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["as claimed", "not as claimed", "too small to tell"]

ERRORS = 2  # standard errors by which a number must clear its threshold
LEAST = 3  # fewest values that give a standard error


@dataclass(frozen=True)
class Judged:
    """claim: what would have to hold, and by which rule. verdict: whether it does."""

    claim: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"Claim: {self.claim}\nVerdict: {self.verdict}"


def told(margin: float | None, error: float | None) -> Verdict:
    """The verdict on a claim that the margin is positive: decided if it is more than two standard errors from 0.

    Without a margin or an error, for lack of images, it is too small to tell.
    """
    if margin is None or error is None or not abs(margin) > ERRORS * error:
        return "too small to tell"
    return "as claimed" if margin > 0 else "not as claimed"


def every(parts: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim in several parts: it holds if all of them hold, and fails if one fails."""
    if "not as claimed" in parts:
        return "not as claimed"
    return "as claimed" if parts and set(parts) == {"as claimed"} else "too small to tell"


def lowest(
    places: Sequence[float],
    values: Sequence[float],
    errors: Sequence[float | None],
    low: float,
    high: float,
) -> Verdict:
    """The verdict on the claim that values are lowest between low and high: compares the lowest there and elsewhere."""
    inside = [i for i, place in enumerate(places) if low <= place <= high]
    elsewhere = [i for i in range(len(places)) if i not in inside]
    here, there = (min(some, key=values.__getitem__) for some in (inside, elsewhere))
    return told(values[there] - values[here], both(errors[here], errors[there]))


def both(error: float | None, other: float | None) -> float | None:
    """The standard error of a difference of two numbers."""
    return None if error is None or other is None else math.hypot(error, other)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error, which is None for fewer than three values."""
    mean, count = sum(values) / len(values), len(values)
    if count < LEAST:
        return mean, None
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)


def larger(values: Sequence[float], others: Sequence[float]) -> Verdict:
    """The verdict on the claim that values are larger than others, on average over pairs."""
    return told(*mean_and_error([one - other for one, other in zip(values, others)]))


def jackknife(values: Sequence[float]) -> float:
    """The standard error of a figure from its values with each part of the data left out once (Quenouille, Tukey)."""
    mean, count = sum(values) / len(values), len(values)
    return math.sqrt((count - 1) / count * sum((value - mean) ** 2 for value in values))
