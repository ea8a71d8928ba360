"""``tilery coverage``: which tier serves each problem of a file, for a model's list of shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from typer import Argument, Option

from .. import coverage as covering
from .. import device as devices
from .. import policy
from ..decision import problem_text
from ..device import DeviceInfo
from ..dispatch import TIERS
from ..errors import InvalidInput, UnknownName
from ..generator.archs import HOST
from ..pack import builtin
from ..requests import read
from .output import Json, console, print_json, styled, table

REGRET = ("geomean", "p90", "max")
NOTHING = "nothing"


def coverage(
    file: Annotated[
        Path, Argument(help="CSV with a header (m,n,k,layout and more as `tilery explain`), JSON lines, or a trace.")
    ],
    arch: Annotated[
        str | None, Option(help="For the GPU that stands for it, as sm_90a, or host. Default: the GPU here.")
    ] = None,
    device: Annotated[int | None, Option(help="Number of the GPU. Default: 0.")] = None,
    dtype: Annotated[str, Option(help="Of the inputs, where the file does not say.")] = "bf16",
    fail_on: Annotated[
        str, Option(help=f"Tiers that must serve nothing, separated by commas; {NOTHING} for none.")
    ] = "fallback",
    json: Json = False,
) -> None:
    """Say which tier serves each problem of a file, with shares, and fail where a tier must not serve. Runs nothing.

    The exit code is 1 when a tier of --fail-on serves a problem, or when nothing can.
    """
    tiers = _tiers(fail_on)
    problems = read(file, dtype)
    if not problems:
        raise InvalidInput(f"{file} has no problem")
    report = covering.cover(problems, _device(arch, device), builtin(), policy.current())
    failing = report.failing(tiers)
    if json:
        failed = [one.to_dict() for one in failing]
        print_json(report.to_dict() | {"fail_on": list(tiers), "ok": not failing, "failing": failed})
    else:
        _show(report, failing, tiers)
    if failing:
        raise typer.Exit(1)


def _tiers(fail_on: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in fail_on.split(",") if name.strip() not in ("", NOTHING))
    for name in names:
        if name not in TIERS:
            raise UnknownName("tier", name, TIERS)
    return names


def _device(arch: str | None, number: int | None) -> DeviceInfo:
    if arch is not None and number is not None:
        raise InvalidInput("--arch and --device name two GPUs: pass one of them")
    if arch is not None:
        return devices.representative(arch)
    if number is None and not devices.devices():
        archs = ", ".join(name for name in builtin().archs if name != HOST)
        raise InvalidInput(f"no GPU to decide for: {devices.why_none()}. Pass --arch: host, or one of {archs}")
    return devices.info(number or 0)


def _show(report: covering.Report, failing: tuple[covering.Served, ...], tiers: tuple[str, ...]) -> None:
    screen = console()
    screen.print(_problems(report))
    screen.print(_summary(report))
    screen.print(f"{len(report.served)} problems on {report.device}", soft_wrap=True)
    for one in failing:
        screen.print(Text.assemble(styled("FAIL"), f" {problem_text(one.problem)}: {one.tier}"), soft_wrap=True)
        screen.print(f"    why: {one.reason}", soft_wrap=True)
        screen.print(f"    do: {one.advice}", soft_wrap=True)
    if failing:
        forbidden = ", ".join((*tiers, "nothing at all"))
        screen.print(styled("FAIL"), f"{len(failing)} problems are served by {forbidden}", soft_wrap=True)


def _problems(report: covering.Report) -> object:
    shown = table("", ("problem", "times", "tier", "variant", "us", "known by"), right=("times", "us"))
    for one in report.served:
        us = "" if one.us is None else f"{one.us:.1f}"
        shown.add_row(problem_text(one.problem), str(one.times), one.tier, one.variant, us, one.basis)
    return shown


def _summary(report: covering.Report) -> object:
    names = [name for name in REGRET if any(name in row.regret for row in report.tiers)]
    columns = [f"regret {name}" for name in names]
    shown = table("", ("tier", "problems", "share", *columns), right=("problems", "share", *columns))
    for row in report.tiers:
        cells = [f"{row.regret[name]:.3f}" if name in row.regret else "" for name in names]
        shown.add_row(row.tier, str(row.problems), f"{row.share:.1%}", *cells)
    return shown
