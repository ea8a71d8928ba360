"""Readers of values out of TOML: a Kind is ``(at, value) -> checked value``, and its errors name the place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .errors import SpecError, nearest


@dataclass(frozen=True, slots=True)
class At:
    """A place in the file, from which errors are raised."""

    file: str
    where: str
    key: str

    def row(self, where: str) -> At:
        return At(self.file, where, "")

    def at(self, key: str) -> At:
        return At(self.file, self.where, key)

    def inside(self, part: str) -> At:
        return At(self.file, self.where, f"{self.key}{part}")

    def entry(self, key: str) -> At:
        """A key of the table that stands here."""
        return self.inside(f".{key}") if self.key else self.at(key)

    def error(self, message: str) -> SpecError:
        return SpecError(self.file, self.where, self.key, message)


Kind = Callable[[At, Any], Any]


def fields(at: At, data: Any, **kinds: Kind) -> dict[str, Any]:
    """Read a table that must have exactly these keys."""
    if not isinstance(data, dict):
        raise at.error(f"is {show(data)}, not a table with {', '.join(kinds)}")
    for key in data:
        if key not in kinds:
            raise at.entry(key).error(f"unknown key '{key}'; {nearest(key, kinds)}")
    for key in kinds:
        if key not in data:
            raise at.entry(key).error(f"missing key '{key}'; given: {', '.join(data) or 'none'}")
    return {key: kind(at.entry(key), data[key]) for key, kind in kinds.items()}


def text(at: At, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise at.error(f"is {show(value)}, not a text")
    return value


def word(at: At, value: Any) -> str:
    """A text that can be part of a kernel name."""
    if not text(at, value).isidentifier():
        raise at.error(f"'{value}' may only have letters, digits and _, for it is part of kernel names")
    return str(value)


def integer(at: At, value: Any, least: int = 1) -> int:
    """A whole number; true and false are none."""
    if type(value) is not int or value < least:
        raise at.error(f"is {show(value)}, not a whole number of at least {least}")
    return value


def number(at: At, value: Any) -> float:
    """A finite number of at least 0."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise at.error(f"is {show(value)}, not a number of at least 0")
    return float(value) if isinstance(value, float) else int(value)


def list_of(kind: Kind, least: int = 0) -> Kind:
    """A list without repetition, as a tuple."""

    def read(at: At, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise at.error(f"is {show(value)}, not a list" + (f" with at least {least} item" if least else ""))
        items = tuple(kind(at.inside(f"[{i}]"), item) for i, item in enumerate(value))
        repeated = next((item for i, item in enumerate(items) if item in items[:i]), None)
        if repeated is not None:
            raise at.error(f"has {show(repeated)} twice")
        return items

    return read


def one_of(what: str, valid: Iterable[str]) -> Kind:
    """One of these names; ``what`` says in errors what they are names of."""

    names = tuple(valid)

    def read(at: At, value: Any) -> str:
        if value not in names:
            raise at.error(f"unknown {what} {show(value)}; {nearest(str(value), names)}")
        return str(value)

    return read


def table_of(what: str, kind: Kind, valid: Iterable[str] | None = None) -> Kind:
    """A table with any keys, or with some of the valid ones."""
    known = None if valid is None else tuple(valid)

    def read(at: At, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise at.error(f"is {show(value)}, not a table")
        for key in value:
            if known is not None and key not in known:
                raise at.inside(f".{key}").error(f"unknown {what} '{key}'; {nearest(key, known)}")
        return {key: kind(at.inside(f".{key}"), item) for key, item in value.items()}

    return read


def show(value: Any) -> str:
    """A value as errors quote it."""
    return repr(value) if isinstance(value, str | int | float | list | tuple) else f"a {type(value).__name__}"
