"""The real pack with the images that a build would give it, and a host pack of a few variants that really run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from generator import table
from generator.expand import expand
from generator.load import load
from tests.host.harness import CORE
from tilery import pack as packs
from tilery.pack import Pack

SPEC = load()
GPU_ARCHS = [name for name in SPEC.archs if name != "host"]


@cache
def declared() -> dict[str, Any]:
    """A _table.py without images and records."""
    names: dict[str, Any] = {}
    exec(table.build(SPEC, [*SPEC.archs], "core", "1").text, names)
    return names


def with_images(images: dict[str, dict[str, Any]], folder: Path = Path("images"), **changes: Any) -> Pack:
    """The real pack with these images."""
    return packs.from_table(declared() | {"IMAGES": images} | changes, folder)


def listed(names: Iterable[str], whole: dict[str, Any]) -> dict[str, Any]:
    """Images that hold these variants, as a table lists them."""
    images: dict[str, Any] = {}
    for name in names:
        images.setdefault(CORE[name].image, whole | {"variants": []})["variants"].append(name)
    return images


@cache
def shipped(without: tuple[str, ...] = ()) -> Pack:
    """The real pack, with every core variant in the images of every arch that can have it, less some families."""
    nothing = {"sha256": "0" * 64, "bytes": 1}
    kept = {arch: [v.name for v in expand(SPEC, arch).variants if v.family not in without] for arch in SPEC.archs}
    return with_images({arch: listed(names, nothing) for arch, names in kept.items()})


def of_library(path: Path, names: Iterable[str]) -> Pack:
    """The real pack whose host images are one library with these variants."""
    whole = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    return with_images({"host": listed(names, whole)}, path.parent.parent)
