"""``tilery warm``: compile and load the kernels of a file of problems before anything needs them."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from .. import warmup
from ..asked import request
from ..errors import InvalidInput, TileryError, UnknownName
from ..problem import Problem
from .output import Json, bar, console, print_json, table

COLUMNS = ("op", "m", "n", "k", "layout", "dtype", "batch", "align", "out_dtype", "precision", "bias", "activation")
NUMBERS = ("m", "n", "k", "batch", "align")
FLAGS = {"true": True, "1": True, "false": False, "0": False}


def warm(
    file: Annotated[
        Path, Argument(help="CSV with a header, m,n,k,layout and more as in `tilery explain`, or JSON lines.")
    ],
    dtype: Annotated[str, Option(help="Of the inputs, where the file does not say.")] = "bf16",
    device: Annotated[int, Option(help="Number of the GPU.")] = 0,
    arch: Annotated[
        str | None, Option(help="Compile for this arch into the store, as sm_90a; no GPU is needed, none is used.")
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Compilations at a time. Default: the cores, as far as memory allows.")
    ] = None,
    json: Json = False,
) -> None:
    """Make the kernels of a file of problems ready. What the store has is skipped, so that it can be run again."""
    problems = read(file, dtype)
    cores = len(os.sched_getaffinity(0))
    with bar("preparing", len(dict.fromkeys(problems))) as advance:
        report = warmup.prepare(
            problems, device=device, arch=arch, workers=workers or cores, progress=lambda result: advance()
        )
    if json:
        print_json(report.to_dict())
    else:
        _show(report)
    if report.errors:
        raise typer.Exit(1)


def _show(report: warmup.Report) -> None:
    rows = Counter((one.variant, one.tier, one.origin) for one in report.results if not one.error)
    shown = table("", ("variant", "tier", "from", "problems"), right=("problems",))
    for (variant, tier, origin), count in sorted(rows.items()):
        shown.add_row(variant, tier, origin, str(count))
    console().print(shown)
    console().print(str(report), soft_wrap=True)


def read(file: Path, dtype: str) -> list[Problem]:
    """The problems of a file.

    Raises:
        InvalidInput, UnknownName: a line cannot be used; the message names it.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None
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
            yield number, row


def _csv_rows(file: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader((line for line in text.splitlines() if not line.startswith("#")), restkey="")
    for row in reader:
        given = {key.strip(): (value or "").strip() for key, value in row.items() if key}
        yield reader.line_num, {key: _value(file, reader.line_num, key, value) for key, value in given.items() if value}


def _value(file: Path, line: int, key: str, value: str) -> Any:
    try:
        return int(value) if key in NUMBERS else FLAGS[value.lower()] if key == "bias" else value
    except (ValueError, KeyError):
        raise InvalidInput(f"{file}, line {line}: {key} cannot be {value!r}") from None


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
