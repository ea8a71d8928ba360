"""``tilery stats``: what a trace says of the processes that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from .. import exposition, policy, trace_file
from ..decision import problem_text
from ..errors import InvalidInput
from ..problem import Problem
from ..stats import GROUPS
from .output import Json, console, print_json, table

TABLES = {"calls": "calls by tier", "plans": "Plans by tier", "hit_rates": "hit rates", "memo": "memo of Plans"}


def stats(
    file: Annotated[Path | None, Argument(help="A trace. Default: the one that TILERY_TRACE names.")] = None,
    top: Annotated[int, Option(min=1, help="So many of the Problems that no image fits, the most called.")] = 10,
    prometheus: Annotated[
        bool, Option("--prometheus", help="Print the text format of Prometheus, and nothing else.")
    ] = False,
    json: Json = False,
) -> None:
    """Sum up a trace: calls by tier, hit rates, seconds of compiling and tuning, fallbacks, Problems without an image.

    A process writes it where its policy names one (TILERY_TRACE), every minute and at its end. `tilery.stats()` and
    `tilery.prometheus()` give the same for the calling process.
    """
    path = file or policy.current().trace
    if path is None:
        raise InvalidInput("no trace to sum up: name a FILE, or set TILERY_TRACE to the one of the process")
    report = trace_file.read(path).report()
    if json:
        print_json(report)
    elif prometheus:
        typer.echo(exposition.text(report), nl=False)
    else:
        _show(report, top)


def _show(report: Mapping[str, Any], top: int) -> None:
    screen = console()
    unreadable = f", {report['unreadable']} lines unreadable" if report["unreadable"] else ""
    screen.print(f"{report['processes']} processes, {report['problems']} problems{unreadable}")
    for key, title in (TABLES | {group: group for group in GROUPS}).items():
        if report[key]:
            shown = table(title, ("what", "value"), right=("value",))
            for name, value in report[key].items():
                shown.add_row(name, f"{value:.1%}" if key == "hit_rates" else f"{value:.10g}")
            screen.print(shown)
    if report["uncovered"]:
        _show_uncovered(report, top)


def _show_uncovered(report: Mapping[str, Any], top: int) -> None:
    shown = table("Problems that no image fits", ("calls", "problem", "what happens"), right=("calls",))
    for row in report["uncovered"][:top]:
        shown.add_row(str(row["calls"]), problem_text(Problem(**row["problem"])), row["miss"])
    console().print(shown)
    left = len(report["uncovered"]) - top + report["uncovered_others"]["problems"]
    if left > 0:
        console().print(f"... and {left} more")
