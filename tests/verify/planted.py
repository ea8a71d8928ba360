"""A pack for the host device in which one kernel is wrong where k is one more than whole tiles."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from generator.load import TEMPLATES
from generator.render import render
from tests.host.harness import CORE, build
from tests.host.test_runtime import NAIVE, SIMT, packed
from tilery import examine
from tilery import pack as packs
from tilery.host import plan as plans
from tilery.pack import Pack

STEPS = "int steps = (p.k + C::TILE_K - 1) / C::TILE_K;"
NAMES = (NAIVE, SIMT)


def library(folder: Path, wrong: bool) -> Path:
    """The library with both kernels."""
    templates = Path(shutil.copytree(TEMPLATES, folder / "templates"))
    body = templates / "gemm_simt.cuh"
    assert body.read_text().count(STEPS) == 1
    if wrong:
        body.write_text(body.read_text().replace(STEPS, STEPS.replace("- 1)", "- 2)")))
    sources = {name: render(CORE[name], templates) for name in NAMES}
    build(sources, folder / "host", check=False, templates=templates)
    return folder / "host" / "kernels.so"


def install(patch: pytest.MonkeyPatch, path: Path) -> Pack:
    """Make the library's pack that of this process, with nothing loaded."""
    pack = packed(path, NAMES)
    for module in (packs, plans, examine):
        patch.setattr(module, "builtin", lambda: pack)
    patch.setattr(plans, "_memory", plans.Memory())
    return pack


@contextmanager
def installed(path: Path) -> Iterator[Pack]:
    with pytest.MonkeyPatch.context() as patch:
        yield install(patch, path)
