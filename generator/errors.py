"""What the generator raises, and the wording that all its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GeneratorError(Exception):
    """Any fault that the generator reports; its text is meant for the user."""


class SpecError(GeneratorError):
    """A fault in ``variants.toml``.

    Attributes:
        file: the path as it was given.
        row: the table that is at fault, e.g. ``family.gemm_mma.rows[0]``; empty for the whole file.
        key: the key in that table; empty where the table itself is at fault.
    """

    def __init__(self, file: str, row: str, key: str, message: str) -> None:
        super().__init__(": ".join(part for part in (file, row, key, message) if part))
        self.file = file
        self.row = row
        self.key = key


class UnknownName(GeneratorError, LookupError):
    """A name on the command line, or in a call, that nothing has."""


class ExpressionError(GeneratorError, ValueError):
    """An expression of ``variants.toml`` that does not parse or cannot be evaluated."""


class RenderError(GeneratorError):
    """A template that is missing, or that cannot be rendered for a variant."""


class TableError(GeneratorError):
    """Images or tuning records that do not fit what ``variants.toml`` declares."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of a message about an unknown name.

    >>> nearest("teir", ["tier", "dtype"])
    'nearest: tier; valid: dtype, tier'
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, 3, 0.5)
    parts = [f"nearest: {', '.join(close)}"] if close else []
    if len(names) <= 16:
        parts.append(f"valid: {', '.join(names) or 'none'}")
    elif not close:
        parts.append(f"{len(names)} are valid, such as {names[0]}")
    return "; ".join(parts)
