"""Requests: the problems of a file, for all commands that take one."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import trace_file
from .asked import request
from .errors import InvalidInput, TileryError, UnknownName
from .problem import Problem

SIZES = ("op", "m", "n", "k", "layout", "dtype", "batch", "align")
COLUMNS = (*SIZES, "out_dtype", "precision", "bias", "activation", "accumulate")
NUMBERS = ("m", "n", "k", "batch", "align")
FLAGS = {"true": True, "1": True, "false": False, "0": False}
# A full disk can cut off a line, so that the first is not always an event.
LOOKED_AT = 10


def read(file: Path, dtype: str) -> list[Problem]:
    """The problems of a file, in its order; those of a trace once each, the most called first.

    Args:
        file: CSV with a header (m, n, k and more as `tilery.request` takes them), JSON lines of the same, by themselves
            or as the ``problem`` of a line, or a trace.
        dtype: of the inputs, where the file does not say.

    Raises:
        InvalidInput, UnknownName: a line cannot be used; the message names it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None
    if any(trace_file.is_trace(line) for line in text.split("\n", LOOKED_AT)[:LOOKED_AT]):
        return list(trace_file.read(file).problems)
    is_json = text.lstrip().startswith("{")
    return [_problem(file, line, row, dtype) for line, row in (_json_rows if is_json else _csv_rows)(file, text)]


def _json_rows(file: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInput(f"{file}, line {number}: {error}") from None
            if not isinstance(row, dict):
                raise InvalidInput(f'{file}, line {number}: expected an object, as in {{"m": 64, "n": 64, "k": 64}}')
            yield number, row.get("problem", row)


def _csv_rows(file: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader((line for line in text.splitlines() if not line.startswith("#")), restkey="")
    for row in reader:
        given = {key.strip(): (value or "").strip() for key, value in row.items() if key}
        yield reader.line_num, {key: _value(file, reader.line_num, key, value) for key, value in given.items() if value}


def _value(file: Path, line: int, key: str, value: str) -> Any:
    try:
        return int(value) if key in NUMBERS else FLAGS[value.lower()] if key in ("bias", "accumulate") else value
    except (ValueError, KeyError):
        expected = "a whole number" if key in NUMBERS else f"one of {', '.join(FLAGS)}"
        raise InvalidInput(f"{file}, line {line}: {key} is {value!r}, expected {expected}") from None


def _problem(file: Path, line: int, row: dict[str, Any], dtype: str) -> Problem:
    for key in row:
        if key not in COLUMNS:
            raise UnknownName(f"column of {file}", key, COLUMNS)
    if missing := [key for key in ("m", "n", "k") if key not in row]:
        raise InvalidInput(f"{file}, line {line}: {', '.join(missing)} is missing")
    try:
        return request(**{"dtype": dtype, "layout": "nn"} | row)
    except TileryError as error:
        raise InvalidInput(f"{file}, line {line}: {error}") from None
