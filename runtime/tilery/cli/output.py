"""What the commands share: consoles, tables, progress and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

# A pipe has no width: wide enough that no line of ours is ever folded there.
PIPE_WIDTH = 1000

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]

STYLES = {"ok": "green", "warning": "yellow", "error": "red", "FAIL": "bold red"}


def console(stderr: bool = False) -> Console:
    """A console of the process's standard output, or of its standard error."""
    plain = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not plain.is_terminal:
        plain.width = PIPE_WIDTH
    return plain


def print_json(data: Any) -> None:
    """Print as JSON; NaN and infinity, which JSON lacks, are refused."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def show_error(error: Exception) -> None:
    """Print an error on standard error: its own words say what to do."""
    console(stderr=True).print(Text.assemble(("error: ", "bold red"), (str(error), "red")), soft_wrap=True)


def styled(word: str) -> Text:
    """A word of a verdict in its colour."""
    return Text(word, style=STYLES.get(word, ""))


def table(title: str, columns: Sequence[str], right: Sequence[str] = ()) -> Table:
    """An empty table; the columns named in ``right`` hold numbers. Long cells are folded, never cut off."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, where that is a terminal; what it yields advances it by one."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as made:
        task = made.add_task(what, total=total)
        yield lambda: made.advance(task)


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """The items one by one, with a bar."""
    with bar(what, len(items)) as advance:
        for item in items:
            yield item
            advance()


def mib(size: int) -> str:
    """A number of bytes in MiB.

    >>> mib(3 << 19)
    '1.50 MiB'
    """
    return f"{size / 2**20:.2f} MiB"
