"""The command line of tilery: one module per command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import InvalidInput, TileryError, UnknownName
from . import cache, coverage, debug, demo, doctor, explain, listing, stats, tune, verify, warm
from .output import show_error

BAD_INPUT = (InvalidInput, UnknownName)


class Commands(TyperGroup):
    """The commands. What tilery raises on purpose is told in its own words, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TileryError as error:
            show_error(error)
            raise typer.Exit(2 if isinstance(error, BAD_INPUT) else 1) from None


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
app.command("demo")(demo.demo)
app.command("debug")(debug.debug)
app.command("doctor")(doctor.doctor)
app.command("list")(listing.list_variants)
app.command("explain")(explain.explain)
app.command("stats")(stats.stats)
app.command("warm")(warm.warm)
app.command("tune")(tune.tune)
app.command("coverage")(coverage.coverage)
app.command("verify")(verify.verify)
app.add_typer(cache.app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilery {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """GPU operators whose kernels are chosen call by call."""


def main() -> None:
    """Run the command line; exit code 0 when all is well, 1 for a fault, 2 for bad input."""
    app()
