"""``tilery verify``: every variant against the reference, after a change of GPU, driver or compiler."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer import Option

from .. import blocklist, device, policy
from .. import verify as verifying
from ..device import DeviceInfo
from ..errors import InvalidInput
from ..examine import work
from ..generator.archs import HOST
from ..pack import builtin
from ..store import Store, store_for
from .output import Json, bar, console, print_json, styled, table

SEEDS = 2**32
COLOURS = {"wrong": "bold red", "not run": "yellow"}


def verify(
    only: Annotated[str, Option(help="Only variants of this name; * and ? stand for anything.")] = "*",
    on: Annotated[str, Option("--device", help="Number of the GPU, or host. Default: GPU 0, else host.")] = "",
    jit: Annotated[bool, Option("--jit", help="Also the variants that no image has: they are compiled.")] = False,
    limit: Annotated[
        float, Option(min=1, help="Seconds that a variant may take to be made ready, and to run.")
    ] = verifying.LIMIT_S,
    seed: Annotated[int | None, Option(min=0, max=SEEDS - 1, help="Of the data. Default: a new one.")] = None,
    report: Annotated[Path | None, Option(help="Write the report to this file, as JSON.")] = None,
    listed: Annotated[bool, Option("--list", help="Show what is blocked, and run nothing.")] = False,
    clear: Annotated[bool, Option("--clear", help="Take variants off the blocklist, and run nothing.")] = False,
    json: Json = False,
) -> None:
    """Run the variants on fresh data, block those that are wrong, and unblock those that are right.

    The exit code is 1 when a variant is wrong or could not be run.
    """
    store = store_for(policy.current())
    if listed and clear:
        raise InvalidInput("--list and --clear are two commands: pass one of them")
    if clear:
        _clear(store, only, json)
    elif listed:
        _list(store, only, _device(on), json)
    else:
        _verify(store, _device(on), only, jit, limit, seed, report, json)


def _device(asked: str) -> DeviceInfo:
    """The device that was asked for.

    Raises:
        InvalidInput: there is no such GPU.
    """
    if asked == HOST or not (asked or device.devices()):
        return device.representative(HOST)
    if not (asked or "0").isdecimal():
        raise InvalidInput(f"--device {asked}: pass the number of a GPU, or {HOST}")
    return device.info(int(asked or 0))


def _verify(
    store: Store,
    gpu: DeviceInfo,
    only: str,
    compiled: bool,
    limit: float,
    seed: int | None,
    file: Path | None,
    json: bool,
) -> None:
    pack, seed = builtin(), secrets.randbelow(SEEDS) if seed is None else seed
    chosen = verifying.choose(pack, gpu, only, compiled)
    verifier = verifying.Verifier(pack, gpu, store, limit, work)
    with bar(f"verifying on {gpu}", len(chosen.variants)) as advance:
        made = verifier.run(chosen, seed, policy.current(), lambda result: advance())
    if file is not None:
        made.write(file)
    if json:
        print_json(made.to_dict())
    else:
        _show(made, gpu)
    if made.failed:
        raise typer.Exit(1)


def _show(made: verifying.Report, gpu: DeviceInfo) -> None:
    screen = console()
    if made.failed:
        shown = table("", ("variant", "status", "what", "case", "blocklist"))
        for one in made.failed:
            status = Text(one.outcome.status, style=COLOURS[one.outcome.status])
            shown.add_row(one.variant, status, one.outcome.fault, one.outcome.case, one.block)
        screen.print(shown)
    for one in made.results:
        if one.ok and one.block:
            screen.print(f"{one.variant}: {one.block}", soft_wrap=True)
    right = len(made.results) - len(made.failed)
    line = f"{right} of {len(made.results)} variants are right on {gpu}"
    if right:
        worst = max(one.outcome.error for one in made.results if one.ok)
        line += f", the largest error is {worst:.3f} of the bound"
    skipped = f"; {len(made.skipped)} not verified, as --json tells" if made.skipped else ""
    screen.print(f"{line} (seed {made.seed}, {made.seconds:.0f} s){skipped}", soft_wrap=True)
    if made.failed:
        again = f"`tilery verify --seed {made.seed} --only NAME` runs one again on the same data."
        screen.print(styled("FAIL"), f"{len(made.failed)} failed. {again}", soft_wrap=True)


def _named(store: Store, only: str) -> Iterable[blocklist.Finding]:
    return (one for one in blocklist.findings(store) if fnmatchcase(one.subject.variant, only))


def _list(store: Store, only: str, gpu: DeviceInfo, json: bool) -> None:
    found = [(one, blocklist.outdated(one.subject, gpu, builtin())) for one in _named(store, only)]
    if json:
        print_json([_row(one) | {"applies": not why, "why_not": why} for one, why in found])
        return
    shown = table("", ("variant", "found on", "date", "reason", "state"))
    for one, why in found:
        state = f"no longer applies: {why}" if why else "blocked"
        shown.add_row(one.subject.variant, one.gpu, one.date, one.reason, state)
    if found:
        console().print(shown)
    applying = sum(not why for _, why in found)
    console().print(f"{applying} variants are blocked on {gpu}", soft_wrap=True)
    if applying < len(found):
        again = "`tilery verify` examines those of this device again"
        console().print(f"{len(found) - applying} findings do not apply to it now: {again}.", soft_wrap=True)


def _row(one: blocklist.Finding) -> dict[str, Any]:
    told = {"gpu": one.gpu, "date": one.date, "reason": one.reason, "file": str(one.path), "read_only": one.read_only}
    return one.subject._asdict() | told


def _clear(store: Store, only: str, json: bool) -> None:
    done = {one: blocklist.remove(one) for one in _named(store, only)}
    left = {one.subject.variant: why for one, why in done.items() if why}
    removed = [one.subject.variant for one, why in done.items() if not why]
    if json:
        print_json({"removed": removed, "left": left})
    else:
        for name in removed:
            console().print(f"{name}: taken off the blocklist", soft_wrap=True)
        for name, why in left.items():
            console().print(Text.assemble(styled("error"), f" {name}: {why}"), soft_wrap=True)
        console().print(f"{len(removed)} removed; running processes go on as they began", soft_wrap=True)
    if left:
        raise typer.Exit(1)
