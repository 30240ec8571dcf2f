"""Errors that are no fault of the code. Each message says what was wrong, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class IhdmError(Exception):
    """A failed job: data or a model that is not there or damaged. The command line exits with 1."""

    exit_code = 1


class UsageError(IhdmError, ValueError):
    """A wrong request: an unknown preset or setting, an impossible value. The command line exits with 2."""

    exit_code = 2


def first_few(words: Sequence[str], most: int = 5, between: str = "; ") -> str:
    """The first of many words, and how many more there are."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist. It suggests a similar name or lists all."""
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(known)}"
    return UsageError(f"unknown {what} {name!r}; {hint}")
