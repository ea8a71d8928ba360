"""``tilery list``: the variants of the pack, and what each arch has of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from rich.text import Text
from typer import Option

from ..errors import UnknownName
from ..generator.variant import Variant
from ..pack import Arch, Pack, builtin
from .output import Json, console, print_json, table

BUILT, JIT, NONE = "built", "jit", "-"
COLOURS = {BUILT: "green", JIT: "yellow", NONE: "dim"}


def _check(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    valid = set(known)
    for name in names:
        if name not in valid:
            raise UnknownName(kind, name, valid)


def state(pack: Pack, arch: Arch, variant: Variant) -> str:
    """``built`` where an image of the arch has the variant, ``jit`` where NVRTC can compile it, else ``-``."""
    if pack.image_of(arch.name, variant):
        return BUILT
    fits = set(variant.features) <= set(arch.features) and variant.shared_bytes <= arch.shared_bytes
    return JIT if fits else NONE


def _matching(pack: Pack, wanted: dict[str, list[str]]) -> list[Variant]:
    for field, names in wanted.items():
        _check(field, names, (getattr(variant, field) for variant in pack.variants.values()))
    return [
        variant
        for variant in pack.variants.values()
        if all(not names or getattr(variant, field) in names for field, names in wanted.items())
    ]


def _row(variant: Variant, states: dict[str, str]) -> dict[str, Any]:
    keys = ("name", "family", "op", "dtype", "layout", "align", "tier", "threads", "shared_bytes")
    return {key: getattr(variant, key) for key in keys} | {
        "features": list(variant.features),
        "config": {key: list(value) if isinstance(value, tuple) else value for key, value in variant.config},
        "archs": states,
    }


def list_variants(
    arch: Annotated[list[str] | None, Option(help="Only what this arch can run; may be repeated.")] = None,
    family: Annotated[list[str] | None, Option(help="Only this family; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, Option(help="Only this dtype, also tf32; may be repeated.")] = None,
    layout: Annotated[list[str] | None, Option(help="Only this layout, also any; may be repeated.")] = None,
    json: Json = False,
) -> None:
    """List the variants: built ahead of time, or compiled by NVRTC when first needed."""
    pack = builtin()
    _check("arch", arch or (), pack.archs)
    archs = [row for name, row in pack.archs.items() if not arch or name in arch]
    rows = []
    for variant in _matching(pack, {"family": family or [], "dtype": dtype or [], "layout": layout or []}):
        states = {row.name: state(pack, row, variant) for row in archs}
        if not arch or set(states.values()) != {NONE}:
            rows.append(_row(variant, states))
    if json:
        print_json({"version": pack.version, "archs": [row.name for row in archs], "variants": rows})
    else:
        _print(pack, [row.name for row in archs], rows)


def _print(pack: Pack, archs: list[str], rows: list[dict[str, Any]]) -> None:
    fields = {"name": "name", "tier": "tier", "threads": "threads", "shared": "shared_bytes"}
    shown = table("", [*fields, *archs], right=("threads", "shared"))
    for row in rows:
        cells = [Text(row["archs"][arch], style=COLOURS[row["archs"][arch]]) for arch in archs]
        shown.add_row(*(str(row[key]) for key in fields.values()), *cells)
    screen = console()
    screen.print(shown)
    screen.print(f"{len(rows)} of {len(pack.variants)} variants. built: in an image; jit: compiled when first needed.")
