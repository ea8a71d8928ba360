"""``tilery tune``: measure which variant is fastest for each problem of a file, on the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer import Argument, Option

from .. import device as devices
from .. import policy
from ..decision import problem_text
from ..errors import InvalidInput
from ..problem import Problem
from ..store import Store, store_for
from ..tune import parallel, shapes
from ..tune.result import Report, Result
from ..tune.session import Progress as Callback
from .output import Json, console, print_json, table

SHOWN = 20


def tune(
    files: Annotated[
        list[Path] | None, Argument(help="CSV with a header (m,n,k,layout and more as `tilery explain`), or a trace.")
    ] = None,
    op: Annotated[str, Option(help="The operator.")] = "gemm",
    like: Annotated[list[str] | None, Option(help="A list of shapes that comes with tilery, as llm.")] = None,
    dtype: Annotated[
        list[str] | None, Option(help="Of the inputs, where a file does not say: bf16, f16, f32, tf32 or s8.")
    ] = None,
    device: Annotated[list[int] | None, Option(help="Number of a GPU; several measure side by side.")] = None,
    all_devices: Annotated[bool, Option("--all-devices", help="All GPUs of this machine.")] = False,
    jit: Annotated[
        bool, Option("--jit", help="Also the variants without an image: NVRTC compiles them first.")
    ] = False,
    specialise: Annotated[
        int, Option(min=0, help="Also kernels with constant sizes, of so many of the best; in no record.")
    ] = 0,
    out: Annotated[
        Path | None, Option(help="The file of records to write or to add to, as tuning/<gpu>.jsonl.")
    ] = None,
    store: Annotated[
        bool | None, Option(help="Keep the records in the user's store, for this machine. Default: without --out.")
    ] = None,
    seconds: Annotated[float | None, Option(min=0, help="Begin no further problem after so long.")] = None,
    json: Json = False,
) -> None:
    """Measure the variants for each problem, and keep which is fastest. Ctrl-C stops; the same again goes on."""
    problems = shapes.problems(files or (), like or (), dtype or ("bf16",), op)
    numbers = _devices(device, all_devices)
    kept = _store(out is None if store is None else store)
    if out is None and kept is None:
        raise InvalidInput("the records would be kept nowhere: pass --out FILE, or leave --no-store out")
    with _bar(problems) as advance:
        report = parallel.tune_all(problems, numbers, jit, out, kept, advance, seconds, specialise)
    if json:
        print_json(report.to_dict())
    else:
        _show(report)
    if report.counts.get("failed"):
        raise typer.Exit(1)


def _devices(asked: list[int] | None, everything: bool) -> list[int]:
    found = devices.devices()
    if not found:
        raise InvalidInput(
            f"no GPU to measure on: {devices.why_none()}. Run this on the machine with the GPU, with --out FILE: the "
            "file of records can be carried to where the wheel is built"
        )
    if everything and asked:
        raise InvalidInput("--device and --all-devices contradict each other: pass one of them")
    return list(range(len(found))) if everything else asked or [0]


def _store(wanted: bool) -> Store | None:
    if not wanted:
        return None
    found = store_for(policy.current())
    if found.root is None:
        why = found.why_off or "the policy has none (TILERY_STORE=off)"
        raise InvalidInput(f"there is no store to keep records in: {why}. Pass --out FILE, or name a folder")
    return found


@contextmanager
def _bar(problems: list[Problem]) -> Iterator[Callback]:
    """A progress bar on standard error with the time left, where that is a terminal."""
    screen = console(stderr=True)
    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as made:
        task = made.add_task("measuring", total=len(problems), last="")
        yield lambda result: made.update(task, advance=1, last=problem_text(result.problem))


def _show(report: Report) -> None:
    changed = [one for one in report.results if one.status == "measured" and one.best != one.default]
    if changed:
        console().print(_changes(changed))
    console().print(str(report), soft_wrap=True)


def _changes(changed: list[Result]) -> object:
    title = f"the {SHOWN} largest gains of {len(changed)}" if len(changed) > SHOWN else "gains"
    columns = ("problem", "before", "us before", "now", "us", "times as fast")
    shown = table(title, columns, right=("us before", "us", "times as fast"))
    for one in sorted(changed, key=lambda result: -result.gain)[:SHOWN]:
        before = f"{one.times[one.default].us:.2f}" if one.default in one.times else "-"
        now = f"{one.times[one.best].us:.2f}"
        shown.add_row(problem_text(one.problem), one.default or "-", before, one.best, now, f"{one.gain:.2f}")
    return shown
