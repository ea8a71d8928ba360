"""The installed distribution holds what it needs, and nothing that the table does not know."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest

import tilery

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = importlib.metadata.distribution("tilery")


def _editable() -> bool:
    origin = DISTRIBUTION.read_text("direct_url.json")
    return bool(origin and json.loads(origin).get("dir_info", {}).get("editable"))


@pytest.fixture
def package() -> Path:
    if _editable():
        pytest.skip("an editable install takes its files from the checkout")
    return Path(tilery.__file__).parent


def test_the_installed_package_is_the_one_under_test():
    assert _editable() or ROOT not in Path(tilery.__file__).parents


def test_the_version_is_one():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    table = importlib.import_module("tilery._table")
    assert tilery.__version__ == DISTRIBUTION.version == table.VERSION == declared


@pytest.mark.parametrize("folder", ["templates", "generator", "runtime/tilery"])
def test_every_source_file_is_there(package, folder):
    there = package / {"runtime/tilery": "."}.get(folder, folder)
    files = [
        path.relative_to(ROOT / folder)
        for pattern in ("*.py", "*.cuh", "*.h", "*.cpp", "*.j2", "*.toml", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    ]
    assert files
    assert [str(name) for name in files if (there / name).read_bytes() != (ROOT / folder / name).read_bytes()] == []


def test_typed_declarations_and_licence(package):
    assert (package / "py.typed").is_file()
    assert (package / "variants.toml").read_bytes() == (ROOT / "variants.toml").read_bytes()
    assert any(path.name == "LICENSE" for path in DISTRIBUTION.files or [])


def test_images_are_those_of_the_table(package):
    table = importlib.import_module("tilery._table")
    image_file = importlib.import_module("tilery.generator.archs").image_file
    expected = {
        f"{arch}/{image_file(arch, name)}": (row["sha256"], row["bytes"])
        for arch, images in table.IMAGES.items()
        for name, row in images.items()
    }
    found = {
        path.relative_to(package / "images").as_posix(): (hashlib.sha256(data).hexdigest(), len(data))
        for path in (package / "images").rglob("*")
        if path.is_file()
        for data in [path.read_bytes()]
    }
    assert expected
    assert found == expected


def test_every_wheel_has_the_host_device(package):
    """Of the C and C++ run-time it needs only what every glibc system has, and no folder of the build is in it."""
    table = importlib.import_module("tilery._table")
    assert set(table.IMAGES["host"]) == {
        variant["family"] + "_" + variant["dtype"] + "_" + variant["layout"]
        for variant in table.VARIANTS.values()
        if variant["tier"] == "core"
    }
    data = (package / "images" / "host" / "kernels.so").read_bytes()
    assert b"\0libc.so.6\0" in data
    assert str(ROOT).encode() not in data
    assert [name for name in (b"libstdc++.so", b"libgcc_s.so") if name in data] == []


def test_every_built_arch_has_the_variants_that_it_keeps(package):
    expand = importlib.import_module("tilery.generator.expand")
    spec = importlib.import_module("tilery.generator.load").load()
    table = importlib.import_module("tilery._table")
    for arch, images in table.IMAGES.items():
        compiled = {name for row in images.values() for name in row["variants"]}
        assert compiled == {variant.name for variant in expand.expand(spec, arch, table.TIER).variants}


def test_the_command_is_installed():
    (command,) = (entry for entry in DISTRIBUTION.entry_points if entry.group == "console_scripts")
    assert command.name == "tilery"
    assert callable(command.load())
