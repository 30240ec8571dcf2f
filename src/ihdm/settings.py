"""Settings: frozen dataclasses whose fields have a line of help, a type and a range.

Values come from a preset (TOML), a model folder (JSON), the command line (`--set process.K=50`) or Python, and are
checked the same way: name, type, range. Anything that fails a check is refused.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import operator
import reprlib
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ihdm.errors import UsageError

AUTO = "auto"  # how None, "choose for me", is written
MOST = 2**63  # no number may be larger
LONGEST = 16  # at most so many numbers in a setting that takes several
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}  # for the types of values


def setting(
    default: Any, about: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> Any:
    """A field with a line of help and the range it must lie in."""
    return field(default=default, metadata={"about": about, "least": least, "above": above, "most": most})


def check_class(cls: Any, name: str) -> None:
    """Refuse a class of settings, in words that use its name, whose values could not be listed, read and checked."""
    if not is_dataclass(cls) or any(isinstance(value, Field) for value in vars(cls).values()):
        raise UsageError(f"{name} is not a dataclass; write @dataclass(frozen=True) above it")
    hints = get_type_hints(cls)
    for f in fields(cls):
        if "about" not in f.metadata:
            raise UsageError(
                f"{name}.{f.name} is not made by setting(...); write {f.name}: TYPE = setting(DEFAULT, "
                f"'what it is about')"
            )
        if not _is_readable(hints[f.name]):
            raise UsageError(
                f"{name}.{f.name} is of type {f.type}; a setting is of type int, float, bool, str or Literal, or a "
                f"tuple of one of these such as tuple[int, ...], and with `| None` it may also be None"
            )


def _is_readable(kind: Any) -> bool:
    """Whether `_converted` knows a type."""
    inner = [option for option in get_args(kind) if option is not NoneType]
    if get_origin(kind) in (Union, UnionType):
        return len(inner) == 1 and _is_readable(inner[0])
    return _is_readable(inner[0]) if get_origin(kind) is tuple else get_origin(kind) is Literal or kind in WORDS


SettingsType = TypeVar("SettingsType")


def updated(settings: SettingsType, values: Mapping[str, Any], place: str = "", owner: str = "") -> SettingsType:
    """A copy with other values; unknown names, wrong types and values out of range are refused.

    place: what precedes a name, such as "process."; owner: what the settings belong to, in words.
    """
    hints, metadata = get_type_hints(type(settings)), {f.name: f.metadata for f in fields(settings)}  # type: ignore[arg-type]
    changes = {}
    for key, value in values.items():
        if key not in metadata:
            raise _unknown(place, key, list(metadata), owner)
        changes[key] = _checked(place + key, hints[key], value, metadata[key])
    return replace(settings, **changes)  # type: ignore[type-var]


def check(settings: Any, place: str) -> None:
    """Convert and check the values of settings in place as `updated` does, for those that are made in Python."""
    hints = get_type_hints(type(settings))
    for f in fields(settings):
        value = _checked(place + f.name, hints[f.name], getattr(settings, f.name), f.metadata)
        object.__setattr__(settings, f.name, value)


def whole(name: str, number: Any, least: int | None = None) -> int:
    """A whole number that a function is given, of any type that is one; others are refused."""
    with contextlib.suppress(TypeError):
        found = operator.index(number)
        if least is None or found >= least:
            return found
    at_least = "" if least is None else f" of at least {least}"
    raise UsageError(f"{name} must be a whole number{at_least}, not {reprlib.repr(number)}")


def _unknown(place: str, key: str, known: list[str], owner: str) -> UsageError:
    by_letters = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_letters, n=1, cutoff=0.5)
    hint = f"did you mean {place + by_letters[near[0]]!r}? " if near else ""
    whose = owner or f"{place.rstrip('.')}"
    return UsageError(f"unknown setting {place + key!r}; {hint}{whose} has: {', '.join(known) or 'no settings'}")


def as_tree(settings: Any) -> dict[str, Any]:
    """A dict of plain values, which `updated` reads back."""
    return {f.name: _plain(getattr(settings, f.name)) for f in fields(settings)}


def _plain(value: Any) -> Any:
    return AUTO if value is None else list(value) if isinstance(value, tuple) else value


def as_text(value: Any) -> str:
    """A value as it can be typed."""
    if isinstance(value, tuple):
        return ",".join(map(as_text, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(_plain(value))


def words(settings: Any) -> list[str]:
    """Each setting's name and value."""
    return [f"{f.name} {as_text(getattr(settings, f.name))}" for f in fields(settings)]


def described(settings: Any) -> dict[str, str]:
    """What each setting is about, with its choices, if it has a fixed list of them, and its default."""
    hints, rows = get_type_hints(type(settings)), {}
    for f in fields(settings):
        choices = f"{' | '.join(map(str, get_args(hints[f.name])))}; " if get_origin(hints[f.name]) is Literal else ""
        rows[f.name] = f"{f.metadata['about']} [{choices}default {as_text(getattr(settings, f.name))}]"
    return rows


def _checked(name: str, kind: Any, value: Any, limits: Mapping[str, Any]) -> Any:
    value = _converted(name, kind, value)
    for number in value if isinstance(value, tuple) else [value]:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            if not math.isfinite(number):
                raise UsageError(f"{name} must be a finite number, not {number}")
            if number < limits["least"]:
                raise UsageError(f"{name} must be at least {limits['least']:g}, not {number}")
            if number <= limits["above"]:
                raise UsageError(f"{name} must be larger than {limits['above']:g}, not {number}")
            if number > limits["most"]:
                raise UsageError(f"{name} must be at most {limits['most']:g}, not {number}")
    return value


def _converted(name: str, kind: Any, value: Any) -> Any:
    """`value`, which may be a plain value or text, converted to the type `kind`."""
    if get_origin(kind) in (Union, UnionType):
        if value is None or value == AUTO:
            return None
        (kind,) = (option for option in get_args(kind) if option is not NoneType)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{name} must be one of {', '.join(map(repr, get_args(kind)))}, not {value!r}")
        return next(option for option in get_args(kind) if option == value)
    if get_origin(kind) is tuple:
        return _converted_tuple(name, kind, value)
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is str and isinstance(value, (str, Path)):
        return str(value)
    if kind in (int, float) and isinstance(value, (Real, str)) and not isinstance(value, bool):
        number = _number(value)
        if number is not None and (kind is float or number == number // 1):
            return kind(number)
    raise UsageError(f"{name} must be {WORDS[kind]}, not {value!r}")


def _converted_tuple(name: str, kind: Any, value: Any) -> tuple[int, ...]:
    """(1, 2, 2) from [1, 2, 2] or "1,2,2", (27, 41) from 27x41, () from "none"."""
    item = get_args(kind)[0]
    if isinstance(value, str):
        text = value.strip("[]() ")
        value = [] if text in ("", "none") else text.replace("x", ",").split(",")
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(items) > LONGEST:
        raise UsageError(f"{name} takes at most {LONGEST} numbers, not {len(items):,}")
    return tuple(_converted(name, item, part) for part in items)


def _number(value: Any) -> int | float | None:
    """A plain number, or None for text that is not a number and for numbers that are too large."""
    for read in (int, float) if isinstance(value, str) else (int if isinstance(value, Integral) else float,):
        with contextlib.suppress(ValueError):
            number = read(value)
            return None if abs(number) > MOST else number
    return None
