"""``tilery warm``: compile and load the kernels of a file of problems before anything needs them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from .. import warmup
from ..requests import read
from .output import Json, bar, console, print_json, table


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
