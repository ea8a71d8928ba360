"""What the tests compile with: `tilery.host`, no warning let through, and with libasan preloaded ASan and UBSan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from generator.archs import HOST
from generator.expand import expand
from generator.load import TEMPLATES, load
from generator.render import content_hash, render
from tilery.errors import PackError
from tilery.host import Library, compile
from tilery.pack import builtin

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
CORE = {variant.name: variant for variant in expand(load(), None).variants}
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


def shipped() -> Path | None:
    """The library of the installed pack, if it is made of the same sources as these."""
    try:
        pack = builtin()
    except PackError:
        return None
    same = all(pack.hashes.get(name) == content_hash(variant) for name, variant in CORE.items())
    paths = [image.path for image in pack.images.get(HOST, {}).values()]
    return paths[0] if same and paths else None


def core_library(folder: Path) -> Library:
    """All core variants without checks: the installed library, else a new one in a folder."""
    if (path := shipped()) is not None:
        return Library(path)
    sources = {name: render(variant) for name, variant in CORE.items()}
    return build(sources, folder, check=False, units=os.cpu_count() or 2)


def build(
    sources: Mapping[str, str], folder: Path, *, check: bool = True, templates: Path = TEMPLATES, units: int = 2
) -> Library:
    """Compile sources by name, and load them."""
    flags, out = (*WARNINGS, *(SANITIZE if SANITIZED else ())), folder / "kernels.so"
    return Library(compile(sources, out, check=check, flags=flags, templates=templates, units=units))
